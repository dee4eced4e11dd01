"""`andy status`, `messages`, `turns` and `outbox`: what Andy does, and what became of messages."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated

from cyclopts import App, Parameter

from orchestrator.cli.options import GroupArgument, HomeOption, JsonOption, LimitOption, read, show

outbox_app = App(name="outbox")


def status(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Tell what runs, waits and is stuck.

    Example: `andy status`
    """
    from orchestrator.cli import terminal
    from orchestrator.reports import status as telling

    show(
        asyncio.run(terminal.status(home)),
        partial(telling.lines, zone=terminal.zone_of(home)),
        as_json=as_json,
    )


def messages(
    group: GroupArgument,
    /,
    *,
    message_id: Annotated[
        str | None, Parameter(name="--id", help="Follow this one, by its number or its id.")
    ] = None,
    limit: LimitOption = 50,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List a group's newest messages with what became of each, or all that befell one. Works with Andy down.

    Example: `andy messages family --id 17`
    """
    from orchestrator.cli import terminal
    from orchestrator.reports import groups, message_timeline

    zone = terminal.zone_of(home)
    if message_id is not None:
        found = asyncio.run(terminal.follow_message(home, group, message_id))
        show(found, partial(message_timeline.lines, zone=zone), as_json=as_json)
        return
    read(
        home,
        lambda tx: groups.message_rows(tx, group, limit=limit),
        partial(groups.message_lines, zone=zone),
        as_json=as_json,
    )


def turns(
    group: GroupArgument | None = None,
    /,
    *,
    limit: LimitOption = 30,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List what agents were asked, newest first. Works with Andy down.

    Example: `andy turns family`
    """
    from orchestrator.cli import terminal
    from orchestrator.reports import queues

    lines = partial(queues.turn_lines, zone=terminal.zone_of(home))
    read(home, lambda tx: queues.turn_rows(tx, group, limit=limit), lines, as_json=as_json)


@outbox_app.command(name="list")
def list_outbox(*, limit: LimitOption = 100, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List what has not been sent: waiting, held or dead. Works with Andy down.

    Example: `andy outbox list`
    """
    from orchestrator.reports import queues

    read(home, lambda tx: queues.outbox_rows(tx, limit=limit), queues.outbox_lines, as_json=as_json)


@outbox_app.command
def retry(
    number: Annotated[int, Parameter(help="Its id in 'andy outbox list'.")],
    /,
    *,
    home: HomeOption = None,
) -> None:
    """Queue a dead message again.

    Example: `andy outbox retry 7`
    """
    from orchestrator.cli import terminal

    asyncio.run(terminal.retry(home, number))
    print(f"Message {number} is queued again.")
