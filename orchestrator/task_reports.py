"""Tasks as they are told: rows for agents and machines, lines for people."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

from orchestrator import agenda, errands
from orchestrator.clock import local_iso, local_minute
from orchestrator.models import Schedule, ScheduleKind, Task, TaskRun
from orchestrator.reports import table
from orchestrator.store import groups, task_runs, tasks
from orchestrator.store.database import Tx

RUNS_SHOWN = 20


def row(task: Task) -> dict[str, Any]:
    """A task as agents see it, in replies and in `tasks.json`. Times are local, with offset."""
    zone = ZoneInfo(task.schedule.timezone)
    found = {
        "id": task.id,
        "groupFolder": task.folder,
        "prompt": task.prompt,
        "schedule_type": task.schedule.kind.value,
        "schedule_value": task.schedule.value,
        "timezone": task.schedule.timezone,
        "dst": task.schedule.dst.value,
        "context_mode": task.context_mode.value,
        "overlap": task.overlap.value,
        "catch_up": task.catch_up.value,
        "check": task.check,
        "status": task.status.value,
        "status_reason": task.status_reason,
        "next_run": None if task.next_ms is None else local_iso(task.next_ms, zone),
        "last_run": None if task.last_ms is None else local_iso(task.last_ms, zone),
        "last_result": task.last_result,
        "failures": task.failures,
    }
    return {name: value for name, value in found.items() if value is not None}


def when(task: Task) -> str:
    """`active, cron 0 9 * * *, next Sun 2026-11-22 09:00 (Asia/Seoul)`."""
    return f"{task.status.value}, {_rhythm(task.schedule)}, {_next(task)}"


async def every(tx: Tx, folder: str | None, *, with_over: bool) -> list[Task]:
    """A group's tasks, or all. Raises `UnknownGroup`."""
    known = None if folder is None else (await groups.known(tx, folder)).folder
    return await tasks.every(tx, known, with_over=with_over)


async def one(tx: Tx, task_id: str) -> dict[str, Any]:
    """A task with its newest runs, newest first. Raises `UnknownTask`."""
    task = await agenda.find(tx, task_id)
    zone = ZoneInfo(task.schedule.timezone)
    runs = await task_runs.of_task(tx, task.id, limit=RUNS_SHOWN)
    return {**row(task), "when": when(task), "runs": [_run_row(run, zone) for run in runs]}


def _run_row(run: TaskRun, zone: ZoneInfo) -> dict[str, Any]:
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


def list_lines(found: list[Task]) -> list[str]:
    if not found:
        return ["There are no tasks."]
    return table(
        ("id", "group", "status", "when", "next", "last", "asks"),
        [
            (
                task.id,
                task.folder,
                task.status.value + (f" ({task.failures} failed)" if task.failures else ""),
                _rhythm(task.schedule),
                _next(task).removeprefix("next "),
                " ".join((task.last_result or "").split())[:30],
                errands.shown(task)[:40],
            )
            for task in found
        ],
    )


def show_lines(found: dict[str, Any]) -> list[str]:
    """Everything about a task, then its runs."""
    names = ("id", "groupFolder", "when", "context_mode", "overlap", "catch_up", "dst", "status_reason")
    told = [f"{name:14}{found[name]}" for name in names if found.get(name)]
    runs = [
        (run["due"], run["cause"], run["status"], _seconds(run), run["error"] or run["result"] or "")
        for run in found["runs"]
    ]
    scripts = [f"check:\n{found['check']}"] if found.get("check") else []
    listed = table(("due", "cause", "status", "took", "what"), runs) if runs else ["It has not run yet."]
    return [*told, "", found["prompt"], *scripts, "", *listed]


def _seconds(run: dict[str, Any]) -> str:
    return "" if run["duration_ms"] is None else f"{run['duration_ms'] / 1000:.1f} s"


def _rhythm(schedule: Schedule) -> str:
    match schedule.kind:
        case ScheduleKind.CRON:
            return f"cron {schedule.value}"
        case ScheduleKind.INTERVAL:
            return f"every {timedelta(milliseconds=int(schedule.value))}"
        case ScheduleKind.ONCE:
            return "once"


def _next(task: Task) -> str:
    if task.next_ms is None:
        return "not due any more"
    zone = ZoneInfo(task.schedule.timezone)
    return f"next {local_minute(task.next_ms, zone)} ({zone.key})"
