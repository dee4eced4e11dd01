"""Reads and formats times: epoch milliseconds in UTC everywhere, put into words only for people."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol
from zoneinfo import ZoneInfo


class Clock(Protocol):
    """Tells the time; tests pass their own."""

    def now_ms(self) -> int:
        """Return wall time in epoch milliseconds: what is stored and shown."""
        ...

    def steady_ms(self) -> int:
        """Return milliseconds that never jump, and pause while the machine sleeps: for durations."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now_ms(self) -> int:
        """Return wall time in epoch milliseconds."""
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        """Return milliseconds that never jump, counted from an arbitrary moment: for durations."""
        return time.monotonic_ns() // 1_000_000


def local_iso(at_ms: int, zone: ZoneInfo) -> str:
    """Return a time in epoch ms as ISO text to the second, in `zone`: `2026-11-22T09:30:00+09:00`."""
    return datetime.fromtimestamp(at_ms / 1000, zone).isoformat(timespec="seconds")


def local_minute(at_ms: int, zone: ZoneInfo) -> str:
    """Return a time in epoch ms to the minute, in `zone`, as people read it: `Sun 2026-11-22 09:30`."""
    return datetime.fromtimestamp(at_ms / 1000, zone).strftime("%a %Y-%m-%d %H:%M")


def local_midnight(at_ms: int, zone: ZoneInfo) -> datetime:
    """Return the start of the day in `zone` that contains a time in epoch ms."""
    at = datetime.fromtimestamp(at_ms / 1000, zone)
    # In some zones midnight comes twice when clocks are set back: `fold=0` is the first.
    return at.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)


def zone_note(name: str, reader: ZoneInfo | None) -> str:
    """Return ` (Asia/Seoul)`, to be written after a time that is shown in the zone `name`.

    `reader` is the zone by whose clock the reader is shown other times; None if it is not known. If it is the
    zone `name`, the note would say nothing new: an empty text is returned.
    """
    return "" if reader is not None and reader.key == name else f" ({name})"


def format_span(ms: int) -> str:
    """Return a duration in words, rounded to seconds: `45 min`, `1 h 30 min`, `20 s`.

    A negative one is `0 s`.
    """
    total = max(0, round(ms / 1000))
    hours, minutes, seconds = total // 3600, total % 3600 // 60, total % 60
    parts = [f"{count} {unit}" for count, unit in ((hours, "h"), (minutes, "min"), (seconds, "s")) if count]
    return " ".join(parts) or "0 s"


def local_second(at_ms: int, zone: ZoneInfo) -> str:
    """Return a time in epoch ms to the second, in `zone` and without its year: `11-22 09:30:01`."""
    return datetime.fromtimestamp(at_ms / 1000, zone).strftime("%m-%d %H:%M:%S")


def utc_stamp(at_ms: int) -> str:
    """Return a time in epoch ms as ISO text in UTC with milliseconds: `2026-11-22T09:00:00.000Z`."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"
