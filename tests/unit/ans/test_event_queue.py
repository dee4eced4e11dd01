"""The queue of events of one run: N-10, N-12 and N-13."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent_runner.ans.event import EventLevel, NoticeEvent
from agent_runner.ans.event_queue import DROPPED, MAX_PENDING, RETAINED_AT_OVERFLOW, EventQueue


def event(
    event_type: str = "tool.call.success", severity: EventLevel = EventLevel.INFO, number: int = 0
) -> NoticeEvent:
    return NoticeEvent(type=event_type, source="test", severity=severity, payload={"number": number})


def numbers(events: list[NoticeEvent]) -> list[int]:
    return [each.payload["number"] for each in events if each.type != DROPPED]


def test_what_is_emitted_waits_in_order_until_it_is_taken():
    """N-10."""
    queue = EventQueue()
    for number in range(3):
        queue.emit(event(number=number))

    assert queue.pending_count == 3
    assert numbers(queue.drain_pending()) == [0, 1, 2]
    assert queue.drain_pending() == []


def test_room_is_made_before_the_next_event_of_the_least_severe_the_oldest_first():
    """N-12."""
    queue = EventQueue(limit=6, retained=3)
    severities = [
        EventLevel.INFO,
        EventLevel.DEBUG,
        EventLevel.ERROR,
        EventLevel.WARNING,
        EventLevel.DEBUG,
        EventLevel.INFO,
    ]
    for number, severity in enumerate(severities):
        queue.emit(event(severity=severity, number=number))
    queue.emit(event(number=6))

    # Of three to be kept one is the error; the warning and the newer info are the best of the others.
    assert numbers(queue.drain_pending()) == [2, 3, 5, 6]


def test_the_numbers_are_a_thousand_and_half_of_it():
    """N-12."""
    queue = EventQueue()
    for number in range(MAX_PENDING):
        queue.emit(event(number=number))
    assert queue.pending_count == MAX_PENDING == 1_000

    queue.emit(event(number=MAX_PENDING))

    assert numbers(queue.drain_pending()) == list(range(MAX_PENDING - RETAINED_AT_OVERFLOW, MAX_PENDING + 1))


def test_what_was_dropped_is_told_in_an_event_that_counts_it():
    """N-12."""
    queue = EventQueue(limit=4, retained=2)
    for number in range(3):
        queue.emit(event("a.b", number=number))
    for number in range(3):
        queue.emit(event("a.c", number=number))

    *_, last = queue.drain_pending()

    assert last.type == DROPPED
    assert last.severity is EventLevel.WARNING
    assert last.payload["count"] == 2
    assert last.payload["types"] == "2 a.b"
    assert queue.drain_pending() == []


def test_no_error_is_dropped_however_many_there_are():
    """N-12: those beyond the limit were only counted."""
    queue = EventQueue(limit=10, retained=5)
    for number in range(25):
        queue.emit(event("tool.call.failure", EventLevel.ERROR, number))
    queue.emit(event("tool.call.success", EventLevel.INFO, 25))

    *waiting, last = queue.drain_pending()

    assert numbers(waiting) == list(range(25))
    assert last.payload["message"] == "1 events were dropped: 1 tool.call.success"
    queue.emit(event("tool.call.success", EventLevel.INFO, 26))
    assert numbers(queue.drain_pending()) == [26]


@given(st.lists(st.sampled_from(EventLevel), max_size=80))
def test_order_is_kept_errors_stay_and_everything_is_accounted_for(severities):
    """N-12, N-13, and B.12-10: order was scrambled after a drop."""
    queue = EventQueue(limit=10, retained=5)
    for number, severity in enumerate(severities):
        queue.emit(event(severity=severity, number=number))
        errors = [place for place, each in enumerate(severities[: number + 1]) if each >= EventLevel.ERROR]
        assert queue.pending_count <= max(10, len(errors))

    events = queue.drain_pending()
    left = numbers(events)
    dropped = events[-1].payload["count"] if events and events[-1].type == DROPPED else 0

    assert left == sorted(left)
    assert len(left) + dropped == len(severities)
    errors = [number for number, severity in enumerate(severities) if severity >= EventLevel.ERROR]
    assert set(errors) <= set(left)
