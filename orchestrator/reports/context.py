"""Reports what is stored of conversations, as rows for machines and lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, NotRequired, TypedDict
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_minute
from orchestrator.base.tables import counted, short
from orchestrator.context.context_manager import ContextManager
from orchestrator.context.models import Context, ms_of
from orchestrator.context.person_memory import PersonNoteView
from orchestrator.context.snapshots import ContextSnapshot, SnapshotContents
from orchestrator.domain.values import Run

LINE_CHARS = 100
MODES = {
    "fresh": "began anew",
    "resume": "went on in its session",
    "resume_plus_delta": "went on in its session, told what that lacked",
    "rehydrate": "began a new session, told what was kept",
}


BAD_FILES = ("*.corrupt-*.json", "*.other-version-*.json")
"""Patterns for the new names of files that could not be used and were renamed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextReading:
    """The contents that were read of a group's stored context or of one of its snapshots."""

    contents: SnapshotContents
    renamed_files: tuple[str, ...] = ()
    """The new names of files that could not be used and were renamed, at this reading or before."""


def read(manager: ContextManager, *, now_ms: int) -> ContextReading:
    """Read the stored context of a group. Blocks.

    A damaged file is renamed and replaced; `now_ms` is the time of that repair.

    Raises:
        ContextBusy: another writer did not release the files in time.
        OSError: the files cannot be read or repaired.
    """
    contents = manager.load(now_ms=now_ms)
    # Listed after the contents are read, since reading them renames the files that cannot be used.
    names = (file.name for pattern in BAD_FILES for file in manager.files.path.glob(pattern))
    return ContextReading(contents=contents, renamed_files=tuple(sorted(names)))


class StoredContextView(TypedDict):
    """The stored context of a group's conversation: the documents of its two files, as they are there."""

    group: str
    context: dict[str, object]
    workflow: dict[str, object]
    mended: Annotated[list[str], "The names under which files that could not be read were put aside."]


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


def show(folder: str, reading: ContextReading) -> StoredContextView:
    """Return the stored context of a group as the API and `--json` show it."""
    return {
        "group": folder,
        "context": reading.contents.context.model_dump(mode="json"),
        "workflow": reading.contents.workflow.model_dump(mode="json"),
        "mended": list(reading.renamed_files),  # the files that could not be read, by their new names
    }


def show_lines(folder: str, reading: ContextReading, *, zone: ZoneInfo) -> list[str]:
    """Return the stored context of a group as lines for people: head, memory, messages, unreadable files.

    Times are those of `zone`.
    """
    context = reading.contents.context
    return [
        *_head_lines(folder, context, zone),
        *_memory_lines(reading.contents),
        *_dialogue_lines(context, zone),
        *_renamed_file_lines(reading.renamed_files),
    ]


def plans(folder: str, contents: SnapshotContents) -> PlansView:
    """Return a group's plans and the ids of its active plan and task, as the API and `--json` show them.

    A plan is a list of tasks that the group's agent has made for longer work.
    """
    memory = contents.context.memory
    return {
        "group": folder,
        "active_plan": memory.active_plan_id,
        "active_task": memory.active_task_id,
        "plans": [plan.model_dump(mode="json") for plan in contents.workflow.plans],
    }


def plan_lines(folder: str, contents: SnapshotContents) -> list[str]:
    """Return a group's plans as lines for people, with an arrow before the active plan and its active task.

    A plan is a list of tasks that the group's agent has made for longer work. Its title is followed by its
    objective, background, constraints and references, where it has them, and its tasks. Each task is listed
    with the tasks that it comes after, and has a line, also with an arrow, for each of its outputs. Long
    texts are cut.
    """
    memory = contents.context.memory
    lines: list[str] = []
    for plan in contents.workflow.plans:
        is_active = plan.id == memory.active_plan_id
        lines.append(f"{'→' if is_active else ' '} {plan.id}  {plan.title} ({plan.status.value})")
        lines += [f"    {short(plan.objective, LINE_CHARS)}"] if plan.objective else []
        plan_context = plan.context
        lines += (
            [f"    background: {short(plan_context.background, LINE_CHARS)}"]
            if plan_context.background
            else []
        )
        for name, texts in (
            ("constraints", plan_context.constraints),
            ("references", plan_context.references),
        ):
            lines += [f"    {name}: {short('; '.join(texts), LINE_CHARS)}"] if texts else []
        for task in plan.tasks:
            arrow = "→" if is_active and task.id == memory.active_task_id else " "
            after = f", after {', '.join(task.dependencies)}" if task.dependencies else ""
            lines.append(f"  {arrow} {task.id}  {task.title} ({task.status.value}{after})")
            lines += [f"      → {short(output, LINE_CHARS)}" for output in task.outputs]
    return lines or [f"'{folder}' has no plan. Its agent makes one when it is asked to."]


