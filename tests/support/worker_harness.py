"""A host without containers whose worker keeps dashboards up to date, by rules and by a model.

A test plays the model, and decides when the worker runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

from agent_runner.wire.frames import Ack, Result, TurnEnd
from orchestrator.dashboard.rules.slots import Hours
from orchestrator.dashboard.service import DashboardService, call_tool
from orchestrator.dashboard.worker import prompt
from orchestrator.dashboard.worker.loop import WorkerLoop, WorkerMode, WorkerPorts, worker_mode
from orchestrator.domain.dashboard import Actor, Caller
from orchestrator.domain.dashboard import ToolResult as Told
from orchestrator.domain.values import Run, Turn
from orchestrator.store.board import worker_cycles
from orchestrator.store.groups import groups
from tests.support.dashboards import FOLDER
from tests.support.notification_harness import NotificationHarness

BEAT_SECONDS = 1800


@dataclass
class WorkerHarness(NotificationHarness):
    """Beats come when a test says so."""

    enabled: bool = True
    use_llm: bool = True
    fallback_to_rules: bool = True
    has_model: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        harness = self.harness
        self.service = DashboardService(
            harness.database,
            clock=harness.clock,
            zone_of=lambda _: self.hours.zone,
            can_deliver=lambda _: True,
        )
        ports = WorkerPorts(
            mode=self.mode,
            beat_ms=BEAT_SECONDS * 1000,
            hours_of=lambda _: self.hours,
            service_context=self.service.service_context,
            has_model=lambda _: self.has_model,
            queue=worker_cycles.add_turn,
        )
        self.worker = WorkerLoop(
            harness.database, ports, clock=harness.clock, wakeups=harness.wakeups, bus=harness.bus
        )

    @property
    def mode(self) -> WorkerMode:
        return worker_mode(
            enabled=self.enabled, use_llm=self.use_llm, fallback_to_rules=self.fallback_to_rules
        )

    async def move_to(self, zone: ZoneInfo) -> None:
        """Set the group's time zone, as a change of its settings does."""
        self.hours = Hours(zone=zone)
        async with self.harness.database.transaction() as tx:
            now_ms = self.harness.clock.now_ms()
            await groups.set_config(tx, FOLDER, {"timezone": zone.key}, now_ms=now_ms)

    async def cycle(self, text: str) -> dict[str, Any]:
        """Have the rules look at a time of Seoul, whenever they looked last; gives the newest cycle."""
        self.is_now(text)
        await self.worker.update_dashboard(FOLDER)
        found = await self.cycles()
        return found[-1] if found else {}

    async def call_tool(
        self, tool: str, *, actor: Actor = Actor.USER, turn: Turn | None = None, **given: Any
    ) -> Told:
        """Use a tool of the dashboard, by default as a person."""
        async with self.harness.database.transaction() as tx:
            group = await groups.known(tx, FOLDER)
            caller = Caller(
                actor=actor,
                now_ms=self.harness.clock.now_ms(),
                turn_id=turn.id if turn else None,
                is_person=actor is not Actor.WORKER,
            )
            return await call_tool(self.service.service_context(tx, group, caller), tool, given)

    # What a model does

    async def start_worker(self) -> tuple[Turn, Run, str]:
        """Start the queued turn of a worker; gives what it is asked."""
        (turn,) = [one for one in await self.harness.queued() if one.kind.value == "worker"]
        run = await self.harness.begin_run(is_isolated=True)
        async with self.harness.database.transaction() as tx:
            await tx.execute(
                "UPDATE turns SET state = 'running', run_id = ?, started_ms = 1 WHERE id = ?",
                (run.id, turn.id),
            )
            asked = await prompt.first_prompt(
                tx, turn.id, FOLDER, zone=self.hours.zone, now_ms=self.harness.clock.now_ms()
            )
        await self.harness.take(run, Ack(n=1, turn=turn.id))
        return turn, run, asked

    async def end_worker(self, turn: Turn, run: Run, *, error: str | None = None) -> None:
        await self.harness.take(run, Result(n=2, turn=turn.id, result="SILENT"))
        status = "success" if error is None else "error"
        await self.harness.take(run, TurnEnd(n=3, turn=turn.id, status=status, error=error))
        await self.worker.beat()

    # What is there then

    async def cycles(self) -> list[dict[str, Any]]:
        return await self.harness.rows("SELECT * FROM worker_cycles ORDER BY id")

    async def notifications(self) -> list[dict[str, Any]]:
        return await self.harness.rows("SELECT * FROM notifications ORDER BY due_ms, id")

    async def questions(self) -> list[dict[str, Any]]:
        return await self.harness.rows("SELECT * FROM questions ORDER BY created_ms, id")

    async def worker_turns(self) -> list[dict[str, Any]]:
        return await self.harness.rows("SELECT * FROM turns WHERE kind = 'worker' ORDER BY id")
