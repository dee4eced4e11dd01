"""Carry out the queue's plan: start containers, hand turns to them, close them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

import structlog

from orchestrator.base.clock import Clock
from orchestrator.base.wakeups import Wakeups
from orchestrator.domain.errors import StoreError
from orchestrator.domain.failures import FailureOwner
from orchestrator.domain.values import LiveRun, RunId, Turn, TurnId, TurnState
from orchestrator.queue import next_turns, retries
from orchestrator.store.conversation import outbox
from orchestrator.store.database import Database
from orchestrator.store.runs import sessions, turns

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 30.0
"""Most seconds between two passes: a wake-up may be lost, but a waiting turn is found all the same."""
CLEARED = "🧹 I have forgotten our conversation. My files and reminders are still there."


@dataclass(frozen=True, slots=True, kw_only=True)
class Containers:
    """The calls by which the dispatcher starts, uses and closes containers."""

    live: Callable[[], Sequence[LiveRun]]
    """Returns the containers of this host that have not ended."""
    start: Callable[[Turn], Awaitable[None]]
    """Starts a container for a turn."""
    hand_over: Callable[[Turn, RunId], Awaitable[None]]
    """Gives a turn to a running container that has no turn."""
    close: Callable[[RunId], Awaitable[None]]
    """Ends a container that has no turn."""


async def let_every_turn_start(turn: Turn) -> bool:
    """Return False, which lets the turn start: the check of a host whose agents need no model."""
    del turn
    return False


class Dispatcher:
    """Starts turns, and closes containers for them, by a plan over all turns that have not ended.

    One pass at a time plans and acts, so that no two decisions contradict each other.
    """

    def __init__(
        self,
        database: Database,
        containers: Containers,
        *,
        cap: Callable[[], int],
        overlap: int = 0,
        clock: Clock,
        wakeups: Wakeups,
        turn_away: Callable[[Turn], Awaitable[bool]] = let_every_turn_start,
    ) -> None:
        """Set up the dispatcher; `run` acts.

        Args:
            database: the database.
            containers: starts, uses and closes containers.
            cap: returns how many containers may exist at the same time, as of now.
            overlap: how many containers beyond the cap may exist while they end, so that others start sooner.
            clock: the clock.
            wakeups: set when there may be something to do.
            turn_away: ends or postpones a turn that may not start now, and returns whether it did.
        """
        self._database = database
        self._containers = containers
        self._cap = cap
        self._overlap = overlap
        self._clock = clock
        self._wakeups = wakeups
        self._turn_away = turn_away
        self.is_taking_work = True
        """Whether turns are started; False once the host stops."""

    async def run(self) -> None:
        """Start turns and close containers as the queue's plan says, whenever woken, until cancelled."""
        while True:
            wait_seconds = await self._plan_and_act() if self.is_taking_work else SWEEP_SECONDS
            await self._wakeups.lanes.wait(at_most_seconds=wait_seconds)

    async def _plan_and_act(self) -> float:
        """Plan over all turns that have not ended, and carry the plan out.

        Return in how many seconds to plan again if nothing wakes the dispatcher before.
        """
        now_ms = self._clock.now_ms()
        unsettled = await self._database.read(turns.unsettled)
        queue_plan = next_turns.plan(
            unsettled, self._containers.live(), cap=self._cap(), overlap=self._overlap, now_ms=now_ms
        )
        by_id = {turn.id: turn for turn in unsettled}
        for action in queue_plan.actions:
            await self._apply_safely(action, by_id)
        if queue_plan.look_again_ms is None:
            return SWEEP_SECONDS
        return min(SWEEP_SECONDS, max(0.0, (queue_plan.look_again_ms - self._clock.now_ms()) / 1000))

    async def _apply_safely(self, action: next_turns.Action, by_id: dict[TurnId, Turn]) -> None:
        """Carry out one action of the plan; an error counts as a failed attempt of its turn, and is logged.

        `by_id` has the turns by their ids. Only `StoreError` is raised.
        """
        try:
            await self._apply(action, by_id)
        # Without the store nothing can be decided for any turn: the supervisor runs the whole loop again.
        except StoreError:
            raise
        except Exception:
            log.exception("lanes.action_failed", action=repr(action))
            if isinstance(action, next_turns.StartContainer | next_turns.HandOverTurn):
                await self._requeue(action.turn_id)

    async def _requeue(self, turn_id: TurnId) -> None:
        """Let a turn that could not be started be tried again later, or fail it after too many attempts.

        A turn that is no longer queued is left unchanged: a container has it, or it has ended. The queue and
        the delivery of texts are woken.
        """
        async with self._database.transaction() as tx:
            turn = await turns.get(tx, turn_id)
            if turn is not None and turn.state is TurnState.QUEUED:
                reason = "something went wrong inside Andy."
                await retries.requeue_or_fail(
                    tx,
                    turn,
                    reason=reason,
                    is_retryable=True,
                    now_ms=self._clock.now_ms(),
                    fault=FailureOwner.HOST,
                )
        self._wakeups.lanes.set()
        self._wakeups.outbox.set()

    async def _apply(self, action: next_turns.Action, by_id: dict[TurnId, Turn]) -> None:
        """Carry out one action of the plan; a turn that may not start now is ended or postponed instead.

        `by_id` has the turns by their ids.
        """
        match action:
            case next_turns.HandOverTurn(turn_id) | next_turns.StartContainer(turn_id) if (
                await self._turn_away(by_id[turn_id])
            ):
                self._wakeups.lanes.set()  # plan again: another turn may start instead
            case next_turns.HandOverTurn(turn_id, run_id):
                await self._containers.hand_over(by_id[turn_id], run_id)
            case next_turns.StartContainer(turn_id):
                await self._containers.start(by_id[turn_id])
            case next_turns.CloseContainer(run_id):
                await self._containers.close(run_id)
            case next_turns.ClearConversation(turn_id):
                await self._clear_conversation(by_id[turn_id])
            case next_turns.NotifyPlace(turn_id, place):
                await self._notify_place(by_id[turn_id], place)
            case _:
                assert_never(action)

    async def _clear_conversation(self, turn: Turn) -> None:
        """Carry out the command `/clear` that `turn` is: the group's agent forgets the conversation.

        The next turn resumes no session and is shown no earlier message. The turn ends as answered, and its
        chat gets a text. A turn that was stopped meanwhile is left alone. The queue and the delivery of texts
        are woken.
        """
        now_ms = self._clock.now_ms()
        async with self._database.transaction() as tx:
            current = await turns.get(tx, turn.id)
            # Since the plan was made, the turn may have been stopped in the chat.
            if current is None or current.state is not TurnState.QUEUED or current.last_seq is None:
                return
            await sessions.forget(tx, turn.folder, now_ms=now_ms)
            await sessions.move_cursor(tx, turn.folder, current.last_seq)
            await turns.settle(tx, turn.id, TurnState.ANSWERED, reason="cleared", now_ms=now_ms)
            await outbox.add(
                tx,
                chat_jid=turn.chat_jid,
                folder=turn.folder,
                text=CLEARED,
                dedupe_key=f"cleared:{turn.id}",
                turn_id=turn.id,
                now_ms=now_ms,
            )
        self._wakeups.outbox.set()
        self._wakeups.lanes.set()

    async def _notify_place(self, turn: Turn, place: int) -> None:
        """Send the chat of a turn that waits for a container a text about its place in the queue, once.

        `place` 1 starts next. A turn that no longer waits gets none.
        """
        now_ms = self._clock.now_ms()
        ahead = "you are next" if place == 1 else f"{place - 1} ahead of you"
        async with self._database.transaction() as tx:
            # Since the plan was made, the turn may have been stopped, or joined with another one.
            current = await turns.get(tx, turn.id)
            if current is None or current.state is not TurnState.QUEUED:
                return
            # In one transaction with the text, so that a chat gets it only once, even after a crash.
            await turns.note_place_notified(tx, turn.id, now_ms=now_ms)
            await outbox.add(
                tx,
                chat_jid=turn.chat_jid,
                folder=turn.folder,
                text=f"⏳ All my hands are busy; {ahead}. I will answer.",
                dedupe_key=f"place:{turn.id}",
                turn_id=None,
                now_ms=now_ms,
            )
        self._wakeups.outbox.set()
