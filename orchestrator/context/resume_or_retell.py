"""Decide how a conversation goes on in a new container: resume its session, or retell it. Pure.

The session is the first choice: it has everything, and the model service has it cached. If it lost a few
turns, the host adds those from the stored context; if it lost too much, a new session starts with the stored
context. To a complete session nothing is added.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from agent_runner.wire.order import RestoreMode
from orchestrator.context.transcript import Transcript, TranscriptState
from orchestrator.domain.values import TurnId
from orchestrator.store.runs.checkpoints import AnsweredSession, TurnCheckpoint

DAY_MS = 24 * 3_600_000
IDLE_MS = 29 * DAY_MS
"""Milliseconds after which a session is not resumed: the CLI removes transcripts after 30 days."""
WINDOW_FACTOR = 1.3
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
    checkpoints: Sequence[TurnCheckpoint] = ()
    """The turns since the session began, in the order in which they ended."""
    transcript: Transcript | None = None
    """The session's transcript; None if it could not be read."""
    has_stored_context: bool = False
    """Whether the host has stored context that a new session can start from."""
    stored_turns: Collection[int] = ()
    """The turns whose messages are stored word for word."""
    repeated_turns: Collection[int] = ()
    """The turns whose questions are in the next prompt."""
    model: str | None = None
    """The model that will answer; None if the agent chooses it."""
    model_window: int | None = None
    """The size of that model's window in tokens; None if it is not known."""
    provider: str | None = None
    """The provider that will answer, as `Run.provider`."""
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
class _SessionState:
    """The part of the conversation that a session has."""

    newest_uuid: str | None
    """The uuid of the newest checkpoint that is in the session's transcript; None if none is."""
    missing: tuple[TurnId, ...]
    """The turns after it, which the session lacks."""


def plan_restore(facts: RestoreFacts) -> RestoreDecision:
    """Return the decision how a conversation continues in a new container.

    Its session is resumed if it is not too old, fits the model, and its transcript is usable or could not be
    read in time. It then goes on right before a question that got no answer, if there is one, and the turns
    that it lacks at its end are added. Otherwise a new session begins.
    """
    if facts.session_id is None:
        return start_new_session(facts, "there is no session to resume")
    if facts.answered is None:
        return start_new_session(facts, "nothing was answered in its session yet")
    session_state = _session_state(facts)
    reason = _reason_not_to_resume(facts, facts.answered, session_state)
    if reason is not None:
        return start_new_session(facts, reason)
    resumed = RestoreDecision(
        mode="resume", reason="its session holds all of it", session_id=facts.session_id
    )
    # The transcript could not be read in time: the session is resumed unchecked, as it has more than the
    # stored context.
    if facts.transcript is None:
        return replace(resumed, reason="its session could not be looked at")
    resumed = _from_checkpoint(facts.transcript, session_state, resumed)
    if session_state.missing:
        reason = f"its session lacks {_turn_count(len(session_state.missing))} at its end"
        return replace(resumed, mode="resume_plus_delta", reason=reason, missing=session_state.missing)
    return resumed


def start_new_session(facts: RestoreFacts, reason: str) -> RestoreDecision:
    """Return the decision for a new session, which gets the stored context if there is one."""
    if facts.has_stored_context:
        return RestoreDecision(mode="rehydrate", reason=reason)
    return RestoreDecision(mode="fresh", reason=f"{reason}, and nothing was kept")


def _reason_not_to_resume(
    facts: RestoreFacts, answered: AnsweredSession, session_state: _SessionState
) -> str | None:
    """Return the first reason for a new session; None if the present one can be resumed."""
    return (
        _unusable_reason(facts.transcript)
        or _missing_turns_reason(facts, session_state)
        or _other_model_reason(facts, answered)
        or _too_old_reason(facts, answered)
    )


def _unusable_reason(transcript: Transcript | None) -> str | None:
    """Return why a session cannot be resumed from its transcript; None if it can.

    It can also if the transcript is None, as it was not read in time: the file on a slow disk may still be
    whole, and the session has more than the stored context.
    """
    if transcript is None:
        return None
    match transcript.state:
        case TranscriptState.MISSING:
            return "the transcript of its session is gone"
        case TranscriptState.EMPTY:
            return "the transcript of its session is empty"
        case TranscriptState.REFUSED:
            return transcript.reason
        case TranscriptState.HEADLESS:
            return "the transcript of its session has lost its beginning"
        case TranscriptState.WHOLE:
            return None


