"""What one frame changes, in the transaction that takes its number."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import assert_never

from agent_runner.wire.frames import (
    NOT_RETRIED,
    Ack,
    FailureFrame,
    Frame,
    Heartbeat,
    Ready,
    Result,
    TurnEnd,
    Usage,
)
from agent_runner.wire.mailbox import MAX_TEXT_CHARS
from agent_runner.wire.order import RestoreMode
from orchestrator.domain.silence import is_silence
from orchestrator.domain.values import OFFLINE, OutboxState, Run, Turn, TurnKind, TurnState
from orchestrator.store import checkpoints, notice_claims, outbox, runs, sessions, turns
from orchestrator.store.database import Tx

GiveBack = Callable[..., Awaitable[TurnState]]
"""`(tx, turn, *, reason, is_retryable, now_ms, is_at_once, fault)`: settle a turn that was not answered."""

Hear = Callable[[Tx, Turn], Awaitable[None]]
"""Take notice of what a turn has said that ends well, before that leaves."""

LOST_SESSION = "session_gone"
SESSION_GONE = "its session was gone when it was to be resumed"
MAX_RESULTS, MAX_RESULT_CHARS = 100, 1_000_000
"""How much an attempt at a turn may say. What goes beyond is left out."""


@dataclass(frozen=True, slots=True)
class FrameEffect:
    """What a frame did to its turn."""

    turn: Turn
    is_acked: bool = False
    ended: TurnState | None = None
    """The state the turn ended this attempt in: answered, failed or queued again."""
    reason: str | None = None
    """Why it was not answered."""
    is_left_out: bool = False
    """What was said was not kept: the turn has said enough."""
    told: tuple[int, ...] = ()
    """The notices that were told in it, of those that it was given."""
    restored: RestoreMode | None = None
    """How its conversation really went on, if that is news."""


async def hear_nothing(tx: Tx, turn: Turn) -> None:
    """Nobody takes notice."""
    del tx, turn


async def take(
    tx: Tx, run: Run, frame: Frame, *, give_back: GiveBack, now_ms: int, hear: Hear = hear_nothing
) -> FrameEffect | None:
    """Apply `frame`; None when it was taken before or speaks of a turn that is not this run's."""
    if not await runs.advance_frame(tx, run.id, frame.n):
        return None
    turn = await turns.running_in(tx, run.id)
    if turn is None or frame.turn not in (None, turn.id):
        return None
    if frame.new_session_id and not run.is_isolated:
        await sessions.keep(tx, run.folder, frame.new_session_id, now_ms=now_ms)
    match frame:
        case Ack():
            await turns.acknowledge(tx, turn.id, now_ms=now_ms)
            return FrameEffect(turn, is_acked=True, restored=await _restored(tx, run, frame))
        case Result():
            return FrameEffect(turn, is_left_out=not await _hold(tx, run, turn, frame, now_ms=now_ms))
        case TurnEnd():
            told: list[int] = []
            if frame.status == "success":
                await hear(tx, turn)
                told = await _note_told(tx, run, turn, frame, now_ms=now_ms)
                await _mark(tx, run, turn, frame, now_ms=now_ms)
            ended = await _end(tx, run, turn, frame, give_back=give_back, now_ms=now_ms)
            reason = plain_reason(frame.error) if frame.status == "error" else None
            restored = await _restored(tx, run, frame)
            return FrameEffect(turn, ended=ended, reason=reason, told=tuple(told), restored=restored)
        case Usage():
            await runs.note_context(tx, run.id, tokens=frame.context_tokens, window=frame.context_window)
            return FrameEffect(turn)
        case Ready() | Heartbeat() | FailureFrame():
            return FrameEffect(turn)
        case _:
            assert_never(frame)


async def know_session(tx: Tx, run: Run, session_id: str, *, now_ms: int) -> bool:
    """Keep the session that a sign of life names, if a turn of this run is under way in it."""
    if run.is_isolated or await turns.running_in(tx, run.id) is None:
        return False
    await sessions.keep(tx, run.folder, session_id, now_ms=now_ms)
    return True


async def _hold(tx: Tx, run: Run, turn: Turn, frame: Result, *, now_ms: int) -> bool:
    """Keep what was said until the turn has ended; False when that would be too much."""
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


async def _restored(tx: Tx, run: Run, frame: Ack | TurnEnd) -> RestoreMode | None:
    """Take the runner's word for how it went on with the conversation, where the host had planned another."""
    if frame.restored is None:
        return None
    is_news = await runs.note_restored(tx, run.id, frame.restored, reason=SESSION_GONE)
    return frame.restored if is_news else None


async def _mark(tx: Tx, run: Run, turn: Turn, frame: TurnEnd, *, now_ms: int) -> None:
    """Note up to where the session holds the turn, or that an agent without one has answered it."""
    if run.is_isolated:
        return
    session_id = await sessions.current(tx, run.folder)
    if frame.checkpoint is not None and session_id is not None:
        await checkpoints.add(tx, run, turn, session_id=session_id, uuid=frame.checkpoint, now_ms=now_ms)
    elif run.provider == OFFLINE and frame.note is None:
        await checkpoints.add_outside(tx, turn)


async def _note_told(tx: Tx, run: Run, turn: Turn, frame: TurnEnd, *, now_ms: int) -> list[int]:
    session_id = None if run.is_isolated else await sessions.current(tx, run.folder)
    return await notice_claims.settle(tx, turn, frame.told, session_id=session_id, now_ms=now_ms)


async def _end(
    tx: Tx, run: Run, turn: Turn, frame: TurnEnd, *, give_back: GiveBack, now_ms: int
) -> TurnState:
    if frame.status == "error":
        if frame.code == LOST_SESSION and not run.is_isolated:
            await sessions.lose(tx, turn.folder)
        reason = plain_reason(frame.error)
        return await give_back(
            tx, turn, reason=reason, is_retryable=frame.code not in NOT_RETRIED, now_ms=now_ms
        )
    spoken = await outbox.release(tx, turn.id, now_ms=now_ms)
    silence = plain_reason(frame.note) if frame.note else "nothing to say"
    await turns.settle(tx, turn.id, TurnState.ANSWERED, reason=None if spoken else silence, now_ms=now_ms)
    if turn.kind is TurnKind.CHAT and turn.command is None and turn.last_seq is not None:
        await sessions.move_cursor(tx, turn.folder, turn.last_seq)
    return TurnState.ANSWERED


def plain_reason(text: str | None) -> str:
    """One short line of what an agent gave as its error, ending like a sentence."""
    line = " ".join((text or "the agent gave no reason").split())[:200]
    return line if line.endswith((".", "!", "?")) else f"{line}."
