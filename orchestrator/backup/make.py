"""Make a backup of a home, also while Andy runs: one file, complete or absent."""

from __future__ import annotations

import io
import os
import sqlite3
import stat
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from orchestrator import __version__
from orchestrator.backup import archive, outgoing, sparse
from orchestrator.backup.archive import BackupContents, BackupProgress, Manifest
from orchestrator.backup.swap import refuse_moves
from orchestrator.base.clock import Clock
from orchestrator.base.installation import COMPOSE_HOME
from orchestrator.base.tables import counted, size_text
from orchestrator.containers.logs.files import printable
from orchestrator.domain.errors import BackupError
from orchestrator.home.directory import Home, expanded
from orchestrator.store import database

COMPRESSION = 6
SCRATCH = ".andy-backup-"
WRITE_FAULTS = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC)
"""SQLite's codes of errors that only writing has, such as that of a full disk."""
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK
HOLLOW_BYTES, HOLLOW_TIMES = 2**30, 16
"""A file of more than `HOLLOW_BYTES` is left out if it takes less space on the disk than its size divided by
`HOLLOW_TIMES`: an agent can make one of holes that costs no space but would choke a backup.
"""
TINY_BYTES = 4096
"""Bytes of the largest file that some file systems store beside its name, without a block of its own."""
MAX_SPACELESS_BYTES = 2**30
"""Most bytes of a backup that take no space on the disk: further names of one file, holes that are not found.

Everything else that a backup reads takes its size on the disk, which bounds it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupResult:
    """The result of making a backup."""

    path: Path | None
    """The path of the backup; None if it was written to a pipe."""
    bytes: int | None
    """Its size; None if it was written to a pipe."""
    contents: BackupContents
    left_out: tuple[str, ...]
    """Files of agents that no backup can contain: sockets, huge holes, links that lead out of their group."""


def back_up(
    home: Home,
    target: Path,
    *,
    with_env: bool,
    replaces: bool,
    clock: Clock,
    say: Callable[[str], None],
) -> BackupResult:
    """Write a backup to `target`, readable by its owner only. Blocks. Andy may run meanwhile.

    `say` shows a line of the progress to a person. `with_env` includes `.env`, which has secrets; with
    `replaces` an existing file may be overwritten.

    Raises:
        BackupError: there is nothing to back up, or `target` cannot be written; nothing is left of it.
        StoreCorrupt: the database is damaged; no backup is made, since it might replace a good one.
        StoreError: the database cannot be read or copied.
    """
    target = expanded(target).absolute()
    try:
        _check_target(home, target, replaces=replaces)
        archive.delete_leftovers(target.parent, SCRATCH, now_ms=clock.now_ms())
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=SCRATCH) as temporary_folder:
            complete_file = Path(temporary_folder, "whole")
            with open(complete_file, "xb", opener=_private) as file:
                writer = _gather(file, home, Path(temporary_folder), with_env=with_env, clock=clock, say=say)
                # On the disk before it gets its name: a power cut leaves no half backup under it.
                os.fsync(file.fileno())
            complete_file.replace(target)
    except (OSError, tarfile.TarError) as error:
        writable = archive.writable_place(home, target, error)
        fix = f" Name a file in {writable.parent}, such as {writable}." if writable else ""
        raise BackupError(
            f"The backup {target} cannot be written ({error}): nothing is left of it.{fix}"
        ) from error
    return writer.result(target, target.stat().st_size)


def stream(
    home: Home, out: BinaryIO, *, with_env: bool, clock: Clock, say: Callable[[str], None]
) -> BackupResult:
    """Write a backup to the pipe `out` and close it. Blocks. Andy may run meanwhile.

    `with_env` includes `.env`, which has secrets. The temporary copies are in the home, not in `/tmp`: in a
    container, `/tmp` is memory. `say` shows a line of the progress to a person.

    Raises:
        BackupError: there is nothing to back up, or the pipe cannot be written; `andy restore` refuses the
            incomplete backup.
        StoreCorrupt: the database is damaged.
        StoreError: the database cannot be read or copied.
    """
    _check_source(home)
    try:
        archive.delete_leftovers(home.data, SCRATCH, now_ms=clock.now_ms())
        with tempfile.TemporaryDirectory(dir=home.data, prefix=SCRATCH) as temporary_folder:
            writer = _gather(out, home, Path(temporary_folder), with_env=with_env, clock=clock, say=say)
        out.close()
    except (OSError, tarfile.TarError) as error:
        raise BackupError(f"The backup failed ({error}): what was written is incomplete.") from error
    return writer.result(None, None)  # a pipe has neither a path nor a size


def _gather(
    file: BinaryIO, home: Home, scratch: Path, *, with_env: bool, clock: Clock, say: Callable[[str], None]
) -> _Writer:
    """Copy the changing parts of a home to the folder `scratch`, then write the backup to `file`.

    These parts are the database and the files that wait to be sent: their copies fit together. Return the
    writer of the backup, which knows what was written and what was left out.
    """
    # The waiting files are linked before and after the database is copied: each file that the copied database
    # names exists at one of the two times.
    snapshot, held_folder = scratch / "messages.db", scratch / "outgoing"
    outgoing.link_waiting_files(home, held_folder)
    version = _snapshot(home.database, snapshot)
    outgoing.link_waiting_files(home, held_folder)
    outgoing.delete_unneeded_files(held_folder, snapshot)
    manifest = Manifest(andy=__version__, store_version=version, created_ms=clock.now_ms(), has_env=with_env)
    return _write(file, home, scratch, manifest, BackupProgress(say, clock=clock))


def _check_source(home: Home) -> None:
    """Raise `BackupError` if a home has no database to back up, or a restore of it has not ended."""
    refuse_moves(home)
    if not home.database.is_file():
        raise BackupError(f"There is nothing to back up in {home.root}: it has no {archive.DATABASE}.")


def _check_target(home: Home, target: Path, *, replaces: bool) -> None:
    """Raise an error if no new backup may be written to the absolute path `target`.

    Raises:
        BackupError: it is no place for a backup, it exists and `replaces` is false, or there is nothing to
            back up.
        OSError: it cannot be looked at, as in a folder of another user.
    """
    _check_source(home)
    if target.is_dir() or not target.parent.is_dir():
        place = f"{COMPOSE_HOME}/backups" if str(home.root) == COMPOSE_HOME else "an existing directory"
        raise BackupError(f"{target} cannot be written: name a file in {place}.")
    if target.exists() and not replaces:
        raise BackupError(f"{target} exists already: choose another name, or use --force.")
    # Containers can read parts of these, and a backup in them would be in the next one.
    own_folders = (home.groups, home.data, home.database.parent)
    if any(target.parent.resolve().is_relative_to(folder.resolve()) for folder in own_folders):
        raise BackupError(f"{target} would be inside what is backed up: choose a place outside.")


def _private(path: str, flags: int) -> int:
    """Open a new file that only its owner may read: the `opener` that is passed to `open`."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _snapshot(source: Path, target: Path) -> int:
    """Copy the database `source` to the file `target`, in one consistent state; return its schema version.

    Raises:
        StoreCorrupt: the database is damaged.
        StoreError: it cannot be read.
        OSError: the copy cannot be written.
    """
    try:
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as live,
            closing(sqlite3.connect(target)) as copy,
        ):
            live.execute(f"PRAGMA busy_timeout = {database.BUSY_MS}")
            live.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, with no write-ahead log beside it
            version = int(copy.execute("PRAGMA user_version").fetchone()[0])
    except sqlite3.Error as error:
        # Only the copy is written.
        if getattr(error, "sqlite_errorcode", None) in WRITE_FAULTS:
            raise OSError(str(error)) from error
        raise database.unusable(source, error) from error
    database.check(target)
    return version


