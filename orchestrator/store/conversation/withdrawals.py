"""`withdrawals`: sent messages that are to be deleted in their chats, `due → done | failed`."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.domain.values import TurnId
from orchestrator.store.database import Tx
from orchestrator.store.row_mapper import RowMapper


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """A message to delete in its chat."""

    outbox_id: int
    turn_id: TurnId
    """The turn of the undo."""
    created_ms: int
    attempts: int
    next_attempt_ms: int


_MAPPER = RowMapper(Withdrawal, "withdrawals", {}, unread=("state", "error"))


async def add(tx: Tx, outbox_id: int, turn_id: TurnId, *, now_ms: int) -> None:
    """Request that a sent message is deleted in its chat, because its turn was undone.

    `turn_id` is the turn of the undo, not the undone one. A message whose deletion failed before is tried
    again; a deletion that is requested or done already stays.
    """
    await tx.execute(
        """
        INSERT INTO withdrawals (outbox_id, turn_id, created_ms, next_attempt_ms) VALUES (?, ?, ?, ?)
        ON CONFLICT (outbox_id) DO UPDATE SET state = 'due', attempts = 0, created_ms = excluded.created_ms,
            next_attempt_ms = excluded.next_attempt_ms, turn_id = excluded.turn_id WHERE state = 'failed'
        """,
        (outbox_id, turn_id, now_ms, now_ms),
    )


async def unfinished(tx: Tx) -> list[Withdrawal]:
    """Return all messages that are still to be deleted in their chats, by the time of the next attempt.

    That time may be in the future.
    """
    return await _MAPPER.fetch_all(
        tx, "SELECT * FROM withdrawals WHERE state = 'due' ORDER BY next_attempt_ms, outbox_id"
    )


async def count_of(tx: Tx, turn_id: TurnId) -> int:
    """Return how many messages an undo deletes in their chats: deleted ones and those still to be deleted.

    Failed deletions do not count. `turn_id` is the turn in which the undo was requested; 0 for any other.
    """
    rows = await tx.execute_fetchall(
        "SELECT count(*) AS n FROM withdrawals WHERE turn_id = ? AND state <> 'failed'", (turn_id,)
    )
    return int(next(iter(rows))["n"])


async def already_requested(tx: Tx, outbox_ids: set[int]) -> set[int]:
    """Return the ids among `outbox_ids` whose message was deleted in its chat, or is going to be."""
    rows = await tx.execute_fetchall("SELECT outbox_id FROM withdrawals WHERE state <> 'failed'")
    return outbox_ids & {row["outbox_id"] for row in rows}


async def finish(tx: Tx, outbox_id: int, *, error: str | None = None) -> None:
    """Record that a message was deleted in its chat; or with `error`, why it never will be."""
    await tx.execute(
        "UPDATE withdrawals SET state = ?, error = ? WHERE outbox_id = ?",
        ("done" if error is None else "failed", error, outbox_id),
    )


async def try_later(tx: Tx, outbox_id: int, *, at_ms: int, error: str) -> None:
    """Record that a message could not be deleted in its chat because of `error`; try again at `at_ms`."""
    await tx.execute(
        "UPDATE withdrawals SET attempts = attempts + 1, next_attempt_ms = ?, error = ? WHERE outbox_id = ?",
        (at_ms, error, outbox_id),
    )
