"""Read the request files that a container writes into its `messages/` and `tasks/`.

One call reads a limited number of entries, requests and bytes: a flooded mailbox delays only its own group.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from orchestrator.base.clock import Clock, SystemClock
from orchestrator.ipc import entries
from orchestrator.ipc.rejected_files import RejectedFiles, Rejection

MAX_ENTRIES = 10_000
"""Entries that one call looks at. Where there are more, the oldest of these come first."""
MAX_PASS_BYTES = 8 * 1024 * 1024
"""Bytes after which a call reads no further request."""
MAX_REJECTIONS = 1_000
"""Entries that one call removes unread."""
SETTLE_MS = 1_000
"""Milliseconds without a change before a hand-written file is read: it may be written in place."""
UNFINISHED_MS = 3_600_000
"""Milliseconds that a partial file may stay unfinished."""

_UNIQUE_NAME = re.compile(r"[0-9]{13}-[0-9a-z]{4,16}\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFile:
    """One request file, as it was read. Nothing in it is checked yet."""

    name: str
    body: bytes
    version: entries.Version
    written_ms: int
    """The time when it was changed last, in epoch milliseconds, by the host's file system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBatch:
    """The requests that one call of `Mailbox.take` found."""

    requests: tuple[RequestFile, ...] = ()
    """Oldest name first. The next call reads each again, unless it was removed or is named in `without`."""
    rejections: tuple[Rejection, ...] = ()
    """Entries that were removed unread, for the log. They are recorded as rejected files already."""
    has_more: bool = False
    """Whether another call would find something at once; other groups have their turn first."""


