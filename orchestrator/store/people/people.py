"""`group_people` and `sender_aliases`: everybody seen in a group, and all addresses of one person.

Roles are not stored here: they are in the group's settings (`groups.people.set_role`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from orchestrator.domain.values import ChatJid, Folder
from orchestrator.store.database import Tx
from orchestrator.store.row_mapper import RowMapper


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenPerson:
    """A person who wrote in a group, or was listed in one of its chats, under one address."""

    address: str
    name: str
    """The person's last self-chosen name. It decides nothing: anybody may choose any name."""
    since_seq: int
    """The first message that they may know: earlier ones existed when they were first seen."""
    since_ms: int


_MAPPER = RowMapper(SeenPerson, "group_people", {}, unread=("group_folder",))


async def note(tx: Tx, folder: Folder, address: str, name: str, *, now_ms: int) -> None:
    """Record that a person is in a group, from now on, with their present name.

    If the person is known there already, only the name changes, and an empty one changes nothing.
    """
    # It runs with each message, so nothing is written while the name stays the same. `since_seq` becomes the
    # number that the next message gets.
    await tx.execute(
        """
        INSERT INTO group_people (group_folder, address, name, since_seq, since_ms)
        VALUES (:folder, :address, :name, (SELECT coalesce(max(seq), 0) + 1 FROM messages), :now)
        ON CONFLICT (group_folder, address) DO UPDATE SET name = excluded.name
        WHERE name <> excluded.name AND excluded.name <> ''
        """,
        {"folder": folder, "address": address, "name": name, "now": now_ms},
    )


async def note_members(tx: Tx, chat_jid: ChatJid, *, now_ms: int) -> None:
    """Record all members of a chat as people of its group, including those who never wrote.

    People who are known there already stay as they are. Nothing is recorded for a chat without a group.
    """
    await tx.execute(
        """
        INSERT INTO group_people (group_folder, address, name, since_seq, since_ms)
        SELECT c.group_folder, m.member_jid, m.name,
               (SELECT coalesce(max(seq), 0) + 1 FROM messages), :now
        FROM chat_members m JOIN group_chats c ON c.jid = m.chat_jid
        WHERE m.chat_jid = :jid
        ON CONFLICT (group_folder, address) DO NOTHING
        """,
        {"jid": chat_jid, "now": now_ms},
    )


async def note_alias(tx: Tx, alias: str, person: str) -> None:
    """Record that the address `alias` belongs to the person with the address `person`."""
    await tx.execute(
        """
        INSERT INTO sender_aliases (alias, person) VALUES (:alias, :person)
        ON CONFLICT (alias) DO UPDATE SET person = excluded.person WHERE person <> excluded.person
        """,
        {"alias": alias, "person": person},
    )


async def addresses_of(tx: Tx, address: str) -> frozenset[str]:
    """Return all addresses of the person who has this address, including this one."""
    # `known` has this address and, if it is stored as an alias, the address of which it is one.
    rows = await tx.execute_fetchall(
        """
        WITH known (person) AS (
            SELECT person FROM sender_aliases WHERE alias = :address UNION SELECT :address)
        SELECT person AS address FROM known
        UNION SELECT alias FROM sender_aliases WHERE person IN (SELECT person FROM known)
        """,
        {"address": address},
    )
    return frozenset({address, *(row["address"] for row in rows)})


async def of_group(tx: Tx, folder: Folder) -> list[SeenPerson]:
    """Return all people who wrote in a group or were members of its chats, by when they were first seen."""
    return await _MAPPER.fetch_all(
        tx, "SELECT * FROM group_people WHERE group_folder = ? ORDER BY since_seq, address", (folder,)
    )


async def first_known_seq(tx: Tx, folder: Folder, addresses: Iterable[str]) -> int | None:
    """Return the `seq` of the first message of a group that a person with these addresses may know.

    Earlier messages existed when the person was first seen. None if nobody in the group has such an address.
    """
    people = await _with_addresses(tx, folder, list(addresses))
    return min((person.since_seq for person in people), default=None)


async def newest_name(tx: Tx, folder: Folder, addresses: Collection[str]) -> str:
    """Return the name of a person with several `addresses` in a group; empty if no address has a name.

    If the addresses have different names, it is the name of the address from which the person wrote last. If
    no message from them is stored, it is the name of the address that was added to the group last.
    """
    named_people = [person for person in await _with_addresses(tx, folder, addresses) if person.name]
    if len({person.name for person in named_people}) < 2:  # then no message has to be read
        return named_people[0].name if named_people else ""
    rows = list(
        await tx.execute_fetchall(
            """
            SELECT sender FROM messages
            WHERE group_folder = ? AND is_bot_message = 0 AND sender IN (SELECT value FROM json_each(?))
            ORDER BY seq DESC LIMIT 1
            """,
            (folder, json.dumps([person.address for person in named_people])),
        )
    )
    if rows:
        return next(person.name for person in named_people if person.address == rows[0]["sender"])
    return max(named_people, key=lambda person: person.since_seq).name


async def _with_addresses(tx: Tx, folder: Folder, addresses: Collection[str]) -> list[SeenPerson]:
    """Return the people of a group with one of these addresses: a row for each address that is stored."""
    return await _MAPPER.fetch_all(
        tx,
        """
        SELECT * FROM group_people
        WHERE group_folder = ? AND address IN (SELECT value FROM json_each(?))
        """,
        (folder, json.dumps(list(addresses))),
    )
