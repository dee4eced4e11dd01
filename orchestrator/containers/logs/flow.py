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

    `expect_repeat` announces that the engine repeats the stream from the start. Bytes that were processed
    before are then skipped.
    """

    def __init__(self, *, now_ms: int, handled_bytes: int = 0) -> None:
        """`handled_bytes` is the number of bytes at the stream's start that were logged or dropped before.

        An earlier process of the host may have done that. `now_ms` is the time by the steady clock.
        """
        self._position = handled_bytes
        self._handled_bytes = handled_bytes
        self._allowance_bytes = float(BURST_BYTES)
        self._refilled_ms = now_ms
        self._remaining_bytes = TOTAL_BYTES
        self._dropped = 0
        """Bytes that were not logged since the last gap was reported."""
        self._tail = Tail(GAP_TAIL_BYTES)

    @property
    def has_gap(self) -> bool:
        """Whether bytes have been left out since the last logged piece."""
        return self._dropped > 0

    @property
    def is_full(self) -> bool:
        """Whether the log is full. Only the last bytes of further output are logged, at the run's end."""
        return self._remaining_bytes <= 0

    def expect_repeat(self) -> None:
        """Expect the stream from its start again. Bytes that were processed before will be skipped."""
        self._position = 0

    def take(self, data: bytes, *, now_ms: int, room: int) -> list[LogGap | LoggedPiece]:
        """Take the next bytes of the stream, and return the parts to log: a gap that ends here, then a piece.

        Bytes beyond the allowance are dropped and counted as a gap. After a flood nothing is logged until
        `RESUME_BYTES` of allowance have accumulated. `room` is the number of bytes that the writer can still
        take.
        """
        unprocessed = self._unprocessed(data)
        if not unprocessed:
            return []
        self._refill(now_ms)
        if self.has_gap and self._allowance_bytes < RESUME_BYTES:
            self._drop(unprocessed)
            return []
        size = self._allowed_size(unprocessed, room)
        if not size:
            self._drop(unprocessed)
            return []
        pieces: list[LogGap | LoggedPiece] = [*self.end_gap(), self._log(unprocessed, size)]
        if size < len(unprocessed):
            self._drop(unprocessed[size:])
        return pieces

    def end_gap(self) -> list[LogGap]:
        """End the present gap, the bytes that were not logged since the last piece, and return it in a list.

        The list is empty if there is no gap. The last text of the gap is logged, so it is subtracted from the
        room in the log.
        """
        if not self.has_gap:
            return []
        gap = LogGap(dropped=self._dropped, tail=self._tail.text(), end=self._handled_bytes)
        self._remaining_bytes -= len(gap.tail)
        self._dropped, self._tail = 0, Tail(GAP_TAIL_BYTES)
        return [gap]

    def _unprocessed(self, data: bytes) -> bytes:
        """Advance the position in the stream by `data`; return those of its bytes that are new.

        After `expect_repeat` the stream repeats bytes that were processed before.
        """
        self._position += len(data)
        new_bytes = self._position - self._handled_bytes
        return data[-new_bytes:] if new_bytes > 0 else b""

    def _refill(self, now_ms: int) -> None:
        """Let the allowance grow with the time since the last call, up to `BURST_BYTES`."""
        added_bytes = (now_ms - self._refilled_ms) / 1000 * BYTES_A_SECOND
        self._allowance_bytes = min(BURST_BYTES, self._allowance_bytes + added_bytes)
        self._refilled_ms = now_ms

    def _allowed_size(self, data: bytes, room: int) -> int:
        """Return how many bytes at the start of `data` may be logged now.

        `room` is the number of bytes that the writer can still take. `data` costs its length and `LINE_COST`
        for each line. If only a part of the cost is allowed, the same part of the bytes may be logged.
        """
        allowance = min(int(self._allowance_bytes), self._remaining_bytes, room)
        cost = _cost(data)
        return len(data) if cost <= allowance else max(0, allowance) * len(data) // cost

    def _log(self, unprocessed: bytes, size: int) -> LoggedPiece:
        """Return the first `size` bytes as a piece to log, and reduce the allowance by what they cost."""
        data = unprocessed[:size]
        cost = _cost(data)
        self._allowance_bytes -= cost
        self._remaining_bytes -= cost
        self._handled_bytes += size
        return LoggedPiece(data, self._handled_bytes)

    def _drop(self, data: bytes) -> None:
        """Add bytes, which are not logged, to the present gap: count them, and remember the last of them."""
        self._handled_bytes += len(data)
        self._dropped += len(data)
        self._tail.add(data)


def _cost(data: bytes) -> int:
    """Return the bytes that `data` takes in the log, with `LINE_COST` for each line."""
    return len(data) + LINE_COST * data.count(b"\n")
