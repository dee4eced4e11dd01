"""A host without containers whose agents wake by themselves.

A test starts and ends their turns, and lets the time pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from agent_runner.wire.frames import Ack, Frame, Result, TurnEnd
from orchestrator.containers import frame_effects
from orchestrator.domain.values import Folder, Run, Turn, TurnKind, TurnState
from orchestrator.inbound import prompt
from orchestrator.loop import service
from orchestrator.loop.cycle_recorder import CycleRecorder
from orchestrator.loop.cycle_starter import CycleStarter
from orchestrator.outbound.format import for_people
from orchestrator.queue import next_turns as lanes
from orchestrator.queue.retries import requeue_or_fail
from orchestrator.store.groups import groups
from orchestrator.store.loop import cycles, events, loops, wake_requests
from orchestrator.store.loop.cycles import Cycle
from orchestrator.store.loop.loops import Loop
from orchestrator.store.runs import turns
from tests.support.store_harness import StoreHarness

TAIPEI = ZoneInfo("Asia/Taipei")
MINUTE, HOUR = 60_000, 3_600_000
SILENT = "<internal>nothing to do</internal>"


def at(clock: str) -> int:
    """A time of the day on which the scenarios play."""
    day, _, time = clock.rpartition(" ")
    moment = datetime.fromisoformat(f"{day or '2026-02-14'}T{time}").replace(tzinfo=TAIPEI)
    return round(moment.timestamp() * 1000)


@dataclass
class LoopHarness:
    """One group, `family`, with its loop on, or more."""

    harness: StoreHarness
    summary: str = ""
    runs: dict[int, Run] = field(default_factory=dict)
    starts: list[tuple[str, int]] = field(default_factory=list)
    """The kind of each turn that was started, and when."""

    def __post_init__(self) -> None:
        self.numbers = itertools.count(1)
        self.spent: str | None = None
        self.stopped: list[tuple[str, str]] = []
        self.recorder = CycleRecorder(
            clock=self.harness.clock,
            zone_of=lambda _: TAIPEI,
            for_people=for_people,
            summary=self._summary,
        )
        self.loops = self.another_host()

    def another_host(self) -> CycleStarter:
        """The loops as a host has them that begins now."""
        return CycleStarter(
            self.harness.database,
            self.recorder,
            clock=self.harness.clock,
            wakeups=self.harness.wakeups,
            bus=self.harness.bus,
            why_spent=self._why_spent,
            stop_run=self._stop_run,
        )

    async def _stop_run(self, run_id: Any, reason: str) -> None:
        self.stopped.append((run_id, reason))

    async def _summary(self, tx: Any, turn: Any, group: Any) -> str:
        return self.summary

    async def _why_spent(self, tx: Any, group: Any) -> str | None:
        return self.spent

    # Time

    def set(self, clock: str) -> None:
        """Let it be that time; what is due meanwhile is not done."""
        now_ms = at(clock)
        self.harness.clock.running_ms += max(0, now_ms - self.harness.clock.wall_ms)
        self.harness.clock.wall_ms = now_ms

    async def look(self, clock: str | None = None) -> float:
        if clock is not None:
            self.set(clock)
        return await self.loops.look()

    async def until(
        self, clock: str, *, answer: str = "<internal>nothing</internal>"
    ) -> list[tuple[str, int]]:
        """Let time pass, each free cycle begun when it is due and ended at once; gives the starts."""
        before = len(self.starts)
        while True:
            await self.look()
            turn = await self.start()
            if turn is not None:
                await self.end(turn, answer)
                continue
            now_ms = self.harness.clock.wall_ms
            ahead_ms = min(await self._ahead_ms(now_ms), at(clock) - now_ms)
            if ahead_ms <= 0:
                return self.starts[before:]
            self.harness.clock.pass_ms(ahead_ms)

    async def _ahead_ms(self, now_ms: int) -> int:
        """How long nothing happens: the sweeps meanwhile are left out."""
        times = [now_ms + HOUR]
        async with self.harness.database.reading() as tx:
            for loop in await loops.alive(tx):
                start_ms = await self.loops._start_ms(tx, loop, now_ms)
                steady_ms = self.harness.clock.steady_ms()
                warm_up_ms = self.loops._missed.get(loop.folder, steady_ms) - steady_ms
                if start_ms is not None:
                    times.append(max(start_ms, now_ms + warm_up_ms))
        return max(1_000, min(times) - now_ms)

    # People

    async def on(self, folder: str = "family", **changes: Any) -> None:
        """Register a group whose loop is on and has run once: its next wake is what `changes` say."""
        await self.harness.add_group(folder, requires_trigger=False)
        await self.act("on", folder)
        await self.change(folder, **changes)

    async def change(self, folder: str = "family", **changes: Any) -> None:
        """Set columns of a loop: what came about before the scenario."""
        if changes:
            sets = ", ".join(f"{name} = :{name}" for name in changes)
            async with self.harness.database.transaction() as tx:
                await tx.execute(
                    f"UPDATE loop_state SET {sets} WHERE group_folder = :folder",
                    {**changes, "folder": folder},
                )

    async def act(self, action: str, folder: str = "family", reason: str = "") -> None:
        async with self.harness.database.transaction() as tx:
            await service.apply_action(tx, folder, action, reason=reason, now_ms=self.harness.clock.now_ms())

    async def trigger(
        self, kind: str = "workspace", *, folder: str = "family", key: str | None = None, reason: str = ""
    ) -> bool:
        async with self.harness.database.transaction() as tx:
            return await wake_requests.add(
                tx,
                Folder(folder),
                kind=kind,
                key=key or f"{kind}:{next(self.numbers)}",
                source="test",
                reason=reason,
                now_ms=self.harness.clock.now_ms(),
            )

    # The lanes and a container

    async def start(self, folder: str | None = None) -> Turn | None:
        """Begin the turn that the lanes would; None when there is none, or one runs."""
        async with self.harness.database.reading() as tx:
            unsettled = await turns.unsettled(tx)
        mine = [turn for turn in unsettled if folder in (None, turn.folder)]
        plan = lanes.plan(mine, [], cap=5, now_ms=self.harness.clock.now_ms())
        ids = [action.turn_id for action in plan.actions if isinstance(action, lanes.StartContainer)]
        if not ids:
            return None
        turn = next(turn for turn in unsettled if turn.id == ids[0])
        run = await self.harness.begin_run(turn.folder)
        async with self.harness.database.transaction() as tx:
            now_ms = self.harness.clock.now_ms()
            await turns.start(tx, turn.id, run.id, now_ms=now_ms)
            await self.recorder.begin(tx, turn)
            group = await groups.known(tx, turn.folder)
            self.order = await prompt.compose(
                tx, turn, group, run_id=run.id, name="Andy", zone=TAIPEI, now_ms=now_ms
            )
        self.runs[turn.id] = run
        self.starts.append((turn.kind.value, now_ms))
        await self.take(turn, Ack(n=1, turn=turn.id))
        return turn

    async def take(self, turn: Turn, frame: Frame) -> None:
        async with self.harness.database.transaction() as tx:
            await frame_effects.apply(
                tx,
                self.runs[turn.id],
                frame,
                requeue=requeue_or_fail,
                now_ms=self.harness.clock.now_ms(),
                on_success=self.recorder.read_schedule_tags,
            )

    async def end(self, turn: Turn, *texts: str) -> None:
        """Let a turn say something and end well, its container too, and the loop see it."""
        for number, text in enumerate(texts, start=2):
            await self.take(turn, Result(n=number, turn=turn.id, result=text))
        await self.take(turn, TurnEnd(n=len(texts) + 2, turn=turn.id))
        async with self.harness.database.transaction() as tx:
            await tx.execute("UPDATE runs SET ended_ms = 1 WHERE id = ?", (self.runs[turn.id].id,))
        await self.loops.look()

    async def fail(self, turn: Turn, *, is_retryable: bool = False) -> None:
        await self.harness.lose(self.runs[turn.id], is_retryable=is_retryable)
        await self.loops.look()

    async def cycle(self, *texts: str, ends: str | None = None) -> Turn:
        """A whole cycle of the turn that is next."""
        turn = await self.start()
        assert turn is not None
        if ends is not None:
            self.set(ends)
        await self.end(turn, *texts)
        return turn

    # What the store holds

    async def loop(self, folder: str = "family") -> Loop:
        async with self.harness.database.reading() as tx:
            found = await loops.get(tx, Folder(folder))
        assert found is not None
        return found

    async def next_wake(self, folder: str = "family") -> str:
        found = (await self.loop(folder)).next_wake_ms
        assert found is not None
        return datetime.fromtimestamp(found / 1000, TAIPEI).strftime("%H:%M:%S")

    async def cycles(self, folder: str = "family") -> list[Cycle]:
        """Oldest first."""
        async with self.harness.database.reading() as tx:
            return (await cycles.newest(tx, Folder(folder), limit=10_000))[::-1]

    async def events(self, *wanted: str) -> list[dict[str, Any]]:
        """What the loop has told, oldest first."""
        async with self.harness.database.reading() as tx:
            told = await events.newest(tx, limit=10_000)
        found = [dict(one.data) for one in told if one.kind == "action:loop"]
        return [one for one in found if not wanted or one["event"] in wanted]

    async def pending(self, folder: str = "family") -> list[str]:
        async with self.harness.database.reading() as tx:
            return [wake.kind for wake in await wake_requests.pending(tx, Folder(folder))]

    async def running(self) -> Sequence[Turn]:
        async with self.harness.database.reading() as tx:
            return [turn for turn in await turns.unsettled(tx) if turn.state is TurnState.RUNNING]

    async def waiting(self) -> list[TurnKind]:
        async with self.harness.database.reading() as tx:
            return [turn.kind for turn in await turns.unsettled(tx) if turn.state is TurnState.QUEUED]
