"""Export a group's data into a folder that a person can read: completely, or nothing is left.

Containers write the folder of a group, so no link in it is followed, and file names are made safe.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePath
from typing import Any
from zoneinfo import ZoneInfo

from orchestrator.backup import archive, readable
from orchestrator.backup.archive import BackupContents, BackupProgress
from orchestrator.backup.readable import ExportedMessage
from orchestrator.backup.swap import refuse_moves
from orchestrator.base.clock import local_iso
from orchestrator.base.dirfd import inner, opened
from orchestrator.base.tables import counted, size_text
from orchestrator.base.terminal_escaping import visible
from orchestrator.containers.logs.files import printable
from orchestrator.domain.dashboard import BoardTask, Notification
from orchestrator.domain.errors import BackupError
from orchestrator.domain.values import Group
from orchestrator.groups import attachments
from orchestrator.home.directory import Home, expanded
from orchestrator.scheduler import scheduled_task_service
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.board import tasks as board_tasks
from orchestrator.store.conversation import message_history
from orchestrator.store.database import Tx
from orchestrator.store.schedule import tasks

PARTIAL = ".partial"
NOTES = ("memory", "conversations")
"""Folders of a group whose notes (`.md`) are its memory, besides the notes beside CLAUDE.md."""
MAX_FILES = 100_000
MAX_DEPTH = 5
FLUSHED_PARTS = 1_000
"""Pieces of a page after which they are written to its file."""
MAX_FILE_BYTES = 2**32
HOLLOW_BYTES, HOLLOW_TIMES = 2**20, 16
"""A file of more than `HOLLOW_BYTES` is left out if it takes less space on the disk than its size divided by
`HOLLOW_TIMES`: its holes would be written as data and could fill the disk.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupExport:
    """The result of an export."""

    group: str
    path: Path
    messages: int
    files: dict[str, int]
    """The path of each file in the folder, and its bytes."""
    left_out: list[str]
    """Files of the group that cannot be exported: links, pipes, files of holes, unreadable ones; also folders
    that cannot be read.
    """

    def to_row(self) -> dict[str, Any]:
        """Return the fields by name, as they are printed as JSON."""
        return {**asdict(self), "path": str(self.path)}


def checked_target(home: Home, target: Path) -> Path:
    """Return the absolute path of the folder `target`, into which an export may be written.

    Raises:
        BackupError: the folder's parent is missing; the folder is a link, a file or not empty; an unfinished
            export is beside it; it would be inside the home's own folders; it cannot be looked at; or a
            restore of the home has not ended.
    """
    refuse_moves(home)
    target = expanded(target).absolute()
    try:
        _check_target(home, target)
    except OSError as error:
        raise _unwritable_error(home, target, error) from error
    return target


def _check_target(home: Home, target: Path) -> None:
    """Raise an error if the absolute path `target` is no place for an export.

    Raises:
        BackupError: the parent of `target` is missing; `target` is a link, a file or not empty; an unfinished
            export is beside it; or it would be inside the home's own folders.
        OSError: it cannot be looked at, as in a folder of another user.
    """
    if not target.parent.is_dir():
        raise BackupError(f"{target} cannot be written: name a folder in a directory that is there.")
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise BackupError(f"{target} is there and is no folder: name another with --to.")
    if target.exists() and any(target.iterdir()):
        raise BackupError(f"{target} is not empty: name another folder with --to.")
    partial = target.with_name(target.name + PARTIAL)
    if partial.exists() or partial.is_symlink():
        raise BackupError(f"{partial} is there: an export is under way, or broke off; then remove it.")
    # Containers have folders in these, and the next backup would have the export.
    own_folders = (home.groups, home.data, home.database.parent)
    if any(target.parent.resolve().is_relative_to(folder.resolve()) for folder in own_folders):
        raise BackupError(f"{target} would be inside the home's own folders: choose a place outside.")


def _unwritable_error(home: Home, target: Path, error: OSError) -> BackupError:
    """Return the error that says why the export `target` could not be written, with the fix under Compose."""
    writable = archive.writable_place(home, target, error)
    fix = f" Name a folder in {writable.parent}, such as '--to {writable}'." if writable else ""
    return BackupError(f"The export {target} cannot be written ({error}): nothing is left of it.{fix}")


