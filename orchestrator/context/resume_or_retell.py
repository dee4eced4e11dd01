"""Decide how a conversation goes on in a new container: resume its session, or retell it. Pure.

The session is the first choice: it has everything, and the model service has it cached. If it lost a few
turns, the host adds those from the stored context; if it lost too much, a new session starts with the stored
context. A complete session is told nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from agent_runner.wire.order import RestoreMode
from orchestrator.context.transcript import Transcript, TranscriptState
from orchestrator.domain.values import TurnId
from orchestrator.store.runs.checkpoints import AnsweredSession, CheckpointMark

DAY_MS = 24 * 3_600_000
IDLE_MS = 29 * DAY_MS
"""Milliseconds after which a session is not resumed: the CLI removes transcripts after 30 days."""
ROOM = 1.3
"""The factor by which the context window of another model must exceed the tokens of the conversation."""
DEFAULT_WINDOW = 200_000
"""Tokens in the context window of a model that was never used here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreFacts:
    """All that the decision depends on."""

    session_id: str | None
    """The session that would be resumed."""
    answered: AnsweredSession | None
    """The known state of that session; None when no turn was answered in it."""
    marks: Sequence[CheckpointMark] = ()
    """The turns since the session began, in the order in which they ended."""
    transcript: Transcript | None = None
    """The session's transcript; None if it could not be read."""
    has_stored_context: bool = False
    """Whether the host has stored context that a new session can start from."""
    window: Collection[int] = ()
    """The turns whose messages are stored."""
    again: Collection[int] = ()
    """The turns whose questions are in the next prompt."""
    model: str | None = None
    model_window: int | None = None
    provider: str | None = None
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreDecision:
    """The way in which the conversation goes on, and the reason. Without a session id a new one begins."""

    mode: RestoreMode
    reason: str
    session_id: str | None = None
    resume_at: str | None = None
    """The uuid of the message after which the session is continued; None for its end."""
    missing: tuple[TurnId, ...] = ()
    """The turns to add to the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeldTurns:
    """The part of the conversation that a session has."""

    last: str | None
    """The newest checkpoint that is in the session's transcript."""
    missing: tuple[TurnId, ...]
    """The turns after it, which the session lacks."""


def plan_restore(known: RestoreFacts) -> RestoreDecision:
    """Return the decision how a conversation goes on."""
    if known.session_id is None:
        return anew(known, "there is no session to resume")
    if known.answered is None:
        return anew(known, "nothing was answered in its session yet")
    held = _held(known)
    why_not = _why_not_resumed(known, known.answered, held)
    if why_not is not None:
        return anew(known, why_not)
    resumed = RestoreDecision(
        mode="resume", reason="its session holds all of it", session_id=known.session_id
    )
    # After a slow read the session is resumed unchecked: it has more than the stored context.
    if known.transcript is None:
        return replace(resumed, reason="its session could not be looked at")
    resumed = _from_checkpoint(known.transcript, held, resumed)
    if held.missing:
        reason = f"its session lacks {_turns(len(held.missing))} at its end"
        return replace(resumed, mode="resume_plus_delta", reason=reason, missing=held.missing)
    return resumed


def anew(known: RestoreFacts, why: str) -> RestoreDecision:
    """Return the decision for a new session, which is told the stored context if there is one."""
    if known.has_stored_context:
        return RestoreDecision(mode="rehydrate", reason=why)
    return RestoreDecision(mode="fresh", reason=f"{why}, and nothing was kept")


def _why_not_resumed(known: RestoreFacts, answered: AnsweredSession, held: _HeldTurns) -> str | None:
    return (
        _why_unusable(known.transcript)
        or _why_too_much_is_missing(known, held)
        or _why_another_model(known, answered)
        or _why_too_old(known, answered)
    )


def _why_unusable(transcript: Transcript | None) -> str | None:
    if transcript is None:
        return None
    match transcript.state:
        case TranscriptState.MISSING:
            return "the transcript of its session is gone"
        case TranscriptState.EMPTY:
            return "the transcript of its session is empty"
        case TranscriptState.REFUSED:
            return transcript.why
        case TranscriptState.HEADLESS:
            return "the transcript of its session has lost its beginning"
        case TranscriptState.WHOLE:
            return None


def _why_too_much_is_missing(known: RestoreFacts, held: _HeldTurns) -> str | None:
    if known.transcript is None:
        return None
    if held.last is None and any(mark.uuid for mark in known.marks):
        return "the transcript of its session has none of the answered turns"
    # Of turns older than the window only a summary is stored, so they cannot be retold to the session.
    if held.missing and held.missing[0] < min(known.window, default=held.missing[-1] + 1):
        return f"its session lacks {_turns(len(held.missing))}, more than was kept word for word"
    point = known.transcript.first_question_after(held.last) if held.last is not None else None
    if point is not None and point <= known.transcript.since:
        return "its session was compacted before its last question was answered"
    return None


def _why_another_model(known: RestoreFacts, answered: AnsweredSession) -> str | None:
    if answered.provider is not None and answered.provider != known.provider:
        return f"the model is asked at {known.provider or 'no service'} now, no more at {answered.provider}"
    needed = round(ROOM * answered.context_tokens)
    window = known.model_window or DEFAULT_WINDOW
    # The same model has fitted the session into its window before, and compacts it when necessary.
    if answered.provider is not None and answered.model != known.model and window < needed:
        return (
            f"the window of {known.model or 'the model'} has {window:,} tokens, "
            f"less than the {needed:,} that the session would need"
        )
    return None


def _why_too_old(known: RestoreFacts, answered: AnsweredSession) -> str | None:
    idle_ms = known.now_ms - answered.at_ms
    return f"nothing was said for {idle_ms // DAY_MS} days" if idle_ms > IDLE_MS else None


def _held(known: RestoreFacts) -> _HeldTurns:
    """Return the newest checkpoint that the session's transcript has, and the turns after it."""
    transcript = known.transcript or Transcript(TranscriptState.MISSING)
    last, after = None, 0
    # All checkpoints are tried, not the last alone: a damaged transcript may have any of them.
    for place, mark in enumerate(known.marks, start=1):
        if mark.uuid is not None and transcript.has(mark.uuid):
            last, after = mark.uuid, place
    missing = sorted(mark.turn for mark in known.marks[after:] if mark.turn not in known.again)
    return _HeldTurns(last=last, missing=tuple(missing))


def _from_checkpoint(transcript: Transcript, held: _HeldTurns, resumed: RestoreDecision) -> RestoreDecision:
    """Return the decision to continue before an unanswered question: it is asked again, or has failed."""
    place = transcript.first_question_after(held.last) if held.last is not None else None
    if place is None:
        return resumed
    reason = "its session goes on after its last answer: what was asked then got none"
    return replace(resumed, reason=reason, resume_at=transcript.chain[place - 1])


def _turns(count: int) -> str:
    return "one turn" if count == 1 else f"{count} turns"
