"""`memory_notes`: agents' notes about people, with the people concerned and the people who said it."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from orchestrator.domain.values import Folder
from orchestrator.store.database import Tx, returned
from orchestrator.store.row_mapper import Json, RowMapper


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
        """Return whether the note is about a person with these addresses, or was said by that person."""
        return any(address in addresses for address in (*self.about, *self.said_by))

    def is_forgotten_with(self, addresses: Collection[str]) -> bool:
        """Return whether the note is deleted when the person with these addresses is forgotten.

        That is so if it is about this person or, being about nobody, was said by this person alone.
        """
        if any(address in addresses for address in self.about):
            return True
        return not self.about and bool(self.said_by) and all(address in addresses for address in self.said_by)


_MAPPER = RowMapper(
    MemoryNote,
    "memory_notes",
    {"folder": "group_folder", "about": Json("about_json"), "said_by": Json("said_by_json")},
    assigned=("id",),
    unread=("request_id",),
)


async def add(tx: Tx, note: MemoryNote, *, request_id: str) -> int:
    """Store an agent's note about people and return its number.

    A request of an agent (`request_id`) that is repeated stores nothing, and returns the number of its note.
    """
    row = _MAPPER.values(note) | {"request_id": request_id}
    await tx.execute(f"{_MAPPER.insert_sql(row)} ON CONFLICT (group_folder, request_id) DO NOTHING", row)
    cursor = await tx.execute(
        "SELECT id FROM memory_notes WHERE group_folder = ? AND request_id = ?", (note.folder, request_id)
    )
    return int((await returned(cursor))["id"])


async def is_stored(tx: Tx, folder: Folder, *, request_id: str) -> bool:
    """Return whether a group has the note that an agent's request with this id stored."""
    cursor = await tx.execute(
        "SELECT 1 FROM memory_notes WHERE group_folder = ? AND request_id = ?", (folder, request_id)
    )
    return await cursor.fetchone() is not None


async def of_group(tx: Tx, folder: Folder) -> list[MemoryNote]:
    """Return all notes of a group's agent about people, oldest first."""
    return await _MAPPER.fetch_all(
        tx, "SELECT * FROM memory_notes WHERE group_folder = ? ORDER BY id", (folder,)
    )


async def count(tx: Tx, folder: Folder) -> int:
    """Return how many notes about people a group has."""
    cursor = await tx.execute("SELECT count(*) AS n FROM memory_notes WHERE group_folder = ?", (folder,))
    return int((await returned(cursor))["n"])


async def forget(tx: Tx, folder: Folder, number: int) -> bool:
    """Delete the note of a group with this number; return False if there is none."""
    cursor = await tx.execute("DELETE FROM memory_notes WHERE group_folder = ? AND id = ?", (folder, number))
    return cursor.rowcount == 1


async def set_said_by(tx: Tx, number: int, said_by: Collection[str]) -> None:
    """Replace the people who may have said the note with this number, for example when one is forgotten."""
    text = json.dumps(list(said_by), ensure_ascii=False)
    await tx.execute("UPDATE memory_notes SET said_by_json = ? WHERE id = ?", (text, number))
