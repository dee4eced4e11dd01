"""How a life ends: asked to close or killed, and its end recorded."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from orchestrator.containers import exit_classification, timeouts
from orchestrator.containers.live_run import LiveRunState
from orchestrator.containers.live_runs import LiveRuns
from orchestrator.containers.ports import PoolContext, until_stored, word_of
from orchestrator.domain.errors import ContainerError
from orchestrator.domain.protocols import RunningContainer
from orchestrator.domain.values import Run, RunState, Turn, TurnId, TurnState
from orchestrator.store import runs, turns
from orchestrator.store.database import Tx

log = structlog.get_logger(__name__)

CHANGED = "its group is gone or has changed"


@dataclass(frozen=True, slots=True)
class _Settled:
    """What became of the turn of a run that ended."""

    turn: Turn
    state: TurnState


class Termination:
    """Everything that ends a life. Its container is removed by `leftovers`."""

    def __init__(self, around: PoolContext, lives: LiveRuns) -> None:
        self._around = around
        self._lives = lives

    # Asked, or made to

    async def close(self, life: LiveRunState, *, reason: str) -> None:
        """Ask a container to end; it has until the reaper's grace to do so."""
        life.enter(RunState.CLOSING, self._around.clock.steady_ms())
        life.close_reason = reason
        self._around.bus.publish("run.closing", group=life.run.folder, run=life.run.id, reason=reason)
        closing = [
            other.run.id for other in self._lives.of(life.run.folder) if other.state is RunState.CLOSING
        ]
        await asyncio.to_thread(self._around.ties.deposit_close, life.run.folder, closing)
        self._around.hints.reaper.give()

    def condemn(self, life: LiveRunState, verdict: timeouts.TimeoutVerdict) -> None:
        """Have it end; whoever hears it carries that out."""
        life.verdict = verdict
        log.warning("run.killed", run=life.run.id, group=life.run.folder, reason=verdict.reason)
        self._around.bus.publish("run.killed", group=life.run.folder, run=life.run.id, reason=verdict.reason)

    async def end(self, life: LiveRunState, verdict: timeouts.TimeoutVerdict) -> None:
        """End it now."""
        self.condemn(life, verdict)
        if life.container is not None and not await self.kill(life.container):
            life.verdict = None  # the next look at it tries again

    async def kill(self, container: RunningContainer) -> bool:
        """Stop a container; False when the runtime did not."""
        try:
            await container.stop()
        except ContainerError as error:
            log.warning("container.left", run=container.run_id, reason=str(error))
            return False
        return True

    # Recorded

    async def settle_surely(self, life: LiveRunState, ended: exit_classification.RunEnd) -> None:
        """Settle, however often the disk refuses."""
        async for attempt in until_stored():
            with attempt:
                await self.settle(life.run, ended, made_for=life.turn_id)

    async def settle(
        self, run: Run, ended: exit_classification.RunEnd, *, made_for: TurnId | None = None
    ) -> None:
        """Record the end of a run and, in the same transaction, what becomes of its turn: of the one that it
        was `made_for`, if it came to no run.
        """
        settled = await self._record(run, ended, made_for)
        if ended.detail:
            self._around.logs.note(run.id, "run.exit", {"detail": ended.detail})
        level = log.info if ended.kind is exit_classification.RunEndKind.CLOSED else log.warning
        level("run.ended", run=run.id, group=run.folder, kind=ended.kind.value, reason=ended.reason)
        if settled is not None:
            turn, state = settled.turn, settled.state
            self._around.bus.publish(
                f"turn.{word_of(state)}",
                group=run.folder,
                turn=turn.id,
                run=run.id,
                attempt=turn.attempt,
                reason=ended.reason,
            )
            self._around.hints.outbox.give()
            self._around.hints.outages.give()
        self._around.bus.publish(
            "run.ended", group=run.folder, run=run.id, detail=ended.kind.value, reason=ended.reason
        )

    async def _record(
        self, run: Run, ended: exit_classification.RunEnd, made_for: TurnId | None
    ) -> _Settled | None:
        detail, now_ms = ended.detail or ended.reason, self._around.clock.now_ms()
        async with self._around.database.transaction() as tx:
            await runs.end(tx, run.id, kind=ended.kind.value, detail=detail, now_ms=now_ms)
            turn = await turns.running_in(tx, run.id) or await _waiting(tx, made_for)
            if turn is None:
                return None
            state = await self._around.ties.give_back(
                tx,
                turn,
                reason=ended.reason,
                is_retryable=ended.is_retryable,
                now_ms=now_ms,
                is_at_once=ended.kind is exit_classification.RunEndKind.LOST,
                fault=ended.fault,
            )
            return _Settled(turn, state)


async def _waiting(tx: Tx, turn_id: TurnId | None) -> Turn | None:
    turn = await turns.get(tx, turn_id) if turn_id is not None else None
    return turn if turn is not None and turn.state is TurnState.QUEUED else None
