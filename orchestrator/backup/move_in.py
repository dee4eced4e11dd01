"""Take over what a home of another program holds: groups, notes, scheduled tasks and the past of chats.

A second import finds by ids what the first has brought, and adds nothing twice. Nobody gets the rights of
main by an import: what belonged to the other program's main comes to Andy's, but its chat does not.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Any
from zoneinfo import ZoneInfo

from agent_runner.wire.mailbox import ScheduleTask
from orchestrator.backup.foreign_home import ForeignGroup, ForeignHome, ForeignNote, ForeignTask
from orchestrator.base.dirfd import give_to_owner_of, inner, opened
from orchestrator.base.tables import counted
from orchestrator.channels import discovery
from orchestrator.domain.errors import BadRequest, BadTime
from orchestrator.domain.home import Home
from orchestrator.domain.setting_sources import known_zone
from orchestrator.domain.values import ChatJid, Folder, Group, MessageId
from orchestrator.groups import registration
from orchestrator.groups.registration import Registration
from orchestrator.scheduler import scheduled_task_service
from orchestrator.scheduler.scheduled_task_service import ScheduleReader
from orchestrator.store import groups, message_history, tasks
from orchestrator.store.database import Tx
from orchestrator.store.message_history import ImportedMessage

MAX_LEFT_SHOWN = 50
PHONE_CHAT_ENDING = "@s.whatsapp.net"
"""The ending of an address that is a phone number, where the other program writes the number alone."""


@dataclass(slots=True, kw_only=True)
class MovedGroup:
    """The result of an import for one group."""

    folder: str
    chat: str
    is_new: bool = False
    messages: int = 0
    notes: list[str] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class MoveResult:
    """The result of an import; with `is_dry_run`, what it would be."""

    program: str
    is_dry_run: bool
    groups: list[MovedGroup] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def to_row(self) -> dict[str, Any]:
        return asdict(self)


class DryRunEnded(Exception):
    """Ends the transaction of a dry run, which is undone."""

    def __init__(self, result: MoveResult) -> None:
        super().__init__()
        self.result = result


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One import of a home that was read."""

    home: Home
    foreign: ForeignHome
    times: ScheduleReader
    is_dry_run: bool

    async def run(self, tx: Tx, now_ms: int) -> MoveResult:
        """Take everything over and return what came.

        Raises:
            DryRunEnded: it was to be tried only.
            OSError: a note cannot be written.
        """
        result = MoveResult(
            program=self.foreign.program, is_dry_run=self.is_dry_run, left=list(self.foreign.left)
        )
        await registration.ensure_main(tx, now_ms=now_ms)
        for one in (replace(group, chat=_address(group)) for group in self.foreign.groups):
            try:
                group, is_new = await self._group(tx, one, now_ms=now_ms)
            except BadRequest as refused:
                result.left.append(f"the group {one.folder}: {refused}")
                continue
            moved = MovedGroup(folder=group.folder, chat=group.jid, is_new=is_new)
            result.groups.append(moved)
            if one.is_main and one.chat and one.chat not in group.chats:
                result.left.append(
                    f"the chat {one.chat} of main: only you give rights of main,"
                    f" by 'andy groups add-chat main {one.chat}'"
                )
            moved.messages = await self._add_messages(tx, one, group, now_ms=now_ms)
            moved.tasks = await self._add_tasks(tx, one, group, result.left.append, now_ms=now_ms)
            moved.notes = await self._add_notes(tx, one, group, result.left.append)
        if self.is_dry_run:
            raise DryRunEnded(result)
        return result

    async def _group(self, tx: Tx, one: ForeignGroup, *, now_ms: int) -> tuple[Group, bool]:
        """Return the group that takes `one` in, and whether it is new. Raises `BadRequest`."""
        if one.is_main:
            return next(group for group in await groups.every(tx) if group.is_main), False
        key = f"{self.foreign.program}:group:{one.key}"
        noted = await message_history.import_note(tx, key)
        chat = ChatJid(one.chat) if one.chat else None
        known = await groups.by_folder(tx, noted) if noted else None
        known = known or (await groups.by_jid(tx, chat) if chat else None)
        if known is not None:
            if known.is_main:
                raise BadRequest("its chat is main's here: nothing of other groups comes there.")
            return known, False
        folder = await self._free_folder(tx, one.folder)
        wanted = Registration(
            folder=folder, jid=chat, name=one.name, requires_trigger=one.requires_trigger
        ).to_group(now_ms)
        # As it is: what has called the assistant there goes on doing so.
        group = await registration.register(tx, replace(wanted, trigger=_own_trigger(one.trigger)))
        await message_history.set_import_note(tx, key, group.folder)
        return group, True

    async def _free_folder(self, tx: Tx, folder: str) -> Folder:
        """Return a folder name that no group has. Raises `FolderRefused` where it is none."""
        checked = registration.checked_folder(folder)
        for number in range(1, 100):
            ending = f"-{self.foreign.program}" if number == 2 else f"-{number}"
            free = checked if number == 1 else Folder(f"{checked[:48]}{ending}")
            if await groups.by_folder(tx, free) is None:
                return free
        raise BadRequest("there are too many groups of this name.")

    async def _add_messages(self, tx: Tx, one: ForeignGroup, group: Group, *, now_ms: int) -> int:
        is_own_chat = one.chat in group.chats
        # In its own chat a message has the messenger's id, so that it is known when it comes again.
        prefix = "" if is_own_chat and self.foreign.has_chat_ids else f"{self.foreign.program}:{one.key}:"
        imported = (
            ImportedMessage(
                id=MessageId(f"{prefix}{message.id}"),
                sender=message.sender,
                sender_name=message.sender_name,
                text=message.text,
                sent_ms=message.sent_ms,
                is_own=message.is_bot,
            )
            for message in one.messages
        )
        chat = ChatJid(one.chat) if is_own_chat else group.jid
        return await message_history.add_imported(tx, group.folder, chat, imported, now_ms=now_ms)

    async def _add_tasks(
        self, tx: Tx, one: ForeignGroup, group: Group, leave: Callable[[str], None], *, now_ms: int
    ) -> list[str]:
        added = []
        for task in one.tasks:
            name = _stable_id(self.foreign.program, one.key, task.id)
            if await tasks.get(tx, name) is not None:
                continue
            try:
                await self._add_task(tx, task, group, name, now_ms=now_ms)
            except (BadRequest, BadTime) as refused:
                leave(f"{group.folder}: task {task.id} ({task.kind} {task.value}): {refused}")
            else:
                added.append(name)
        return added

    async def _add_task(self, tx: Tx, task: ForeignTask, group: Group, name: str, *, now_ms: int) -> None:
        if not task.prompt.strip():
            raise BadRequest("it asks nothing.")
        zone = self.times.plan(group, "interval", "1h", dst=None, now_ms=now_ms).schedule.timezone
        if task.kind == "cron" and task.zone:
            _refuse_other_clock(task.zone, zone, group, now_ms=now_ms)
        request = ScheduleTask.model_construct(
            prompt=task.prompt,
            schedule_type=task.kind,
            schedule_value=task.value,
            context_mode="group" if task.is_in_conversation else "isolated",
        )
        made = await scheduled_task_service.create(
            tx, group, request, self.times, now_ms=now_ms, task_id=name
        )
        if task.is_paused:
            await scheduled_task_service.pause(tx, made, now_ms=now_ms)

    async def _add_notes(
        self, tx: Tx, one: ForeignGroup, group: Group, leave: Callable[[str], None]
    ) -> list[str]:
        added = []
        for note in one.notes:
            key = f"{self.foreign.program}:note:{_stable_id(one.key, note.path)}"
            digest = hashlib.sha256(note.body).hexdigest()
            if await message_history.import_note(tx, key) == digest:
                continue
            try:
                added.append(note.path if self.is_dry_run else self._write(group, note))
            except OSError as error:
                leave(f"{group.folder}: the note {note.path}: {error.strerror}")
            else:
                await message_history.set_import_note(tx, key, digest)
        return added

    def _write(self, group: Group, note: ForeignNote) -> str:
        """Write a note and return its path. Beside another of its name, which stays, it gets another name."""
        path = PurePosixPath(note.path)
        beside = str(path.with_name(f"{path.stem}.from-{self.foreign.program}{path.suffix}"))
        if _write_note(self.home.groups, group.folder, note.path, note.body, replaces=False):
            return note.path
        _write_note(self.home.groups, group.folder, beside, note.body, replaces=True)
        return beside


