"""Limit how much of a container's stderr is logged: a burst, then a rate, up to a total size. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.containers.streams import Tail

BURST_BYTES = 256 * 1024
"""Bytes that may be logged at once."""
BYTES_A_SECOND = 32 * 1024
"""Bytes by which the allowance grows each second."""
RESUME_BYTES = 64 * 1024
"""Bytes of allowance that must accumulate before a flood is logged again, so that gaps are few and large."""
TOTAL_BYTES = 4 * 1024 * 1024
"""Bytes of stderr that one log takes in total."""
GAP_TAIL_BYTES = 4096
"""Bytes at the end of a gap that are logged nevertheless."""
LINE_COST = 48
"""Bytes that each line counts in addition to its own: its time and position are written before it."""


@dataclass(frozen=True, slots=True)
class LoggedPiece:
    """A piece of the stream to log. `end` is the position in the stream at which it ends, in bytes."""

    data: bytes
    end: int


@dataclass(frozen=True, slots=True)
class LogGap:
    """A part of the stream that was not logged: its size in bytes, its last text, and where it ends."""

    dropped: int
    tail: str
    end: int


class LogFlow:
    """One stderr stream and the allowance to log it.

    `rewind` announces that the engine repeats the stream from the start. Bytes that were processed before are
    then skipped.
    """

    def __init__(self, *, now_ms: int, handled_bytes: int = 0) -> None:
        """`handled_bytes` is the number of bytes at the start that an earlier host has processed."""
        self._place = handled_bytes
        self._handled_bytes = handled_bytes
        self._tokens = float(BURST_BYTES)
        self._refilled_ms = now_ms
        self._left = TOTAL_BYTES
        self._dropped = 0
        self._tail = Tail(GAP_TAIL_BYTES)

    @property
    def has_gap(self) -> bool:
        return self._dropped > 0

    @property
    def is_full(self) -> bool:
        """Whether the log is full. Of further output only the last bytes are logged, at the run's end."""
        return self._left <= 0

    def rewind(self) -> None:
        self._place = 0

    def take(self, data: bytes, *, now_ms: int, room: int) -> list[LogGap | LoggedPiece]:
        """Return the parts of `data` to log; `room` is the number of bytes that the writer can still take."""
        fresh = self._fresh(data)
        if not fresh:
            return []
        self._refill(now_ms)
        if self.has_gap and self._tokens < RESUME_BYTES:
            self._drop(fresh)
            return []
        size = self._fitting(fresh, room)
        if not size:
            self._drop(fresh)
            return []
        pieces: list[LogGap | LoggedPiece] = [*self.end_gap(), self._keep(fresh, size)]
        if size < len(fresh):
            self._drop(fresh[size:])
        return pieces

    def end_gap(self) -> list[LogGap]:
        """End the present gap and return it, if there is one."""
        if not self.has_gap:
            return []
        gap = LogGap(self._dropped, self._tail.text(), self._handled_bytes)
        self._left -= len(gap.tail)
        self._dropped, self._tail = 0, Tail(GAP_TAIL_BYTES)
        return [gap]

    def _fresh(self, data: bytes) -> bytes:
        """Return the bytes of `data` that were not processed before."""
        self._place += len(data)
        new = self._place - self._handled_bytes
        return data[-new:] if new > 0 else b""

    def _refill(self, now_ms: int) -> None:
        more = (now_ms - self._refilled_ms) / 1000 * BYTES_A_SECOND
        self._tokens = min(BURST_BYTES, self._tokens + more)
        self._refilled_ms = now_ms

    def _fitting(self, data: bytes, room: int) -> int:
        may = min(int(self._tokens), self._left, room)
        cost = _cost(data)
        return len(data) if cost <= may else max(0, may) * len(data) // cost

    def _keep(self, fresh: bytes, size: int) -> LoggedPiece:
        data = fresh[:size]
        cost = _cost(data)
        self._tokens -= cost
        self._left -= cost
        self._handled_bytes += size
        return LoggedPiece(data, self._handled_bytes)

    def _drop(self, data: bytes) -> None:
        self._handled_bytes += len(data)
        self._dropped += len(data)
        self._tail.add(data)


def _cost(data: bytes) -> int:
    return len(data) + LINE_COST * data.count(b"\n")
