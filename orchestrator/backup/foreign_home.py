"""Defines the data imported from another program's home, and reads its files without changing them.

Such a home is untrusted: no link in it is followed, and everything read has a limit. Databases are copied and
the copy is opened, since SQLite writes files beside a database even if it only reads it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from orchestrator.base.dirfd import inner, open_file, opened
from orchestrator.domain.errors import BackupError
from orchestrator.groups.attachments import LimitedReader

MAX_DATABASE_BYTES = 2**32
MAX_NOTE_BYTES = 2**20
MAX_NOTES = 2_000
"""Notes of one group, at most."""
MAX_GROUPS, MAX_TASKS, MAX_MESSAGES = 1_000, 10_000, 1_000_000
MAX_DEPTH = 5
MAX_ID_CHARS, MAX_NAME_CHARS, MAX_TEXT_CHARS = 200, 200, 65_536
MAX_STEPS = 10_000_000_000
"""Steps of SQLite's virtual machine that all reads of a database may take: a malicious schema ends too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignNote:
    """A memory file: its path in the group's folder, and its text."""

    path: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignMessage:
    """A message of a chat's past."""

    id: str
    sender: str
    sender_name: str
    text: str
    sent_ms: int
    is_bot: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignTask:
    """A scheduled task. `kind` and `value` are in the form that `timing.plan` reads."""

    id: str
    prompt: str
    kind: str
    value: str
    zone: str = ""
    """The time zone of its times; empty if the other program does not store one."""
    is_paused: bool = False
    is_in_conversation: bool = False
    """Whether it runs in the group's conversation, and not in one of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignGroup:
    """A group with its notes, messages and tasks."""

    key: str
    """Its identity in the other program: a second import finds the group by it."""
    folder: str
    name: str
    chat: str
    """The address of its chat, as the other program writes it; empty where it has none."""
    channel: str = ""
    """The name of its messenger, where `chat` is the messenger's own id of the chat."""
    is_main: bool = False
    trigger: str | None = None
    requires_trigger: bool = True
    notes: list[ForeignNote] = field(default_factory=list)
    messages: list[ForeignMessage] = field(default_factory=list)
    tasks: list[ForeignTask] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class ForeignHome:
    """All that is imported from a home, and the list of what is not."""

    program: str
    has_chat_ids: bool = False
    """Whether its messages have the ids that the messenger gave them."""
    groups: list[ForeignGroup] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """The parts that are not imported, each with the reason."""


@contextmanager
def readable_file(root: Path, path: str) -> Iterator[BinaryIO]:
    """Yield a file below the folder `root`, open for reading. `path` is relative to `root`.

    Raises:
        OSError: it is missing or no regular file, or its path is empty or absolute, or has a symbolic link,
            `..` or a null character in it.
    """
    *folders, name = PurePosixPath(path).parts or ("",)
    if not name or path.startswith("/") or ".." in folders or "\0" in path:
        raise FileNotFoundError(path)  # a `name` that is `..` is refused below: it is a directory
    with ExitStack() as stack:
        directory = stack.enter_context(opened(root))
        for folder in folders:
            directory = stack.enter_context(inner(directory, folder))
        body = stack.enter_context(os.fdopen(open_file(directory, name), "rb"))
        if not stat.S_ISREG(os.fstat(body.fileno()).st_mode):
            raise FileNotFoundError(path)
        yield body


def has_file(root: Path, path: str) -> bool:
    """Return whether a regular file exists below `root` at a path without links."""
    try:
        with readable_file(root, path):
            return True
    except OSError:
        return False


