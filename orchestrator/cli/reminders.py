"""`andy reminders`: texts that are sent to a chat at a time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from orchestrator.cli.options import GroupArgument, GroupOption, HomeOption, JsonOption, read, show

if TYPE_CHECKING:
    from orchestrator.dashboard.services.reminders import ReminderService, ReminderView

reminders_app = App(name="reminders")

IdArgument = Annotated[
    str, Parameter(help="The reminder, by its number in 'andy reminders list', such as 7.")
]
AtOption = Annotated[
    str,
    Parameter(
        help="The time: 'in 2 hours', 30m, 'tomorrow 9am', 2026-11-23T09:00, in the group's time zone."
    ),
]


@reminders_app.command(name="list")
def list_reminders(
    group: GroupOption = None, *, as_json: JsonOption = False, home: HomeOption = None
) -> None:
    """List the pending reminders, the next first. All reminders commands work with Andy down.

    Example: `andy reminders list family`
    """
    from orchestrator.cli import terminal
    from orchestrator.dashboard.services import reminders

    service = _service(home)
    lines = partial(reminders.lines, reader_zone=terminal.zone_of(home))
    read(home, lambda tx: service.list_views(tx, group), lines, as_json=as_json)


@reminders_app.command
def add(
    group: GroupArgument,
    text: Annotated[str, Parameter(help="The text that is sent.")],
    /,
    *,
    at: AtOption,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Set a reminder: a text that is sent to a group's chat at a time.

    Example: `andy reminders add family "Bring the cake" --at "tomorrow 9am"`
    """
    from orchestrator.cli import terminal

    service = replace(
        _service(home), can_deliver=lambda group: terminal.channel_of(home)(group.jid) is not None
    )
    row = asyncio.run(
        terminal.change(home, lambda tx, now_ms: service.add(tx, group, text, at, now_ms=now_ms))
    )
    show(row, partial(_outcome_lines, home, "is set for"), as_json=as_json)


@reminders_app.command
def move(
    reminder: IdArgument,
    /,
    *,
    at: AtOption,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Move a reminder to another time.

    Example: `andy reminders move 7 --at "in 2 hours"`
    """
    from orchestrator.cli import terminal

    service = _service(home)
    row = asyncio.run(terminal.change(home, lambda tx, now_ms: service.move(tx, reminder, at, now_ms=now_ms)))
    show(row, partial(_outcome_lines, home, "is moved to"), as_json=as_json)


@reminders_app.command
def cancel(reminder: IdArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Cancel a reminder.

    Example: `andy reminders cancel 7`
    """
    from orchestrator.cli import terminal

    service = _service(home)
    row = asyncio.run(terminal.change(home, lambda tx, now_ms: service.cancel(tx, reminder, now_ms=now_ms)))
    show(row, partial(_outcome_lines, home, "is cancelled; it was due"), as_json=as_json)


def _service(home: Path | None) -> ReminderService:
    """Return the service for reminders, with the time zones of a home."""
    from orchestrator.cli import terminal
    from orchestrator.dashboard.services.reminders import ReminderService
    from orchestrator.groups import settings

    return ReminderService(zone_of=partial(settings.zone_of, default=terminal.zone_of(home)))


def _outcome_lines(home: Path | None, outcome: str, row: ReminderView) -> list[str]:
    """Return the line that says what became of a reminder.

    `outcome` has the words before the reminder's time in the line, such as `is set for`.
    """
    from orchestrator.cli import terminal
    from orchestrator.dashboard.services.reminders import shown_due

    due = shown_due(row, reader_zone=terminal.zone_of(home))
    return [f"Reminder {row['id']} of '{row['group']}' {outcome} {due}."]
