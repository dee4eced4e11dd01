"""What keeps a dashboard up, as the host tells a model its part of it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from agent_runner.wire.order import TurnOrder
from orchestrator.dashboard import feature
from orchestrator.dashboard.feature import DashboardFeature
from orchestrator.domain.values import RunId
from orchestrator.groups import memory_templates
from orchestrator.store.board import worker_cycles
from orchestrator.store.groups import groups
from orchestrator.store.runs import turns
from tests.support.dashboard_harness import FOLDER, DashboardHarness, blog
from tests.support.host_contexts import host_context
from tests.support.store_harness import StoreHarness


async def told(home: DashboardHarness, root: Path) -> TurnOrder:
    """What a model is told that is to look at the dashboard."""
    harness = home.harness
    made = DashboardFeature(host_context(harness, root), can_deliver=lambda _: True, has_model=lambda _: True)
    async with harness.database.transaction() as tx:
        group = await groups.known(tx, FOLDER)
        turn_id = await worker_cycles.add_turn(tx, group, now_ms=harness.clock.now_ms())
        turn = await turns.get(tx, turn_id)
        assert turn is not None
        return await made.compose(tx, turn, group, RunId("run-1"))


@pytest.fixture
async def home(store_harness: StoreHarness) -> DashboardHarness:
    await store_harness.add_group("family")
    made = DashboardHarness(store_harness)
    await made.put(blog())
    return made


async def test_a_groups_own_file_tells_the_model_its_part(home: DashboardHarness, tmp_path: Path) -> None:
    (tmp_path / "groups" / "family").mkdir(parents=True)
    (tmp_path / "groups" / "family" / "WORKER.md").write_text("Look at the bees.")
    assert "Look at the bees." in ((await told(home, tmp_path)).instructions or "")


async def test_a_disk_that_does_not_give_it_keeps_the_store_from_nobody(
    home: DashboardHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature, "OWN_INSTRUCTIONS_SECONDS", 0.05)
    released = threading.Event()
    monkeypatch.setattr(memory_templates, "own_text", lambda *_: released.wait())
    try:
        order = await told(home, tmp_path)
    finally:
        released.set()
    assert order.instructions, "it is told what all are"
