"""Stop or retry a single turn for the owner."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from orchestrator.domain.errors import BadRequest, UnknownTurn
from orchestrator.domain.failures import STOPPED_BY_HAND
from orchestrator.domain.values import RunId, Turn, TurnId, TurnKind, TurnState
from orchestrator.groups.host_context import HostContext
from orchestrator.queue import retries
from orchestrator.store import audit
from orchestrator.store.conversation import messages
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.runs import turns


class TurnIsOver(BadRequest):
    """The turn has already ended: there is nothing to stop."""

    code = "turn_is_over"
    http_status = 409


class TurnNotRepeatable(BadRequest):
    """Only a chat turn that waits, or that failed and still has its messages, can be tried again."""

    code = "turn_not_repeatable"
    http_status = 409


class TurnActions:
    """Stops turns and tries them again; each action is written to the audit log."""

    def __init__(self, host: HostContext, *, stop_run: Callable[[RunId, str], Awaitable[None]]) -> None:
        """`stop_run` kills a container; its turn fails with the passed reason, and is not tried again."""
        self._host = host
        self._stop_run = stop_run

    async def stop(self, turn_id: int) -> Turn:
        """Stop a turn that waits or runs: it fails, and a container that works on it is killed.

        Return the turn as it was before.

        Raises:
            UnknownTurn: there is no such turn.
            TurnIsOver: the turn has ended already.
        """
        now_ms = self._host.clock.now_ms()
        async with self._host.database.transaction() as tx:
            turn = await _known(tx, turn_id)
            if turn.state not in (TurnState.QUEUED, TurnState.RUNNING):
                raise TurnIsOver
            await _audit(tx, turn, "turn.stop", now_ms)
            if turn.state is TurnState.QUEUED:
                # A stop by hand says nothing about a scheduled task, so it counts as no failure of it.
                await retries.fail(tx, turn, reason=STOPPED_BY_HAND, now_ms=now_ms, is_own_fault=False)
        if turn.state is TurnState.QUEUED:
            self._host.bus.publish("turn.failed", group=turn.folder, turn=turn.id, reason=STOPPED_BY_HAND)
            self._host.wakeups.outbox.set()
            self._host.wakeups.lanes.set()
        elif turn.run_id is not None:
            await self._stop_run(turn.run_id, STOPPED_BY_HAND)
        return turn

    async def ask_again(self, turn_id: int) -> Turn:
        """Let a failed chat turn be asked again, or a turn that waits start at once; return the turn to run.

        The messages of a failed turn join a queued turn, which is made if needed.

        Raises:
            UnknownTurn: there is no such turn.
            UnknownGroup: its group is no longer registered.
            TurnNotRepeatable: it is of another kind, or runs, or was answered, or its messages were asked
                again before.
        """
        now_ms = self._host.clock.now_ms()
        async with self._host.database.transaction() as tx:
            turn = await _known(tx, turn_id)
            group = await groups.known(tx, turn.folder)
            is_question = turn.kind is TurnKind.CHAT and turn.command is None
            if turn.state is TurnState.QUEUED:
                await turns.hurry(tx, turn.id, now_ms=now_ms)
                retry_id = turn.id
            # Without messages, because another turn has them by now, the agent would be asked nothing.
            elif (
                turn.state is TurnState.FAILED
                and is_question
                and await messages.requests_of(tx, turn.id, limit=1)
            ):
                retry_id = await turns.join_chat(
                    tx,
                    group.folder,
                    group.chat_for(turn.chat_jid),
                    now_ms=now_ms,
                    role=turn.role,
                    is_restricted=turn.is_restricted,
                )
                await turns.take_over(tx, retry_id, turn)
            else:
                raise TurnNotRepeatable
            await _audit(tx, turn, "turn.ask_again", now_ms)
            retry = await _known(tx, retry_id)
        self._host.bus.publish("turn.put_back", group=turn.folder, turn=retry.id, attempt=retry.attempt)
        self._host.wakeups.lanes.set()
        return retry


async def _known(tx: Tx, turn_id: int) -> Turn:
    """Return the turn with this id. Raises `UnknownTurn` if there is none."""
    turn = await turns.get(tx, TurnId(turn_id))
    if turn is None:
        raise UnknownTurn(turn_id)
    return turn


async def _audit(tx: Tx, turn: Turn, kind: str, now_ms: int) -> None:
    """Write an entry of this `kind` about a turn to the audit log."""
    await audit.append(
        tx, audit.AuditEvent(at_ms=now_ms, kind=kind, folder=turn.folder, run_id=turn.run_id, turn_id=turn.id)
    )