def _missing_turns_reason(facts: RestoreFacts, session_state: _SessionState) -> str | None:
    """Return why a session lacks too much of the conversation to be resumed; None if it does not.

    A session lacks too much if it has no answered turn, if it lacks turns that are not stored word for word,
    or if it was compacted after the last answered turn. None also if its transcript could not be read.
    """
    if facts.transcript is None:
        return None
    if session_state.newest_uuid is None and any(checkpoint.uuid for checkpoint in facts.checkpoints):
        return "the transcript of its session has none of the answered turns"
    # Of turns before the stored ones only a summary is stored, so the session cannot get them word for word.
    missing = session_state.missing
    if missing and (not facts.stored_turns or missing[0] < min(facts.stored_turns)):
        return (
            f"its session lacks {_turn_count(len(session_state.missing))}, more than was kept word for word"
        )
    if session_state.newest_uuid is None:
        return None
    # A session cannot continue from a message before its last compaction.
    question_position = facts.transcript.first_question_after(session_state.newest_uuid)
    if question_position is not None and question_position <= facts.transcript.last_compaction:
        return "its session was compacted before its last question was answered"
    return None


def _other_model_reason(facts: RestoreFacts, answered: AnsweredSession) -> str | None:
    """Return why the model that would answer cannot resume the session; None if it can.

    A model cannot if it is asked at another provider than the session's, or if its window is too small.
    Nothing is compared if the session's provider is not known.
    """
    if answered.provider is not None and answered.provider != facts.provider:
        return f"the model is asked at {facts.provider or 'no service'} now, no more at {answered.provider}"
    needed = round(WINDOW_FACTOR * answered.context_tokens)
    window = facts.model_window or DEFAULT_WINDOW
    # The same model has fitted the session into its window before, and compacts it when necessary.
    if answered.provider is not None and answered.model != facts.model and window < needed:
        return (
            f"the window of {facts.model or 'the model'} has {window:,} tokens, "
            f"less than the {needed:,} that the session would need"
        )
    return None


def _too_old_reason(facts: RestoreFacts, answered: AnsweredSession) -> str | None:
    """Return why a session was unused for too long to be resumed; None if it was not."""
    idle_ms = facts.now_ms - answered.at_ms
    return f"nothing was said for {idle_ms // DAY_MS} days" if idle_ms > IDLE_MS else None


def _session_state(facts: RestoreFacts) -> _SessionState:
    """Return how much of the conversation a session has, by the checkpoints: the answered turns.

    That is the newest checkpoint that its transcript has, and the turns after it, which it lacks. Turns whose
    questions are repeated in the next prompt do not count as missing. A transcript that could not be read
    counts as one without any checkpoint.
    """
    transcript = facts.transcript or Transcript(TranscriptState.MISSING)
    newest_uuid, first_missing = None, 0
    # All checkpoints are tried, not the last alone: a damaged transcript may have any of them.
    for next_index, checkpoint in enumerate(facts.checkpoints, start=1):
        if checkpoint.uuid is not None and transcript.has(checkpoint.uuid):
            newest_uuid, first_missing = checkpoint.uuid, next_index
    missing = sorted(
        checkpoint.turn
        for checkpoint in facts.checkpoints[first_missing:]
        if checkpoint.turn not in facts.repeated_turns
    )
    return _SessionState(newest_uuid=newest_uuid, missing=tuple(missing))


def _from_checkpoint(
    transcript: Transcript, session_state: _SessionState, resumed: RestoreDecision
) -> RestoreDecision:
    """Return the decision `resumed`; the session continues right before an unanswered question, if any.

    That is the first question in the transcript after the newest answered turn. It is dropped from the
    session because it will be asked again, or has failed for good.
    """
    position = (
        transcript.first_question_after(session_state.newest_uuid)
        if session_state.newest_uuid is not None
        else None
    )
    if position is None:
        return resumed
    reason = "its session goes on after its last answer: what was asked then got none"
    # The message before the question is the last one that stays.
    return replace(resumed, reason=reason, resume_at=transcript.chain[position - 1])


def _turn_count(count: int) -> str:
    """Return a number of turns in words."""
    return "one turn" if count == 1 else f"{count} turns"