@contextmanager
def database(
    root: Path, path: str, scratch: Path, *, allows_functions_in_checks: bool = False
) -> Iterator[sqlite3.Connection]:
    """Yield a connection to a copy of the SQLite database at `path` below `root`.

    The original is not changed. The copy is made in the folder `scratch` and deleted at the end. With
    `allows_functions_in_checks` the tables may have CHECK constraints that call functions such as
    `json_valid`; SQLite otherwise refuses to read them, as unsafe. Here it is safe: no constraint is
    evaluated, and only SQLite's own functions exist.

    Raises:
        BackupError: the file is missing, no database, damaged, or larger than `MAX_DATABASE_BYTES`; or all
            reads together take more than `MAX_STEPS` steps.
    """
    copy = scratch / "copy.db"
    try:
        try:
            _copy(root, path, copy)
            # With its write-ahead log: what the other program wrote last may be there only.
            with suppress(FileNotFoundError):
                _copy(root, f"{path}-wal", Path(f"{copy}-wal"))
        except OSError as error:
            raise BackupError(f"{root / path} cannot be read ({error.strerror}).") from error
        with closing(sqlite3.connect(copy)) as connection:
            connection.row_factory = sqlite3.Row
            # One text that is not UTF-8 would otherwise end the reading of all of them.
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            connection.execute("PRAGMA ignore_check_constraints = ON")
            connection.execute(f"PRAGMA trusted_schema = {'ON' if allows_functions_in_checks else 'OFF'}")
            # SQLite calls the handler after each million steps, and stops once it returns true.
            millions_left = iter(range(MAX_STEPS // 1_000_000))
            connection.set_progress_handler(lambda: next(millions_left, None) is None, 1_000_000)
            if connection.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("it is damaged")
            yield connection
    # A damaged database may have names that are not UTF-8, which then fail in the text of an error.
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise BackupError(
            f"{root / path} cannot be read ({error}): stop the program that writes it, and try again."
        ) from error
    finally:
        # Also after a copy that failed: the next database is copied to the same place.
        for ending in ("", "-wal", "-shm"):
            Path(f"{copy}{ending}").unlink(missing_ok=True)


def _copy(root: Path, path: str, target: Path) -> None:
    """Copy a database's file at `path` below `root` to the new file `target`, without following links.

    Raises:
        BackupError: it is larger than `MAX_DATABASE_BYTES`.
        OSError: it cannot be read, or the copy cannot be written.
    """
    with readable_file(root, path) as body:
        if os.fstat(body.fileno()).st_size > MAX_DATABASE_BYTES:
            raise BackupError(f"{root / path} is larger than {MAX_DATABASE_BYTES // 2**30} GiB.")
        with target.open("xb") as file:
            # The size was that of a moment ago: the other program may still write to the file.
            shutil.copyfileobj(LimitedReader(body, MAX_DATABASE_BYTES), file)


def columns(connection: sqlite3.Connection, table: str) -> frozenset[str]:
    """Return the names of the ordinary columns of an ordinary table; none if it is missing or virtual."""
    # Virtual tables have no root page: to read one would run the code of its module.
    ordinary_table = connection.execute(
        "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ? AND rootpage > 0", (table,)
    ).fetchone()
    if ordinary_table is None:
        return frozenset()
    # `hidden` is 0 for ordinary columns; to read a generated one would evaluate an expression of this schema.
    column_rows = connection.execute("SELECT name, hidden FROM pragma_table_xinfo(?)", (table,))
    return frozenset(row["name"] for row in column_rows if row["hidden"] == 0)


def rows(
    connection: sqlite3.Connection, table: str, *, limit: int, order: str = "rowid"
) -> Iterator[dict[str, Any]]:
    """Yield the newest `limit` rows of a table, oldest first, each with its values by column.

    A missing table has none. `order` is the column that says which row is newer. `table` and `order` are put
    into the SQL as they are, so they must be constants of this program.
    """
    names = ", ".join(f'"{name}"' for name in sorted(columns(connection, table)) if '"' not in name)
    if names:
        newest = connection.execute(
            f"""
            SELECT {names} FROM {table}
            WHERE rowid IN (SELECT rowid FROM {table} ORDER BY {order} DESC, rowid DESC LIMIT ?)
            ORDER BY {order}, rowid
            """,  # noqa: S608 - constants, and names without a quote
            (limit,),
        )
        yield from (dict(row) for row in newest)


def text(row: Mapping[str, Any], name: str, *, limit: int = MAX_NAME_CHARS) -> str:
    """Return the text in a field of a row, cut to `limit` characters.

    A whole number is returned as its digits. Any other value, and a missing field, gives an empty text.
    """
    value = row.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    return storable(value.replace("\0", "")[:limit]) if isinstance(value, str) else ""


def storable(value: str) -> str:
    """Return a text with a question mark for each half of a character, which no database takes.

    JSON may have such halves (`\\ud83d`), where another program has cut a text in the middle of an emoji.
    """
    return value.encode("utf-8", "replace").decode()


def moment_ms(value: object, *, zone_of_naive: tzinfo | None = UTC) -> int | None:
    """Return a time in epoch ms, from ISO text or from a number of milliseconds; None for other values.

    `zone_of_naive` is the zone of a text that names none; None means that of this machine.
    """
    # A number below 0 would be before 1970, and one from 10**14 on after the year 5138: these are no times.
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 10**14:
        return int(value)
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    # Outside of these years a zone's offset may lead out of the range of the epoch or of Python.
    if at is None or not 1971 <= at.year <= 9000:
        return None
    return round((at if at.tzinfo else at.replace(tzinfo=zone_of_naive)).timestamp() * 1000)


def notes(
    root: Path, folder: str, *, subfolders: tuple[str, ...], leave_out: Callable[[str], None]
) -> list[ForeignNote]:
    """Return the notes (files `.md`) in `folder`, a path below `root`.

    Its subfolders are searched only if `subfolders` names them, down to `MAX_DEPTH` levels. A missing folder
    has no notes, and notes beyond `MAX_NOTES` are skipped. `leave_out` is called with a text for each note
    and each folder that cannot be read; the notes of the other folders are returned.
    """
    gathered: list[ForeignNote] = []
    try:
        with ExitStack() as stack:
            directory = stack.enter_context(opened(root))
            for part in PurePosixPath(folder).parts:
                directory = stack.enter_context(inner(directory, part))
            _gather(directory, "", subfolders, gathered, leave_out, MAX_DEPTH)
    except FileNotFoundError:
        return []
    except OSError as error:
        leave_out(f"the notes in {folder}: {error.strerror}")
    return gathered


def _gather(
    directory_fd: int,
    prefix: str,
    subfolders: tuple[str, ...],
    gathered: list[ForeignNote],
    leave_out: Callable[[str], None],
    depth: int,
) -> None:
    """Add the notes (files `.md`) in an open directory and in the folders below it to `gathered`.

    `depth` levels are searched; the open directory itself is the first.
    `prefix` is the path of the directory in the group's folder, with a slash; empty for the group's folder
    itself. A folder at its top is searched only if `subfolders` names it. Hidden files, links, empty notes,
    names with unprintable characters, and notes beyond `MAX_NOTES` are skipped. `leave_out` is called with a
    text for each note, and each folder below, that cannot be read. Raises `OSError` if the open directory
    itself cannot be read.
    """
    with os.scandir(directory_fd) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    for entry in entries:
        path = prefix + entry.name
        if entry.name.startswith(".") or entry.is_symlink() or not path.isprintable():
            continue
        if entry.is_dir(follow_symlinks=False):
            # `subfolders` names folders at the top; with a prefix, this one is inside of one of them.
            if depth > 1 and (prefix or entry.name in subfolders):
                # The other program may still run, and remove the folder meanwhile.
                try:
                    with inner(directory_fd, entry.name) as below:
                        _gather(below, f"{path}/", subfolders, gathered, leave_out, depth - 1)
                except OSError as error:
                    leave_out(f"the notes in {path}: {error.strerror}")
        elif entry.name.endswith(".md") and len(gathered) < MAX_NOTES:
            body = _note(directory_fd, entry.name)
            if body is None:
                leave_out(f"the note {path}: it is no file of at most {MAX_NOTE_BYTES // 2**20} MiB")
            elif body:  # an empty note says nothing
                gathered.append(ForeignNote(path=path, body=body))


def _note(directory_fd: int, name: str) -> bytes | None:
    """Return the content of the file `name` in an open directory.

    None if it is no regular file, larger than `MAX_NOTE_BYTES`, or unreadable.
    """
    try:
        with os.fdopen(open_file(directory_fd, name), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_NOTE_BYTES:
                return None
            return file.read(MAX_NOTE_BYTES)
    except OSError:
        return None
