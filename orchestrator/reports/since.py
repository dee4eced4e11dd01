"""Reads how far back a list is to reach, for the options `--since` and the parameters `since`."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from orchestrator.domain.errors import BadTime

_AGO = re.compile(r"(\d{1,6})([mhd])", re.ASCII)
_AGO_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def since_ms(text: str | None, *, now_ms: int, zone: ZoneInfo) -> int:
    """Return the time from which a list is to begin, in epoch ms; 0 if `text` is None, for the whole list.

    `text` is how long ago that is, such as `30m`, `2h` or `7d`, or an ISO time; without an offset it is one
    of `zone`. Raises `BadTime` if it is neither.
    """
    if text is None:
        return 0
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return now_ms - round(timedelta(**{_AGO_UNITS[ago[2]]: int(ago[1])}).total_seconds() * 1000)
    try:
        moment = datetime.fromisoformat(text)
        return round((moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise BadTime(f"'{text[:40]}' is no time: write 2h, 7d or 2026-11-22T09:00.") from error
