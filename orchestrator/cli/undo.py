"""`andy undo`: take back what a turn did."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from orchestrator.cli.exit_codes import UsageError
from orchestrator.cli.options import HomeOption, JsonOption, show

if TYPE_CHECKING:
    from orchestrator.cli.client import Client
    from orchestrator.undo.service import UndoService


def undo(
    group: Annotated[
        str | None, Parameter(help="The group whose last turn that did anything is meant.")
    ] = None,
    /,
    *,
    turn: Annotated[
        int | None, Parameter(help="This turn instead, by its number in 'andy turns'; it may be an undo.")
    ] = None,
    anyway: Annotated[bool, Parameter(negative="", help="Put back what was changed since, too.")] = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Take back what a turn did.

    Reminders, tasks, notes and settings are as they were, and messages that wait are not sent. What cannot be
    taken back is listed. An undo is a turn, too, and can be undone. Works with Andy down.

    Example: `andy undo family`, `andy undo --turn 17`
    """
    from orchestrator.cli import terminal

    if (group is None) == (turn is None):
        raise UsageError("Say whose last turn, or which one: 'andy undo family' or 'andy undo --turn 17'.")
    number = turn if turn is not None else terminal.read(home, lambda tx: _last(tx, str(group)))

    async def ask(client: Client) -> dict[str, Any]:
        return await client.undo_turn(number, anyway=anyway)

    async def act(tx: Any, now_ms: int) -> dict[str, Any]:
        del now_ms
        service = _service()
        meant = await service.by_number(tx, number)
        done = await service.undo(tx, meant, by="command line", is_forced=anyway)
        return done.to_row()

    row = asyncio.run(terminal.ask_or_change(home, ask, act))
    show(row, lambda one: [one["text"]], as_json=as_json)


async def _last(tx: Any, group: str) -> int:
    from orchestrator.domain.errors import BadRequest
    from orchestrator.store import groups

    folder = (await groups.known(tx, group)).folder
    found = await _service().last(tx, folder)
    if found is None:
        raise BadRequest(
            f"No turn of '{group}' changed anything in the last 7 days: see 'andy turns {group}'."
        )
    return found.id


def _service() -> UndoService:
    from orchestrator.base.clock import SystemClock
    from orchestrator.base.event_bus import EventBus
    from orchestrator.base.wakeups import Wakeups
    from orchestrator.undo.service import UndoService

    clock = SystemClock()
    return UndoService(clock, EventBus(clock), Wakeups())
