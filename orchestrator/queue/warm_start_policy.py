"""Decide for which groups a container is started before anybody asks them something. Pure.

`next_turns` decides which container ends first when a turn waits for a slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.domain.turn_signs import Sign
from orchestrator.domain.values import Folder, LiveRun, RunState, Turn, TurnKind, TurnState

DUE_WITHIN_MS = 10_000
"""Milliseconds before a scheduled task or a wake-up is due at which its container is started."""
CALLED_WITHIN_MS = 3_600_000
"""Milliseconds after a call of Andy during which other talk in the group counts as a sign of another call."""
MAX_UNUSED_IN_A_ROW = 2
"""Containers in a row that were started ahead and not used, after which talk alone starts none for the group.
"""

# `Sign` lists the most certain sign first.
_RANK = {sign: rank for rank, sign in enumerate(Sign)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTurn:
    """A turn that may come soon, and what it would need."""

    folder: Folder
    sign: Sign
    is_isolated: bool = False
    """Whether it would get a container and a session of its own, as some scheduled tasks do."""


def choose(
    expected: Sequence[ExpectedTurn],
    turns: Sequence[Turn],
    runs: Sequence[LiveRun],
    *,
    cap: int,
    max_ahead: int,
    unused_in_a_row: Mapping[Folder, int],
    now_ms: int,
) -> list[ExpectedTurn]:
    """Return the expected turns for which to start a container now, the most certain first.

    The slots of turns that are about to start stay free. Talk alone starts no container while a turn is about
    to start, or waits for its own container to boot: on a small machine two that boot together take twice as
    long, and talk is only a guess. A group gets at most one container, and one more for an isolated turn.

    Args:
        expected: the turns that may come soon.
        turns: all turns that are queued or run.
        runs: the live containers.
        cap: how many containers may be live at the same time.
        max_ahead: how many containers that were started ahead may wait for their first turn at once.
        unused_in_a_row: for each group, how many containers in a row were started ahead and not used.
        now_ms: the present time, in epoch milliseconds.
    """
    # An abandoned container holds no slot: the pool ends it before it starts another.
    used_slots = sum(run.state is not RunState.LEFT for run in runs)
    unused = {run for run in runs if run.state is RunState.READY}
    about_to_start = _about_to_start(turns, runs, now_ms)
    free_places = min(cap - used_slots - about_to_start, max_ahead - len(unused))
    if about_to_start or any(run.is_awaited for run in runs):
        expected = [candidate for candidate in expected if candidate.sign is not Sign.TALK]
    chosen: list[ExpectedTurn] = []
    for candidate in sorted(expected, key=lambda candidate: _RANK[candidate.sign]):
        is_new = all(
            (candidate.folder, candidate.is_isolated) != (other.folder, other.is_isolated) for other in chosen
        )
        if len(chosen) < free_places and is_new and _would_be_used(candidate, turns, runs, unused_in_a_row):
            chosen.append(candidate)
    return chosen


def _about_to_start(turns: Sequence[Turn], runs: Sequence[LiveRun], now_ms: int) -> int:
    """Return the number of queued turns that need a container of their own now.

    These are turns whose pause is over, for which no container is being started, and that no live container
    can take.
    """
    starting = {run.turn_id for run in runs}
    return sum(
        turn.state is TurnState.QUEUED
        and turn.id not in starting
        and turn.not_before_ms <= now_ms
        and not any(run.takes(turn) for run in runs)
        for turn in turns
    )


def _would_be_used(
    candidate: ExpectedTurn,
    turns: Sequence[Turn],
    runs: Sequence[LiveRun],
    unused_in_a_row: Mapping[Folder, int],
) -> bool:
    """Return whether a container that is started now would be used if the expected turn `candidate` came.

    It would not if the group has a container that the turn could use or that was abandoned, or if the group
    works on another turn. Nor would it if the turn is expected only because of talk, and the last
    `MAX_UNUSED_IN_A_ROW` containers that were started ahead for its group were not used. `unused_in_a_row`
    has the number of such containers by group.
    """
    if candidate.sign is Sign.TALK and unused_in_a_row.get(candidate.folder, 0) >= MAX_UNUSED_IN_A_ROW:
        return False
    group_runs = [run for run in runs if run.folder == candidate.folder]
    if any(run.state is RunState.LEFT for run in group_runs):
        return False  # the turn of an abandoned run may still be using the session
    if candidate.is_isolated:
        return not any(run.is_isolated and run.state is RunState.READY for run in group_runs)
    # A group works on one turn at a time, so the expected one would have to wait in any case.
    is_at_work = any(turn.folder == candidate.folder and turn.kind is not TurnKind.WORKER for turn in turns)
    # The expected turn is not isolated, so no isolated container would take it.
    return not is_at_work and all(run.is_isolated for run in group_runs)
