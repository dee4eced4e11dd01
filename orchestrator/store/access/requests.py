"""`access_requests`: chats without a group that called Andy, and the owner's decision about each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.domain.values import ChatJid, MessageId
from orchestrator.store.database import Tx, returned
from orchestrator.store.row_mapper import RowMapper

UNREGISTERED = "the end of its group"
"""The `decided_by` of a chat that is ignored because its group was unregistered."""


class AccessState(StrEnum):
    WAITING = "waiting"
    REGISTERED = "registered"
    IGNORED = "ignored"
    """Calls of the chat raise no new request for a while."""
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAccessRequest:
    """A chat that calls Andy, as the owner is shown it; every text has a maximal length."""

    chat_jid: ChatJid
    chat_name: str
    """Empty if the messenger reports no name."""
    channel: str
    is_direct: bool
    """Whether one person writes there directly to an account that is Andy's alone."""
    people: int | None
    """The number of its members; None if the messenger does not report it."""
    sender: str
    sender_name: str
    is_owner: bool
    """Whether the owner wrote the call."""
    message_id: MessageId
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRequest(NewAccessRequest):
    """A request and its decision; `words` is empty once it is decided."""

    id: int
    state: AccessState
    asked_ms: int
    notified_ms: int | None
    """When the main chat was asked about it; None for a request that is only listed."""
    decided_ms: int | None
    """When the owner decided; None, as `decided_by`, until then."""
    decided_by: str | None


_MAPPER = RowMapper(AccessRequest, "access_requests", {}, assigned=("id",))


async def add(tx: Tx, request: NewAccessRequest, *, now_ms: int) -> AccessRequest:
    """Add a waiting request, in place of an older one of the same chat."""
    await tx.execute("DELETE FROM access_requests WHERE chat_jid = ?", (request.chat_jid,))
    row = _MAPPER.values(request) | {"state": AccessState.WAITING, "asked_ms": now_ms}
    cursor = await tx.execute(f"{_MAPPER.insert_sql(row)} RETURNING *", row)
    return _MAPPER.read(await returned(cursor))


async def get(tx: Tx, number: int) -> AccessRequest | None:
    return await _MAPPER.fetch_one(tx, "SELECT * FROM access_requests WHERE id = ?", (number,))


async def of_chat(tx: Tx, jid: ChatJid) -> AccessRequest | None:
    return await _MAPPER.fetch_one(tx, "SELECT * FROM access_requests WHERE chat_jid = ?", (jid,))


async def waiting(tx: Tx, *, limit: int | None = None) -> list[AccessRequest]:
    """Return the requests that are not decided, oldest first; at most `limit`, all if that is None."""
    return await _MAPPER.fetch_all(
        tx,
        "SELECT * FROM access_requests WHERE state = 'waiting' ORDER BY id LIMIT ?",
        (-1 if limit is None else limit,),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCounts:
    """Numbers of undecided requests: all of them, and those that the main chat was not asked about."""

    all: int
    listed: int


async def count_waiting(tx: Tx) -> WaitingCounts:
    """Count the undecided requests."""
    cursor = await tx.execute(
        """
        SELECT count(*) AS n, count(*) FILTER (WHERE notified_ms IS NULL) AS listed
        FROM access_requests WHERE state = 'waiting'
        """
    )
    row = await returned(cursor)
    return WaitingCounts(all=row["n"], listed=row["listed"])


async def every(tx: Tx) -> dict[ChatJid, AccessRequest]:
    """Return all requests, keyed by their chats."""
    rows = await tx.execute_fetchall("SELECT * FROM access_requests")
    return {ChatJid(row["chat_jid"]): _MAPPER.read(row) for row in rows}


async def note_notified(tx: Tx, number: int, *, now_ms: int) -> None:
    """Record that the main chat was asked about a request."""
    await tx.execute("UPDATE access_requests SET notified_ms = ? WHERE id = ?", (now_ms, number))


async def count_notified(tx: Tx, *, since_ms: int) -> int:
    """Return about how many requests the main chat was asked about since `since_ms`."""
    cursor = await tx.execute("SELECT count(*) AS n FROM access_requests WHERE notified_ms > ?", (since_ms,))
    return int((await returned(cursor))["n"])


async def decide(tx: Tx, number: int, state: AccessState, *, by: str, now_ms: int) -> None:
    """Record a decision, and delete the stored text of the call."""
    await tx.execute(
        """
        UPDATE access_requests SET state = ?, decided_by = ?, decided_ms = ?, words = '' WHERE id = ?
        """,
        (state, by, now_ms, number),
    )


async def settle_registered(tx: Tx, jid: ChatJid, *, now_ms: int) -> None:
    """Record that a chat got a group, in whatever way it was registered."""
    await tx.execute(
        """
        UPDATE access_requests SET state = 'registered', decided_by = 'registration', decided_ms = ?,
                                   words = ''
        WHERE chat_jid = ? AND state <> 'registered'
        """,
        (now_ms, jid),
    )


async def ignore_unregistered(tx: Tx, jids: Sequence[ChatJid], *, now_ms: int) -> None:
    """Ignore chats whose group was unregistered: the owner is not notified of their next call."""
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
    """Delete the stored text of a call that its sender has deleted."""
    await tx.execute(
        # With the sender, because people choose message ids freely: nobody may delete another's call.
        "UPDATE access_requests SET words = '' WHERE chat_jid = ? AND message_id = ? AND sender = ?",
        (jid, message_id, sender),
    )
