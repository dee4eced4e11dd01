"""A group is registered, set up and unregistered in the browser."""

from __future__ import annotations

import json

from playwright.sync_api import expect

from tests.browser.signed_in import Visit, assert_accessible, assert_nothing_sticks_out
from tests.processes.andy import AndyProcess


def settings_of(andy: AndyProcess, folder: str) -> object:
    return json.loads(andy.cli("groups", "config", folder, "--json").stdout)


def test_a_group_is_registered_set_up_and_unregistered(visitor: Visit, andy: AndyProcess) -> None:
    visitor.allowed.append("422")
    page = visitor.page
    page.goto(f"{andy.address}/console/groups")
    page.get_by_text("Register a group").click()
    page.get_by_label("Name", exact=True).fill("The garden")
    assert_accessible(page)
    page.get_by_role("button", name="Register").click()
    expect(page.get_by_text("The garden is registered")).to_be_visible()
    assert "the-garden" in {one["folder"] for one in andy.listed("groups", "list")}

    page.get_by_label("Another word that calls Andy").fill("@garden")
    page.get_by_label("Only what is listed").check()
    page.get_by_text("More settings").click()
    page.get_by_label("Memory, in MB").fill("12")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("look at the marked fields (2)")
    expect(page.locator(".field.wrong").get_by_text("Write a whole number from 256")).to_be_visible()
    expect(page.locator(".field.wrong").get_by_text("Each line is a host and its port")).to_be_visible()
    assert_accessible(page)
    page.get_by_label("Memory, in MB").fill("512")
    page.get_by_label("Listed hosts").fill("example.org:443")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved.", exact=False)).to_be_visible()
    config = {"memory_mb": 512, "egress": {"allowlist": ["example.org:443"]}}
    assert settings_of(andy, "the-garden") == config
    assert_accessible(page)

    page.locator("summary", has_text="Unregister").click()
    page.get_by_role("button", name="Unregister").click()
    expect(page.get_by_text("'the-garden' is no longer registered")).to_be_visible()


def test_a_trigger_is_changed_and_put_back_by_keyboard_where_it_is_said(
    visitor: Visit, andy: AndyProcess
) -> None:
    page = visitor.page
    andy.cli("groups", "register", "kitchen")
    page.goto(f"{andy.address}/console/groups/kitchen")
    page.get_by_label("Another word that calls Andy").fill("@cook")
    page.keyboard.press("Enter")
    outcome = page.locator("#outcome")
    expect(outcome).to_contain_text("@cook calls Andy here now, besides @Andy.")
    expect(outcome).to_be_focused()
    assert_accessible(page)
    page.keyboard.press("Tab")
    expect(outcome.get_by_role("button", name="Undo")).to_be_focused()
    page.keyboard.press("Enter")
    expect(outcome).to_contain_text("It is as before.")
    expect(page.get_by_label("Another word that calls Andy")).to_have_value("")


def test_a_change_of_the_memory_file_is_undone_and_so_is_its_undoing(
    visitor: Visit, andy: AndyProcess
) -> None:
    page = visitor.page
    memory = andy.home / "groups" / "main" / "CLAUDE.md"
    memory.write_text("Roses are red.\nTea at five.\n")
    page.goto(f"{andy.address}/console/mind?group=main")
    page.locator("summary", has_text="Change it").click()
    page.get_by_label("Memory file").fill("Roses are red.\nTea at six.\n")
    page.get_by_role("button", name="Show what will change").click()
    expect(page.locator(".diff del")).to_have_text("− Tea at five.")
    expect(page.locator(".diff ins")).to_have_text("+ Tea at six.")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("The memory is saved.")).to_be_visible()
    assert memory.read_text() == "Roses are red.\nTea at six.\n"
    page.locator("summary", has_text="Change it").click()
    page.get_by_role("link", name="Earlier changes").click()
    row = page.get_by_role("row").filter(has_text="+1 −1")
    expect(row).to_contain_text("Chrome")

    row.get_by_role("link", name="Show or undo").click()
    assert_accessible(page)
    page.get_by_role("button", name="Undo it").click()
    expect(page.get_by_text("The memory is saved.")).to_be_visible()
    assert memory.read_text() == "Roses are red.\nTea at five.\n"
    page.goto(f"{andy.address}/console/groups/main#changes")
    undoing = page.get_by_role("row").filter(has_text="(undoes")
    undoing.get_by_role("link", name="Show or undo").click()
    memory.write_text("written by the agent")
    visitor.allowed.append("409")
    page.get_by_role("button", name="Undo it").click()
    expect(page.get_by_text("written by the agent")).to_be_visible()
    assert memory.read_text() == "written by the agent", "what came between is not overwritten"


