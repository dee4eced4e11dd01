"""The data of an undo's plan, and the names of what it restores. `service.py` makes the plan."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from orchestrator.base.tables import short
from orchestrator.base.terminal_escaping import visible
from orchestrator.domain.values import Outgoing, Turn
from orchestrator.store.undo.turn_effects import BY_NAME, RowEffect
from orchestrator.undo.outside import OutsideEffect

TITLE_CHARS = 60
"""Most characters of the name of a restored row or file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoItem:
    """One item that an undo restores."""

    kind: str
    """The name of the table, `file` or `folder`."""
    title: str
    change: str
    """`removed`, `changed_back` or `brought_back`."""

    def label(self) -> str:
        """Return the item in a few words for a list in English."""
        return f"{self.kind.replace('_', ' ')} {self.title}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterChange:
    """A row that was changed since the turn."""

    item: UndoItem
    by: str
    """The start of the request that changed it; empty if no turn did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoPlan:
    """All that undoing a turn would do, and what it cannot."""

    turn: Turn
    is_redo: bool = False
    """Whether the turn is itself an undo, so that undoing it does what was undone once more."""
    rows: tuple[RowEffect, ...] = ()
    files: tuple[RowEffect, ...] = ()
    unsent: tuple[Outgoing, ...] = ()
    """Messages of the turn that still wait, and that an undo keeps from being sent."""
    has_unsent_command: bool = False
    """Whether any of the unsent messages came from a command; the answer alone does not count as an action.
    """
    sent: tuple[Outgoing, ...] = ()
    """Messages that commands of the turn sent, and that their messengers can delete."""
    waiting_runs: tuple[Turn, ...] = ()
    """Queued turns of scheduled tasks that the turn requested."""
    items: tuple[UndoItem, ...] = ()
    later: tuple[LaterChange, ...] = ()
    outside: tuple[OutsideEffect, ...] = ()
    """The effects that stay."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to restore and nothing to stop."""
        return not (self.rows or self.files or self.has_unsent_command or self.sent or self.waiting_runs)


def is_listed(effect: RowEffect) -> bool:
    """Return whether a list of what an undo restores names this row or file by itself. Pure.

    Directories are not named, nor rows that are only a detail of another row and have no title.
    """
    # `BY_NAME` has the tables whose changes are recorded: any other effect is one on a file or a directory.
    if effect.table not in BY_NAME:
        return any(entry is not None and entry["kind"] != "dir" for entry in (effect.before, effect.after))
    return BY_NAME[effect.table].title is not None


def item_of(effect: RowEffect) -> UndoItem:
    """Return the row or file of an effect as people see it, and how undoing the effect changes it. Pure."""
    row = effect.after if effect.before is None else effect.before
    # Undoing brings the row from the state after the effect to the one before it.
    if effect.before is None:
        change = "removed"
    elif effect.after is None:
        change = "brought_back"
    else:
        change = "changed_back"
    # File names may contain surrogates, which no database and no messenger accepts.
    title = visible(short(_title(effect, row or {}), TITLE_CHARS))
    # `BY_NAME` has the tables whose changes are recorded: any other effect is one on a file or a folder.
    is_folder = effect.table not in BY_NAME and (row or {}).get("kind") == "dir"
    return UndoItem(kind="folder" if is_folder else effect.table, title=title, change=change)


def _title(effect: RowEffect, row: dict[str, Any]) -> str:
    """Return the name by which people know a changed row or file; empty if it has none."""
    # `BY_NAME` has the tables whose changes are recorded: any other effect is one on a file, whose key is its
    # path.
    if effect.table not in BY_NAME:
        return str(effect.key[0])
    title_column = BY_NAME[effect.table].title
    if title_column == "payload_json":  # a column with JSON, of which people know the message
        return str(json.loads(row[title_column]).get("message") or row["event_type"])
    return str(row.get(title_column) or "") if title_column else ""
