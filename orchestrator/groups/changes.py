"""Change a group's name, settings or memory, show the effect of a change, and restore earlier versions.

The texts before and after each change are in the database, which no container reaches. An agent may write its
memory file at any time, so `apply`, which replaces a whole text, first has the present one compared with the
one that the author of the change was shown. `configure` and `set_profile` change single fields, whatever they
were.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from difflib import unified_diff
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Group
from orchestrator.groups import memory_templates, name_and_trigger, settings
from orchestrator.groups.name_and_trigger import GroupProfile
from orchestrator.store import audit
from orchestrator.store.database import Tx, announce
from orchestrator.store.groups import changes as group_changes
from orchestrator.store.groups import groups
from orchestrator.store.groups.changes import GroupChange, GroupPart

CheckSettings = Callable[[Tx, Mapping[str, Any]], Awaitable[None]]
"""Is called with the settings that an earlier state brings back, by their keys (None removes one), and raises
`BadRequest` to prevent it, such as for a model whose service is gone.
"""
MAX_MEMORY_CHARS = 20_000
CONTEXT_LINES = 2
MAX_COMPARED = 250_000
"""Most lines before times lines after that are compared one by one, since that takes their product in time.
"""


class GroupChangeRefused(BadRequest):
    """A group's name, settings or memory cannot be changed to this."""

    code = "bad_change"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffLine:
    """A line that was added, removed or unchanged, or a gap of unchanged lines."""

    kind: Literal["+", "-", " ", "…"]
    text: str = ""


async def current(tx: Tx, home: Path, folder: str, part: GroupPart) -> str:
    """Return a part of a group as text, as it is now: settings or profile as JSON, or its memory file.

    Of the memory file, only the first `memory_templates.MAX_READ_BYTES` are returned. `home` is Andy's home
    directory. Raises `UnknownGroup` if there is no such group.
    """
    group = await groups.known(tx, folder)
    if part is GroupPart.SETTINGS:
        # As stored, also if they cannot be parsed: the settings that apply then are not the owner's.
        return settings.text_of(group.container_config)
    if part is GroupPart.PROFILE:
        return profile_text(group)
    memory = memory_templates.MEMORY
    return await asyncio.to_thread(memory_templates.own_text, home, group.folder, memory) or ""


def checked(part: GroupPart, text: str) -> str:
    """Check a new text for a part of a group, and return it in the form in which it is stored.

    Raises `ConfigRefused` or `GroupChangeRefused`, with the reason, if it cannot be stored.
    """
    if part is GroupPart.SETTINGS:
        return settings.text_of(settings.checked(_fields(text)).to_fields())
    if part is GroupPart.PROFILE:
        return settings.text_of(_profile(text).model_dump())
    if len(text) > MAX_MEMORY_CHARS:
        raise GroupChangeRefused(
            f"The memory has {len(text):,} characters; at most {MAX_MEMORY_CHARS:,} are kept: shorten it."
        )
    return text.replace("\0", "")


async def configure(
    tx: Tx, folder: str, changes: Mapping[str, Any], *, by: str, now_ms: int, undoes: int | None = None
) -> Group:
    """Change settings of a group, and return the group with them; they apply to its next container.

    `GroupReconciler` closes containers with the old settings once they are idle. The change is stored,
    audited and published.

    Args:
        tx: the transaction.
        folder: the group's folder.
        changes: the settings to set, by their keys; None removes a key.
        by: who changes them.
        now_ms: the present time, in epoch milliseconds.
        undoes: the number of the change that this one undoes; None if it undoes none.

    Raises:
        UnknownGroup: there is no such group.
        ConfigRefused: a key or a value cannot be used; nothing was changed.
    """
    group = await groups.known(tx, folder)
    before = settings.text_of(group.container_config)
    config = settings.merged(group, changes)
    await groups.set_config(tx, group.folder, config, now_ms=now_ms)
    detail = {"changed": {key: config.get(key) for key in changes}}
    change = _change(group, GroupPart.SETTINGS, before, settings.text_of(config), by=by, now_ms=now_ms)
    await _record(tx, replace(change, undoes=undoes), "group.configured", detail)
    announce(tx, "group.configured", group=group.folder)
    return replace(group, container_config=config)


