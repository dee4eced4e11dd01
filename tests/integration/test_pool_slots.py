"""When a slot is free again, on a real database and a runtime whose containers end as told."""

from __future__ import annotations

import asyncio
from pathlib import Path

from orchestrator.groups import changes
from orchestrator.groups.reconciler import GroupReconciler
from tests.doubles.scripted_runtime import ScriptedRuntime, scripted_pool
from tests.support.store_harness import StoreHarness
from tests.support.until import until


async def test_a_slot_is_free_once_its_container_has_ended_though_the_engine_still_removes_it(
    store_harness: StoreHarness, tmp_path: Path
) -> None:
    runtime = ScriptedRuntime()
    async with asyncio.TaskGroup() as tasks:
        pool = scripted_pool(store_harness, runtime, tasks, tmp_path)
        await store_harness.add_group()
        await store_harness.hear("@Andy hi")
        await pool.start((await store_harness.queued())[0])
        await until(lambda: runtime.started, "the container is started")
        assert len(pool.live()) == 1
        (container,) = runtime.started

        container.may_stop.clear()
        container.end()
        await container.is_stopping.wait()

        assert pool.live() == []
        container.may_stop.set()
    assert runtime.present == []


async def test_a_container_that_began_after_its_group_was_configured_is_kept(
    store_harness: StoreHarness, tmp_path: Path
) -> None:
    runtime, laid = ScriptedRuntime(), list[str]()
    await store_harness.add_group(container_config={"egress": "open"})
    async with store_harness.database.transaction() as tx:
        await changes.configure(
            tx, "family", {"egress": None}, by="a test", now_ms=store_harness.clock.now_ms()
        )
    store_harness.clock.pass_ms(1)
    async with asyncio.TaskGroup() as tasks:
        pool = scripted_pool(store_harness, runtime, tasks, tmp_path)
        await store_harness.hear("@Andy hi")
        await pool.start((await store_harness.queued())[0])
        await until(lambda: runtime.started, "the container is started")
        upkeep = GroupReconciler(
            store_harness.database,
            ensure_folder=lambda group: laid.append(group.folder),
            clear=lambda group: None,
            live=pool.live,
            retire=pool.retire,
            bus=store_harness.bus,
        )
        keeping = tasks.create_task(upkeep.run(), name="upkeep")
        await until(lambda: laid == ["family"], "it looks")
        await store_harness.add_group("work")
        store_harness.bus.publish("group.registered", group="work")
        await until(lambda: laid == ["family", "work"], "it has looked")
        assert [one.is_worn for one in pool.live()] == [False]

        store_harness.clock.pass_ms(1)
        async with store_harness.database.transaction() as tx:
            await changes.configure(
                tx, "family", {"egress": "open"}, by="a test", now_ms=store_harness.clock.now_ms()
            )
        store_harness.bus.publish("group.configured", group="family")
        await until(lambda: [one.is_worn for one in pool.live()] == [True], "it ends after its turn")
        keeping.cancel()
        runtime.started[0].end()
