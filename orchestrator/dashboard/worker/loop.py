"""Run the background worker: the rules at each beat, and a model where something calls for judgement."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog

from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus, until_next
from orchestrator.base.wakeups import Wakeups
from orchestrator.dashboard.rules.slots import Hours
from orchestrator.dashboard.services import tasks
from orchestrator.dashboard.services.context import ServiceContext
from orchestrator.dashboard.views import board
from orchestrator.dashboard.worker import cycle, llm_trigger
from orchestrator.dashboard.worker.llm_trigger import PERIODS, BoardDigest
from orchestrator.domain.dashboard import Actor, BoardSnapshot, Caller, Dashboard
from orchestrator.domain.errors import BadRequest, NoDashboard
from orchestrator.domain.values import Folder, Group, TurnState
from orchestrator.store import dashboard_cycles, dashboard_questions, dashboards, groups
from orchestrator.store.database import Database, Tx

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 30.0
KEPT_MS = 30 * 24 * 3_600_000
"""So long what a cycle did can be looked up."""
ENDS = ("turn.answered", "turn.failed", "dashboard.changed", "command.dashboard", "group.configured")
"""Events after which a pass may have work: a turn ended, a task changed, or a group's zone may differ."""
NO_MODEL = "no model is configured for this group"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMode:
    """The parts of each pass of the dashboard worker."""

    applies_rules: bool
    """The rules do what they plan, and stand in for a model that fails."""
    asks_model: bool

    @property
    def does_anything(self) -> bool:
        """Return whether a beat does anything at all."""
        return self.applies_rules or self.asks_model


def worker_mode(*, enabled: bool, use_llm: bool, fallback_to_rules: bool) -> WorkerMode:
    """Return the mode that the settings ask for; without the fallback, rules only look for what to judge."""
    return WorkerMode(applies_rules=enabled and fallback_to_rules, asks_model=enabled and use_llm)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPorts:
    """The functions and settings that the worker needs; `DashboardFeature` passes them in."""

    mode: WorkerMode
    beat_ms: int
    hours_of: Callable[[Group], Hours]
    service_context: Callable[[Tx, Group, Caller], ServiceContext]
    has_model: Callable[[Group], bool]
    queue: Callable[..., Awaitable[int]]
    """`(tx, group, *, now_ms)`: queue a worker's turn and give its number."""


