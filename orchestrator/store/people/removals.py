"""`person_removals`: requests to forget a person in a group, until they are carried out."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.domain.values import ChatJid, Folder
from orchestrator.store.database import Tx
from orchestrator.store.row_mapper import Json, RowMapper


class RemovalState(StrEnum):
    """The state of a removal; a finished one has no row."""

    ASKED = "asked"
    """The person was asked to confirm."""
    DUE = "due"
    """To be carried out as soon as no turn of the group runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonRemoval:
    """The removal of one person from one group."""

    id: int = 0
    """Assigned by the database."""
    folder: Folder
    addresses: frozenset[str]
    chat_jid: ChatJid | None
    """The chat that is notified when it is done; None if nobody requested it in a chat."""
    by: str
    """The person's address, "console" or "command line"."""
    state: RemovalState
    last_seq: int = 0
    """Messages up to this one are deleted."""
    at_ms: int


_MAPPER = RowMapper(
    PersonRemoval,
    "person_removals",
    {"folder": "group_folder", "addresses": Json("addresses_json"), "by": "by_whom"},
)


async def put(tx: Tx, removal: PersonRemoval) -> None:
    """Store a request to forget a person in a group, in place of earlier ones about the same person.

    It covers all messages that are stored so far; if it was requested in a chat, also the next one.
    """
    for earlier_removal in await of_person(tx, removal.folder, removal.addresses):
        await finish(tx, earlier_removal)
    # A message by which the person requests it in a chat is stored right after this. A request from the
    # console or the command line has no message, so the next one would be another that the person writes.
    next_count = 0 if removal.chat_jid is None else 1
    await tx.execute(
        """
        INSERT INTO person_removals (group_folder, addresses_json, chat_jid, by_whom, state, last_seq, at_ms)
        VALUES (?, ?, ?, ?, ?, (SELECT coalesce(max(seq), 0) + ? FROM messages), ?)
        """,
        (
            removal.folder,
            json.dumps(sorted(removal.addresses), ensure_ascii=False),
            removal.chat_jid,
            removal.by,
            removal.state,
            next_count,
            removal.at_ms,
        ),
    )


async def of_group(tx: Tx, folder: Folder) -> list[PersonRemoval]:
    """Return the requests to forget people of a group, oldest first."""
    return await _MAPPER.fetch_all(
        tx, "SELECT * FROM person_removals WHERE group_folder = ? ORDER BY id", (folder,)
    )


async def due(tx: Tx) -> list[PersonRemoval]:
    """Return the requests of all groups to forget a person that can be carried out, oldest first."""
    return await _MAPPER.fetch_all(tx, "SELECT * FROM person_removals WHERE state = 'due' ORDER BY id")


async def of_person(tx: Tx, folder: Folder, addresses: Collection[str]) -> list[PersonRemoval]:
    """Return the requests to forget the person with one of these addresses in a group, oldest first."""
    return [removal for removal in await of_group(tx, folder) if removal.addresses & set(addresses)]


async def finish(tx: Tx, removal: PersonRemoval) -> None:
    """Delete a request to forget a person, because it was carried out or replaced."""
    await tx.execute("DELETE FROM person_removals WHERE id = ?", (removal.id,))