def _write(
    file: BinaryIO, home: Home, scratch: Path, manifest: Manifest, progress: BackupProgress
) -> _Writer:
    """Write the backup to `file`; `scratch` has copies of the database and of the files that wait to be sent.

    Return the writer, which knows what was written and what was left out.
    """
    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=COMPRESSION, format=tarfile.PAX_FORMAT) as tar:
        writer = _Writer(tar, progress)
        writer.add_text(archive.MANIFEST, manifest.model_dump_json())
        writer.add_path(archive.DATABASE, scratch / "messages.db")
        for folder in archive.FOLDERS:
            is_copied = folder == outgoing.FOLDER
            writer.add_tree(folder, scratch / "outgoing" if is_copied else home.root / folder)
        names = [*archive.FILES, archive.SECRETS] if manifest.has_env else archive.FILES
        for name in names:
            if (home.root / name).is_file():
                writer.add_path(name, home.root / name)
        writer.add_text(archive.CONTENTS, writer.contents.model_dump_json())
    return writer


class _Writer:
    """Adds members to the archive.

    Containers change their files meanwhile, so it follows no link and never waits for a file.
    """

    def __init__(self, tar: tarfile.TarFile, progress: BackupProgress) -> None:
        """`tar` is open for writing; `progress` shows how far the backup is."""
        self._tar = tar
        self._progress = progress
        self.contents = BackupContents()
        self.left_out: list[str] = []
        """The paths of files that could not be stored."""
        self._folders: set[str] = set()
        """The paths of the folders that are in the archive by now."""
        self._several_names: set[tuple[int, int]] = set()
        """Files in the backup that have several names, by device and inode."""
        self._spaceless_bytes = 0
        """Bytes of the backup that take no space on the disk."""
        self._sparse_files = 0
        """The number of files with holes in the backup so far; the next one gets the next number."""

    def result(self, path: Path | None, size: int | None) -> BackupResult:
        """Return the result of the finished backup.

        `path` and `size`, in bytes, are those of its file; None if it was written to a pipe.
        """
        return BackupResult(path=path, bytes=size, contents=self.contents, left_out=tuple(self.left_out))

    def add_text(self, name: str, text: str) -> None:
        """Add a member with a text that the backup itself makes; the sums of the contents do not count it."""
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(text.encode()), 0o600
        self._tar.addfile(info, io.BytesIO(text.encode()))

    def add_path(self, name: str, path: Path) -> None:
        """Add the host's own file at `path` as the member `name`. Raises `OSError`."""
        with path.open("rb") as file:
            self._add_file(name, file, os.fstat(file.fileno()))

    def add_tree(self, name: str, root: Path) -> None:
        """Add the folder `root` with everything in it as the member `name`; a missing one is skipped.

        `root` itself may be a symbolic link, which only the owner can have made.
        """
        if not root.is_dir():
            return
        top = str(root.resolve())
        # Files are opened by the descriptor of their folder: no agent can put a link into the path meanwhile.
        for directory, folders, files, descriptor in os.fwalk(top):
            inside = name + directory.removeprefix(top)
            if directory != top and inside not in self._folders:
                # It was no directory when its parent was listed, so a container has swapped it since.
                folders.clear()
                continue
            for entry in (*folders, *files):
                with suppress(FileNotFoundError):  # removed meanwhile
                    self._add_entry(f"{inside}/{entry}", entry, descriptor)
            # Every path in a subfolder, such as `inside/a/b`, has more parts and characters than `inside/..`:
            # if that is too deep, so are all of them, and no subfolder is read.
            if archive.is_too_deep(f"{inside}/.."):
                folders.clear()

    def _add_entry(self, name: str, entry: str, folder_fd: int) -> None:
        """Add the entry of an open folder as the member `name`: a directory, link or file.

        An entry of another kind, a path that is too deep, a huge file of holes, a directory that cannot be
        listed, and an entry whose kind cannot be read, are noted as left out.

        Raises:
            FileNotFoundError: it was removed meanwhile.
        """
        link_target = None
        # An agent can close its folder to the owner, or replace a link by a file meanwhile.
        try:
            status = os.stat(entry, dir_fd=folder_fd, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                link_target = os.readlink(entry, dir_fd=folder_fd)
            elif stat.S_ISDIR(status.st_mode):
                # Tried here, where its path is known: `os.fwalk` skips it silently.
                os.close(os.open(entry, _OPEN_FOLDER, dir_fd=folder_fd))
        except FileNotFoundError:  # removed meanwhile, which `add_tree` skips
            raise
        except OSError:
            self.left_out.append(name)
            return
        if archive.is_too_deep(name):
            self.left_out.append(name)
        elif stat.S_ISDIR(status.st_mode):
            self._folders.add(name)
            self._tar.addfile(_info(name, status, tarfile.DIRTYPE))
        elif link_target is not None:
            self._add_link(name, link_target, status)
        elif stat.S_ISREG(status.st_mode) and not _is_hollow(status):
            self._open_and_add(name, entry, folder_fd)
        else:
            self.left_out.append(name)

    def _add_link(self, name: str, target: str, status: os.stat_result) -> None:
        """Add a symbolic link to `target`, or note it as left out if it leads out of its group's folder."""
        if archive.turns_back(target) or not archive.stays_inside(name, target):
            self.left_out.append(name)
            return
        info = _info(name, status, tarfile.SYMTYPE)
        info.linkname = target
        self._tar.addfile(info)
        self.contents = self.contents.with_link()

    def _open_and_add(self, name: str, entry: str, folder_fd: int) -> None:
        """Open the file `entry` of an open folder, and add it as the member `name`.

        A file that became a link or a pipe, or cannot be read, is noted as left out.

        Raises:
            FileNotFoundError: it was removed meanwhile.
        """
        # Without O_NONBLOCK, a pipe in the place of the file would block the backup without end.
        try:
            descriptor = os.open(entry, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder_fd)
        except FileNotFoundError:  # removed meanwhile, which `add_tree` skips
            raise
        except OSError:  # replaced by a link meanwhile, or not readable
            self.left_out.append(name)
            return
        # Looked at again: the entry may have been replaced since its kind was read.
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            self.left_out.append(name)
            return
        with os.fdopen(descriptor, "rb") as file:
            self._add_file(name, file, status)

    def _add_file(self, name: str, file: BinaryIO, status: os.stat_result) -> None:
        """Add an open file as the member `name`, without its holes.

        A file with too many pieces, or with too many bytes that take no space on the disk, is noted as left
        out instead.
        """
        pieces = sparse.pieces(file.fileno(), status)
        # `pieces` is None if there are too many.
        if pieces is None or not self._fits_spaceless_limit(pieces, status):
            self.left_out.append(name)
            return
        info = _info(name, status, tarfile.REGTYPE)
        # Holes are recorded and not read: to read 4 GiB of them took 29 s. `head` is the list of the parts
        # with data, which comes before these in the archive.
        if sparse.has_holes(pieces, status.st_size):
            self._sparse_files += 1
            head = sparse.make_sparse(info, self._sparse_files, pieces, size=status.st_size)
        else:
            head, info.size = b"", status.st_size
        self._tar.addfile(info, sparse.Pieces(file, head, pieces))
        self.contents = self.contents.with_file(status.st_size)
        self._progress.report_if_due(self.contents)

    def _fits_spaceless_limit(self, pieces: sparse.DataParts, status: os.stat_result) -> bool:
        """Return whether a file may be added; if so, count its bytes that take no space on the disk.

        A second name of a file takes none, for example. The file may not be added if the backup would then
        have more than `MAX_SPACELESS_BYTES` of these bytes: an agent could otherwise make a backup huge at no
        cost. `pieces` are the parts of the file with data.
        """
        data_bytes = sum(length for _, length in pieces)
        disk_bytes = status.st_blocks * 512  # `st_blocks` counts pieces of 512 bytes on every disk
        if status.st_nlink > 1:
            key = (status.st_dev, status.st_ino)
            # The space counts for the first name of a file: its other names take none.
            disk_bytes = 0 if key in self._several_names else disk_bytes
            self._several_names.add(key)
        if status.st_nlink == 1 and data_bytes <= TINY_BYTES:
            return True  # some file systems store it beside its name, and report no blocks
        # The factor is for file systems that compress: their files take less space than their size.
        spaceless_bytes = self._spaceless_bytes + max(0, data_bytes - HOLLOW_TIMES * disk_bytes)
        if spaceless_bytes > MAX_SPACELESS_BYTES:
            return False
        self._spaceless_bytes = spaceless_bytes
        return True


def _info(name: str, status: os.stat_result, kind: bytes) -> tarfile.TarInfo:
    """Return the header of an archive's member: its kind, its mode and its time, but no owner.

    The mode has no special bits, such as those that run a program as its owner.
    """
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime = kind, stat.S_IMODE(status.st_mode) & 0o777, int(status.st_mtime)
    return info


def _is_hollow(status: os.stat_result) -> bool:
    """Return whether a file is large and nearly all of it is holes: parts that take no space on the disk."""
    # `st_blocks` counts pieces of 512 bytes on every disk.
    return status.st_size > HOLLOW_BYTES and status.st_blocks * 512 * HOLLOW_TIMES < status.st_size


def summary_lines(result: BackupResult) -> list[str]:
    """Return the lines that report a finished backup; at most five of the files left out are named."""
    packed = f", {size_text(result.bytes)} packed" if result.bytes is not None else ""
    lines = [f"{result.path or 'The backup'}: {counted(result.contents.files, 'file')}{packed}."]
    if result.left_out:
        shown_paths = ", ".join(result.left_out[:5]) + (" …" if len(result.left_out) > 5 else "")
        lines.append(
            f"Left out, for no backup can contain them: {len(result.left_out)} ({printable(shown_paths)})"
        )
    return lines
