"""Change what is kept of a group's conversation as its owner: correct, restore, forget.

The console and `andy context` do it by `change`: a snapshot is taken before, and a new session begins with
what is kept then. The functions below it are pure: they say what a correction makes of what is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from orchestrator.context import memory, script, workflow
from orchestrator.context.context_manager import ContextManager
from orchestrator.context.models import Memory
from orchestrator.context.recorder import ContextCopies
from orchestrator.context.snapshots import ContextSnapshot, SnapshotContents
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Folder, TurnKind
from orchestrator.store import audit, groups, sessions, turns
from orchestrator.store.database import Database, Tx

ChangeContext = Callable[[ContextManager, int], ContextSnapshot | None]
"""`(manager, now_ms)`: changes what is kept and returns the snapshot taken before. Blocks."""


class ConversationBusy(BadRequest):
    """The group's agent is answering."""

    code = "busy"
    http_status = 409


class SummaryTooLong(BadRequest):
    """The summary cannot be kept."""

    code = "bad_summary"


async def change(
    database: Database, manager: ContextManager, copies: ContextCopies, act: ChangeContext, *, now_ms: int
) -> ContextSnapshot | None:
    """Change what is kept of a group, and leave its agent's session: the next one begins with what is kept.

    Containers that live in the session end, once the host is told that the group was configured.

    Raises:
        ConversationBusy: the group's agent is answering.
        ContextBusy, OSError: it cannot be written; like all that `act` raises, it leaves all as it was.
    """
    folder = Folder(manager.files.folder)
    turn = await database.read(lambda tx: turns.running_of(tx, folder))
    if turn is not None and turn.kind is not TurnKind.WORKER and not turn.is_isolated:
        raise ConversationBusy(f"'{folder}' is answering just now: wait until it has, and try again.")
    taken = await asyncio.to_thread(act, manager, now_ms)
    async with database.transaction() as tx:
        await _begin_anew(tx, folder, taken, now_ms=now_ms)
    contents = await asyncio.to_thread(manager.load, now_ms=now_ms)
    await asyncio.to_thread(copies.write, folder, contents)
    return taken


async def _begin_anew(tx: Tx, folder: Folder, taken: ContextSnapshot | None, *, now_ms: int) -> None:
    if (group := await groups.by_folder(tx, folder)) is not None:
        await sessions.forget(tx, group.folder, now_ms=now_ms)
        # Containers end that began before their group was configured: they live in the old session.
        await groups.set_config(tx, group.folder, group.container_config, now_ms=now_ms)
    detail = {"snapshot": taken.name if taken else None}
    event = audit.AuditEvent(at_ms=now_ms, kind="context.changed", folder=folder, detail=detail)
    await audit.append(tx, event)


# Corrections


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectedTask:
    """A task of a plan as it is to be."""

    title: str
    status: str


def with_summary(contents: SnapshotContents, text: str) -> SnapshotContents:
    """Return what is kept with another summary. Raises `SummaryTooLong` when it is too long to be kept."""
    clean = text.replace("\0", "").strip()
    if script.weight(clean) > script.FULL:
        raise SummaryTooLong(
            "The summary is too long: at most 700 characters are kept of it, or 400 of Korean. Shorten it."
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
    """Return what is kept with a plan corrected; `tasks` are by their ids, and those not named stay.

    Raises:
        UnknownPlan, UnknownPlanTask: there is none.
        PlanRefused: a field cannot be kept.
    """
    plans = workflow.with_plan_text(
        contents.workflow, plan_id, title=title, objective=objective, now_ms=now_ms
    )
    for task_id, wanted in tasks.items():
        task = workflow.known_task(workflow.known_plan(plans, plan_id), task_id)
        if wanted != CorrectedTask(title=task.title, status=task.status):
            plans = workflow.with_task(
                plans, plan_id, task_id, title=wanted.title, status=wanted.status, now_ms=now_ms
            )
    if new_task:
        plans = workflow.with_task(plans, plan_id, None, title=new_task, now_ms=now_ms)
    context = contents.context.model_copy(update={"memory": _followed(contents, plans)})
    return replace(contents, context=context, workflow=plans)


def without_plan(contents: SnapshotContents, plan_id: str, *, now_ms: int) -> SnapshotContents:
    """Return what is kept without a plan. Raises `UnknownPlan`."""
    plans = workflow.without_plan(contents.workflow, plan_id, now_ms=now_ms)
    in_hand = contents.context.memory
    if in_hand.active_plan_id == plan_id:
        in_hand = memory.with_active(in_hand, None, None)
    return replace(contents, context=contents.context.model_copy(update={"memory": in_hand}), workflow=plans)


def without_decision(contents: SnapshotContents, text: str) -> SnapshotContents:
    """Return what is kept without a decision."""
    left = memory.without_decision(contents.context.memory, text)
    return replace(contents, context=contents.context.model_copy(update={"memory": left}))


def _followed(contents: SnapshotContents, plans: workflow.Workflow) -> Memory:
    """Return the memory with the next task active where the active one is over now."""
    in_hand = contents.context.memory
    plan = plans.plan(in_hand.active_plan_id)
    task = plan.task(in_hand.active_task_id or "") if plan else None
    if plan is None or task is None or not task.status.is_over:
        return in_hand
    after = workflow.next_task(plan)
    return memory.with_active(in_hand, plan.id, after.id if after else None)
