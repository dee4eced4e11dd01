"""Reports the loops of groups, as rows for machines and lines for people."""

from __future__ import annotations

from typing import NotRequired, TypedDict
from zoneinfo import ZoneInfo

from orchestrator.base.clock import format_span, local_minute
from orchestrator.base.tables import counted
from orchestrator.domain.values import Folder, TurnState
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.loop import cycles, loops, wake_requests
from orchestrator.store.loop.cycles import Cycle
from orchestrator.store.loop.loops import Loop, LoopStatus
from orchestrator.store.runs import turns

CYCLES_SHOWN = 10


class LoopView(TypedDict):
    """The loop of a group; if it was never on, there is only `group` and `status`."""

    group: str
    status: str
    running: NotRequired[str | None]
    waiting: NotRequired[list[str]]
    next_wake_ms: NotRequired[int | None]
    in_ms: NotRequired[int | None]
    set_by: NotRequired[str]
    reason: NotRequired[str]
    raw: NotRequired[str | None]
    trace: NotRequired[list[str]]
    held: NotRequired[str | None]
    pause_ms: NotRequired[int]
    idle_in_a_row: NotRequired[int]
    last_start_ms: NotRequired[int | None]
    last_end_ms: NotRequired[int | None]


class PendingWake(TypedDict):
    """A request to wake a loop that no cycle has taken up yet."""

    kind: str
    reason: str
    at_ms: int


class CycleView(TypedDict):
    """One cycle of a loop; `asked` is the agent's text about its next wake, `applied_ms` what came of it."""

    id: int
    turn: int
    kind: str
    triggers: list[str]
    started_ms: int
    ended_ms: int | None
    outcome: str | None
    error: str | None
    asked: str | None
    reason: str | None
    applied_ms: int | None
    bounded: bool
    trace: list[str]


class LoopDocument(LoopView):
    """A loop with the wakes that wait for its next cycle, and its newest cycles."""

    pending: list[PendingWake]
    cycles: list[CycleView]


async def every(tx: Tx, *, now_ms: int) -> list[LoopView]:
    """Return the loop of each registered group, which wakes its agent without a message."""
    return [await _loop_row(tx, group.folder, now_ms=now_ms) for group in await groups.every(tx)]


async def get(tx: Tx, folder: str, *, now_ms: int) -> LoopDocument:
    """Return the loop of a group, with the requests to wake it that wait, and with its newest cycles.

    A loop wakes the group's agent without a message; a cycle is one such waking. Raises `UnknownGroup`.
    """
    group = await groups.known(tx, folder)
    row = await _loop_row(tx, group.folder, now_ms=now_ms)
    newest = await cycles.newest(tx, group.folder, limit=CYCLES_SHOWN)
    pending = await wake_requests.pending(tx, group.folder)
    return {
        **row,
        "pending": [{"kind": wake.kind, "reason": wake.reason, "at_ms": wake.created_ms} for wake in pending],
        "cycles": [_cycle_row(cycle) for cycle in newest],
    }


async def _loop_row(tx: Tx, folder: Folder, *, now_ms: int) -> LoopView:
    """Return the loop of a group as the API and `--json` show it.

    The row of a group whose loop was never on has only `group` and `status`. Of the others, `waiting` has the
    kinds of the turns in the group's queue, `in_ms` is the time until the next wake, `raw` the agent's own
    words about it, and `pause_ms` the pause that the host chooses if the agent asks for none. `held` is why
    the next cycle does not start although it is due.
    """
    loop = await loops.get(tx, folder)
    if loop is None:
        return {"group": folder, "status": "off"}
    running = await cycles.running_of(tx, folder)
    unsettled = await turns.unsettled_of(tx, folder)
    return {
        "group": folder,
        "status": _status(loop),
        "running": None if running is None else running.kind,
        "waiting": [turn.kind.value for turn in unsettled if turn.state is TurnState.QUEUED],
        "next_wake_ms": loop.next_wake_ms,
        "in_ms": None if loop.next_wake_ms is None else max(0, loop.next_wake_ms - now_ms),
        "set_by": loop.set_by,
        "reason": loop.reason,
        "raw": await _schedule_text(tx, loop),
        "trace": list(loop.trace),
        "held": loop.held,
        "pause_ms": loop.auto_ms,
        "idle_in_a_row": loop.noop_streak,
        "last_start_ms": loop.last_start_ms,
        "last_end_ms": loop.last_end_ms,
    }


