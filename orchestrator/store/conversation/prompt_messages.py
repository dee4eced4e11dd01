"""`messages` for a prompt: those from all chats of the group that belong to a turn or surround it."""

from __future__ import annotations

from typing import Any

from orchestrator.domain.values import Message, Seq, Turn, TurnId
from orchestrator.store.conversation.messages import MAPPER
from orchestrator.store.conversation.outbox import ASKED_OF_OWNER
from orchestrator.store.database import Tx, returned

# The cursor is the group's: while a turn of one chat waits, an answer in another chat may move it past the
# turn's messages, so those are found by their turn as well. Imported messages need no answer.
_SINCE = """
    m.group_folder = :folder AND m.seq > :cursor AND m.seq <= :last AND m.ignored_reason IS NOT 'imported'
    AND (m.chat_jid = :jid OR NOT EXISTS (
        SELECT 1 FROM turns t WHERE t.id = m.turn_id AND t.state IN ('queued', 'running')))
"""
_SHOWN = """
    trim(m.content) <> ''
    AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.id = m.turn_id AND t.command IS NOT NULL)
    AND (m.turn_id = :turn OR m.is_request = 0 OR NOT EXISTS (
        SELECT 1 FROM turn_stops s
        WHERE s.turn_id = m.turn_id AND s.code IN ('stopped_in_chat', 'stop_request')))
    AND (m.is_bot_message = 0 OR EXISTS (
        SELECT 1 FROM outbox o LEFT JOIN turns t ON t.id = o.turn_id
        WHERE o.message_id = m.id AND o.dedupe_key NOT LIKE :asked || '%'
            AND (:is_restricted OR o.turn_id IS NULL OR t.is_isolated)))
"""


async def find(tx: Tx, turn: Turn, cursor_seq: Seq, *, limit: int) -> list[Message]:
    """Return the newest `limit` messages for the prompt of a turn, oldest first.

    These are the messages that the turn answers, and those of all the group's chats with a `seq` above
    `cursor_seq`, up to the last message of the turn. Left out are:

    - imported messages, session commands, and messages without a text;
    - messages of other chats that wait for an answer;
    - questions that were stopped in a chat, with the message that stopped them;
    - for an unrestricted turn, what Andy sent in a turn, since the group's session has that already. But what
      he sent in an isolated turn (a scheduled task's, or one for people who may not do everything) is
      included: the group's session does not have it;
    - questions to the owner that quote strangers or other groups' agents: they could steer main's agent.
    """
    # With too many messages the newest are selected, since the question is about those. The group is read
    # backwards up to the limit, however many messages came since the cursor.
    return await MAPPER.fetch_all(
        tx,
        f"""
        SELECT * FROM (
            SELECT m.* FROM messages m
            WHERE {_SHOWN} AND (m.turn_id = :turn OR m.seq IN (
                SELECT m.seq FROM messages m WHERE {_SINCE} AND {_SHOWN} ORDER BY m.seq DESC LIMIT :limit))
            ORDER BY m.seq DESC LIMIT :limit)
        ORDER BY seq
        """,  # noqa: S608 - constants
        {**_parameters(turn, cursor_seq), "limit": limit, "asked": ASKED_OF_OWNER},
    )


async def count(tx: Tx, turn: Turn, cursor_seq: Seq) -> int:
    """Return how many messages `find` would return without its limit."""
    cursor = await tx.execute(
        f"SELECT count(*) AS n FROM messages m WHERE {_SHOWN} AND (m.turn_id = :turn OR {_SINCE})",  # noqa: S608
        {**_parameters(turn, cursor_seq), "asked": ASKED_OF_OWNER},
    )
    return int((await returned(cursor))["n"])


async def turns_of(tx: Tx, turn: Turn, cursor_seq: int) -> list[TurnId]:
    """Return the turns of the group's messages after `cursor_seq` that may be in the prompt of a turn.

    A restored context leaves these turns out, as the prompt repeats them. Turns with messages that `find`
    leaves out are among them, and the turn itself may be.
    """
    rows = await tx.execute_fetchall(
        f"SELECT DISTINCT m.turn_id FROM messages m WHERE {_SINCE} AND m.turn_id IS NOT NULL",  # noqa: S608
        _parameters(turn, cursor_seq),
    )
    return [TurnId(row["turn_id"]) for row in rows]


def _parameters(turn: Turn, cursor_seq: int) -> dict[str, Any]:
    """Return the values of the SQL parameters in `_SINCE` and `_SHOWN`, keyed by name, but for `:asked`."""
    return {
        "turn": turn.id,
        "cursor": cursor_seq,
        "last": turn.last_seq,
        "jid": turn.chat_jid,
        "folder": turn.folder,
        "is_restricted": turn.is_restricted,
    }
