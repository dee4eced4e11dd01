"""The forms that name a span of time from now: `in 5 minutes`, `사흘 뒤`."""

from __future__ import annotations

import re
from collections.abc import Callable

from agent_runner.wire.times.amounts import AFTER_KO, SPAN_EN, SPAN_KO, span_en, span_ko
from agent_runner.wire.times.model import Form, Make, Parts, Shape, TimeSpan, Where

_ABOUT = r"(?:(?:about|around|approximately)\s+)?"


def _spanned(parse_span: Callable[[str], TimeSpan | None]) -> Make:
    """Return a function that makes the parts of a time from a match with a span of time.

    `parse_span` returns the span that words name, None for none.
    """

    def make(match: re.Match[str]) -> Parts | None:
        """Return the span as the part of a time; None if the words are no span after all."""
        span = parse_span(match["span"])
        return None if span is None else Parts(span=span)

    return make


FORMS: tuple[Form, ...] = (
    Form(
        "after so long",
        "that long from now; days and more keep the time of day; a couple is 2, a few is 3",
        shapes=(
            Shape(
                rf"in\s+{_ABOUT}(?P<span>{SPAN_EN})(?:\s+from\s+now\b)?(?:(?:'s?)?\s+time\b)?",
                _spanned(span_en),
                (
                    "in 10 minutes",
                    "in two hours",
                    "in half an hour",
                    "in a half hour",
                    "in 1/2 hour",
                    "in a couple of hours",
                    "in 1h30",
                    "in 3 days",
                    "in a month",
                    "in a fortnight's time",
                ),
            ),
            Shape(
                rf"(?P<span>{SPAN_EN})\s+(?:from\s+(?:right\s+)?now|from\s+today|hence)\b",
                _spanned(span_en),
                ("90 minutes from now", "a week from now"),
            ),
            Shape(
                rf"(?:약\s*)?(?P<span>{SPAN_KO})\s*{AFTER_KO}",
                _spanned(span_ko),
                ("10분 뒤", "2시간 후", "한 시간 반 뒤", "사흘 뒤", "24시간 안에"),
            ),
        ),
    ),
)

ALONE: tuple[Form, ...] = (
    Form(
        "so long",
        "the same, where nothing else is said",
        shapes=(
            Shape(rf"(?P<span>{SPAN_EN})", _spanned(span_en), ("45 min", "1h30m", "2d")),
            Shape(rf"(?P<span>{SPAN_KO})", _spanned(span_ko), ("30분", "1시간 30분")),
        ),
        where=Where.WHOLE,
    ),
)
"""Spans without other words. They come after the forms of clocks, because `15h30` is a time of day."""
