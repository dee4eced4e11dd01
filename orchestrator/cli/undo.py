"""`andy undo`: undo the effects of a turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from orchestrator.cli.exit_codes import UsageError
from orchestrator.cli.options import HomeOption, JsonOption, show

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.domain.values import Folder, Turn
    from orchestrator.store.database import Tx
    from orchestrator.undo.service import UndoDone, UndoService

COMMAND_LINE = "command line"
"""The author of the undos that this command makes."""


def undo(
    group: Annotated[str | None, Parameter(help="The group whose last turn with changes is undone.")] = None,
    /,
    *,
    turn: Annotated[
        int | None,
        Parameter(help="Undo this turn instead, by its number in 'andy turns'; it may be an undo."),
    ] = None,
    anyway: Annotated[
        bool, Parameter(negative="", help="Undo also the parts that were changed again later.")
    ] = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Take back what a turn did.

    Files, reminders, tasks, notes and settings are restored, and waiting messages are not sent. Effects that
    cannot be undone are listed. An undo is a turn too, and can be undone. Works with Andy down.

    Example: `andy undo family`, `andy undo --turn 17`
    """
    from orchestrator.cli import terminal
    from orchestrator.undo.texts import SAY_AGAIN

    if (group is None) == (turn is None):
        raise UsageError("Name a group or a turn: 'andy undo family' or 'andy undo --turn 17'.")
    done = terminal.run_async(_undo(home, group, turn, is_forced=anyway))
    # In a chat a person says "undo"; in a shell it is a command.
    again_text = f"'andy undo {done.plan.turn.folder}' again makes it as it was."
    show(done.to_row(), lambda row: [row["text"].replace(SAY_AGAIN, again_text)], as_json=as_json)


async def _undo(home: Path | None, group: str | None, number: int | None, *, is_forced: bool) -> UndoDone:
    """Undo the effects of a turn, and return the result.

    Undone is the turn `number` or, if that is None, the last turn of `group` that changed something. With
    `is_forced`, effects are undone even where something changed them again later. Raises `UnknownTurn`,
    `UnknownGroup`, `BadRequest`.
    """
    from orchestrator.base.clock import SystemClock
    from orchestrator.cli import terminal
    from orchestrator.store.groups import groups
    from orchestrator.undo import file_effects
    from orchestrator.undo.files import GroupFiles
    from orchestrator.undo.service import UndoService

    clock, files = SystemClock(), GroupFiles(terminal.home_of(home).root)
    service = UndoService(clock, files, terminal.channel_of(home))

    async def folder_of(tx: Tx) -> Folder:
        """Return the folder of the group whose turn is undone. Raises `UnknownTurn`, `UnknownGroup`."""
        if number is not None:
            return (await service.by_number(tx, number)).folder
        return (await groups.known(tx, str(group))).folder

    async def work(tx: Tx) -> UndoDone:
        """Undo the turn in the transaction, and return the result."""
        if number is None:
            turn = await _last_turn(tx, service, await folder_of(tx))
        else:
            turn = await service.by_number(tx, number)
        return await service.undo(tx, turn, by=COMMAND_LINE, is_forced=is_forced)

    async with terminal.open_store(home) as database:
        folder = await database.read(folder_of)
        # If a turn has just ended, the files that it changed may not be recorded yet.
        await file_effects.catch_up(database, files, folder, now_ms=clock.now_ms())
        done = await database.write(work)
        # The commit has recorded which files to put back: if this process is killed now, the host does it.
        await file_effects.put_due(database, files, folder, now_ms=clock.now_ms())
    return done


async def _last_turn(tx: Tx, service: UndoService, folder: Folder) -> Turn:
    """Return the last turn of a group that changed something and can still be undone: for 7 days.

    Raises `BadRequest` if there is none.
    """
    from orchestrator.domain.errors import BadRequest

    turn = await service.last(tx, folder)
    if turn is None:
        raise BadRequest(
            f"No turn of '{folder}' changed anything in the last 7 days: see 'andy turns {folder}'."
        )
    return turn
