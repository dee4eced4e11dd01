"""`andy notices`: texts that agents get in later turns."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated

from cyclopts import App, Parameter

from orchestrator.cli.options import GroupArgument, HomeOption, JsonOption, LimitOption, read, show

notices_app = App(name="notices")

NumberArgument = Annotated[str, Parameter(help="The notice, by its number in 'andy notices list GROUP'.")]


@notices_app.command(name="list")
def list_notices(
    group: GroupArgument,
    /,
    *,
    with_ended: Annotated[
        bool, Parameter(name="--all", negative="", help="List ended notices, too, newest first.")
    ] = False,
    limit: LimitOption = 50,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List notices that wait for an agent, or that it got and did not acknowledge. Works with Andy down.

    Example: `andy notices list family`
    """
    from orchestrator.reports import notices

    read(
        home,
        lambda tx: notices.every(tx, group, with_ended=with_ended, limit=max(1, limit)),
        notices.list_lines,
        as_json=as_json,
    )


@notices_app.command(name="show")
def show_notice(
    group: GroupArgument,
    number: NumberArgument,
    /,
    *,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Show one notice: when it is delivered, or its result and the text that the model read.

    Example: `andy notices show family 12`
    """
    from orchestrator.cli import terminal
    from orchestrator.reports import notices

    notice = terminal.read(home, lambda tx: notices.get(tx, group, number))
    show(notice, partial(notices.show_lines, zone=terminal.zone_of(home)), as_json=as_json)


@notices_app.command
def cancel(
    group: GroupArgument,
    number: NumberArgument,
    /,
    *,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Cancel a notice. Works with Andy down; a turn that has it already may still show it.

    Example: `andy notices cancel family 12`
    """
    from orchestrator.cli import terminal
    from orchestrator.reports import notices

    asyncio.run(terminal.change(home, lambda tx, now_ms: notices.cancel(tx, group, number, now_ms=now_ms)))
    if as_json:
        show_notice(group, number, as_json=True, home=home)
        return
    print(f"Notice {int(number)} of '{group}' is cancelled.")