class WorkerLoop:
    """Looks after all dashboards. One pass over one dashboard is one transaction, its model turn included."""

    def __init__(
        self, database: Database, ports: WorkerPorts, *, clock: Clock, wakeups: Wakeups, bus: EventBus
    ) -> None:
        self._database = database
        self._ports = ports
        self._clock = clock
        self._wakeups = wakeups
        self._bus = bus

    async def run(self) -> None:
        """Look after the dashboards until the task is cancelled."""
        # Listening begins before the first beat, so nothing that happens during it is missed.
        with self._bus.listening(*ENDS) as events:
            while True:
                await until_next(events, at_most_seconds=await self.beat())

    async def beat(self) -> float:
        """Look after every dashboard that is due, and return in how many seconds to look again."""
        # First what ended: a failed turn lets the rules stand in within this very beat.
        await self._settle_models()
        await self._follow_zones()
        due = await self._database.write(partial(_due, now_ms=self._clock.now_ms()))
        # One transaction for each, so that a board with many tasks holds up nobody else's messages for long.
        for dashboard in due:
            await self.look_after(dashboard.folder)
        next_ms = await self._database.read(dashboards.next_rules_ms)
        if next_ms is None:
            return SWEEP_SECONDS
        return min(SWEEP_SECONDS, max(0.0, (next_ms - self._clock.now_ms()) / 1000))

    async def _follow_zones(self) -> None:
        """Recompute the days of deadlines of each group whose time zone was changed."""
        everyone, boards = await self._database.read(_groups_and_boards)
        zones = {group.folder: self._ports.hours_of(group).zone.key for group in everyone}
        # Compared outside of a transaction: zones hardly ever change, and this runs at each beat.
        for folder in [one.folder for one in boards if zones.get(one.folder, one.zone) != one.zone]:
            async with self._database.transaction() as tx:
                dashboard, group = await dashboards.get(tx, folder), await groups.known(tx, folder)
                assert dashboard is not None
                caller = Caller(actor=Actor.WORKER, now_ms=self._clock.now_ms())
                ctx = self._ports.service_context(tx, group, caller)
                await tasks.follow_zone(ctx, is_news=dashboard.zone is not None)

    async def look_after(self, folder: Folder) -> None:
        """Run the rules over one dashboard, and queue a model's turn if that is called for."""
        async with self._database.transaction() as tx:
            dashboard, group = await dashboards.get(tx, folder), await groups.by_folder(tx, folder)
            if dashboard is None:
                return
            if group is not None and self._ports.mode.does_anything:
                await self._pass(tx, dashboard, group)
            now_ms = self._clock.now_ms()
            await dashboards.note_rules(tx, folder, now_ms=now_ms, next_ms=now_ms + self._ports.beat_ms)
            # Again, because the next time was just set and a deadline may come before it.
            await dashboards.hasten_rules(tx)
            await dashboard_cycles.forget_cycles(tx, folder, before_ms=now_ms - KEPT_MS)
        self._wakeups.notifications.set()
        self._wakeups.lanes.set()
        self._bus.publish("worker.rules", group=folder)

    async def _pass(self, tx: Tx, dashboard: Dashboard, group: Group) -> None:
        seen = await board.snapshot(tx, dashboard.folder)
        assert seen is not None
        report = await self._rules(tx, group, seen)
        if self._ports.mode.asks_model:
            await self._ask(tx, dashboard, group, report)

    async def _rules(
        self, tx: Tx, group: Group, seen: BoardSnapshot, *, why: str = "heartbeat"
    ) -> cycle.CycleReport:
        now_ms = self._clock.now_ms()
        hours = self._ports.hours_of(group)
        if not self._ports.mode.applies_rules:
            return await cycle.preview(tx, seen, hours, now_ms=now_ms)
        ctx = self._ports.service_context(tx, group, Caller(actor=Actor.WORKER, now_ms=now_ms))
        return await cycle.apply(ctx, seen, hours, why=why)

    # The model

    async def _ask(self, tx: Tx, dashboard: Dashboard, group: Group, report: cycle.CycleReport) -> None:
        now_ms = self._clock.now_ms()
        digest = BoardDigest.of(report.snapshot, report.plan.to_judge)
        why = llm_trigger.why_ask(dashboard, digest, now_ms=now_ms, period_ms=PERIODS * self._ports.beat_ms)
        # One turn at a time for a board: a second would be shown the same.
        if why is None or await dashboard_cycles.open_model_cycle(tx, group.folder) is not None:
            return
        await self.ask(tx, group, digest, why=why, to_judge=report.plan.to_judge)

    async def ask_now(self, folder: str) -> int:
        """Queue a model's turn by hand, and return the turn's number.

        Raises:
            UnknownGroup, BadRequest: there is no dashboard, or no model is there.
        """
        async with self._database.transaction() as tx:
            group = await groups.known(tx, folder)
            seen = await board.snapshot(tx, group.folder)
            if seen is None:
                raise NoDashboard(group.folder)
            turn_id = await dashboard_cycles.open_model_cycle(tx, group.folder)
            if turn_id is None and self._ports.has_model(group):
                now_ms = self._clock.now_ms()
                report = await cycle.preview(tx, seen, self._ports.hours_of(group), now_ms=now_ms)
                to_judge = report.plan.to_judge
                digest = BoardDigest.of(seen, to_judge)
                turn_id = await self.ask(tx, group, digest, why="by hand", to_judge=to_judge)
        if turn_id is None:
            raise BadRequest(f"Nothing was asked: {NO_MODEL}.")
        self._wakeups.lanes.set()
        return turn_id

    async def ask(
        self, tx: Tx, group: Group, digest: BoardDigest, *, why: str, to_judge: tuple[str, ...]
    ) -> int | None:
        """Queue a worker's turn and return its number; None where no model answers."""
        now_ms = self._clock.now_ms()
        if not self._ports.has_model(group):
            await self._note_no_model(tx, group, digest)
            return None
        turn_id = await self._ports.queue(tx, group, now_ms=now_ms)
        # The digest is stored with the cycle: what counts as seen is the board at the question, not at the
        # answer.
        trigger = {"why": why, "to_judge": list(to_judge[: cycle.MAX_NOTED]), "digest": str(digest)}
        await dashboard_cycles.begin(tx, group.folder, "llm", trigger=trigger, turn_id=turn_id, now_ms=now_ms)
        log.info("Worker Agent: model asked", group=group.folder, why=why, turn=turn_id)
        return turn_id

    async def _note_no_model(self, tx: Tx, group: Group, digest: BoardDigest) -> None:
        """Record that no model is available: an error, unless the rules have done the pass's work."""
        dashboard = await dashboards.get(tx, group.folder)
        assert dashboard is not None
        now_ms = self._clock.now_ms()
        await dashboards.note_worker(
            tx, group.folder, now_ms=now_ms, revision=dashboard.revision, digest=str(digest)
        )
        if self._ports.mode.applies_rules:
            return
        cycle_id = await dashboard_cycles.begin(tx, group.folder, "llm", trigger={}, now_ms=now_ms)
        await dashboard_cycles.end(tx, cycle_id, "error", detail={}, error=NO_MODEL, now_ms=now_ms)
        log.error("Worker Agent: nothing keeps this dashboard up", group=group.folder, reason=NO_MODEL)

    async def _settle_models(self) -> None:
        """Write down how turns of workers ended; where one failed, the rules stand in."""
        ended = await self._database.read(dashboard_cycles.ended_model_cycles)
        # Found in the store and not by an event, so a turn that ended while the host was down counts too.
        for one in ended:
            async with self._database.transaction() as tx:
                await self._settle(tx, one)

    async def _settle(self, tx: Tx, one: dashboard_cycles.EndedCycle) -> None:
        now_ms = self._clock.now_ms()
        is_good = one.state is TurnState.ANSWERED
        dashboard, group = await dashboards.get(tx, one.folder), await groups.by_folder(tx, one.folder)
        detail: dict[str, Any] = {"turn": one.turn_id}
        if dashboard is not None and group is not None:
            if is_good:
                detail |= await self._note_judged(tx, one, dashboard)
            else:
                detail |= await self._stand_in(tx, one, group, dashboard)
        outcome = "action" if is_good and detail.get("changed") else "noop" if is_good else "error"
        error = None if is_good else one.reason
        await dashboard_cycles.end(tx, one.cycle_id, outcome, detail=detail, error=error, now_ms=now_ms)
        log.info("Worker Agent: model done", group=one.folder, outcome=outcome, turn=one.turn_id)

    async def _note_judged(
        self, tx: Tx, one: dashboard_cycles.EndedCycle, dashboard: Dashboard
    ) -> dict[str, Any]:
        """Mark as seen all that the model was shown, but no change that others made during its turn."""
        now_ms = self._clock.now_ms()
        for question_id in await dashboard_cycles.shown_answers(tx, one.turn_id):
            await dashboard_questions.note_processed(tx, one.folder, question_id, now_ms=now_ms)
        digest = one.digest
        # With no change beside it, the model's own changes are part of what it has seen.
        if not await dashboard_cycles.was_changed_beside(tx, one.turn_id, one.folder):
            seen = await board.snapshot(tx, one.folder)
            assert seen is not None
            digest = str(BoardDigest(content=BoardDigest.of(seen, ()).content, judge=_judge_of(digest)))
        await dashboards.note_worker(
            tx, one.folder, now_ms=now_ms, revision=dashboard.revision, digest=digest
        )
        return {"changed": await dashboard_cycles.changed_by(tx, one.turn_id)}

    async def _stand_in(
        self, tx: Tx, one: dashboard_cycles.EndedCycle, group: Group, dashboard: Dashboard
    ) -> dict[str, Any]:
        """The model is asked again a period later, and until then nothing counts as seen."""
        now_ms = self._clock.now_ms()
        await dashboards.note_worker(
            tx, one.folder, now_ms=now_ms, revision=dashboard.revision, digest=_failed(one.digest)
        )
        if not self._ports.mode.applies_rules:
            log.error("Worker Agent: the model failed", group=one.folder, reason=one.reason)
            return {"fell_back": False}
        log.warning("Worker Agent: the model failed, the rules stand in", group=one.folder, reason=one.reason)
        seen = await board.snapshot(tx, one.folder)
        assert seen is not None
        report = await self._rules(tx, group, seen, why="fallback")
        return {"fell_back": True, **report.to_detail()}


async def _due(tx: Tx, *, now_ms: int) -> list[Dashboard]:
    await dashboards.hasten_rules(tx)
    return await dashboards.due_for_rules(tx, now_ms)


async def _groups_and_boards(tx: Tx) -> tuple[list[Group], list[Dashboard]]:
    return await groups.every(tx), await dashboards.every(tx)


def _judge_of(digest: str) -> str:
    read = BoardDigest.read(digest)
    return read.judge if read else ""


def _failed(digest: str) -> str:
    read = BoardDigest.read(digest)
    return str(replace(read, has_failed=True)) if read else ""
