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
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import structlog
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

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
ROOT = 0
_NAME = re.compile(r"[0-9]{13}-[0-9a-f]{8}\.json")
_PARTIAL_PREFIX = "."


def _known_kind(kind: str) -> str:
    if kind not in LOOPS_OF:
        raise ValueError("this kind of event is unknown")
    return kind


class AnnouncementEntry(BaseModel):
    """One announcement as a file has it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: Annotated[str, AfterValidator(_known_kind)]
    group: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")
    turn: int | None = Field(None, ge=1, lt=2**53)
    detail: str | None = Field(None, pattern=r"^[A-Za-z0-9_.-]{1,64}$")


_ENTRIES = TypeAdapter(Annotated[list[AnnouncementEntry], Field(max_length=MAX_IN_FILE)])


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncementBatch:
    """The result of one look at the directory. Its files are removed already."""

    announcements: Sequence[Announcement] = ()
    rejections: Sequence[Rejection] = ()
    has_more: bool = False


class AnnouncementReader:
    """Reads the files that commands leave. Each host has one instance; `open` it before its loop runs."""

    def __init__(self, directory: Path, *, announce: Announce, sweep_seconds: float = SWEEP_SECONDS) -> None:
        self._directory = directory
        self._announce = announce
        self._watcher = MailboxWatcher(directory.parent, mailboxes=(".",), sweep_seconds=sweep_seconds)
        self._name = Folder(directory.name)
        self._trouble: str | None = None
        self._stuck: set[str] = set()
        """Names that were logged and could not be removed."""

    async def open(self, stack: AsyncExitStack) -> None:
        """Make the directory, empty, and watch it until `stack` unwinds; then it is removed.

        What lay there is about changes that this host reads anyway when it starts.
        """
        self._directory = await asyncio.to_thread(_made_empty, self._directory)
        # Without the directory commands write nothing: files that nobody reads do not pile up.
        stack.push_async_callback(asyncio.to_thread, shutil.rmtree, self._directory, ignore_errors=True)
        await stack.enter_async_context(self._watcher)

    async def run(self) -> None:
        """Announce what the files say, until cancelled."""
        await self._watcher.watch(self._name)
        while True:
            await self._watcher.wait()
            await self.look()

    async def look(self) -> None:
        """Read and remove the present files, and announce what they say."""
        try:
            batch = await asyncio.to_thread(self._take)
        except (MailboxError, OSError) as error:
            if str(error) != self._trouble:
                log.warning("announcements.unreadable", reason=str(error))
            self._trouble = str(error)
            return
        self._trouble = None
        if batch.rejections:
            first = batch.rejections[0]
            log.warning(
                "announcements.refused",
                file=ascii(first.name[:MAX_NAME_CHARS])[1:-1],
                reason=first.reason,
                count=len(batch.rejections),
            )
        # The same event for ten commands is one look of a loop.
        for announcement in dict.fromkeys(batch.announcements):
            self._announce(announcement)
        if batch.has_more:
            self._watcher.wake(self._name)

    def _take(self) -> AnnouncementBatch:
        found: list[Announcement] = []
        rejections: list[Rejection] = []
        with entries.opened(self._directory) as directory:
            if directory is None:
                return AnnouncementBatch()
            survey = entries.survey(directory, MAX_FILES)
            for name in survey.names:
                if name.startswith(_PARTIAL_PREFIX):
                    continue  # a command is writing it; what a killed one left is removed at the next start
                result = self._read(directory, name)
                if isinstance(result, Rejection):
                    rejections.append(result)
                else:
                    found += result
        has_more = survey.is_cut and bool(found or rejections)
        return AnnouncementBatch(announcements=found, rejections=rejections, has_more=has_more)

    def _read(self, directory: int, name: str) -> Rejection | list[Announcement]:
        """Read and remove a file; return its announcements, or why it is refused."""
        content = entries.read(directory, name, frozenset({os.geteuid(), ROOT}))
        # Removed before it is announced: a file that cannot be removed would wake all loops at each sweep. If
        # the host is killed in between, its next start reads everything anyway.
        if content is None or not entries.remove(directory, name):
            return self._left(name) if content is not None else []
        if isinstance(content, entries.EntryFault):
            return Rejection(name=name, reason=content.reason)
        if not _NAME.fullmatch(name):
            return Rejection(name=name, reason="no command names a file so")
        try:
            read = _ENTRIES.validate_json(content.body)
        except ValidationError as error:
            return Rejection(name=name, reason=str(error.errors(include_input=False)[0]["msg"]))
        return [Announcement(**one.model_dump()) for one in read]

    def _left(self, name: str) -> Rejection | list[Announcement]:
        """Return the rejection of a file that cannot be removed, once for each name."""
        if name in self._stuck:
            return []
        self._stuck.add(name)
        return Rejection(name=name, reason="it cannot be removed")


def _made_empty(directory: Path) -> Path:
    """Make an empty directory for the host alone; return its path, in which no parent is a link."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    directory.chmod(0o700)
    # The owner may have put `data/` on another disk; only the directory itself may not be a link.
    return directory.parent.resolve() / directory.name
