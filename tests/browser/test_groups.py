"""A group is registered, set up and unregistered in the browser."""

from __future__ import annotations

import json

from playwright.sync_api import expect

from tests.browser.signed_in import Visit, assert_accessible
from tests.processes.andy import AndyProcess


def test_a_group_is_registered_set_up_and_unregistered(visitor: Visit, andy: AndyProcess) -> None:
    visitor.allowed.append("422")
    page = visitor.page
    page.goto(f"{andy.address}/console/groups")
    assert_accessible(page)
    page.get_by_label("Folder").fill("no such name!")
    page.get_by_role("button", name="Register").click()
    expect(page.get_by_role("alert")).to_contain_text("is no folder name")

    page.get_by_label("Folder").fill("garden")
    page.get_by_label("Name").fill("The garden")
    page.get_by_role("button", name="Register").click()
    expect(page.get_by_text("'garden' is registered")).to_be_visible()
    assert "garden" in {one["folder"] for one in andy.listed("groups", "list")}

    settings = page.get_by_label("Settings")
    settings.fill('{"memory_mb": 12}')
    page.get_by_role("button", name="Save Settings").click()
    expect(page.get_by_role("alert")).to_contain_text("memory_mb")
    settings.fill('{"memory_mb": 512}')
    page.get_by_role("button", name="Save Settings").click()
    expect(page.get_by_text("The settings are kept.")).to_be_visible()
    assert json.loads(andy.cli("groups", "config", "garden", "--json").stdout) == {"memory_mb": 512}

    page.get_by_label("Memory").fill("Roses are watered in the evening.")
    page.get_by_role("button", name="Save Memory").click()
    expect(page.get_by_text("The memory is kept.")).to_be_visible()
    assert "Roses" in (andy.home / "groups" / "garden" / "CLAUDE.md").read_text()
    assert_accessible(page)

    page.locator("summary", has_text="Unregister").click()
    page.get_by_role("button", name="Unregister").click()
    expect(page.get_by_text("'garden' is no longer registered")).to_be_visible()


def test_a_memory_that_its_agent_changed_meanwhile_is_not_overwritten(
    visitor: Visit, andy: AndyProcess
) -> None:
    visitor.allowed.append("409")
    page = visitor.page
    page.goto(f"{andy.address}/console/groups/main")
    (andy.home / "groups" / "main" / "CLAUDE.md").write_text("written by the agent")
    page.get_by_label("Memory").fill("written by the owner")
    page.get_by_role("button", name="Save Memory").click()

    expect(page.get_by_text("written by the agent")).to_be_visible()
    assert (andy.home / "groups" / "main" / "CLAUDE.md").read_text() == "written by the agent"
