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
    """Store a request of an unregistered chat to the owner, and return it.

    It replaces an older request of the same chat.
    """
    await tx.execute("DELETE FROM access_requests WHERE chat_jid = ?", (request.chat_jid,))
    row = _MAPPER.values(request) | {"state": AccessState.WAITING, "asked_ms": now_ms}
    cursor = await tx.execute(f"{_MAPPER.insert_sql(row)} RETURNING *", row)
    return _MAPPER.read(await returned(cursor))


async def get(tx: Tx, number: int) -> AccessRequest | None:
    """Return the request with this number, or None."""
    return await _MAPPER.fetch_one(tx, "SELECT * FROM access_requests WHERE id = ?", (number,))


async def of_chat(tx: Tx, jid: ChatJid) -> AccessRequest | None:
    """Return the request of a chat, decided or not; None if the chat made none."""
    return await _MAPPER.fetch_one(tx, "SELECT * FROM access_requests WHERE chat_jid = ?", (jid,))


async def waiting(tx: Tx, *, limit: int | None = None) -> list[AccessRequest]:
    """Return the requests that the owner has not decided, oldest first; at most `limit`, None for all."""
    return await _MAPPER.fetch_all(
        tx,
        "SELECT * FROM access_requests WHERE state = 'waiting' ORDER BY id LIMIT ?",
        (-1 if limit is None else limit,),  # SQLite takes a negative limit for none
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCounts:
    """Numbers of undecided requests."""

    all: int
    only_listed: int
    """Requests that are only listed: the main chat was not asked about them."""


async def count_waiting(tx: Tx) -> WaitingCounts:
    """Count the undecided requests of chats: all of them, and those that the owner was not asked about."""
    cursor = await tx.execute(
        """
        SELECT count(*) AS n, count(*) FILTER (WHERE notified_ms IS NULL) AS only_listed
        FROM access_requests WHERE state = 'waiting'
        """
    )
    row = await returned(cursor)
    return WaitingCounts(all=row["n"], only_listed=row["only_listed"])


async def every(tx: Tx) -> dict[ChatJid, AccessRequest]:
    """Return all requests, decided or not, keyed by their chats; a chat has at most one."""
    rows = await tx.execute_fetchall("SELECT * FROM access_requests")
    return {ChatJid(row["chat_jid"]): _MAPPER.read(row) for row in rows}


async def note_notified(tx: Tx, number: int, *, now_ms: int) -> None:
    """Record that the owner was asked in the main chat about a request."""
    await tx.execute("UPDATE access_requests SET notified_ms = ? WHERE id = ?", (now_ms, number))


async def count_notified(tx: Tx, *, since_ms: int, now_ms: int) -> int:
    """Return about how many requests the owner was asked about in the main chat since `since_ms`.

    A request that a newer one of the same chat has replaced is not counted, nor one with a time after
    `now_ms`, which is of a clock that was ahead.
    """
    cursor = await tx.execute(
        "SELECT count(*) AS n FROM access_requests WHERE notified_ms > ? AND notified_ms <= ?",
        (since_ms, now_ms),
    )
    return int((await returned(cursor))["n"])


async def decide(tx: Tx, number: int, state: AccessState, *, by: str, now_ms: int) -> None:
    """Record the decision `state` on a chat's request, and that this person made it (`by`).

    The stored text of the chat's call to Andy is deleted.
    """
    await tx.execute(
        """
        UPDATE access_requests SET state = ?, decided_by = ?, decided_ms = ?, words = '' WHERE id = ?
        """,
        (state, by, now_ms, number),
    )


async def follow_clock(tx: Tx, *, now_ms: int) -> None:
    """After the clock was set back to `now_ms`, move later times of requests and decisions to now.

    A chat that was ignored while the clock was ahead would otherwise be ignored for too long.
    """
    await tx.execute(
        """
        UPDATE access_requests SET asked_ms = min(asked_ms, :now), decided_ms = min(decided_ms, :now)
        WHERE asked_ms > :now OR decided_ms > :now
        """,
        {"now": now_ms},
    )


async def settle_registered(tx: Tx, jid: ChatJid, *, now_ms: int) -> None:
    """Record that a chat was registered with a group, whether the owner decided its request or not.

    The stored text of the chat's call is deleted. Nothing is done for a chat without a request, or with one
    that is recorded as registered already.
    """
    await tx.execute(
        """
        UPDATE access_requests SET state = 'registered', decided_by = 'registration', decided_ms = ?,
                                   words = ''
        WHERE chat_jid = ? AND state <> 'registered'
        """,
        (now_ms, jid),
    )


async def move(tx: Tx, old: ChatJid, new: ChatJid) -> None:
    """Assign the request of a chat to the chat's new address, unless a request of that address is stored."""
    await tx.execute(
        """
        UPDATE access_requests SET chat_jid = :new
        WHERE chat_jid = :old AND NOT EXISTS (SELECT 1 FROM access_requests WHERE chat_jid = :new)
        """,
        {"old": old, "new": new},
    )


async def ignore_unregistered(tx: Tx, jids: Sequence[ChatJid], *, now_ms: int) -> None:
    """Record that chats whose group was unregistered are ignored: for a while, the owner is not asked about
    their calls.

    A chat that is not stored, or whose messenger is not known, is left out.
    """
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
    """Delete the stored text of a chat's call to Andy, because its sender deleted that message in the
    messenger.
    """
    await tx.execute(
        # With the sender, because people choose message ids freely: nobody may delete another's call.
        "UPDATE access_requests SET words = '' WHERE chat_jid = ? AND message_id = ? AND sender = ?",
        (jid, message_id, sender),
    )
