"""A group's board is seen in the browser, and its tasks, questions and notifications are dealt with there."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Page, expect

from tests.browser.signed_in import Visit, assert_accessible
from tests.processes.andy import AndyProcess


def use(andy: AndyProcess, tool: str, **arguments: Any) -> dict[str, Any]:
    with andy.http() as http:
        answered = http.post(f"/dashboards/main/tools/{tool}", json=arguments)
    assert answered.status_code == 200, answered.text
    return dict(answered.json()["data"])


def test_a_task_is_added_blocked_completed_and_reopened(visitor: Visit, andy: AndyProcess) -> None:
    visitor.allowed.append("422")
    page = visitor.page
    page.goto(f"{andy.address}/console/board")
    page.get_by_label("What", exact=True).fill("Book the camping site")
    page.get_by_label("Deadline").fill("the day of never")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Deadline").fill("2030-02-10")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_text("The task is on the board.")).to_be_visible()

    tasks = page.locator("#part-tasks")
    expect(tasks.get_by_text("2030-02-10")).to_be_visible()
    tasks.locator("summary", has_text="Change").click()
    tasks.get_by_label("What it waits for").fill("the ferry times")
    assert_accessible(page)
    tasks.get_by_role("button", name="Block", exact=True).click()
    expect(tasks.get_by_text("the ferry times")).to_be_visible()

    tasks.get_by_role("button", name="Complete").click()
    expect(tasks.get_by_role("heading", name="Completed")).to_be_visible()
    tasks.get_by_role("button", name="To the history").click()
    history = page.locator("#part-history")
    expect(history.get_by_text("Book the camping site")).to_be_visible()
    assert andy.listed("dashboard", "history")[0]["status"] == "completed"

    history.get_by_role("button", name="Reopen").click()
    expect(page.locator("#part-tasks").get_by_text("Book the camping site")).to_be_visible()
    assert [one["status"] for one in andy.listed("dashboard", "tasks")] == ["active"]


def test_a_question_comes_by_itself_and_is_answered_in_place(page: Page, andy: AndyProcess) -> None:
    page.goto(f"{andy.address}/console/board?group=main")
    asked = use(andy, "create_question", question="Which hall shall we take?")
    questions = page.locator("#part-questions")
    expect(questions.get_by_text("Which hall shall we take?")).to_be_visible()

    questions.locator("summary", has_text="Answer").click()
    questions.get_by_label("Your answer").fill("The big one")
    assert_accessible(page)
    use(andy, "create_question", question="Who brings the cake?")
    expect(questions.get_by_text("Who brings the cake?")).to_be_visible()
    expect(questions.get_by_label("Your answer").first).to_have_value("The big one")
    expect(questions.get_by_label("Your answer").first).to_be_visible()  # what was opened stays open
    questions.get_by_role("button", name="Send the answer").click()
    expect(questions.get_by_text("Which hall shall we take?")).to_be_hidden()
    kept = andy.rows("SELECT answer FROM questions WHERE id = ?", asked["id"])
    assert [tuple(row) for row in kept] == [("The big one",)]


def test_a_notification_is_cancelled_and_its_history_tells_so(page: Page, andy: AndyProcess) -> None:
    made = use(andy, "schedule_notification", message="Pack the tent", scheduled_at="in 3 hours")
    use(andy, "update_notification", notification_id=made["id"], scheduled_at="in 5 hours")
    page.goto(f"{andy.address}/console/board?group=main")
    row = page.locator("#part-notifications tr", has_text="Pack the tent")
    row.get_by_role("button", name="Cancel it").click()
    expect(row.get_by_text("cancelled")).to_be_visible()

    row.get_by_role("link", name="What became of it").click()
    page.wait_for_url(re.compile("/notifications/"))
    for word in ("made", "moved", "cancelled"):
        expect(page.locator(".badge", has_text=word)).to_be_visible()
    assert_accessible(page)
