"""`turn_stops`: turns that the host itself stopped, by its own record and not by what a container says."""

from __future__ import annotations

from orchestrator.models import TurnId
from orchestrator.store.database import Tx


async def record(tx: Tx, turn_id: TurnId, *, code: str, reason: str, now_ms: int) -> bool:
    """Note why a turn is stopped: `reason` finishes a sentence. False when one was noted before."""
    cursor = await tx.execute(
        """
        INSERT INTO turn_stops (turn_id, code, reason, at_ms) VALUES (?, ?, ?, ?)
        ON CONFLICT (turn_id) DO NOTHING
        """,
        (turn_id, code, reason, now_ms),
    )
    return cursor.rowcount == 1


async def reason_of(tx: Tx, turn_id: TurnId) -> str | None:
    cursor = await tx.execute("SELECT reason FROM turn_stops WHERE turn_id = ?", (turn_id,))
    row = await cursor.fetchone()
    return str(row["reason"]) if row else None
