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
    page.get_by_text("Add a task", exact=True).click()
    new = page.locator("#new-task")
    new.get_by_label("What", exact=True).fill("Book the camping site")
    new.get_by_label("Deadline").fill("the day of never")
    new.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("no deadline that Andy can read")
    new.get_by_label("Deadline").fill("2030-02-10")
    new.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_text("The task is on the board.")).to_be_visible()

    tasks = page.locator("#part-tasks")
    expect(tasks.get_by_text("Sun 10 Feb 2030")).to_be_visible()
    before = tasks.get_by_text("Book the camping site").bounding_box()
    tasks.locator("summary", has_text="Change").click()
    after = tasks.get_by_text("Book the camping site").bounding_box()
    assert before == after, "what opens stands below its row"
    tasks.get_by_label("What", exact=True).fill("Book the camping site by the lake")
    tasks.get_by_label("Priority").select_option("high")
    tasks.get_by_role("button", name="Save").click()
    expect(tasks.get_by_text("Book the camping site by the lake")).to_be_visible()
    expect(tasks.locator(".badge", has_text="important")).to_be_visible()
    tasks.locator("summary", has_text="Change").click()
    tasks.get_by_label("What it waits for").fill("the ferry times")
    assert_accessible(page)
    tasks.get_by_role("button", name="Mark as blocked", exact=True).click()
    expect(tasks.get_by_text("the ferry times")).to_be_visible()

    tasks.get_by_role("button", name="Complete").click()
    expect(tasks.get_by_role("heading", name="Completed")).to_be_visible()
    tasks.get_by_role("button", name="Move to the history").click()
    page.goto(f"{andy.address}/console/board?group=main")
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

    questions.get_by_label("Your answer").fill("The big one")
    assert_accessible(page)
    use(andy, "create_question", question="Who brings the cake?")
    expect(questions.get_by_text("Who brings the cake?")).to_be_visible()
    expect(questions.get_by_label("Your answer").first).to_have_value("The big one")
    questions.get_by_role("button", name="Send the answer").first.click()
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


def test_who_comes_second_is_told_with_both_states(visitor: Visit, andy: AndyProcess) -> None:
    visitor.allowed += ["409", "ERR_FAILED", "Failed to fetch"]
    page = visitor.page
    task = use(andy, "create_task", title="Paint the fence")
    asked = use(andy, "create_question", question="Which colour?")
    note = use(andy, "schedule_notification", message="Fetch the paint", scheduled_at="in 3 hours")
    page.add_init_script("delete window.SharedWorker")  # whose requests no test can refuse
    page.route("**/console/live?*", lambda route: route.abort())  # or the page would be up to date

    def open_board() -> None:
        page.goto(f"{andy.address}/console/board?group=main")

    def told(*words: str) -> None:
        expect(page.get_by_role("heading", name="It has changed since")).to_be_visible()
        for word in words:
            expect(page.get_by_role("row").filter(has_text=word).first).to_be_visible()

    open_board()
    use(andy, "update_task", task_id=task["id"], progress=40)
    row = page.locator("li.task", has_text="Paint the fence")
    row.get_by_role("button", name="Complete").click()
    told("0 %", "40 %")
    assert "_version" not in page.locator("main").inner_text()
    assert_accessible(page)

    open_board()
    use(andy, "answer_question", question_id=asked["id"], answer="Green")
    question = page.locator("li", has_text="Which colour?")
    question.get_by_label("Your answer").fill("Red")
    question.get_by_role("button", name="Send the answer").click()
    told("Green")

    open_board()
    use(andy, "update_notification", notification_id=note["id"], message="Fetch the green paint")
    page.locator("tr", has_text="Fetch the paint").get_by_role("button", name="Cancel it").click()
    told("Fetch the green paint")

    assert [one["status"] for one in andy.listed("dashboard", "tasks") if one["id"] == task["id"]] == [
        "active"
    ]
    assert andy.rows("SELECT answer FROM questions WHERE id = ?", asked["id"])[0]["answer"] == "Green"
    assert andy.rows("SELECT status FROM notifications WHERE id = ?", note["id"])[0]["status"] == "pending"
    page.unroute("**/console/live?*")
