"""A loop that keeps failing ends the host only if it is that of the queue or of the outbox."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from orchestrator.base import supervision
from orchestrator.base.supervision import MAX_FAILURES, Supervisor
from orchestrator.groups.failed_parts import DAY_MS, ESSENTIAL_LOOPS, is_endless, report_failed_part
from tests.support.host_contexts import host_context
from tests.support.store_harness import StoreHarness


class Host:
    """The supervisor of a host whose group `main` has a chat."""

    def __init__(self, harness: StoreHarness) -> None:
        self.harness = harness
        self.supervisor = Supervisor(
            clock=harness.clock,
            essential=ESSENTIAL_LOOPS,
            endless=is_endless,
            report=partial(report_failed_part, host_context(harness)),
        )

    async def fail(self, name: str, *, times: int) -> int:
        """Run a loop that fails so often and then waits until it is cancelled; return its runs."""
        runs = 0
        is_well = asyncio.Event()

        async def loop() -> None:
            nonlocal runs
            runs += 1
            if runs <= times:
                raise TypeError("members_only is a required argument")
            is_well.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(self.supervisor.run(name, loop))
        well = asyncio.create_task(is_well.wait())
        await asyncio.wait([task, well], return_when=asyncio.FIRST_COMPLETED)
        well.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
            return runs
        await task
        return runs

    async def notices(self) -> list[str]:
        return [one.text for one in await self.harness.outgoing() if "has stopped working" in one.text]


@pytest.fixture
async def host(store_harness: StoreHarness, monkeypatch: pytest.MonkeyPatch) -> Host:
    sleep = asyncio.sleep
    monkeypatch.setattr(supervision.asyncio, "sleep", lambda _: sleep(0))
    await store_harness.add_group("main", is_main=True)
    return Host(store_harness)


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("channel:pigeon", "see 'andy channels status pigeon'; upgrade it, or 'andy channels remove pigeon'"),
        ("calendars", "'andy logs' has the details for a bug report"),
    ],
)
async def test_a_part_that_fails_for_ever_ends_nothing_and_the_owner_reads_the_fix_once_a_day(
    host: Host, name: str, fix: str
) -> None:
    assert await host.fail(name, times=5 * MAX_FAILURES) == 5 * MAX_FAILURES + 1
    host.harness.clock.pass_ms(60_000)
    assert await host.fail(name, times=MAX_FAILURES) == MAX_FAILURES + 1
    (notice,) = await host.notices()
    assert "(TypeError: members_only is a required argument)" in notice
    assert fix in notice
    host.harness.clock.pass_ms(DAY_MS)
    await host.fail(name, times=MAX_FAILURES)
    assert len(await host.notices()) == 2


@pytest.mark.parametrize("name", ["availability", "delivery", "dispatcher", "reaper"])
async def test_what_queue_and_outbox_need_ends_the_host_after_ten_failures(host: Host, name: str) -> None:
    with pytest.raises(TypeError):
        await host.fail(name, times=MAX_FAILURES)


@pytest.mark.parametrize(
    ("name", "is_failure"), [("channel:pigeon", True), ("web", True), ("prepare", False)]
)
async def test_a_messenger_that_returns_has_failed(host: Host, name: str, *, is_failure: bool) -> None:
    """Otherwise nothing would be heard there any more, and nobody would know."""
    ends = 0
    is_over = asyncio.Event()

    async def end() -> None:
        nonlocal ends
        ends += 1
        if ends == MAX_FAILURES:
            is_over.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(host.supervisor.run(name, end))
    task.add_done_callback(lambda _: is_over.set())
    await is_over.wait()
    task.cancel()
    await asyncio.wait([task])
    assert (ends, len(await host.notices())) == ((MAX_FAILURES, 1) if is_failure else (1, 0))
