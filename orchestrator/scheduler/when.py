"""Read a point in time as an agent writes it. Pure: no words, no guessing."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from orchestrator.errors import BadTime

_DURATION = re.compile(r"^(?:(\d{1,4})d)?(?:(\d{1,4})h)?(?:(\d{1,5})m(?:in)?)?(?:(\d{1,6})s)?$")
FURTHEST = timedelta(days=3660)


def point_ms(text: str, *, now_ms: int, zone: ZoneInfo) -> int:
    """Turn `2026-11-22T18:30`, with or without offset, or a duration like `1h30m` into epoch ms.

    A time without offset is read in `zone`; of the two it may mean when clocks go back, the first.

    Raises:
        BadTime: it is neither, does not exist on that day, is past, or lies more than ten years ahead.
    """
    now = datetime.fromtimestamp(now_ms / 1000, zone)
    due = _after(text.strip(), now) or _at(text.strip(), zone)
    if due <= now:
        raise BadTime(
            f"{due.isoformat(timespec='minutes')} is past; it is {now.isoformat(timespec='minutes')} now."
        )
    if due - now > FURTHEST:
        raise BadTime(f"{text} is more than ten years ahead.")
    return int(due.timestamp() * 1000)


def _after(text: str, now: datetime) -> datetime | None:
    found = _DURATION.match(text.lower().replace(" ", ""))
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    # Elapsed time, so a change of the clocks in between does not shift it.
    ahead = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    return datetime.fromtimestamp(now.timestamp() + ahead.total_seconds(), now.tzinfo)


def _at(text: str, zone: ZoneInfo) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadTime(
            f"'{text}' is no time I can use: give an ISO time such as 2026-11-22T18:30"
            " or a duration such as 1h30m."
        ) from error
    if at.tzinfo is not None:
        return at
    local = at.replace(tzinfo=zone)
    if datetime.fromtimestamp(local.timestamp(), zone).replace(tzinfo=None) != at:
        raise BadTime(f"{text} does not exist in {zone.key}: the clocks skip it that day.")
    return local
