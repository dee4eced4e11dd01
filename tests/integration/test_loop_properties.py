"""Whatever happens to a loop, in whatever order: one cycle at a time, no trigger waits beyond its bound."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.domain.values import Turn, TurnKind
from orchestrator.loop.wake_policy import RULES
from orchestrator.store.database import Database
from tests.doubles.clock import FakeClock
from tests.support.household import Household
from tests.support.loop_harness import LoopHouse, at

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

    def __init__(self, house: LoopHouse) -> None:
        self.house = house
        self.running: Turn | None = None

    async def do(self, step: str, value: int) -> None:
        house = self.house
        match step:
            case "pass":
                house.house.clock.pass_ms(value * 7_000)
            case "hear":
                await house.house.hear("hello")
            case "trigger":
                await house.trigger()
            case "restart":
                house.loops = house.another_host()
                await house.loops.wake_up()
            case "wake" | "pause" | "resume":
                await house.act(step)
            case _:
                await self._work(step, value)
        await house.look()
        await self.check()

    async def _work(self, step: str, value: int) -> None:
        """What lanes and containers do: a whole cycle, or a part of one."""
        house = self.house
        if step == "cycle":
            await house.act("resume")
            await house.house.hear("hello")
        if step in ("begin", "cycle") and self.running is None:
            self.running = await house.start()
        if step == "begin" or self.running is None:
            return
        turn, self.running = self.running, None
        if step in ("die", "fail"):
            await house.fail(turn, is_retryable=step == "die")
        else:
            await house.end(turn, ANSWERS[value])

    async def check(self) -> None:
        house = self.house
        assert len(await house.running()) <= 1
        assert (await house.waiting()).count(TurnKind.AUTO) <= 1
        open_cycles = [cycle for cycle in await house.cycles() if cycle.ended_ms is None]
        assert len(open_cycles) <= 1
        for cycle in await house.cycles():
            if cycle.schedule_applied_ms is not None:
                assert RULES.min_ms <= cycle.schedule_applied_ms <= RULES.max_ms
        loop = await house.loop()
        assert RULES.base_ms <= loop.auto_ms <= RULES.base_ms * RULES.max_factor
        assert loop.next_wake_ms is not None
        assert loop.next_wake_ms <= house.house.clock.now_ms() + RULES.max_ms

    async def settle(self) -> None:
        """Nothing is in the way any more: what is pending has its cycle within the bound."""
        house = self.house
        await house.act("resume")
        if self.running is not None:
            await house.end(self.running, SILENT)
        await house.house.deliver_all()
        pending = await house.pending()
        began_ms = house.house.clock.now_ms()
        bound_ms = RULES.throttle_ms + 15_000 + 80_000 + SLACK_MS  # a warm-up, the longest pause of a retry
        while pending and await house.pending():
            assert house.house.clock.now_ms() - began_ms <= bound_ms, "a trigger waits for ever"
            await house.look()
            turn = await house.start()
            if turn is not None:
                await house.end(turn, SILENT)
            else:
                house.house.clock.pass_ms(1_000)
        for kind, key in [
            (row["kind"], row["cycle_id"]) for row in await house.house.rows("SELECT * FROM wakes")
        ]:
            assert key is not None, f"{kind} was dropped"


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
                house = LoopHouse(Household(database, FakeClock()))
                house.set("10:00:00")
                await house.on(next_wake_ms=at("10:05:00"))
                course = Course(house)
                for step, value in steps:
                    await course.do(step, value)
                await course.settle()
            finally:
                await database.close()

    asyncio.run(run())
