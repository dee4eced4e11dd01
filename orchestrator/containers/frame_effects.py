"""Apply one frame of a container to the store, in the transaction that records the frame's number.

So each frame takes effect once, however often its stream is read again after a crash.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import assert_never

from agent_runner.wire.frames import (
    NOT_RETRIED,
    Ack,
    Draft,
    FailureFrame,
    Frame,
    Heartbeat,
    Ready,
    Result,
    Standby,
    ToolEnd,
    ToolStart,
    TurnEnd,
    Usage,
)
from agent_runner.wire.mailbox import MAX_TEXT_CHARS
from agent_runner.wire.order import RestoreMode
from orchestrator.domain.silence import is_silence
from orchestrator.domain.values import OFFLINE, OutboxState, Run, Turn, TurnKind, TurnState
from orchestrator.store.conversation import outbox
from orchestrator.store.database import Tx
from orchestrator.store.notices import claims as notice_claims
from orchestrator.store.runs import checkpoints, runs, sessions, tool_calls, turns

RequeueTurn = Callable[..., Awaitable[TurnState]]
"""`(tx, turn, *, reason, is_retryable, now_ms, is_at_once, fault)`: queue an unanswered turn again, or fail
it. Returns its new state.
"""

OnSuccess = Callable[[Tx, Turn], Awaitable[None]]
"""Called in the transaction in which a turn ends well, before its answers are released to the outbox."""

LOST_SESSION = "session_gone"
"""The error code of a turn that failed because its agent session does not exist any more."""
SESSION_GONE = "its session was gone when it was to be resumed"
MAX_RESULTS, MAX_RESULT_CHARS = 100, 1_000_000
"""Results of one attempt at a turn, and their characters in all; further results are dropped."""


@dataclass(frozen=True, slots=True)
class FrameEffect:
    """The changes that a frame made to its turn."""

    turn: Turn
    is_acked: bool = False
    ended: TurnState | None = None
    """The state in which the turn ended this attempt: answered, failed or queued again."""
    reason: str | None = None
    """The reason why the turn was not answered; None if it was, or has not ended."""
    is_left_out: bool = False
    """Whether the result in the frame was dropped, because the turn has reached its limit of results."""
    delivered_notices: tuple[int, ...] = ()
    """The ids of the turn's notices that reached the agent."""
    restored: RestoreMode | None = None
    """The way in which the conversation was really restored; None if the frame reports none, or the way that
    is recorded already.
    """
    is_progress: bool = False
    """Whether the start or the end of a tool call was recorded."""


async def ignore_success(tx: Tx, turn: Turn) -> None:
    """Do nothing when a turn ends well: the default for `OnSuccess`."""
    del tx, turn


async def apply(
    tx: Tx,
    run: Run,
    frame: Frame,
    *,
    requeue: RequeueTurn,
    now_ms: int,
    on_success: OnSuccess = ignore_success,
) -> FrameEffect | None:
    """Apply a frame, one numbered line of a container's output, to the store; return the changes it made.

    Return None if this frame was applied before, or is not of the turn that the store has for the run; in
    both cases it counts as applied from then on. A new session that the frame reports becomes the group's,
    unless the run is isolated. `requeue` queues a failed turn again or fails it, and `on_success` is called
    when the turn ends well.
    """
    if not await runs.advance_frame(tx, run.id, frame.n):
        return None
    turn = await turns.running_in(tx, run.id)
    # A container is not believed: its frames count only for the turn that the store has for its run. A frame
    # that names no turn counts for that turn, too.
    if turn is None or frame.turn not in (None, turn.id):
        return None
    if frame.new_session_id and not run.is_isolated:
        await sessions.put_current(tx, run.folder, frame.new_session_id, now_ms=now_ms)
    match frame:
        case Ack():
            await turns.acknowledge(tx, turn.id, now_ms=now_ms)
            return FrameEffect(turn, is_acked=True, restored=await _note_restored(tx, run, frame))
        case Result():
            # Its text waits for the end of the turn, unless the turn has reached its limit of results.
            is_within_limit = await _hold_result(tx, run, turn, frame, now_ms=now_ms)
            return FrameEffect(turn, is_left_out=not is_within_limit)
        case TurnEnd():
            return await _take_end(
                tx, run, turn, frame, requeue=requeue, on_success=on_success, now_ms=now_ms
            )
        case Usage():
            await runs.note_context(tx, run.id, tokens=frame.context_tokens, window=frame.context_window)
            return FrameEffect(turn)
        case ToolStart() | ToolEnd():
            return FrameEffect(turn, is_progress=await _note_call(tx, run, turn, frame, now_ms=now_ms))
        case Ready() | Standby() | Heartbeat() | FailureFrame() | Draft():
            return FrameEffect(turn)  # these change nothing in the store
        case _:
            assert_never(frame)


