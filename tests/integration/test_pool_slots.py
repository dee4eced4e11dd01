"""When a slot is free again, on a real database and a runtime whose containers end as told."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agent_runner.wire.order import RunOrder
from orchestrator.container import reaper
from orchestrator.container.run_log import RunLogs
from orchestrator.container.runner import RunPool, Ties
from orchestrator.inbound import prompt
from orchestrator.interfaces import ContainerSpec, Exit, Mount
from orchestrator.models import Group, RunId
from orchestrator.queue.retries import give_back
from tests.fakes.household import SEOUL, Household
from tests.fakes.until import until


class ToldContainer:
    """Ends when told, and is gone from the engine when told."""

    def __init__(self, spec: ContainerSpec) -> None:
        self.run_id, self.folder, self.ref = spec.run_id, spec.folder, f"ref-{spec.run_id}"
        self.may_end, self.may_be_removed, self.is_stopping = (
            asyncio.Event(),
            asyncio.Event(),
            asyncio.Event(),
        )
        self.is_removed = False

    async def output(self) -> AsyncIterator[bytes]:
        await self.may_end.wait()
        return
        yield b""

    async def wait(self) -> Exit:
        return Exit(code=0)

    async def stop(self, *, grace_seconds: float = 2.0) -> None:
        self.is_stopping.set()
        await self.may_be_removed.wait()

    async def remove(self) -> None:
        self.is_removed = True


class ToldRuntime:
    name, is_isolated = "told", True

    def __init__(self) -> None:
        self.started: list[ToldContainer] = []

    async def start(self, spec: ContainerSpec, order: str) -> ToldContainer:
        self.started.append(ToldContainer(spec))
        return self.started[-1]

    async def adopt(self) -> list[ToldContainer]:
        return []

    async def close(self) -> None:
        pass


async def nothing(*_: Any) -> None:
    pass


async def no_mounts(_: Group) -> tuple[Mount, ...]:
    return ()


def ties() -> Ties:
    numbers = itertools.count(1)

    async def compose(tx, turn, group, run_id):
        return await prompt.compose(tx, turn, group, run_id=run_id, name="Andy", zone=SEOUL, now_ms=0)

    return Ties(
        compose=compose,
        order=lambda run, group, turn, _: RunOrder(
            run=run.id, group=group.folder, chat_jid=group.jid, turn=turn
        ),
        token=lambda: ("token", "hash"),
        environment=lambda *_: {},
        prepare=no_mounts,
        watch=nothing,
        unwatch=nothing,
        deposit_turn=lambda *_: None,
        deposit_close=lambda *_: None,
        forget_turn=lambda *_: None,
        give_back=give_back,
        new_run_id=lambda: RunId(f"run-{next(numbers)}"),
    )


async def start_one(
    household: Household, runtime: ToldRuntime, tasks: asyncio.TaskGroup, home: Path
) -> RunPool:
    pool = RunPool(
        household.database,
        runtime,
        ties(),
        limits=reaper.Limits(idle_ms=1000, age_ms=1000, turn_ms=1000),
        logs=RunLogs(home, clock=household.clock),
        clock=household.clock,
        tasks=tasks,
        hints=household.hints,
        bus=household.bus,
    )
    await household.add_group()
    await household.hear("@Andy hi")
    (turn,) = await household.queued()
    await pool.start(turn)
    await until(lambda: runtime.started, "the container is started")
    return pool


async def test_a_slot_is_free_once_its_container_has_ended_though_the_engine_still_removes_it(
    household: Household, tmp_path: Path
) -> None:
    runtime = ToldRuntime()
    async with asyncio.TaskGroup() as tasks:
        pool = await start_one(household, runtime, tasks, tmp_path)
        assert len(pool.live()) == 1
        (container,) = runtime.started

        container.may_end.set()
        await container.is_stopping.wait()

        assert pool.live() == []
        container.may_be_removed.set()
    assert container.is_removed
