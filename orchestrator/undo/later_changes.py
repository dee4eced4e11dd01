"""Finds what was changed since a turn, so that an undo overwrites nothing newer without a question."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.base.tables import short
from orchestrator.domain.values import Folder, TurnId
from orchestrator.store.conversation import messages
from orchestrator.store.database import Tx
from orchestrator.store.undo import turn_effects
from orchestrator.store.undo.turn_effects import RowEffect
from orchestrator.undo.files import GroupFiles, is_same
from orchestrator.undo.plan import TITLE_CHARS, LaterChange, item_of


async def find(
    tx: Tx, files: GroupFiles, folder: Folder, effects: Sequence[RowEffect]
) -> tuple[LaterChange, ...]:
    """Return each of a turn's effects whose row or file was changed again since, and by which request.

    `folder` is that of the group whose files the effects are about.
    """
    changes = []
    for effect in effects:
        if not await _is_unchanged_since(tx, files, folder, effect):
            request = await _request_of(tx, await turn_effects.later_turns(tx, effect))
            changes.append(LaterChange(item=item_of(effect), by=request))
    return tuple(changes)


async def _is_unchanged_since(tx: Tx, files: GroupFiles, folder: Folder, effect: RowEffect) -> bool:
    """Return whether a row or file is still as the turn left it, so that an undo loses nothing newer."""
    if effect.table == turn_effects.FILE:
        # A file in its earlier state loses nothing either: it needs no undo any more.
        return any(
            is_same(files.now(folder, effect.key[0], compared_with=state), state)
            for state in (effect.after, effect.before)
        )
    return turn_effects.is_unchanged_since(effect, await turn_effects.current(tx, effect))


async def _request_of(tx: Tx, later: Sequence[TurnId]) -> str:
    """Return the start of the request in the first of these turns, which made a later change.

    Return `turn N` if the turn has no request, and an empty text if there is no turn.
    """
    if not later:
        return ""
    requests = await messages.requests_of(tx, later[0], limit=1)
    return short(requests[0].text, TITLE_CHARS) if requests else f"turn {later[0]}"
