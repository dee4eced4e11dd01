"""What is to come is seen in the browser, and made, moved and cancelled there."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.signed_in import Visit, assert_accessible
from tests.processes.andy import AndyProcess


def test_a_reminder_is_set_moved_and_cancelled(visitor: Visit, andy: AndyProcess) -> None:
    visitor.allowed.append("422")
    page = visitor.page
    page.goto(f"{andy.address}/console/coming")
    page.get_by_label("What to say").fill("Water the plants")
    page.get_by_label("When").fill("some day")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_be_visible()

    page.get_by_label("When").fill("in 2 hours")
    page.get_by_role("button", name="Save").click()
    week = page.locator("#part-week")
    expect(week.get_by_text("Water the plants")).to_be_visible()
    (before,) = andy.listed("reminders", "list")
    assert_accessible(page)

    week.locator("summary", has_text="Change").click()
    week.get_by_label("Move to").fill("in 5 hours")
    week.get_by_role("button", name="Move").click()
    expect(page.get_by_text("The reminder is moved.")).to_be_visible()
    (after,) = andy.listed("reminders", "list")
    assert after["due_ms"] > before["due_ms"]

    week.locator("summary", has_text="Change").click()
    week.get_by_role("button", name="Cancel it").click()
    expect(page.get_by_text("The reminder is cancelled.")).to_be_visible()
    assert andy.listed("reminders", "list") == []


def test_what_is_asked_in_a_chat_is_seen_to_come_without_a_reload(visitor: Visit, andy: AndyProcess) -> None:
    page = visitor.page
    page.goto(f"{andy.address}/console/coming")
    andy.say("remind me in 3 hours to stretch")

    expect(page.locator("#part-week").get_by_text("stretch")).to_be_visible()


def test_a_scheduled_task_is_paused_and_goes_on(visitor: Visit, andy: AndyProcess) -> None:
    andy.cli("tasks", "add", "main", "say hello", "--cron", "0 9 * * *")
    page = visitor.page
    page.goto(f"{andy.address}/console/coming")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("The task is paused.")).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("The task goes on.")).to_be_visible()
    assert_accessible(page)