def profile_text(group: Group) -> str:
    """Return a group's profile as JSON text: its name, its trigger, and whether messages need one. Pure.

    Versions of the profile are compared and restored in this form.
    """
    return settings.text_of(
        {"name": group.name, "trigger": group.trigger or "", "requires_trigger": group.requires_trigger}
    )


async def set_profile(
    tx: Tx, folder: str, profile: GroupProfile, *, by: str, now_ms: int, undoes: int | None = None
) -> Group:
    """Change a group's name, its trigger, or whether it answers every message, and return the group.

    This applies from the next message on. The change is stored, audited and published.

    Args:
        tx: the transaction.
        folder: the group's folder.
        profile: the new values; a field that is None stays unchanged.
        by: who changes them.
        now_ms: the present time, in epoch milliseconds.
        undoes: the number of the change that this one undoes; None if it undoes none.

    Raises:
        UnknownGroup: there is no such group.
        ProfileRefused: a value cannot be used, or the name is another group's (`NameTaken`); nothing was
            changed.
    """
    group = await groups.known(tx, folder)
    changed = name_and_trigger.with_profile(group, profile)
    if changed.name != group.name:
        await name_and_trigger.check_name_is_free(tx, changed)
    await groups.set_profile(tx, changed)
    before, after = profile_text(group), profile_text(changed)
    change = _change(group, GroupPart.PROFILE, before, after, by=by, now_ms=now_ms)
    old, new = json.loads(before), json.loads(after)
    detail = {"changed": {name: value for name, value in new.items() if old[name] != value}}
    await _record(tx, replace(change, undoes=undoes), "group.profile_changed", detail)
    announce(tx, "group.configured", group=group.folder)
    return changed


async def apply(
    tx: Tx,
    home: Path,
    folder: str,
    part: GroupPart,
    text: str,
    *,
    check: Callable[[str], None],
    check_settings: CheckSettings | None = None,
    by: str,
    now_ms: int,
    undoes: int | None = None,
) -> None:
    """Replace a part of a group (its settings, profile or memory file) by a text.

    The change is stored, audited and published.

    Args:
        tx: the transaction.
        home: Andy's home directory.
        folder: the group's folder.
        part: the part to replace.
        text: the new text, in the form of `current`.
        check: is called with the present text, and raises an error to prevent the change.
        check_settings: checks the changed settings, beyond what `checked` does.
        by: who changes it.
        now_ms: the present time, in epoch milliseconds.
        undoes: the number of the change that this one undoes; None if it undoes none.

    Raises:
        UnknownGroup: there is no such group.
        ConfigRefused, GroupChangeRefused, ProfileRefused: the text cannot be stored; also what
            `check_settings` refuses. `GroupChangeRefused` also if the present memory file has
            more than `memory_templates.MAX_READ_BYTES`.
        OSError: the memory file cannot be written. After any of these errors, nothing is changed. An error of
            `check` is passed on.
    """
    before = await current(tx, home, folder, part)
    check(before)
    group = await groups.known(tx, folder)
    memory = memory_templates.MEMORY
    # `current` reads no more of a memory file, so the rest of it could not be restored.
    if part is GroupPart.MEMORY and await asyncio.to_thread(
        memory_templates.is_cut, home, group.folder, memory
    ):
        raise GroupChangeRefused(
            f"{memory} is larger than {memory_templates.MAX_READ_BYTES // 1024} KiB,"
            " and could not be put back: shorten it with an editor first."
        )
    after = checked(part, text)
    if part is GroupPart.PROFILE:
        await set_profile(tx, folder, _profile(after), by=by, now_ms=now_ms, undoes=undoes)
        return
    if part is GroupPart.SETTINGS:
        old, new = json.loads(before), json.loads(after)
        changes = {key: new.get(key) for key in {**old, **new} if old.get(key) != new.get(key)}
        if check_settings is not None:
            try:
                await check_settings(tx, changes)
            except BadRequest as error:
                raise GroupChangeRefused(str(error)) from error
        await configure(tx, folder, changes, by=by, now_ms=now_ms, undoes=undoes)
        return
    change = await asyncio.to_thread(_change, group, part, before, after, by=by, now_ms=now_ms)
    await _record(tx, replace(change, undoes=undoes), "group.memory_changed", {})
    # Last, so that a disk that refuses it also rolls back the row.
    await asyncio.to_thread(memory_templates.write_memory, home, group.folder, after)
    announce(tx, "group.configured", group=group.folder)


