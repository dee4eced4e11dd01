"""A silence counts while the host listens, and not while it is busy or held up itself."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from orchestrator.containers.swarm.lost_nodes import CHECKS, SilenceWatch

SILENCE_SECONDS = 0.2


async def has_become_silent(watch: SilenceWatch, *, after: float) -> bool:
    watching = asyncio.create_task(watch.wait_until_silent(SILENCE_SECONDS), name="watch")
    await asyncio.wait([watching], timeout=after)
    is_silent = watching.done()
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    return is_silent


async def test_nothing_heard_becomes_a_silence():
    assert await has_become_silent(SilenceWatch(lambda: 0.0), after=60)


async def test_what_is_heard_again_and_again_is_none():
    watch = SilenceWatch(asyncio.get_running_loop().time)

    assert not await has_become_silent(watch, after=SILENCE_SECONDS * 3)


async def test_a_message_that_is_handled_for_long_is_none():
    watch = SilenceWatch(lambda: 0.0)
    with watch.handling():
        assert not await has_become_silent(watch, after=SILENCE_SECONDS * 3)

    assert await has_become_silent(watch, after=60)


async def test_a_host_that_is_held_up_counts_none_of_it():
    watch = SilenceWatch(lambda: 0.0)
    watching = asyncio.create_task(watch.wait_until_silent(SILENCE_SECONDS), name="watch")
    await asyncio.sleep(0)
    time.sleep(SILENCE_SECONDS * 2)  # noqa: ASYNC251  # the machine does not run it
    for _ in range(CHECKS):
        await asyncio.sleep(0)

    assert not watching.done()
    await watching
