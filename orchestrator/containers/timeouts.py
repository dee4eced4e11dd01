"""When a container's life ends. Pure; the pool does what is judged."""

from __future__ import annotations

from dataclasses import dataclass

from agent_runner.wire.frames import time_limit_reason
from orchestrator.domain.values import RunState

SILENT_MS = 60_000
FIRST_SIGN_MS = 120_000
TURN_GRACE_MS = 30_000
TASK_IDLE_MS = 10_000
CLOSE_GRACE_MS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimeouts:
    """From the settings; milliseconds."""

    idle_ms: int
    age_ms: int
    turn_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """What is known of a container; all times of the steady clock."""

    state: RunState
    is_isolated: bool
    started_ms: int
    heard_ms: int | None
    """The last frame, heartbeats too; None before the first."""
    since_ms: int
    """Since when it is in `state`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutVerdict:
    """`close` asks it to end, `kill` ends it; the turn in it is tried again or not."""

    kill: bool
    reason: str
    is_retryable: bool = True


def judge(vitals: Vitals, limits: RunTimeouts, *, now_ms: int) -> TimeoutVerdict | None:
    """Tell whether a container has to go; None lets it live.

    A heartbeat separates "alive" from "busy": a model that thinks for minutes is left alone.
    """
    in_state_ms = now_ms - vitals.since_ms
    if vitals.heard_ms is None:
        if now_ms - vitals.started_ms > FIRST_SIGN_MS:
            return TimeoutVerdict(kill=True, reason="the container did not start in 2 minutes.")
        return None
    if now_ms - vitals.heard_ms > SILENT_MS:
        return TimeoutVerdict(kill=True, reason="the container gave no sign of life for a minute.")
    match vitals.state:
        case RunState.BUSY if in_state_ms > limits.turn_ms + TURN_GRACE_MS:
            reason = time_limit_reason(limits.turn_ms / 1000)
            return TimeoutVerdict(kill=True, reason=reason, is_retryable=False)
        case RunState.CLOSING if in_state_ms > CLOSE_GRACE_MS:
            return TimeoutVerdict(kill=True, reason="it did not close when asked.")
        case RunState.IDLE if in_state_ms > (TASK_IDLE_MS if vitals.is_isolated else limits.idle_ms):
            return TimeoutVerdict(kill=False, reason="idle")
        case RunState.IDLE if is_worn(vitals, limits, now_ms=now_ms):
            return TimeoutVerdict(kill=False, reason="old")
    return None


def is_worn(vitals: Vitals, limits: RunTimeouts, *, now_ms: int) -> bool:
    """Older than a container may get: replaced between turns, never in one."""
    return now_ms - vitals.started_ms > limits.age_ms
