"""Who may do what, upon which state, and how often it counts."""

from __future__ import annotations

from orchestrator.domain.values import TurnKind
from tests.support.dashboard_harness import FOLDER, DashboardHarness, a_question, blog


async def test_at_30_a_decision_upon_an_old_state_overwrites_nothing(home: DashboardHarness) -> None:
    await home.put(blog())
    worker = await home.begin(TurnKind.WORKER)
    await home.pause(worker)
    home.clock.pass_ms(5_000)
    assert (await home.chat("update_task", task_id="task_001", progress=90)).ok
    home.clock.pass_ms(5_000)
    await home.resume(worker)
    stale = await home.ask("update_task", task_id="task_001", progress=70)
    assert (stale.code, stale.data["row"]["progress"]) == ("STALE", 90)
    assert (await home.task("task_001")).pct == 90
    decided_again = await home.ask("update_task", task_id="task_001", priority="high")
    assert decided_again.ok, "it was shown the row as it is"
    assert (await home.task("task_001")).pct == 90
    assert (await home.ask("update_task", task_id="task_001", context="mine")).ok, (
        "its own change is no surprise"
    )


async def test_at_30_a_version_that_is_named_is_held_to(home: DashboardHarness) -> None:
    await home.put(blog())
    seen = (await home.task("task_001")).version
    assert (await home.chat("update_task", task_id="task_001", progress=90)).ok
    stale = await home.service.call_tool(
        FOLDER, "update_task", {"task_id": "task_001", "progress": 10}, expect_version=seen
    )
    assert stale.code == "STALE"
    assert (await home.task("task_001")).pct == 90


async def test_at_37_a_worker_may_only_use_its_own_tools(home: DashboardHarness) -> None:
    await home.put(blog(), a_question())
    for tool, arguments in (
        ("create_task", {"title": "more"}),
        ("answer_question", {"question_id": "q_001", "answer": "yes"}),
        ("set_recurring", {"task_id": "task_001", "days_of_week": [0]}),
    ):
        assert (await home.worker(tool, **arguments)).code == "NOT_ALLOWED"
    assert (await home.worker("drop_everything")).code == "UNKNOWN_TOOL"
    async with home.turn(TurnKind.WORKER):
        said = await home.ask_raw({"type": "message", "text": "psst"})
        reminded = await home.ask_raw({"type": "set_reminder", "text": "psst", "at": "1m"})
    assert {said.code, reminded.code} == {"not_allowed"}
    assert await home.harness.outgoing() == []
    assert (await home.question("q_001")).answer is None
    assert (await home.worker("save_insight", content="Blogs take a week", category="work")).ok


async def test_nobody_acts_without_a_turn(home: DashboardHarness) -> None:
    assert (await home.ask("create_task", title="x")).code == "NO_TURN"


async def test_who_it_was_is_told_by_the_host_alone(home: DashboardHarness) -> None:
    forged = {"message": "x", "scheduled_at": "in 1 hour", "created_by": "user"}
    assert (await home.chat("schedule_notification", **forged)).code == "VALIDATION"
    by_worker = await home.worker("schedule_notification", message="w", scheduled_at="in 1 hour")
    by_person = await home.call_tool("schedule_notification", message="p", scheduled_at="in 1 hour")
    async with home.turn(TurnKind.TASK):
        by_task = await home.ask("schedule_notification", message="t", scheduled_at="in 1 hour")
    makers = [
        (await home.notification(made.data["id"])).created_by.value
        for made in (by_worker, by_person, by_task)
    ]
    assert makers == ["worker", "user", "main_agent"]


async def test_a_request_that_comes_again_makes_one_task_and_is_on_record(home: DashboardHarness) -> None:
    async with home.turn(TurnKind.CHAT):
        first = await home.ask("create_task", request_id="same", title="Write the blog")
        again = await home.ask("create_task", request_id="same", title="Write the blog")
    assert first == again
    assert len(await home.harness.rows("SELECT id FROM dashboard_tasks")) == 1
    kept = await home.harness.rows("SELECT type, code FROM commands")
    assert kept == [{"type": "dashboard.create_task", "code": "ok"}]
    recorded = await home.harness.rows("SELECT detail FROM audit WHERE kind = 'command'")
    assert "dashboard.create_task" in recorded[0]["detail"]


async def test_a_worker_sees_the_board_as_its_tools_have_left_it(home: DashboardHarness) -> None:
    await home.put(blog(), blog(id="task_002", title="Read a book", deadline=None))
    async with home.turn(TurnKind.WORKER) as worker:
        await home.pause(worker)
        assert (await home.chat("update_task", task_id="task_002", progress=90)).ok
        await home.resume(worker)
        asked = await home.ask("create_question", question="Which hall?", related_task_id="task_001")
        assert f"**{asked.data['id']}**: Which hall?" in asked.text
        assert "- Progress: 90%" in asked.text, "also what others changed beside it"
        done = await home.ask("update_task", task_id="task_002", status="completed")
        assert done.ok, "it has seen the 90 %"
        assert "- **task_002** (completed): Read a book" in done.text
        listed = await home.ask("list_notifications")
        assert "Dashboard State" not in listed.text, "what changed nothing"
    by_chat = await home.chat("update_task", task_id="task_001", progress=5)
    assert "Dashboard State" not in by_chat.text, "an agent in a chat has a prompt of its own"


async def test_a_worker_sees_the_board_after_a_refusal_too(home: DashboardHarness) -> None:
    await home.put(blog())
    async with home.turn(TurnKind.WORKER) as worker:
        await home.pause(worker)
        assert (await home.chat("update_task", task_id="task_001", progress=90)).ok
        await home.resume(worker)
        stale = await home.ask("update_task", task_id="task_001", priority="high")
        assert (stale.code, "- Progress: 90%" in stale.text) == ("STALE", True)
        assert (await home.ask("update_task", task_id="task_001", priority="high")).ok
        unknown = await home.ask("update_task", task_id="task_none", progress=5)
    assert (unknown.code, "- Priority: high" in unknown.text) == ("NOT_FOUND", True)


async def test_a_worker_is_not_sent_thousands_of_rows_with_every_tool(home: DashboardHarness) -> None:
    await home.put(*[blog(id=f"task_{number:03}", title=f"Blog {number}") for number in range(300)])
    async with home.turn(TurnKind.WORKER) as worker:
        await home.pause(worker)
        assert (await home.chat("update_task", task_id="task_299", progress=90)).ok
        await home.resume(worker)
        shown = await home.ask("update_task", task_id="task_000", context="short")
        assert len(shown.text) < 17_000
        assert "(Left out, for length" in shown.text
        assert (await home.ask("update_task", task_id="task_299", progress=10)).code == "STALE"
