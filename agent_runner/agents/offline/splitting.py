"""Tell what to be reminded of from when. Pure, and rather refuses than cuts in the wrong place."""

from __future__ import annotations

import re
from dataclasses import replace

from agent_runner.agents.offline import shapes
from agent_runner.agents.offline.dates import Trouble
from agent_runner.agents.offline.intents import Remind, RemindUnclear

_JOINT = re.compile(r"(?:(?:to|that|about|of)(?:\s+|$)|[:：]\s*)", re.IGNORECASE)
_REPEATS = re.compile(
    r"\b(?:every|each)\s+(?:\d+|other|single|day|morning|afternoon|evening|night|week|month|year|hour|minute"
    r"|(?:mon|tues|wednes|thurs|fri|satur|sun)day)|\b(?:daily|weekly|monthly|hourly)$"
    r"|^(?:daily|weekly|monthly|hourly)\b|매(?:일|주|달|월|년|시간)(?![가-힣])|마다(?=\s|$)|격주|평일",
    re.IGNORECASE,
)
# Words of time that were not read as a part of the time: cutting beside them may change what is meant.
_LEFT_OVER = re.compile(
    r"\d{1,2}[/.]\d|\d:\d\d|\d\s*(?:am|pm)\b|\d(?:st|nd|rd|th)\b|\d+\s*(?:min|hour|day|week|month|year)"
    r"|\b(?:next|last|today|tonight|tomorrow|weekend|noon|midnight|morning|afternoon|evening|week|month"
    r"|(?:mon|tues|wednes|thurs|fri|satur|sun)day)\b"
    r"|\d+\s*[시일월주달년]|오늘|내일|모레|글피|다음|이번|지난|요일|주말|오전|오후|새벽|저녁|아침|자정|정오",
    re.IGNORECASE,
)
_DANGLING = re.compile(
    r"(?:^|\s)(?:for|until|till|by|before|after|since|around|about|from|of|or|and|between|than"
    r"|the|a|an|my|our|your|his|her|their|this|that|last|next|부터|까지|전|이후|또는|아니면)[,\s]*$",
    re.IGNORECASE,
)
_HEDGED = re.compile(
    r"(?:at|on|in|for|or|and|until|till|by|before|after|if|when|unless"
    r"|전에?|이후에?|부터|까지|쯤에?|경에?|정도에?|또는|아니면|이나)(?![\w])",
    re.IGNORECASE,
)
_BETWEEN = " \t\n,:："
_TIME_PARTICLE = "에"


def split(body: str, *, is_for_all: bool = False) -> Remind | RemindUnclear:
    """Read `call mum in 10 minutes`, `at 9am to call mum`, `내일 오전 9시에 약 먹기`."""
    body = body.strip()
    if _REPEATS.search(body):
        return RemindUnclear(Trouble.REPEATS)
    lead = shapes.leading(body)
    if lead is None:
        return _time_last(body, is_for_all=is_for_all)
    if not lead.when.is_complete:
        return _time_around(body, lead, is_for_all=is_for_all)
    rest = body[lead.end :].lstrip(" \t\n,")
    if _JOINT.match(rest) or body[: lead.end].endswith(_TIME_PARTICLE):
        return _remind(rest, lead, is_for_all=is_for_all)
    if _HEDGED.match(rest) or _LEFT_OVER.match(rest) or shapes.leading(rest):
        return RemindUnclear(Trouble.TIME_FIRST)
    return _remind(rest, lead, is_for_all=is_for_all)


def _time_last(body: str, *, is_for_all: bool) -> Remind | RemindUnclear:
    trail = shapes.trailing(body)
    if trail is None:
        return RemindUnclear(Trouble.TIME_FIRST if _LEFT_OVER.search(body) else Trouble.NO_TIME)
    what = body[: trail.start]
    is_hidden = trail.when.elapsed is None and _LEFT_OVER.search(what)
    if is_hidden or _DANGLING.search(_without_joint(what)):
        return RemindUnclear(Trouble.TIME_FIRST)
    return _remind(what, trail, is_for_all=is_for_all)


def _time_around(body: str, lead: shapes.Found, *, is_for_all: bool) -> Remind | RemindUnclear:
    rest = body[lead.end :].lstrip(_BETWEEN)
    trail = shapes.trailing(rest)
    joined = lead.when.joined(trail.when) if trail else None
    if trail is None or joined is None or not joined.is_complete:
        return RemindUnclear(Trouble.NEEDS_CLOCK)
    what = rest[: trail.start]
    if _DANGLING.search(_without_joint(what)) or _LEFT_OVER.search(what):
        return RemindUnclear(Trouble.TIME_FIRST)
    return _remind(what, replace(trail, when=joined), is_for_all=is_for_all)


def _without_joint(what: str) -> str:
    what = what.strip(_BETWEEN)
    return _JOINT.sub("", what, count=1).strip() if _JOINT.match(what) else what


def _remind(what: str, found: shapes.Found, *, is_for_all: bool) -> Remind | RemindUnclear:
    what = _without_joint(what)
    if not what:
        return RemindUnclear(Trouble.NO_TEXT)
    return Remind(what=what, when=found.when, is_for_all=is_for_all)
