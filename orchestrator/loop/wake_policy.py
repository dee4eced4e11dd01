"""Decide when a group's agent wakes next, and when a cycle may start. Pure. No other module decides it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from agent_runner.wire import times, wakes
from agent_runner.wire.times import Instant
from orchestrator.base.clock import format_span
from orchestrator.scheduler import when

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
NOW = "now"
"""The word with which an agent requests the shortest possible sleep."""
MAX_RAW_CHARS = 40
"""Characters of an agent's request that are stored as it wrote them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WakePolicy:
    """The bounds and rates for wakes."""

    base_ms: int = 5 * MINUTE_MS
    """Milliseconds between two cycles while there is something to do."""
    max_factor: int = 4
    """The factor by which the pause may grow over its base while there is nothing to do."""
    min_ms: int = wakes.MIN_MINUTES * MINUTE_MS
    max_ms: int = wakes.MAX_HOURS * HOUR_MS
    """Milliseconds of the shortest and the longest sleep that an agent may request."""
    throttle_ms: int = MINUTE_MS
    """Milliseconds between two starts, unless a direct message requests the second."""
    direct_throttle_ms: int = 5_000
    """Milliseconds between two starts if a direct message requests the second."""
    pending_cap_ms: int = 2 * MINUTE_MS
    """Milliseconds that an agent may sleep while a message is unanswered."""
    max_caps: int = 2
    """The number of capped sleeps for one message; after them the agent leaves it unanswered on purpose."""
    max_soonest: int = 10
    """The number of shortest sleeps that an agent may request in a row."""
    self_wakes_an_hour: int = 12
    """The number of cycles in an hour whose time the agent chose."""
    file_cycles_an_hour: int = 12
    """The number of cycles in an hour that only changed files start: the agent's own programs may write them.
    """


RULES = WakePolicy()


class CycleOutcome(StrEnum):
    """The end of a cycle."""

    ACTION = "action"
    """The agent sent a message, ran a command or changed a file."""
    NOOP = "noop"
    """The agent did nothing."""
    ERROR = "error"
    """The turn failed."""
    BUSY = "busy"
    """Another turn took the cycle's place."""
    SKIPPED = "skipped"
    """The turn, or the state of the loop, was removed from the store."""


class SetBy(StrEnum):
    """The part that set the next wake."""

    AUTO = "auto"
    AGENT = "agent"
    CAP = "cap"
    USER = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedInterval:
    """The sleep that an agent requests, before the bounds apply. `is_soonest`: the shortest allowed."""

    ms: int
    is_soonest: bool = False
    at_ms: int | None = None
    """The requested moment, in epoch milliseconds; None for a span, which counts from the turn's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepRequest:
    """The last request of an agent in a cycle."""

    interval: RequestedInterval
    raw: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleState:
    """The input for the next wake, at the end of a cycle."""

    outcome: CycleOutcome
    auto_ms: int
    """The pause before this cycle, in ms."""
    sleep_request: SleepRequest | None = None
    soonest_streak: int = 0
    """The number of shortest sleeps requested in a row."""
    caps: int | None = None
    """The number of sleeps that the waiting message has capped already; None when no message waits."""
    self_wakes: Sequence[int] = ()
    """The start times of the last hour's cycles whose time the agent chose, in epoch ms, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeDecision:
    """The next wake, and the steps that led to it."""

    next_ms: int
    """Epoch milliseconds of the next wake."""
    set_by: SetBy
    why: str
    """The reason, as the agent and the console read it."""
    trace: tuple[str, ...]
    """The steps of the decision, in words."""
    auto_ms: int
    """The pause that applies without a request of the agent, in ms."""
    soonest_streak: int
    is_bounded: bool = False
    """Whether the sleep that the agent requested was changed, by a bound or by a limit of requests."""
    is_capped: bool = False
    """Whether a waiting message shortened the pause."""


def read_interval(text: str) -> RequestedInterval | None:
    """Return the span that an agent wants to sleep, from a text such as `30m`, `in 1.5 hours` or `now`.

    None for a text that is no span, and for a span that is zero or longer than `when.FURTHEST`.
    """
    if text.strip().lower() == NOW:
        return RequestedInterval(ms=0, is_soonest=True)
    span = when.duration(text)
    if span is None or not timedelta(0) < span <= when.FURTHEST:
        return None
    return RequestedInterval(ms=round(span / timedelta(milliseconds=1)))


def read_clock(text: str, *, now_ms: int, zone: ZoneInfo) -> RequestedInterval | None:
    """Return the span from now until a time such as `09:00` or `tomorrow 9am`, in the time zone `zone`.

    None for a text that is no such time.
    """
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    match times.read(text, now=now, zone=zone, policy=when.POLICY):
        case Instant(at=at):
            at_ms = round(at.timestamp() * 1000)
            return RequestedInterval(ms=at_ms - now_ms, at_ms=at_ms)
        case _:
            return None


