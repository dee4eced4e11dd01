"""The bus: N-10 to N-13."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runner.ans.bus import DROPPED, KEPT_AT_OVERFLOW, MAX_PENDING, NoticeBus
from agent_runner.ans.event import EventLevel, NoticeEvent


def event(
    event_type: str = "tool.call.success", severity: EventLevel = EventLevel.INFO, number: int = 0
) -> NoticeEvent:
    return NoticeEvent(type=event_type, source="test", severity=severity, payload={"number": number})


def numbers(events: list[NoticeEvent]) -> list[int]:
    return [each.payload["number"] for each in events if each.type != DROPPED]


def test_what_is_emitted_waits_in_order_until_it_is_taken():
    """N-10."""
    bus = NoticeBus()
    for number in range(3):
        bus.emit(event(number=number))

    assert bus.pending_count == 3
    assert numbers(bus.drain_pending()) == [0, 1, 2]
    assert bus.drain_pending() == []


def test_handlers_are_called_at_once_those_for_everything_first_exact_and_wildcard_both():
    """N-10, N-11."""
    bus, heard = NoticeBus(), []
    bus.subscribe("tool.*", lambda each: heard.append("wildcard"))
    bus.subscribe("tool.call.failure", lambda each: heard.append("exact"))
    bus.subscribe("budget.*", lambda each: heard.append("another"))
    bus.subscribe_all(lambda each: heard.append("all"))

    bus.emit(event("tool.call.failure"))

    assert heard == ["all", "wildcard", "exact"]
    assert bus.handler_count == 4


def test_a_handler_that_breaks_is_logged_and_the_others_still_run(caplog):
    """N-11."""
    bus, heard = NoticeBus(), []

    def broken(each: NoticeEvent) -> None:
        raise RuntimeError(each.payload["number"])

    bus.subscribe_all(broken)
    bus.subscribe_all(lambda each: heard.append(each.type))
    with caplog.at_level(logging.ERROR):
        bus.emit(event("a.b", number=739_184))

    assert heard == ["a.b"]
    assert "a handler of a.b broke: RuntimeError" in caplog.text
    assert "739184" not in caplog.text


def test_a_handler_that_subscribed_twice_is_called_twice_and_unsubscribes_once_at_a_time():
    """N-10, N-11."""
    bus, heard = NoticeBus(), []

    def hear(each: NoticeEvent) -> None:
        heard.append(each.type)

    bus.subscribe("a.*", hear)
    bus.subscribe("a.*", hear)
    bus.emit(event("a.b"))
    assert heard == ["a.b", "a.b"]

    assert bus.unsubscribe(hear, "a.*")
    assert not bus.unsubscribe(hear)
    bus.emit(event("a.b"))
    assert len(heard) == 3
    assert bus.unsubscribe(hear, "a.*")
    assert not bus.unsubscribe(hear, "a.*")


def test_a_handler_may_unsubscribe_while_it_is_called():
    """N-11."""
    bus, heard = NoticeBus(), []

    def once(each: NoticeEvent) -> None:
        heard.append(each.type)
        bus.unsubscribe(once)

    bus.subscribe_all(once)
    bus.emit(event("a.b"))
    bus.emit(event("a.b"))

    assert heard == ["a.b"]


def test_a_pattern_that_names_nothing_is_refused():
    """N-3, N-10."""
    with pytest.raises(ValueError, match=r"neither an event type nor 'prefix\.\*'"):
        NoticeBus().subscribe("*", print)


def test_a_disabled_bus_drops_what_is_emitted():
    """N-10."""
    bus, heard = NoticeBus(), []
    bus.subscribe_all(lambda each: heard.append(each.type))
    bus.disable()
    bus.emit(event("a.b"))
    bus.enable()
    bus.emit(event("a.c"))

    assert heard == ["a.c"]
    assert [each.type for each in bus.drain_pending()] == ["a.c"]


def test_clear_forgets_what_waits_and_what_was_dropped():
    """N-10."""
    bus = NoticeBus(limit=2, kept=1)
    for number in range(5):
        bus.emit(event(number=number))
    bus.clear()

    assert bus.drain_pending() == []


def test_room_is_made_before_the_next_event_of_the_least_severe_the_oldest_first():
    """N-12."""
    bus = NoticeBus(limit=6, kept=3)
    severities = [
        EventLevel.INFO,
        EventLevel.DEBUG,
        EventLevel.ERROR,
        EventLevel.WARNING,
        EventLevel.DEBUG,
        EventLevel.INFO,
    ]
    for number, severity in enumerate(severities):
        bus.emit(event(severity=severity, number=number))
    bus.emit(event(number=6))

    # Of three to be kept one is the error; the warning and the newer info are the best of the others.
    assert numbers(bus.drain_pending()) == [2, 3, 5, 6]


def test_the_numbers_are_a_thousand_and_half_of_it():
    """N-12."""
    bus = NoticeBus()
    for number in range(MAX_PENDING):
        bus.emit(event(number=number))
    assert bus.pending_count == MAX_PENDING == 1_000

    bus.emit(event(number=MAX_PENDING))

    assert numbers(bus.drain_pending()) == list(range(MAX_PENDING - KEPT_AT_OVERFLOW, MAX_PENDING + 1))


def test_what_was_dropped_is_told_in_an_event_that_counts_it():
    """N-12."""
    bus, heard = NoticeBus(limit=4, kept=2), []
    bus.subscribe(DROPPED, heard.append)
    for number in range(3):
        bus.emit(event("a.b", number=number))
    for number in range(3):
        bus.emit(event("a.c", number=number))

    *_, last = bus.drain_pending()

    assert last.type == DROPPED
    assert last.severity is EventLevel.WARNING
    assert last.payload["count"] == 2
    assert last.payload["types"] == "2 a.b"
    assert heard == [last]
    assert bus.drain_pending() == []


def test_no_error_is_dropped_however_many_there_are():
    """N-12: those beyond the limit were only counted."""
    bus = NoticeBus(limit=10, kept=5)
    for number in range(25):
        bus.emit(event("tool.call.failure", EventLevel.ERROR, number))
    bus.emit(event("tool.call.success", EventLevel.INFO, 25))

    *waiting, last = bus.drain_pending()

    assert numbers(waiting) == list(range(25))
    assert last.payload["message"] == "1 events were dropped: 1 tool.call.success"
    bus.emit(event("tool.call.success", EventLevel.INFO, 26))
    assert numbers(bus.drain_pending()) == [26]


@given(st.lists(st.sampled_from(EventLevel), max_size=80))
def test_order_is_kept_errors_stay_and_everything_is_accounted_for(severities):
    """N-12, N-13, and B.12-10: order was scrambled after a drop."""
    bus = NoticeBus(limit=10, kept=5)
    for number, severity in enumerate(severities):
        bus.emit(event(severity=severity, number=number))
        errors = [place for place, each in enumerate(severities[: number + 1]) if each >= EventLevel.ERROR]
        assert bus.pending_count <= max(10, len(errors))

    events = bus.drain_pending()
    left = numbers(events)
    dropped = events[-1].payload["count"] if events and events[-1].type == DROPPED else 0

    assert left == sorted(left)
    assert len(left) + dropped == len(severities)
    errors = [number for number, severity in enumerate(severities) if severity >= EventLevel.ERROR]
    assert set(errors) <= set(left)
