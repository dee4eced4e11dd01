"""Change the stored context of a group as its owner: correct, restore, forget.

The console and `andy context` call `change`: it takes a snapshot first, and starts a new session from the
changed context. The functions below it are pure: each returns the corrected contents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import structlog

from orchestrator.context import memory, script, workflow
from orchestrator.context.context_manager import ContextManager
from orchestrator.context.models import Memory
from orchestrator.context.recorder import ContextCopies
from orchestrator.context.snapshots import ContextSnapshot, SnapshotContents
from orchestrator.domain.errors import BadRequest, ContextBusy
from orchestrator.domain.values import Folder, TurnKind
from orchestrator.store import audit
from orchestrator.store.database import Database, Tx, announce
from orchestrator.store.groups import groups
from orchestrator.store.runs import sessions, turns

log = structlog.get_logger(__name__)

ChangeContext = Callable[[ContextManager, int], ContextSnapshot | None]
"""`(manager, now_ms)`: changes the context and returns the snapshot taken before. Blocks."""


class ConversationBusy(BadRequest):
    """The group's agent is answering."""

    code = "busy"
    http_status = 409


class SummaryTooLong(BadRequest):
    """The summary is too long to be stored."""

    code = "bad_summary"


async def change(
    database: Database, manager: ContextManager, copies: ContextCopies, act: ChangeContext, *, now_ms: int
) -> ContextSnapshot | None:
    """Have `act` change the stored context of a group, and end the group's agent session.

    The next session starts from the changed context. `act` is called in a thread, and returns the snapshot
    that it took of the context before the change; that is returned, None if none was needed. If the copies
    that the group's containers read cannot be written now, that is logged: the host writes them later.

    Raises:
        ConversationBusy: the group's agent is answering.
        ContextBusy, OSError: the context cannot be written; it is unchanged, as after any error of `act`.
    """
    folder = Folder(manager.files.folder)
    # All in one transaction: a turn that started in between would go on with the old session, and record it.
    async with database.transaction() as tx:
        # Turns of the dashboard's worker and isolated ones do not use the conversation's session.
        turn = await turns.running_of(tx, folder)
        if turn is not None and turn.kind is not TurnKind.WORKER and not turn.is_isolated:
            raise ConversationBusy(f"'{folder}' is answering just now: wait until it has, and try again.")
        snapshot = await asyncio.to_thread(act, manager, now_ms)
        await _end_session(tx, folder, snapshot, now_ms=now_ms)
    # The copies that the group's containers read get the change, too.
    try:
        contents = await asyncio.to_thread(manager.load, now_ms=now_ms)
        await asyncio.to_thread(copies.write, folder, contents)
    except (ContextBusy, OSError) as error:  # the change is made: an error would say that it is not
        log.warning("context.not_copied", group=folder, reason=str(error))
    return snapshot


async def _end_session(
    tx: Tx, folder: Folder, snapshot_before: ContextSnapshot | None, *, now_ms: int
) -> None:
    """End the group's session and containers after its stored context was changed, and audit that.

    The next turn begins a new session. `snapshot_before` was taken before the change; None if nothing was
    stored then, or if an earlier snapshot had the same state.
    """
    if (group := await groups.by_folder(tx, folder)) is not None:
        await sessions.forget(tx, group.folder, now_ms=now_ms)
        # The configuration is stored unchanged, but with a new time. Because of that, the group's
        # containers, which still use the old session, are ended.
        await groups.set_config(tx, group.folder, group.container_config, now_ms=now_ms)
        announce(tx, "group.configured", group=group.folder)
    detail = {"snapshot": snapshot_before.name if snapshot_before else None}
    event = audit.AuditEvent(at_ms=now_ms, kind="context.changed", folder=folder, detail=detail)
    await audit.append(tx, event)


# Corrections


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectedTask:
    """The corrected title and status of a plan's task."""

    title: str
    status: str


def with_summary(contents: SnapshotContents, text: str) -> SnapshotContents:
    """Return the contents with `text` as the summary of the conversation. Raises `SummaryTooLong`."""
    clean = text.replace("\0", "").strip()
    if script.weight(clean) > script.MAX_SUMMARY_WEIGHT:
        raise SummaryTooLong(
            "The summary is too long: it may have at most 700 characters, or 400 in Korean. Shorten it."
        )
    conversation = contents.context.conversation.model_copy(update={"running_summary": clean})
    return replace(contents, context=contents.context.model_copy(update={"conversation": conversation}))


def with_plan(
    contents: SnapshotContents,
    plan_id: str,
    *,
    title: str,
    objective: str,
    tasks: Mapping[str, CorrectedTask],
    new_task: str = "",
    now_ms: int,
) -> SnapshotContents:
    """Return the contents with a corrected plan: its title and objective, and the title and status of tasks.

    `tasks` maps ids of tasks to their corrections; other tasks are unchanged. `new_task` is the title of a
    task to add, empty for none. If the active task has ended by that, the plan's next one becomes active.

    Raises:
        UnknownPlan, UnknownPlanTask: no such plan or task exists.
        PlanRefused: a field cannot be stored.
    """
    plans = workflow.with_plan_text(
        contents.workflow, plan_id, title=title, objective=objective, now_ms=now_ms
    )
    for task_id, correction in tasks.items():
        task = workflow.known_task(workflow.known_plan(plans, plan_id), task_id)
        # An unchanged task is left alone, so that it does not count as updated.
        if correction != CorrectedTask(title=task.title, status=task.status):
            plans = workflow.with_task(
                plans, plan_id, task_id, title=correction.title, status=correction.status, now_ms=now_ms
            )
    if new_task:
        plans = workflow.with_task(plans, plan_id, None, title=new_task, now_ms=now_ms)
    context = contents.context.model_copy(update={"memory": _memory_with_next_task(contents, plans)})
    return replace(contents, context=context, workflow=plans)


def without_plan(contents: SnapshotContents, plan_id: str, *, now_ms: int) -> SnapshotContents:
    """Return the contents without the plan with this id; if it was active, none is. Raises `UnknownPlan`."""
    plans = workflow.without_plan(contents.workflow, plan_id, now_ms=now_ms)
    memory_now = contents.context.memory
    if memory_now.active_plan_id == plan_id:
        memory_now = memory.with_active(memory_now, None, None)
    return replace(
        contents, context=contents.context.model_copy(update={"memory": memory_now}), workflow=plans
    )


def without_decision(contents: SnapshotContents, text: str) -> SnapshotContents:
    """Return the contents without the decision that has this text; unchanged if there is none."""
    remaining = memory.without_decision(contents.context.memory, text)
    return replace(contents, context=contents.context.model_copy(update={"memory": remaining}))


def _memory_with_next_task(contents: SnapshotContents, plans: workflow.Workflow) -> Memory:
    """Return the memory of `contents`, with the plan's next task if the active one has ended in `plans`.

    If the plan has no next task, no task is active.
    """
    memory_now = contents.context.memory
    plan = plans.plan(memory_now.active_plan_id)
    task = plan.task(memory_now.active_task_id or "") if plan else None
    if plan is None or task is None or not task.status.is_over:
        return memory_now
    next_task = workflow.next_task(plan)
    return memory.with_active(memory_now, plan.id, next_task.id if next_task else None)
