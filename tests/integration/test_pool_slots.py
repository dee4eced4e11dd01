"""When a slot is free again, on a real database and a runtime whose containers end as told."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.fakes.household import Household
from tests.fakes.told_runtime import ToldRuntime, told_pool
from tests.fakes.until import until


async def test_a_slot_is_free_once_its_container_has_ended_though_the_engine_still_removes_it(
    household: Household, tmp_path: Path
) -> None:
    runtime = ToldRuntime()
    async with asyncio.TaskGroup() as tasks:
        pool = told_pool(household, runtime, tasks, tmp_path)
        await household.add_group()
        await household.hear("@Andy hi")
        await pool.start((await household.queued())[0])
        await until(lambda: runtime.started, "the container is started")
        assert len(pool.live()) == 1
        (container,) = runtime.started

        container.may_stop.clear()
        container.end()
        await container.is_stopping.wait()

        assert pool.live() == []
        container.may_stop.set()
    assert runtime.present == []