def clamp(interval: RequestedInterval, rules: WakePolicy = RULES) -> int:
    """Return the sleep that an agent requests, in milliseconds, within the bounds of the rules."""
    return min(max(interval.ms, rules.min_ms), rules.max_ms)


def decide_wake(state: CycleState, now_ms: int, rules: WakePolicy = RULES) -> WakeDecision:
    """Decide when an agent wakes next if nothing happens before; its cycle has just ended, at `now_ms`.

    The agent's request has precedence over the pause, which grows while there is nothing to do. The request
    is postponed if the agent has set too many wakes in the last hour. An unanswered message shortens either,
    a few times.
    """
    auto_ms, trace = _back_off(state, rules)
    decision = _requested_or_automatic(state, now_ms, auto_ms, trace, rules)
    # In this order: an unanswered message may shorten a sleep that the limit of wakes has prolonged.
    limited = _limit_self_wakes(state, decision, now_ms, rules)
    return _shortened_for_message(state, limited, now_ms, rules)


def _back_off(state: CycleState, rules: WakePolicy) -> tuple[int, tuple[str, ...]]:
    """Return the pause after a cycle if the agent requests none, in milliseconds, and the step for the trace.

    The pause is `base_ms` again after a cycle that did something. After one that did nothing and requested no
    sleep it doubles, up to a bound. After any other cycle it stays. The trace is the list of the decision's
    steps in words.
    """
    if state.outcome is CycleOutcome.ACTION:
        return rules.base_ms, (f"something was done: the pause is {format_span(rules.base_ms)} again",)
    # An agent that names a time has a plan; only idling without one stretches the pause.
    if state.outcome is CycleOutcome.NOOP and state.sleep_request is None:
        auto_ms = min(state.auto_ms * 2, rules.base_ms * rules.max_factor)
        return auto_ms, (
            f"nothing was done: the pause goes from {format_span(state.auto_ms)} to {format_span(auto_ms)}",
        )
    return state.auto_ms, (f"outcome {state.outcome}: the pause stays {format_span(state.auto_ms)}",)


def _requested_or_automatic(
    state: CycleState, now_ms: int, auto_ms: int, trace: tuple[str, ...], rules: WakePolicy
) -> WakeDecision:
    """Return the next wake by the agent's request, or by the pause `auto_ms` if there is no request.

    An agent that requests the shortest sleep more than `max_soonest` times in a row gets `base_ms` from then
    on, still with its own reason. Any other request, or a cycle without one that ended as ACTION or NOOP,
    ends the row. Later steps may change the decision: the
    limit of self-set wakes an hour, and an unanswered message. `trace` has the steps so far.
    """
    sleep_request = state.sleep_request
    if sleep_request is None:
        return WakeDecision(
            next_ms=now_ms + auto_ms,
            set_by=SetBy.AUTO,
            why=f"after {format_span(auto_ms)} by itself",
            trace=(*trace, f"no wish of the agent: in {format_span(auto_ms)}"),
            auto_ms=auto_ms,
            soonest_streak=0
            if state.outcome in (CycleOutcome.ACTION, CycleOutcome.NOOP)
            else state.soonest_streak,
        )
    applied_ms = clamp(sleep_request.interval, rules)
    # Counted by the bounded sleep, not by the request: `1s` and `now` have the same effect.
    streak = state.soonest_streak + 1 if applied_ms == rules.min_ms else 0
    trace = (*trace, f"the agent asked for {sleep_request.raw!r}: in {format_span(applied_ms)}")
    is_bounded = not sleep_request.interval.is_soonest and applied_ms != sleep_request.interval.ms
    if is_bounded:
        trace = (*trace, f"bounded to {format_span(rules.min_ms)} … {format_span(rules.max_ms)}")
    set_by = SetBy.AGENT
    if streak > rules.max_soonest:
        applied_ms, set_by, is_bounded = rules.base_ms, SetBy.CAP, True
        trace = (*trace, f"the shortest sleep {streak} times in a row: {format_span(applied_ms)} instead")
    return WakeDecision(
        next_ms=now_ms + applied_ms,
        set_by=set_by,
        why=sleep_request.reason or f"the agent asked for {sleep_request.raw}",
        trace=trace,
        auto_ms=auto_ms,
        soonest_streak=streak,
        is_bounded=is_bounded,
    )


