"""Reports what is kept of conversations, as rows for machines and lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_minute
from orchestrator.base.tables import short
from orchestrator.context.models import ms_of
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
    """The names of the files in a group's context that were put aside. Blocks."""
    return sorted(found.name for pattern in BAD_FILES for found in path.glob(pattern))


def show(folder: str, contents: SnapshotContents, mended: Sequence[str]) -> dict[str, Any]:
    """Return all that is kept of a group; `mended` are the names of bad files that were put aside."""
    return {
        "group": folder,
        "context": contents.context.model_dump(mode="json"),
        "workflow": contents.workflow.model_dump(mode="json"),
        "mended": list(mended),
    }


def show_lines(found: dict[str, Any], *, zone: ZoneInfo) -> list[str]:
    """Show to people what is kept: what it is, what is remembered, the newest messages, bad files."""
    return [*_head(found, zone), *_memory(found), *_dialogue(found, zone), *_mended(found)]


def plans(folder: str, contents: SnapshotContents) -> dict[str, Any]:
    """Return a group's plans, and which is worked on."""
    memory = contents.context.memory
    return {
        "group": folder,
        "active_plan": memory.active_plan_id,
        "active_task": memory.active_task_id,
        "plans": [plan.model_dump(mode="json") for plan in contents.workflow.plans],
    }


def plan_lines(found: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for plan in found["plans"]:
        is_active = plan["id"] == found["active_plan"]
        lines.append(f"{'→' if is_active else ' '} {plan['id']}  {plan['title']} ({plan['status']})")
        if plan["objective"]:
            lines.append(f"    {short(plan['objective'], LINE)}")
        about = plan["context"]
        lines += [f"    background: {short(about['background'], LINE)}"] if about["background"] else []
        for name in ("constraints", "references"):
            lines += [f"    {name}: {short('; '.join(about[name]), LINE)}"] if about[name] else []
        for task in plan["tasks"]:
            mark = "→" if is_active and task["id"] == found["active_task"] else " "
            after = f", after {', '.join(task['dependencies'])}" if task["dependencies"] else ""
            lines.append(f"  {mark} {task['id']}  {task['title']} ({task['status']}{after})")
            lines += [f"      → {short(one, LINE)}" for one in task["outputs"]]
    return lines or [f"'{found['group']}' has no plan. Its agent makes one when it is asked to."]


def snapshot_rows(found: Sequence[ContextSnapshot]) -> list[dict[str, Any]]:
    return [
        {"name": one.name, "at_ms": one.at_ms, "revision": one.revision, "pinned": one.is_pinned}
        for one in found
    ]


def snapshot_lines(rows: Sequence[dict[str, Any]], *, zone: ZoneInfo) -> list[str]:
    return [
        f"{row['name']}  {local_minute(row['at_ms'], zone)}{'  pinned' if row['pinned'] else ''}"
        for row in rows
    ] or ["There are no snapshots yet: one is taken every half an hour in which something was said."]


def why(folder: str, run: Run | None) -> dict[str, Any]:
    """Return how a group's conversation went on when its last container began, and why."""
    if run is None:
        return {"group": folder, "run": None}
    return {
        "group": folder,
        "run": run.id,
        "at_ms": run.started_ms,
        "mode": run.restore_mode,
        "reason": run.restore_reason,
    }


def why_lines(found: dict[str, Any], *, zone: ZoneInfo) -> list[str]:
    if found["run"] is None:
        return [f"No container of '{found['group']}' has begun yet."]
    mode = MODES.get(found["mode"], found["mode"])
    reason = f": {found['reason']}" if found["reason"] else ""
    return [f"{local_minute(found['at_ms'], zone)}  run {found['run']} {mode}{reason}."]


def _head(found: dict[str, Any], zone: ZoneInfo) -> Iterator[str]:
    context = found["context"]
    if not context["revision"]:
        yield f"Nothing is kept of '{found['group']}' yet."
        return
    stats, at = context["stats"], local_minute(ms_of(context["updated_at"]), zone)
    yield f"{found['group']}: revision {context['revision']}, of {at}"
    yield f"so far:    {stats['dialog_turns']} questions, {stats['total_tokens']:,} tokens"
    if session := context["sdk"]["session_id"]:
        yield f"session:   {session}"


def _memory(found: dict[str, Any]) -> Iterator[str]:
    memory = found["context"]["memory"]
    plan = _named(found["workflow"]["plans"], memory["active_plan_id"])
    task = _named(plan.get("tasks", ()), memory["active_task_id"])
    if plan:
        yield f"plan:      {plan['id']}, {plan['title']}"
    if task:
        yield f"task:      {task['id']}, {task['title']} ({task['status']})"
    yield from _listed("decided:", memory["last_decisions"])
    yield from _listed("files:", memory["open_files"])
    if memory.get("note"):
        yield f"note:      {memory['note']}"


def _dialogue(found: dict[str, Any], zone: ZoneInfo) -> Iterator[str]:
    conversation = found["context"]["conversation"]
    if summary := conversation["running_summary"]:
        yield from _listed("before:", summary.splitlines())
    pending = found["context"]["pending_user"]
    for one in conversation["recent_window"]:
        mark = " (not answered yet)" if one["id"] == pending else ""
        yield f"{local_minute(ms_of(one['ts']), zone)}  {one['role']}{mark}: {short(one['content'], LINE)}"


def _mended(found: dict[str, Any]) -> Iterator[str]:
    for name in found["mended"]:
        yield f"⚠️ A file could not be read and was repaired; the bad one is kept as {name}."


def _listed(head: str, texts: Sequence[str]) -> Iterator[str]:
    for number, text in enumerate(texts):
        yield f"{head if number == 0 else '':<11}{text}"


def _named(rows: Sequence[dict[str, Any]], wanted: str | None) -> dict[str, Any]:
    return next((row for row in rows if row["id"] == wanted), {}) if wanted else {}
