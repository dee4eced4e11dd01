"""Compute when scheduled tasks are due: cron, interval, once. Pure.

An interval is elapsed time from its first due time and never drifts; a cron expression follows the clocks of
the zone (`cron`); a one-time task has one moment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import count, takewhile
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_iso
from orchestrator.domain.errors import BadSchedule
from orchestrator.domain.values import Dst, Group, PlannedTask, Schedule, ScheduleKind
from orchestrator.scheduler import cron, when
from orchestrator.scheduler.scheduled_task_service import ReadTime, ScheduleReader

MIN_INTERVAL_MS = 60_000
MAX_INTERVAL_MS = int(when.FURTHEST.total_seconds() * 1000)
MAX_CAUGHT_UP = 10
"""Missed due times that are run later at most, so that a long absence makes no flood of runs."""
_FIRST_LOOK_BACK_MS = 3_600_000
"""Milliseconds before now in which missed due times are looked for first."""
_MILLISECONDS = re.compile(r"[0-9]{1,15}")


def schedule_reader(
    zone_of: Callable[[Group], ZoneInfo], *, read_time: ReadTime | None = None
) -> ScheduleReader:
    """Return the functions that read schedules, each in the zone of its group.

    `read_time` reads the time of a one-time task, in more forms than agents write.
    """

    def plan_for(group: Group, kind: str, value: str, *, dst: str | None, now_ms: int) -> PlannedTask:
        """Check a schedule for a group, and return it with its first due time in the group's zone.

        The time of a one-time task is read by the `read_time` that `schedule_reader` was called with, if any.
        The other arguments are those of `plan`. Raises `BadSchedule` or `BadTime` if it cannot be used.
        """
        zone = zone_of(group)
        if kind == ScheduleKind.ONCE and read_time is not None:
            value = local_iso(read_time(value, now_ms=now_ms, zone=zone), zone)
        return plan(kind, value, dst=dst, now_ms=now_ms, zone=zone)

    def following(schedule: Schedule, due_ms: int, after_ms: int) -> int | None:
        """Return the first due time after `after_ms`, counted from `due_ms`; None if there is none.

        Raises `BadSchedule` if the stored schedule cannot be used any more.
        """
        try:
            return following_ms(schedule, due_ms, after_ms=after_ms)
        except (ValueError, LookupError) as error:  # of croniter, or for an unknown time zone
            raise BadSchedule(f"The schedule cannot be used any more: {error}. Give a new one.") from error

    return ScheduleReader(plan=plan_for, following=following)


def plan(kind: str, value: str, *, dst: str | None, now_ms: int, zone: ZoneInfo) -> PlannedTask:
    """Check a schedule as an agent writes it, and return it with its first due time.

    `kind` is `cron` (five fields, or words such as `every other Tuesday at 8:00`), `interval` (milliseconds,
    a duration such as `1h30m`, or words after `every`) or `once` (an ISO time, a duration or words).

    `dst` is for a cron time that the clocks show twice when daylight saving ends: whether it is due `once` or
    `both` times; None stands for the default of the expression.

    Raises:
        BadSchedule: the kind is unknown, or the value does not fit it.
        BadTime: the time of a `once` schedule cannot be read, is past, or is more than ten years ahead.
    """
    match kind:
        case ScheduleKind.CRON:
            return _in_words(value, dst=dst, now_ms=now_ms, zone=zone) or _cron(
                value, dst=dst, now_ms=now_ms, zone=zone
            )
        case ScheduleKind.INTERVAL:
            return _interval(value.strip(), dst=dst, now_ms=now_ms, zone=zone)
        case ScheduleKind.ONCE:
            at_ms = when.point_ms(value, now_ms=now_ms, zone=zone)
            return _planned(ScheduleKind.ONCE, local_iso(at_ms, zone), zone, at_ms)
        case _:
            raise BadSchedule(f"'{kind}' is no type of schedule: use cron, interval or once.")


def _cron(value: str, *, dst: str | None, now_ms: int, zone: ZoneInfo) -> PlannedTask:
    """Return the schedule of a cron expression with its first due time after `now_ms`.

    `dst` is the choice, `once` or `both`, for a time that the clocks show twice; None for the default of the
    expression. Raises `BadSchedule`.
    """
    expression = cron.checked(value)
    chosen_dst = _dst(dst) or cron.usual_dst(expression)
    schedule = Schedule(kind=ScheduleKind.CRON, value=expression, timezone=zone.key, dst=chosen_dst)
    return PlannedTask(
        schedule=schedule, next_ms=cron.next_ms(expression, after_ms=now_ms, zone=zone, dst=chosen_dst)
    )


def _interval(value: str, *, dst: str | None, now_ms: int, zone: ZoneInfo) -> PlannedTask:
    """Return the schedule of an interval with its first due time.

    The value is a duration such as `20 minutes`, or milliseconds such as `60000`. Words such as `every
    Monday` are accepted, too, and give a cron schedule; `dst` is the choice, `once` or `both`, for a time of
    it that the clocks show twice. Raises `BadSchedule`, and `BadTime` for unclear words.
    """
    is_span = _MILLISECONDS.fullmatch(value) or when.duration(value) is not None
    if not is_span:
        text = f"every {value.removeprefix('every ')}"  # `every` may be left out: `Monday at 8:00`
        planned = _in_words(text, dst=dst, now_ms=now_ms, zone=zone)
        if planned is not None:
            return planned
    every_ms = _interval_ms(value)
    return _planned(ScheduleKind.INTERVAL, str(every_ms), zone, now_ms + every_ms)


def _in_words(text: str, *, dst: str | None, now_ms: int, zone: ZoneInfo) -> PlannedTask | None:
    """Return the schedule of a repetition in words, such as `every Tuesday at 8:00`, with its first due time.

    Return None if the text is no repetition. `dst` is the choice, `once` or `both`, for a time that the
    clocks show twice; None for the default. Raises `BadTime` if the text lacks a time of day that it needs,
    as in `every Tuesday`, or may mean several times, and `BadSchedule` if its schedule is refused for another
    reason.
    """
    repeated = when.recurrence(text, now_ms=now_ms, zone=zone)
    if repeated is None:
        return None
    if repeated.cron is not None:
        return _cron(repeated.cron, dst=dst, now_ms=now_ms, zone=zone)
    assert repeated.interval is not None
    return _interval(str(round(repeated.interval.total_seconds() * 1000)), dst=dst, now_ms=now_ms, zone=zone)


def _planned(kind: ScheduleKind, value: str, zone: ZoneInfo, next_ms: int) -> PlannedTask:
    """Return a schedule with the default for daylight saving, and its first due time `next_ms`."""
    return PlannedTask(schedule=Schedule(kind=kind, value=value, timezone=zone.key), next_ms=next_ms)


def _dst(text: str | None) -> Dst | None:
    """Return the choice, `once` or `both`, for a time that the clocks show twice; None for no text.

    Raises `BadSchedule` for any other text.
    """
    try:
        return None if text is None else Dst(text)
    except ValueError:
        raise BadSchedule(f"dst: '{text}' is unknown: use once or both.") from None


def _interval_ms(text: str) -> int:
    """Return the milliseconds of an interval, which is written in milliseconds or as a duration like `30m`.

    Raises:
        BadSchedule: it is neither, or too short or too long.
    """
    every_ms: float
    if _MILLISECONDS.fullmatch(text):
        every_ms = int(text)
    elif (ahead := when.duration(text)) is not None:
        every_ms = ahead.total_seconds() * 1000
    else:
        raise BadSchedule(f"interval: '{text}' is none: use milliseconds or a duration such as 30m or 1d.")
    if not MIN_INTERVAL_MS <= every_ms <= MAX_INTERVAL_MS:
        raise BadSchedule(
            f"interval: '{text}' is {every_ms / 1000:g} s: at least 60 s and at most ten years are taken."
        )
    return int(every_ms)


def following_ms(schedule: Schedule, due_ms: int, *, after_ms: int) -> int | None:
    """Return the first due time of a schedule after `after_ms`; None when there is none.

    Times are epoch milliseconds. The steps of an interval are counted from `due_ms`, an earlier or later due
    time. If `due_ms` itself is later than `after_ms`, it is the first, except for a cron schedule. Raises
    `BadSchedule` for a cron schedule without a due time in the next `cron.MAX_YEARS`.
    """
    match schedule.kind:
        case ScheduleKind.CRON:
            return _next_cron(schedule, after_ms)
        case ScheduleKind.INTERVAL:
            every_ms = int(schedule.value)
            steps = max(0, (after_ms - due_ms) // every_ms + 1)
            return due_ms + steps * every_ms
        case ScheduleKind.ONCE:
            return due_ms if due_ms > after_ms else None


def following_times(schedule: Schedule, due_ms: int, *, after_ms: int) -> Iterator[int]:
    """Yield all due times of a schedule after `after_ms`, in their order; `following_ms` has the first.

    `due_ms` is a due time from which the steps of an interval are counted, or the moment of a one-time task.
    A cron schedule does not need it; its expression is parsed only once for all times.
    """
    match schedule.kind:
        case ScheduleKind.CRON:
            yield from _cron_times_after(schedule, after_ms)
        case ScheduleKind.INTERVAL:
            first_ms = following_ms(schedule, due_ms, after_ms=after_ms)
            assert first_ms is not None, "an interval never ends"
            yield from count(first_ms, int(schedule.value))
        case ScheduleKind.ONCE:
            if due_ms > after_ms:
                yield due_ms


def due_times(schedule: Schedule, due_ms: int, *, now_ms: int) -> tuple[int, ...]:
    """Return the newest due times from `due_ms` to `now_ms`, oldest first, at most `MAX_CAUGHT_UP`.

    `due_ms` is a due time itself, not later than `now_ms`.
    """
    match schedule.kind:
        case ScheduleKind.CRON:
            return _cron_times(schedule, due_ms, now_ms)
        case ScheduleKind.INTERVAL:
            every_ms = int(schedule.value)
            passed = (now_ms - due_ms) // every_ms
            # Numbers of steps since `due_ms`: if 25 have passed, 16 to 25 are the newest ten.
            return tuple(
                due_ms + step * every_ms for step in range(max(0, passed + 1 - MAX_CAUGHT_UP), passed + 1)
            )
        case ScheduleKind.ONCE:
            return (due_ms,)


def _cron_times(schedule: Schedule, due_ms: int, now_ms: int) -> tuple[int, ...]:
    """Return the newest due times of a cron schedule, oldest first, at most `MAX_CAUGHT_UP`.

    Times are counted from an hour before now; if these are too few, from two hours before, then four, and so
    on. Counted from `due_ms`, a task of every minute would have half a million after a year.
    """
    look_back_ms = _FIRST_LOOK_BACK_MS
    while True:
        start_ms = max(due_ms, now_ms - look_back_ms)
        newest = tuple(_cron_between(schedule, start_ms, now_ms))
        if len(newest) >= MAX_CAUGHT_UP or start_ms == due_ms:
            # `due_ms` counts as it was planned, even if the expression would no longer yield it.
            times = newest if start_ms > due_ms else (due_ms, *newest)
            return times[-MAX_CAUGHT_UP:]
        look_back_ms *= 2


def _cron_between(schedule: Schedule, after_ms: int, until_ms: int) -> Iterator[int]:
    """Yield the due times of a cron schedule after `after_ms`, up to `until_ms` inclusive."""
    return takewhile(lambda at_ms: at_ms <= until_ms, _cron_times_after(schedule, after_ms))


def _cron_times_after(schedule: Schedule, after_ms: int) -> Iterator[int]:
    """Yield the due times of a cron schedule after `after_ms`, in epoch milliseconds."""
    zone = ZoneInfo(schedule.timezone)
    return cron.following(schedule.value, after_ms=after_ms, zone=zone, dst=schedule.dst)


def _next_cron(schedule: Schedule, after_ms: int) -> int:
    """Return the first due time of a cron schedule after `after_ms`, in epoch milliseconds."""
    return cron.next_ms(schedule.value, after_ms=after_ms, zone=ZoneInfo(schedule.timezone), dst=schedule.dst)
