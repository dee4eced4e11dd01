"""How long an agent wants to sleep, as it writes it. Pure; what is not clear is refused, never guessed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

NOW = "now"
_UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000}
_PART = re.compile(
    r"(?P<number>\d{1,9}(?:\.\d{1,6})?|\.\d{1,6})\s*"
    r"(?P<unit>d(?:ays?)?|h(?:(?:ou)?rs?)?|m(?:in(?:ute)?s?)?|s(?:ec(?:ond)?s?)?)(?![a-z])\s*",
    re.ASCII,
)
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedInterval:
    """A wish before its bounds. `is_soonest`: as soon as may be."""

    ms: int
    is_soonest: bool = False


def read_interval(text: str) -> RequestedInterval | None:
    """Read `30m`, `1h30m`, `1.5 hours`, `now`; None when it is no clear span above zero."""
    rest = text.strip().lower()
    if rest == NOW:
        return RequestedInterval(ms=0, is_soonest=True)
    total, last_unit = 0.0, float("inf")
    at = 0
    while at < len(rest):
        part = _PART.match(rest, at)
        if part is None or (unit := _UNITS[part["unit"][0]]) >= last_unit:
            return None
        total, last_unit, at = total + float(part["number"]) * unit, unit, part.end()
    return RequestedInterval(ms=round(total)) if total > 0 else None


def read_clock(text: str, *, now_ms: int, zone: ZoneInfo) -> RequestedInterval | None:
    """Read `09:00` as the next time the clocks of `zone` show it; None when it is none."""
    found = _CLOCK.fullmatch(text.strip())
    if found is None:
        return None
    now = datetime.fromtimestamp(now_ms / 1000, zone)
    at = now.replace(hour=int(found[1]), minute=int(found[2]), second=0, microsecond=0, fold=0)
    if at <= now:
        at = (now + timedelta(days=1)).replace(
            hour=at.hour, minute=at.minute, second=0, microsecond=0, fold=0
        )
    ahead_ms = round(at.astimezone(UTC).timestamp() * 1000) - now_ms
    return RequestedInterval(ms=ahead_ms) if ahead_ms > 0 else None


def spoken(ms: int) -> str:
    """`45 min`, `1 h 30 min`, `20 s`: for people and agents."""
    seconds = max(0, round(ms / 1000))
    hours, minutes, rest = seconds // 3600, seconds % 3600 // 60, seconds % 60
    parts = [f"{count} {unit}" for count, unit in ((hours, "h"), (minutes, "min"), (rest, "s")) if count]
    return " ".join(parts) or "0 s"
