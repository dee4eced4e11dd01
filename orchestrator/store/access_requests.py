"""`access_requests`: chats without a group that called Andy, and what the owner decided of each."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.domain.values import ChatJid, MessageId
from orchestrator.store.database import Tx, returned

UNREGISTERED = "the end of its group"
"""The `decided_by` of a chat that is ignored because its group was taken off."""


class AccessState(StrEnum):
    WAITING = "waiting"
    REGISTERED = "registered"
    IGNORED = "ignored"
    """Not asked about for a while."""
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAccessRequest:
    """A chat that calls, as its owner is to see it; every text is bounded."""

    chat_jid: ChatJid
    chat_name: str
    """Empty where nobody gave it one."""
    channel: str
    is_direct: bool
    """Whether one person writes there to an account that is Andy's alone."""
    people: int | None
    """The number of its members; None where the messenger does not say."""
    sender: str
    sender_name: str
    is_owner: bool
    """Whether the owner himself has called."""
    message_id: MessageId
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRequest(NewAccessRequest):
    """A request and what was decided of it; `words` are gone then."""

    id: int
    state: AccessState
    asked_ms: int
    notified_ms: int | None
    """The time when main was asked about it; None of one that is only listed."""
    decided_ms: int | None
    decided_by: str | None


async def add(tx: Tx, request: NewAccessRequest, *, now_ms: int) -> AccessRequest:
    """Add a request that waits, in the place of an older one of the same chat."""
    await tx.execute("DELETE FROM access_requests WHERE chat_jid = ?", (request.chat_jid,))
    cursor = await tx.execute(
        """
        INSERT INTO access_requests (chat_jid, chat_name, channel, is_direct, people, sender, sender_name,
                                     is_owner, message_id, words, state, asked_ms)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'waiting', ?) RETURNING *
        """,
        (
            request.chat_jid,
            request.chat_name,
            request.channel,
            request.is_direct,
            request.people,
            request.sender,
            request.sender_name,
            request.is_owner,
            request.message_id,
            request.words,
            now_ms,
        ),
    )
    return _from_row(await returned(cursor))


async def get(tx: Tx, number: int) -> AccessRequest | None:
    cursor = await tx.execute("SELECT * FROM access_requests WHERE id = ?", (number,))
    row = await cursor.fetchone()
    return _from_row(row) if row else None


async def of_chat(tx: Tx, jid: ChatJid) -> AccessRequest | None:
    cursor = await tx.execute("SELECT * FROM access_requests WHERE chat_jid = ?", (jid,))
    row = await cursor.fetchone()
    return _from_row(row) if row else None


async def waiting(tx: Tx, *, limit: int | None = None) -> list[AccessRequest]:
    """Return the requests that are not decided, oldest first."""
    rows = await tx.execute_fetchall(
        "SELECT * FROM access_requests WHERE state = 'waiting' ORDER BY id LIMIT ?",
        (-1 if limit is None else limit,),
    )
    return [_from_row(row) for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCounts:
    """Numbers of requests that are not decided: all of them, and those that main was not asked about."""

    all: int
    listed: int


async def count_waiting(tx: Tx) -> WaitingCounts:
    cursor = await tx.execute(
        """
        SELECT count(*) AS n, count(*) FILTER (WHERE notified_ms IS NULL) AS listed
        FROM access_requests WHERE state = 'waiting'
        """
    )
    row = await returned(cursor)
    return WaitingCounts(all=row["n"], listed=row["listed"])


async def every(tx: Tx) -> dict[ChatJid, AccessRequest]:
    """Return all requests by the chats that made them."""
    rows = await tx.execute_fetchall("SELECT * FROM access_requests")
    return {ChatJid(row["chat_jid"]): _from_row(row) for row in rows}


async def note_notified(tx: Tx, number: int, *, now_ms: int) -> None:
    """Record that main was asked about a request."""
    await tx.execute("UPDATE access_requests SET notified_ms = ? WHERE id = ?", (now_ms, number))


async def count_notified(tx: Tx, *, since_ms: int) -> int:
    """Return about how many chats main was asked since `since_ms`."""
    cursor = await tx.execute("SELECT count(*) AS n FROM access_requests WHERE notified_ms > ?", (since_ms,))
    return int((await returned(cursor))["n"])


async def decide(tx: Tx, number: int, state: AccessState, *, by: str, now_ms: int) -> None:
    """Record what was decided, and forget what was written."""
    await tx.execute(
        """
        UPDATE access_requests SET state = ?, decided_by = ?, decided_ms = ?, words = '' WHERE id = ?
        """,
        (state, by, now_ms, number),
    )


async def settle_registered(tx: Tx, jid: ChatJid, *, now_ms: int) -> None:
    """Record that a chat got a group, in whatever way."""
    await tx.execute(
        """
        UPDATE access_requests SET state = 'registered', decided_by = 'registration', decided_ms = ?,
                                   words = ''
        WHERE chat_jid = ? AND state <> 'registered'
        """,
        (now_ms, jid),
    )


async def ignore_unregistered(tx: Tx, jids: Sequence[ChatJid], *, now_ms: int) -> None:
    """Ignore chats of a messenger whose group was taken off: their next call is no news to the owner."""
    await tx.executemany(
        """
        INSERT INTO access_requests (chat_jid, chat_name, channel, is_direct, sender, sender_name, is_owner,
                                     message_id, words, state, asked_ms, decided_ms, decided_by)
        SELECT jid, name, channel, 0, '', '', 0, '', '', 'ignored', :now, :now, :by
        FROM chats WHERE jid = :jid AND channel IS NOT NULL
        ON CONFLICT (chat_jid) DO UPDATE SET state = 'ignored', decided_ms = :now, decided_by = :by
        """,
        [{"jid": jid, "now": now_ms, "by": UNREGISTERED} for jid in jids],
    )


async def blank(tx: Tx, jid: ChatJid, message_id: MessageId, *, sender: str) -> None:
    """Forget the words of a request whose sender has taken them back."""
    await tx.execute(
        "UPDATE access_requests SET words = '' WHERE chat_jid = ? AND message_id = ? AND sender = ?",
        (jid, message_id, sender),
    )


def _from_row(row: sqlite3.Row) -> AccessRequest:
    return AccessRequest(
        id=row["id"],
        chat_jid=ChatJid(row["chat_jid"]),
        chat_name=row["chat_name"],
        channel=row["channel"],
        is_direct=bool(row["is_direct"]),
        people=row["people"],
        sender=row["sender"],
        sender_name=row["sender_name"],
        is_owner=bool(row["is_owner"]),
        message_id=MessageId(row["message_id"]),
        words=row["words"],
        state=AccessState(row["state"]),
        asked_ms=row["asked_ms"],
        notified_ms=row["notified_ms"],
        decided_ms=row["decided_ms"],
        decided_by=row["decided_by"],
    )
