"""What an agent does while it does it, seen in its chat and afterwards in the message's timeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.signed_in import Visit, assert_accessible
from tests.doubles.messages_api import Say, SayInParts, ScriptedMessagesApi, UseTool
from tests.processes.andy import AndyProcess

KEY = "sk-ant-api03-the-real-key-of-the-owner"
SECRET = "sk-proj-a1b2c3d4e5f6a7b8c9d0"
HOSTILE = '<img src=http://evil.example/p.png onerror="window.ran = 1">\u202e[x](javascript:window.ran=2)'


@pytest.fixture(scope="module")
def api() -> Iterator[ScriptedMessagesApi]:
    with ScriptedMessagesApi() as api:
        yield api


@pytest.fixture(scope="module")
def andy(tmp_path_factory: pytest.TempPathFactory, api: ScriptedMessagesApi) -> Iterator[AndyProcess]:
    """A host whose agent is Claude: the real SDK and CLI before a scripted model."""
    environment = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": api.url}
    home = tmp_path_factory.mktemp("work") / "home"
    with AndyProcess(home, agent="auto", environment=environment) as host:
        yield host


def test_a_turn_shows_its_tools_and_its_text_as_they_come(
    page: Page, andy: AndyProcess, api: ScriptedMessagesApi, visitor: Visit, tmp_path: Path
):
    gate = tmp_path / "gate"
    waits = f"until [ -e {gate} ]; do sleep 0.05; done; echo '{HOSTILE}' api_key={SECRET}"
    api.then(
        UseTool("Bash", {"command": waits, "description": "wait"}, text="I look it up."),
        UseTool("Read", {"file_path": "/nowhere/at/all"}),
        SayInParts(f"The first half {HOSTILE}", " and the second."),
    )
    page.goto(f"{andy.address}/console/chats/main")
    expect(page.locator("html")).to_have_attribute("data-live", "yes")
    andy.say("what is new?", wait=0)

    steps = page.locator(".work .steps").first
    draft = page.locator(".work .growing")
    expect(draft).to_contain_text("I look it up.")
    first = steps.locator("li").filter(has_text="Bash")
    expect(first).to_contain_text("under way")
    gate.touch()
    expect(first).to_contain_text("done")
    expect(steps.locator("li").filter(has_text="/nowhere/at/all")).to_contain_text("failed")

    expect(draft).to_contain_text("The first half")
    assert "and the second" not in draft.inner_text()
    work = page.locator(".work").inner_text()
    assert SECRET not in work
    assert "<img src=http://evil.example" in work, "it is shown as it was written"
    expect(page.locator("main img, main script")).to_have_count(0)
    assert page.evaluate("window.ran") is None
    assert_accessible(page)

    (turn,) = andy.rows("SELECT id FROM turns")
    with andy.http() as http:
        running = http.get(f"/api/turns/{turn['id']}").json()
    assert running["state"] == "running"
    assert running["draft"].startswith("The first half")
    assert [(one["tool"], one["state"]) for one in running["tools"]] == [("Bash", "ok"), ("Read", "failed")]

    api.go_on()
    expect(page.locator("article.own").filter(has_text="and the second.")).to_be_visible()
    expect(page.locator(".work .card")).to_have_count(0)
    with andy.http() as http:
        over = http.get(f"/api/turns/{turn['id']}").json()
    assert (over["state"], over["draft"], len(over["tools"])) == ("answered", "", 2)
    assert SECRET not in str(over)

    page.locator("article").filter(has_text="what is new?").get_by_role("link").first.click()
    tools = page.locator("li.way-tool")
    expect(tools).to_have_count(2)
    expect(tools.first).to_contain_text("Bash until [ -e")
    expect(tools.last).to_contain_text("Read /nowhere/at/all (failed after")
    assert_accessible(page)
    shown = andy.cli("turns", "--id", str(turn["id"])).stdout
    assert "Read /nowhere/at/all" in shown
    assert "failed after" in shown


def test_what_a_subagent_does_is_told_apart(page: Page, andy: AndyProcess, api: ScriptedMessagesApi):
    task = {"description": "count", "prompt": "Count them.", "subagent_type": "general-purpose"}
    api.then(
        UseTool("Task", task),
        UseTool("Bash", {"command": "echo seven bees", "description": "x"}),
        Say("It is 7."),
        SayInParts("Seven", " bees."),
    )
    page.goto(f"{andy.address}/console/chats/main")
    expect(page.locator("html")).to_have_attribute("data-live", "yes")
    andy.say("count the bees", wait=0)
    api.go_on()
    expect(page.locator("article.own").filter(has_text="Seven bees.")).to_be_visible()
    page.locator("article").filter(has_text="count the bees").get_by_role("link").first.click()
    expect(page.locator("li.way-tool").filter(has_text="subagent: Bash echo seven bees")).to_be_visible()
    expect(page.locator("li.way-tool").filter(has_text="subagent:")).to_have_count(1)
