"""What follows when a turn was not answered: again, later, or failed with one word to the chat."""

from __future__ import annotations

from orchestrator import errands
from orchestrator.models import Turn, TurnKind, TurnState
from orchestrator.store import notice_claims, outbox, stops, turns
from orchestrator.store.database import Tx

MAX_RETRIES = 5
FIRST_DELAY_MS = 5_000


def retry_delay_ms(attempt: int) -> int | None:
    """The pause after the `attempt`-th failure: 5, 10, 20, 40, 80 s; None when there were enough."""
    return FIRST_DELAY_MS * 2 ** (attempt - 1) if attempt <= MAX_RETRIES else None


async def give_back(
    tx: Tx, turn: Turn, *, reason: str, is_retryable: bool, now_ms: int, is_at_once: bool = False
) -> TurnState:
    """Settle a turn that a run left unanswered: queue it again or fail it.

    What the attempt had said and was still held is dropped, so that the next attempt speaks alone, and the
    notices it was given are free for it. With
    `is_at_once` the next attempt does not wait: nothing has to recover first. A turn to which the host
    has refused the model fails with the host's own reason, whatever the container says.
    """
    await outbox.drop_held(tx, turn.id)
    await notice_claims.release(tx, turn, now_ms=now_ms)
    stopped = await errands.why_stopped(tx, turn)
    if stopped is not None:
        await errands.cancel(tx, turn, reason=stopped, now_ms=now_ms)
        return TurnState.FAILED
    refused = await stops.reason_of(tx, turn.id)
    if refused is not None:
        reason, is_retryable = refused, False
    is_retryable = is_retryable and turn.kind is not TurnKind.WORKER  # the rules stand in for it
    delay_ms = retry_delay_ms(turn.attempt) if is_retryable else None
    if delay_ms is not None:
        delay_ms = 0 if is_at_once else delay_ms
        await turns.put_back(tx, turn, reason=reason, not_before_ms=now_ms + delay_ms)
        return TurnState.QUEUED
    await fail(tx, turn, reason=reason, now_ms=now_ms)
    return TurnState.FAILED


async def fail(tx: Tx, turn: Turn, *, reason: str, now_ms: int) -> None:
    """End a turn as failed; who asked is told once, in plain words."""
    await turns.settle(tx, turn.id, TurnState.FAILED, reason=reason, now_ms=now_ms)
    if turn.kind is TurnKind.CHAT:
        text = f"⚠️ I could not answer this: {reason} Your next message tries again."
        await outbox.add_failure(tx, turn, text, now_ms=now_ms)
    elif turn.kind is TurnKind.TASK:
        await errands.note_failure(tx, turn, reason=reason, now_ms=now_ms)