async def store_session(tx: Tx, run: Run, session_id: str, *, now_ms: int) -> bool:
    """Store `session_id`, which the container has reported, as the current session of the run's group.

    Nothing is stored for an isolated run, or while no turn runs in it. Return whether it was stored.
    """
    if run.is_isolated or await turns.running_in(tx, run.id) is None:
        return False
    await sessions.put_current(tx, run.folder, session_id, now_ms=now_ms)
    return True


async def _hold_result(tx: Tx, run: Run, turn: Turn, frame: Result, *, now_ms: int) -> bool:
    """Put a result, a text for the chat, into the outbox, where it is held back until its turn has ended.

    It is cut to `MAX_TEXT_CHARS`. Return False if it is left out, because the turn has reached its limit of
    results. A text that is not meant for the chat is dropped, and True is returned: an empty text, one by
    which the agent says that it stays silent, and any text of the dashboard worker. A frame is applied once,
    so no result is in the outbox already.
    """
    text = (frame.result or "")[:MAX_TEXT_CHARS]
    if not text or turn.kind is TurnKind.WORKER or is_silence(text):
        return True
    held = await outbox.held(tx, turn.id)
    if held.count >= MAX_RESULTS or held.chars + len(text) > MAX_RESULT_CHARS:
        return False
    return await outbox.add(
        tx,
        chat_jid=turn.chat_jid,
        folder=turn.folder,
        text=text,
        dedupe_key=f"frame:{run.id}:{frame.n}",
        turn_id=turn.id,
        state=OutboxState.HELD,
        now_ms=now_ms,
    )


async def _note_call(tx: Tx, run: Run, turn: Turn, frame: ToolStart | ToolEnd, *, now_ms: int) -> bool:
    """Record that a tool call of the turn started or ended.

    Return False if nothing was recorded, because it is known already or the turn has made too many calls.
    """
    if isinstance(frame, ToolEnd):
        is_ok = frame.status == "success"
        return await tool_calls.end(
            tx, turn, run, call_id=frame.call, is_ok=is_ok, took_ms=frame.ms, now_ms=now_ms
        )
    return await tool_calls.begin(
        tx,
        turn,
        run,
        call_id=frame.call,
        parent_id=frame.parent,
        tool=frame.tool,
        summary=frame.summary,
        now_ms=now_ms,
    )


async def _note_restored(tx: Tx, run: Run, frame: Ack | TurnEnd) -> RestoreMode | None:
    """Record how the container's program really continued the conversation, if the frame reports it.

    Return that way if it differs from the host's plan, else None.
    """
    if frame.restored is None:
        return None
    differs_from_plan = await runs.note_restored(tx, run.id, frame.restored, reason=SESSION_GONE)
    return frame.restored if differs_from_plan else None


async def _add_checkpoint(tx: Tx, run: Run, turn: Turn, frame: TurnEnd, *, now_ms: int) -> None:
    """Record the position in the agent's session up to which it contains the turn.

    A turn of the agent without a model is recorded as answered outside of a session. Nothing is recorded for
    an isolated run, whose session is not continued.
    """
    if run.is_isolated:
        return
    session_id = await sessions.current(tx, run.folder)
    if frame.checkpoint is not None and session_id is not None:
        await checkpoints.add(tx, run, turn, session_id=session_id, uuid=frame.checkpoint, now_ms=now_ms)
    # With a note, which says why, the turn ended without an answer: there is nothing to restore of it.
    elif run.provider == OFFLINE and frame.note is None:
        await checkpoints.add_outside(tx, turn)


