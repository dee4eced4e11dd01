"""A group that is asked again and again does not take the store from the others.

Each look of a loop at the store is one for which somebody else waits: all take turns at one lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from orchestrator.base import event_bus
from orchestrator.outbound.presence import Reactions, TypingSigns
from tests.support.store_harness import StoreHarness
from tests.support.until import until
from tests.support.worker_harness import WorkerHarness

TURNS = 20


def the_signs_of_typing(harness: StoreHarness) -> Callable[[], Awaitable[None]]:
    return TypingSigns(harness.database, channel_for=lambda _: None, bus=harness.bus).run


def the_reactions(harness: StoreHarness) -> Callable[[], Awaitable[None]]:
    return Reactions(harness.database, channel_for=lambda _: None, bus=harness.bus).run


def the_worker(harness: StoreHarness) -> Callable[[], Awaitable[None]]:
    return WorkerHarness(harness).worker.run


@pytest.mark.parametrize(("loop", "reads"), [(the_signs_of_typing, 1), (the_reactions, 2), (the_worker, 3)])
async def test_turns_that_follow_each_other_at_once_are_looked_at_once(
    store_harness: StoreHarness,
    monkeypatch: pytest.MonkeyPatch,
    loop: Callable[[StoreHarness], Callable[[], Awaitable[None]]],
    reads: int,
) -> None:
    """`reads` is the number of reads until a loop has looked once."""
    monkeypatch.setattr(event_bus, "PAUSE_SECONDS", 3_600.0)
    await store_harness.add_group()
    read, count = store_harness.database.read, 0

    async def counted(query: Callable[[Any], Awaitable[Any]]) -> Any:
        nonlocal count
        count += 1
        return await read(query)

    monkeypatch.setattr(store_harness.database, "read", counted)
    task = asyncio.create_task(loop(store_harness)(), name="loop")
    await until(lambda: count >= reads, "it has looked once")
    for _ in range(TURNS):
        store_harness.bus.publish("turn.answered", group="family")
        for _ in range(reads + 1):
            # Who waits for the store has it before this returns.
            await read(_nothing)
    task.cancel()
    await asyncio.wait([task])

    assert count == reads


async def _nothing(_: Any) -> None:
    """Read nothing."""
