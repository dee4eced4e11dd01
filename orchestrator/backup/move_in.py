"""Import a home of another program: groups, notes, scheduled tasks and the messages of chats.

A second import recognises by ids what the first has added, and adds nothing twice. A note that has changed
there replaces the first one, unless that was changed here. No chat gets the rights of main by an import:
notes and tasks of the other program's main come to Andy's main, but its chat does not.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Any
from zoneinfo import ZoneInfo

from agent_runner.wire.mailbox import ScheduleTask
from orchestrator.backup.foreign_home import (
    MAX_NOTE_BYTES,
    ForeignGroup,
    ForeignHome,
    ForeignNote,
    ForeignTask,
)
from orchestrator.base.dirfd import give_to_owner_of, inner, open_file, opened
from orchestrator.base.tables import counted
from orchestrator.channels import discovery
from orchestrator.domain.errors import BadRequest, BadTime
from orchestrator.domain.values import ChatJid, Folder, Group, MessageId
from orchestrator.groups import name_and_trigger, registration
from orchestrator.groups.registration import Registration
from orchestrator.home.directory import Home
from orchestrator.home.setting_sources import known_zone
from orchestrator.scheduler import scheduled_task_service
from orchestrator.scheduler.scheduled_task_service import ScheduleReader
from orchestrator.store.conversation import message_history
from orchestrator.store.conversation.message_history import ImportedMessage
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.schedule import tasks

MAX_LEFT_SHOWN = 50
PHONE_CHAT_ENDING = "@s.whatsapp.net"
"""The ending that makes a phone number, as the other program stores it, the address of a chat."""


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
    """The result of an import; with `is_dry_run`, the result that it would have."""

    program: str
    is_dry_run: bool
    groups: list[MovedGroup] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """The items that were left out, each as a text with the reason."""

    def to_row(self) -> dict[str, Any]:
        """Return the result and its groups by the names of their fields, as they are printed as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One import of another program's home, whose files were read already."""

    home: Home
    foreign: ForeignHome
    times: ScheduleReader
    is_dry_run: bool

    async def run(self, tx: Tx, now_ms: int) -> MoveResult:
        """Import everything in the transaction `tx`, and return the result.

        A group that cannot be imported is noted in the result's `left`, as is whatever is left out of the
        other groups. With `is_dry_run` no file is written; `tx` is that of a copy of the database.
        """
        result = MoveResult(
            program=self.foreign.program, is_dry_run=self.is_dry_run, left=list(self.foreign.left_out)
        )
        await registration.ensure_main(tx, now_ms=now_ms)
        # The chat's id in the other program becomes its address in Andy, here and in all that follows.
        for foreign_group in (replace(group, chat=_address(group)) for group in self.foreign.groups):
            try:
                group, is_new = await self._receiving_group(tx, foreign_group, now_ms=now_ms)
            except BadRequest as refused:
                result.left.append(f"the group {foreign_group.folder}: {refused}")
                continue
            moved = MovedGroup(folder=group.folder, chat=group.jid, is_new=is_new)
            result.groups.append(moved)
            if foreign_group.is_main and foreign_group.chat and foreign_group.chat not in group.chats:
                result.left.append(
                    f"the chat {foreign_group.chat} of main: only you give rights of main,"
                    f" by 'andy groups add-chat main {foreign_group.chat}'"
                )
            moved.messages = await self._add_messages(tx, foreign_group, group, now_ms=now_ms)
            moved.tasks = await self._add_tasks(tx, foreign_group, group, result.left.append, now_ms=now_ms)
            moved.notes = await self._add_notes(tx, foreign_group, group, result.left.append)
        return result

    async def _receiving_group(
        self, tx: Tx, foreign_group: ForeignGroup, *, now_ms: int
    ) -> tuple[Group, bool]:
        """Return the group of this Andy that receives `foreign_group`, and whether it was newly registered.

        Main receives the other program's main. Another group is received by the group of an earlier import,
        else by the group that has its chat, else by a new one.

        Raises:
            BadRequest: the chat is main's here, or the group cannot be registered.
        """
        if foreign_group.is_main:
            return next(group for group in await groups.every(tx) if group.is_main), False
        # An import stores values under keys for later imports: here the folder of the group.
        key = f"{self.foreign.program}:group:{foreign_group.key}"
        earlier_folder = await message_history.import_value(tx, key)
        chat = ChatJid(foreign_group.chat) if foreign_group.chat else None
        existing = await groups.by_folder(tx, earlier_folder) if earlier_folder else None
        existing = existing or (await groups.by_jid(tx, chat) if chat else None)
        if existing is not None:
            if existing.is_main:
                raise BadRequest("its chat is main's here: nothing of other groups comes there.")
            return existing, False
        folder = await self._free_folder(tx, foreign_group.folder)
        new_group = Registration(
            folder=folder, jid=chat, name=foreign_group.name, requires_trigger=foreign_group.requires_trigger
        ).to_group(now_ms)
        # With the other program's trigger: people go on calling the assistant as they did there.
        group = await registration.register(
            tx, replace(new_group, trigger=_usable_trigger(foreign_group.trigger))
        )
        await message_history.set_import_value(tx, key, group.folder)
        return group, True

    async def _free_folder(self, tx: Tx, folder: str) -> Folder:
        """Return a folder name that no group has: `family`, `family-nanobot`, `family-3` and so on.

        Raises `FolderRefused` if `folder` is not valid, and `BadRequest` if all these are taken.
        """
        checked = registration.checked_folder(folder)
        for number in range(1, 100):
            ending = f"-{self.foreign.program}" if number == 2 else f"-{number}"
            # Cut, so that the name with its ending is not too long for a folder.
            free = checked if number == 1 else Folder(f"{checked[:48]}{ending}")
            if await groups.by_folder(tx, free) is None:
                return free
        raise BadRequest("there are too many groups of this name.")

    async def _add_messages(self, tx: Tx, foreign_group: ForeignGroup, group: Group, *, now_ms: int) -> int:
        """Add the messages of `foreign_group` that `group` does not have yet, and return their number."""
        is_own_chat = foreign_group.chat in group.chats
        # In the group's own chat a message keeps the messenger's id, so that it is recognised if it arrives
        # again. Elsewhere a prefix makes the id different from those of all other messages.
        prefix = (
            ""
            if is_own_chat and self.foreign.has_chat_ids
            else f"{self.foreign.program}:{foreign_group.key}:"
        )
        imported = (
            ImportedMessage(
                id=MessageId(f"{prefix}{message.id}"),
                sender=message.sender,
                sender_name=message.sender_name,
                text=message.text,
                sent_ms=message.sent_ms,
                is_own=message.is_bot,
            )
            for message in foreign_group.messages
        )
        chat = ChatJid(foreign_group.chat) if is_own_chat else group.jid
        # All in one statement: 200,000 messages then take 9 s instead of 24.
        return await message_history.add_imported(tx, group.folder, chat, imported, now_ms=now_ms)

    async def _add_tasks(
        self,
        tx: Tx,
        foreign_group: ForeignGroup,
        group: Group,
        leave_out: Callable[[str], None],
        *,
        now_ms: int,
    ) -> list[str]:
        """Add the scheduled tasks of `foreign_group` that were not imported before; return their ids.

        `leave_out` is called with a text for each task that cannot run here.
        """
        added = []
        for task in foreign_group.tasks:
            task_id = _stable_id(self.foreign.program, foreign_group.key, task.id)
            if await tasks.get(tx, task_id) is not None:
                continue
            try:
                await self._add_task(tx, task, group, task_id, now_ms=now_ms)
            except (BadRequest, BadTime) as refused:
                leave_out(f"{group.folder}: task {task.id} ({task.kind} {task.value}): {refused}")
            else:
                added.append(task_id)
        return added

    async def _add_task(self, tx: Tx, task: ForeignTask, group: Group, task_id: str, *, now_ms: int) -> None:
        """Create the scheduled task `task_id` of a group from the other program's task.

        Raises:
            BadRequest, BadTime: it cannot run here.
        """
        if not task.prompt.strip():
            raise BadRequest("it has no prompt.")
        # Any schedule would do: it is planned only to learn in which zone the group's times are read.
        zone = self.times.plan(group, "interval", "1h", dst=None, now_ms=now_ms).schedule.timezone
        # Only the times of a cron schedule depend on the zone: other schedules are a moment or an interval.
        if task.kind == "cron" and task.zone:
            _refuse_other_clock(task.zone, zone, group, now_ms=now_ms)
        request = ScheduleTask.model_construct(
            prompt=task.prompt,
            # Not validated here: `create` refuses a kind or a value that it cannot read.
            schedule_type=task.kind,
            schedule_value=task.value,
            context_mode="group" if task.is_in_conversation else "isolated",
        )
        created = await scheduled_task_service.create(
            tx, group, request, self.times, now_ms=now_ms, task_id=task_id
        )
        if task.is_paused:
            await scheduled_task_service.pause(tx, created, now_ms=now_ms)

    async def _add_notes(
        self, tx: Tx, foreign_group: ForeignGroup, group: Group, leave_out: Callable[[str], None]
    ) -> list[str]:
        """Write the notes of `foreign_group` that are new or have changed, and return their paths.

        A dry run writes no file, but returns the paths; its `tx` is that of a copy of the database.
        `leave_out` is called with a text for each note that cannot be written, or comes beside another. An
        equal note that the group had before is its own: it is not returned, and no later import replaces it.
        """
        added = []
        for note in foreign_group.notes:
            key = f"{self.foreign.program}:note:{_stable_id(foreign_group.key, note.path)}"
            # The digest of each note is stored under its key. A note that has not changed since the last
            # import is skipped, whatever became of it here.
            digest = hashlib.sha256(note.body).hexdigest()
            earlier_digest = await message_history.import_value(tx, key)
            if earlier_digest == digest:
                continue
            digests = self._digests(group, note)
            if earlier_digest is None and digest in digests.values():
                continue
            path = _free_path(digests, {digest, earlier_digest})
            try:
                if path is None:
                    raise FileExistsError(None, f"it and the one beside it, {self._beside(note)}, stay")
                if not self.is_dry_run:
                    _write_note(self.home.groups, group.folder, path, note.body)
            except OSError as error:
                leave_out(f"{group.folder}: the note {note.path}: {error.strerror}")
                continue
            added.append(path)
            if path != note.path:
                leave_out(f"{group.folder}: the note {note.path} stays as it is: the other is in {path}")
            await message_history.set_import_value(tx, key, digest)
        return added

    def _digests(self, group: Group, note: ForeignNote) -> dict[str, str | None]:
        """Return the digests (`_digest`) of the files at a note's own path and at the one beside it."""
        paths = (note.path, self._beside(note))
        return {path: _digest(self.home.groups, group.folder, path) for path in paths}

    def _beside(self, note: ForeignNote) -> str:
        """Return the path for a note whose own path is taken, such as `a.from-nanobot.md` for `a.md`."""
        path = PurePosixPath(note.path)
        return str(path.with_name(f"{path.stem}.from-{self.foreign.program}{path.suffix}"))


