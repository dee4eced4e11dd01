"""Reports scheduled tasks, as rows for agents and machines and lines for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_iso
from orchestrator.base.tables import short, table
from orchestrator.domain.values import ScheduledTask, TaskRun
from orchestrator.scheduler import scheduled_task_service, scheduled_task_turns
from orchestrator.scheduler.scheduled_task_service import TaskView
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.schedule import task_runs, tasks

RUNS_SHOWN = 20


class TaskRunPart(TypedDict):
    """One run of a scheduled task; `due` and `queued` are local times, with offset."""

    due: str
    queued: str
    cause: str
    status: str
    turn: int | None
    duration_ms: int | None
    result: str | None
    error: str | None


class TaskDocumentView(TaskView):
    """A scheduled task with its newest runs."""

    when: str
    runs: list[TaskRunPart]


async def every(tx: Tx, folder: str | None, *, with_ended: bool) -> list[ScheduledTask]:
    """Return the scheduled tasks of a group, or of all groups if `folder` is None.

    With `with_ended`, also those that are over. Raises `UnknownGroup`.
    """
    known_folder = None if folder is None else (await groups.known(tx, folder)).folder
    return await tasks.every(tx, known_folder, with_ended=with_ended)


async def get(tx: Tx, task_id: str) -> TaskDocumentView:
    """Return the scheduled task with this id and its newest runs, newest first. Raises `UnknownTask`."""
    task = await scheduled_task_service.find(tx, task_id)
    zone = task.schedule.zone
    runs = await task_runs.of_task(tx, task.id, limit=RUNS_SHOWN)
    return {
        **scheduled_task_service.to_row(task),
        "when": scheduled_task_service.describe(task),
        "runs": [_run_row(run, zone) for run in runs],
    }


def _run_row(run: TaskRun, zone: ZoneInfo) -> TaskRunPart:
    """Return a run of a task as the API and `--json` show it, with times as in `zone`."""
    return {
        "due": local_iso(run.due_ms, zone),
        "queued": local_iso(run.run_ms, zone),
        "cause": run.cause.value,
        "status": run.status.value,
        "turn": run.turn_id,
        "duration_ms": run.duration_ms,
        "result": run.result,
        "error": run.error,
    }


def list_lines(scheduled_tasks: list[ScheduledTask]) -> list[str]:
    """Return scheduled tasks as a table for people."""
    if not scheduled_tasks:
        return ["There are no tasks."]
    return table(
        ("id", "group", "status", "when", "next", "last", "asks"),
        [
            (
                task.id,
                task.folder,
                task.status.value + (f" ({task.failures} failed)" if task.failures else ""),
                scheduled_task_service.describe_schedule(task.schedule),
                scheduled_task_service.describe_next_run(task).removeprefix("next "),
                short(task.last_result or "", 30),
                short(scheduled_task_turns.shorten(task), 40),  # the prompt, or a reminder's text
            )
            for task in scheduled_tasks
        ],
    )


def show_lines(task: TaskDocumentView) -> list[str]:
    """Return a scheduled task as lines for people.

    These are its fields that have a value, the text that the agent is asked, its check (the script that
    decides whether to ask), and its runs as a table.
    """
    names = ("id", "groupFolder", "when", "context_mode", "overlap", "catch_up", "dst", "status_reason")
    fields_by_name: Mapping[str, object] = task
    fields = [f"{name:14}{fields_by_name[name]}" for name in names if fields_by_name.get(name)]
    run_cells = [
        (run["due"], run["cause"], run["status"], _seconds(run), run["error"] or run["result"] or "")
        for run in task["runs"]
    ]
    scripts = [f"check:\n{task['check']}"] if task.get("check") else []
    run_lines = (
        table(("due", "cause", "status", "took", "what"), run_cells) if run_cells else ["It has not run yet."]
    )
    return [*fields, "", task["prompt"], *scripts, "", *run_lines]


def _seconds(run: TaskRunPart) -> str:
    """Return how long a run took, in seconds; empty text while it is not over."""
    return "" if run["duration_ms"] is None else f"{run['duration_ms'] / 1000:.1f} s"
