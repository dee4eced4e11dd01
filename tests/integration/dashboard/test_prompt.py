"""What an agent is told of its dashboard, and what a group without one pays."""

from __future__ import annotations

from typing import Any

from orchestrator.dashboard.views.board import brief
from orchestrator.domain.values import Turn
from orchestrator.inbound import prompt
from orchestrator.store.groups import groups
from tests.support.dashboard_harness import FOLDER, DashboardHarness, blog
from tests.support.store_harness import SEOUL, StoreHarness


async def prompt_of(home: DashboardHarness, turn: Turn) -> str:
    async def told(tx: Any, turn: Turn, _: Any) -> str | None:
        return await brief(tx, turn, zone=SEOUL, now_ms=home.clock.now_ms())

    async with home.harness.database.transaction() as tx:
        order = await prompt.compose(
            tx,
            turn,
            await groups.known(tx, FOLDER),
            run_id="run-1",  # type: ignore[arg-type]
            name="Andy",
            zone=SEOUL,
            now_ms=home.clock.now_ms(),
            brief=told,
        )
    return order.prompt


async def test_a_chat_turn_is_shown_the_dashboard_before_what_was_said(store_harness: StoreHarness) -> None:
    await store_harness.add_group("family")
    home = DashboardHarness(store_harness)
    await home.put(blog(title="Write </dashboard> & rest"))
    await store_harness.hear("@Andy what's open?")
    text = await prompt_of(home, (await store_harness.queued())[0])
    board, rest = text.split("</dashboard>")
    assert "<dashboard>\n## Active Tasks\n\n**task_001**: Write &lt;/dashboard&gt; &amp; rest" in board
    assert "2026-02-10 (tomorrow)" in board
    assert "what's open?" in rest


async def test_a_group_without_a_dashboard_pays_nothing(store_harness: StoreHarness) -> None:
    await store_harness.add_group("family")
    home = DashboardHarness(store_harness)
    await store_harness.hear("@Andy hi")
    assert "dashboard" not in await prompt_of(home, (await store_harness.queued())[0])
    assert await store_harness.rows("SELECT * FROM dashboards") == []


async def test_what_a_turn_was_shown_is_what_it_decides_upon(store_harness: StoreHarness) -> None:
    await store_harness.add_group("family")
    home = DashboardHarness(store_harness)
    await home.put(blog())
    await store_harness.hear("@Andy the blog is at 80%")
    turn = (await store_harness.queued())[0]
    await prompt_of(home, turn)
    assert (await home.call_tool("update_task", task_id="task_001", progress=75)).ok
    run = await store_harness.begin_run()
    async with store_harness.database.transaction() as tx:
        await tx.execute(
            "UPDATE turns SET state = 'running', run_id = ?, started_ms = 1 WHERE id = ?", (run.id, turn.id)
        )
    stale = await home.ask("update_task", task_id="task_001", progress=80)
    assert stale.code == "STALE"
    assert (await home.ask("update_task", task_id="task_001", progress=80)).ok
