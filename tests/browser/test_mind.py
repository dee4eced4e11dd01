"""What a group remembers is seen in the browser, and forgotten, kept and cancelled there."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from orchestrator.context.context_manager import ContextManager
from orchestrator.context.tokens import EstimatingCounter
from tests.browser.signed_in import Visit, assert_accessible
from tests.processes.andy import AndyProcess, until


def test_a_notice_comes_by_itself_and_is_cancelled(page: Page, andy: AndyProcess) -> None:
    page.goto(f"{andy.address}/console/mind?group=main")
    andy.say("remember for next time: the code of the shed is 42")
    noted = page.locator("#part-notices")
    expect(noted.get_by_text("the code of the shed is 42")).to_be_visible()
    assert_accessible(page)
    noted.get_by_role("button", name="Forget").click()
    expect(page.get_by_text("The notice is forgotten.")).to_be_visible()
    assert andy.listed("notices", "list", "main") == []


def test_a_conversation_is_forgotten_and_its_snapshot_is_kept(page: Page, andy: AndyProcess) -> None:
    andy.say("hello")
    page.goto(f"{andy.address}/console/mind?group=main")
    page.locator("summary", has_text="Forget the conversation").click()
    assert_accessible(page)
    page.get_by_role("button", name="Forget it now").click()
    expect(page.get_by_text("What was kept is forgotten")).to_be_visible()
    assert andy.rows("SELECT * FROM sessions WHERE group_folder = 'main'") == []

    page.get_by_role("button", name="Keep for good").first.click()
    expect(page.get_by_text("The snapshot is kept for good.")).to_be_visible()
    assert [one["pinned"] for one in andy.listed("context", "snapshots", "main")].count(True) == 1
    page.get_by_role("button", name="Stop keeping for good").click()
    expect(page.get_by_text("no longer kept for good")).to_be_visible()


def manager_of(andy: AndyProcess) -> ContextManager:
    return ContextManager.of(andy.home / "data" / "context", "main", counter=EstimatingCounter())


def test_the_summary_is_corrected_and_what_was_there_is_restored(visitor: Visit, andy: AndyProcess) -> None:
    visitor.allowed += ["409", "422"]
    page = visitor.page
    andy.say("hello")
    manager = manager_of(andy)
    until(lambda: manager.load(now_ms=1).context.revision, what="the words are kept")
    manager.put_summary("Jane likes tea.", instead_of="", now_ms=1)

    page.goto(f"{andy.address}/console/mind?group=main")
    page.locator("summary", has_text="Correct").first.click()
    page.get_by_label("What was said before").fill("x" * 701)
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("too long")
    page.get_by_label("What was said before").fill("Jane likes coffee.")
    assert_accessible(page)
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("It is corrected")).to_be_visible()
    assert manager.load(now_ms=2).context.conversation.running_summary == "Jane likes coffee."
    assert andy.rows("SELECT * FROM sessions WHERE group_folder = 'main'") == [], "a new session is told"

    manager.put_summary("Jane likes cocoa.", instead_of="Jane likes coffee.", now_ms=3)
    page.locator("summary", has_text="Correct").first.click()
    page.get_by_label("What was said before").fill("Jane likes water.")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="It has changed since")).to_be_visible()
    expect(page.get_by_text("Jane likes cocoa.")).to_be_visible()

    page.goto(f"{andy.address}/console/mind?group=main")
    page.locator("a[href*='/snapshots/']").first.click()
    expect(page.get_by_text("Jane likes tea.")).to_be_visible()
    assert_accessible(page)
    page.locator("summary", has_text="Restore it").click()
    page.get_by_role("button", name="Restore it").click()
    expect(page.get_by_text("The snapshot is restored")).to_be_visible()
    assert manager.load(now_ms=4).context.conversation.running_summary == "Jane likes tea."


def test_a_plan_is_corrected_and_forgotten_and_so_is_a_decision(visitor: Visit, andy: AndyProcess) -> None:
    visitor.allowed += ["409", "422"]
    page, manager = visitor.page, manager_of(andy)
    manager.create_plan("Trip", objective="Sea", tasks=["Book", "Pack"], now_ms=1)
    manager.record_decision("We go by train.", now_ms=1)
    page.goto(f"{andy.address}/console/mind?group=main")
    page.get_by_role("link", name="Correct Trip").click()
    page.get_by_label("What task 1 is").fill(" ")
    page.get_by_label("What it is called").fill("Trip to the lake")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("The title is empty")
    expect(page.get_by_label("What it is called")).to_have_value("Trip to the lake")
    page.get_by_label("What task 1 is").fill("Book the hotel")
    page.get_by_label("How task 1 is").select_option("completed")
    page.get_by_label("One task more").fill("Swim")
    assert_accessible(page)
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="Trip to the lake")).to_be_visible()
    (plan,) = manager.load(now_ms=2).workflow.plans
    assert [(one.title, one.status.value) for one in plan.tasks] == [
        *(("Book the hotel", "completed"), ("Pack", "pending"), ("Swim", "pending")),
    ]

    page.get_by_role("link", name="Correct Trip to the lake").click()
    manager.update_plan_task("task_002", status="completed", now_ms=3)
    page.get_by_label("What task 2 is").fill("Unpack")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="It has changed since")).to_be_visible()

    page.goto(f"{andy.address}/console/mind?group=main")
    page.get_by_role("button", name="Forget it", exact=True).click()
    expect(page.get_by_text("The decision is forgotten")).to_be_visible()
    page.get_by_role("link", name="Correct Trip to the lake").click()
    page.get_by_role("button", name="Forget the plan").click()
    expect(page.get_by_text("The plan is forgotten")).to_be_visible()
    kept = manager.load(now_ms=4)
    assert (kept.workflow.plans, kept.context.memory.last_decisions) == ((), ())
    assert len(andy.rows("SELECT 1 FROM audit WHERE kind = 'context.changed'")) >= 4
