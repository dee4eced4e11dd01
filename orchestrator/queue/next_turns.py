"""Decide which turns run next, over all unsettled turns and live containers. Pure.

The dispatcher carries the decision out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.domain.values import (
    LiveRun,
    RunId,
    RunState,
    SessionCommand,
    Turn,
    TurnId,
    TurnKind,
    TurnState,
)
from orchestrator.queue.container_slots import ContainerSlots, own_run_of

AGEING_MS = 5 * 60_000
"""Milliseconds after which a waiting turn goes before all kinds: a stream of chat must not starve the rest.
"""
PLACE_NOTICE_AFTER_MS = 10_000
"""Milliseconds that a question waits for a slot before its chat gets a text with its place, once."""
LONGEST_PAUSE_MS = 3_600_000
"""Milliseconds that are longer than any pause before another attempt, by which a changed clock is noticed."""

# `TurnKind` lists the most urgent kind first.
_RANK = {kind: rank for rank, kind in enumerate(TurnKind, start=1)}
_AGED = 0


@dataclass(frozen=True, slots=True)
class HandOverTurn:
    """Give a turn to the idle run of its group."""

    turn_id: TurnId
    run_id: RunId


@dataclass(frozen=True, slots=True)
class StartContainer:
    """Start a container for a turn."""

    turn_id: TurnId


@dataclass(frozen=True, slots=True)
class CloseContainer:
    """Close a run without work, because another turn needs its slot or its session."""

    run_id: RunId


@dataclass(frozen=True, slots=True)
class NotifyPlace:
    """Tell the chat of a waiting turn its place in the queue; `place` 1 starts next."""

    turn_id: TurnId
    place: int


@dataclass(frozen=True, slots=True)
class ClearConversation:
    """Carry out a turn that clears the conversation; no run that remembers it is left."""

    turn_id: TurnId


Action = HandOverTurn | StartContainer | CloseContainer | NotifyPlace | ClearConversation


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlan:
    """The actions to take now, and when to plan again (epoch milliseconds) if nothing happens before."""

    actions: tuple[Action, ...]
    look_again_ms: int | None = None
    """None if only an event can change the plan."""


def plan(
    turns: Sequence[Turn], runs: Sequence[LiveRun], *, cap: int, now_ms: int, overlap: int = 0
) -> QueuePlan:
    """Return the actions to take now: turns to start, containers to close for them, and chats to notify.

    A run is a container from its start to its end; it holds one of `cap` slots. The turns get their slots one
    after the other, the most urgent first. For a turn that cannot start yet, a slot is reserved, so that no
    less urgent turn takes it. A chat whose question waits long for a slot is notified of its place in line.

    - Each group has one turn at a time, but a chat turn may run beside a dashboard's worker.
    - Chat turns go before those of tasks, of workers and of agents that woke by themselves, and within a kind
      the oldest first. A turn that has waited `AGEING_MS` goes before all kinds.
    - An idle run takes its own group's next turn, unless a more urgent turn has no slot: then the run is
      closed, so that a busy group cannot keep its slot from all others. A run that was started ahead of its
      first turn is closed before an idle one.
    - A closing run holds its slot until it has ended, unless it is one of `overlap`. An abandoned run (state
      LEFT) holds none: the pool ends it before it starts another.
    - A turn for which a run is being started counts as running.

    Args:
        turns: all turns that are queued or run.
        runs: all live runs.
        cap: how many runs may be live at the same time.
        now_ms: the present time, in epoch milliseconds.
        overlap: how many closing runs may live beyond `cap`, and so hold no slot.
    """
    runs = [run for run in runs if run.state is not RunState.LEFT]
    turns = _with_starting(turns, runs)
    ready = _ready(turns, runs, now_ms)
    slots = ContainerSlots.before_any_turn(runs, ready, cap=cap, overlap=overlap)
    actions: list[Action] = []
    waiting: list[Turn] = []
    # `slots.spare` are the runs without work that no turn has claimed yet. `release`, `make_room` and
    # `reserve_for_later` return those of them that have to be closed.
    for turn in ready:
        own_run = own_run_of(turn, runs)
        if turn.command is SessionCommand.CLEAR:
            actions += _clear(turn, runs, slots)
        elif others := _must_be_gone(turn, runs):
            actions += _closings(slots.release(others) + slots.reserve_for_later())
        elif own_run in slots.spare:
            slots.spare.remove(own_run)
            actions.append(HandOverTurn(turn.id, own_run.id))
        elif own_run is None and _must_end_first(turn, runs):
            # Not counted as waiting: it waits only for its own container, so "all are busy" would be wrong.
            same_session = [run for run in slots.spare if _is_session_of(run, turn)]
            actions += _closings(slots.release(same_session) + slots.reserve_for_later())
        elif own_run is not None:
            # Its run is not in `spare` any more: a more urgent turn has just taken the run's slot. So it
            # waits for one like any other.
            waiting.append(turn)
            actions += _closings(slots.reserve_for_later())
        else:
            actions += _closings(slots.make_room())
            if slots.take():
                actions.append(StartContainer(turn.id))
            else:
                waiting.append(turn)
    actions += _notify_places(waiting, now_ms)
    return QueuePlan(actions=tuple(actions), look_again_ms=_next_look_ms(turns, waiting, now_ms))


def _with_starting(turns: Sequence[Turn], runs: Sequence[LiveRun]) -> list[Turn]:
    """Return the turns; a queued one for which a container is being started gets the state running."""
    # The store says "queued" until the run is recorded: a pass before that would start a second container.
    made_for = {run.turn_id: run.id for run in runs if run.turn_id is not None}
    return [
        replace(turn, state=TurnState.RUNNING, run_id=made_for[turn.id]) if turn.id in made_for else turn
        for turn in turns
    ]


def _ready(turns: Sequence[Turn], runs: Sequence[LiveRun], now_ms: int) -> list[Turn]:
    """Return the next turn of each group that has none running, the most urgent first.

    A chat turn may run beside a dashboard's worker, which can take minutes. But a restricted turn, which has
    only the rights of its senders, runs beside no other of its group.
    """
    running = [turn for turn in turns if turn.state is TurnState.RUNNING]
    worker_runs = {turn.run_id for turn in running if turn.kind is TurnKind.WORKER}
    at_work = [run for run in runs if run.state in (RunState.STARTING, RunState.BUSY)]
    with_worker = {turn.folder for turn in running if turn.kind is TurnKind.WORKER}
    # A group is occupied by its running turn, and by a container that is starting or busy. The turn and the
    # container of the dashboard's worker do not count.
    occupied = {turn.folder for turn in running if turn.kind is not TurnKind.WORKER}
    occupied |= {run.folder for run in at_work if run.id not in worker_runs}
    queued = [
        turn
        for turn in turns
        if turn.state is TurnState.QUEUED and _is_pause_over(turn, now_ms) and _is_next(turn, turns)
    ]
    chosen: list[Turn] = []
    for turn in sorted(queued, key=lambda turn: _urgency(turn, now_ms)):
        if turn.folder in with_worker and (turn.kind is not TurnKind.CHAT or turn.is_restricted):
            continue
        if turn.folder not in occupied:
            occupied.add(turn.folder)
            chosen.append(turn)
    return chosen


def _is_next(turn: Turn, turns: Sequence[Turn]) -> bool:
    """Return whether no other queued turn of the group has to run before a queued `turn`.

    Earlier turns of the same chat have to run before it, even one that waits for its next attempt. A session
    command, such as `/clear`, runs after all turns that came before it in the group, and before all later
    ones. Turns that are not of a chat wait for none.
    """
    return turn.kind is not TurnKind.CHAT or not any(
        other.kind is TurnKind.CHAT
        and other.state is TurnState.QUEUED
        and other.folder == turn.folder
        and _is_before(other, turn)
        for other in turns
    )


def _is_before(other: Turn, turn: Turn) -> bool:
    """Return whether the turn `other` of the same group has to run before `turn`.

    Session commands such as `/clear` divide the turns of a group into parts; each command is a part of its
    own. `other` has to run first if its part is earlier, or if it is an earlier turn of the same chat in the
    same part.
    """
    # `_order` ends with the turn's id; all before that is the turn's part.
    *other_part, other_id = _order(other)
    *own_part, own_id = _order(turn)
    return other_part < own_part or (
        other_part == own_part and other_id < own_id and other.chat_jid == turn.chat_jid
    )


def _order(turn: Turn) -> tuple[int, bool, int]:
    """Return the key by which a group's turns are sorted: the session command before it, then the id.

    The commands, such as `/clear`, separate the turns before them from those after them.
    """
    # A turn that was asked before a command runs before the command, and so does a part that was split off
    # such a turn later.
    return turn.after_command, turn.command is not None, turn.id


def _is_pause_over(turn: Turn, now_ms: int) -> bool:
    """Return whether the pause of a turn before its next attempt is over."""
    # No pause is as long as `LONGEST_PAUSE_MS`: a time further ahead means that the clock was set back.
    return not 0 < turn.not_before_ms - now_ms <= LONGEST_PAUSE_MS


def _urgency(turn: Turn, now_ms: int) -> tuple[int, int, int]:
    """Return the key by which turns are sorted: the most urgent first."""
    rank = _AGED if now_ms - turn.queued_ms >= AGEING_MS else _RANK[turn.kind]
    return rank, turn.queued_ms, turn.id


def _must_be_gone(turn: Turn, runs: Sequence[LiveRun]) -> list[LiveRun]:
    """Return the containers that must end before a turn may start, because of restricted rights.

    For a turn with restricted rights these are all of its group, also busy ones; for other turns, those with
    restricted rights. Otherwise a request that a restricted container leaves in the group's mailbox could
    pass for that of another container.
    """
    return [run for run in runs if run.folder == turn.folder and (run.is_restricted or turn.is_restricted)]


def _must_end_first(turn: Turn, runs: Sequence[LiveRun]) -> bool:
    """Return whether a container works with the conversation that a turn needs, and so must end before it."""
    # Two containers that resume one session each write a branch of it, and one branch is lost.
    return any(_is_session_of(run, turn) for run in runs)


def _is_session_of(run: LiveRun, turn: Turn) -> bool:
    """Return whether a container has the conversation of a turn: its group's, unless one is isolated."""
    return run.folder == turn.folder and not (run.is_isolated or turn.is_isolated)


