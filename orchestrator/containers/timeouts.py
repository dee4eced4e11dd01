"""Decide when a run has to end because it is silent, too slow, idle or old. Pure; `termination` ends it."""

from __future__ import annotations

from dataclasses import dataclass

from agent_runner.wire.frames import time_limit_reason
from orchestrator.domain.values import RunState

SILENT_MS = 60_000
"""Milliseconds without a frame after which a container counts as hanging; heartbeats come far more often."""
FIRST_SIGN_MS = 120_000
"""Milliseconds that a container may take to send its first frame."""
TURN_GRACE_MS = 30_000
"""Milliseconds after a turn's time limit at which its container is killed.

The runner normally ends the turn at the limit by itself.
"""
TASK_IDLE_MS = 10_000
"""Milliseconds that the container of an isolated run may be idle. Short, because it gets no further turn."""
UNUSED_MS = 120_000
"""Milliseconds that a container which was started ahead may wait for its first turn."""
CLOSE_GRACE_MS = 10_000
"""Milliseconds that a container may take to close after it was asked to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimeouts:
    """The limits from the settings, in milliseconds."""

    idle_ms: int
    age_ms: int
    turn_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """The facts about a container that decide its timeout. All times are milliseconds of the steady clock."""

    state: RunState
    is_isolated: bool
    started_ms: int
    last_frame_ms: int | None
    """The time of the last frame, heartbeats included; None before the first."""
    state_since_ms: int
    """The time when the container entered `state`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutVerdict:
    """The decision that a run has to end: the reason, and whether it is killed or asked to close."""

    kill: bool
    """Whether to kill it; else it is asked to close."""
    reason: str
    is_retryable: bool = True
    """Whether the turn in it is tried again."""


def judge(vitals: Vitals, limits: RunTimeouts, *, now_ms: int) -> TimeoutVerdict | None:
    """Return why and how a container has to end now, or None if it may go on.

    `now_ms` is by the steady clock. A container is killed if it hangs or is too slow, and asked to close if
    it has no work. Heartbeats prove that a busy one is alive, so a model may think for minutes without
    output.
    """
    in_state_ms = now_ms - vitals.state_since_ms
    if vitals.last_frame_ms is None:
        if now_ms - vitals.started_ms > FIRST_SIGN_MS:
            return TimeoutVerdict(kill=True, reason="the container did not start in 2 minutes.")
        return None
    if now_ms - vitals.last_frame_ms > SILENT_MS:
        return TimeoutVerdict(kill=True, reason="the container gave no sign of life for a minute.")
    match vitals.state:
        case RunState.BUSY if in_state_ms > limits.turn_ms + TURN_GRACE_MS:
            reason = time_limit_reason(limits.turn_ms / 1000)
            return TimeoutVerdict(kill=True, reason=reason, is_retryable=False)
        case RunState.CLOSING if in_state_ms > CLOSE_GRACE_MS:
            return TimeoutVerdict(kill=True, reason="it did not close when asked.")
        case RunState.READY if in_state_ms > UNUSED_MS:
            return TimeoutVerdict(kill=False, reason="nobody asked anything")
        case RunState.IDLE if in_state_ms > (TASK_IDLE_MS if vitals.is_isolated else limits.idle_ms):
            return TimeoutVerdict(kill=False, reason="idle")
        case RunState.IDLE if is_too_old(vitals, limits, now_ms=now_ms):
            return TimeoutVerdict(kill=False, reason="old")
    return None


def is_too_old(vitals: Vitals, limits: RunTimeouts, *, now_ms: int) -> bool:
    """Return whether a container is older than allowed.

    If so, it is replaced, but never during a turn.
    """
    return now_ms - vitals.started_ms > limits.age_ms
