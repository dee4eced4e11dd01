"""Schedules as agents write them, and the due times that follow from them."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.domain.errors import BadRequest, BadSchedule, BadTime
from orchestrator.domain.values import Dst, Schedule, ScheduleKind
from orchestrator.scheduler import scheduled_task_service, timing

SEOUL = ZoneInfo("Asia/Seoul")
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def ms(iso: str) -> int:
    return int(datetime.fromisoformat(iso).timestamp() * 1000)


NOW = ms("2026-05-28T12:00:00+09:00")


def plan(kind: str, value: str, dst: str | None = None) -> tuple[str, int]:
    planned = timing.plan(kind, value, dst=dst, now_ms=NOW, zone=SEOUL)
    return planned.schedule.value, planned.next_ms


def every(value: str) -> Schedule:
    return Schedule(kind=ScheduleKind.INTERVAL, value=value, timezone="Asia/Seoul")


def cron(value: str) -> Schedule:
    return Schedule(kind=ScheduleKind.CRON, value=value, timezone="Asia/Seoul")


def test_each_kind_has_one_form_and_a_first_due_time() -> None:
    assert plan("cron", "0  9 * * *") == ("0 9 * * *", ms("2026-05-29T09:00+09:00"))
    assert plan("interval", "3600000") == ("3600000", NOW + HOUR)
    assert plan("interval", "1h30m") == ("5400000", NOW + 90 * MINUTE)
    assert plan("once", "2026-05-28T18:30") == ("2026-05-28T18:30:00+09:00", ms("2026-05-28T18:30+09:00"))
    assert plan("once", "10m") == ("2026-05-28T12:10:00+09:00", NOW + 10 * MINUTE)


@pytest.mark.parametrize(
    ("kind", "words", "value", "first"),
    [
        ("cron", "every weekday at 7:30", "30 7 * * 1,2,3,4,5", "2026-05-29T07:30+09:00"),
        (
            "cron",
            "every other Tuesday at 8am",
            "0 8 * * 2 every 2 weeks from 2026-06-02",
            "2026-06-02T08:00+09:00",
        ),
        ("interval", "last Friday of the month at 17:00", "0 17 * * 5L", "2026-05-29T17:00+09:00"),
        (
            "interval",
            "every 3 days at 9:00",
            "0 9 * * * every 3 days from 2026-05-29",
            "2026-05-29T09:00+09:00",
        ),
        ("cron", "every 2 hours", "7200000", "2026-05-28T14:00+09:00"),
        ("cron", "매월 마지막 날 18:00", "0 18 L * *", "2026-05-31T18:00+09:00"),
    ],
)
def test_what_repeats_in_words_is_planned_as_its_fields(
    kind: str, words: str, value: str, first: str
) -> None:
    assert plan(kind, words) == (value, ms(first))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("every Monday", "needs a time of day"),
        ("every Monday at 3", "every Monday at 03:00 or every Monday at 15:00"),
        ("the last day of the month at 18:00", "every month on the last day at 18:00"),
        ("every now and then", "4 fields"),
    ],
)
def test_what_repeats_at_no_sure_time_is_refused_with_what_it_can_mean(words: str, told: str) -> None:
    with pytest.raises(BadRequest) as caught:
        plan("cron", words)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "value", "error", "told"),
    [
        ("once", "2026-05-28T11:59", BadTime, "past"),
        ("once", "2026-05-28T03:00Z", BadTime, "past"),
        ("once", "soon", BadTime, "no time"),
        ("once", "0s", BadTime, "past"),
        ("interval", "59999", BadSchedule, "60 s"),
        ("interval", "5m30", BadSchedule, "is none"),
        ("interval", "30s", BadSchedule, "30 s"),
        ("interval", "60", BadSchedule, "0.06 s"),
        ("interval", "-60000", BadSchedule, "is none"),
        ("interval", "0", BadSchedule, "60 s"),
        ("interval", "1e9", BadSchedule, "is none"),
        ("interval", "٩٠٠٠٠٠", BadSchedule, "is none"),
        ("interval", "2026-05-28T18:30", BadSchedule, "is none"),
        ("interval", "9" * 15, BadSchedule, "ten years"),
        ("interval", "9999d", BadSchedule, "ten years"),
        ("cron", "* * * * * *", BadSchedule, "6 fields"),
        ("cron", "@hourly", BadSchedule, "1 fields"),
        ("Cron", "0 9 * * *", BadSchedule, "no type"),
        ("daily", "9:00", BadSchedule, "no type"),
        ("", "", BadSchedule, "no type"),
    ],
)
def test_what_cannot_be_used_is_refused_when_it_is_made(
    kind: str, value: str, error: type[BadRequest], told: str
) -> None:
    with pytest.raises(error) as caught:
        plan(kind, value)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("value", "is_taken"),
    [("59999", False), ("60000", True), (str(3660 * DAY), True), (str(3660 * DAY + 1), False)],
)
def test_an_interval_is_a_minute_at_least_and_ten_years_at_most(value: str, is_taken: bool) -> None:
    if is_taken:
        assert plan("interval", value) == (value, NOW + int(value))
    else:
        with pytest.raises(BadSchedule, match="at least 60 s and at most ten years"):
            plan("interval", value)


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        ("cron", "*/30 * * * *", ScheduleKind.CRON),
        ("cron", "every day at 02:30", ScheduleKind.CRON),
        ("interval", "every day at 02:30", ScheduleKind.CRON),
        ("interval", "every 3 hours", ScheduleKind.INTERVAL),
        ("once", "10m", ScheduleKind.ONCE),
    ],
)
def test_a_plan_has_its_kind_and_zone_and_the_meaning_that_was_chosen(
    kind: str, value: str, stored: ScheduleKind
) -> None:
    planned = timing.plan(kind, value, dst="both", now_ms=NOW, zone=SEOUL).schedule
    assert (planned.kind, planned.timezone) == (stored, "Asia/Seoul")
    if stored is ScheduleKind.CRON:
        assert planned.dst is Dst.BOTH


def test_a_time_that_comes_twice_is_due_as_often_as_was_chosen() -> None:
    berlin, first = ZoneInfo("Europe/Berlin"), ms("2026-10-25T02:30+02:00")
    for dst, following in [("both", "2026-10-25T02:30+01:00"), ("once", "2026-10-26T02:30+01:00")]:
        planned = timing.plan("cron", "30 2 * * *", dst=dst, now_ms=first, zone=berlin)
        assert planned.next_ms == ms(following)
        assert timing.following_ms(planned.schedule, first, after_ms=first) == ms(following)


def test_what_a_change_of_clocks_means_can_be_chosen_and_only_from_two() -> None:
    chosen = timing.plan("cron", "*/5 * * * *", dst="once", now_ms=NOW, zone=SEOUL)
    assert chosen.schedule.dst is Dst.ONCE
    assert timing.plan("cron", "*/5 * * * *", dst=None, now_ms=NOW, zone=SEOUL).schedule.dst is Dst.BOTH
    with pytest.raises(BadSchedule, match="'never' is unknown: use once or both"):
        timing.plan("cron", "*/5 * * * *", dst="never", now_ms=NOW, zone=SEOUL)


@given(
    every_ms=st.integers(MINUTE, 400 * DAY),
    due_ms=st.integers(NOW, NOW + DAY),
    late_ms=st.integers(-DAY, 3000 * DAY),
)
def test_an_interval_never_drifts(every_ms: int, due_ms: int, late_ms: int) -> None:
    after_ms = due_ms + late_ms
    following = timing.following_ms(every(str(every_ms)), due_ms, after_ms=after_ms)
    assert following is not None
    assert following > after_ms
    assert (following - due_ms) % every_ms == 0
    assert following == due_ms or following - every_ms <= after_ms


@given(every_ms=st.integers(MINUTE, 400 * DAY), passed_ms=st.integers(0, 3000 * DAY))
def test_the_due_times_of_an_interval_are_the_newest_and_in_step(every_ms: int, passed_ms: int) -> None:
    times = timing.due_times(every(str(every_ms)), NOW, now_ms=NOW + passed_ms)
    assert len(times) == min(timing.MAX_CAUGHT_UP, passed_ms // every_ms + 1)
    assert times[-1] <= NOW + passed_ms < times[-1] + every_ms
    assert all((at - NOW) % every_ms == 0 for at in times)


def test_a_day_of_minutes_gives_its_last_ten() -> None:
    start = ms("2026-05-28T12:00+09:00")
    times = timing.due_times(cron("* * * * *"), start, now_ms=start + DAY + 1)
    assert times == tuple(start + DAY - back * MINUTE for back in range(9, -1, -1))


def test_the_first_due_time_is_the_planned_one() -> None:
    planned = ms("2026-05-28T09:00+09:00")
    assert timing.due_times(cron("0 9 * * *"), planned, now_ms=NOW) == (planned,)
    two_days = timing.due_times(cron("0 9 * * *"), planned, now_ms=NOW + 2 * DAY)
    assert two_days == (planned, planned + DAY, planned + 2 * DAY)


def test_a_yearly_time_is_found_after_years_away() -> None:
    planned = ms("2020-01-01T00:00+09:00")
    times = timing.due_times(cron("0 0 1 1 *"), planned, now_ms=ms("2026-05-28T12:00+09:00"))
    assert [datetime.fromtimestamp(at / 1000, SEOUL).year for at in times] == list(range(2020, 2027))


@settings(deadline=None, max_examples=25)
@given(
    expression=st.sampled_from(["0 9 * * *", "*/5 * * * *", "0 0 1 * *", "30 2 * * 0", "7 */3 * * *"]),
    passed_ms=st.integers(0, 5 * DAY),
)
def test_looking_back_finds_what_counting_forward_finds(expression: str, passed_ms: int) -> None:
    schedule = cron(expression)
    first = timing.following_ms(schedule, NOW, after_ms=NOW)
    counted: list[int] = []
    at = first
    while at is not None and at <= first + passed_ms:  # type: ignore[operator]
        counted.append(at)
        at = timing.following_ms(schedule, at, after_ms=at)
    found = timing.due_times(schedule, counted[0], now_ms=counted[0] + passed_ms)
    assert found == tuple(counted[-timing.MAX_CAUGHT_UP :])


def test_a_task_that_runs_once_has_one_due_time() -> None:
    once = Schedule(kind=ScheduleKind.ONCE, value="2026-05-28T13:00:00+09:00", timezone="Asia/Seoul")
    assert timing.following_ms(once, NOW, after_ms=NOW) is None
    assert timing.following_ms(once, NOW + HOUR, after_ms=NOW) == NOW + HOUR
    assert timing.due_times(once, NOW - DAY, now_ms=NOW) == (NOW - DAY,)


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (ScheduleKind.INTERVAL, "7200000", "every 2 h"),
        (ScheduleKind.INTERVAL, "90000", "every 1 min 30 s"),
        (ScheduleKind.CRON, "0 9 * * *", "cron 0 9 * * *"),
        (ScheduleKind.ONCE, "2026-05-28T12:00:00+09:00", "once"),
    ],
)
def test_a_schedule_is_described_in_words(kind: ScheduleKind, value: str, words: str) -> None:
    schedule = Schedule(kind=kind, value=value, timezone="Asia/Seoul")
    assert scheduled_task_service.describe_schedule(schedule) == words