def test_a_settings_form_that_was_changed_meanwhile_shows_both_states(
    visitor: Visit, andy: AndyProcess
) -> None:
    visitor.allowed.append("409")
    page = visitor.page
    page.goto(f"{andy.address}/console/groups/main")
    page.get_by_text("As text").click()
    page.get_by_label("Settings", exact=True).fill('{"cpus": 2}')
    page.get_by_role("button", name="Show what will change").click()
    assert andy.cli("groups", "config", "main", "--set", '{"cpus": 1}').returncode == 0
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="It has changed since")).to_be_visible()
    assert settings_of(andy, "main") == {"cpus": 1}


def test_a_memory_that_its_agent_changed_meanwhile_is_not_overwritten(
    visitor: Visit, andy: AndyProcess
) -> None:
    visitor.allowed.append("409")
    page = visitor.page
    page.goto(f"{andy.address}/console/mind?group=main")
    (andy.home / "groups" / "main" / "CLAUDE.md").write_text("written by the agent")
    page.locator("summary", has_text="Change it").click()
    page.get_by_label("Memory file").fill("written by the owner")
    page.get_by_role("button", name="Show what will change").click()

    expect(page.get_by_text("written by the agent")).to_be_visible()
    assert (andy.home / "groups" / "main" / "CLAUDE.md").read_text() == "written by the agent"


def test_a_chat_that_was_seen_is_added_to_a_group_told_its_news_and_taken_off(
    visitor: Visit, andy: AndyProcess
) -> None:
    page = visitor.page
    for folder in ("shed", "house"):
        andy.cli("groups", "register", folder)
    andy.cli("groups", "remove", "shed")
    page.goto(f"{andy.address}/console/groups")
    row = page.get_by_role("listitem").filter(has_text="shed").filter(has_text="Add to a group")
    row.locator("summary").click()
    row.get_by_role("combobox").select_option("house")
    row.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_text("The chats are saved.")).to_be_visible()
    assert chats_of(andy, "house") == ["local:house", "local:shed"]
    assert_accessible(page)

    page.get_by_role("button", name="Notify here").click()
    expect(page.get_by_role("row", name="local:shed").locator(".badge")).to_have_text("here")
    assert chats_of(andy, "house") == ["local:shed", "local:house"]

    # The conversation names the chat of each line, and what is written goes where one says.
    page.goto(f"{andy.address}/console/chats/house")
    page.get_by_label("In which chat").select_option("local:shed")
    page.get_by_label("Write a message").fill("@Andy add nails to the list")
    page.get_by_role("button", name="Send").click()
    line = page.locator("article.line").filter(has_text="add nails")
    expect(line).to_contain_text("shed")
    expect(page.locator("article.line.own")).to_contain_text("nails")
    assert_accessible(page)

    page.goto(f"{andy.address}/console/groups/house")
    row = page.get_by_role("row", name="local:shed")
    row.locator("summary").click()
    row.get_by_role("button", name="Remove").click()
    expect(page.get_by_text("is no chat of 'house' any more")).to_be_visible()
    assert chats_of(andy, "house") == ["local:house"]


def chats_of(andy: AndyProcess, folder: str) -> list[str]:
    return next(one["chats"] for one in andy.listed("groups", "list") if one["folder"] == folder)


def test_on_a_phone_names_stay_whole_and_the_navigation_shows_where_one_is(
    visitor: Visit, andy: AndyProcess
) -> None:
    page = visitor.page
    page.set_viewport_size({"width": 390, "height": 900})
    page.goto(f"{andy.address}/console/groups")
    name = page.locator("a.chat strong").first
    expect(name).to_be_visible()
    assert name.evaluate("one => one.getClientRects().length") == 1, "a word is broken in its middle"
    badge = page.locator("a.chat .badge").first
    heights = badge.evaluate("one => [one.clientHeight, parseFloat(getComputedStyle(one).lineHeight)]")
    assert heights[0] < 2 * heights[1], "a badge is broken in its middle"
    page.goto(f"{andy.address}/console/board")
    expect(page.locator(".side nav a[aria-current]")).to_be_in_viewport(ratio=0.9)
    page.goto(f"{andy.address}/console/groups/main")
    expect(page.locator(".side button.here")).to_be_in_viewport(ratio=0.9)
    expect(page.locator(".tabs a[aria-current]")).to_be_in_viewport(ratio=0.9)


def test_a_name_with_a_direction_mark_makes_no_page_wider(visitor: Visit, andy: AndyProcess) -> None:
    """WhatsApp puts such marks into names by itself; the list of chats scrolls, the page does not."""
    with andy.http() as http:
        for number in range(40):
            named = {"folder": f"far{number:02}", "name": f"Quite a long name \u200e{number}"}
            http.post("/groups", json=named).raise_for_status()
    page = visitor.page
    page.set_viewport_size({"width": 390, "height": 900})
    page.goto(f"{andy.address}/console/chats/main")
    expect(page.locator(".turning").last).to_be_attached()
    assert_nothing_sticks_out(page)
    page.set_viewport_size({"width": 1280, "height": 900})
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight"), "the page scrolls, too"