def _address(group: ForeignGroup) -> str:
    """Return the address of a group's chat in a messenger that Andy has; empty where there is none.

    No other program has chats of this machine.
    """
    number = group.chat.removeprefix("+")
    phone = [number + PHONE_CHAT_ENDING] if number.isdecimal() else []
    for one in discovery.installed():
        texts = [group.chat, one.prefix + group.chat, *phone] if group.channel else [group.chat]
        if one.name == discovery.ALWAYS_ON or group.channel not in ("", one.name) or not group.chat:
            continue
        for text in texts:
            if one.owns(ChatJid(text)):
                return text
    return ""


def _refuse_other_clock(one: str, other: str, group: Group, *, now_ms: int) -> None:
    """Raise `BadRequest` where two zones will show other times; `UTC` and `Etc/UTC` do not."""
    try:
        zones = [ZoneInfo(known_zone(name)) for name in (one, other)]
    except ValueError:
        raise BadRequest(f"its times are those of {one}, which is no time zone that is known.") from None
    days = (datetime.fromtimestamp(now_ms / 1000, UTC) + timedelta(days=day) for day in range(0, 1_000, 7))
    if any(len({day.astimezone(zone).utcoffset() for zone in zones}) > 1 for day in days):
        fix = f"""andy groups config {group.folder} --set '{{"timezone": "{one}"}}'"""
        raise BadRequest(
            f"its times are those of {one}, and the group's of {other}:"
            f" after {fix} a second import brings it."
        )


