"""Serialize scheduled tasks: as data for agents and machines, and as one line for people. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_iso, local_minute
from orchestrator.domain.values import Schedule, ScheduledTask, ScheduleKind


def row(task: ScheduledTask) -> dict[str, Any]:
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


def when(task: ScheduledTask) -> str:
    """`active, cron 0 9 * * *, next Sun 2026-11-22 09:00 (Asia/Seoul)`."""
    return f"{task.status.value}, {rhythm(task.schedule)}, {next_due(task)}"


def rhythm(schedule: Schedule) -> str:
    match schedule.kind:
        case ScheduleKind.CRON:
            return f"cron {schedule.value}"
        case ScheduleKind.INTERVAL:
            return f"every {timedelta(milliseconds=int(schedule.value))}"
        case ScheduleKind.ONCE:
            return "once"


def next_due(task: ScheduledTask) -> str:
    if task.next_ms is None:
        return "not due any more"
    zone = ZoneInfo(task.schedule.timezone)
    return f"next {local_minute(task.next_ms, zone)} ({zone.key})"
