"""Restore a home from a backup. Everything is unpacked and checked before anything is moved."""

from __future__ import annotations

import gzip
import os
import secrets
import shutil
import sqlite3
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path, PurePosixPath
from zoneinfo import ZoneInfo

from orchestrator.backup import archive, outgoing
from orchestrator.backup.archive import BackupContents, BackupProgress, Manifest
from orchestrator.backup.swap import STORE, RestoreRecord, Stage, has_moves, is_present, recover, swap
from orchestrator.base.clock import Clock
from orchestrator.base.installation import COMPOSE_HOME
from orchestrator.base.tables import counted
from orchestrator.containers.logs.files import printable
from orchestrator.containers.runtime_selection import AGENT_UID
from orchestrator.domain.errors import BackupError, StoreTooNew
from orchestrator.home import lock as home_lock
from orchestrator.home.directory import UNDO, Home, expanded
from orchestrator.store import database

SQLITE = b"SQLite format 3\0"
"""The first bytes of every SQLite database."""
REPLACED = ("data/sessions", "data/context", "data/archive", outgoing.FOLDER, "data/ipc", "data/env")
"""Folders that a restore replaces besides groups and database; the last two have requests of the old state.
"""
OF_TURNS = (UNDO.as_posix(),)
"""The folder of the copies for undoing turns, which no backup has: a restore moves it away with the database,
whose turns' numbers are used again.
"""
UNREADABLE = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError, OverflowError)
"""Errors of a broken archive; `ValueError` is that of a number in a header, of a text, and of a manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """The result of restoring a backup."""

    manifest: Manifest | None
    """The backup's manifest; None if the file was a bare copy of the database."""
    contents: BackupContents
    aside: Path | None
    """The folder with the home's earlier files; None if there were none."""
    left_out: tuple[str, ...] = ()
    """Links in the backup that were not restored, as they might lead out of their group."""


def restore(
    home: Home, source: Path, *, force: bool, clock: Clock, say: Callable[[str], None]
) -> RestoreResult:
    """Restore a backup, or a bare copy of the database, into a home where Andy does not run. Blocks.

    The earlier files are moved to a folder beside the home. `say` shows a line of the progress to a person.

    Raises:
        BackupError: `source` is damaged or not a backup, or the home is not empty and `force` is false.
        StoreTooNew: a newer Andy wrote it.
        HomeError: Andy runs on the home, or the home cannot be written.
        After each of them the home is unchanged, but folders that it lacked may have been made.
    """
    source = expanded(source)
    # Called for its error: an unreadable backup must not even create the home.
    _begins_with(source, SQLITE)
    home.make()
    with locked(home):
        if not force and _has_files_to_replace(home):
            raise BackupError(f"{home.root} is not empty: --force moves what is there to a folder beside it.")
        record = RestoreRecord(
            id=secrets.token_hex(4), state="moving", by="command", source=str(source), at_ms=clock.now_ms()
        )
        with as_backup_error(source):
            aside = _make_aside_folder(home.root, clock.now_ms())
            try:
                placed = place(home, source, record=record, aside=aside, clock=clock, say=say)
            finally:
                # Nothing was moved: the home was empty, or the restore failed and put everything back.
                if not has_moves(home) and not _has_files(aside):
                    shutil.rmtree(aside, ignore_errors=True)
        return replace(placed, aside=aside if aside.exists() else None)


@contextmanager
def locked(home: Home) -> Iterator[None]:
    """Lock a home during the block, and first undo a restore that was killed half way.

    Raises:
        HomeError: Andy, or another command, has locked the home.
        BackupError: the killed restore cannot be undone, or its record cannot be read.
    """
    lock = home_lock.acquire(home)
    try:
        with as_backup_error(home.root):
            recover(home)
        yield
    finally:
        lock.release()


@contextmanager
def as_backup_error(source: Path) -> Iterator[None]:
    """Turn an error of the disk or of a database in the block into a `BackupError`.

    The text of this error says that `source` cannot be restored, and that nothing was changed.
    """
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise BackupError(f"{source} cannot be restored ({error}). Nothing was changed.") from error