def _free_path(digests: Mapping[str, str | None], replaced: Collection[str | None]) -> str | None:
    """Return the path in a group's folder at which a note may be written, the first of `digests` that fits.

    A note that has one of the digests `replaced` is replaced; else the path has to be free (None in
    `digests`). None if there are other notes at all of them.
    """
    same = [path for path, digest in digests.items() if digest is not None and digest in replaced]
    free = [path for path, digest in digests.items() if digest is None]
    return next(iter(same + free), None)


def _address(group: ForeignGroup) -> str:
    """Return the address of a group's chat in a messenger that Andy has; empty if there is none.

    The terminal and web chats of this machine are skipped: no other program has them.
    """
    if not group.chat:
        return ""
    # A phone number can stand for the chat with that phone.
    number = group.chat.removeprefix("+")
    phone = [number + PHONE_CHAT_ENDING] if number.isdecimal() else []
    for channel in discovery.installed():
        if channel.name == discovery.ALWAYS_ON or group.channel not in ("", channel.name):
            continue
        # Where the other program names the messenger, `chat` is the messenger's id of the chat. It may lack
        # the prefix or the ending that Andy's address has, such as `tg:`.
        candidates = [group.chat, channel.prefix + group.chat, *phone] if group.channel else [group.chat]
        for address in candidates:
            if channel.owns(ChatJid(address)):
                return address
    return ""