async def put_back(
    tx: Tx,
    home: Path,
    folder: str,
    number: int,
    *,
    check_settings: CheckSettings | None = None,
    by: str,
    now_ms: int,
) -> tuple[GroupPart, ...]:
    """Restore the state of a group before the change with this number, and return the restored parts.

    Changes of other parts that were made together with it are undone, too. `home` is Andy's home directory,
    and `by` is who restores it; `check_settings` is that of `apply`.

    Raises what `apply` raises, and:
        UnknownGroupChange: the group has no such change.
        GroupChangeRefused: a part was changed since.
    """
    change = await group_changes.get(tx, (await groups.known(tx, folder)).folder, number)
    changes = await group_changes.made_with(tx, change)
    async with group_changes.in_one_step(tx, change.folder):
        for part_change in changes:
            await apply(
                tx,
                home,
                folder,
                part_change.part,
                part_change.before,
                check=partial(_check_unchanged, part_change.after),
                check_settings=check_settings,
                by=by,
                now_ms=now_ms,
                undoes=part_change.number,
            )
    return tuple(part_change.part for part_change in changes)


def _check_unchanged(expected: str, present: str) -> None:
    """Check that the `present` text of a part is still the one after a change, `expected`.

    Raises `GroupChangeRefused` if it is not.
    """
    if present != expected:
        raise GroupChangeRefused(
            "It was changed again since: open the change, and look what undoing it does."
        )