def _shortened_for_message(
    state: CycleState, decision: WakeDecision, now_ms: int, rules: WakePolicy
) -> WakeDecision:
    """Return the decision, with an earlier wake if an unanswered message would wait too long.

    A message that is still unanswered after `max_caps` such wakes shortens the sleep no more. `state.caps`
    counts those wakes so far; None if no message waits.
    """
    latest_ms = now_ms + rules.pending_cap_ms
    if state.caps is None or decision.next_ms <= latest_ms:
        return decision
    # After `max_caps` cycles the agent has seen the message, and leaves it unanswered on purpose.
    if state.caps >= rules.max_caps:
        return _changed(decision, trace=f"a message waits still, but {state.caps} looks at it were in vain")
    times = f"{state.caps + 1} of {rules.max_caps}"
    return _changed(
        decision,
        next_ms=latest_ms,
        set_by=SetBy.CAP,
        why="a message was not answered",
        trace=f"capped to {format_span(rules.pending_cap_ms)}: a message was not answered ({times})",
        is_capped=True,
    )


def _limit_self_wakes(
    state: CycleState, decision: WakeDecision, now_ms: int, rules: WakePolicy
) -> WakeDecision:
    """Return the decision, with a later wake if the agent has set too many wakes itself in the last hour.

    `state.self_wakes` has the times of these wakes, oldest first.
    """
    # A wake in the future is from before the clock was set back, and would postpone the next for too long.
    recent_wakes = [at for at in state.self_wakes if 0 <= now_ms - at < HOUR_MS]
    if decision.set_by is not SetBy.AGENT or len(recent_wakes) < rules.self_wakes_an_hour:
        return decision
    # The wake is postponed, never dropped: until the oldest of the last `self_wakes_an_hour` wakes is an hour
    # ago.
    free_ms = recent_wakes[-rules.self_wakes_an_hour] + HOUR_MS
    if decision.next_ms >= free_ms:
        return decision
    return _changed(
        decision,
        next_ms=free_ms,
        set_by=SetBy.CAP,
        why="it has set enough wakes this hour",
        trace=f"{len(recent_wakes)} self-set cycles in an hour: in {format_span(free_ms - now_ms)} instead",
        is_bounded=True,
    )


def _changed(
    decision: WakeDecision,
    *,
    trace: str,
    next_ms: int | None = None,
    set_by: SetBy | None = None,
    why: str | None = None,
    is_bounded: bool = False,
    is_capped: bool = False,
) -> WakeDecision:
    """Return the decision with `trace` as another step, and with other values where they are set.

    An argument that is None changes nothing, nor does `is_bounded=False`: a sleep that was changed once stays
    marked. `is_capped` is set as it is passed; only the last step of a decision sets it.
    """
    return WakeDecision(
        next_ms=decision.next_ms if next_ms is None else next_ms,
        set_by=set_by or decision.set_by,
        why=why or decision.why,
        trace=(*decision.trace, trace),
        auto_ms=decision.auto_ms,
        soonest_streak=decision.soonest_streak,
        is_bounded=decision.is_bounded or is_bounded,
        is_capped=is_capped,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeSignal:
    """A wake request that is to start a cycle."""

    at_ms: int
    is_direct: bool


def start_ms(
    signals: Sequence[WakeSignal],
    *,
    next_wake_ms: int | None,
    last_start_ms: int | None,
    now_ms: int,
    rules: WakePolicy = RULES,
) -> int | None:
    """Return when the next free cycle may start, in epoch milliseconds.

    A free cycle is one that is no answer to a message or a scheduled task: the agent wakes by its timer, or
    because something happened. None if there is neither a signal nor a time to wake. A cycle that started a
    short time ago delays it. After the clock was set back, nothing waits longer than the rules allow.

    Args:
        signals: the requests to wake the agent.
        next_wake_ms: when the agent wakes if nothing happens before; None if no time is set.
        last_start_ms: when its last cycle started; None before the first.
        now_ms: the present time. All times are in epoch milliseconds.
        rules: the bounds and rates for wakes.
    """
    last = None if last_start_ms is None else min(last_start_ms, now_ms)
    # `min` with now, because a time ahead of a clock that was set back would delay the start.
    times = [_not_before(min(signal.at_ms, now_ms), last, _throttle(signal, rules)) for signal in signals]
    if next_wake_ms is not None:
        times.append(_not_before(min(next_wake_ms, now_ms + rules.max_ms), last, rules.throttle_ms))
    return min(times, default=None)


def _throttle(signal: WakeSignal, rules: WakePolicy) -> int:
    """Return the milliseconds between two starts of cycles that apply to a signal."""
    return rules.direct_throttle_ms if signal.is_direct else rules.throttle_ms


def _not_before(at_ms: int, last_start_ms: int | None, throttle_ms: int) -> int:
    """Return the time `at_ms`, or a later one if the last start was less than `throttle_ms` before it.

    `last_start_ms` is None if there was no start.
    """
    return at_ms if last_start_ms is None else max(at_ms, last_start_ms + throttle_ms)