def snapshot_rows(snapshots: Sequence[ContextSnapshot]) -> list[SnapshotPart]:
    """Return snapshots of a group's context as the API and `--json` show them, in their order."""
    return [
        {
            "name": snapshot.name,
            "at_ms": snapshot.at_ms,
            "revision": snapshot.revision,
            "pinned": snapshot.is_pinned,
        }
        for snapshot in snapshots
    ]


def snapshot_lines(rows: Sequence[SnapshotPart], *, zone: ZoneInfo) -> list[str]:
    """Return snapshots as lines for people: name, time, and whether it is pinned."""
    return [
        f"{row['name']}  {local_minute(row['at_ms'], zone)}{'  pinned' if row['pinned'] else ''}"
        for row in rows
    ] or ["There are no snapshots yet: one is taken every half an hour in which something was said."]


def why(folder: str, run: Run | None) -> RestoreView:
    """Return how a group's newest container continued the conversation, and why.

    `run` is that container; None if the group had none.
    """
    if run is None:
        return {"group": folder, "run": None}
    return {
        "group": folder,
        "run": run.id,
        "at_ms": run.started_ms,
        "mode": run.restore_mode,
        "reason": run.restore_reason,
    }


def why_lines(restore: RestoreView, *, zone: ZoneInfo) -> list[str]:
    """Return a line for people: how a group's newest container continued the conversation, and why.

    A mode that is not in `MODES`, such as one of an older version, is shown as it is.
    """
    if restore["run"] is None:
        return [f"No container of '{restore['group']}' has begun yet."]
    mode = MODES.get(restore["mode"] or "", restore["mode"])
    reason = f": {restore['reason']}" if restore["reason"] else ""
    return [f"{local_minute(restore['at_ms'], zone)}  run {restore['run']} {mode}{reason}."]


def _head_lines(folder: str, context: Context, zone: ZoneInfo) -> Iterator[str]:
    """Yield the first lines about a stored context: its revision and time, its counts and its session."""
    if not context.revision:  # 0: nothing was ever stored
        yield f"Nothing is kept of '{folder}' yet."
        return
    stats, at = context.stats, local_minute(ms_of(context.updated_at), zone)
    yield f"{folder}: revision {context.revision}, of {at}"
    yield f"so far:    {counted(stats.dialog_turns, 'question')}, {stats.total_tokens:,} tokens"
    if session := context.sdk.session_id:
        yield f"session:   {session}"


def _memory_lines(contents: SnapshotContents) -> Iterator[str]:
    """Yield the lines about the active plan and task, the last decisions, the open files and the note."""
    memory = contents.context.memory
    plan = contents.workflow.plan(memory.active_plan_id)
    task = plan.task(memory.active_task_id) if plan and memory.active_task_id else None
    if plan:
        yield f"plan:      {plan.id}, {plan.title}"
    if task:
        yield f"task:      {task.id}, {task.title} ({task.status.value})"
    yield from _listed("decided:", memory.last_decisions)
    yield from _listed("files:", memory.open_files)
    if memory.note:
        yield f"note:      {memory.note}"


def _dialogue_lines(context: Context, zone: ZoneInfo) -> Iterator[str]:
    """Yield the lines of the stored conversation: the summary of older messages, then the newest messages."""
    conversation = context.conversation
    if summary := conversation.running_summary:
        yield from _listed("before:", summary.splitlines())
    for message in conversation.recent_window:
        # `pending_user` is the id of the question that has no answer yet.
        state = " (not answered yet)" if message.id == context.pending_user else ""
        text = short(message.content, LINE_CHARS)
        yield f"{local_minute(ms_of(message.ts), zone)}  {message.role}{state}: {text}"


def _renamed_file_lines(names: Sequence[str]) -> Iterator[str]:
    """Yield a warning for each file that could not be read and was renamed to one of `names`."""
    for name in names:
        yield f"⚠️ A file could not be read and was repaired; the bad one is kept as {name}."


def _listed(head: str, texts: Sequence[str]) -> Iterator[str]:
    """Yield a line for each text; the first line begins with `head`, the others with as many blanks."""
    for number, text in enumerate(texts):
        yield f"{head if number == 0 else '':<11}{text}"
