"""`messages` for a prompt: those of all chats of a group that a turn is asked among."""

from __future__ import annotations

from typing import Any

from orchestrator.domain.values import Message, Seq, Turn, TurnId
from orchestrator.store.database import Tx, returned
from orchestrator.store.messages import from_row
from orchestrator.store.outbox import ASKED_OF_OWNER

# The cursor is the group's: while a turn of one chat waits, the answer in another may move it past the turn's
# messages, which are therefore found by their turn as well. What an import has brought is long answered.
_SINCE = """
    m.group_folder = :folder AND m.seq > :cursor AND m.seq <= :last AND m.ignored_reason IS NOT 'imported'
    AND (m.chat_jid = :jid OR NOT EXISTS (
        SELECT 1 FROM turns t WHERE t.id = m.turn_id AND t.state IN ('queued', 'running')))
"""
_SAID = """
    trim(m.content) <> ''
    AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.id = m.turn_id AND t.command IS NOT NULL)
    AND (m.turn_id = :turn OR m.is_request = 0 OR NOT EXISTS (
        SELECT 1 FROM turn_stops s
        WHERE s.turn_id = m.turn_id AND s.code IN ('stopped_in_chat', 'stop_request')))
    AND (m.is_bot_message = 0 OR EXISTS (
        SELECT 1 FROM outbox o LEFT JOIN turns t ON t.id = o.turn_id
        WHERE o.message_id = m.id AND o.dedupe_key NOT LIKE :asked || '%'
            AND (:is_restricted OR o.turn_id IS NULL OR (t.is_restricted AND t.kind = 'chat'))))
"""


async def find(tx: Tx, turn: Turn, cursor_seq: Seq, *, limit: int) -> list[Message]:
    """Return the newest `limit` messages that a turn is asked among, oldest first.

    These are its own, and those of all chats of its group after the cursor up to its last. What another chat
    waits to have answered is left out: it is asked in a turn of its own. Andy's own are left out, for the
    session holds them, except those no turn said (a reminder) or a restricted one; of these, what asks the
    owner something in words of strangers or of other groups' agents, which would steer the agent of main. So
    are session commands, which are said to the conversation and not in it, and what was stopped in a chat,
    with the words that stopped it. A restricted turn has no session, and finds all that Andy said.
    """
    # The newest and not the oldest are kept when there are too many: what was said last is what is asked
    # about. The group is read backwards up to the limit, however much was said in it since the cursor.
    rows = await tx.execute_fetchall(
        f"""
        SELECT * FROM (
            SELECT m.* FROM messages m
            WHERE {_SAID} AND (m.turn_id = :turn OR m.seq IN (
                SELECT m.seq FROM messages m WHERE {_SINCE} AND {_SAID} ORDER BY m.seq DESC LIMIT :limit))
            ORDER BY m.seq DESC LIMIT :limit)
        ORDER BY seq
        """,  # noqa: S608 - constants
        {**_place(turn, cursor_seq), "limit": limit, "asked": ASKED_OF_OWNER},
    )
    return [from_row(row) for row in rows]


async def count(tx: Tx, turn: Turn, cursor_seq: Seq) -> int:
    """Return the number of messages of others that were said since the cursor, up to the last of the turn."""
    cursor = await tx.execute(
        f"SELECT count(*) AS n FROM messages m WHERE {_SINCE} AND m.is_bot_message = 0",  # noqa: S608 - constants
        _place(turn, cursor_seq),
    )
    return int((await returned(cursor))["n"])


async def turns_of(tx: Tx, turn: Turn, cursor_seq: int) -> list[TurnId]:
    """Return the turns whose messages `find` finds beside its own."""
    rows = await tx.execute_fetchall(
        f"SELECT DISTINCT m.turn_id FROM messages m WHERE {_SINCE} AND m.turn_id IS NOT NULL",  # noqa: S608
        _place(turn, cursor_seq),
    )
    return [TurnId(row["turn_id"]) for row in rows]


def _place(turn: Turn, cursor_seq: int) -> dict[str, Any]:
    return {
        "turn": turn.id,
        "cursor": cursor_seq,
        "last": turn.last_seq,
        "jid": turn.chat_jid,
        "folder": turn.folder,
        "is_restricted": turn.is_restricted,
    }
