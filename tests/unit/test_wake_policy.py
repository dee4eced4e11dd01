"""When the next wake is: the policy alone, by its tables, and for whatever may come."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.loop.wake_policy import (
    RULES,
    CycleOutcome,
    CycleState,
    RequestedInterval,
    SetBy,
    SleepRequest,
    WakeDecision,
    WakeSignal,
    clamp,
    decide_wake,
    start_ms,
)

MINUTE, HOUR = 60_000, 3_600_000
BASE = RULES.base_ms


def at(clock: str) -> int:
    """A time of the day on which the scenarios play."""
    moment = datetime.fromisoformat(f"2026-02-14T{clock}").replace(tzinfo=ZoneInfo("Asia/Taipei"))
    return round(moment.timestamp() * 1000)


NOW = at("10:02:00")


def sleep_request(ms: int = 0, *, reason: str = "", is_soonest: bool = False) -> SleepRequest:
    return SleepRequest(
        interval=RequestedInterval(ms=ms, is_soonest=is_soonest), raw=f"{ms} ms", reason=reason
    )


def ended(outcome: CycleOutcome = CycleOutcome.NOOP, auto_ms: int = BASE, **changes: object) -> CycleState:
    return CycleState(outcome=outcome, auto_ms=auto_ms, **changes)  # type: ignore[arg-type]


def test_bt_05_a_tag_sets_the_next_wake_from_the_end_of_the_cycle():
    decided = decide_wake(ended(sleep_request=sleep_request(45 * MINUTE, reason="waiting for feedback")), NOW)

    assert decided.next_ms == at("10:47:00")
    assert (decided.set_by, decided.is_bounded) == (SetBy.AGENT, False)
    assert decided.why == "waiting for feedback"


@pytest.mark.parametrize(
    ("asked", "applied", "is_bounded"),
    [
        (30_000, 2 * MINUTE, True),
        (10 * HOUR, 4 * HOUR, True),
        (2 * MINUTE, 2 * MINUTE, False),
        (4 * HOUR, 4 * HOUR, False),
        (24 * HOUR, 4 * HOUR, True),
        (999 * HOUR, 4 * HOUR, True),
        (2 * MINUTE - 1, 2 * MINUTE, True),
        (4 * HOUR + 1, 4 * HOUR, True),
    ],
)
def test_bt_06_what_lies_outside_the_bounds_is_brought_inside_and_said_so(asked, applied, is_bounded):
    decided = decide_wake(ended(sleep_request=sleep_request(asked)), NOW)

    assert decided.next_ms - NOW == applied
    assert decided.is_bounded == is_bounded
    assert any("bounded" in line for line in decided.trace) == is_bounded


def autos(*states: CycleState) -> list[int]:
    """The pauses in minutes, each cycle beginning with the back-off of the one before."""
    auto_ms, found = BASE, []
    for state in states:
        decided = decide_wake(replace(state, auto_ms=auto_ms), NOW)
        auto_ms = decided.auto_ms
        found.append((decided.next_ms - NOW) // MINUTE)
    return found


def test_bt_08_nothing_to_do_stretches_the_pause_and_an_action_resets_it():
    idle, action = ended(CycleOutcome.NOOP), ended(CycleOutcome.ACTION)

    assert autos(idle, idle, idle, action, idle) == [10, 20, 20, 5, 10]
    assert decide_wake(idle, NOW).why == "after 10 min by itself"


@pytest.mark.parametrize("outcome", [CycleOutcome.ERROR, CycleOutcome.BUSY, CycleOutcome.SKIPPED])
def test_bt_08_what_was_no_cycle_changes_nothing(outcome):
    assert autos(ended(CycleOutcome.NOOP), ended(outcome), ended(CycleOutcome.NOOP)) == [10, 10, 20]


@pytest.mark.parametrize("slept", [2 * MINUTE, 4 * HOUR])
def test_bt_09_a_tag_counts_once_and_leaves_the_back_off_alone(slept):
    assert autos(ended(CycleOutcome.ACTION, sleep_request=sleep_request(slept)), ended())[1] == 10
    assert autos(ended(), ended(CycleOutcome.NOOP, sleep_request=sleep_request(slept)), ended()) == [
        10,
        slept // MINUTE,
        20,
    ]


def test_bt_10_a_skipped_cycle_does_not_keep_the_old_wish():
    assert autos(ended(sleep_request=sleep_request(4 * HOUR)), ended(CycleOutcome.SKIPPED)) == [240, 5]


def test_bt_15_a_message_left_unanswered_caps_the_sleep_twice():
    asked = ended(CycleOutcome.NOOP, sleep_request=sleep_request(4 * HOUR))
    first, second, third = (decide_wake(replace(asked, caps=caps), NOW) for caps in (0, 1, 2))

    for capped in (first, second):
        assert (capped.next_ms - NOW, capped.set_by, capped.is_capped) == (2 * MINUTE, SetBy.CAP, True)
    assert "(2 of 2)" in second.trace[-1]
    assert (first.why, first.is_bounded) == ("a message was not answered", False)
    assert (third.next_ms - NOW, third.set_by, third.is_capped) == (4 * HOUR, SetBy.AGENT, False)
    assert third.why == f"the agent asked for {4 * HOUR} ms"
    assert "in vain" in third.trace[-1]


def test_bt_15_a_sleep_that_ends_with_the_cap_is_the_agents_own():
    decided = decide_wake(ended(sleep_request=sleep_request(RULES.pending_cap_ms), caps=0), NOW)

    assert (decided.set_by, decided.is_capped) == (SetBy.AGENT, False)


def test_bt_21_only_a_cycle_without_a_wish_ends_the_row_and_no_cap_does():
    soonest = sleep_request(is_soonest=True)
    begun = (NOW - 1,) * 12

    for outcome, streak in [(CycleOutcome.ACTION, 0), (CycleOutcome.NOOP, 0), (CycleOutcome.ERROR, 7)]:
        assert decide_wake(ended(outcome, soonest_streak=7), NOW).soonest_streak == streak
    held = decide_wake(ended(sleep_request=soonest, soonest_streak=7, self_wakes=begun), NOW)
    assert (held.set_by, held.soonest_streak) == (SetBy.CAP, 8)


def test_bt_21_the_eleventh_shortest_sleep_in_a_row_is_the_base():
    streak, found = 0, []
    for _ in range(12):
        decided = decide_wake(ended(sleep_request=sleep_request(is_soonest=True), soonest_streak=streak), NOW)
        streak = decided.soonest_streak
        found.append(decided)

    assert [one.next_ms - NOW for one in found] == [2 * MINUTE] * 10 + [BASE] * 2
    assert [one.is_bounded for one in found] == [False] * 10 + [True] * 2
    other = decide_wake(ended(sleep_request=sleep_request(3 * MINUTE), soonest_streak=streak), NOW)
    assert other.soonest_streak == 0


def test_bt_22_the_thirteenth_self_set_cycle_waits_for_its_hour():
    begun = tuple(at("10:00:00") + n * 2 * MINUTE for n in range(12))
    asked = ended(sleep_request=sleep_request(3 * MINUTE), self_wakes=begun)
    decided = decide_wake(asked, at("10:23:00"))

    assert decided.next_ms == at("11:00:00")
    assert (decided.set_by, decided.is_bounded) == (SetBy.CAP, True)
    assert decided.why == "it has set enough wakes this hour"
    assert decided.trace[-1] == "12 self-set cycles in an hour: in 37 min instead"
    assert decide_wake(replace(asked, self_wakes=begun[:11]), at("10:23:00")).next_ms == at("10:26:00")
    assert decide_wake(ended(self_wakes=begun), at("10:23:00")).set_by is SetBy.AUTO, (
        "only what it set itself"
    )


@pytest.mark.parametrize(
    ("oldest", "newest", "slept", "set_by"),
    [
        (NOW - HOUR, NOW, 3 * MINUTE, SetBy.AGENT),
        (NOW - HOUR + 1, NOW, 3 * MINUTE, SetBy.AGENT),
        (NOW - HOUR + 4 * MINUTE, NOW, 3 * MINUTE, SetBy.CAP),
        (NOW - HOUR + 3 * MINUTE, NOW, 3 * MINUTE, SetBy.AGENT),
        (NOW - HOUR + 4 * MINUTE, NOW + 1, 3 * MINUTE, SetBy.AGENT),
    ],
)
def test_bt_22_the_hour_ends_to_the_millisecond_and_no_cycle_of_a_set_back_clock_counts(
    oldest, newest, slept, set_by
):
    begun = (oldest, *[NOW - MINUTE] * 10, newest)

    assert decide_wake(ended(sleep_request=sleep_request(slept), self_wakes=begun), NOW).set_by is set_by


def test_bt_22_a_message_left_unanswered_is_exempt_from_the_hour():
    begun = tuple(at("10:00:00") + n * 2 * MINUTE for n in range(12))
    decided = decide_wake(
        ended(sleep_request=sleep_request(4 * HOUR), self_wakes=begun, caps=0), at("10:23:00")
    )

    assert decided.next_ms == at("10:25:00")


# When a cycle may start


def pull(clock: str, *, is_direct: bool = False) -> WakeSignal:
    return WakeSignal(at_ms=at(clock), is_direct=is_direct)


@pytest.mark.parametrize(
    ("pulls", "wake", "last", "now", "start"),
    [
        pytest.param([], None, None, "10:00:00", None, id="nothing wants one"),
        pytest.param([], "10:20:00", "10:00:00", "10:05:00", "10:20:00", id="the timer alone"),
        pytest.param([pull("10:05:00")], "10:20:00", "10:00:00", "10:05:00", "10:05:00", id="at once"),
        pytest.param(
            [pull("10:00:30"), pull("10:00:40")],
            "10:20:00",
            "10:00:00",
            "10:00:40",
            "10:01:00",
            id="bt_03 delayed, once",
        ),
        pytest.param(
            [pull("10:00:20", is_direct=True)],
            "14:00:10",
            "10:00:00",
            "10:00:20",
            "10:00:20",
            id="bt_04 a long sleep",
        ),
        pytest.param(
            [pull("10:00:02", is_direct=True)],
            None,
            "10:00:00",
            "10:00:02",
            "10:00:05",
            id="direct: 5 s",
        ),
        pytest.param(
            [pull("10:00:02", is_direct=True), pull("10:00:01")],
            None,
            "10:00:00",
            "10:00:02",
            "10:00:05",
            id="the direct one leads",
        ),
        pytest.param([], "10:00:10", "10:00:00", "10:00:10", "10:01:00", id="a timer is throttled too"),
        pytest.param(
            [pull("11:00:00")], None, "11:00:00", "10:00:00", "10:01:00", id="the clock was set back"
        ),
        pytest.param(
            [], "16:00:00", "10:00:00", "09:00:00", "13:00:00", id="a timer behind a set-back clock"
        ),
    ],
)
def test_bt_03_04_triggers_are_delayed_and_never_dropped(pulls, wake, last, now, start):
    found = start_ms(
        pulls,
        next_wake_ms=wake and at(wake),
        last_start_ms=last and at(last),
        now_ms=at(now),
    )
    assert found == (start and at(start))


# For whatever may come

MS = st.integers(0, 10 * HOUR)
STATES = st.builds(
    CycleState,
    outcome=st.sampled_from(CycleOutcome),
    auto_ms=st.integers(BASE, BASE * RULES.max_factor),
    sleep_request=st.none()
    | st.builds(lambda ms, soonest: sleep_request(ms, is_soonest=soonest), MS, st.booleans()),
    soonest_streak=st.integers(0, 20),
    caps=st.none() | st.integers(0, 5),
    self_wakes=st.lists(st.integers(NOW - 2 * HOUR, NOW + HOUR), max_size=40).map(sorted).map(tuple),
)


@given(STATES)
def test_every_next_wake_lies_within_the_bounds(state):
    decided = decide_wake(state, NOW)

    assert RULES.min_ms <= decided.next_ms - NOW <= RULES.max_ms
    assert BASE <= decided.auto_ms <= BASE * RULES.max_factor
    assert decided.trace


@given(STATES)
@example(
    CycleState(
        outcome=CycleOutcome.ACTION,
        auto_ms=BASE,
        sleep_request=sleep_request(0),
        soonest_streak=0,
        caps=None,
        self_wakes=(NOW - HOUR + RULES.pending_cap_ms + 1,) * RULES.self_wakes_an_hour,
    )
)
def test_a_message_that_waits_is_looked_at_within_its_cap(state):
    decided = decide_wake(replace(state, caps=0), NOW)
    assert decided.next_ms - NOW <= RULES.pending_cap_ms


@given(STATES)
def test_without_a_wish_the_pause_is_the_back_off(state):
    decided: WakeDecision = decide_wake(replace(state, sleep_request=None, caps=None), NOW)
    assert (decided.next_ms - NOW, decided.set_by) == (decided.auto_ms, SetBy.AUTO)


@given(MS)
def test_a_clamped_wish_is_as_near_as_may_be(ms):
    assert clamp(RequestedInterval(ms=ms)) == sorted((RULES.min_ms, ms, RULES.max_ms))[1]


PULLS = st.lists(
    st.builds(WakeSignal, at_ms=st.integers(NOW - HOUR, NOW + HOUR), is_direct=st.booleans()), max_size=6
)


@given(
    PULLS,
    st.none() | st.integers(NOW - HOUR, NOW + 9 * HOUR),
    st.none() | st.integers(NOW - HOUR, NOW + HOUR),
)
def test_every_trigger_has_a_start_within_its_bound(pulls, wake, last):
    found = start_ms(pulls, next_wake_ms=wake, last_start_ms=last, now_ms=NOW)

    assert (found is None) == (not pulls and wake is None)
    for one in pulls:
        bound = RULES.direct_throttle_ms if one.is_direct else RULES.throttle_ms
        assert found is not None
        assert found <= NOW + bound
    if wake is not None:
        assert found is not None
        assert found <= max(min(wake, NOW + RULES.max_ms), NOW + RULES.throttle_ms)
