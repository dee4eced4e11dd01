"""Read a point in time as an agent writes it. Pure: no words, no guessing."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from orchestrator.errors import BadTime

_DURATION = re.compile(r"^(?:(\d{1,4})d)?(?:(\d{1,4})h)?(?:(\d{1,5})m(?:in)?)?(?:(\d{1,6})s)?$")
FURTHEST = timedelta(days=3660)
FURTHEST_YEARS = 11


def point_ms(text: str, *, now_ms: int, zone: ZoneInfo) -> int:
    """Turn `2026-11-22T18:30`, with or without offset, or a duration like `1h30m` into epoch ms.

    A time without offset is read in `zone`; of the two it may mean when clocks go back, the first to come.

    Raises:
        BadTime: it is neither, does not exist on that day, is past, or lies more than ten years ahead.
    """
    # In UTC: within one zone, Python compares what the clocks show, also where they go back.
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    due = _after(text.strip(), now) or _at(text.strip(), now, zone)
    if due <= now:
        raise BadTime(f"{_told(due, zone)} is past; it is {_told(now, zone)} now.")
    if due - now > FURTHEST:
        raise BadTime(f"{text} is more than ten years ahead.")
    return round(due.timestamp() * 1000)


def duration(text: str) -> timedelta | None:
    """Read `1h30m`, `90s`, `2d`; None when it is no duration."""
    found = _DURATION.match(text.lower().replace(" ", ""))
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)


def _after(text: str, now: datetime) -> datetime | None:
    ahead = duration(text)
    return None if ahead is None else now + ahead


def _at(text: str, now: datetime, zone: ZoneInfo) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadTime(
            f"'{text}' is no time I can use: give an ISO time such as 2026-11-22T18:30"
            " or a duration such as 1h30m."
        ) from error
    if abs(at.year - now.year) > FURTHEST_YEARS:
        raise BadTime(f"{text} is more than ten years away.")
    if at.tzinfo is not None:
        return at.astimezone(UTC)
    first, second = (at.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if first.astimezone(zone).replace(tzinfo=None) != at:
        raise BadTime(f"{text} does not exist in {zone.key}: the clocks skip it that day.")
    return first if first > now else second


def _told(at: datetime, zone: ZoneInfo) -> str:
    return at.astimezone(zone).isoformat(timespec="minutes")
