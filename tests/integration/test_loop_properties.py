"""Whatever happens to a loop, in whatever order: one cycle at a time, no trigger waits beyond its bound."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.domain.values import Turn, TurnKind
from orchestrator.loop.wake_policy import RULES
from orchestrator.store.database import Database
from tests.doubles.clock import FakeClock
from tests.support.loop_harness import LoopHarness, at
from tests.support.store_harness import StoreHarness

SILENT = "<internal>nothing</internal>"
ANSWERS = [
    SILENT,
    "Something.",
    *(f'{SILENT}[SCHEDULE next="{one}"]' for one in ("30s", "now", "7m", "9h", "x")),
]
SLACK_MS = 1_000

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.integers(1, 40)),
        st.tuples(st.just("hear"), st.just(0)),
        st.tuples(st.just("trigger"), st.just(0)),
        st.tuples(st.just("wake"), st.just(0)),
        st.tuples(st.just("begin"), st.just(0)),
        st.tuples(st.just("cycle"), st.integers(0, len(ANSWERS) - 1)),
        st.tuples(st.just("end"), st.integers(0, len(ANSWERS) - 1)),
        st.tuples(st.just("die"), st.just(0)),
        st.tuples(st.just("fail"), st.just(0)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.sampled_from(["pause", "resume"]), st.just(0)),
    ),
    min_size=5,
    max_size=40,
)


class Course:
    """Carries out the steps and checks what must hold after each."""

    def __init__(self, harness: LoopHarness) -> None:
        self.harness = harness
        self.running: Turn | None = None

    async def do(self, step: str, value: int) -> None:
        harness = self.harness
        match step:
            case "pass":
                harness.harness.clock.pass_ms(value * 7_000)
            case "hear":
                await harness.harness.hear("hello")
            case "trigger":
                await harness.trigger()
            case "restart":
                harness.loops = harness.another_host()
                await harness.loops.prepare()
            case "wake" | "pause" | "resume":
                await harness.act(step)
            case _:
                await self._work(step, value)
        await harness.look()
        await self.check()

    async def _work(self, step: str, value: int) -> None:
        """What lanes and containers do: a whole cycle, or a part of one."""
        harness = self.harness
        if step == "cycle":
            await harness.act("resume")
            await harness.harness.hear("hello")
        if step in ("begin", "cycle") and self.running is None:
            self.running = await harness.start()
        if step == "begin" or self.running is None:
            return
        turn, self.running = self.running, None
        if step in ("die", "fail"):
            await harness.fail(turn, is_retryable=step == "die")
        else:
            await harness.end(turn, ANSWERS[value])

    async def check(self) -> None:
        harness = self.harness
        assert len(await harness.running()) <= 1
        assert (await harness.waiting()).count(TurnKind.AUTO) <= 1
        open_cycles = [cycle for cycle in await harness.cycles() if cycle.ended_ms is None]
        assert len(open_cycles) <= 1
        for cycle in await harness.cycles():
            if cycle.schedule_applied_ms is not None:
                assert RULES.min_ms <= cycle.schedule_applied_ms <= RULES.max_ms
        loop = await harness.loop()
        assert RULES.base_ms <= loop.auto_ms <= RULES.base_ms * RULES.max_factor
        assert loop.next_wake_ms is not None
        assert loop.next_wake_ms <= harness.harness.clock.now_ms() + RULES.max_ms

    async def settle(self) -> None:
        """Nothing is in the way any more: what is pending has its cycle within the bound."""
        harness = self.harness
        await harness.act("resume")
        if self.running is not None:
            await harness.end(self.running, SILENT)
        await harness.harness.deliver_all()
        pending = await harness.pending()
        began_ms = harness.harness.clock.now_ms()
        bound_ms = RULES.throttle_ms + 15_000 + 80_000 + SLACK_MS  # a warm-up, the longest pause of a retry
        while pending and await harness.pending():
            assert harness.harness.clock.now_ms() - began_ms <= bound_ms, "a trigger waits for ever"
            await harness.look()
            turn = await harness.start()
            if turn is not None:
                await harness.end(turn, SILENT)
            else:
                harness.harness.clock.pass_ms(1_000)
        for kind, key in [
            (row["kind"], row["cycle_id"]) for row in await harness.harness.rows("SELECT * FROM wakes")
        ]:
            assert key is not None, f"{kind} was dropped"


@pytest.mark.slow
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(STEPS)
def test_in_any_order_one_cycle_runs_and_no_trigger_is_lost(steps):
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            database = await Database.open(Path(folder) / "messages.db")
            await database._connection.execute("PRAGMA synchronous = OFF")
            try:
                harness = LoopHarness(StoreHarness(database, FakeClock()))
                harness.set("10:00:00")
                await harness.on(next_wake_ms=at("10:05:00"))
                course = Course(harness)
                for step, value in steps:
                    await course.do(step, value)
                await course.settle()
            finally:
                await database.close()

    asyncio.run(run())
