"""Who runs next. Pure: looks at turns and runs, says what to do; the dispatcher does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.models import LiveRun, RunId, RunState, Turn, TurnId, TurnKind, TurnState

AGEING_MS = 5 * 60_000
TELL_PLACE_AFTER_MS = 10_000

_RANK = {kind: rank for rank, kind in enumerate(TurnKind, start=1)}
_AGED = 0


@dataclass(frozen=True, slots=True)
class HandOver:
    turn_id: TurnId
    run_id: RunId


@dataclass(frozen=True, slots=True)
class Start:
    turn_id: TurnId


@dataclass(frozen=True, slots=True)
class Close:
    run_id: RunId


@dataclass(frozen=True, slots=True)
class TellPlace:
    turn_id: TurnId
    place: int


Action = HandOver | Start | Close | TellPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do now, and when to look again if nothing happens before."""

    actions: tuple[Action, ...]
    look_again_ms: int | None = None


def plan(turns: Sequence[Turn], runs: Sequence[LiveRun], *, cap: int, now_ms: int) -> Plan:
    """Decide over all unsettled turns and live runs.

    One turn a group at a time; at most `cap` runs live, closing ones counted until they are gone. Chat
    goes before task before worker before auto, first come first served within a kind; whoever waits
    `AGEING_MS` goes to the front.
    """
    actions: list[Action] = []
    free = cap - len(runs)
    waiting: list[Turn] = []
    for turn in _ready(turns, runs, now_ms):
        home = next((run for run in runs if run.takes(turn)), None)
        if home is not None:
            actions.append(HandOver(turn.id, home.id))
        elif _must_end_first(turn, runs):
            actions.extend(Close(run.id) for run in runs if _stands_in_the_way(run, turn))
        elif free > 0:
            free -= 1
            actions.append(Start(turn.id))
        else:
            waiting.append(turn)
    actions.extend(_evictions(waiting, runs, kept={a.run_id for a in actions if isinstance(a, HandOver)}))
    actions.extend(_places(waiting, now_ms))
    return Plan(actions=tuple(actions), look_again_ms=_look_again(turns, waiting, now_ms))


def _ready(turns: Sequence[Turn], runs: Sequence[LiveRun], now_ms: int) -> list[Turn]:
    """The next turn of each group that has none running, in the order of their claim."""
    taken = {turn.folder for turn in turns if turn.state is TurnState.RUNNING}
    taken |= {run.folder for run in runs if run.state in (RunState.STARTING, RunState.BUSY)}
    queued = [t for t in turns if t.state is TurnState.QUEUED and t.not_before_ms <= now_ms]
    chosen: list[Turn] = []
    for turn in sorted(queued, key=lambda t: _claim(t, now_ms)):
        if turn.folder not in taken:
            taken.add(turn.folder)
            chosen.append(turn)
    return chosen


def _claim(turn: Turn, now_ms: int) -> tuple[int, int, int]:
    rank = _AGED if now_ms - turn.queued_ms >= AGEING_MS else _RANK[turn.kind]
    return rank, turn.queued_ms, turn.id


def _must_end_first(turn: Turn, runs: Sequence[LiveRun]) -> bool:
    """Two containers on one session would lose a branch of it."""
    return not turn.is_isolated and any(run.folder == turn.folder and not run.is_isolated for run in runs)


def _stands_in_the_way(run: LiveRun, turn: Turn) -> bool:
    return run.folder == turn.folder and not run.is_isolated and run.state is RunState.IDLE


def _evictions(waiting: Sequence[Turn], runs: Sequence[LiveRun], *, kept: set[RunId]) -> list[Action]:
    """Close as many idle runs as turns wait, longest idle first, less those that are closing already."""
    idle = sorted(
        (run for run in runs if run.state is RunState.IDLE and run.id not in kept),
        key=lambda run: run.idle_since_ms,
    )
    needed = len(waiting) - sum(run.state is RunState.CLOSING for run in runs)
    return [Close(run.id) for run in idle[: max(0, needed)]]


def _places(waiting: Sequence[Turn], now_ms: int) -> list[Action]:
    return [
        TellPlace(turn.id, place)
        for place, turn in enumerate(waiting, start=1)
        if turn.kind is TurnKind.CHAT
        and not turn.was_told_place
        and now_ms - turn.queued_ms >= TELL_PLACE_AFTER_MS
    ]


def _look_again(turns: Sequence[Turn], waiting: Sequence[Turn], now_ms: int) -> int | None:
    times = [turn.not_before_ms for turn in turns if turn.state is TurnState.QUEUED]
    times += [turn.queued_ms + TELL_PLACE_AFTER_MS for turn in waiting]
    return min((at for at in times if at > now_ms), default=None)
