from __future__ import annotations

import asyncio

import pytest

from orchestrator.base import supervision as supervising
from orchestrator.base.supervision import HEALTHY_MS, MAX_FAILURES, supervise
from tests.doubles.clock import FakeClock


@pytest.fixture
def pauses(monkeypatch):
    """The pauses that were made, none of them waited for."""
    made: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds):
        made.append(seconds)
        await real(0)

    monkeypatch.setattr(supervising.asyncio, "sleep", sleep)
    return made


class Loop:
    """Fails as often as it is told, then returns."""

    def __init__(self, failures, *, clock=None, lives_ms=0):
        self.left, self.clock, self.lives_ms = failures, clock, lives_ms
        self.runs = 0

    async def __call__(self):
        self.runs += 1
        if self.clock is not None:
            self.clock.pass_ms(self.lives_ms)
        if self.left:
            self.left -= 1
            raise LookupError(f"failure {self.runs}")


async def test_a_loop_that_returns_is_done(pauses):
    loop = Loop(0)
    await supervise("x", loop, clock=FakeClock())

    assert (loop.runs, pauses) == (1, [])


async def test_a_loop_that_fails_runs_again_each_time_later(pauses):
    loop = Loop(8)
    await supervise("x", loop, clock=FakeClock())

    assert loop.runs == 9
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30]


async def test_the_tenth_failure_in_a_row_is_raised(pauses):
    loop = Loop(100)

    with pytest.raises(LookupError, match="failure 10"):
        await supervise("x", loop, clock=FakeClock())

    assert loop.runs == MAX_FAILURES == len(pauses) + 1


async def test_a_loop_that_ran_a_minute_counts_as_healthy_again(pauses):
    clock = FakeClock()
    await supervise("x", Loop(12, clock=clock, lives_ms=HEALTHY_MS + 1), clock=clock)

    assert pauses == [0.5] * 12


async def test_a_jump_of_the_wall_clock_makes_no_loop_healthy(pauses):
    clock = FakeClock()

    async def jumps():
        clock.wall_ms += 10 * HEALTHY_MS
        raise LookupError

    with pytest.raises(LookupError):
        await supervise("x", jumps, clock=clock)


async def test_cancelling_ends_it(pauses):
    async def loop():
        await asyncio.Event().wait()

    task = asyncio.create_task(supervise("x", loop, clock=FakeClock()))
    await asyncio.wait([task], timeout=0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