async def _settle_notices(tx: Tx, run: Run, turn: Turn, frame: TurnEnd, *, now_ms: int) -> list[int]:
    """Record which of the turn's notices reached the agent, and return their ids.

    A notice is a line for the agent about something that happened on the host. The wire's field `told` lists
    those that reached it; the others are offered to a later turn.
    """
    session_id = None if run.is_isolated else await sessions.current(tx, run.folder)
    return await notice_claims.settle(tx, turn, frame.told, session_id=session_id, now_ms=now_ms)


async def _take_end(
    tx: Tx,
    run: Run,
    turn: Turn,
    frame: TurnEnd,
    *,
    requeue: RequeueTurn,
    on_success: OnSuccess,
    now_ms: int,
) -> FrameEffect:
    """Apply the frame that ends a turn, and return the changes to the turn.

    The turn gets its new state. If it ended well, `on_success` is called, and its delivered notices and its
    position in the session (a checkpoint) are recorded. However it ended, it is recorded how the conversation
    was really restored, if the frame reports that.
    """
    delivered: list[int] = []
    if frame.status == "success":
        await on_success(tx, turn)
        # Only a turn that ended well has delivered its notices: those of a failed one are delivered again.
        delivered = await _settle_notices(tx, run, turn, frame, now_ms=now_ms)
        await _add_checkpoint(tx, run, turn, frame, now_ms=now_ms)
    new_state = await _end_turn(tx, run, turn, frame, requeue=requeue, now_ms=now_ms)
    return FrameEffect(
        turn,
        ended=new_state,
        reason=_reason(frame),
        delivered_notices=tuple(delivered),
        restored=await _note_restored(tx, run, frame),
    )


async def _end_turn(
    tx: Tx, run: Run, turn: Turn, frame: TurnEnd, *, requeue: RequeueTurn, now_ms: int
) -> TurnState:
    """Settle a turn by the frame that ends it, and return its new state.

    A turn that ended well is answered: its held results are released for sending. If it was a chat's question
    in the group's shared session, the session's cursor moves to the last message that the turn has read.
    `requeue` queues a failed turn again, or fails it for good; a session that the agent's program has lost is
    forgotten before, so that the next attempt begins a new one.
    """
    if frame.status == "error":
        # Without this, all further attempts would use the lost session, and fail alike.
        if frame.code == LOST_SESSION and not run.is_isolated:
            await sessions.lose(tx, turn.folder)
        return await requeue(
            tx, turn, reason=_reason(frame), is_retryable=frame.code not in NOT_RETRIED, now_ms=now_ms
        )
    sent = await outbox.release(tx, turn.id, now_ms=now_ms)
    # A turn that sends nothing is recorded with the reason of its silence.
    silence = plain_reason(frame.note) if frame.note else "nothing to say"
    await turns.settle(tx, turn.id, TurnState.ANSWERED, reason=None if sent else silence, now_ms=now_ms)
    # A restricted turn has a session of its own: the shared one has not read these messages. Nor are messages
    # read by a command such as `/compact`, so the next question's prompt still has to contain them.
    is_of_session = turn.kind is TurnKind.CHAT and not turn.is_restricted
    if is_of_session and turn.command is None and turn.last_seq is not None:
        await sessions.move_cursor(tx, turn.folder, turn.last_seq)
    return TurnState.ANSWERED


def _reason(frame: TurnEnd) -> str | None:
    """Return why a turn failed, as a sentence; None if it ended well."""
    return plain_reason(frame.error) if frame.status == "error" else None


def plain_reason(text: str | None) -> str:
    """Return an agent's own error text as one line that ends like a sentence, cut after 200 characters.

    `text` is None, or empty, if the agent gave no reason: then the line says that.
    """
    line = " ".join((text or "the agent gave no reason").split())[:200]
    return line if line.endswith((".", "!", "?")) else f"{line}."
