"""Change a group's loop for people and agents: switch it, pause it, wake it, set its next wake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from orchestrator.base.clock import format_span
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.schedule_tag import MAX_REASON_CHARS
from orchestrator.domain.values import Folder, Group
from orchestrator.loop import wake_policy
from orchestrator.loop.wake_policy import RULES, WakePolicy, read_clock, read_interval
from orchestrator.store.database import Tx, announce
from orchestrator.store.groups import groups
from orchestrator.store.loop import cycles, events, loops, wake_requests
from orchestrator.store.loop.loops import LoopStatus, NextWake
from orchestrator.store.runs import sessions

FIRST_MS = 15_000
"""Milliseconds from switching a loop on to its first cycle."""
SWITCHED_ON = "the loop was switched on"
"""The reason for the first wake."""
ACTIONS = ("on", "off", "pause", "resume", "wake")
MANUAL = "manual"
OWNER = "owner"
"""Source of a wake by hand: from the command line, the console or HTTP."""


class LoopOff(BadRequest):
    """The loop of this group is off."""

    code = "loop_off"
    http_status = 409

    def __init__(self, folder: str) -> None:
        """`folder` is that of the group whose loop is off."""
        super().__init__(f"The loop of '{folder}' is off: 'andy loop on {folder}' switches it on.")


class BadWake(BadRequest):
    """The requested wake time cannot be used."""

    code = "bad_wake"


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeSetting:
    """The reply to an agent that set its next wake.

    `applied_ms` is the sleep after the turn, or from now to a clock time; `is_bounded`: whether it differs
    from the requested one.
    """

    applied_ms: int
    is_bounded: bool
    text: str


async def apply_action(
    tx: Tx,
    folder: str,
    action: str,
    *,
    now_ms: int,
    reason: str = "",
    source: str = OWNER,
    rules: WakePolicy = RULES,
) -> Folder:
    """Switch a group's loop on or off, pause, resume or wake it; return the group's folder.

    A loop lets the group's agent wake by itself. An action whose effect the loop has already, such as
    "pause" for a paused one or "wake" while one waits, leaves it as it is, and so does "off" for a loop that
    was never on. Every action is recorded and published, also such a one.

    Args:
        tx: the transaction.
        folder: the group's folder.
        action: one of `ACTIONS`.
        now_ms: the present time, in epoch milliseconds.
        reason: why the agent is woken, for the action "wake".
        source: who wakes it, for the action "wake".
        rules: the bounds and rates for wakes.

    Raises:
        UnknownGroup: there is no such group.
        LoopOff: the loop is off; it can only be switched on.
        BadRequest: there is no such action.
    """
    group = await groups.known(tx, folder)
    loop = await loops.get(tx, group.folder)
    if action not in ACTIONS:
        raise BadRequest(f"'{action}' is no action for a loop: use {', '.join(ACTIONS)}.")
    if action == "on":
        await _switch_on(tx, group, loop, now_ms=now_ms, rules=rules)
    elif loop is None or loop.status is LoopStatus.STOPPED:
        if action != "off":
            raise LoopOff(group.folder)
    elif action == "wake":
        await wake_requests.add(
            tx,
            group.folder,
            kind=MANUAL,
            key=MANUAL,
            source=source,
            reason=reason,
            is_direct=True,
            now_ms=now_ms,
        )
    else:
        await _change_status(tx, group.folder, action, now_ms=now_ms)
    await events.append(tx, "action:loop", group=group.folder, now_ms=now_ms, event=f"loop.{action}")
    announce(tx, "loop.changed", group=group.folder, detail=action)
    return group.folder


async def _switch_on(
    tx: Tx, group: Group, loop: loops.Loop | None, *, now_ms: int, rules: WakePolicy
) -> None:
    """Switch the loop of a group on, so that its agent wakes for the first time in `FIRST_MS`.

    A paused loop goes on, and a loop that is on stays on. `loop` is None if the group had none.
    """
    if loop is not None and loop.status is not LoopStatus.STOPPED:
        await loops.change_status(tx, group.folder, LoopStatus.ON, now_ms=now_ms)
        return
    first = NextWake(
        at_ms=now_ms + FIRST_MS,
        set_by=wake_policy.SetBy.USER,
        reason=SWITCHED_ON,
        trace=(f"switched on: first in {format_span(FIRST_MS)}",),
    )
    await loops.switch_on(tx, group.folder, auto_ms=rules.base_ms, next_wake=first, now_ms=now_ms)
    # So that changes of files while the loop was off do not wake the agent. A running host forgets the stored
    # listing when a loop is switched off, but maybe no host ran then.
    await sessions.forget_workspace(tx, group.folder)


async def _change_status(tx: Tx, folder: Folder, action: str, *, now_ms: int) -> None:
    """Pause, resume or stop the loop of a group, for the action "pause", "resume" or "off".

    Pending wake requests and the next time to wake stay. When the loop is paused or stopped, a cycle that is
    queued but not started is removed, and the loop is no longer reserved for it.
    """
    status = {"pause": LoopStatus.PAUSED, "resume": LoopStatus.ON, "off": LoopStatus.STOPPED}[action]
    await loops.change_status(tx, folder, status, now_ms=now_ms)
    if status is not LoopStatus.ON and await loops.drop_waiting_turn(tx, folder):
        await loops.release(tx, folder)


async def set_next_wake(
    tx: Tx,
    group: Group,
    text: str,
    reason: str,
    *,
    now_ms: int,
    zone_of: Callable[[Group], ZoneInfo],
    rules: WakePolicy = RULES,
) -> WakeSetting:
    """Record when an agent wants to wake next, and return the reply to it.

    A span counts from the end of its present turn; a clock time is that moment, whenever the turn ends. The
    request replaces an earlier one of the same turn.

    Args:
        tx: the transaction.
        group: the agent's group.
        text: the span or the time, such as `30m`, `now` or `09:00`.
        reason: why the agent wants to wake then.
        now_ms: the present time, in epoch milliseconds.
        zone_of: returns the time zone of a group.
        rules: the bounds for the span.

    Raises:
        LoopOff: the group's loop is off, or was off when the turn started.
        BadWake: the time is not clear; the text gives examples. An event records that, if `tx` is committed.
    """
    cycle = await cycles.running_of(tx, group.folder)
    loop = await loops.get(tx, group.folder)
    if cycle is None or loop is None or loop.status is LoopStatus.STOPPED:
        raise LoopOff(group.folder)
    interval = read_interval(text) or read_clock(text, now_ms=now_ms, zone=zone_of(group))
    raw = " ".join(text.split())[: wake_policy.MAX_RAW_CHARS]
    if interval is None:
        await events.append(
            tx, "action:loop", group=group.folder, now_ms=now_ms, event="schedule.rejected",
            cycle=cycle.id, raw=raw, reason="it names no clear time",
        )  # fmt: skip
        raise BadWake(f"'{raw}' is no clear span: use 30m, 2h, 1h30m, 'now' or a time such as 09:00.")
    await cycles.note_wake_request(
        tx,
        cycle.id,
        raw=raw,
        reason=" ".join(reason.split())[:MAX_REASON_CHARS],
        asked_ms=interval.ms,
        at_ms=interval.at_ms,
        is_soonest=interval.is_soonest,
    )
    applied_ms = wake_policy.clamp(interval, rules)
    is_bounded = not interval.is_soonest and applied_ms != interval.ms
    shortest, longest = format_span(rules.min_ms), format_span(rules.max_ms)
    bounds = f" You asked for {format_span(interval.ms)}; it is {shortest} to {longest}."
    sleep = format_span(applied_ms)
    is_moment = interval.at_ms is not None and not is_bounded
    after_sleep = f"in {sleep}" if is_moment else f"{sleep} after this turn"
    return WakeSetting(
        applied_ms=applied_ms,
        is_bounded=is_bounded,
        text=f"You wake {after_sleep}, or when something happens." + (bounds if is_bounded else ""),
    )
