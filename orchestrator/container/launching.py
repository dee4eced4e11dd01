"""What a new container is made of, and its start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from agent_runner.wire.order import RunOrder
from orchestrator import group_config
from orchestrator.container import outcome
from orchestrator.container.hearing import Hearing
from orchestrator.container.leftovers import Left, Leftovers
from orchestrator.container.life import Life
from orchestrator.container.ties import Restoration, Surroundings
from orchestrator.errors import ContainerError, EngineGone
from orchestrator.interfaces import ContainerSpec, Mount, RunningContainer
from orchestrator.models import Group, Run, RunState, Turn
from orchestrator.store import runs

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
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
    ) -> Launch:
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


class Launching:
    """Starts containers, and hands them to who hears them."""

    def __init__(self, around: Surroundings, *, hearing: Hearing, leftovers: Leftovers) -> None:
        self._around = around
        self._hearing = hearing
        self._leftovers = leftovers

    def new_run(self, turn: Turn, token_hash: str, restoration: Restoration | None) -> Run:
        return Run(
            id=self._around.ties.new_run_id(),
            folder=turn.folder,
            is_isolated=turn.is_isolated,
            runtime=self._around.runtime.name,
            container_ref=None,
            token_hash=token_hash,
            last_frame=0,
            started_ms=self._around.clock.now_ms(),
            ended_ms=None,
            exit_kind=None,
            exit_detail=None,
            model=restoration.model if restoration else None,
            provider=restoration.provider if restoration else None,
            restore_mode=restoration.restore.mode if restoration else None,
            restore_reason=restoration.restore.reason if restoration else None,
        )

    async def launch(self, life: Life, launch: Launch) -> outcome.Outcome:
        """Start a container and hear it to its end."""
        group = launch.group
        try:
            await self._free_session(life.run)
            mounts = await self._around.ties.prepare(group)
            self._around.logs.note(life.run.id, "run.mounts", _seen(mounts))
            await self._around.ties.watch(group.folder)
            spec = _spec(launch, mounts)
            if spec.is_open:
                log.warning("run.reaches_the_internet", run=life.run.id, group=group.folder)
            container = await self._start(life.run, spec, launch.order)
        except (ContainerError, OSError) as error:
            return outcome.classify(error)
        life.container = container
        life.enter(RunState.BUSY, self._around.clock.steady_ms())
        async with self._around.database.transaction() as tx:
            await runs.note_ref(tx, life.run.id, container.ref)
        self._around.bus.publish(
            "run.started", group=group.folder, run=life.run.id, detail=container.ref[:12]
        )
        return await self._hearing.follow(life, container)

    async def _start(self, run: Run, spec: ContainerSpec, order: RunOrder) -> RunningContainer:
        try:
            return await self._around.runtime.start(spec, order.to_json())
        except EngineGone:
            # It may have been made all the same. It was not told what to do.
            self._leftovers.add(Left.of(run, may_work=False))
            raise

    async def _free_session(self, run: Run) -> None:
        """See what was given up before ended first: two containers on one session would lose a branch of it.

        Raises:
            ContainerError: what may still work on the session of this run cannot be ended.
        """
        await self._leftovers.end_all()
        if self._leftovers.hold_session_of(run):
            raise ContainerError("An earlier container of this group cannot be ended: see 'andy status'.")


def _spec(launch: Launch, mounts: Sequence[Mount]) -> ContainerSpec:
    run, config = launch.run, group_config.of(launch.group)
    spec = ContainerSpec(run_id=run.id, folder=run.folder, mounts=mounts, environment=launch.environment)
    return replace(
        spec,
        memory_bytes=config.memory_mb * 1024**2 if config.memory_mb else spec.memory_bytes,
        cpus=config.cpus or spec.cpus,
        is_open=config.egress == "open",
    )


def _seen(mounts: Sequence[Mount]) -> dict[str, object]:
    """The mounts as a container sees them."""
    targets = (f"{mount.target}:{'rw' if mount.is_writable else 'ro'}" for mount in mounts)
    return {"targets": ",".join(targets)}