async def write(
    tx: Tx,
    home: Home,
    group: Group,
    target: Path,
    *,
    calendar: bytes,
    zone: ZoneInfo,
    progress: BackupProgress,
) -> GroupExport:
    """Write a group's data into the new folder `target`, which only its owner can read.

    Files are read and written in the event loop, which this blocks.
    All rows are read in the transaction `tx`, so they fit together. `target` was checked by `checked_target`.
    `calendar` has the group's coming events as iCalendar text. Times are shown in `zone`.

    Raises:
        BackupError: the folder cannot be written; nothing is left of it.
    """
    partial = target.with_name(target.name + PARTIAL)
    try:
        partial.mkdir(mode=0o700)
        try:
            export = _ExportFolder(partial, progress)
            _copy_notes(home, group, export)
            files = _copy_attachments(home, group, export)
            messages = await _write_messages(tx, home, group, export, files=files, zone=zone)
            await _write_lists(tx, group, export, zone=zone)
            export.write("calendar.ics", calendar)
            export.write("README.md", _contents_page(group, export, messages).encode())
            # An empty folder at `target` is replaced by this; one that was filled meanwhile makes it fail.
            partial.rename(target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as error:
        raise _unwritable_error(home, target, error) from error
    return GroupExport(
        group=group.folder, path=target, messages=messages, files=export.files, left_out=export.left_out
    )


@dataclass(slots=True)
class _ExportFolder:
    """The folder that is being written, with the list of its files."""

    root: Path
    progress: BackupProgress
    files: dict[str, int] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    contents: BackupContents = field(default_factory=BackupContents)
    taken_by_files: set[str] = field(default_factory=set)
    """The paths of the files, case-folded: some disks do not tell case apart."""
    taken_by_folders: set[str] = field(default_factory=set)
    """The paths of the folders that the files are in, case-folded."""
    numbers: dict[tuple[str, int], int] = field(default_factory=dict)
    """The last number that `_free_path` tried, by the case-folded path and the number of sets searched."""

    def write(self, name: str, body: bytes) -> None:
        """Write `body` to the new file `name` of the export; append it if this export has made the file."""
        path = self.root / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = "ab" if name in self.files else "xb"
        with open(path, mode, opener=_private) as file:
            file.write(body)
        self._count(name, len(body))

    def leave_out(self, source: str) -> None:
        """Note that a file of the group is not exported; `source` is its path in the group's folder."""
        self.left_out.append(printable(source))

    def copy(self, home: Home, folder: str, source: str, name: str) -> str | None:
        """Copy a file into the export and return its path there.

        `source` is its path in the group's folder `folder`. `name` is the wanted path in the export; a number
        is added if that is taken. None if the file cannot be copied, is larger than `MAX_FILE_BYTES`, is
        nearly all holes, or no number is left for its path: it is then listed as left out.
        """
        free_name = self._free_name(name)
        if free_name is None:
            self.leave_out(source)
            return None
        path = self.root / free_name
        try:
            with attachments.open_own(home.root, folder, source, limit=MAX_FILE_BYTES) as body:
                status = os.fstat(body.fileno())
                # `st_blocks` counts pieces of 512 bytes on every disk.
                if status.st_size > HOLLOW_BYTES and status.st_blocks * 512 * HOLLOW_TIMES < status.st_size:
                    self.leave_out(source)
                    return None
                # Only now: a folder without a file in it would be in the way of a file with its name.
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with open(path, "xb", opener=_private) as file:
                    # An agent may append to the file all the time: only the size that it had is copied.
                    shutil.copyfileobj(attachments.LimitedReader(body, status.st_size), file)
        except attachments.FileRefused:
            self.leave_out(source)
            return None
        self._count(free_name, path.stat().st_size)
        return free_name

    def _free_name(self, name: str) -> str | None:
        """Return a path that this export does not have yet: `name`, or `name` with numbers in its parts.

        The export may have its folders already, but no file may have the path of one of them. None if all
        numbers of a part are taken.
        """
        *folders, last = name.split("/")
        prefix = ""
        for part in folders:
            folder = self._free_path(prefix + part, self.taken_by_files)
            if folder is None:
                return None
            prefix = f"{folder}/"
        return self._free_path(prefix + last, self.taken_by_files, self.taken_by_folders)

    def _free_path(self, path: str, *taken: Container[str]) -> str | None:
        """Return `path`, or if one of the sets `taken` contains it, a free path with a number in its name.

        So `notes.md` becomes `notes-2.md`. The sets have case-folded paths: one set for a folder, two for a
        file. None if all numbers below `MAX_FILES` are taken.
        """
        parsed_path = PurePath(path)
        # A path stays taken, so the search goes on where the last one for this path ended: an agent can give
        # a great many files names that become the same one here. The number of sets tells the search for a
        # folder from that for a file: a path may be free for one and taken for the other.
        key = (path.casefold(), len(taken))
        for number in range(self.numbers.get(key, 1), MAX_FILES):
            candidate = (
                path
                if number == 1
                else str(parsed_path.with_name(f"{parsed_path.stem}-{number}{parsed_path.suffix}"))
            )
            if not any(candidate.casefold() in paths for paths in taken):
                self.numbers[key] = number
                return candidate
        self.numbers[key] = MAX_FILES
        return None

    def _count(self, name: str, size: int) -> None:
        """Count `size` more bytes of the file `name` of the export, and report the progress.

        The path of a new file, and those of its folders, become taken.
        """
        if name not in self.files:
            path = PurePath(name.casefold())
            self.taken_by_files.add(str(path))
            self.taken_by_folders.update(map(str, path.parents))
        self.files[name] = self.files.get(name, 0) + size
        self.contents = BackupContents(files=len(self.files), bytes=self.contents.bytes + size)
        self.progress.report_if_due(self.contents)


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner may read if it is new: the `opener` that is passed to `open`."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _safe_path(path: str) -> str:
    """Return a path in which each part is made a valid name on every file system; an empty one is `file`."""
    return "/".join(attachments.safe_name(part) or "file" for part in path.split("/"))


def _copy_notes(home: Home, group: Group, export: _ExportFolder) -> None:
    """Copy the notes (files `.md`) of a group into the folder `memory` of the export.

    Copied are the notes at the top of the group's folder, and those in its folders `NOTES`.
    """
    for source in _files_of(home, group, "", export, depth=1):
        if source.endswith(".md"):
            export.copy(home, group.folder, source, f"memory/{_safe_path(source)}")
    for subfolder in NOTES:
        for source in _files_of(home, group, subfolder, export, depth=MAX_DEPTH):
            if source.endswith(".md"):
                inside = source.removeprefix("memory/")  # the export would have `memory/memory/` otherwise
                export.copy(home, group.folder, source, f"memory/{_safe_path(inside)}")


def _copy_attachments(home: Home, group: Group, export: _ExportFolder) -> dict[str, str]:
    """Copy the files that came with messages, and return the path in the export of each that was copied.

    The keys are the paths in the group's folder of attachments.
    """
    copied = {}
    for source in _files_of(home, group, attachments.FOLDER, export, depth=MAX_DEPTH):
        name = export.copy(home, group.folder, source, _safe_path(source))
        if name is not None:
            copied[source.removeprefix(f"{attachments.FOLDER}/")] = name
    return copied


def _files_of(home: Home, group: Group, subfolder: str, export: _ExportFolder, *, depth: int) -> list[str]:
    """Return the paths of the files in `subfolder`, relative to the group's folder, `depth` levels deep.

    `subfolder` is a folder in the group's folder; empty for the group's folder itself. A missing one has no
    files. Links are listed in `export` as left out, and so is `subfolder`, or each folder in it, that cannot
    be read.
    """
    try:
        with ExitStack() as stack:
            groups_directory = stack.enter_context(opened(home.groups))
            directory = stack.enter_context(inner(groups_directory, group.folder))
            if subfolder:
                directory = stack.enter_context(inner(directory, subfolder))
            paths = list(_walk(directory, f"{subfolder}/" if subfolder else "", export.leave_out, depth))
    except FileNotFoundError:
        return []
    except OSError:
        export.leave_out(subfolder or group.folder)
        return []
    return paths


def _walk(descriptor: int, prefix: str, leave_out: Callable[[str], None], depth: int) -> Iterator[str]:
    """Yield the paths of the files in an open directory, `depth` levels deep, without hidden ones.

    Pipes and sockets count as files here; to copy one is refused later. Each path begins with `prefix`, which
    is the path of the directory with a slash at the end, or empty. `leave_out` is called with the path of
    each symbolic link, and of each directory below that cannot be read or is removed meanwhile. Only the
    first `MAX_FILES` entries of a directory, by name, are used. Raises `OSError` if the open directory itself
    cannot be read.
    """
    with os.scandir(descriptor) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    for entry in entries[:MAX_FILES]:
        if entry.name.startswith("."):
            continue
        if entry.is_symlink():
            leave_out(prefix + entry.name)
        elif not entry.is_dir(follow_symlinks=False):
            yield prefix + entry.name
        elif depth > 1:
            # An agent may close or remove one of its folders at any time: the files of the others still come.
            try:
                with inner(descriptor, entry.name) as below:
                    yield from _walk(below, f"{prefix}{entry.name}/", leave_out, depth - 1)
            except OSError:
                leave_out(prefix + entry.name)


async def _write_messages(
    tx: Tx, home: Home, group: Group, export: _ExportFolder, *, files: Mapping[str, str], zone: ZoneInfo
) -> int:
    """Write the pages of the conversation, one a month, and return the number of messages.

    Messages come from the archive files of the home, which do not have the names of chats, and from the
    database. `files` maps the names of attachments to their paths in the export.
    """
    pages = _Conversation(export, name=group.name, files=files, zone=zone)
    archived = _archived_messages(home, group)
    archived_seqs = {row["seq"] for row in archived}
    remaining = deque(archived)
    has_several_chats = len(group.chats) > 1
    async for message in message_history.by_time(tx, group.folder):
        if message["seq"] in archived_seqs:  # a row is in both until the sweep that moves it has ended
            continue
        # The newest message of each chat stays in the database, so some of the archive are newer.
        while remaining and _sort_key(remaining[0]) < _sort_key(message):
            pages.add(_message(remaining.popleft(), ""))
        pages.add(_message(dict(message), message["chat_name"] if has_several_chats else ""))
    for row in remaining:
        pages.add(_message(row, ""))
    pages.flush()
    return pages.count


def _sort_key(row: Mapping[str, Any] | sqlite3.Row) -> tuple[int, int]:
    """Return the key by which the messages of a conversation are sorted: their time, then their number."""
    return row["sent_ms"], row["seq"]


@dataclass(slots=True)
class _Conversation:
    """Writes messages, which come in the order of time, to one page for each month."""

    export: _ExportFolder
    name: str
    files: Mapping[str, str]
    zone: ZoneInfo
    count: int = 0
    page: str = ""
    """The path of the present page, that of the last message's month."""
    day: str = ""
    """The date of the last message; empty at the beginning of a page."""
    parts: list[str] = field(default_factory=list)
    """Pieces of the present page that are not written to its file yet."""

    def add(self, message: ExportedMessage) -> None:
        """Add a message to the page of its month.

        The pieces before it are written once there are many, and when its month is another one.
        """
        at = readable.local(message.at_ms, self.zone)
        page, day = f"conversation/{readable.month_of(at)}.md", f"{at:%Y-%m-%d}"
        if page != self.page or len(self.parts) > FLUSHED_PARTS:
            self.flush()
        if page != self.page:
            self.page, self.day = page, ""
            # The page may have been begun before: a clock that is set back at midnight repeats the last hour
            # of a month.
            if page not in self.export.files:
                self.parts.append(readable.month_heading(self.name, at))
        if day != self.day:
            self.day = day
            self.parts.append(readable.day_heading(at))
        self.parts.append(readable.message(message, at, self.files))
        self.count += 1

    def flush(self) -> None:
        """Append the gathered pieces of the present page to its file, and forget them."""
        if self.parts:
            self.export.write(self.page, "".join(self.parts).encode())
            self.parts.clear()


def _message(row: Mapping[str, Any], chat: str) -> ExportedMessage:
    """Return a row of the table of messages as it is exported.

    `chat` is the name of its chat; empty if it is not to be shown.
    """
    return ExportedMessage(
        at_ms=row["sent_ms"],
        sender=row["sender_name"],
        text=row["content"],
        chat=chat,
        quoted_sender=row.get("quoted_sender") or "",
        quoted=row.get("quoted_content") or "",
        file_words=row.get("file_words") or "",
        sent_file=row.get("sent_file") or "",
    )


def _archived_messages(home: Home, group: Group) -> list[dict[str, Any]]:
    """Return the messages of a group that were moved from the database to the archive, oldest first.

    Messages without a text are left out. `seq` is a message's number in the database.
    """
    by_seq = {}  # of several lines about one row, the last is used
    for path in sorted(home.archive.glob("*.jsonl")):
        with path.open("rb") as lines:
            for line in lines:
                row = _archived_row(line)
                if row.get("table") == "messages" and row.get("group_folder") == group.folder:
                    by_seq[row["seq"]] = row
    return sorted((row for row in by_seq.values() if row["content"]), key=_sort_key)


def _archived_row(line: bytes) -> dict[str, Any]:
    """Return the row in a line of an archive, which may be of any table: the caller checks that.

    An empty dict for a line that is certainly of another table than messages, and for an incomplete line,
    whose row is still in the database.
    """
    try:
        # A search for the name of the table is much faster than to decode each line.
        row = json.loads(line) if b'"messages"' in line else {}
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


async def _write_lists(tx: Tx, group: Group, export: _ExportFolder, *, zone: ZoneInfo) -> None:
    """Write the scheduled tasks, the reminders and the tasks of the dashboard, each as a page and as JSON.

    Scheduled tasks that have ended are written, too, and so are the finished tasks of the dashboard.
    """
    scheduled = [
        {**scheduled_task_service.to_row(task), "when": scheduled_task_service.describe(task)}
        for task in await tasks.every(tx, group.folder, with_ended=True)
    ]
    _write_list(export, "scheduled-tasks", "Scheduled tasks", scheduled, heading="prompt")
    reminders = [_reminder(row, zone) for row in await board_notifications.reminders(tx, group.folder)]
    _write_list(export, "reminders", "Reminders to come", reminders, heading="text")
    dashboard_tasks = [
        _board_task(row, zone)
        for row in (
            *await board_tasks.on_board(tx, group.folder),
            *await board_tasks.history(tx, group.folder),
        )
    ]
    _write_list(export, "board-tasks", "Tasks of the board", dashboard_tasks, heading="title")


def _write_list(
    export: _ExportFolder, name: str, title: str, rows: list[dict[str, Any]], *, heading: str
) -> None:
    """Write rows twice: as the page `name.md` for people, and as `name.json`.

    `title` is the heading of the page; the field `heading` of each row becomes the title of its section.
    """
    page = readable.entries(title, rows, heading=heading, nothing="There are none.")
    export.write(f"{name}.md", page.encode())
    # `visible` makes escapes such as `\u202e` of characters that would control a terminal; JSON allows these.
    export.write(f"{name}.json", visible(json.dumps(rows, indent=2, ensure_ascii=False) + "\n").encode())


def _reminder(notification: Notification, zone: ZoneInfo) -> dict[str, Any]:
    """Return a reminder as it is exported."""
    return {
        "id": notification.number,
        "text": notification.message,
        "due": _iso(notification.due_ms, zone),
        "when": notification.due_text,
    }


def _board_task(task: BoardTask, zone: ZoneInfo) -> dict[str, Any]:
    """Return a task of the dashboard as it is exported."""
    deadline = task.deadline
    return {
        "id": task.id,
        "title": task.title,
        "status": task.status.value,
        "priority": task.priority.value,
        "percent_done": task.pct,
        # A deadline is either a whole day or a moment.
        "deadline": None if deadline is None else deadline.date or _iso(deadline.at_ms, zone),
        "progress": task.progress_note,
        "blocked_by": task.blocker_note,
        "context": task.context,
        "tags": list(task.tags),
        "links": dict(task.links),
        "recurring": None if task.recurring is None else dict(task.recurring),
        "reflection": task.reflection,
        "created": _iso(task.created_ms, zone),
        "completed": _iso(task.completed_ms, zone),
    }


def _iso(at_ms: int | None, zone: ZoneInfo) -> str | None:
    """Return a time in epoch ms as ISO text in `zone`; None stays None."""
    return None if at_ms is None else local_iso(at_ms, zone)


def _contents_page(group: Group, export: _ExportFolder, messages: int) -> str:
    """Return the text of the page that lists the other pages; a folder is listed only if it has files.

    `messages` is the number of messages in the export.
    """
    folders = [
        ("conversation", f"the conversation, a file a month ({counted(messages, 'message')})"),
        ("memory", "the notes of the agent, as they are"),
        ("attachments", "the files of the chats, as far as they are stored"),
    ]
    pages = [
        ("scheduled-tasks.md", "requests to the agent at fixed times"),
        ("reminders.md", "reminders to come"),
        ("board-tasks.md", "things to do, and finished ones"),
        ("calendar.ics", "the next 60 days, for calendar programs"),
    ]
    with_files = {name.partition("/")[0] for name in export.files}
    lines = [f"- {readable.link(f'{name}/', name)}: {text}" for name, text in folders if name in with_files]
    lines += [f"- {readable.link(name, name)}: {text}" for name, text in pages]
    return f"# {readable.line(group.name)}\n\n" + "\n".join(lines) + "\n"


def summary_lines(row: Mapping[str, Any]) -> list[str]:
    """Return the lines that report a finished export; `row` is its `GroupExport.to_row()`.

    At most five of the files that were left out are named.
    """
    size = size_text(sum(row["files"].values()))
    messages, files = counted(row["messages"], "message"), counted(len(row["files"]), "file")
    lines = [f"{row['path']}: {messages}, {files}, {size}."]
    if row["left_out"]:
        shown_paths = ", ".join(row["left_out"][:5]) + (" …" if len(row["left_out"]) > 5 else "")
        lines.append(f"Left out, for they are links or cannot be read: {shown_paths}")
    return lines
