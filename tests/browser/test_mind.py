"""What a group remembers is seen in the browser, and forgotten, kept and cancelled there."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.signed_in import assert_accessible
from tests.processes.andy import AndyProcess


def test_a_notice_comes_by_itself_and_is_cancelled(page: Page, andy: AndyProcess) -> None:
    page.goto(f"{andy.address}/console/mind?group=main")
    andy.say("remember for next time: the code of the shed is 42")
    noted = page.locator("#part-notices")
    expect(noted.get_by_text("the code of the shed is 42")).to_be_visible()
    assert_accessible(page)
    noted.get_by_role("button", name="Cancel it").click()
    expect(page.get_by_text("The notice is cancelled.")).to_be_visible()
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
    page.get_by_role("button", name="Let it go").click()
    expect(page.get_by_text("kept no longer than others")).to_be_visible()
