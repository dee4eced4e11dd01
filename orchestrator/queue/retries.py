"""Decide what happens to a turn that was not answered: try again at once or later, or fail and notify."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.domain import failures
from orchestrator.domain.failures import FailureOwner, Outage
from orchestrator.domain.values import Turn, TurnKind, TurnState
from orchestrator.groups import owner, registration
from orchestrator.scheduler import scheduled_task_turns
from orchestrator.store.conversation import outbox
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.notices import claims as notice_claims
from orchestrator.store.runs import model_refusals, turn_moves, turn_outages, turns
from orchestrator.store.runs.model_refusals import ModelRefusal
from orchestrator.store.runs.turn_outages import TurnOutage
from orchestrator.store.schedule import task_stops

MAX_RETRIES = 5
"""Attempts after the first, before a turn fails."""
FIRST_DELAY_MS = 5_000
"""Milliseconds before the first retry; each further pause is twice as long."""
MAX_RESTARTS = 20
"""Restarts of the host during one turn after which it fails: a turn that crashes the host must end, too."""
TOO_MANY_RESTARTS = f"Andy was restarted {MAX_RESTARTS} times while I worked on it."


def retry_delay_ms(attempt: int) -> int | None:
    """Return the milliseconds to wait after the `attempt`-th failure of a turn: 5, 10, 20, 40, 80 s.

    None after the last retry.
    """
    return FIRST_DELAY_MS * 2 ** (attempt - 1) if attempt <= MAX_RETRIES else None


def restart_delay_ms(restarts: int) -> int | None:
    """Return the milliseconds to wait after the host was restarted during a turn.

    After the first restart there is no wait, then 5, 10, 20, 40 s, and from then on 80 s. None after
    `MAX_RESTARTS`: the turn is not to be tried again. `restarts` is the number of earlier restarts.
    """
    if restarts >= MAX_RESTARTS:
        return None
    return FIRST_DELAY_MS * 2 ** min(restarts - 1, MAX_RETRIES - 1) if restarts else 0


def outage_delay_ms(elapsed_ms: int) -> int | None:
    """Return the milliseconds to wait in an outage that has lasted `elapsed_ms`.

    That is half of `elapsed_ms`, but at least 5 s and at most 60 s. None if the outage has lasted so long
    that the turn is not to be tried again.
    """
    if elapsed_ms >= failures.MAX_OUTAGE_MS:
        return None
    return max(FIRST_DELAY_MS, min(elapsed_ms // 2, failures.LONGEST_OUTAGE_PAUSE_MS))


def image_delay_ms(elapsed_ms: int) -> int | None:
    """Return the milliseconds to wait while the containers' image has been missing for `elapsed_ms`.

    None if it has been missing so long that the turn is not to be tried again.
    """
    return failures.IMAGE_PAUSE_MS if elapsed_ms < failures.MAX_IMAGE_WAIT_MS else None


async def requeue_or_fail(
    tx: Tx,
    turn: Turn,
    *,
    reason: str,
    is_retryable: bool,
    now_ms: int,
    is_at_once: bool = False,
    fault: FailureOwner = FailureOwner.TURN,
) -> TurnState:
    """Queue a turn again that a container left unanswered, or fail it; return its new state.

    Messages of the attempt that were still held back are dropped, so that the chat reads only the next
    attempt's. The notices (texts for the agent) that the attempt had claimed are released. What the host has
    recorded of the turn, such as that the model service refused it, counts more than what the container
    reports. A turn is not tried again if its scheduled task was paused or cancelled, or if its chat has left
    the group. Any other one that moves to another model service is queued at once; a dashboard worker's turn
    is tried again for no other reason.

    Args:
        tx: the transaction.
        turn: the turn.
        reason: why the attempt failed.
        is_retryable: whether another attempt may succeed.
        now_ms: the present time, in epoch milliseconds.
        is_at_once: whether the next attempt does not wait, since nothing has to recover first.
        fault: who caused the failure. One of the turn itself uses up an attempt. An outage or a restart of
            the host does not; the turn is tried again until an outage has lasted too long, or the host was
            restarted too often.
    """
    await outbox.drop_held(tx, turn.id)
    await notice_claims.release(tx, turn, now_ms=now_ms)
    why_stopped = await scheduled_task_turns.why_stopped(tx, turn)
    if why_stopped is not None:
        await task_stops.cancel(tx, turn, reason=why_stopped, now_ms=now_ms)
        return TurnState.FAILED
    group = await groups.by_folder(tx, turn.folder)
    if turn.kind is TurnKind.CHAT and group is not None and turn.chat_jid not in group.chats:
        await registration.fail_gone(tx, turn, now_ms=now_ms)
        return TurnState.FAILED
    # What the host itself has recorded of the turn counts more than what its container reports.
    recorded_stop = await turn_outages.stop_of(tx, turn.id)
    if recorded_stop is not None and recorded_stop.code == turn_outages.REFUSED:
        await refuse(tx, turn, now_ms=now_ms)
        return TurnState.FAILED
    if recorded_stop is not None:
        reason, is_retryable = recorded_stop.reason, False
    # The turn has left the model service of this run, so its next attempt goes to another service.
    if is_retryable and await turn_moves.left_in(tx, turn.id, turn.run_id):
        await _move(tx, turn, reason=reason, now_ms=now_ms)
        return TurnState.QUEUED
    if fault in (FailureOwner.ENGINE, FailureOwner.IMAGE):
        await turn_outages.begin(tx, turn.id, Outage.ENGINE, since_ms=now_ms)
    outage = await turn_outages.of_turn(tx, turn.id)
    # Nobody waits for a worker's turn: when it fails, the dashboard's rules do its work without a model.
    if is_retryable and turn.kind is not TurnKind.WORKER:
        decision = _decide_retry(turn, outage, fault, reason=reason, now_ms=now_ms)
    else:
        decision = _RetryDecision(delay_ms=None, reason=reason)
    if decision.delay_ms is not None:
        delay_ms = 0 if is_at_once else decision.delay_ms
        is_restart = fault is FailureOwner.RESTART
        await turns.put_back(
            tx,
            turn,
            reason=decision.reason,
            not_before_ms=now_ms + delay_ms,
            # Neither an outage nor a restart is the turn's fault: only its own failures use up its attempts.
            counts_as_attempt=outage is None and not is_restart,
            counts_as_restart=is_restart,
        )
        return TurnState.QUEUED
    is_own_fault = fault is FailureOwner.TURN and outage is None
    await fail(tx, turn, reason=decision.reason, now_ms=now_ms, is_own_fault=is_own_fault)
    return TurnState.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class _RetryDecision:
    """The pause before a turn is tried again, or None if it fails; and the reason for either."""

    delay_ms: int | None
    reason: str


def _decide_retry(
    turn: Turn, outage: TurnOutage | None, fault: FailureOwner, *, reason: str, now_ms: int
) -> _RetryDecision:
    """Decide whether a turn whose failure may pass is tried again, and after what pause. Pure.

    `outage` is the outage in which it failed; None if there was none. `fault` says who caused the failure,
    and `reason` is its text. A turn that is given up (its pause is None) after an outage or restarts gets a
    reason that says so.
    """
    # Also in an outage: its time may have passed while the host was off, and nobody asked the service then.
    if fault is FailureOwner.RESTART:
        delay_ms, last_reason = restart_delay_ms(turn.restarts), TOO_MANY_RESTARTS
    elif outage is not None:
        # A missing image of the agents counts as an outage, too, in which turns wait much longer.
        is_image = fault is FailureOwner.IMAGE
        elapsed_ms = now_ms - outage.since_ms
        delay_ms = image_delay_ms(elapsed_ms) if is_image else outage_delay_ms(elapsed_ms)
        last_reason = failures.NO_IMAGE if is_image else failures.TOO_LONG[outage.cause]
    else:
        delay_ms, last_reason = retry_delay_ms(turn.attempt), reason
    return _RetryDecision(delay_ms=delay_ms, reason=last_reason if delay_ms is None else reason)


async def _move(tx: Tx, turn: Turn, *, reason: str, now_ms: int) -> None:
    """Queue a turn again that moves to another model service: at once, and without counting an attempt.

    If the chat has waited longer than `MOVE_NOTICE_AFTER_MS`, it gets a text that another model continues.
    """
    # In another run, because a session must not mix the answers of two services.
    await turns.put_back(tx, turn, reason=reason, not_before_ms=now_ms, counts_as_attempt=False)
    waited_ms = now_ms - (turn.started_ms or turn.queued_ms)
    if turn.kind is TurnKind.CHAT and waited_ms > failures.MOVE_NOTICE_AFTER_MS:
        await outbox.add(
            tx,
            chat_jid=turn.chat_jid,
            folder=turn.folder,
            text=failures.MOVED,
            dedupe_key=f"moved:{turn.id}",
            now_ms=now_ms,
        )


async def fail(tx: Tx, turn: Turn, *, reason: str, now_ms: int, is_own_fault: bool = True) -> None:
    """End a turn as failed. For a turn of a chat, send the chat the reason, once.

    For a scheduled task, its group may be notified, and a task that fails too often is paused; `is_own_fault`
    says whether this failure counts against the task. The failure of a turn of another kind is only recorded.
    """
    await turns.settle(tx, turn.id, TurnState.FAILED, reason=reason, now_ms=now_ms, is_own_fault=is_own_fault)
    if turn.kind is TurnKind.CHAT:
        text = f"⚠️ I could not answer this: {reason} Your next message tries again."
        if reason == failures.STOPPED_BY_HAND:
            text = failures.STOPPED_TEXT
        await outbox.add_failure(tx, turn, text, now_ms=now_ms)
    elif turn.kind is TurnKind.TASK:
        await scheduled_task_turns.report_failure(tx, turn, reason=reason, now_ms=now_ms)


async def refuse(tx: Tx, turn: Turn, *, now_ms: int) -> None:
    """Fail a turn that no model can answer until a key or a setting changes.

    The chat reads one sentence without details, since its members can do nothing about it. For a scheduled
    task, the task's failure is reported instead; for other kinds of turns, nothing is sent. The owner reads
    the cause in the main chat, once for each refusal of the model service; a question asked there is answered
    with it or, if the owner has read it before, with a text that points to it.
    """
    refusals = await model_refusals.unfinished(tx)
    reason = f"{_cause(refusals[0])}." if refusals else failures.REFUSED_TASK
    await turns.settle(tx, turn.id, TurnState.FAILED, reason=reason, now_ms=now_ms, is_own_fault=False)
    group = await groups.by_folder(tx, turn.folder)
    is_asked_by_owner = group is not None and group.is_main and turn.kind is TurnKind.CHAT
    new_texts = [_text_for_owner(refusal) for refusal in refusals if refusal.notified_ms is None]
    for refusal in refusals:
        if refusal.notified_ms is None:
            await model_refusals.note_notified(tx, refusal.id, now_ms=now_ms)
            if not is_asked_by_owner:
                await owner.notify(
                    tx, _text_for_owner(refusal), about=f"model-refusal:{refusal.id}", now_ms=now_ms
                )
    if is_asked_by_owner:
        await outbox.add_failure(tx, turn, "\n".join(new_texts) or failures.STILL_REFUSED, now_ms=now_ms)
    elif turn.kind is TurnKind.CHAT:
        await outbox.add_failure(tx, turn, failures.REFUSED, now_ms=now_ms)
    elif turn.kind is TurnKind.TASK:
        await scheduled_task_turns.report_failure(tx, turn, reason=failures.REFUSED_TASK, now_ms=now_ms)


def _cause(refusal: ModelRefusal) -> str:
    """Return in words why a model service refuses to answer; `refusal` is the stored record of that."""
    return failures.refusal_cause(
        refusal.cause, setting=refusal.setting, model=refusal.model, status=refusal.status
    )


def _text_for_owner(refusal: ModelRefusal) -> str:
    """Return the text for the owner about a stored refusal of a model service, and what to do about it."""
    return failures.refusal_text(
        refusal.cause, setting=refusal.setting, model=refusal.model, status=refusal.status
    )
