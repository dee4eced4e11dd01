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
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


def local_iso(at_ms: int, zone: ZoneInfo) -> str:
    """Return a time to the second with the zone's offset, `2026-11-22T09:30:00+09:00`."""
    return datetime.fromtimestamp(at_ms / 1000, zone).isoformat(timespec="seconds")


def local_minute(at_ms: int, zone: ZoneInfo) -> str:
    """Return a time to the minute with its day of the week, `Sun 2026-11-22 09:30`, as people read it."""
    return datetime.fromtimestamp(at_ms / 1000, zone).strftime("%a %Y-%m-%d %H:%M")


def format_span(ms: int) -> str:
    """Return a span for people and agents: `45 min`, `1 h 30 min`, `20 s`."""
    seconds = max(0, round(ms / 1000))
    hours, minutes, rest = seconds // 3600, seconds % 3600 // 60, seconds % 60
    parts = [f"{count} {unit}" for count, unit in ((hours, "h"), (minutes, "min"), (rest, "s")) if count]
    return " ".join(parts) or "0 s"


def local_second(at_ms: int, zone: ZoneInfo) -> str:
    """Return a time of this year to the second, `11-22 09:30:01`, as lists show it."""
    return datetime.fromtimestamp(at_ms / 1000, zone).strftime("%m-%d %H:%M:%S")


def utc_stamp(at_ms: int) -> str:
    """Return a time in UTC with milliseconds, `2026-11-22T09:00:00.000Z`, as at the start of log lines."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"
