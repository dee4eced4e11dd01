from __future__ import annotations

import pytest

from orchestrator.containers.timeouts import (
    CLOSE_GRACE_MS,
    FIRST_SIGN_MS,
    SILENT_MS,
    TASK_IDLE_MS,
    TURN_GRACE_MS,
    RunTimeouts,
    Vitals,
    is_too_old,
    judge,
)
from orchestrator.domain.values import RunState

LIMITS = RunTimeouts(idle_ms=1_800_000, age_ms=1_800_000, turn_ms=1_800_000)
NOW = 100_000_000


def vitals(state=RunState.IDLE, **changes):
    fields = {
        "state": state,
        "is_isolated": False,
        "started_ms": NOW - 1_000,
        "last_frame_ms": NOW,
        "state_since_ms": NOW,
    }
    return Vitals(**{**fields, **changes})


def verdict(state=RunState.IDLE, *, limits=LIMITS, **changes):
    return judge(vitals(state, **changes), limits, now_ms=NOW)


@pytest.mark.parametrize("state", list(RunState))
def test_who_was_heard_and_is_young_lives(state):
    assert verdict(state) is None


@pytest.mark.parametrize("state", list(RunState))
def test_a_minute_of_silence_is_the_end_and_the_turn_is_tried_again(state):
    judged = verdict(state, last_frame_ms=NOW - SILENT_MS - 1)

    assert (judged.kill, judged.is_retryable) == (True, True)
    assert verdict(state, last_frame_ms=NOW - SILENT_MS) is None


def test_a_model_that_thinks_for_half_an_hour_is_left_alone_while_it_beats():
    assert verdict(RunState.BUSY, state_since_ms=NOW - LIMITS.turn_ms, started_ms=0) is None


def test_a_turn_beyond_its_limit_is_stopped_and_not_tried_again():
    judged = verdict(RunState.BUSY, state_since_ms=NOW - LIMITS.turn_ms - TURN_GRACE_MS - 1)

    assert (judged.kill, judged.is_retryable) == (True, False)
    assert "30 minutes" in judged.reason


def test_the_container_has_two_minutes_to_give_its_first_sign():
    assert verdict(RunState.STARTING, last_frame_ms=None, started_ms=NOW - FIRST_SIGN_MS) is None
    assert verdict(RunState.STARTING, last_frame_ms=None, started_ms=NOW - FIRST_SIGN_MS - 1).kill


def test_an_idle_container_is_asked_to_close_after_its_time():
    judged = verdict(state_since_ms=NOW - LIMITS.idle_ms - 1)

    assert (judged.kill, judged.reason) == (False, "idle")
    assert verdict(state_since_ms=NOW - LIMITS.idle_ms) is None


def test_a_task_container_closes_ten_seconds_after_its_turn():
    assert verdict(is_isolated=True, state_since_ms=NOW - TASK_IDLE_MS - 1).reason == "idle"
    assert verdict(is_isolated=True, state_since_ms=NOW - TASK_IDLE_MS) is None


def test_an_old_container_closes_between_turns_and_never_in_one():
    old = {"started_ms": NOW - LIMITS.age_ms - 1}

    assert verdict(**old).reason == "old"
    assert verdict(RunState.BUSY, **old) is None
    assert is_too_old(vitals(**old), LIMITS, now_ms=NOW)
    assert not is_too_old(vitals(), LIMITS, now_ms=NOW)


def test_who_does_not_close_when_asked_is_ended():
    assert verdict(RunState.CLOSING, state_since_ms=NOW - CLOSE_GRACE_MS - 1).kill
    assert verdict(RunState.CLOSING, state_since_ms=NOW - CLOSE_GRACE_MS) is None
