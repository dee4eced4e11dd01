"""Compute when a cron expression is due: five fields, by the clocks of a zone. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from orchestrator.domain.errors import BadSchedule
from orchestrator.domain.values import Dst

MAX_YEARS = 10
"""An expression that is not due for so long never is: 29 February comes at least every eighth year."""
LONGEST_SHIFT = timedelta(hours=3)
"""More than any zone of today sets its clocks back at once."""

_ITEM = re.compile(r"(\*|(\w+)(?:-(\w+))?)(?:/(\d{1,2}))?", re.ASCII)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    name: str
    low: int
    high: int
    words: tuple[str, ...] = ()

    def check(self, text: str) -> None:
        for item in text.split(","):
            found = _ITEM.fullmatch(item)
            if found is None or not self._fits(*found.groups()):
                raise BadSchedule(f"cron: '{item}' is no {self.name}: {self._rule()}.")

    def _fits(self, whole: str, first: str | None, last: str | None, step: str | None) -> bool:
        # croniter reads `5/15` as `5-59/15`, which not every cron does: it is refused here instead of
        # guessed.
        if step is not None and not (0 < int(step) <= self.high - self.low and (whole == "*" or last)):
            return False
        if first is None:
            return True
        start, end = self._number(first), self._number(last or first)
        return start is not None and end is not None and start <= end

    def _number(self, text: str) -> int | None:
        if text in self.words:
            return self.words.index(text) + self.low
        number = int(text) if text.isdigit() and len(text) <= 2 else -1
        return number if self.low <= number <= self.high else None

    def _rule(self) -> str:
        named = f" or {self.words[0]}-{self.words[-1]}" if self.words else ""
        return f"use {self.low}-{self.high}{named}, *, lists, ranges and steps such as */{self.high // 4}"


_FIELDS = (
    _Field(name="minute", low=0, high=59),
    _Field(name="hour", low=0, high=23),
    _Field(name="day of the month", low=1, high=31),
    _Field(name="month", low=1, high=12, words=_MONTHS),
    _Field(name="day of the week", low=0, high=7, words=_DAYS),
)


def checked(text: str) -> str:
    """Return the expression in its normal form.

    Raises:
        BadSchedule: it has not five fields, one of them is none, or it never comes. Words such as
            `@daily`, seconds, `L`, `#` and `?` are refused.
    """
    fields = text.lower().split()
    if len(fields) != len(_FIELDS):
        raise BadSchedule(
            f"cron: '{text}' has {len(fields)} fields; use five: minute hour day month weekday,"
            " such as 0 9 * * 1-5."
        )
    for field, value in zip(_FIELDS, fields, strict=True):
        field.check(value)
    expression = " ".join(fields)
    # The 30th of February passes each field alone and would be searched for at every look.
    if next(_walls(expression, datetime(2024, 1, 1)), None) is None:  # noqa: DTZ001 - what clocks show
        raise BadSchedule(f"cron: '{expression}' never comes: there is no such date.")
    return expression


def usual_dst(expression: str) -> Dst:
    """Return the default for daylight saving: `both` for a rhythm through all hours, else `once`."""
    return Dst.BOTH if expression.split()[1].startswith("*") else Dst.ONCE


def next_ms(expression: str, *, after_ms: int, zone: ZoneInfo, dst: Dst) -> int:
    """Return the first due time later than `after_ms`, epoch ms. Raises `BadSchedule` when there is none."""
    after = after_ms // 1000
    found: list[int] = []
    # Clocks that are set back show a later time earlier, so the first wall time found is not always the
    # first.
    for wall in _walls(expression, _first_wall(after, zone)):
        moments = _moments(wall, zone, dst)
        if found and moments and moments[0] > min(found):
            break
        found += [moment for moment in moments if moment > after]
        if found and dst is Dst.ONCE:
            break
    if not found:
        raise BadSchedule(f"cron: '{expression}' does not come in {MAX_YEARS} years.")
    return min(found) * 1000


def _walls(expression: str, after: datetime) -> Iterator[datetime]:
    """Yield the due times later than `after` on clocks that never change."""
    # Imported late: most commands never read a cron expression.
    from croniter import CroniterBadDateError, croniter

    # Given a time without a zone, croniter knows no daylight saving: `_moments` decides what that means.
    times = croniter(expression, after, max_years_between_matches=MAX_YEARS)
    try:
        while True:
            yield times.get_next(datetime)
    except CroniterBadDateError:
        return


def _first_wall(after: int, zone: ZoneInfo) -> datetime:
    """Return where to begin: earlier than the clocks show when they are about to be set back."""
    now = datetime.fromtimestamp(after, zone)
    soon = datetime.fromtimestamp(after + LONGEST_SHIFT.total_seconds(), zone)
    # In the hour that comes twice a wall time behind the present one may still be ahead.
    set_back = max(timedelta(0), _offset(now) - _offset(soon))
    return now.replace(tzinfo=None, second=0) - set_back


def _moments(wall: datetime, zone: ZoneInfo, dst: Dst) -> list[int]:
    """Return the moments, in epoch seconds, at which the clocks show `wall`; none if they skip it."""
    # The two readings differ only where clocks are changed: in the hour that is skipped or repeated.
    first, second = (int(wall.replace(tzinfo=zone, fold=fold).timestamp()) for fold in (0, 1))
    if first == second:
        return [first]
    if first < second:
        return [first] if dst is Dst.ONCE else [first, second]
    # In a gap the first reading is by the offset before it, so it lies behind the jump.
    return [_jump(second, first, zone)] if dst is Dst.ONCE else []


def _jump(before: int, behind: int, zone: ZoneInfo) -> int:
    """Return the first second of the offset that holds at `behind`."""
    offset = _offset(datetime.fromtimestamp(behind, zone))
    # zoneinfo does not tell when an offset changes; halving the span finds it in about a dozen steps.
    while behind - before > 1:
        middle = (before + behind) // 2
        if _offset(datetime.fromtimestamp(middle, zone)) == offset:
            behind = middle
        else:
            before = middle
    return behind


def _offset(at: datetime) -> timedelta:
    offset = at.utcoffset()
    assert offset is not None
    return offset