def place(
    home: Home,
    source: Path,
    *,
    record: RestoreRecord,
    aside: Path | None,
    clock: Clock,
    say: Callable[[str], None],
) -> RestoreResult:
    """Unpack and check a backup, or a bare copy of the database, and move it into a home. Blocks.

    The caller holds the home's lock. The earlier files, and the copies by which turns could be undone, are
    moved to `aside`, or deleted if it is None. At the end `record` is stored with the state "done". Browsers
    that are signed in now stay signed in. `say` shows a line of the progress to a person.

    Raises:
        BackupError, StoreTooNew, OSError, sqlite3.Error: the home is unchanged, unless `has_moves(home)`:
            then files were moved and could not be moved back, and nothing but `recover` may touch it.
    """
    # Everything is unpacked into the stage (folders in the home) and checked there before anything is moved.
    stage = Stage(home)
    stage.open()
    try:
        if _begins_with(source, SQLITE):
            manifest = None
            left_out: list[str] = []
            contents = _copy_database(home, source, stage)
            replaced_paths: list[str] = [*STORE, *OF_TURNS]
        else:
            unpacked = Unpacked.of(source, stage, BackupProgress(say, clock=clock))
            manifest = unpacked.manifest
            contents, left_out = unpacked.contents, unpacked.left_out
            outgoing.set_file_paths(stage.path(archive.DATABASE), home, stage.path(outgoing.FOLDER))
            _give_to_agents(stage)
            files = [name for name in (*archive.FILES, archive.SECRETS) if is_present(stage.path(name))]
            replaced_paths = [*stage.children("groups"), *STORE, *REPLACED, *OF_TURNS, *files]
        _carry_over_sign_ins(stage.path(archive.DATABASE), home.database)
        record_with_facts = record.to(
            at_ms=clock.now_ms(), files=contents.files, made_ms=manifest.created_ms if manifest else None
        )
        swap(home, stage, replaced_paths, aside=aside, record=record_with_facts)
    finally:
        # The stage stays if files could not be moved back: it may have the only copy of them, for `recover`.
        if not has_moves(home):
            with suppress(OSError):  # the restore is done or undone; `recover` clears the stage later
                stage.clear()
    return RestoreResult(manifest=manifest, contents=contents, aside=aside, left_out=tuple(left_out))


def _begins_with(source: Path, beginning: bytes) -> bool:
    """Return whether a file begins with these bytes. Raises `BackupError` if it cannot be read."""
    try:
        with source.open("rb") as file:
            return file.read(len(beginning)) == beginning
    except OSError as error:
        raise BackupError(f"{source} cannot be read: {error.strerror}.") from error


def _has_files_to_replace(home: Home) -> bool:
    """Return whether a home has files that a restore would replace."""
    return any(_has_files(part) for part in (home.groups, home.database.parent, home.data / "sessions"))


def _has_files(part: Path) -> bool:
    """Return whether there is a file below a folder, besides `.gitkeep`, which only keeps it in Git.

    A folder that exists and cannot be listed counts as one with files.
    """
    errors: list[OSError] = []
    has_seen_one = any(
        name != ".gitkeep" for _, _, files in os.walk(part, onerror=errors.append) for name in files
    )
    return has_seen_one or any(not isinstance(error, FileNotFoundError) for error in errors)


# A bare database


def _copy_database(home: Home, source: Path, stage: Stage) -> BackupContents:
    """Copy a database that is no backup into the stage, the folder of unpacked files, and check it.

    The paths of files that wait to be sent are set to the home's present files. Return the sums of what was
    copied. Raises `BackupError`, `StoreTooNew`.
    """
    copy = stage.path(archive.DATABASE)
    copy.parent.mkdir()
    try:
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as original,
            closing(sqlite3.connect(copy)) as target,
        ):
            # Unlike a copy of the file, this takes in what is still in a write-ahead log beside it.
            original.backup(target)
    except sqlite3.Error as error:
        raise BackupError(f"{source} is damaged itself ({error}). Nothing was changed.") from error
    _check_store(copy, source)
    outgoing.set_file_paths(copy, home, home.root / outgoing.FOLDER)
    return BackupContents().with_file(copy.stat().st_size)