def _own_trigger(trigger: str | None) -> str | None:
    """Return a trigger that a person would type; a pattern is none."""
    return trigger if trigger and len(trigger) <= registration.MAX_TRIGGER_CHARS else None


def _stable_id(*parts: str) -> str:
    """Return an id that is the same at each import, and begins with the first part."""
    return f"{parts[0][:20]}-{hashlib.sha256(chr(0).join(parts).encode('utf-8', 'replace')).hexdigest()[:16]}"


def _write_note(root: Path, folder: str, path: str, body: bytes, *, replaces: bool) -> bool:
    """Write a file in a group's folder, following no link. Return whether it was written."""
    *folders, name = PurePosixPath(path).parts
    with ExitStack() as stack:
        here = stack.enter_context(opened(root))
        for part in (folder, *folders):
            here = stack.enter_context(inner(here, part, makes=True))
        kind = os.O_TRUNC if replaces else os.O_EXCL
        try:
            descriptor = os.open(
                name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | kind, 0o644, dir_fd=here
            )
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "wb") as file:
            file.write(body)
            give_to_owner_of(here, file.fileno())
        return True


def summary_lines(row: Mapping[str, Any]) -> list[str]:
    """Return what a person reads about an import."""
    verb = "would come" if row["is_dry_run"] else "came"
    lines = [
        f"{one['folder']}{' (new)' if one['is_new'] else ''}, {one['chat']}:"
        f" {counted(one['messages'], 'message')},"
        f" {counted(len(one['notes']), 'note')}, {counted(len(one['tasks']), 'task')} {verb}."
        for one in row["groups"]
    ] or ["There is no group in it."]
    if row["left"]:
        lines += ["Left:", *(f"  {text}" for text in row["left"][:MAX_LEFT_SHOWN])]
    if len(row["left"]) > MAX_LEFT_SHOWN:
        lines.append(f"  … and {len(row['left']) - MAX_LEFT_SHOWN} more: --json lists all.")
    return lines
