"""The log is read live in the browser, and messages are searched there."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.signed_in import Visit, assert_accessible
from tests.processes.andy import AndyProcess


def test_a_groups_log_grows_while_its_agent_works(visitor: Visit, andy: AndyProcess) -> None:
    page = visitor.page
    andy.say("help")
    page.goto(f"{andy.address}/console/log?group=main")
    expect(page.locator(".log ol")).to_contain_text("turn")
    assert_accessible(page)
    before = page.locator(".log ol > li").count()
    andy.say("what is on today?")
    expect(page.locator(".log ol > li").nth(before)).to_be_visible()

    page.get_by_label("With the words").fill("nothing has these words")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("No line fits.")).to_be_visible()


def test_a_run_that_is_not_there_is_said_so(visitor: Visit, andy: AndyProcess) -> None:
    visitor.page.goto(f"{andy.address}/console/log?group=main&run=nobody")

    expect(visitor.page.get_by_text("nobody")).to_be_visible()


def test_messages_are_found_and_lead_to_their_conversation(visitor: Visit, andy: AndyProcess) -> None:
    page = visitor.page
    andy.say("add a parsnip to the shopping list")
    page.goto(f"{andy.address}/console/log/search")
    page.get_by_label("Words").fill('parsnip" OR *')
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_text("No message has these words.")).to_be_visible()
    page.get_by_label("Words").fill("parsn")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("row", name="you")).to_be_visible()
    assert_accessible(page)

    page.get_by_role("row", name="you").get_by_role("link").click()
    expect(page.get_by_text("add a parsnip to the shopping list").first).to_be_visible()