def _carry_over_sign_ins(restored: Path, present: Path) -> None:
    """Replace the browsers' sign-ins in the database `restored` by those of the database `present`.

    So a browser that was signed out since the backup stays signed out. If `present` is missing or cannot be
    read, this signs out all browsers, because nobody knows which of them were signed out since the backup.
    """
    table, columns = "web_sessions", "id, secret_hash, browser, created_ms, seen_ms"
    rows: list[tuple[object, ...]] = []
    try:
        with closing(sqlite3.connect(f"{present.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            rows = connection.execute(f"SELECT {columns} FROM {table}").fetchall()  # noqa: S608
    except sqlite3.Error:  # no database yet, a damaged one, or one of an Andy without a console
        rows = []
    with closing(sqlite3.connect(restored)) as connection, connection:
        # A backup of an Andy without a console has no such table.
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
            connection.execute(f"DELETE FROM {table}")  # noqa: S608
            connection.executemany(f"INSERT INTO {table} ({columns}) VALUES (?, ?, ?, ?, ?)", rows)  # noqa: S608


def _check_store(path: Path, source: Path) -> int:
    """Check the unpacked database at `path`, let only its owner read it, and return its version.

    `source`, the backup, is named in errors. Raises `BackupError`, `StoreTooNew`.
    """
    try:
        with closing(sqlite3.connect(path)) as connection:
            fault = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    except sqlite3.Error as error:
        raise BackupError(f"The database in {source} is damaged ({error}). Nothing was changed.") from error
    if fault != "ok" or version == 0:
        raise BackupError(f"The database in {source} is damaged or empty. Nothing was changed.")
    _refuse_newer(version, source)
    path.chmod(0o600)
    return version


def _refuse_newer(version: int, source: Path) -> None:
    """Raise `StoreTooNew` if this Andy does not know the database's version in the backup `source`."""
    known_version = len(database.migrations())
    if version > known_version:
        raise StoreTooNew(
            f"{source} has a database of version {version},"
            f" this Andy knows {known_version}: upgrade Andy first."
        )


# An archive


@dataclass(slots=True, kw_only=True)
class Unpacked:
    """A backup that was unpacked into the stage of a home."""

    source: Path
    stage: Stage
    manifest: Manifest | None = None
    contents: BackupContents = field(default_factory=BackupContents)
    """The sums of what was unpacked so far: files, links and bytes."""
    sums_in_backup: BackupContents | None = None
    """The sums of the whole backup, as its last member has them; None until that was read."""
    names: set[str] = field(default_factory=set)
    """The names of the members that were read so far."""
    folders: list[tarfile.TarInfo] = field(default_factory=list)
    """Folders that were created; they get their modes at the end."""
    links: list[tarfile.TarInfo] = field(default_factory=list)
    """Links that are created at the end."""
    left_out: list[str] = field(default_factory=list)
    """Links that are not created, as they might lead out of their group."""

    @classmethod
    def of(cls, source: Path, stage: Stage, progress: BackupProgress) -> Unpacked:
        """Unpack the backup `source` into `stage`, check it, and return it.

        Raises:
            BackupError: it is damaged or not a backup.
            StoreTooNew: a newer Andy wrote it.
            OSError: it cannot be unpacked, for example to a full disk.
        """
        unpacked = cls(source=source, stage=stage)
        try:
            with tarfile.open(source, "r:gz") as tar:
                for member in tar:
                    unpacked.take(tar, member)
                    progress.report_if_due(unpacked.contents)
                unpacked.read_to_end(tar)
                unpacked.finish()
        except UNREADABLE as error:
            raise unpacked.refusal(f"it is broken ({_in_a_line(error)})") from error
        if _check_store(stage.path(archive.DATABASE), source) != unpacked.checked_manifest().store_version:
            raise unpacked.refusal("its database has another version than its manifest says")
        return unpacked

    def refusal(self, reason: str) -> BackupError:
        """Return the error that refuses this backup; `reason` completes the sentence."""
        return BackupError(f"{self.source} is no backup that can be restored: {reason}. Nothing was changed.")

    def checked_manifest(self) -> Manifest:
        """Return the manifest. Raises `BackupError` if the backup did not begin with one."""
        if self.manifest is None:
            raise self.refusal(f"it does not begin with {archive.MANIFEST}")
        return self.manifest

    def take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Unpack one member of the archive `tar`; links and the modes of folders are left to `finish`.

        Raises:
            BackupError: a backup may not have this member, or not at this place.
            StoreTooNew: it is the manifest, and names a newer version of the database.
        """
        # Refused are a name that no backup has, a second member of one name, which would replace a checked
        # file, and a member after the sums (`CONTENTS`), which would not count it.
        if not archive.may_hold(member.name) or member.name in self.names or self.sums_in_backup is not None:
            raise self.refusal(f"it holds '{member.name}'")
        self.names.add(member.name)
        if member.name == archive.MANIFEST:
            self.manifest = Manifest.model_validate_json(self._small_file(tar, member))
            _refuse_newer(self.manifest.store_version, self.source)
            return
        self.checked_manifest()  # called for its error: no member may come before the manifest
        if member.name == archive.CONTENTS:
            self.sums_in_backup = BackupContents.model_validate_json(self._small_file(tar, member))
        elif member.isdir():
            self.folders.append(member)
            _extract(tar, member, self.stage.base(member.name))
        elif member.issym() and archive.stays_inside(member.name, member.linkname):
            # An earlier Andy put links that turn back into its backups.
            if archive.turns_back(member.linkname):
                self.left_out.append(member.name)
            else:
                self.links.append(member)
            self.contents = self.contents.with_link()
        elif member.isreg():
            _extract(tar, member, self.stage.base(member.name))
            self.contents = self.contents.with_file(member.size)
        else:
            raise self.refusal(f"'{member.name}' is no plain file")

    def read_to_end(self, tar: tarfile.TarFile) -> None:
        """Read the archive to its very end, where gzip compares its checksum and raises if it differs."""
        stream = tar.fileobj
        while stream is not None and stream.read(65536):
            pass

    def finish(self) -> None:
        """Create the links, set the modes of folders, and check that all of the backup was unpacked.

        The links come last, so that nothing is unpacked through one.

        Raises:
            BackupError: something is to be unpacked through a link, or the sums differ from the backup's.
        """
        parents = {str(parent) for name in self.names for parent in PurePosixPath(name).parents}
        for member in self.links:
            if member.name in parents:
                raise self.refusal(f"'{member.name}' is a link with something in it")
            # Without `tarfile`, which follows the links before: it fails at two that lead to each other.
            link = self.stage.path(member.name)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(member.linkname)
        # Inner folders come before those that contain them. The owner may always enter and write; nobody else
        # may write.
        for member in reversed(self.folders):
            self.stage.path(member.name).chmod(member.mode & 0o755 | 0o700)
        if self.sums_in_backup != self.contents:
            raise self.refusal("it is incomplete")

    def _small_file(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
        """Return the bytes of a member of the archive.

        Raises `BackupError` if it is no file, or larger than 64 KiB.
        """
        file = tar.extractfile(member)
        if file is None or member.size > 65536:
            raise self.refusal(f"'{member.name}' is not a file of the expected size")
        return file.read()


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target_folder: Path) -> None:
    """Unpack a member into the folder `target_folder`, without its owner and special mode bits.

    Its name and kind were checked by the caller.
    """
    if hasattr(tarfile, "data_filter"):
        tar.extract(member, target_folder, filter="data")
        return
    # The Python of Debian 12 has no such filter: the same is done here by hand. The owner may read and write,
    # and enter a folder; nobody else may write.
    plain = copy(member)
    plain.mode = member.mode & 0o755 | (0o700 if member.isdir() else 0o600)
    plain.uid, plain.gid, plain.uname, plain.gname = os.geteuid(), os.getegid(), "", ""
    tar.extract(plain, target_folder)


def _in_a_line(error: Exception) -> str:
    """Return an error's text on one line, cut to 200 characters; the name of its class if it has no text."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def _give_to_agents(stage: Stage) -> None:
    """Make the agents' user the owner of the unpacked files of agents.

    Only root can and must do that: without root, the host and the agents run as the same user.
    """
    if os.geteuid() != 0:
        return
    for folder in archive.OF_AGENTS:
        for group in stage.path(folder).glob("*"):
            # The folder `global` has the notes for all groups, and stays the host's.
            if group.name == "global" or not group.is_dir():
                continue
            os.lchown(group, AGENT_UID, AGENT_UID)
            for directory, folders, files in os.walk(group):
                for name in (*folders, *files):
                    os.lchown(Path(directory, name), AGENT_UID, AGENT_UID)


def _make_aside_folder(root: Path, now_ms: int) -> Path:
    """Create and return the folder for the earlier files of the home `root`, named after the time `now_ms`.

    The folder is beside the home, such as `home.before-restore-20261122-031500`. If the parent folder is on
    another disk or not writable, the folder is inside the home.
    """
    name = f"before-restore-{datetime.fromtimestamp(now_ms / 1000).astimezone():%Y%m%d-%H%M%S}"
    is_beside = os.access(root.parent, os.W_OK) and root.parent.stat().st_dev == root.stat().st_dev
    aside_folder = root.with_name(f"{root.name}.{name}") if is_beside else root / name
    aside_folder.mkdir(mode=0o700)
    return aside_folder


def summary_lines(result: RestoreResult, home: Home, *, zone: ZoneInfo | None) -> list[str]:
    """Return the lines that report a restore into `home`; without a zone, times are this machine's."""
    if result.manifest is None:
        lines = ["The database is restored; groups/ and sessions are unchanged."]
    else:
        at = datetime.fromtimestamp(result.manifest.created_ms / 1000, zone)
        lines = [f"Restored as it was on {at:%Y-%m-%d %H:%M}: {counted(result.contents.files, 'file')}."]
    if result.left_out:
        shown_paths = ", ".join(result.left_out[:5]) + (" …" if len(result.left_out) > 5 else "")
        lines.append(
            f"Left out, for they may lead out of their group: {counted(len(result.left_out), 'link')}"
            f" ({printable(shown_paths)})"
        )
    if result.aside is not None:
        lines.append(f"What was there before is in {result.aside}")
    return [*lines, _start_hint(home)]


def _start_hint(home: Home) -> str:
    """Return a sentence that says how to start Andy after a restore into `home`.

    The sentence depends on whether the restore was run in Compose's container, in a clone with Compose's
    file, or elsewhere.
    """
    if str(home.root) == COMPOSE_HOME:
        return "Start Andy with 'docker compose up -d' on the host."
    # A restore under Compose is typed beside docker-compose.yml, where Andy may also run without it.
    if (home.root / "docker-compose.yml").is_file():
        return "Start Andy as before: with Compose 'docker compose up -d', else 'andy up'."
    return "Start Andy with 'andy up'."
