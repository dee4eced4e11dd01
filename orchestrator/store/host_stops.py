"""`turn_stops`: turns that the host itself stopped, by its own record and not by what a container says."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.domain.values import TurnId
from orchestrator.store.database import Tx

REFUSED = "model_refused"
"""The model service answers no question: `model_refusals` says why."""
OUTAGE = "outage"
"""It was down for too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why a turn is stopped: `reason` finishes a sentence."""

    code: str
    reason: str


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


async def lift(tx: Tx, turn_id: TurnId, code: str) -> None:
    """Let a turn go on that was stopped for this."""
    await tx.execute("DELETE FROM turn_stops WHERE turn_id = ? AND code = ?", (turn_id, code))


async def of_turn(tx: Tx, turn_id: TurnId) -> Stop | None:
    cursor = await tx.execute("SELECT code, reason FROM turn_stops WHERE turn_id = ?", (turn_id,))
    row = await cursor.fetchone()
    return Stop(code=row["code"], reason=row["reason"]) if row else None
