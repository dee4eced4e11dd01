"""Find times in a text, by matching the forms of the table one after another."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, tzinfo

from agent_runner.wire.times.forms import FORMS
from agent_runner.wire.times.model import Form, Parts, Reading, Reason, TimePolicy, TimeRefusal, Where
from agent_runner.wire.times.resolving import resolve
from agent_runner.wire.unicode_forms import composed

MAX_CHARS = 200
"""Most characters of a text; a longer one is refused unread."""
MAX_TIME_CHARS = 80
"""Characters before the end of a text in which the start of a trailing time is looked for."""
_GAP = re.compile(r"(?:[\s,]+|T(?=\d))?")
_EDGE = re.compile(r"\s|[,:;](?:\s|$)|[.!?]?$|까지")
_WORD_START = re.compile(r"(?:(?<=\s)|^)\S")
_SAME = str.maketrans("’‘ʼ\u00a0\u3000０１２３４５６７８９：，", "'''  0123456789:,")
"""Characters that some keyboards send, and the ASCII ones that replace them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeInText:
    """A time in a text, and the places where it starts and ends."""

    parts: Parts
    start: int
    end: int


def read(text: str, *, now: datetime, zone: tzinfo, policy: TimePolicy | None = None) -> Reading:
    """Return the time that a whole text names, relative to `now` (aware), in `zone`.

    It never raises: a text that is no time gives a `TimeRefusal`. `policy` decides what the text leaves open;
    None is the default `TimePolicy`.
    """
    normal = normalized(text).strip()
    if len(normal) > MAX_CHARS:
        return TimeRefusal(reason=Reason.NO_TIME)
    parts = _whole(normal) or _whole(normal.rstrip(".!"))
    if parts is None:
        return TimeRefusal(reason=Reason.NO_TIME)
    return resolve(parts, now=now, zone=zone, policy=policy)


def normalized(text: str) -> str:
    """Return a text as the forms expect it: Hangul composed, variants of ASCII characters replaced."""
    return composed(text).translate(_SAME)


def is_time(text: str) -> bool:
    """Return whether a whole text has the form of a time, even of an impossible one."""
    return len(text) <= MAX_CHARS and _whole(text.strip()) is not None


def leading(text: str) -> TimeInText | None:
    """Return the longest time at the start of a text; None if it starts with none."""
    return max(_times_at(text, 0, _AT_START), key=lambda candidate: candidate.end, default=None)


def trailing(text: str) -> TimeInText | None:
    """Return the longest time at the end of a text; None if it ends with none.

    A time that is longer than `MAX_TIME_CHARS` is not found whole.
    """
    text = text.rstrip()
    for start in _WORD_START.finditer(text, max(0, len(text) - MAX_TIME_CHARS)):
        for candidate in _times_at(text, start.start(), _WITHIN):
            if candidate.end == len(text):
                return candidate
    return None


# Finding

_ALL = FORMS
_AT_START = tuple(form for form in FORMS if form.where is not Where.WHOLE)
_WITHIN = tuple(form for form in FORMS if form.where is Where.ANYWHERE)


def _whole(text: str) -> Parts | None:
    """Return the parts of a text that is a time as a whole; None for any other text."""
    # Forms that are read anywhere come first: the others are only for what these do not match.
    for forms in (_WITHIN, _AT_START, _ALL):
        for candidate in _times_at(text, 0, forms):
            if candidate.end == len(text):
                return candidate.parts
    return None


def _times_at(text: str, start: int, forms: tuple[Form, ...]) -> Iterator[TimeInText]:
    """Yield the times that begin at the position `start` of a text, shortest first.

    A time is a sequence of `forms`, such as a day and a time of day: "friday at 5" begins with "friday". A
    time that would end within a word is left out.
    """
    parts, place = Parts(), start
    while step := _next_form(text, place, parts, forms):
        parts, place = step.parts, step.end
        if _EDGE.match(text, place):
            yield TimeInText(parts=parts, start=start, end=place)
        gap = _GAP.match(text, place)
        place = gap.end() if gap else place


def _next_form(text: str, place: int, so_far: Parts, forms: tuple[Form, ...]) -> TimeInText | None:
    """Return the first of `forms` that the text has at `place`, with its parts joined to `so_far`.

    None if none is there, or none fits the parts that were read so far.
    """
    for form in forms:
        for shape in form.shapes:
            match = shape.match(text, place)
            parts = shape.make(match) if match else None
            if match and parts is not None and (joined := so_far.joined(parts)) is not None:
                return TimeInText(parts=joined, start=place, end=match.end())
    return None