def _refuse_other_clock(name_there: str, name_here: str, group: Group, *, now_ms: int) -> None:
    """Raise `BadRequest` if the clocks of two time zones differ in the next 1,000 days, or a zone is unknown.

    `name_there` is the zone of a task in the other program, `name_here` that of the group here. The names may
    differ while the clocks do not, as with `UTC` and `Etc/UTC`.
    """
    try:
        zones = [ZoneInfo(known_zone(name)) for name in (name_there, name_here)]
    except ValueError:
        raise BadRequest(f"its times are in {name_there}, which is no known time zone.") from None
    # One day a week is enough: no daylight saving time is shorter.
    days = (datetime.fromtimestamp(now_ms / 1000, UTC) + timedelta(days=day) for day in range(0, 1_000, 7))
    if any(len({day.astimezone(zone).utcoffset() for zone in zones}) > 1 for day in days):
        fix = f"""andy groups config {group.folder} --set '{{"timezone": "{name_there}"}}'"""
        raise BadRequest(
            f"its times are those of {name_there}, and the group's of {name_here}:"
            f" after {fix} a second import brings it."
        )


def _usable_trigger(trigger: str | None) -> str | None:
    """Return the word that calls the assistant; None if there is none, or if it is too long to type."""
    return trigger if trigger and len(trigger) <= name_and_trigger.MAX_TRIGGER_CHARS else None


