from __future__ import annotations

import asyncio

import pytest

from orchestrator.base.wakeups import Wakeup, Wakeups
from tests.support.until import DEADLINE_SECONDS

DEADLINE = DEADLINE_SECONDS


async def wait(hint, *, at_most=None):
    async with asyncio.timeout(DEADLINE):
        await hint.wait(at_most_seconds=at_most)


async def test_a_hint_given_before_the_wait_wakes_at_once():
    hint = Wakeup()
    hint.set()

    await wait(hint)


async def test_a_hint_wakes_who_waits():
    hint = Wakeup()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(wait(hint))
        await asyncio.sleep(0)
        hint.set()


async def test_many_hints_wake_once():
    hint = Wakeup()
    for _ in range(3):
        hint.set()
    await wait(hint)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await hint.wait(at_most_seconds=None)


async def test_without_a_hint_the_wait_ends_by_itself():
    await wait(Wakeup(), at_most=0)
    await wait(Wakeup(), at_most=0.001)


async def test_a_cancelled_wait_is_cancelled():
    waiting = asyncio.create_task(Wakeup().wait(at_most_seconds=60))
    await asyncio.sleep(0)
    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_each_loop_has_a_hint_of_its_own():
    wakeups = Wakeups()

    assert len({id(each) for each in (wakeups.lanes, wakeups.outbox, wakeups.scheduler, wakeups.reaper)}) == 4
