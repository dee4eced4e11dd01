"""Run the background worker: the rules at a fixed interval, and a model where judgement is needed."""

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
from orchestrator.dashboard.worker import llm_trigger, rules_pass
from orchestrator.dashboard.worker.llm_trigger import PASSES_PER_PERIOD, BoardDigest
from orchestrator.domain.dashboard import Actor, BoardSnapshot, Caller, Dashboard
from orchestrator.domain.errors import BadRequest, NoDashboard, StoreError
from orchestrator.domain.values import Folder, Group, TurnState
from orchestrator.store.board import dashboards, worker_cycles
from orchestrator.store.board import questions as board_questions
from orchestrator.store.database import Database, Tx
from orchestrator.store.groups import groups

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 30.0
"""Seconds between two looks at most, also without an event."""
CLOCK_SLACK_MS = 60_000
"""Milliseconds by which time servers may correct the clock without another pass of the rules."""
RETENTION_MS = 30 * 24 * 3_600_000
"""Milliseconds for which the record of a pass is retained."""
PASS_EVENTS = ("turn.answered", "turn.failed", "dashboard.changed", "command.dashboard", "group.configured")
"""Events after which a pass may have work: a turn ended, or a task or perhaps a group's zone changed."""
NO_MODEL = "no model is configured for this group"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMode:
    """The parts of each pass of the dashboard worker."""

    applies_rules: bool
    """Whether the rules carry out their plan; they also replace a model that fails."""
    asks_model: bool

    @property
    def does_anything(self) -> bool:
        """Whether a pass applies the rules or asks the model."""
        return self.applies_rules or self.asks_model


def worker_mode(*, enabled: bool, use_llm: bool, fallback_to_rules: bool) -> WorkerMode:
    """Return what the dashboard worker does, by three settings.

    `enabled` is whether it does anything, `use_llm` whether it asks models. `fallback_to_rules` is whether
    the rules change dashboards, also in place of a model that fails; without it they only find the cases for
    the model.
    """
    return WorkerMode(applies_rules=enabled and fallback_to_rules, asks_model=enabled and use_llm)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPorts:
    """The functions and settings that the worker needs; `DashboardFeature` passes them in."""

    mode: WorkerMode
    beat_ms: int
    """Milliseconds between two passes of the rules over a dashboard."""
    hours_of: Callable[[Group], Hours]
    service_context: Callable[[Tx, Group, Caller], ServiceContext]
    has_model: Callable[[Group], bool]
    queue: Callable[..., Awaitable[int]]
    """`(tx, group, *, now_ms)`: queue a worker's turn and return its number."""


