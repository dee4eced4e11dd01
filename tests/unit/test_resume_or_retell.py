"""How a conversation goes on: a table of cases, and what holds for all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.context.resume_or_retell import DAY_MS, RestoreDecision, RestoreFacts, plan_restore
from orchestrator.context.transcript import Transcript, TranscriptState
from orchestrator.domain.values import TurnId
from orchestrator.store.runs.checkpoints import AnsweredSession, TurnCheckpoint

NOW = 1_790_000_000_000
SESSION = "0b9d1f3e-1111-4222-8333-444444444444"
ANSWERED = AnsweredSession(
    session_id=SESSION,
    at_ms=NOW - 60_000,
    model="opus",
    provider="api.anthropic.com",
    context_tokens=50_000,
)


def turn_checkpoints(*turns):
    return tuple(TurnCheckpoint(turn=TurnId(turn), uuid=f"a{turn}") for turn in turns)


def talk(*turns, tail=(), **more):
    """A transcript in which turns are answered; `tail` is what stands after them."""
    chain = [uuid for turn in turns for uuid in (f"q{turn}", f"x{turn}", f"a{turn}")] + list(tail)
    return Transcript(
        TranscriptState.WHOLE,
        chain=tuple(chain),
        questions=frozenset(one for one in chain if one.startswith("q")),
        **more,
    )


HEALTHY = RestoreFacts(
    session_id=SESSION,
    answered=ANSWERED,
    checkpoints=turn_checkpoints(1, 2, 3),
    transcript=talk(1, 2, 3),
    has_stored_context=True,
    stored_turns=(1, 2, 3),
    repeated_turns=(TurnId(4),),
    model="opus",
    provider="api.anthropic.com",
    now_ms=NOW,
)


def known(**changes):
    return replace(HEALTHY, **changes)


def test_a_session_that_holds_everything_is_resumed():
    assert plan_restore(HEALTHY) == RestoreDecision(
        mode="resume", reason="its session holds all of it", session_id=SESSION
    )


NEW_SESSION = {
    "no session": ({"session_id": None}, "no session to resume"),
    "a question that was never answered": ({"answered": None, "checkpoints": ()}, "nothing was answered"),
    "deleted": ({"transcript": Transcript(TranscriptState.MISSING)}, "is gone"),
    "emptied": ({"transcript": Transcript(TranscriptState.EMPTY)}, "is empty"),
    "a pipe": ({"transcript": Transcript(TranscriptState.REFUSED, "it is a pipe")}, "it is a pipe"),
    "head lost": ({"transcript": replace(talk(2, 3), state=TranscriptState.HEADLESS)}, "lost its beginning"),
    "another conversation": ({"transcript": talk(8, 9)}, "none of the answered turns"),
    "more missing than kept": ({"transcript": talk(1), "stored_turns": (3,)}, "lacks 2 turns, more than"),
    "missing and nothing word for word": ({"transcript": talk(1), "stored_turns": ()}, "lacks 2 turns"),
    "another service": ({"provider": "gateway.example"}, "asked at gateway.example now"),
    "no service": ({"provider": None}, "at no service now"),
    "a small model": (
        {"model": "haiku", "answered": replace(ANSWERED, context_tokens=160_000)},
        "has 200,000 tokens, less than the 208,000",
    ),
    "a small model that is known": ({"model": "tiny", "model_window": 64_999}, "has 64,999 tokens"),
    "idle": ({"answered": replace(ANSWERED, at_ms=NOW - 30 * DAY_MS)}, "nothing was said for 30 days"),
    "compacted in a question without an answer": (
        {"transcript": talk(1, 2, 3, tail=("q4", "boundary"), last_compaction=10)},
        "was compacted before its last question was answered",
    ),
}


@pytest.mark.parametrize(("changes", "why"), NEW_SESSION.values(), ids=NEW_SESSION)
def test_a_new_session_is_told_what_was_kept(changes, why):
    decision = plan_restore(known(**changes))
    assert (decision.mode, decision.session_id, decision.resume_at) == ("rehydrate", None, None)
    assert why in decision.reason


@pytest.mark.parametrize(("changes", "why"), NEW_SESSION.values(), ids=NEW_SESSION)
def test_without_anything_kept_a_conversation_begins(changes, why):
    decision = plan_restore(known(**changes, has_stored_context=False))
    assert (decision.mode, decision.session_id) == ("fresh", None)
    assert decision.reason.endswith(", and nothing was kept")


RESUMED = {
    "another model with room": {"model": "haiku"},
    "a small model by just enough": {"model": "tiny", "model_window": 65_000},
    "the same model, nearly full": {"answered": replace(ANSWERED, context_tokens=190_000)},
    "idle for 29 days": {"answered": replace(ANSWERED, at_ms=NOW - 29 * DAY_MS)},
    "from before anything of this was known": {
        "answered": AnsweredSession(session_id=SESSION, at_ms=NOW),
        "checkpoints": (),
        "model": "haiku",
        "provider": "gateway.example",
    },
    "a transcript that could not be looked at": {"transcript": None},
    "nothing kept": {"has_stored_context": False, "stored_turns": ()},
    "older checkpoints out of a compaction's reach": {"transcript": talk(2, 3)},
    "compacted since": {"transcript": talk(1, 2, 3, tail=("boundary", "said"), last_compaction=9)},
}


@pytest.mark.parametrize("changes", RESUMED.values(), ids=RESUMED)
def test_a_session_is_resumed_as_it_is(changes):
    decision = plan_restore(known(**changes))
    assert (decision.mode, decision.session_id, decision.resume_at) == ("resume", SESSION, None)


def test_what_a_session_lost_at_its_end_is_told_to_it():
    decision = plan_restore(known(transcript=talk(1)))
    assert (decision.mode, decision.missing) == ("resume_plus_delta", (2, 3))
    assert decision.reason == "its session lacks 2 turns at its end"
    assert (decision.session_id, decision.resume_at) == (SESSION, None)


def test_a_turn_that_lost_its_answer_alone_is_told_and_not_there_twice():
    decision = plan_restore(known(transcript=talk(1, 2, tail=("q3", "x3"))))
    assert (decision.mode, decision.missing, decision.resume_at) == ("resume_plus_delta", (3,), "a2")


def test_what_another_agent_answered_is_told():
    outside = TurnCheckpoint(turn=TurnId(4), uuid=None)
    decision = plan_restore(
        known(
            checkpoints=(*turn_checkpoints(1, 2, 3), outside),
            stored_turns=(3, 4),
            repeated_turns=(TurnId(5),),
        )
    )
    assert (decision.mode, decision.missing, decision.session_id) == ("resume_plus_delta", (4,), SESSION)


def test_what_another_agent_answered_before_the_last_turn_of_the_session_was_told_then():
    outside = TurnCheckpoint(turn=TurnId(2), uuid=None)
    one, three = turn_checkpoints(1, 3)
    decision = plan_restore(known(checkpoints=(one, outside, three), transcript=talk(1, 3)))
    assert decision.mode == "resume"


@pytest.mark.parametrize(
    ("tail", "resume_at"),
    [
        (("q4",), "a3"),
        (("q4", "x4", "x5"), "a3"),
        (("x4", "x5", "q4", "x6"), "x5"),
        (("q4", "a4", "q5"), "a3"),
        (("x4",), None),
    ],
)
def test_what_was_asked_after_the_last_answer_is_left_out(tail, resume_at):
    decision = plan_restore(known(transcript=talk(1, 2, 3, tail=tail)))
    assert (decision.mode, decision.session_id, decision.resume_at) == ("resume", SESSION, resume_at)


def test_a_turn_that_is_asked_again_is_not_told_as_well():
    decision = plan_restore(known(transcript=talk(1, 2), repeated_turns=(TurnId(3),)))
    assert (decision.mode, decision.missing) == ("resume", ())


turn_ids = st.lists(st.integers(1, 12), unique=True, max_size=8)
transcripts = st.one_of(
    st.none(),
    st.sampled_from([Transcript(state) for state in TranscriptState if state is not TranscriptState.WHOLE]),
    st.builds(
        lambda turns, tail: talk(*turns, tail=tail),
        turn_ids,
        st.lists(st.sampled_from(["q90", "x91", "q92", "x93"]), unique=True).map(tuple),
    ),
)
anything = st.builds(
    RestoreFacts,
    session_id=st.none() | st.just(SESSION),
    answered=st.none() | st.just(ANSWERED) | st.just(AnsweredSession(session_id=SESSION, at_ms=0)),
    checkpoints=turn_ids.map(lambda turns: turn_checkpoints(*turns)),
    transcript=transcripts,
    has_stored_context=st.booleans(),
    stored_turns=turn_ids.map(sorted),
    repeated_turns=turn_ids,
    model=st.none() | st.sampled_from(["opus", "haiku"]),
    model_window=st.none() | st.sampled_from([1_000, 1_000_000]),
    provider=st.none() | st.just("api.anthropic.com"),
    now_ms=st.just(NOW),
)


@given(anything)
def test_there_is_a_session_to_resume_or_none_and_always_a_reason(given_known):
    decision = plan_restore(given_known)
    assert (decision.session_id is not None) == (decision.mode in ("resume", "resume_plus_delta"))
    assert (decision.missing != ()) == (decision.mode == "resume_plus_delta")
    assert decision.reason
    assert decision == plan_restore(given_known), "it depends on nothing else"


@given(anything)
def test_nothing_is_told_of_a_turn_that_its_session_holds_or_that_is_asked_again(given_known):
    decision = plan_restore(given_known)
    held = {
        checkpoint.turn
        for checkpoint in given_known.checkpoints
        if given_known.transcript and checkpoint.uuid and given_known.transcript.has(checkpoint.uuid)
    }
    assert not set(decision.missing) & {*held, *given_known.repeated_turns}


@given(anything)
def test_no_answered_turn_is_cut_off(given_known):
    decision = plan_restore(given_known)
    transcript = given_known.transcript
    if decision.resume_at is None or transcript is None:
        return
    cut = transcript.chain.index(decision.resume_at)
    held = [
        checkpoint.uuid
        for checkpoint in given_known.checkpoints
        if checkpoint.uuid and transcript.has(checkpoint.uuid)
    ]
    assert transcript.chain.index(held[-1]) <= cut


@given(anything)
def test_a_new_session_is_told_what_was_kept_whenever_something_was(given_known):
    mode = plan_restore(given_known).mode
    assert mode != ("fresh" if given_known.has_stored_context else "rehydrate")