def memory_digest(text: str) -> str:
    """Return a hash that identifies a memory file's content: 16 hex digits. Pure."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


async def forget_lines(
    tx: Tx, home: Path, folder: str, text: str, place: int, *, shown: str, by: str, now_ms: int
) -> None:
    """Remove lines from a group's memory file, the notes of its agent.

    If the file was changed since the person saw it, the lines are found by their text, if that occurs once.

    Args:
        tx: the transaction.
        home: Andy's home directory.
        folder: the group's folder.
        text: the lines to remove.
        place: the index of the first of them, from 0 on, in the version that the person saw.
        shown: the `memory_digest` of that version.
        by: who removes them.
        now_ms: the present time, in epoch milliseconds.

    Raises what `apply` raises, and:
        GroupChangeRefused: the lines are gone, or occur several times.
    """
    memory = await current(tx, home, folder, GroupPart.MEMORY)
    lines = memory.split("\n")
    # Browsers normalise the line ends that they send, and some editors those in the file.
    compared_lines = [line.rstrip("\r") for line in lines]
    wanted = text.replace("\r\n", "\n").rstrip("\r\n").split("\n")
    places = [index for index in range(len(lines)) if compared_lines[index : index + len(wanted)] == wanted]
    is_sure = place in places and memory_digest(memory) == shown
    if not is_sure and len(places) != 1:
        raise GroupChangeRefused("The memory was changed meanwhile: look again which lines you mean.")
    first = place if is_sure else places[0]
    del lines[first : first + len(wanted)]
    await apply(
        tx,
        home,
        folder,
        GroupPart.MEMORY,
        "\n".join(lines),
        check=lambda _: None,
        by=by,
        now_ms=now_ms,
    )


def _change(group: Group, part: GroupPart, before: str, after: str, *, by: str, now_ms: int) -> GroupChange:
    """Return the record of a change of a part from `before` to `after`.

    It has both texts, and the numbers of lines added and removed.

    `by` is who changed it.
    """
    lines = diff(before, after)
    return GroupChange(
        folder=group.folder,
        part=part,
        at_ms=now_ms,
        by=by,
        before=before,
        after=after,
        added=sum(line.kind == "+" for line in lines),
        removed=sum(line.kind == "-" for line in lines),
    )


async def _record(tx: Tx, change: GroupChange, kind: str, detail: dict[str, Any]) -> None:
    """Write a change to the audit log, and store it if it changes the text of its part of the group.

    The parts are the name with the trigger, the settings and the memory. `kind` is the kind of the audit
    entry and `detail` its content; a stored change adds its number, who made it, and the change it undoes.
    """
    if change.before != change.after:
        number = await group_changes.add(tx, change)
        detail |= {"change": number, "by": change.by, "undoes": change.undoes}
    event = audit.AuditEvent(at_ms=change.at_ms, kind=kind, folder=change.folder, detail=detail)
    await audit.append(tx, event)


def diff(before: str, after: str) -> list[DiffLine]:
    """Return the difference of two texts line by line, with two unchanged lines around each change. Pure.

    An entry of the kind `…` stands for the unchanged lines between two changes. Long texts are compared
    without the lines that are equal at their starts and ends. If the rest is still too long to be compared
    line by line, all of it is returned as removed and added.
    """
    old, new = before.split("\n"), after.split("\n")
    if len(old) * len(new) > MAX_COMPARED:
        old, new = _without_common_ends(old, new)
    if len(old) * len(new) > MAX_COMPARED:
        return [
            *(DiffLine(kind="-", text=line) for line in old),
            *(DiffLine(kind="+", text=line) for line in new),
        ]
    difference: list[DiffLine] = []
    # The first two lines are a header with names of files.
    for line in list(unified_diff(old, new, n=CONTEXT_LINES, lineterm=""))[2:]:
        match line[:1]:
            case "@":
                difference += [DiffLine(kind="…")] if difference else []
            case "+":
                difference.append(DiffLine(kind="+", text=line[1:]))
            case "-":
                difference.append(DiffLine(kind="-", text=line[1:]))
            case _:
                difference.append(DiffLine(kind=" ", text=line[1:]))
    return difference


def _without_common_ends(old: list[str], new: list[str]) -> tuple[list[str], list[str]]:
    """Return the lines `old` and `new` without those that both have at the start and at the end."""
    most = min(len(old), len(new))
    same_start = next((index for index in range(most) if old[index] != new[index]), most)
    most -= same_start
    same_end = next((index for index in range(most) if old[-1 - index] != new[-1 - index]), most)
    return old[same_start : len(old) - same_end], new[same_start : len(new) - same_end]


def _profile(text: str) -> GroupProfile:
    """Return the group's profile that `text` has as JSON. Raises `GroupChangeRefused` if it has none."""
    try:
        return GroupProfile.model_validate(_fields(text))
    except ValidationError as error:
        raise GroupChangeRefused("A group has a name, a trigger, and requires_trigger.") from error


def _fields(text: str) -> dict[str, object]:
    """Return the object that is written as JSON in `text`; an empty object for an empty text.

    Raises `GroupChangeRefused` for a text that is no JSON object.
    """
    try:
        parsed = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise GroupChangeRefused(f"The settings are no JSON ({error}).") from error
    if not isinstance(parsed, dict):
        raise GroupChangeRefused("""The settings are no JSON object, such as {"memory_mb": 1024}.""")
    return parsed
