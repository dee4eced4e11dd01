"""From a queued turn to a run that is recorded: how the conversation goes on, and what its container is told.

Done in the run's own job, while it holds a slot and nothing of it is in the store. A host that dies here
leaves the turn queued as it was; what is said, taken back or cancelled meanwhile counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent_runner.wire.order import RunOrder
from orchestrator.containers.live_run import LiveRunState
from orchestrator.containers.ports import PoolContext, Restoration, resume_plainly, until_stored
from orchestrator.domain.values import Group, Run, Turn, TurnState
from orchestrator.store import groups, runs, sessions, turns
from orchestrator.store.database import Tx

NO_GROUP = "this group is no longer registered."


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """All that is decided of a container before it is made."""

    run: Run
    group: Group
    order: RunOrder
    environment: dict[str, str]
    restoration: Restoration | None
    """How it goes on with the group's conversation; None of a run apart from that."""

    @classmethod
    def of(
        cls,
        run: Run,
        group: Group,
        order: RunOrder,
        environment: dict[str, str],
        restoration: Restoration | None,
    ) -> NewRun:
        """Put together what was decided, and into the order how the conversation goes on."""
        if restoration is not None:
            order = order.model_copy(update={"restore": restoration.restore})
        return cls(run=run, group=group, order=order, environment=environment, restoration=restoration)

    def facts(self) -> dict[str, object]:
        """What the run is, for its log. Not what it is asked."""
        return {
            "runtime": self.run.runtime,
            "agent": self.order.agent,
            "model": self.order.model,
            "session": self.order.session_id or "new",
            "restore": self.run.restore_mode,
            "because": self.run.restore_reason,
            "egress": self.order.egress,
            "isolated": "yes" if self.run.is_isolated else None,
            "turn_seconds": self.order.limits.turn_seconds,
        }


class RunCreator:
    """One for all runs; what is known of each is in its `LiveRunState`."""

    def __init__(self, around: PoolContext) -> None:
        self._around = around

    def run_for(self, turn: Turn) -> Run:
        """A run for a turn, as far as it is known before anything is decided."""
        return Run(
            id=self._around.ties.new_run_id(),
            folder=turn.folder,
            is_isolated=turn.is_isolated,
            runtime=self._around.runtime.name,
            container_ref=None,
            token_hash="",
            last_frame=0,
            started_ms=self._around.clock.now_ms(),
            ended_ms=None,
            exit_kind=None,
            exit_detail=None,
        )

    async def begin(self, life: LiveRunState, turn: Turn) -> NewRun | None:
        """Give the turn to the run of `life`; None when there is nothing to start any more."""
        async for attempt in until_stored():
            with attempt:
                restoration = None if turn.is_isolated else await self._restoration(turn)
                launch = await self._record(life.run, turn, restoration)
        if launch is not None:
            life.begin(launch.run, launch.group, now_ms=self._around.clock.steady_ms())
            life.session_id = launch.order.session_id
            self._tell(turn, launch)
        return launch

    async def _restoration(self, turn: Turn) -> Restoration | None:
        """How the conversation goes on; None of a group that is gone."""
        async with self._around.database.reading() as tx:
            group = await groups.by_folder(tx, turn.folder)
            session_id = await sessions.current(tx, turn.folder)
        return None if group is None else await self._around.ties.restore(turn, group, session_id)

    async def _record(self, run: Run, turn: Turn, restoration: Restoration | None) -> NewRun | None:
        ties, now_ms = self._around.ties, self._around.clock.now_ms()
        token, token_hash = ties.token()
        async with self._around.database.transaction() as tx:
            group = await groups.by_folder(tx, turn.folder)
            if not await waits(tx, turn):
                return None
            if group is None:
                await turns.settle(tx, turn.id, TurnState.FAILED, reason=NO_GROUP, now_ms=now_ms)
                return None
            restoration = await _still_true(tx, turn, group, restoration)
            run = _decided(replace(run, token_hash=token_hash, started_ms=now_ms), restoration)
            await runs.begin(tx, run)
            await turns.start(tx, turn.id, run.id, now_ms=now_ms)
            session_id = restoration.session_id if restoration is not None else None
            order = ties.order(run, group, await ties.compose(tx, turn, group, run.id), session_id)
            environment = dict(ties.environment(group, order.agent, token))
        return NewRun.of(run, group, order, environment, restoration)

    def _tell(self, turn: Turn, launch: NewRun) -> None:
        self._around.logs.begin(launch.run, launch.facts())
        ids = {"group": turn.folder, "turn": turn.id, "run": launch.run.id}
        self._around.bus.publish("turn.started", **ids, attempt=turn.attempt)
        if launch.restoration is not None:
            self._around.bus.publish("conversation.restored", **ids, **launch.restoration.told())


def _decided(run: Run, restoration: Restoration | None) -> Run:
    if restoration is None:
        return run
    return replace(
        run,
        model=restoration.model,
        provider=restoration.provider,
        restore_mode=restoration.restore.mode,
        restore_reason=restoration.restore.reason,
    )


async def _still_true(tx: Tx, turn: Turn, group: Group, decided: Restoration | None) -> Restoration | None:
    """What was decided, unless the group has another session by now: then that is resumed as it is."""
    session_id = None if turn.is_isolated else await sessions.current(tx, turn.folder)
    if turn.is_isolated or (decided is not None and decided.seen == session_id):
        return decided
    return await resume_plainly(turn, group, session_id)


async def waits(tx: Tx, turn: Turn) -> bool:
    """Whether a turn is still to begin: its task may have been cancelled since the lanes looked."""
    now = await turns.get(tx, turn.id)
    return now is not None and now.state is TurnState.QUEUED
