"""What the host refused from a group, kept for a person to look at: `data/ipc/errors/{folder}/`."""

from __future__ import annotations

import os
from pathlib import Path

from agent_runner.wire import files

MAX_KEPT = 100


class Quarantine:
    """The newest `MAX_KEPT` refusals of one group: a `.reason` each, and beside it what was refused.

    No container reaches the directory and the host chooses the names. What a container wrote lies here
    as a copy, so that none of its links, special files or still open files come along.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def keep(self, *, origin: str, name: str, reason: str, body: bytes | None = None) -> None:
        """Record one refusal and drop the oldest beyond `MAX_KEPT`.

        Args:
            origin: the mailbox it lay in, `messages` or `tasks`.
            name: as the container chose it; written escaped.
            reason: why it was refused, one line.
            body: what it held; None keeps the reason only.

        Raises:
            OSError: it cannot be written.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        kept = self._directory / files.unique_name()
        if body is not None:
            kept.write_bytes(body)
        files.write_whole(kept.with_suffix(".reason"), f"{origin}/{escaped(name)}: {reason}\n")
        self._prune()

    def _prune(self) -> None:
        names = sorted(os.listdir(self._directory))  # noqa: PTH208 - names are all that is needed
        oldest_kept = sorted({Path(name).stem for name in names})[-MAX_KEPT:][0]
        for name in names:
            if Path(name).stem < oldest_kept:
                (self._directory / name).unlink(missing_ok=True)


def escaped(name: str) -> str:
    """`name` as harmless ASCII on one line."""
    return ascii(name)[1:-1]
