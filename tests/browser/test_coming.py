"""What is to come is seen in the browser, and made, moved and cancelled there."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.signed_in import Visit, assert_accessible
from tests.processes.andy import AndyProcess


def test_a_reminder_is_set_changed_and_deleted_where_it_stands(visitor: Visit, andy: AndyProcess) -> None:
    visitor.allowed.append("422")
    page = visitor.page
    page.goto(f"{andy.address}/console/coming")
    page.locator("summary", has_text="New").click()
    page.get_by_label("Text").fill("Water the plants")
    page.get_by_label("When").fill("tomorrow at 5")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_text("Which one?")).to_be_visible()
    assert_accessible(page)

    page.get_by_role("button", name="17:00").click()
    week = page.locator("#part-week")
    expect(week.get_by_text("Water the plants", exact=True)).to_be_visible()
    (before,) = andy.listed("reminders", "list")
    assert_accessible(page)

    week.get_by_role("link", name="Change: Water the plants").click()
    expect(week.get_by_label("What will be said")).to_have_value("Water the plants")
    week.get_by_label("When").fill("tomorrow at 6pm")
    assert_accessible(page)
    week.get_by_role("button", name="Save").click()
    expect(page.get_by_text("It is changed.")).to_be_visible()
    (after,) = andy.listed("reminders", "list")
    assert after["due_ms"] - before["due_ms"] == 3_600_000

    week.get_by_role("link", name="Change: Water the plants").click()
    week.locator("summary", has_text="Delete").click()
    week.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("does not come any more")).to_be_visible()
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
    expect(page.get_by_text("does not come until you resume it")).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("comes again")).to_be_visible()
    assert_accessible(page)
