"""Store rejected entries of a group's mailbox, for people to look at: `data/ipc/errors/{folder}/`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_runner.wire import files

MAX_RECORDS = 100
"""The newest records of a group that are stored."""
MAX_LINES = 100
"""Lines of a record, each for one rejected file."""
MAX_NAME_CHARS = 200
"""Most characters of a rejected file's name in its record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """An entry of a mailbox that is no request, or a request that was not understood."""

    name: str
    """The file's name as the container chose it: anything but `/`."""
    reason: str


class RejectedFiles:
    """The records of one group: a `.reason` each, with a copy of the rejected request beside it.

    No container reaches the directory and the host chooses the names in it. A container's files are copied,
    never moved here, so none of its links, special files or still open files come along.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def record(self, origin: str, rejections: Sequence[Rejection], *, body: bytes | None = None) -> None:
        """Write a record of the files that one read of a mailbox has rejected, and remove the oldest records.

        Args:
            origin: the name of the mailbox, `messages` or `tasks`.
            rejections: at least one. Each has a line in the record; those beyond `MAX_LINES` are only
            counted.
            body: the content of a single rejected request, which is stored beside the record; None for no
            content.

        Raises:
            OSError: it cannot be written.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        # The host chooses the name, because the container's may be anything.
        stored = self._directory / files.unique_name()
        if body is not None:
            stored.write_bytes(body)
        lines = [
            f"{origin}/{_escaped(rejection.name)}: {rejection.reason}\n"
            for rejection in rejections[:MAX_LINES]
        ]
        if len(rejections) > MAX_LINES:
            lines.append(f"and {len(rejections) - MAX_LINES} more\n")
        files.write_whole(stored.with_suffix(".reason"), "".join(lines))
        self._prune()

    def _prune(self) -> None:
        """Remove all but the newest `MAX_RECORDS` records. Blocks."""
        names = os.listdir(self._directory)  # noqa: PTH208 - names are all that is needed
        # Names begin with the time, so the newest sort last. A record and the stored request have the same
        # stem.
        oldest_retained = sorted({Path(name).stem for name in names})[-MAX_RECORDS:][0]
        for name in names:
            if Path(name).stem < oldest_retained:
                (self._directory / name).unlink(missing_ok=True)


def _escaped(name: str) -> str:
    """Return a file's name as harmless ASCII on one line, cut to `MAX_NAME_CHARS` before it is escaped."""
    # A name may contain control characters that would act on the terminal of whoever reads the record.
    return ascii(name[:MAX_NAME_CHARS])[1:-1]  # without the quotes of `ascii`
