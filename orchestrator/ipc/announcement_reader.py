"""Announce in the running host what commands have changed in the store.

A command writes to the store itself, and leaves a small file about it in `data/announcements/`, a directory
of the host's own that no container sees. The file is a hint: the host publishes its events and wakes its
loops, which look at the store. Without the file they look at their next sweep.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import structlog
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from orchestrator.base.announcements import LOOPS_OF, MAX_IN_FILE, Announce, Announcement
from orchestrator.domain.errors import MailboxError
from orchestrator.domain.values import Folder
from orchestrator.ipc import entries
from orchestrator.ipc.rejected_files import MAX_NAME_CHARS, Rejection
from orchestrator.ipc.watcher import MailboxWatcher

log = structlog.get_logger(__name__)

MAX_FILES = 200
"""Files that are read in one look; the others are read in the next."""
SWEEP_SECONDS = 5.0
"""Seconds between two looks where the system signals no new file, as across a mount of Docker Desktop."""
ABANDONED_SECONDS = 60
"""Age in seconds of an unfinished file whose command was killed: others are finished within milliseconds."""
REMOVE_TRIES = 3
"""Attempts to remove the directory at the end; one fails if a command writes into it meanwhile."""
ROOT = 0
_NAME = re.compile(r"[0-9]{13,}-[0-9a-f]{8}\.json")
_PARTIAL_PREFIX = "."


class AnnouncementEntry(BaseModel):
    """One announcement as a file has it. Fields that a newer version adds are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)

    kind: str = Field(pattern=r"^[a-z_]{1,40}(\.[a-z_]{1,40})+$")
    group: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")
    turn: int | None = Field(None, ge=1, lt=2**53)
    detail: str | None = Field(None, pattern=r"^[A-Za-z0-9_.-]{1,64}$")


_ENTRIES = TypeAdapter(Annotated[list[Any], Field(max_length=MAX_IN_FILE)])


@dataclass(slots=True, kw_only=True)
class AnnouncementBatch:
    """The result of one look at the directory. Its files are removed already."""

    announcements: list[Announcement] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
    trouble: str | None = None
    """The reason why the directory or some file could not be read; None if all could."""
    is_directory_missing: bool = False
    """Whether there is no directory."""
    has_more: bool = False
    """Whether another look would find something at once."""


