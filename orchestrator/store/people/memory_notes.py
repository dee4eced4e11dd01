"""`memory_notes`: agents' notes about people, with the people concerned and the people who said it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass

from orchestrator.domain.values import Folder
from orchestrator.store.database import Tx, returned


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNote:
    """One remembered sentence. People are identified by their messenger addresses."""

    id: int = 0
    """Assigned by the database."""
    folder: Folder
    text: str
    about: tuple[str, ...] = ()
    """The people whom it concerns."""
    said_by: tuple[str, ...] = ()
    """The people who asked in the turn in which it was noted: one of them said it."""
    at_ms: int

    def belongs_to(self, addresses: Collection[str]) -> bool:
        """Return whether it is about a person with these addresses, or was said by them."""
        return any(one in addresses for one in (*self.about, *self.said_by))

    def goes_with(self, addresses: Collection[str]) -> bool:
        """Return whether to delete it when the person with these addresses is forgotten.

        That is so if it is about them, unless it is also about somebody else or was said by somebody else.
        """
        if any(one in addresses for one in self.about):
            return True
        return not self.about and bool(self.said_by) and all(one in addresses for one in self.said_by)


async def add(tx: Tx, note: MemoryNote, *, request_id: str) -> int:
    """Store a note and return its number; a repeated request returns the number of its earlier note."""
    await tx.execute(
        """
        INSERT INTO memory_notes (group_folder, text, about_json, said_by_json, at_ms, request_id)
        VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (group_folder, request_id) DO NOTHING
        """,
        (
            note.folder,
            note.text,
            json.dumps(note.about, ensure_ascii=False),
            json.dumps(note.said_by, ensure_ascii=False),
            note.at_ms,
            request_id,
        ),
    )
    cursor = await tx.execute(
        "SELECT id FROM memory_notes WHERE group_folder = ? AND request_id = ?", (note.folder, request_id)
    )
    return int((await returned(cursor))["id"])


async def of_group(tx: Tx, folder: Folder) -> list[MemoryNote]:
    """Return the notes of a group, oldest first."""
    rows = await tx.execute_fetchall(
        "SELECT * FROM memory_notes WHERE group_folder = ? ORDER BY id", (folder,)
    )
    return [_from_row(row) for row in rows]


async def count(tx: Tx, folder: Folder) -> int:
    """Return how many notes a group has."""
    cursor = await tx.execute("SELECT count(*) AS n FROM memory_notes WHERE group_folder = ?", (folder,))
    return int((await returned(cursor))["n"])


async def forget(tx: Tx, folder: Folder, number: int) -> bool:
    """Delete a note and return whether it was there."""
    cursor = await tx.execute("DELETE FROM memory_notes WHERE group_folder = ? AND id = ?", (folder, number))
    return cursor.rowcount == 1


async def set_said_by(tx: Tx, number: int, said_by: Collection[str]) -> None:
    """Change who said a note, for example when one of several people is forgotten."""
    text = json.dumps(list(said_by), ensure_ascii=False)
    await tx.execute("UPDATE memory_notes SET said_by_json = ? WHERE id = ?", (text, number))


def _from_row(row: sqlite3.Row) -> MemoryNote:
    return MemoryNote(
        id=row["id"],
        folder=Folder(row["group_folder"]),
        text=row["text"],
        about=tuple(json.loads(row["about_json"])),
        said_by=tuple(json.loads(row["said_by_json"])),
        at_ms=row["at_ms"],
    )