def _status(loop: Loop) -> str:
    """Return the word for the state of a loop; one that was stopped is `off` for people."""
    return "off" if loop.status is LoopStatus.STOPPED else loop.status.value


async def _schedule_text(tx: Tx, loop: Loop) -> str | None:
    """Return the agent's own text about its next wake in the loop's newest cycle; None if it wrote none."""
    newest = await cycles.newest(tx, loop.folder, limit=1)
    return newest[0].schedule_raw if newest else None


def _cycle_row(cycle: Cycle) -> CycleView:
    """Return a cycle of a loop, one waking of the agent, as the API and `--json` show it.

    `asked` and `reason` are what the agent wrote about its next wake, and `applied_ms` is the pause that was
    set; `bounded` says whether it differs from the one that the agent asked for.
    """
    return {
        "id": cycle.id,
        "turn": cycle.turn_id,
        "kind": cycle.kind,
        "triggers": list(cycle.triggers),
        "started_ms": cycle.started_ms,
        "ended_ms": cycle.ended_ms,
        "outcome": cycle.outcome,
        "error": cycle.error,
        "asked": cycle.schedule_raw,
        "reason": cycle.schedule_reason,
        "applied_ms": cycle.schedule_applied_ms,
        "bounded": cycle.schedule_bounded,
        "trace": list(cycle.trace),
    }


def list_lines(rows: list[LoopView], zone: ZoneInfo) -> list[str]:
    """Return a line for each loop, which says what it does now or when it wakes next."""
    return [_line(row, zone) for row in rows]


def show_lines(row: LoopDocument, zone: ZoneInfo) -> list[str]:
    """Return a loop as lines for people: its next wake and how it was set, requests and newest cycles.

    The lines also name the pause that applies if the agent asks for none, the steps of the decision about the
    next wake (`trace`), and why a cycle that is due does not start (`held`). For a loop that is off, there is
    one line, which says so.
    """
    if row["status"] == "off":
        return [_line(row, zone)]
    idle = (
        f", {counted(row['idle_in_a_row'], 'cycle')} without anything to do" if row["idle_in_a_row"] else ""
    )
    lines = [
        _line(row, zone),
        f"  set by {row['set_by']}; without a wish it would be {format_span(row['pause_ms'])}{idle}",
        *(f"  · {step}" for step in row["trace"]),
    ]
    lines += [f"  held: {row['held']}"] if row["held"] else []
    lines += [f"  pending: {wake['kind']} {wake['reason']}".rstrip() for wake in row["pending"]]
    return [*lines, *(_cycle_line(cycle, zone) for cycle in row["cycles"])]


def _line(row: LoopView, zone: ZoneInfo) -> str:
    """Return in one line what a loop does now, or when it wakes next and why."""
    if row["status"] == "off":
        return f"{row['group']}: off"
    if row["running"]:
        return f"{row['group']}: {row['status']}, its {row['running']} turn runs"
    if "auto" in row["waiting"]:  # the kind of turn that a loop starts by itself
        return f"{row['group']}: {row['status']}, a cycle waits for its container"
    if row["next_wake_ms"] is None or row["status"] == "paused":
        return f"{row['group']}: {row['status']}"
    when = local_minute(row["next_wake_ms"], zone)
    span = format_span(row["in_ms"] or 0)
    return f"{row['group']}: {row['status']}, sleeps until {when} ({span}): {row['reason']}"


def _cycle_line(cycle: CycleView, zone: ZoneInfo) -> str:
    """Return a cycle of a loop in one line: start, outcome, the pause the agent asked for and the one set.

    The reasons why it began follow in brackets; `itself` stands for the time that the loop had set.
    """
    wish = f", asked for {cycle['asked']}" if cycle["asked"] else ""
    result = "" if cycle["applied_ms"] is None else f", then {format_span(cycle['applied_ms'])}"
    triggers = "; ".join(cycle["triggers"]) or "itself"
    start = local_minute(cycle["started_ms"], zone)
    return f"  {start} {cycle['kind']} {cycle['outcome'] or 'runs'}{wish}{result} ({triggers})"
