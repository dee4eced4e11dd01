"""`andy loop`: lets agents wake by themselves, and shows when and why they do."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from orchestrator.cli.options import GroupArgument, HomeOption, JsonOption, show

if TYPE_CHECKING:
    from orchestrator.store.database import Tx

loop_app = App(name="loop")
DONE = {
    "on": "wakes by itself; the first time in 15 s",
    "off": "no longer wakes by itself; messages and tasks are still answered",
    "pause": "is paused: only messages and tasks are answered",
    "resume": "is resumed",
    "wake": "is woken as soon as it is free",
}
"""The actions on a loop, each with the text that follows the name of the group when it was applied."""


@loop_app.command
def on(group: GroupArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Let a group's agent wake by itself. All loop commands work with Andy down.

    Example: `andy loop on family`
    """
    _act(home, group, "on", as_json=as_json)


@loop_app.command
def off(group: GroupArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Stop a group's agent from waking by itself; pending wake requests stay.

    Example: `andy loop off family`
    """
    _act(home, group, "off", as_json=as_json)


@loop_app.command
def pause(group: GroupArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Pause a group's loop until it is resumed; messages are still answered.

    Example: `andy loop pause family`
    """
    _act(home, group, "pause", as_json=as_json)


@loop_app.command
def resume(group: GroupArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Resume a group's paused loop; its agent wakes at the time that was set.

    Example: `andy loop resume family`
    """
    _act(home, group, "resume", as_json=as_json)


@loop_app.command
def wake(
    group: GroupArgument,
    /,
    *,
    reason: Annotated[str, Parameter(help="The reason that the agent reads; at most 100 characters.")] = "",
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Wake a group's agent now.

    Example: `andy loop wake family`
    """
    _act(home, group, "wake", reason=reason, as_json=as_json)


@loop_app.command
def status(
    group: Annotated[str | None, Parameter(help="A group, by its folder name. [all groups]")] = None,
    /,
    *,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Show when an agent wakes next and why, step by step, its pending wake requests, and its newest cycles.

    Example: `andy loop status family`
    """
    from orchestrator.base.clock import SystemClock
    from orchestrator.cli import terminal
    from orchestrator.reports import loop

    now_ms = SystemClock().now_ms()
    zone = terminal.zone_of(home)
    if group is None:
        rows = terminal.read(home, lambda tx: loop.every(tx, now_ms=now_ms))
        show(rows, partial(loop.list_lines, zone=zone), as_json=as_json)
        return
    row = terminal.read(home, lambda tx: loop.get(tx, group, now_ms=now_ms))
    show(row, partial(loop.show_lines, zone=zone), as_json=as_json)


def _act(home: Path | None, group: str, action: str, *, as_json: bool, reason: str = "") -> None:
    """Apply an action, a key of `DONE`, to a group's loop, in which its agent wakes by itself.

    Print the result. `reason` is for the action `wake`.
    """
    from orchestrator.cli import terminal
    from orchestrator.loop import service

    async def act(tx: Tx, now_ms: int) -> None:
        """Apply the action in the transaction."""
        await service.apply_action(tx, group, action, reason=reason, now_ms=now_ms)

    asyncio.run(terminal.change(home, act))
    if as_json:
        status(group, as_json=True, home=home)
        return
    print(f"{group} {DONE[action]}.")
