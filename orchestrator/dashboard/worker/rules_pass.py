"""Run the rules over one dashboard: plan the steps and carry them out, in one transaction."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any, assert_never

import structlog

from orchestrator.dashboard.rules import dedupe
from orchestrator.dashboard.rules.plan import BoardState, plan
from orchestrator.dashboard.rules.slots import Hours
from orchestrator.dashboard.rules.steps import (
    DAY_MS,
    AlertHistory,
    ArchiveTask,
    Ask,
    ChangeStatus,
    CloseQuestion,
    Notify,
    PastAlert,
    RulePlan,
    Skip,
    Step,
    WithdrawNotification,
)
from orchestrator.dashboard.services import notifications, questions, tasks
from orchestrator.dashboard.services.context import ServiceContext
from orchestrator.domain.dashboard import BoardSnapshot, NotificationType, ToolRefused
from orchestrator.domain.values import Folder
from orchestrator.store.board import deliveries as board_deliveries
from orchestrator.store.board import questions as board_questions
from orchestrator.store.board import worker_cycles
from orchestrator.store.database import Tx, all_or_nothing

log = structlog.get_logger(__name__)

PAST_MS = 10 * DAY_MS
"""Milliseconds of notification history that the rules read: longer than any cooldown and any alert's lead."""
MAX_NOTED = 50
"""The largest number of steps, skips and troubles that is stored with a pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReport:
    """The plan of one pass of the rules, and its results."""

    plan: RulePlan
    snapshot: BoardSnapshot
    done: tuple[dict[str, Any], ...]
    """The steps that were carried out, as `describe_step` returns them."""
    skipped: tuple[dict[str, Any], ...]
    """The steps that were not, each with the reason as `why`."""

    @property
    def outcome(self) -> str:
        """The outcome in one word: `action` if a step was carried out, else `noop`."""
        return "action" if self.done else "noop"

    def to_detail(self) -> dict[str, Any]:
        """Return the report as data, to be stored with the record of the pass; long lists are cut."""
        # The number of steps that were carried out, by their kind.
        kinds: dict[str, int] = {}
        for row in self.done:
            kinds[row["what"]] = kinds.get(row["what"], 0) + 1
        return {
            "done": kinds,
            "steps": list(self.done[:MAX_NOTED]),
            "skipped": list(self.skipped[:MAX_NOTED]),
            "skipped_count": len(self.skipped),
            "troubles": [{"row": row.row_id, "why": row.reason} for row in self.plan.troubles[:MAX_NOTED]],
            "to_judge": list(self.plan.to_judge[:MAX_NOTED]),
        }


async def preview(tx: Tx, snapshot: BoardSnapshot, hours: Hours, *, now_ms: int) -> PassReport:
    """Return the plan of the rules for a dashboard, without changing anything."""
    past = await _alert_history(tx, snapshot.dashboard.folder, now_ms=now_ms)
    planned = plan(BoardState(snapshot=snapshot, past=past, hours=hours, now_ms=now_ms))
    skipped = tuple(_describe_skip(step) for step in planned.skipped)
    return PassReport(plan=planned, snapshot=snapshot, done=(), skipped=skipped)


async def apply(
    ctx: ServiceContext, snapshot: BoardSnapshot, hours: Hours, *, why: str = "heartbeat"
) -> PassReport:
    """Run the rules over a dashboard: plan the steps, carry them out, and record the pass with its results.

    `why` is recorded as its reason. A step that fails does not stop the others.
    """
    tx, folder, now_ms = ctx.tx, ctx.folder, ctx.now_ms
    pass_id = await worker_cycles.begin(tx, folder, "rules", trigger={"why": why}, now_ms=now_ms)
    log.info("Worker Agent: rules begin", group=folder, why=why)
    # Planned in the transaction that carries it out, so the plan cannot be outdated.
    planned = await preview(tx, snapshot, hours, now_ms=now_ms)
    done: list[dict[str, Any]] = []
    skipped = list(planned.skipped)
    for step in planned.plan.actions:
        await _try_step(ctx, step, done, skipped)
    report = PassReport(
        plan=planned.plan, snapshot=planned.snapshot, done=tuple(done), skipped=tuple(skipped)
    )
    detail = report.to_detail()
    await worker_cycles.end(tx, pass_id, report.outcome, detail=detail, now_ms=now_ms)
    for trouble in planned.plan.troubles:
        log.warning("Worker Agent: a task cannot be looked at", task=trouble.row_id, reason=trouble.reason)
    log.info("Worker Agent: rules end", group=folder, done=detail["done"], skipped=len(report.skipped))
    return report


async def _try_step(
    ctx: ServiceContext, step: Step, done: list[dict[str, Any]], skipped: list[dict[str, Any]]
) -> None:
    """Carry out one step of the rules, and append its record to `done`.

    If it is refused or breaks a constraint of the database, its changes are rolled back, and the record goes
    to `skipped` with the reason.
    """
    described = describe_step(step)
    try:
        async with all_or_nothing(ctx.tx):  # the changes of other steps stay
            done.append(described | await _carry_out(ctx, step))
    except ToolRefused as refused:
        skipped.append(described | {"why": _refusal_reason(refused)})
    except sqlite3.IntegrityError as error:
        log.exception("Worker Agent: a step failed", group=ctx.folder, step=described)
        skipped.append(described | {"why": str(error)})


async def _carry_out(ctx: ServiceContext, step: Step) -> dict[str, Any]:
    """Carry out one step of the rules; return {"id": id of the row that it added}, empty if it added none.

    Raises `ToolRefused` if it may not be done.
    """
    match step:
        case ChangeStatus(task_id=task_id, status=status):
            await tasks.update(ctx, task_id, tasks.TaskChanges(status=status))
        case ArchiveTask(task_id=task_id):
            await tasks.move_to_history(ctx, task_id=task_id)
        case Ask():
            result = await questions.create(
                ctx,
                question=step.question,
                priority=step.priority,
                type=step.type,
                related_task_id=step.task_id,
            )
            return {"id": result.data["id"]}
        case CloseQuestion(question_id=question_id, reason=reason):
            await questions.remove(ctx, question_id=question_id, reason=reason)
        case Notify(request=request):
            outcome = await notifications.try_schedule(ctx, request)
            # Raised again so that `_try_step` undoes the step like any other that is refused.
            if outcome.refused is not None:
                raise outcome.refused
            assert outcome.notification is not None
            return {"id": outcome.notification.id}
        case WithdrawNotification(notification_id=notification_id, reason=reason):
            await notifications.cancel(ctx, notification_id=notification_id, reason=reason)
        case Skip():
            pass
        case _:
            assert_never(step)
    return {}


def _refusal_reason(refused: ToolRefused) -> str:
    """Return why a step of the rules was refused, for the record of their pass."""
    ids = refused.data.get("ids") or []
    return f"duplicate of {ids[0]}" if refused.code == "DUPLICATE" and ids else f"{refused.code}: {refused}"


def describe_step(step: Step) -> dict[str, Any]:
    """Return a step of the rules as data, for the record of their pass.

    It has the step's kind as `what`, the row's id, and its values.
    """
    match step:
        case ChangeStatus(task_id=task_id, status=status):
            return {"what": "status", "row": task_id, "to": status.value}
        case ArchiveTask(task_id=task_id):
            return {"what": "history", "row": task_id}
        case Ask(task_id=task_id, type=kind):
            return {"what": "question", "row": task_id, "type": kind.value}
        case (
            CloseQuestion(question_id=row_id, reason=reason)
            | WithdrawNotification(notification_id=row_id, reason=reason)
        ):
            action = "close_question" if isinstance(step, CloseQuestion) else "cancel_notification"
            return {"what": action, "row": row_id, "reason": reason}
        case Notify(request=request):
            row = request.task_id or request.question_id
            return {"what": "notification", "row": row, "type": request.type.value, "cause": request.cause}
        case Skip():
            return _describe_skip(step)
        case _:
            assert_never(step)


def _describe_skip(step: Skip) -> dict[str, Any]:
    """Return a step that the rules do not take as data, with the reason, for the record of their pass."""
    return {"what": step.what, "row": step.row_id, "why": step.why}


async def _alert_history(tx: Tx, folder: Folder, *, now_ms: int) -> AlertHistory:
    """Return a group's earlier alerts and questions, by which the rules see whether new ones come too soon.

    `alerts` are those of the last `PAST_MS` that were delivered, or cancelled by anybody but the rules: see
    `_counts_for_rules`. `asked` and `settled` are not limited in time. For each task and type of question,
    `asked` has the time when such a question was last shown, answered or closed; `settled` has the time when
    one was last answered, or closed for a reason that is not in `dedupe.UNSETTLED`.
    """
    past_alerts: dict[str, list[PastAlert]] = {}
    for row in await board_deliveries.delivered_or_cancelled(tx, folder, since_ms=now_ms - PAST_MS):
        if not _counts_for_rules(row["cause"], row["cancel_reason"]):
            continue
        alert = PastAlert(
            type=NotificationType(row["type"]),
            cause=row["cause"],
            delivered_ms=row["delivered_ms"],
            cancelled_ms=row["cancelled_ms"],
        )
        # An alert about both a task and its question is listed under both ids.
        for key in {row["task_id"], row["question_id"]} - {None}:
            past_alerts.setdefault(key, []).append(alert)
    last_asked = await board_questions.last_times(tx, folder)
    settled = await board_questions.settled(tx, folder, unsettled=dedupe.UNSETTLED)
    return AlertHistory(
        asked=last_asked, settled=settled, alerts={key: tuple(rows) for key, rows in past_alerts.items()}
    )


def _counts_for_rules(cause: str | None, cancel_reason: str | None) -> bool:
    """Return whether a delivered or cancelled notification counts when the rules decide about new ones.

    It does not if the rules cancelled it themselves, or if its deadline was moved since. `cause` is the rule
    that made it, or SUPERSEDED, which replaces the rule when the deadline is moved; `cancel_reason` is why it
    was cancelled. Each is None if there is none.
    """
    return cause != dedupe.SUPERSEDED and not (cancel_reason or "").startswith(notifications.RULE_REASONS)
