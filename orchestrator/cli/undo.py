"""`andy undo`: undo the effects of a turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from orchestrator.cli.exit_codes import UsageError
from orchestrator.cli.options import HomeOption, JsonOption, show

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.domain.values import Turn
    from orchestrator.undo.service import UndoDone, UndoService


def undo(
    group: Annotated[
        str | None, Parameter(help="The group whose last turn that did anything is meant.")
    ] = None,
    /,
    *,
    turn: Annotated[
        int | None, Parameter(help="This turn instead, by its number in 'andy turns'; it may be an undo.")
    ] = None,
    anyway: Annotated[bool, Parameter(negative="", help="Undo also what was changed later.")] = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Take back what a turn did.

    Files, reminders, tasks, notes and settings are restored, and waiting messages are not sent. Effects that
    cannot be undone are listed. An undo is a turn too, and can be undone. Works with Andy down.

    Example: `andy undo family`, `andy undo --turn 17`
    """
    from orchestrator.cli import terminal

    if (group is None) == (turn is None):
        raise UsageError("Say whose last turn, or which one: 'andy undo family' or 'andy undo --turn 17'.")
    number = turn if turn is not None else terminal.run_async(_last(home, str(group)))

    row = terminal.run_async(_undone(home, number, is_forced=anyway))
    show(row, lambda one: [one["text"]], as_json=as_json)


async def _undone(home: Path | None, number: int, *, is_forced: bool) -> dict[str, Any]:
    """Undo a turn with the running Andy, or in this process if none runs."""
    from orchestrator.cli import terminal
    from orchestrator.cli.client import Client
    from orchestrator.domain.errors import NotRunning
    from orchestrator.undo import file_effects

    try:
        async with Client.of(terminal.home_of(home)) as client:
            return await client.undo_turn(number, anyway=is_forced)
    except NotRunning:
        service = _service(home)

    async def work(tx: Any) -> UndoDone:
        turn = await service.by_number(tx, number)
        return await service.undo(tx, turn, by="command line", is_forced=is_forced)

    async with terminal.opened(home) as database:
        done = await database.write(work)
        # After the commit, which has noted that files are due: if this is cut off, the next start does it.
        await file_effects.put_due(database, service.files, done.plan.turn.folder)
    return done.to_row()


async def _last(home: Path | None, group: str) -> int:
    from orchestrator.cli import terminal
    from orchestrator.domain.errors import BadRequest
    from orchestrator.store.groups import groups

    service = _service(home)

    async def last(tx: Any) -> Turn | None:
        return await service.last(tx, (await groups.known(tx, group)).folder)

    async with terminal.opened(home) as database:
        turn = await database.write(last)
    if turn is None:
        raise BadRequest(
            f"No turn of '{group}' changed anything in the last 7 days: see 'andy turns {group}'."
        )
    return turn.id


def _service(home: Path | None) -> UndoService:
    from orchestrator.base.clock import SystemClock
    from orchestrator.base.event_bus import EventBus
    from orchestrator.base.wakeups import Wakeups
    from orchestrator.cli import terminal
    from orchestrator.undo.files import GroupFiles
    from orchestrator.undo.service import UndoService

    clock = SystemClock()
    return UndoService(clock, EventBus(clock), Wakeups(), GroupFiles(terminal.home_of(home).root))
