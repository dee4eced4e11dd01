from __future__ import annotations

import asyncio
from contextlib import suppress

from orchestrator.base import event_bus
from orchestrator.base.event_bus import QUEUE, RING, EventBus, until_next
from tests.doubles.clock import START_MS, FakeClock


def test_an_event_reaches_all_who_listen_now():
    bus = EventBus(FakeClock())
    with bus.listening() as one, bus.listening() as other:
        bus.publish("turn.started", group="family", turn=3)

    assert one.get_nowait() is other.get_nowait()
    bus.publish("turn.answered")
    assert one.empty()


def test_who_wants_some_kinds_hears_those_alone():
    bus = EventBus(FakeClock())
    with bus.listening("trigger:*", "turn.failed") as heard:
        for kind in ("trigger:chat", "turn.started", "trigger:whatever", "turn.failed", "xtrigger:chat"):
            bus.publish(kind)

    assert [heard.get_nowait().kind for _ in range(heard.qsize())] == [
        "trigger:chat",
        "trigger:whatever",
        "turn.failed",
    ]


def test_an_event_tells_what_it_has():
    bus = EventBus(FakeClock())
    bus.publish("turn.started", group="family", turn=3)

    assert bus.ring[0].to_json_dict() == {
        "n": 1,
        "at_ms": START_MS,
        "kind": "turn.started",
        "group": "family",
        "turn": 3,
    }


def test_the_last_thousand_are_kept():
    bus = EventBus(FakeClock())
    for _ in range(RING + 5):
        bus.publish("tick")

    assert [bus.ring[0].n, bus.ring[-1].n, len(bus.ring)] == [6, RING + 5, RING]


def test_who_falls_behind_loses_the_oldest_and_holds_nobody():
    bus = EventBus(FakeClock())
    with bus.listening() as slow:
        for _ in range(QUEUE + 5):
            bus.publish("tick")

        assert slow.qsize() == QUEUE
        assert slow.get_nowait().n == 6


def test_a_listener_that_leaves_is_forgotten_even_when_it_fails():
    bus = EventBus(FakeClock())
    with suppress(LookupError), bus.listening() as queue:
        raise LookupError
    bus.publish("tick")

    assert queue.empty()


def test_what_passes_reaches_who_asks_for_it_and_is_kept_nowhere():
    bus = EventBus(FakeClock())
    tapped = []
    bus.taps.append(tapped.append)
    bus.publish_transient("agent.text", turn=3)
    with bus.listening() as others, bus.listening("agent.*", with_transient=True) as watching:
        bus.publish_transient("agent.text", turn=3)
        bus.publish_transient("other.kind")
        bus.publish("agent.lasting")

        assert [watching.get_nowait().kind for _ in range(watching.qsize())] == [
            "agent.text",
            "agent.lasting",
        ]
        assert [others.get_nowait().kind for _ in range(others.qsize())] == ["agent.lasting"]
    assert [event.kind for event in bus.ring] == [event.kind for event in tapped] == ["agent.lasting"]
    bus.publish_transient("agent.text")
    assert watching.empty()


async def test_one_look_serves_all_that_has_happened(monkeypatch):
    monkeypatch.setattr(event_bus, "PAUSE_SECONDS", 0.0)
    bus = EventBus(FakeClock())
    with bus.listening() as events:
        for _ in range(5):
            bus.publish("turn.answered")
        await until_next(events, at_most_seconds=60)
        assert events.empty()
        await until_next(events, at_most_seconds=0)


async def test_two_looks_are_a_while_apart(monkeypatch):
    monkeypatch.setattr(event_bus, "PAUSE_SECONDS", 3_600.0)
    bus = EventBus(FakeClock())
    with bus.listening() as events:
        bus.publish("turn.answered")
        waiting = asyncio.create_task(until_next(events, at_most_seconds=3_600), name="waiting")
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
