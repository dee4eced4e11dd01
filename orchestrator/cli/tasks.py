"""`andy tasks` and `andy cron`: scheduled requests to agents, and the timetable of everything scheduled."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from orchestrator.cli.exit_codes import UsageError
from orchestrator.cli.options import (
    GroupArgument,
    GroupOption,
    HomeOption,
    JsonOption,
    read,
    show,
)

if TYPE_CHECKING:
    from orchestrator.store.database import Tx

tasks_app = App(name="tasks")
cron_app = App(name="cron")

TaskArgument = Annotated[str, Parameter(help="The task, by its id in 'andy tasks list'.")]
DONE = {
    "pause": "is paused; a waiting run is dropped",
    "resume": "is resumed from its next time on",
    "cancel": "is cancelled for good",
    "run": "is queued for a run now",
}
"""The actions on a scheduled task, each with the text that follows the task's id when it was applied."""


@tasks_app.command(name="list")
def list_tasks(
    group: GroupOption = None,
    *,
    with_ended: Annotated[
        bool, Parameter(name="--all", negative="", help="List completed and cancelled tasks, too.")
    ] = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List tasks with their next times. Works with Andy down.

    Example: `andy tasks list`
    """
    from orchestrator.cli import terminal
    from orchestrator.reports import tasks
    from orchestrator.scheduler import scheduled_task_service

    scheduled_tasks = terminal.read(home, lambda tx: tasks.every(tx, group, with_ended=with_ended))
    rows = [scheduled_task_service.to_row(task) for task in scheduled_tasks]
    show(rows, lambda _: tasks.list_lines(scheduled_tasks), as_json=as_json)


@tasks_app.command(name="show")
def show_task(task: TaskArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Show a task and its newest runs: due times, outcomes and results. Works with Andy down.

    Example: `andy tasks show task-1a2b3c4d`
    """
    from orchestrator.cli import terminal
    from orchestrator.reports import tasks

    row = terminal.read(home, lambda tx: tasks.get(tx, task))
    show(row, tasks.show_lines, as_json=as_json)


@tasks_app.command
def add(
    group: GroupArgument,
    prompt: Annotated[str, Parameter(help="The request to the group's agent.")],
    /,
    *,
    cron: Annotated[
        str | None, Parameter(help="Five fields, in the group's time zone: '0 9 * * mon-fri'.")
    ] = None,
    every: Annotated[
        str | None, Parameter(help="A duration (30m, 2h, 1d), or words: 'other Tuesday at 8:00'.")
    ] = None,
    at: Annotated[
        str | None, Parameter(help="Once, at a time: 'tomorrow 9am', 'in 2 hours', 2026-11-23T09:00.")
    ] = None,
    context: Annotated[
        Literal["isolated", "group"],
        Parameter(help="isolated: in a session of its own; group: in the group's conversation."),
    ] = "isolated",
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Schedule a request to an agent, once or repeatedly, with one of --cron, --every and --at.

    Example: `andy tasks add family "What is on today?" --cron "0 8 * * *"`
    """
    from agent_runner.wire.mailbox import ScheduleTask
    from orchestrator.cli import terminal
    from orchestrator.reports import tasks
    from orchestrator.scheduler import scheduled_task_service

    options = {"cron": cron, "interval": every, "once": at}
    chosen = [(kind, value) for kind, value in options.items() if value is not None]
    if len(chosen) > 1:
        raise UsageError("Only one of --cron, --every and --at: see 'andy tasks add --help'.")
    if not chosen:
        raise UsageError("Say when, with one of --cron, --every and --at: see 'andy tasks add --help'.")
    ((kind, value),) = chosen
    times = terminal.task_times(home)
    # Not validated here: the service refuses a value that it cannot read.
    request = ScheduleTask.model_construct(
        prompt=prompt, schedule_type=kind, schedule_value=value, context_mode=context
    )

    async def act(tx: Tx, now_ms: int) -> scheduled_task_service.TaskView:
        """Create the scheduled task, and return it as a row for `--json`."""
        return scheduled_task_service.to_row(
            await scheduled_task_service.add(tx, group, request, times, now_ms=now_ms)
        )

    new_task = asyncio.run(terminal.change(home, act))
    if as_json:
        show_task(new_task["id"], as_json=True, home=home)
        return
    row = terminal.read(home, lambda tx: tasks.get(tx, new_task["id"]))
    print(f"Task {new_task['id']} of '{group}' is made: {row['when']}.")


@tasks_app.command
def pause(task: TaskArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Pause a task until it is resumed. Works with Andy down, as resume, cancel and run do.

    Example: `andy tasks pause task-1a2b3c4d`
    """
    _act(home, task, "pause", as_json=as_json)


@tasks_app.command
def resume(task: TaskArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Resume a paused task from its next time on; missed runs are not made up.

    Example: `andy tasks resume task-1a2b3c4d`
    """
    _act(home, task, "resume", as_json=as_json)


@tasks_app.command
def cancel(task: TaskArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Cancel a task for good. A running turn of it is not stopped.

    Example: `andy tasks cancel task-1a2b3c4d`
    """
    _act(home, task, "cancel", as_json=as_json)


@tasks_app.command
def run(task: TaskArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Run a task once now, besides its schedule; with Andy down, when he starts.

    Example: `andy tasks run task-1a2b3c4d`
    """
    _act(home, task, "run", as_json=as_json)


def _act(home: Path | None, task: str, action: str, *, as_json: bool) -> None:
    """Apply an action, a key of `DONE`, to the scheduled task `task`, and print the result."""
    from orchestrator.cli import terminal
    from orchestrator.scheduler import scheduled_task_service

    times = terminal.task_times(home)

    async def act(tx: Tx, now_ms: int) -> None:
        """Apply the action in the transaction."""
        await scheduled_task_service.apply_action(tx, task, action, times, now_ms=now_ms)

    asyncio.run(terminal.change(home, act))
    if as_json:
        show_task(task, as_json=True, home=home)
        return
    is_later = action == "run" and not terminal.is_running(terminal.home_of(home))
    print(f"{task} {DONE[action]}{' when Andy starts' if is_later else ''}.")


@cron_app.command(name="list")
def list_cron(
    group: GroupOption = None,
    *,
    with_ended: Annotated[
        bool,
        Parameter(name="--all", negative="", help="Also past entries: paused tasks, sent notifications."),
    ] = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List scheduled tasks, notifications and reminders in one timetable, the next first.

    Example: `andy cron list family`
    """
    from orchestrator.cli import terminal
    from orchestrator.reports import upcoming

    zone = terminal.zone_of(home)
    read(
        home,
        lambda tx: upcoming.rows(tx, group, with_ended=with_ended, zone=zone),
        partial(upcoming.lines, reader_zone=zone),
        as_json=as_json,
    )