class AnnouncementReader:
    """Reads the files that commands leave. Each host has one instance; `open` it before its loop runs."""

    def __init__(self, directory: Path, *, announce: Announce, sweep_seconds: float = SWEEP_SECONDS) -> None:
        """`announce` is called with each change that a file in `directory` reports.

        The directory is read when the system signals a new file, and at least every `sweep_seconds`.
        """
        self._directory = directory
        self._announce = announce
        # The watcher expects a folder for each group, with mailboxes in it. Here `directory` is the only such
        # folder, and itself its mailbox (".").
        self._watcher = MailboxWatcher(directory.parent, mailboxes=(".",), sweep_seconds=sweep_seconds)
        self._name = Folder(directory.name)
        self._trouble: str | None = None
        """The last problem that was logged: the same one is not logged again."""
        self._stuck: set[str] = set()
        """Names that were logged and could not be removed."""

    async def open(self, stack: AsyncExitStack) -> None:
        """Make an empty directory for announcements, and watch it; it is removed when `stack` is closed.

        Files that were in it are deleted: they announce changes that this host reads anyway as it starts. If
        the directory cannot be made, `look` tries again: until then the host still finds every change, only
        later.
        """
        # The owner may have put `data/` on another disk; only the directory itself may not be a link.
        parent = await asyncio.to_thread(self._directory.parent.resolve)
        self._directory = parent / self._directory.name
        try:
            await asyncio.to_thread(_make_empty, self._directory)
        except OSError as error:
            self._note_trouble(str(error))
        # Without the directory commands write nothing: files that nobody reads do not pile up.
        stack.push_async_callback(asyncio.to_thread, _remove, self._directory)
        await stack.enter_async_context(self._watcher)

    async def run(self) -> None:
        """Read new files as they come, and announce the changes that they report, until cancelled."""
        await self._watcher.watch(self._name)
        while True:
            await self._watcher.wait()
            await self.look()

    async def look(self) -> None:
        """Read and remove the present files, and announce the changes that they report.

        Failures and unacceptable files are logged.
        """
        try:
            batch = await asyncio.to_thread(self._take)
            if batch.is_directory_missing:
                # Somebody has removed the directory: without it, no later command could leave a file.
                await asyncio.to_thread(_make_empty, self._directory)
                await self._watcher.watch(self._name)
        except (MailboxError, OSError) as error:
            self._note_trouble(str(error))
            return
        self._note_trouble(batch.trouble)
        if batch.rejections:
            first = batch.rejections[0]
            log.warning(
                "announcements.refused",
                file=ascii(first.name[:MAX_NAME_CHARS])[1:-1],  # escaped, without the quotes of `ascii`
                reason=first.reason,
                count=len(batch.rejections),
            )
        # Each different announcement once: ten commands with the same effect need one look of a loop.
        for announcement in dict.fromkeys(batch.announcements):
            self._announce(announcement)
        if batch.has_more:
            self._watcher.wake(self._name)

    def _note_trouble(self, trouble: str | None) -> None:
        """Log the reason why files cannot be read, unless the last one that was noted is the same.

        `trouble` is None if they can be read.
        """
        if trouble is not None and trouble != self._trouble:
            log.warning("announcements.unreadable", reason=trouble)
        self._trouble = trouble

    def _take(self) -> AnnouncementBatch:
        """Read and remove at most `MAX_FILES` files, and remove unfinished ones of killed commands. Blocks.

        Raises:
            MailboxError: the directory is a link, no directory, or closed to the host.
            OSError: it cannot be listed.
        """
        batch = AnnouncementBatch()
        with entries.opened(self._directory) as directory:
            if directory is None:
                return AnnouncementBatch(is_directory_missing=True)
            # The listing needs no limit, unlike that of a container's directory: only the host's user writes
            # here.
            with os.scandir(directory) as listed:
                names = sorted(entry.name for entry in listed)
            self._stuck &= set(names)  # forget names that are gone by now
            for name in names:
                if name.startswith(_PARTIAL_PREFIX):
                    _remove_abandoned(directory, name)
            readable_names = [
                name for name in names if name not in self._stuck and not name.startswith(_PARTIAL_PREFIX)
            ]
            for name in readable_names[:MAX_FILES]:
                try:
                    self._read(directory, name, batch)
                except OSError as error:
                    # What was read before is removed already: it is announced, and the others are tried.
                    batch.trouble = str(error)
        # If none of these could be read, another look at once would find the same ones again.
        has_read = bool(batch.announcements or batch.rejections)
        batch.has_more = len(readable_names) > MAX_FILES and has_read
        return batch

    def _read(self, directory_fd: int, name: str, batch: AnnouncementBatch) -> None:
        """Read and remove the file `name` in an open directory.

        Its announcements are added to `batch`, or else the reason why it is refused: it cannot be removed, is
        no acceptable file, or has a name that no command gives. Nothing happens if it is gone.
        """
        # Only files of the host's user and of root are acceptable.
        content = entries.read(directory_fd, name, frozenset({os.geteuid(), ROOT}))
        if content is None:
            return
        # Removed before it is announced: a file that cannot be removed would wake all loops at each sweep. If
        # the host is killed in between, its next start reads everything anyway.
        if not entries.remove(directory_fd, name):
            self._stuck.add(name)
            batch.rejections.append(Rejection(name=name, reason="it cannot be removed"))
        elif isinstance(content, entries.EntryFault):
            batch.rejections.append(Rejection(name=name, reason=content.reason))
        elif not _NAME.fullmatch(name):
            batch.rejections.append(Rejection(name=name, reason="no command names a file so"))
        else:
            _parse(name, content.body, batch)


def _parse(name: str, body: bytes, batch: AnnouncementBatch) -> None:
    """Add the announcements in a file's content, `body`, to the batch.

    Announcements that cannot be read, or are of an unknown kind, are left out; the first reason for that is
    added to the batch's rejections. The file's other announcements are added all the same, because a newer
    version of Andy may announce something that this version does not know.
    """
    reasons = []
    try:
        for document in _ENTRIES.validate_json(body):
            try:
                entry = AnnouncementEntry.model_validate(document)
            except ValidationError as error:
                reasons.append(_reason(error))
                continue
            if entry.kind in LOOPS_OF:
                batch.announcements.append(Announcement(**entry.model_dump()))
            else:
                reasons.append("this kind of event is unknown")
    except ValidationError as error:
        reasons.append(_reason(error))
    batch.rejections += [Rejection(name=name, reason=reason) for reason in reasons[:1]]


def _reason(error: ValidationError) -> str:
    """Return the text of the first fault that a validation found, without the content of the file."""
    return str(error.errors(include_input=False)[0]["msg"])


def _remove_abandoned(directory_fd: int, name: str) -> None:
    """Remove an unfinished file that is too old to be completed: the command that wrote it was killed."""
    info = entries.status_of(directory_fd, name)
    if info is not None and time.time() - info.st_mtime > ABANDONED_SECONDS:
        entries.remove(directory_fd, name)


def _make_empty(directory: Path) -> None:
    """Make a directory that only the host's user may use, in place of whatever is there.

    It is empty, except for entries of an earlier directory that cannot be removed. Raises `OSError`.
    """
    if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
        directory.unlink()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    directory.chmod(0o700)


def _remove(directory: Path) -> None:
    """Remove the directory with its files, as far as possible.

    The removal is tried `REMOVE_TRIES` times, because a command may write into the directory meanwhile.
    """
    for _ in range(REMOVE_TRIES):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
