"""`checkpoints` and `answered_sessions`: the turns that a group's agent session is known to contain."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.domain.values import Folder, Run, SessionCommand, Turn, TurnId
from orchestrator.store.conversation import prompt_messages
from orchestrator.store.database import Tx

MAX_CHECKPOINTS = 200
"""Checkpoints per group; if more turns are missing in a session, they are not listed one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCheckpoint:
    """A turn that was answered since a session began."""

    turn: TurnId
    uuid: str | None
    """The turn's last message in the session's transcript; None if it was answered outside the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredSession:
    """The latest answered turn of a session."""

    session_id: str
    at_ms: int
    """When it last answered a turn."""
    model: str | None = None
    """The model that was requested for that turn."""
    provider: str | None = None
    context_tokens: int = 0
    """The size of the conversation at that time; 0 if it is not known."""


async def add(tx: Tx, run: Run, turn: Turn, *, session_id: str, uuid: str, now_ms: int) -> None:
    """Record that a turn is completely stored in its agent session, whose transcript ends with it for now.

    `uuid` is the id of the turn's last message in the transcript. The session becomes the group's last
    answered one.
    """
    await _add(tx, turn, session_id, uuid)
    await tx.execute(
        """
        INSERT INTO answered_sessions (group_folder, session_id, run_id, at_ms) VALUES (?, ?, ?, ?)
        ON CONFLICT (group_folder) DO UPDATE SET session_id = excluded.session_id, run_id = excluded.run_id,
                                                 at_ms = excluded.at_ms
        """,
        (turn.folder, session_id, run.id, now_ms),
    )


async def add_outside(tx: Tx, turn: Turn) -> None:
    """Record that a turn was answered by an agent that has no session, so no transcript contains it."""
    await _add(tx, turn, None, None)


async def _add(tx: Tx, turn: Turn, session_id: str | None, uuid: str | None) -> None:
    """Store that a turn was answered; delete the group's oldest such rows beyond `MAX_CHECKPOINTS`.

    `session_id` is the session in which it was answered, `uuid` its last message there; None if there is
    none. A turn that was stored before keeps its row.
    """
    await tx.execute(
        """
        INSERT INTO checkpoints (turn_id, group_folder, session_id, uuid) VALUES (?, ?, ?, ?)
        ON CONFLICT (turn_id) DO NOTHING
        """,
        (turn.id, turn.folder, session_id, uuid),
    )
    await tx.execute(
        """
        DELETE FROM checkpoints WHERE group_folder = :folder AND id <= (
            SELECT id FROM checkpoints WHERE group_folder = :folder ORDER BY id DESC LIMIT 1 OFFSET :limit)
        """,
        {"folder": turn.folder, "limit": MAX_CHECKPOINTS},
    )


async def answered(tx: Tx, folder: Folder, session_id: str) -> AnsweredSession | None:
    """Return the record of the last turn that a session answered: its time, model and size of the context.

    None if another session of the group was the last to answer a turn, or if none has.
    """
    cursor = await tx.execute(
        """
        SELECT answered_sessions.session_id, at_ms, model, provider, coalesce(context_tokens, 0) AS tokens
        FROM answered_sessions LEFT JOIN runs ON runs.id = run_id
        WHERE answered_sessions.group_folder = ? AND answered_sessions.session_id = ?
        """,
        (folder, session_id),
    )
    row = await cursor.fetchone()
    if row is None:
        return None
    return AnsweredSession(
        session_id=row["session_id"],
        at_ms=row["at_ms"],
        model=row["model"],
        provider=row["provider"],
        context_tokens=row["tokens"],
    )


async def since_start(tx: Tx, folder: Folder, session_id: str) -> list[TurnCheckpoint]:
    """Return the turns of a group that were answered since a session began, in the order of their ends.

    A turn that was answered in another session, or in none, has no `uuid`.
    """
    rows = await tx.execute_fetchall(
        """
        SELECT turn_id, CASE WHEN session_id = :session THEN uuid END AS uuid FROM checkpoints
        WHERE group_folder = :folder AND id >= (
            SELECT min(id) FROM checkpoints WHERE group_folder = :folder AND session_id = :session)
        ORDER BY id
        """,
        {"folder": folder, "session": session_id},
    )
    return [TurnCheckpoint(turn=TurnId(row["turn_id"]), uuid=row["uuid"]) for row in rows]


async def turns_in_prompt(tx: Tx, turn: Turn, cursor_seq: int) -> list[TurnId]:
    """Return the ids of the turns whose messages may be in a turn's prompt, including its own id, ascending.

    The prompt has the messages after the one whose `seq` is `cursor_seq`.
    """
    # A turn without messages, such as a task's, has only its own prompt, and `/compact` shows no messages.
    if turn.last_seq is None or turn.command is SessionCommand.COMPACT:
        return [turn.id]
    return sorted({turn.id, *await prompt_messages.turns_of(tx, turn, cursor_seq)})
