"""What is left of runs that were given up: looked for until the runtime has ended it, or has it no more."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import structlog

from orchestrator.containers.ports import PoolContext
from orchestrator.domain.errors import ContainerError, EngineGone
from orchestrator.domain.protocols import RunningContainer
from orchestrator.domain.values import Folder, LiveRun, Run, RunId, RunState

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A container that nobody hears any more."""

    run_id: RunId
    folder: Folder
    is_isolated: bool
    may_work: bool
    """Whether it may live on and go on in its group's session."""

    @classmethod
    def of(cls, run: Run, *, may_work: bool = True) -> Orphan:
        return cls(run_id=run.id, folder=run.folder, is_isolated=run.is_isolated, may_work=may_work)


class Orphans:
    """While one may work on a session, no other container may be started on that session."""

    def __init__(self, around: PoolContext) -> None:
        self._around = around
        self._left: dict[RunId, Orphan] = {}
        self._since_ms: dict[RunId, int] = {}
        self._asking = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._left)

    def add(self, left: Orphan) -> None:
        """Look for a container from now on, which may be there or not."""
        self._left[left.run_id] = left
        self._since_ms.setdefault(left.run_id, self._around.clock.steady_ms())
        self._around.hints.reaper.give()

    def hold_session_of(self, run: Run) -> bool:
        """Whether one of them may still work on the session that `run` is to have."""
        return not run.is_isolated and any(
            left.folder == run.folder and left.may_work and not left.is_isolated
            for left in self._left.values()
        )

    def as_runs(self) -> list[LiveRun]:
        return [
            LiveRun(
                id=left.run_id,
                folder=left.folder,
                is_isolated=left.is_isolated,
                state=RunState.LEFT,
                started_ms=self._since_ms[left.run_id],
                idle_since_ms=self._since_ms[left.run_id],
            )
            for left in self._left.values()
        ]

    async def remove(self, container: RunningContainer, left: Orphan) -> None:
        """End a container, whatever its state, and forget it; one that stays is looked for again."""
        try:
            if await _has_stopped(container):
                left = replace(left, may_work=False)
            await container.remove()
        except ContainerError as error:
            if left.run_id not in self._left:
                log.warning("container.left", run=left.run_id, group=left.folder, reason=str(error))
            self.add(left)
        else:
            self._forget(left.run_id)

    async def end_all(self) -> None:
        """End those that the runtime has; the others are gone.

        Raises:
            EngineGone: it cannot be asked.
        """
        async with self._asking:
            asked = dict(self._left)  # what is given up later may not be in the answer yet
            if not asked:
                return
            found = {container.run_id: container for container in await self._around.runtime.adopt()}
            for run_id in asked.keys() - found.keys():
                self._forget(run_id)
            async with asyncio.TaskGroup() as ending:
                for run_id in asked.keys() & found.keys():
                    ending.create_task(self.remove(found[run_id], asked[run_id]), name=f"end:{run_id}")

    def _forget(self, run_id: RunId) -> None:
        self._left.pop(run_id, None)
        self._since_ms.pop(run_id, None)


async def _has_stopped(container: RunningContainer) -> bool:
    """Stop it; False when that is refused, for its removal ends it too."""
    try:
        await container.stop()
    except EngineGone:
        raise
    except ContainerError as error:
        log.warning("container.not_stopped", run=container.run_id, reason=str(error))
        return False
    return True
