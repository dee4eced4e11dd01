"""Time-zone words. One that two countries give to two zones (`IST`, `BST`, `CST`) is not read."""

from __future__ import annotations

from datetime import UTC, timedelta, timezone

from agent_runner.wire.times.model import NamedZone

_PLACES = {
    "utc": ("+00:00", "UTC"),
    "gmt": ("+00:00", "UTC"),
    "cet": ("+01:00", "Europe/Berlin"),
    "cest": ("+02:00", "Europe/Berlin"),
    "eet": ("+02:00", "Europe/Helsinki"),
    "eest": ("+03:00", "Europe/Helsinki"),
    "kst": ("+09:00", "Asia/Seoul"),
    "jst": ("+09:00", "Asia/Tokyo"),
    "est": ("-05:00", "America/New_York"),
    "edt": ("-04:00", "America/New_York"),
    "mst": ("-07:00", "America/Denver"),
    "mdt": ("-06:00", "America/Denver"),
    "pst": ("-08:00", "America/Los_Angeles"),
    "pdt": ("-07:00", "America/Los_Angeles"),
}
ZONE_WORD = "|".join(sorted(_PLACES, key=len, reverse=True))


def offset_of(text: str) -> timezone | None:
    """Return the offset that `Z`, `+09:00` or `-0500` names; None where there is no such offset."""
    if text.upper() == "Z":
        return UTC
    minutes = int(text[1:3]) * 60 + int(text[-2:])
    return timezone(timedelta(minutes=-minutes if text[0] == "-" else minutes)) if minutes < 1440 else None


def named_zone(word: str) -> NamedZone:
    """Return the zone of a word that matches `ZONE_WORD`."""
    offset, place = _PLACES[word.lower()]
    found = offset_of(offset)
    assert found is not None
    return NamedZone(offset=found, place=place)
