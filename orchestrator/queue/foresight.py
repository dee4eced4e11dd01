"""Decide for which groups a container is started before they ask anything, and where there is none. Pure.

Which container ends first when somebody waits for a slot is decided in `next_turns`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.domain.turn_signs import Sign
from orchestrator.domain.values import Folder, LiveRun, RunState, Turn, TurnKind, TurnState

DUE_WITHIN_MS = 10_000
"""So long before a task or a wake is due its container is started."""
CALLED_WITHIN_MS = 3_600_000
"""So long after a group has called Andy, talk in it that calls nobody is a sign that it will again."""
MOST_IN_VAIN = 2
"""Unused containers in a row after which talk alone no longer starts one ahead for the group."""

_RANK = {sign: rank for rank, sign in enumerate(Sign)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTurn:
    """A turn that may come soon, and what it would need."""

    folder: Folder
    sign: Sign
    is_isolated: bool = False


def choose(
    expected: Sequence[ExpectedTurn],
    turns: Sequence[Turn],
    runs: Sequence[LiveRun],
    *,
    cap: int,
    most: int,
    in_vain: Mapping[Folder, int],
    now_ms: int,
) -> list[ExpectedTurn]:
    """Return the expected turns for which a container is started now, those with the strongest sign first.

    Only free slots are taken, at most `most` such containers wait at a time, and none takes the slot that a
    turn is about to need. Talk alone starts none while a turn waits for its container to boot: on a small
    machine each would take twice as long, and talk is no more than a guess. `turns` are all unsettled ones;
    `in_vain` counts for each group how many containers in a row were started ahead and not used.
    """
    held = sum(run.state is not RunState.LEFT for run in runs)
    waiting = {run for run in runs if run.state is RunState.READY}
    about_to_start = _about_to_start(turns, runs, now_ms)
    room = min(cap - held - about_to_start, most - len(waiting))
    if about_to_start or any(run.is_awaited for run in runs):
        expected = [one for one in expected if one.sign is not Sign.TALK]
    chosen: list[ExpectedTurn] = []
    for one in sorted(expected, key=lambda one: _RANK[one.sign]):
        is_new = all((one.folder, one.is_isolated) != (other.folder, other.is_isolated) for other in chosen)
        if len(chosen) < room and is_new and _is_of_use(one, turns, runs, in_vain):
            chosen.append(one)
    return chosen


def _about_to_start(turns: Sequence[Turn], runs: Sequence[LiveRun], now_ms: int) -> int:
    begun = {run.turn_id for run in runs}
    return sum(
        turn.state is TurnState.QUEUED
        and turn.id not in begun
        and turn.not_before_ms <= now_ms
        and not any(run.takes(turn) for run in runs)
        for turn in turns
    )


def _is_of_use(
    one: ExpectedTurn, turns: Sequence[Turn], runs: Sequence[LiveRun], in_vain: Mapping[Folder, int]
) -> bool:
    """Tell whether a container of its own would be made for the turn if it came now."""
    if one.sign is Sign.TALK and in_vain.get(one.folder, 0) >= MOST_IN_VAIN:
        return False
    own = [run for run in runs if run.folder == one.folder]
    if any(run.state is RunState.LEFT for run in own):
        return False  # it may go on in the group's session: nothing is started beside it
    if one.is_isolated:
        return not any(run.is_isolated and run.state is RunState.READY for run in own)
    is_at_work = any(turn.folder == one.folder and turn.kind is not TurnKind.WORKER for turn in turns)
    return not is_at_work and all(run.is_isolated for run in own)
