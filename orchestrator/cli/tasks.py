"""`andy tasks`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from orchestrator.cli.options import GroupOption, HomeOption, JsonOption, show

tasks_app = App(name="tasks", help="What agents are asked at a time, or again and again.")

TaskArgument = Annotated[str, Parameter(help="Its id in 'andy tasks list'.")]
DONE = {
    "pause": "is paused; a run that waited is off",
    "resume": "goes on at its next time",
    "cancel": "has ended for good",
    "run": "is queued for a run now",
}


@tasks_app.command(name="list")
def list_tasks(
    group: GroupOption = None,
    *,
    with_over: Annotated[
        bool, Parameter(name="--all", negative="", help="Completed and cancelled ones too.")
    ] = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List tasks with their next times. Works with Andy down.

    Example: `andy tasks list`
    """
    from orchestrator import task_reports
    from orchestrator.cli import terminal

    found = asyncio.run(terminal.read(home, lambda tx: task_reports.every(tx, group, with_over=with_over)))
    rows = [task_reports.row(task) for task in found]
    show(rows, lambda _: task_reports.list_lines(found), as_json=as_json)


@tasks_app.command(name="show")
def show_task(task: TaskArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Show a task and its newest runs: due, how they ended, what came of them. Works with Andy down.

    Example: `andy tasks show task-1a2b3c4d`
    """
    from orchestrator import task_reports
    from orchestrator.cli import terminal

    found = asyncio.run(terminal.read(home, lambda tx: task_reports.one(tx, task)))
    show(found, task_reports.show_lines, as_json=as_json)


@tasks_app.command
def pause(task: TaskArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Let a task rest until it is resumed. Works with Andy down, as the next three do.

    Example: `andy tasks pause task-1a2b3c4d`
    """
    _act(home, task, "pause", as_json=as_json)


@tasks_app.command
def resume(task: TaskArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Let a paused task go on at its next time; nothing is caught up.

    Example: `andy tasks resume task-1a2b3c4d`
    """
    _act(home, task, "resume", as_json=as_json)


@tasks_app.command
def cancel(task: TaskArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """End a task for good. A run that has begun ends by itself.

    Example: `andy tasks cancel task-1a2b3c4d`
    """
    _act(home, task, "cancel", as_json=as_json)


@tasks_app.command
def run(task: TaskArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Run a task once now, besides its schedule; with Andy down, when it starts.

    Example: `andy tasks run task-1a2b3c4d`
    """
    _act(home, task, "run", as_json=as_json)


def _act(home: Path | None, task: str, action: str, *, as_json: bool) -> None:
    from orchestrator.cli import terminal

    is_running = asyncio.run(terminal.act_on_task(home, task, action))
    if as_json:
        show_task(task, as_json=True, home=home)
        return
    later = " when Andy starts" if action == "run" and not is_running else ""
    print(f"{task} {DONE[action]}{later}.")