class Mailbox:
    """One directory that a container may write: `data/ipc/{folder}/messages` or `…/tasks`.

    All calls block: they are made in a worker thread, one at a time.
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
        """`directory` is the mailbox. Only files of the users `owner_uids` are accepted.

        Records of rejected files are stored in `errors/folder`; `folder` is the group's.
        """
        self._directory = directory
        self._rejected = RejectedFiles(errors / folder)
        self._owner_uids = owner_uids
        self._clock = clock or SystemClock()

    @property
    def name(self) -> str:
        """The name of the mailbox: `messages` or `tasks`."""
        return self._directory.name

    def take(self, limit: int = 200, *, without: Collection[str] = ()) -> RequestBatch:
        """Read at most `limit` requests, and remove entries that cannot be one. A missing directory is empty.

        Requests stay in the directory until `remove`. Directories, and files with a name in `without`, are
        ignored. The tools write a request as a partial file, which is renamed when it is whole; an agent may
        also write one by hand, under its final name. Files that may still be written are left alone for a
        time: partial files for `UNFINISHED_MS`, hand-written ones for `SETTLE_MS`. With more than
        `MAX_ENTRIES` entries there is no such time. If a file's time is ahead of the host's clock, a partial
        file is ignored, and a hand-written one is read once it contains a whole JSON document.

        Raises:
            MailboxError: the directory is a link, no directory, or closed to the host.
            OSError: the host itself cannot read or write (too many open files, a full or broken disk).
        """
        with entries.opened(self._directory) as directory:
            batch = RequestBatch() if directory is None else self._read_batch(directory, limit, without)
        # One record for all of them, so that a flood of bad files makes no flood of records.
        if batch.rejections:
            self._rejected.record(self._directory.name, batch.rejections)
        return batch

    def remove(self, request: RequestFile) -> None:
        """Remove a request that was handled, unless another file has its name by now.

        Raises:
            MailboxError: the directory cannot be used.
            OSError: it cannot be removed and will be taken again.
        """
        with entries.opened(self._directory) as directory:
            if directory is None:
                return
            # The version shows whether it is still the file that was read: a new file of its name is another
            # request.
            info = entries.status_of(directory, request.name)
            if info is None or entries.version(info) != request.version:
                return
            if not entries.remove(directory, request.name) and entries.status_of(directory, request.name):
                raise PermissionError(f"{self._directory.name}/{request.name} cannot be removed")

    def reject(self, request: RequestFile, reason: str) -> None:
        """Record a request that is not carried out, with the reason. Its file stays until `remove`.

        Raises:
            OSError: the record cannot be written.
        """
        rejection = Rejection(name=request.name, reason=reason)
        self._rejected.record(self._directory.name, [rejection], body=request.body)

    def _read_batch(self, directory_fd: int, limit: int, without: Collection[str]) -> RequestBatch:
        """Read entries of an open directory until a limit is reached; remove those that are no requests.

        At most `limit` requests are read; the removed entries and the bytes are limited, too. Entries with a
        name in `without` are ignored. Files that may still be being written are left for later.
        """
        survey = entries.survey(directory_fd, MAX_ENTRIES)
        requests: list[RequestFile] = []
        rejections: list[Rejection] = []
        read_bytes = 0
        has_more = False
        for name in survey.names:
            if name in without:
                continue
            # Limited by bytes, too: 200 requests of 1 MiB each would be in memory at once.
            if len(requests) >= limit or len(rejections) >= MAX_REJECTIONS or read_bytes >= MAX_PASS_BYTES:
                has_more = True
                break
            # In a full directory (`is_cut`) no file is left for later, or unfinished ones could hide all
            # others without end.
            entry = self._read_entry(directory_fd, name, has_grace=not survey.is_cut)
            if isinstance(entry, RequestFile):
                requests.append(entry)
                read_bytes += len(entry.body)
            elif entry is not None:
                rejections.append(entry)
        # If nothing was read or removed, another call at once would look at the same entries again.
        has_more |= survey.is_cut and bool(requests or rejections)
        return RequestBatch(requests=tuple(requests), rejections=tuple(rejections), has_more=has_more)

    def _read_entry(self, directory_fd: int, name: str, *, has_grace: bool) -> RequestFile | Rejection | None:
        """Read one entry of an open directory as a request, or remove it if it cannot be one.

        Return None when it is gone, or is left alone for now. With `has_grace`, files that may still be
        written are left alone.
        """
        info = entries.status_of(directory_fd, name)
        if info is None:
            return None
        written_ms = entries.changed_ms(info)
        unchanged_ms = self._clock.now_ms() - written_ms
        if stat.S_ISREG(info.st_mode) and has_grace and may_be_unfinished(name, unchanged_ms):
            return None
        reason = entries.fault_of(info, self._owner_uids) or fault_of_name(name)
        if reason:
            return _remove_rejected(directory_fd, name, reason)
        match entries.read(directory_fd, name, self._owner_uids):
            # The file's time is ahead of the host's clock, so only its content shows whether it is complete.
            case entries.EntryContent(body=body) if (
                has_grace and unchanged_ms < 0 and not _is_finished(name, body)
            ):
                return None
            case entries.EntryContent(body=body, version=version):
                return RequestFile(name=name, body=body, version=version, written_ms=written_ms)
            case entries.EntryFault(reason=reason):
                return _remove_rejected(directory_fd, name, reason)
            case None:
                return None


def _remove_rejected(directory_fd: int, name: str, reason: str) -> Rejection | None:
    """Remove an entry that is no request, and return its name with the reason.

    Return None if it is gone, is a directory, or cannot be removed.
    """
    return Rejection(name=name, reason=reason) if entries.remove(directory_fd, name) else None


def fault_of_name(name: str) -> str | None:
    """Return why no request file can have this name; None when one can."""
    if not name.isprintable():
        return "its name has unprintable characters"
    if is_partial(name):
        return "it was never renamed to a finished .json file"
    return None


def is_partial(name: str) -> bool:
    """Return whether a name marks an unfinished file: finished ones are renamed to `*.json`."""
    return name.startswith(".") or not name.endswith(".json")


def may_be_unfinished(name: str, unchanged_ms: int) -> bool:
    """Return whether the writing of a regular file may still go on, `unchanged_ms` after its last change.

    It may go on for `UNFINISHED_MS` if the name marks an unfinished file. A file with a unique name was
    renamed into place and is finished; any other was written directly, which may go on for `SETTLE_MS`. If
    `unchanged_ms` is below zero, the file's time is ahead of the host's clock and says nothing: return True
    if the name marks an unfinished file, and False for any other, whose content has to be looked at. Always
    False for an unprintable name.
    """
    if not name.isprintable():  # no request file has such a name, so there is nothing to wait for
        return False
    if is_partial(name):
        return unchanged_ms < UNFINISHED_MS
    return 0 <= unchanged_ms < SETTLE_MS and not is_unique_name(name)


def is_unique_name(name: str) -> bool:
    """Return whether a name has the form that `unique_name` makes: no later file gets the same name."""
    return _UNIQUE_NAME.fullmatch(name) is not None


def _is_finished(name: str, body: bytes) -> bool:
    """Return whether a `.json` file is complete: it was renamed into place, or contains a whole document."""
    if is_unique_name(name):
        return True
    try:
        return isinstance(json.loads(body), dict)
    except (ValueError, RecursionError):
        return False