class WorkerLoop:
    """Runs the passes over all dashboards. A pass over one dashboard is one transaction, which also queues
    the model's turn.
    """

    def __init__(
        self, database: Database, ports: WorkerPorts, *, clock: Clock, wakeups: Wakeups, bus: EventBus
    ) -> None:
        """`ports` are the functions and settings that the loop needs from the rest of the dashboard."""
        self._database = database
        self._ports = ports
        self._clock = clock
        self._wakeups = wakeups
        self._bus = bus
        self._compared_revision: str | None = None
        """The groups' revision when all dashboards were last given the time zones of their groups.

        The revision changes with each change of a group. None before the first time.
        """

    async def run(self) -> None:
        """Run the rules over the dashboards that are due, again and again, until the task is cancelled."""
        # Listening begins before the first pass, so that no event during the pass is missed.
        with self._bus.listening(*PASS_EVENTS) as events:
            while True:
                await until_next(events, at_most_seconds=await self.beat())

    async def beat(self) -> float:
        """Run the rules over every dashboard that is due; return how many seconds to wait for the next call.

        Before that, record how models' turns have ended, and recompute deadlines where a group's time zone
        was changed. An error in one dashboard or turn is logged, and does not stop the others.

        Raises:
            StoreError: the database cannot be written; some dashboards may not have been looked at.
        """
        # Ended turns first: if a model failed, the rules do its work without waiting for the next pass.
        await self._settle_models()
        await self._follow_zones()
        now_ms = self._clock.now_ms()
        latest_ms = now_ms + self._ports.beat_ms + CLOCK_SLACK_MS
        due = await self._database.write(partial(_due_dashboards, now_ms=now_ms, latest_ms=latest_ms))
        # One transaction for each, so that a board with many tasks holds up nobody else's messages for long.
        for dashboard in due:
            try:
                await self.update_dashboard(dashboard.folder)
            except StoreError:  # then no other dashboard can be written, either
                raise
            except Exception as error:
                log.exception("Worker Agent: a dashboard cannot be looked at", group=dashboard.folder)
                await self._note_failed_pass(dashboard.folder, f"{type(error).__name__}: {error}")
        next_ms = await self._database.read(dashboards.next_rules_ms)
        if next_ms is None:
            return SWEEP_SECONDS
        return min(SWEEP_SECONDS, max(0.0, (next_ms - self._clock.now_ms()) / 1000))

    async def _follow_zones(self) -> None:
        """Recompute the deadlines of whole days for each group whose time zone was changed.

        An error with one group is logged, and does not stop the others. Raises `StoreError` if the database
        cannot be written.
        """
        groups_revision, all_groups, boards = await self._database.read(self._boards_to_compare)
        groups_by_folder = {group.folder: group for group in all_groups}
        has_failed = False
        for dashboard in boards:
            # A dashboard whose group is gone has no zone to compare with, and is left alone.
            group = groups_by_folder.get(dashboard.folder)
            try:
                if group is not None and self._ports.hours_of(group).zone.key != dashboard.zone:
                    await self._follow_zone(dashboard.folder)
            except StoreError:  # then no other dashboard can be written, either
                raise
            except Exception:
                log.exception("Worker Agent: a time zone cannot be followed", group=dashboard.folder)
                has_failed = True
        # After this, all are compared again only once a group was changed; after a failure, at the next pass.
        if not has_failed:
            self._compared_revision = groups_revision

    async def _follow_zone(self, folder: Folder) -> None:
        """Recompute the deadlines of whole days of a dashboard for the present time zone of its group."""
        async with self._database.transaction() as tx:
            dashboard = await dashboards.get(tx, folder)
            group = await groups.known(tx, folder)
            assert dashboard is not None
            caller = Caller(actor=Actor.WORKER, now_ms=self._clock.now_ms())
            ctx = self._ports.service_context(tx, group, caller)
            # `_follow_zones` found that the stored zone is not the group's present one. Without a stored one,
            # the dashboard is new or was changed by an undo: it is not known whether the zone changed.
            await tasks.follow_zone(ctx, is_changed=dashboard.zone is not None)

    async def _boards_to_compare(self, tx: Tx) -> tuple[str, list[Group], list[Dashboard]]:
        """Return the revision of the groups, all groups, and the dashboards whose time zone may be outdated.

        If no group has changed since the last comparison, only the dashboards that have no zone yet are
        returned, for this runs at each pass. Without dashboards to compare, no groups are returned either.
        """
        revision = await groups.revision(tx)
        if revision == self._compared_revision:
            boards = await dashboards.without_zone(tx)
        else:
            boards = await dashboards.every(tx)
        all_groups = await groups.every(tx) if boards else []
        return revision, all_groups, boards

    async def update_dashboard(self, folder: Folder) -> None:
        """Run the rules over one dashboard, queue a model's turn if it is needed, and set the next pass.

        Nothing happens if the group has no dashboard. If the group itself is gone, or the mode does nothing,
        no rules run and no turn is queued.
        """
        async with self._database.transaction() as tx:
            dashboard = await dashboards.get(tx, folder)
            if dashboard is None:
                return
            group = await groups.by_folder(tx, folder)
            if group is not None and self._ports.mode.does_anything:
                await self._run_pass(tx, dashboard, group)
            await self._note_pass(tx, folder)
            # The regular time was just set; a deadline may need a pass before it.
            await dashboards.hasten_rules(tx)
        self._wakeups.notifications.set()
        self._wakeups.lanes.set()
        self._bus.publish("worker.rules", group=folder)

    async def _note_failed_pass(self, folder: Folder, reason: str) -> None:
        """Record that a pass over a dashboard has failed, and when it is tried again: not at once."""
        now_ms = self._clock.now_ms()
        async with self._database.transaction() as tx:
            pass_id = await worker_cycles.begin(tx, folder, "rules", trigger={}, now_ms=now_ms)
            await worker_cycles.end(tx, pass_id, "error", detail={}, error=reason, now_ms=now_ms)
            await self._note_pass(tx, folder)

    async def _note_pass(self, tx: Tx, folder: Folder) -> None:
        """Set the time of the next pass over a dashboard, and delete records older than `RETENTION_MS`."""
        now_ms = self._clock.now_ms()
        await dashboards.note_rules(tx, folder, now_ms=now_ms, next_ms=now_ms + self._ports.beat_ms)
        await worker_cycles.forget_passes(tx, folder, before_ms=now_ms - RETENTION_MS)

    async def _run_pass(self, tx: Tx, dashboard: Dashboard, group: Group) -> None:
        """Run the rules over a dashboard, and queue a model's turn if one is needed."""
        snapshot = await board.snapshot(tx, dashboard.folder)
        assert snapshot is not None
        report = await self._run_rules(tx, group, snapshot)
        if self._ports.mode.asks_model:
            await self._ask_model_if_needed(tx, dashboard, group, report)

    async def _run_rules(
        self, tx: Tx, group: Group, snapshot: BoardSnapshot, *, why: str = "heartbeat"
    ) -> rules_pass.PassReport:
        """Run the rules over a dashboard and return a report of this pass.

        In a mode in which the rules change nothing, the steps are only planned. `why` is recorded as the
        reason of the pass; `heartbeat` is the regular pass.
        """
        now_ms = self._clock.now_ms()
        hours = self._ports.hours_of(group)
        if not self._ports.mode.applies_rules:
            return await rules_pass.preview(tx, snapshot, hours, now_ms=now_ms)
        ctx = self._ports.service_context(tx, group, Caller(actor=Actor.WORKER, now_ms=now_ms))
        return await rules_pass.apply(ctx, snapshot, hours, why=why)

    # The model

    async def _ask_model_if_needed(
        self, tx: Tx, dashboard: Dashboard, group: Group, report: rules_pass.PassReport
    ) -> None:
        """Queue a model's turn if the dashboard needs one and none is open."""
        now_ms = self._clock.now_ms()
        digest = BoardDigest.of(report.snapshot, report.plan.to_judge)
        why = llm_trigger.why_ask(
            dashboard, digest, now_ms=now_ms, period_ms=PASSES_PER_PERIOD * self._ports.beat_ms
        )
        # One turn at a time for a dashboard: a second one would be shown the same state.
        if why is None or await worker_cycles.open_model_turn(tx, group.folder) is not None:
            return
        await self.ask_model(tx, group, digest, why=why, to_judge=report.plan.to_judge)

    async def ask_now(self, folder: str) -> int:
        """Queue a turn in which a model updates a group's dashboard, and return the turn's number.

        If one is queued or runs already, its number is returned.

        Raises:
            UnknownGroup: there is no such group.
            BadRequest: the group has no dashboard, or no model is configured for it.
        """
        async with self._database.transaction() as tx:
            group = await groups.known(tx, folder)
            snapshot = await board.snapshot(tx, group.folder)
            if snapshot is None:
                raise NoDashboard(group.folder)
            turn_id = await worker_cycles.open_model_turn(tx, group.folder)
            if turn_id is None and self._ports.has_model(group):
                now_ms = self._clock.now_ms()
                report = await rules_pass.preview(tx, snapshot, self._ports.hours_of(group), now_ms=now_ms)
                to_judge = report.plan.to_judge
                digest = BoardDigest.of(snapshot, to_judge)
                turn_id = await self.ask_model(tx, group, digest, why="by hand", to_judge=to_judge)
        if turn_id is None:
            raise BadRequest(f"Nothing was asked: {NO_MODEL}.")
        self._wakeups.lanes.set()
        return turn_id

    async def ask_model(
        self, tx: Tx, group: Group, digest: BoardDigest, *, why: str, to_judge: tuple[str, ...]
    ) -> int | None:
        """Queue a turn in which a model updates a dashboard, and return its number.

        `digest` describes the dashboard as it is now, and `to_judge` are the cases for the model. They are
        recorded, the cases up to `MAX_NOTED`, together with the reason `why`. Return None if no model is
        configured for the group; that is recorded, too.
        """
        now_ms = self._clock.now_ms()
        if not self._ports.has_model(group):
            await self._note_no_model(tx, group, digest)
            return None
        turn_id = await self._ports.queue(tx, group, now_ms=now_ms)
        # The digest is stored now: the model judges the dashboard as it is when it is asked, not as it will
        # be when it has answered.
        trigger = {"why": why, "to_judge": list(to_judge[: rules_pass.MAX_NOTED]), "digest": str(digest)}
        await worker_cycles.begin(tx, group.folder, "llm", trigger=trigger, turn_id=turn_id, now_ms=now_ms)
        log.info("Worker Agent: model asked", group=group.folder, why=why, turn=turn_id)
        return turn_id

    async def _note_no_model(self, tx: Tx, group: Group, digest: BoardDigest) -> None:
        """Record that no model is available to update a dashboard.

        The dashboard counts as judged, so that no model is asked again before it changes. In a mode without
        rules, this is recorded and logged as an error.
        """
        dashboard = await dashboards.get(tx, group.folder)
        assert dashboard is not None
        now_ms = self._clock.now_ms()
        await dashboards.note_worker(
            tx, group.folder, now_ms=now_ms, revision=dashboard.revision, digest=str(digest)
        )
        if self._ports.mode.applies_rules:
            return
        pass_id = await worker_cycles.begin(tx, group.folder, "llm", trigger={}, now_ms=now_ms)
        await worker_cycles.end(tx, pass_id, "error", detail={}, error=NO_MODEL, now_ms=now_ms)
        log.error("Worker Agent: nothing keeps this dashboard up", group=group.folder, reason=NO_MODEL)

    async def _settle_models(self) -> None:
        """Record how the turns ended in which models updated dashboards; for a failed one, run the rules."""
        # Read from the store and not from events, so a turn that ended while the host was down counts too.
        for ended in await self._database.read(worker_cycles.ended_model_passes):
            try:
                async with self._database.transaction() as tx:
                    await self._settle(tx, ended)
            except StoreError:  # then no other turn can be recorded, either
                raise
            except Exception as error:
                log.exception("Worker Agent: a turn's end cannot be recorded", group=ended.folder)
                await self._note_unrecorded(ended, f"{type(error).__name__}: {error}")

    async def _note_unrecorded(self, ended: worker_cycles.EndedPass, reason: str) -> None:
        """End the record of a model's turn as an error: `reason` says why its results were not recorded."""
        async with self._database.transaction() as tx:
            detail = {"turn": ended.turn_id}
            now_ms = self._clock.now_ms()
            await worker_cycles.end(tx, ended.pass_id, "error", detail=detail, error=reason, now_ms=now_ms)

    async def _settle(self, tx: Tx, ended: worker_cycles.EndedPass) -> None:
        """Record how a turn ended in which a model updated a dashboard.

        If it failed, run the rules instead. If the dashboard or its group is gone, only the end is recorded.
        """
        now_ms = self._clock.now_ms()
        is_answered = ended.state is TurnState.ANSWERED
        dashboard = await dashboards.get(tx, ended.folder)
        group = await groups.by_folder(tx, ended.folder)
        detail: dict[str, Any] = {"turn": ended.turn_id}
        if dashboard is not None and group is not None:
            if is_answered:
                detail |= await self._note_judged(tx, ended, dashboard)
            else:
                detail |= await self._run_rules_instead(tx, ended, group, dashboard)
        outcome = "error"
        if is_answered:
            outcome = "action" if detail.get("changed") else "noop"
        error = None if is_answered else ended.reason
        await worker_cycles.end(tx, ended.pass_id, outcome, detail=detail, error=error, now_ms=now_ms)
        log.info("Worker Agent: model done", group=ended.folder, outcome=outcome, turn=ended.turn_id)

    async def _note_judged(
        self, tx: Tx, ended: worker_cycles.EndedPass, dashboard: Dashboard
    ) -> dict[str, Any]:
        """Record that a model has judged a dashboard in a turn that ended well.

        Answers that the model was shown count as read, unless they were replaced since. A digest of what
        counts as judged is stored. That is the dashboard as it is now or, if others changed a task during the
        turn, as the model was shown it; in both cases with the cases that the model was asked about. Return
        the details for the record of the turn.
        """
        now_ms = self._clock.now_ms()
        for question_id in await worker_cycles.shown_answers(tx, ended.turn_id):
            await board_questions.note_processed(tx, ended.folder, question_id, now_ms=now_ms)
        digest = ended.digest
        # If nobody else changed a task during the turn, the present dashboard is as the model left it, so the
        # model's own changes need no second look.
        if not await worker_cycles.was_changed_by_others(tx, ended.turn_id, ended.folder):
            snapshot = await board.snapshot(tx, ended.folder)
            assert snapshot is not None
            # Only the content is hashed anew. The cases to judge stay those that the model was asked about,
            # so that one which came up since then counts as new.
            digest = str(
                BoardDigest(
                    content_hash=BoardDigest.of(snapshot, ()).content_hash, cases_hash=_cases_hash(digest)
                )
            )
        await dashboards.note_worker(
            tx, ended.folder, now_ms=now_ms, revision=dashboard.revision, digest=digest
        )
        return {"changed": await worker_cycles.changed_by(tx, ended.turn_id)}

    async def _run_rules_instead(
        self, tx: Tx, ended: worker_cycles.EndedPass, group: Group, dashboard: Dashboard
    ) -> dict[str, Any]:
        """Run the rules over a dashboard in place of a model whose turn failed.

        The model gets another turn a period later; nothing counts as judged until then. In a mode without
        rules, nothing else happens. Return the details for the record of the turn.
        """
        now_ms = self._clock.now_ms()
        await dashboards.note_worker(
            tx, ended.folder, now_ms=now_ms, revision=dashboard.revision, digest=_as_failed(ended.digest)
        )
        if not self._ports.mode.applies_rules:
            log.error("Worker Agent: the model failed", group=ended.folder, reason=ended.reason)
            return {"fell_back": False}
        log.warning(
            "Worker Agent: the model failed, the rules stand in", group=ended.folder, reason=ended.reason
        )
        snapshot = await board.snapshot(tx, ended.folder)
        assert snapshot is not None
        report = await self._run_rules(tx, group, snapshot, why="fallback")
        return {"fell_back": True, **report.to_detail()}


async def _due_dashboards(tx: Tx, *, now_ms: int, latest_ms: int) -> list[Dashboard]:
    """Correct the times of the rules' next passes, and return the dashboards over which they run now.

    No next pass is properly planned later than `latest_ms`. One that is was planned before the clock was set
    back; it becomes now. A pass that is later than the next alert about a deadline is moved to that alert.
    """
    await dashboards.follow_clock(tx, now_ms=now_ms, latest_ms=latest_ms)
    await dashboards.hasten_rules(tx)
    return await dashboards.due_for_rules(tx, now_ms)


def _cases_hash(digest: str) -> str:
    """Return the hash, in a dashboard's stored digest, of the cases that only a model can judge.

    Empty if there were no such cases.
    """
    parsed = BoardDigest.read(digest)
    return parsed.cases_hash if parsed else ""


def _as_failed(digest: str) -> str:
    """Return a dashboard's stored digest with the mark that the model's turn about it failed."""
    parsed = BoardDigest.read(digest)
    return str(replace(parsed, has_failed=True)) if parsed else ""
