"""Read words for time zones. Those that may mean several (`IST`, `BST`, `CST`, `US time`) are not read."""

from __future__ import annotations

import re
from datetime import UTC, timedelta, timezone

from agent_runner.wire.times.model import NamedZone, Reason

_ABBREVIATIONS = {
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
"""Maps the abbreviation of a zone to its offset from UTC and a place whose clocks show it in its season."""
_TOWNS = {
    "new york": "America/New_York",
    "eastern": "America/New_York",
    "pacific": "America/Los_Angeles",
    "los angeles": "America/Los_Angeles",
    "london": "Europe/London",
    "uk": "Europe/London",
    "paris": "Europe/Paris",
    "berlin": "Europe/Berlin",
    "german": "Europe/Berlin",
    "tokyo": "Asia/Tokyo",
    "japan": "Asia/Tokyo",
    "seoul": "Asia/Seoul",
    "korean": "Asia/Seoul",
}
_TOWNS_KO = {
    "뉴욕": "America/New_York",
    "영국": "Europe/London",
    "런던": "Europe/London",
    "파리": "Europe/Paris",
    "프랑스": "Europe/Paris",
    "베를린": "Europe/Berlin",
    "독일": "Europe/Berlin",
    "도쿄": "Asia/Tokyo",
    "일본": "Asia/Tokyo",
    "서울": "Asia/Seoul",
    "한국": "Asia/Seoul",
}
"""Korean names of towns and countries with one zone, as in `… 시간`; `_TOWNS` has those in `… time`."""
ZONE_WORD = rf"(?:{'|'.join(_TOWNS)})\s+time|" + "|".join(sorted(_ABBREVIATIONS, key=len, reverse=True))
TOWN_KO = "|".join(_TOWNS_KO)
_TOWN_TIME = re.compile(rf"\b(?:{'|'.join(_TOWNS)})\s+time\b|(?:{TOWN_KO})\s*시간", re.IGNORECASE)


_FIRST_OFFSET, _LAST_OFFSET = timedelta(hours=-12), timedelta(hours=14)
"""The offsets from UTC between which those of all places lie."""


def offset_of(text: str) -> timezone | Reason:
    """Return the offset from UTC that `Z`, `+09:00` or `-0500` names; the caller has checked the form.

    For one that no place has, such as `-20:00` or `+09:75`, return the reason to refuse it.
    """
    if text.upper() == "Z":
        return UTC
    # `+09:00`, `-0500`: the sign, two digits, perhaps a colon, two digits.
    hours, minutes = int(text[1:3]), int(text[-2:])
    offset = timedelta(hours=hours, minutes=minutes) * (-1 if text[0] == "-" else 1)
    if minutes >= 60 or not _FIRST_OFFSET <= offset <= _LAST_OFFSET:
        return Reason.NO_SUCH_TIME
    return timezone(offset)


def named_zone(word: str) -> NamedZone:
    """Return the time zone that words such as `CET`, `New York time` or `뉴욕` name.

    They have to match `ZONE_WORD` or `TOWN_KO`. The result has a `place`, such as `Europe/Berlin`, whose
    clocks show the time; that of an abbreviation such as `CET` also has a fixed offset.
    """
    town = " ".join(word.lower().removesuffix("time").split())
    if town_zone := _TOWNS.get(town) or _TOWNS_KO.get(town):
        return NamedZone(place=town_zone)
    offset, place = _ABBREVIATIONS[word.lower()]
    fixed_offset = offset_of(offset)
    assert isinstance(fixed_offset, timezone)
    return NamedZone(offset=fixed_offset, place=place)


def names_town_time(text: str) -> bool:
    """Return whether a text names the time of a known town or country: `3pm New York time`."""
    return _TOWN_TIME.search(text) is not None
