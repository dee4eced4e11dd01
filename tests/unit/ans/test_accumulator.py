"""Batches, windows and counts: N-20 to N-23."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_runner.ans.accumulator import MAX_REMEMBERED, MAX_WAITING, POINTS, Accumulator
from agent_runner.ans.event import EventLevel, NoticeEvent
from agent_runner.ans.notification import NoticeBatch
from agent_runner.ans.subscriber import parse_subscriber


class Probe:
    """An accumulator with its clock, told of events by their number."""

    def __init__(self, subscriber, clock, happen) -> None:
        self.accumulator = Accumulator(subscriber)
        self.clock = clock
        self._happen = happen
        self._order = 0

    def happens(self, number: object = 0, *, after_ms: int = 0, **more) -> None:
        self.clock.advance(after_ms)
        self._order += 1
        self.accumulator.accept(self._happen(number=number, **more), order=self._order)

    def told(self, point="after_tool", *, after_ms: int = 0) -> list[list[tuple[object, int]]]:
        """Drain a point: what each notification tells, with how often."""
        self.clock.advance(after_ms)
        self.accumulator.close_windows(self.clock.ms)
        found = [
            (each, [(entry.event.payload["number"], entry.count) for entry in each.entries])
            for each in self.accumulator.due({point})
        ]
        for each, _ in found:
            self.accumulator.mark_delivered(each)
        return [numbers for _, numbers in found]


@pytest.fixture
def probe(subscriber, clock, happen):
    def make(**changes) -> Probe:
        return Probe(subscriber(**changes), clock, happen)

    return make


def test_a_single_event_is_told_when_its_point_is_drained_inside_the_window(probe):
    """N-20, and B.12-1: a single failure was never told."""
    it = probe()
    it.happens(1)

    assert it.told("turn_start") == []
    assert it.told() == [[(1, 1)]]
    assert it.told() == []


def test_what_comes_in_one_window_is_one_notification_and_what_comes_after_it_another(probe):
    """N-20: the window is over."""
    it = probe(batching__window_ms=1_000)
    it.happens(1)
    it.happens(2, after_ms=999)
    it.happens(3, after_ms=1)

    assert it.told() == [[(1, 1), (2, 1)], [(3, 1)]]


def test_a_window_that_is_over_closes_without_another_event(probe):
    """N-20, and B.12-1: windows were never looked at."""
    it = probe(batching__window_ms=1_000)
    it.happens(1)
    it.clock.advance(1_000)
    it.accumulator.close_windows(it.clock.ms)
    it.happens(2)

    assert it.told() == [[(1, 1)], [(2, 1)]]


def test_a_full_batch_is_a_notification_before_its_window_is_over(probe):
    """N-20: the size is reached."""
    it = probe(batching__max_size=2)
    for number in range(5):
        it.happens(number)

    assert it.told() == [[(0, 1), (1, 1)], [(2, 1), (3, 1)], [(4, 1)]]


def test_without_a_window_each_is_told_by_itself(probe):
    """N-20."""
    it = probe(batching__window_ms=0)
    it.happens(1)
    it.happens(2)

    assert it.told() == [[(1, 1)], [(2, 1)]]


def test_a_clock_that_is_set_back_holds_nothing_up(probe):
    """N-20."""
    it = probe(
        batching__window_ms=1_000, batching__dedupe_window_ms=1_000, batching__dedupe_key="payload.number"
    )
    it.happens(1)
    it.happens(2, after_ms=-3_600_000)

    assert it.told() == [[(1, 1)], [(2, 1)]]
    assert it.accumulator.remembered == 1


def deduping(probe, **changes):
    return probe(batching__dedupe_window_ms=5_000, batching__dedupe_key="type:payload.tool_name", **changes)


def test_the_same_inside_the_window_is_counted_and_not_added(probe):
    """N-21, and B.12-3: what came again was dropped without a count."""
    it = deduping(probe)
    for number in range(3):
        it.happens(number, tool_name="Read")
    it.happens(9, tool_name="Bash")

    assert it.told() == [[(2, 3), (9, 1)]]


def test_the_same_after_the_window_is_new(probe):
    """N-21."""
    it = deduping(probe)
    it.happens(1, tool_name="Read")
    it.happens(2, tool_name="Read", after_ms=5_000)

    assert it.told() == [[(1, 1)], [(2, 1)]]


def test_what_was_told_and_comes_again_is_told_at_the_third_time_with_the_count(probe):
    """N-21: three that failed one after another, each told of in between."""
    it = deduping(probe)
    it.happens(1, tool_name="Read")
    assert it.told() == [[(1, 1)]]
    it.happens(2, tool_name="Read")
    assert it.told() == []
    it.happens(3, tool_name="Read")
    assert it.told() == [[(3, 3)]]


def test_what_was_told_and_came_again_is_told_when_the_window_is_over(probe):
    """N-21: nothing is lost by being the same."""
    it = deduping(probe)
    it.happens(1, tool_name="Read")
    it.told()
    it.happens(2, tool_name="Read", after_ms=1_000)
    assert it.accumulator.pending == 1

    assert it.told(after_ms=3_999) == []
    assert it.told(after_ms=1) == [[(2, 2)]]
    assert it.accumulator.pending == 0


def test_what_was_told_and_came_again_is_told_with_the_next_turn_at_the_latest(probe):
    """N-21."""
    it = deduping(probe)
    it.happens(1, tool_name="Read")
    it.told()
    it.happens(2, tool_name="Read")
    it.accumulator.carry_over(it.clock.ms)

    assert it.told("turn_start") == [[(2, 2)]]


def test_what_it_remembers_is_forgotten_with_its_window(probe):
    """N-21, and B.12-16: the map was never pruned."""
    it = deduping(probe)
    for number in range(500):
        it.happens(number, tool_name=f"t{number}", after_ms=20)
    assert it.accumulator.remembered <= 251

    it.clock.advance(5_000)
    it.accumulator.close_windows(it.clock.ms)
    assert it.accumulator.remembered == 0


def test_what_it_remembers_is_bounded_in_a_flood_and_nothing_is_lost(probe):
    """N-21, and B.12-16."""
    it = deduping(probe)
    told = []
    for number in range(3 * MAX_REMEMBERED):
        it.happens(number, tool_name=f"t{number}")
        told += it.told() if number % 100 == 0 else []

    assert it.accumulator.remembered == MAX_REMEMBERED
    assert sum(len(each) for each in told + it.told()) == 3 * MAX_REMEMBERED


def test_of_a_flood_that_nobody_takes_what_is_too_much_is_counted_by_type(probe):
    """N-26: memory has an end, and the count has none."""
    it = probe(batching__window_ms=0)
    for number in range(MAX_WAITING + 700):
        it.happens(number)
    assert it.accumulator.pending == MAX_WAITING + 700

    told = [each for notification in it.told() for each in notification]

    assert len(told) == MAX_WAITING
    assert told[-1] == (MAX_WAITING + 699, 701)
    it.happens(0)
    assert it.told() == [[(0, 1)]]


@pytest.mark.parametrize("how", ["severity", "payload", "subscriber"])
def test_what_is_critical_waits_for_no_batch(probe, how):
    """N-22."""
    it = probe(**({"output__priority": "critical"} if how == "subscriber" else {}))
    more = {"severity": {"severity": "critical"}, "payload": {"priority": "critical"}}.get(how, {})
    it.happens(1, **more)
    it.happens(2, **more)

    assert it.told() == [[(1, 1)], [(2, 1)]]


def test_the_payload_of_the_first_says_how_urgent_it_is_and_when(probe):
    """N-23."""
    it = probe()
    it.happens(1, priority="high", inject_at="turn_start")
    it.happens(2, priority="high", inject_at="turn_start")
    it.happens(3)

    (first,) = it.accumulator.due({"turn_start"})

    assert (first.priority, first.inject_at, first.is_addressed) == ("high", "turn_start", True)
    assert [entry.event.payload["number"] for entry in first.entries] == [1, 2]
    assert it.told("turn_start") == [[(1, 1), (2, 1)]]
    assert it.told() == [[(3, 1)]]


@pytest.mark.parametrize("value", ["urgent", "", 3, None, ["high"], {"a": 1}])
def test_a_payload_that_says_nothing_sensible_is_told_as_the_subscriber_says(probe, value):
    """N-23."""
    it = probe()
    it.happens(1, priority=value, inject_at=value)

    (only,) = it.accumulator.due({"after_tool"})

    assert (only.priority, only.inject_at, only.is_addressed) == ("normal", "after_tool", False)


def test_what_was_due_and_not_told_is_due_at_any_later_point(probe):
    """N-20, N-24: what does not fit stays for the next time."""
    it = probe()
    it.happens(1)
    (due,) = it.accumulator.due({"after_tool"})

    assert it.accumulator.due({"turn_end"}) == [due]


def test_a_part_of_a_table_may_be_told_and_the_rest_stays(probe):
    """N-26."""
    it = probe()
    for number in range(5):
        it.happens(number)
    (whole,) = it.accumulator.due({"after_tool"})

    it.accumulator.mark_delivered(whole.first_half())

    assert it.told() == [[(3, 1), (4, 1)]]


BEGIN = datetime(2026, 11, 22, tzinfo=UTC)
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("happens"), st.integers(0, 4), st.sampled_from([EventLevel.INFO, EventLevel.CRITICAL])
        ),
        st.tuples(st.just("passes"), st.integers(0, 4_000), st.none()),
        st.tuples(st.just("drains"), st.sampled_from(POINTS), st.integers(1, 3)),
        st.tuples(st.just("carries"), st.none(), st.none()),
    ),
    max_size=60,
)


@settings(max_examples=120)
@given(
    steps=steps,
    window_ms=st.sampled_from([0, 500, 2_000]),
    max_size=st.integers(1, 4),
    dedupe_window_ms=st.sampled_from([0, 1_000, 6_000]),
    point=st.sampled_from(POINTS),
    most_waiting=st.sampled_from([2, 500]),
)
def test_whatever_happens_nothing_is_lost_nothing_told_twice_and_order_is_kept(
    steps, window_ms, max_size, dedupe_window_ms, point, most_waiting
):
    """N-20, N-21, N-22: over all that may come together."""
    accumulator = Accumulator(
        parse_subscriber(
            f"""[subscriber]\nid = "probe"\nname = "n"\n[events]\ntypes = ["a.*"]\n
            [batching]\nwindow_ms = {window_ms}\nmax_size = {max_size}\ndedupe_key = "payload.what"
            dedupe_window_ms = {dedupe_window_ms}\n[output]\ntemplate = "a.j2"\ninject_at = "{point}"\n"""
        ),
        most_waiting=most_waiting,
    )
    now, order = BEGIN, 0
    happened: Counter[int] = Counter()
    told: Counter[int] = Counter()

    def tell(notifications: list[NoticeBatch]) -> None:
        orders = [entry.order for each in notifications for entry in each.entries]
        if not dedupe_window_ms:
            assert orders == sorted(orders), "first come, first told"
        for each in notifications:
            assert 1 <= len(each.entries) <= max_size
            for entry in each.entries:
                told[entry.event.payload["what"]] += entry.count - entry.delivered_count
            accumulator.mark_delivered(each)

    for step, value, more in steps:
        match step:
            case "happens":
                order += 1
                happened[value] += 1
                event = NoticeEvent(
                    type="a.b", source="s", timestamp=now, payload={"what": value}, severity=more
                )
                accumulator.accept(event, order=order)
            case "passes":
                now += timedelta(milliseconds=value)
            case "drains":
                accumulator.close_windows(int(now.timestamp() * 1000))
                tell(accumulator.due({value})[:more])
            case "carries":
                accumulator.carry_over(int(now.timestamp() * 1000))
        assert accumulator.pending == happened.total() - told.total()

    accumulator.carry_over(int(now.timestamp() * 1000))
    tell(accumulator.due({point}))
    assert told.total() == happened.total()
    assert told == happened or most_waiting <= len(steps)
    assert accumulator.pending == 0
