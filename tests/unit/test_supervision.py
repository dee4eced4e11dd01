from __future__ import annotations

import asyncio

import pytest

from orchestrator.base import supervision as supervising
from orchestrator.base.supervision import (
    HEALTHY_MS,
    LONGEST_OTHER_PAUSE_SECONDS,
    MAX_FAILURES,
    REPORTED_FAILURES,
    LoopFailure,
    Supervisor,
)
from orchestrator.domain.errors import StoreError
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


async def supervise(name, loop, *, clock, **changes):
    """Run an essential loop."""
    await Supervisor(clock=clock, essential={name}, **changes).run(name, loop)


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


async def test_an_error_of_a_loop_that_is_cancelled_does_not_keep_the_host_from_ending():
    runs = []

    async def loop():
        runs.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            if len(runs) == 1:
                raise LookupError

    task = asyncio.create_task(supervise("x", loop, clock=FakeClock()))
    while not runs:
        await asyncio.wait([task], timeout=0)
    task.cancel()
    while not task.done() and len(runs) == 1:
        await asyncio.wait([task], timeout=0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert runs == ["begun"]


class Host:
    """A supervisor with one loop that is not essential, and what it has reported."""

    def __init__(self, *, report_fails=0):
        self.clock = FakeClock()
        self.reported: list[LoopFailure] = []
        self.report_fails = report_fails
        self.supervisor = Supervisor(
            clock=self.clock, essential={"delivery"}, endless=lambda name: name == "web", report=self.report
        )

    async def report(self, failure):
        if self.report_fails:
            self.report_fails -= 1
            raise OSError("the disk is full")
        self.reported.append(failure)


async def test_a_loop_that_is_not_essential_ends_nothing_and_is_tried_for_ever_with_growing_pauses(pauses):
    host = Host()
    loop = Loop(5 * MAX_FAILURES)
    await host.supervisor.run("channel:x", loop)

    assert loop.runs == 5 * MAX_FAILURES + 1
    assert pauses[-1] == max(pauses) == LONGEST_OTHER_PAUSE_SECONDS
    assert [(one.name, one.reason) for one in host.reported] == [("channel:x", "LookupError: failure 3")]


async def test_a_report_that_fails_is_made_again(pauses):
    host = Host(report_fails=2)
    await host.supervisor.run("channel:x", Loop(MAX_FAILURES))

    assert [one.failures for one in host.reported] == [REPORTED_FAILURES + 2]


async def test_what_fails_on_after_a_full_disk_is_reported(pauses):
    host = Host()
    full = StoreError("the disk is full")
    left = [LookupError("half a file"), BaseExceptionGroup("x", [full]), full] * REPORTED_FAILURES
    left.sort(key=lambda error: not isinstance(error, LookupError))  # the last is raised first

    async def loop():
        if left:
            raise left.pop()

    await host.supervisor.run("channel:x", loop)

    assert [one.reason for one in host.reported] == ["LookupError: half a file"]


async def test_what_is_waited_out_brings_an_essential_loop_no_nearer_to_its_last_failure(pauses):
    left = [LookupError("half a file"), *[StoreError("the disk is full")] * (2 * MAX_FAILURES)]

    async def loop():
        if left:
            raise left.pop()

    await supervise("x", loop, clock=FakeClock())

    assert left == []


@pytest.mark.parametrize(
    "error",
    [SystemExit(1), asyncio.CancelledError(), BaseExceptionGroup("x", [SystemExit(), ValueError("y")])],
)
async def test_what_a_library_raises_to_end_the_program_is_a_failure_of_its_loop(pauses, error):
    host = Host()
    left = [error] * REPORTED_FAILURES

    async def loop():
        if left:
            raise left.pop()

    await host.supervisor.run("channel:x", loop)

    assert len(host.reported) == 1


async def test_an_endless_loop_that_returns_has_failed(pauses):
    host = Host()
    runs = []

    async def loop():
        runs.append(1)
        if len(runs) > REPORTED_FAILURES:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await host.supervisor.run("web", loop)

    assert host.reported[0].reason.startswith("LoopEnded")


async def test_a_loop_that_works_again_is_not_said_to_fail(pauses):
    host = Host()
    seen = []

    async def loop():
        seen.append(sorted(host.supervisor.failing()))
        if len(seen) == 1:
            raise ValueError("sk-ant-api03-a-secret-that-nobody-may-read-0123456789")
        host.clock.pass_ms(HEALTHY_MS + 1)
        seen.append(sorted(host.supervisor.failing()))

    await host.supervisor.run("channel:x", loop)

    assert seen == [[], ["channel:x"], []]


async def test_a_clock_that_is_set_back_makes_no_working_loop_a_failing_one(pauses):
    host = Host()
    seen = []

    async def loop():
        if not seen:
            seen.append("failed")
            raise LookupError("once")
        host.clock.wall_ms -= 3_600_000
        host.clock.pass_ms(HEALTHY_MS + 1)
        seen.append(sorted(host.supervisor.failing()))

    await host.supervisor.run("channel:x", loop)

    assert seen == ["failed", []]