def _stable_id(*parts: str) -> str:
    """Return an id that is the same for the same parts: 20 characters of the first part, a digest of all."""
    return f"{parts[0][:20]}-{hashlib.sha256(chr(0).join(parts).encode('utf-8', 'replace')).hexdigest()[:16]}"


def _digest(root: Path, folder: str, path: str) -> str | None:
    """Return the digest of the file `path` in a group's folder; None if there is none.

    It is empty for whatever is no readable file of the size of a note. No link is followed.
    """
    *folders, name = PurePosixPath(path).parts
    try:
        with ExitStack() as stack:
            directory = stack.enter_context(opened(root))
            for part in (folder, *folders):
                directory = stack.enter_context(inner(directory, part))
            with os.fdopen(open_file(directory, name), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_NOTE_BYTES:
                    return ""
                return hashlib.sha256(file.read(MAX_NOTE_BYTES + 1)).hexdigest()
    except FileNotFoundError:
        return None
    except OSError:
        return ""


def _write_note(root: Path, folder: str, path: str, body: bytes) -> None:
    """Write a note in a group's folder without following links, and make the folder's owner its owner.

    `root` has the groups' folders, `folder` is the group's, and `path` is the note's path in it. Missing
    folders are created. A file at that path is replaced, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    *folders, name = PurePosixPath(path).parts
    with ExitStack() as stack:
        directory = stack.enter_context(opened(root))
        for part in (folder, *folders):
            directory = stack.enter_context(inner(directory, part, makes=True))
        # Written whole under a temporary name: a note of an earlier import that an end of the host or a full
        # disk left in part would be taken for one that was changed here.
        partial = f".{secrets.token_hex(8)}.partial"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        descriptor = os.open(partial, flags, 0o644, dir_fd=directory)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(body)
                give_to_owner_of(directory, file.fileno())
            os.rename(partial, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            os.unlink(partial, dir_fd=directory)
            raise


def summary_lines(row: Mapping[str, Any]) -> list[str]:
    """Return the lines that report an import; `row` is its `MoveResult.to_row()`."""
    verb = "would come" if row["is_dry_run"] else "came"
    lines = [
        f"{group['folder']}{' (new)' if group['is_new'] else ''}, {group['chat']}:"
        f" {counted(group['messages'], 'message')},"
        f" {counted(len(group['notes']), 'note')}, {counted(len(group['tasks']), 'task')} {verb}."
        for group in row["groups"]
    ] or ["There is no group in it."]
    if row["left"]:
        lines += ["Left:", *(f"  {text}" for text in row["left"][:MAX_LEFT_SHOWN])]
    if len(row["left"]) > MAX_LEFT_SHOWN:
        lines.append(f"  … and {len(row['left']) - MAX_LEFT_SHOWN} more: --json lists all.")
    return lines
