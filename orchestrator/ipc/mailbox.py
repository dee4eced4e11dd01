"""What a container asks: the files of its `messages/` and `tasks/`, as letters.

A pass is bounded in entries, letters and bytes: a flooded mailbox costs its own group time, no other.
"""

from __future__ import annotations

import json
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from orchestrator.base.clock import Clock, SystemClock
from orchestrator.ipc import entries
from orchestrator.ipc.rejected_files import RejectedFiles, Rejection

MAX_ENTRIES = 10_000
"""How many entries one pass looks at. Where there are more, the oldest of these come first."""
MAX_PASS_BYTES = 8 * 1024 * 1024
"""A pass that holds as much takes no further letter."""
MAX_REFUSALS = 1_000
"""How much a pass removes unread."""
SETTLE_MS = 1_000
"""How long a file whose name no writer of ours makes must be at rest: it may be written in place."""
UNFINISHED_MS = 3_600_000
"""How long a partial file may stay unfinished."""

_RENAMED_INTO_PLACE = re.compile(r"[0-9]{13}-[0-9a-z]{4,16}\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFile:
    """One file, whole, as it was read. Nothing in it is checked yet."""

    name: str
    body: bytes
    version: entries.Version


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBatch:
    """What one pass found."""

    letters: tuple[RequestFile, ...] = ()
    """Oldest name first. Each is to be ended by `done` or `quarantine` before the next pass."""
    refusals: tuple[Rejection, ...] = ()
    """What was removed unread: for the log. The quarantine has it already."""
    has_more: bool = False
    """Another pass would find something at once: let the other groups have theirs first."""


class Mailbox:
    """One directory that a container may write: `data/ipc/{folder}/messages` or `…/tasks`.

    All calls block: make them in a worker thread, one at a time.
    """

    def __init__(
        self,
        directory: Path,
        *,
        errors: Path,
        folder: str,
        owner_uids: frozenset[int],
        clock: Clock | None = None,
    ) -> None:
        """Read `directory`, take files of `owner_uids` only, keep what is refused in `errors/folder`."""
        self._directory = directory
        self._quarantine = RejectedFiles(errors / folder)
        self._owner_uids = owner_uids
        self._clock = clock or SystemClock()

    @property
    def name(self) -> str:
        return self._directory.name

    def take(self, limit: int = 200) -> RequestBatch:
        """Read at most `limit` letters, and remove what can be none. A missing directory is empty.

        Left alone are directories, whatever they hold, and for a time what may still be written: partial
        files for `UNFINISHED_MS`, hand-written ones for `SETTLE_MS`. Above `MAX_ENTRIES` there is no such
        time. A file whose time is ahead of the host's clock tells nothing by that: a partial one is left, a
        hand-written one is taken once it holds a whole JSON document.

        Raises:
            MailboxError: the directory is a link, no directory, or closed to the host.
            OSError: the host itself cannot read or write (too many open files, a full or broken disk).
        """
        with entries.opened(self._directory) as directory:
            batch = RequestBatch() if directory is None else self._pass(directory, limit)
        if batch.refusals:
            self._quarantine.keep(self._directory.name, batch.refusals)
        return batch

    def done(self, letter: RequestFile) -> None:
        """Remove a letter that was handled, unless its name holds something newer by now.

        Raises:
            MailboxError: the directory cannot be used.
            OSError: it cannot be removed and will be taken again.
        """
        with entries.opened(self._directory) as directory:
            if directory is None:
                return
            info = entries.look(directory, letter.name)
            if info is None or entries.version(info) != letter.version:
                return
            if not entries.remove(directory, letter.name) and entries.look(directory, letter.name):
                raise PermissionError(f"{self._directory.name}/{letter.name} cannot be removed")

    def quarantine(self, letter: RequestFile, reason: str) -> None:
        """Keep a letter that means nothing, with the reason, and remove it. Raises like `done`."""
        refusal = Rejection(name=letter.name, reason=reason)
        self._quarantine.keep(self._directory.name, [refusal], body=letter.body)
        self.done(letter)

    def _pass(self, directory: int, limit: int) -> RequestBatch:
        survey = entries.survey(directory, MAX_ENTRIES)
        letters: list[RequestFile] = []
        refusals: list[Rejection] = []
        held_bytes = 0
        has_more = False
        for name in survey.names:
            if len(letters) >= limit or len(refusals) >= MAX_REFUSALS or held_bytes >= MAX_PASS_BYTES:
                has_more = True
                break
            found = self._find(directory, name, has_grace=not survey.is_cut)
            if isinstance(found, RequestFile):
                letters.append(found)
                held_bytes += len(found.body)
            elif found is not None:
                refusals.append(found)
        # When nothing came of those looked at, another pass at once would see the same ones again.
        has_more |= survey.is_cut and bool(letters or refusals)
        return RequestBatch(letters=tuple(letters), refusals=tuple(refusals), has_more=has_more)

    def _find(self, directory: int, name: str, *, has_grace: bool) -> RequestFile | Rejection | None:
        """Read or remove one entry; None when it is gone or left."""
        info = entries.look(directory, name)
        if info is None:
            return None
        rest_ms = self._clock.now_ms() - info.st_ctime_ns // 1_000_000
        if stat.S_ISREG(info.st_mode) and has_grace and may_be_unfinished(name, rest_ms):
            return None
        reason = entries.fault_of(info, self._owner_uids) or fault_of_name(name)
        if reason:
            return _removed(directory, name, reason)
        match entries.read(directory, name, self._owner_uids):
            case entries.EntryContent(body=body) if (
                has_grace and rest_ms < 0 and not _is_finished(name, body)
            ):
                return None
            case entries.EntryContent(body=body, version=version):
                return RequestFile(name=name, body=body, version=version)
            case entries.EntryFault(reason=reason):
                return _removed(directory, name, reason)
            case None:
                return None


def _removed(directory: int, name: str, reason: str) -> Rejection | None:
    """Remove what is no letter; None when it is gone, a directory or not ours to remove."""
    return Rejection(name=name, reason=reason) if entries.remove(directory, name) else None


def fault_of_name(name: str) -> str | None:
    """Tell why no letter can have this name; None when one can."""
    if not name.isprintable():
        return "its name has unprintable characters"
    if is_partial(name):
        return "it was never renamed to a finished .json file"
    return None


def is_partial(name: str) -> bool:
    return name.startswith(".") or not name.endswith(".json")


def may_be_unfinished(name: str, rest_ms: int) -> bool:
    """Tell whether a regular file at rest for `rest_ms` may still be written by someone.

    Below zero its time is ahead of the host's clock: it may be written just now, by a clock that is ahead, or
    be old, if the host's was set back. A partial name says that it is not finished; of a hand-written file
    its content has to tell.
    """
    if not name.isprintable():
        return False
    if is_partial(name):
        return rest_ms < UNFINISHED_MS
    return 0 <= rest_ms < SETTLE_MS and not _RENAMED_INTO_PLACE.fullmatch(name)


def _is_finished(name: str, body: bytes) -> bool:
    """Whether a `.json` file is complete: it was renamed into place, or what it holds is."""
    if _RENAMED_INTO_PLACE.fullmatch(name):
        return True
    try:
        return isinstance(json.loads(body), dict)
    except (ValueError, RecursionError):
        return False