def _clear(turn: Turn, runs: Sequence[LiveRun], slots: ContainerSlots) -> Sequence[Action]:
    """Return the actions for a turn that clears the conversation of its group.

    While containers that remember the conversation are live, the actions close those without work. Once none
    is left, the action is to clear the conversation.
    """
    # Clearing takes no slot, but the runs that remember the conversation have to end first: one that outlived
    # a crash of the host would go on with it.
    remembering = [run for run in runs if _is_session_of(run, turn)]
    if not remembering:
        return [ClearConversation(turn.id)]
    return _closings(slots.release(remembering))


def _closings(runs: Sequence[LiveRun]) -> list[CloseContainer]:
    """Return the actions that close containers."""
    return [CloseContainer(run.id) for run in runs]


def _notify_places(waiting: Sequence[Turn], now_ms: int) -> list[NotifyPlace]:
    """Return the actions that send chats their place in the queue, if their question has waited long enough.

    `waiting` are the turns that wait for a slot, the next one first.
    """
    return [
        NotifyPlace(turn.id, place)
        for place, turn in enumerate(waiting, start=1)
        if turn.kind is TurnKind.CHAT
        and not turn.is_place_notified
        and now_ms - turn.queued_ms >= PLACE_NOTICE_AFTER_MS
    ]


def _next_look_ms(turns: Sequence[Turn], waiting: Sequence[Turn], now_ms: int) -> int | None:
    """Return when the plan may change by itself, in epoch milliseconds; None if only an event can change it.

    That is when a pause of a turn ends, or when a chat is due to get the text with its place. `waiting` are
    the turns that wait for a slot.
    """
    times = [turn.not_before_ms for turn in turns if turn.state is TurnState.QUEUED]
    times += [turn.queued_ms + PLACE_NOTICE_AFTER_MS for turn in waiting]
    return min((at for at in times if at > now_ms), default=None)
