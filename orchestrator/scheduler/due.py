"""Decide what to do with a scheduled task whose time has come. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from orchestrator.domain.values import CatchUp, Overlap, ScheduledTask, TurnState
from orchestrator.scheduler import timing

LATE_MS = 120_000
"""A due time so long ago was missed: the loop looks at least every minute."""
OVERLAPS = "its last run had not ended"
MISSED = "Andy was not running"


@dataclass(frozen=True, slots=True, kw_only=True)
class DueDecision:
    """What happens to the due times up to now."""

    run: tuple[int, ...]
    """To be queued, oldest first."""
    next_ms: int | None
    left_out_ms: int | None = None
    """The newest that is not run."""
    reason: str | None = None
    """Why it is not, and how many are not."""


def decide(task: ScheduledTask, open_turns: Collection[TurnState], *, now_ms: int) -> DueDecision:
    """Decide over a scheduled task that is due; `open_turns` are the states of its unfinished turns.

    Of due times that were missed, `catch_up` says which count: none, the latest, or the newest ten. While a
    run is open, `overlap` says whether none begins or one waits.
    """
    assert task.next_ms is not None
    times = timing.due_times(task.schedule, task.next_ms, now_ms=now_ms)
    wanted = _to_catch_up(times, task.catch_up, now_ms)
    run = _without_overlap(wanted, open_turns, task.overlap)
    left_out = [at for at in times if at not in run]
    return DueDecision(
        run=run,
        next_ms=timing.following_ms(task.schedule, task.next_ms, after_ms=now_ms),
        left_out_ms=left_out[-1] if left_out else None,
        reason=_reason(len(left_out), is_overlap=run != wanted) if left_out else None,
    )


def is_late(due_ms: int, *, now_ms: int) -> bool:
    """Return whether a due time was missed: it lies more than `LATE_MS` back."""
    return now_ms - due_ms > LATE_MS


def _to_catch_up(times: tuple[int, ...], catch_up: CatchUp, now_ms: int) -> tuple[int, ...]:
    match catch_up:
        case CatchUp.SKIP:
            return tuple(at for at in times[-1:] if not is_late(at, now_ms=now_ms))
        case CatchUp.LATEST:
            return times[-1:]
        case CatchUp.ALL:
            return times


def _without_overlap(
    wanted: tuple[int, ...], open_turns: Collection[TurnState], overlap: Overlap
) -> tuple[int, ...]:
    if not open_turns:
        return wanted
    if overlap is Overlap.SKIP or TurnState.QUEUED in open_turns:
        return ()
    return wanted[-1:]


def _reason(count: int, *, is_overlap: bool) -> str:
    why = OVERLAPS if is_overlap else MISSED
    if count == 1:
        return why
    return f"{why} ({count}{' or more' if count >= timing.MAX_CAUGHT_UP - 1 else ''} due times)"
