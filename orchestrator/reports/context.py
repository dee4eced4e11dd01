"""Reports what is kept of conversations, as rows for machines and lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NotRequired, TypedDict
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_minute
from orchestrator.base.tables import short
from orchestrator.context.models import Context, ms_of
from orchestrator.context.person_memory import PersonNoteView
from orchestrator.context.snapshots import ContextSnapshot, SnapshotContents
from orchestrator.domain.values import Run

LINE = 100
MODES = {
    "fresh": "began anew",
    "resume": "went on in its session",
    "resume_plus_delta": "went on in its session, told what that lacked",
    "rehydrate": "began a new session, told what was kept",
}


BAD_FILES = ("*.corrupt-*.json", "*.other-version-*.json")
"""Patterns for the new names of files that could not be used and were renamed."""


def bad_files(path: Path) -> list[str]:
    """Return the names of the unusable files in a group's context that were renamed. Blocks."""
    return sorted(found.name for pattern in BAD_FILES for found in path.glob(pattern))


class StoredContextView(TypedDict):
    """The stored context of a group's conversation: the documents of its two files, as they are there."""

    group: str
    context: dict[str, object]
    workflow: dict[str, object]
    mended: Annotated[list[str], "Files that could not be read, as they were put aside."]


class SnapshotPart(TypedDict):
    """A snapshot of a group's context."""

    name: str
    at_ms: int
    revision: int
    pinned: bool


class ContextDocumentView(StoredContextView):
    """The stored context of a group's conversation."""

    snapshots: list[SnapshotPart]
    notes: list[PersonNoteView]


class PlansView(TypedDict):
    """A group's plans, as `workflow.json` has them, and the one that is worked on."""

    group: str
    active_plan: str | None
    active_task: str | None
    plans: list[dict[str, object]]


class RestoreView(TypedDict):
    """The restore of a conversation by the group's newest container; `run` is None where there was none."""

    group: str
    run: str | None
    at_ms: NotRequired[int]
    mode: NotRequired[str | None]
    reason: NotRequired[str | None]


def show(folder: str, contents: SnapshotContents, mended: Sequence[str]) -> StoredContextView:
    """Return the stored context of a group; `mended` are the names of bad files that were renamed."""
    return {
        "group": folder,
        "context": contents.context.model_dump(mode="json"),
        "workflow": contents.workflow.model_dump(mode="json"),
        "mended": list(mended),
    }


def show_lines(
    folder: str, contents: SnapshotContents, mended: Sequence[str], *, zone: ZoneInfo
) -> list[str]:
    """Return the stored context as lines for people: head, memory, newest messages, bad files."""
    context = contents.context
    return [
        *_head(folder, context, zone),
        *_memory(contents),
        *_dialogue(context, zone),
        *_mended(mended),
    ]


def plans(folder: str, contents: SnapshotContents) -> PlansView:
    """Return a group's plans, with the active plan and its active task."""
    memory = contents.context.memory
    return {
        "group": folder,
        "active_plan": memory.active_plan_id,
        "active_task": memory.active_task_id,
        "plans": [plan.model_dump(mode="json") for plan in contents.workflow.plans],
    }


def plan_lines(folder: str, contents: SnapshotContents) -> list[str]:
    """Return a group's plans as lines for people, with an arrow at the active plan and its active task."""
    memory = contents.context.memory
    lines: list[str] = []
    for plan in contents.workflow.plans:
        is_active = plan.id == memory.active_plan_id
        lines.append(f"{'→' if is_active else ' '} {plan.id}  {plan.title} ({plan.status.value})")
        lines += [f"    {short(plan.objective, LINE)}"] if plan.objective else []
        about = plan.context
        lines += [f"    background: {short(about.background, LINE)}"] if about.background else []
        for name, texts in (("constraints", about.constraints), ("references", about.references)):
            lines += [f"    {name}: {short('; '.join(texts), LINE)}"] if texts else []
        for task in plan.tasks:
            mark = "→" if is_active and task.id == memory.active_task_id else " "
            after = f", after {', '.join(task.dependencies)}" if task.dependencies else ""
            lines.append(f"  {mark} {task.id}  {task.title} ({task.status.value}{after})")
            lines += [f"      → {short(one, LINE)}" for one in task.outputs]
    return lines or [f"'{folder}' has no plan. Its agent makes one when it is asked to."]


def snapshot_rows(found: Sequence[ContextSnapshot]) -> list[SnapshotPart]:
    return [
        {"name": one.name, "at_ms": one.at_ms, "revision": one.revision, "pinned": one.is_pinned}
        for one in found
    ]


def snapshot_lines(rows: Sequence[SnapshotPart], *, zone: ZoneInfo) -> list[str]:
    return [
        f"{row['name']}  {local_minute(row['at_ms'], zone)}{'  pinned' if row['pinned'] else ''}"
        for row in rows
    ] or ["There are no snapshots yet: one is taken every half an hour in which something was said."]


def why(folder: str, run: Run | None) -> RestoreView:
    """Return how a group's last container continued the conversation, and why."""
    if run is None:
        return {"group": folder, "run": None}
    return {
        "group": folder,
        "run": run.id,
        "at_ms": run.started_ms,
        "mode": run.restore_mode,
        "reason": run.restore_reason,
    }


def why_lines(found: RestoreView, *, zone: ZoneInfo) -> list[str]:
    if found["run"] is None:
        return [f"No container of '{found['group']}' has begun yet."]
    mode = MODES.get(found["mode"] or "", found["mode"])
    reason = f": {found['reason']}" if found["reason"] else ""
    return [f"{local_minute(found['at_ms'], zone)}  run {found['run']} {mode}{reason}."]


def _head(folder: str, context: Context, zone: ZoneInfo) -> Iterator[str]:
    if not context.revision:
        yield f"Nothing is kept of '{folder}' yet."
        return
    stats, at = context.stats, local_minute(ms_of(context.updated_at), zone)
    yield f"{folder}: revision {context.revision}, of {at}"
    yield f"so far:    {stats.dialog_turns} questions, {stats.total_tokens:,} tokens"
    if session := context.sdk.session_id:
        yield f"session:   {session}"


def _memory(contents: SnapshotContents) -> Iterator[str]:
    memory = contents.context.memory
    plan = next((one for one in contents.workflow.plans if one.id == memory.active_plan_id), None)
    task = next((one for one in plan.tasks if one.id == memory.active_task_id), None) if plan else None
    if plan:
        yield f"plan:      {plan.id}, {plan.title}"
    if task:
        yield f"task:      {task.id}, {task.title} ({task.status.value})"
    yield from _listed("decided:", memory.last_decisions)
    yield from _listed("files:", memory.open_files)
    if memory.note:
        yield f"note:      {memory.note}"


def _dialogue(context: Context, zone: ZoneInfo) -> Iterator[str]:
    conversation = context.conversation
    if summary := conversation.running_summary:
        yield from _listed("before:", summary.splitlines())
    for one in conversation.recent_window:
        mark = " (not answered yet)" if one.id == context.pending_user else ""
        yield f"{local_minute(ms_of(one.ts), zone)}  {one.role}{mark}: {short(one.content, LINE)}"


def _mended(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        yield f"⚠️ A file could not be read and was repaired; the bad one is kept as {name}."


def _listed(head: str, texts: Sequence[str]) -> Iterator[str]:
    for number, text in enumerate(texts):
        yield f"{head if number == 0 else '':<11}{text}"
