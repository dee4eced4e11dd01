"""`andy status`, `messages`, `turns`, `outbox` and `events`: current work, and the outcome of messages."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from cyclopts import App, Parameter
from cyclopts.validators import Number

from orchestrator.cli import terminal
from orchestrator.cli.options import (
    GroupArgument,
    GroupOption,
    HomeOption,
    JsonOption,
    LimitOption,
    read,
    show,
)
from orchestrator.domain.errors import BadRequest, NotRunning, SettingError

outbox_app = App(name="outbox")
EVENT_FIELDS = ("kind", "group", "message", "turn", "attempt", "run", "detail", "reason")


def status(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Show what runs, waits and is stuck.

    Example: `andy status`
    """
    from orchestrator.cli.client import running_status
    from orchestrator.reports import status_lines

    report = running_status(terminal.home_of(home))
    zone = None
    try:
        zone = terminal.zone_of(home)
    except SettingError as error:  # without a time zone the rest can still be shown
        terminal.say_aside(f"⚠️  {error}")
    show(report, partial(status_lines.lines, zone=zone), as_json=as_json)


def messages(
    group: GroupArgument,
    /,
    *,
    message_id: Annotated[
        str | None, Parameter(name="--id", help="Show the history of this message, by its number or its id.")
    ] = None,
    limit: LimitOption = 50,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List a group's newest messages with their outcome, or the history of one. Works with Andy down.

    Example: `andy messages family --id 17`
    """
    from orchestrator.reports import messages as message_reports

    zone = terminal.zone_of(home)
    if message_id is not None:
        from orchestrator.reports import message_timeline

        wanted_id = message_id
        stored = terminal.read(home, lambda tx: message_timeline.find(tx, group, wanted_id))
        # The logs of containers have steps of the message's turn that the database lacks.
        timeline = message_timeline.with_logs(stored, terminal.home_of(home).logs)
        show(timeline, partial(message_timeline.lines, zone=zone), as_json=as_json)
        return
    read(
        home,
        lambda tx: message_reports.rows(tx, group, limit=limit),
        partial(message_reports.lines, zone=zone),
        as_json=as_json,
    )


def turns(
    group: GroupArgument | None = None,
    /,
    *,
    turn_id: Annotated[
        int | None, Parameter(name="--id", help="Show this turn with the tool calls of its agent.")
    ] = None,
    limit: LimitOption = 30,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List requests to agents, newest first. Works with Andy down. With `--id`, show what one turn did.

    Example: `andy turns family`, `andy turns --id 17`
    """
    from orchestrator.reports import queues, turn_work

    if turn_id is not None:
        number = turn_id
        work = terminal.read(home, lambda tx: turn_work.find(tx, number))
        show(work, partial(turn_work.lines, zone=terminal.zone_of(home)), as_json=as_json)
        return
    lines = partial(queues.turn_lines, zone=terminal.zone_of(home))
    read(home, lambda tx: queues.turn_rows(tx, group, limit=limit), lines, as_json=as_json)


@outbox_app.command(name="list")
def list_outbox(*, limit: LimitOption = 100, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List messages that are not known to be sent: waiting, held, unknown or dead. Works with Andy down.

    Example: `andy outbox list`
    """
    from orchestrator.reports import queues

    read(home, lambda tx: queues.outbox_rows(tx, limit=limit), queues.outbox_lines, as_json=as_json)


@outbox_app.command
def retry(
    number: Annotated[int, Parameter(help="The message, by its id in 'andy outbox list'.")],
    /,
    *,
    home: HomeOption = None,
) -> None:
    """Queue a message again that was given up (dead), or whose arrival is unknown.

    Example: `andy outbox retry 7`
    """
    from orchestrator.store.conversation import outbox

    if not terminal.run_async(
        terminal.change(home, lambda tx, now_ms: outbox.revive(tx, number, now_ms=now_ms))
    ):
        raise BadRequest(f"Message {number} is neither dead nor unknown: see 'andy outbox list'.")
    print(f"Message {number} is queued again.")


def events(
    group: GroupOption = None,
    *,
    follow: Annotated[
        bool, Parameter(name=["-f", "--follow"], negative="", help="Print new events until Ctrl-C.")
    ] = False,
    lines: Annotated[
        int,
        Parameter(
            name=["-n", "--lines"],
            help="Show at most this many of the latest events.",
            validator=Number(gte=0),
        ),
    ] = 50,
    as_json: Annotated[
        bool, Parameter(name="--json", negative="", help="Print each event as a line of JSON.")
    ] = False,
    home: HomeOption = None,
) -> None:
    """Show the latest events of a running Andy. They carry no texts of messages.

    Example: `andy events -f family`
    """
    terminal.run_async(_print_events(home, group=group, lines=lines, follows=follow, as_json=as_json))


async def _print_events(
    home: Path | None, *, group: str | None, lines: int, follows: bool, as_json: bool
) -> None:
    """Print the latest `lines` events of a running Andy and, if `follows`, new ones until Ctrl-C.

    `group` limits them to one group; None means all. With `follows`, `NotRunning` is raised once Andy ends.
    """
    from orchestrator.cli.client import Client
    from orchestrator.store.groups import groups

    zone = terminal.zone_of(home)
    if group is not None:
        group = terminal.read(home, partial(groups.known, folder=group)).folder
    async with Client.of(terminal.home_of(home)) as client:
        async for event in client.events(group=group, recent=lines, follows=follows):
            if event:  # the first one is empty: it only marks that from here on no event is missed
                print(
                    json.dumps(event, ensure_ascii=False) if as_json else _event_line(event, zone), flush=True
                )
    if follows:
        raise NotRunning("Andy has ended, so no more events come: call this again once he runs.")


def _event_line(event: dict[str, Any], zone: ZoneInfo) -> str:
    """Return an event as one line: its time, its kind, then its other fields as `name=value`."""
    from orchestrator.base.clock import local_second

    # The fields of `EVENT_FIELDS` come first, then those of this kind of event.
    fields = {name: event[name] for name in EVENT_FIELDS if name in event and name != "kind"}
    fields |= event.get("data", {})
    return f"{local_second(event['at_ms'], zone)}  {event['kind']:22}" + "".join(
        f" {name}={fields[name]}" for name in fields
    )
