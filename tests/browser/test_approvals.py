"""An agent asks before it does what a rule names; its owner decides on the page, in main or in a terminal."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.signed_in import assert_accessible
from tests.doubles.messages_api import Say, ScriptedMessagesApi, UseTool, system_text, tool_results
from tests.processes.andy import AndyProcess, until

ROOT = Path(__file__).parents[2]


class Greeting(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello from outside")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def api() -> Iterator[ScriptedMessagesApi]:
    with ScriptedMessagesApi() as api:
        yield api


@pytest.fixture(scope="module")
def andy(tmp_path_factory: pytest.TempPathFactory, api: ScriptedMessagesApi) -> Iterator[AndyProcess]:
    """A host in an internet of two names, whose agent is Claude before a scripted model."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Greeting) as outside:
        thread = threading.Thread(target=outside.serve_forever, name="outside")
        thread.start()
        environment = {
            "ANTHROPIC_API_KEY": "sk-ant-api03-key",
            "ANTHROPIC_BASE_URL": api.url,
            "INTERNET_PORT": str(outside.server_port),
        }
        home = tmp_path_factory.mktemp("approvals") / "home"
        andy = AndyProcess(home, agent="auto", environment=environment)
        andy.program = [sys.executable, str(ROOT / "tests" / "processes" / "andy_in_small_internet.py")]
        with andy:
            yield andy
        outside.shutdown()
        thread.join()


def fetch(place: str) -> UseTool:
    command = f'curl -sS -m 60 -p -x "$HTTPS_PROXY" http://{place}/ 2>&1 || true'
    return UseTool("Bash", {"command": command, "description": "look"})


def requests(andy: AndyProcess) -> list[dict[str, object]]:
    found = andy.cli("approvals", "list", "--json")
    assert found.returncode == 0, found.stderr
    listed: list[dict[str, object]] = json.loads(found.stdout)
    return listed


def test_a_place_is_reached_once_the_owner_allows_it_on_the_page(
    page: Page, andy: AndyProcess, api: ScriptedMessagesApi
):
    page.goto(f"{andy.address}/console/safety")
    expect(page.get_by_text("Nothing waits for you.")).to_be_visible()
    for command in (
        ("groups", "register", "family", "--name", "Family"),
        ("groups", "config", "family", "--set", '{"ask": ["egress"]}'),
    ):
        done = andy.cli(*command)
        assert done.returncode == 0, done.stderr
    api.then(fetch("good.example:9000"), fetch("good.example:9000"), fetch("good.example:80"), Say("Seen."))
    andy.say("@Andy look", group="family", wait=0)

    waiting = page.locator(".requests li")
    expect(waiting).to_contain_text("asks to reach good.example:9000")
    assert_accessible(page)
    waiting.get_by_role("button", name="Allow for 15 minutes").click()
    expect(page.get_by_text(re.compile("Allowed for .* for 15 minutes: good.example:9000"))).to_be_visible()

    expect(waiting).to_contain_text("good.example:80")
    waiting.get_by_role("button", name="Refuse").click()
    until(lambda: andy.rows("SELECT 1 FROM messages WHERE content = 'Seen.'"), what="the agent goes on")
    assert "Any other place is asked of the owner" in system_text(api.turns[0])
    first, again, refused = (json.dumps(tool_results(turn)) for turn in api.turns[1:4])
    assert "hello from outside" in first
    assert "hello from outside" in again, "for 15 minutes nobody is asked again"
    assert "403" in refused
    questions = andy.rows("SELECT content FROM messages WHERE chat_jid = 'local:main' AND is_bot_message = 1")
    assert len(questions) == 2, "the owner is told of each in main"
    page.reload()
    expect(page.locator(".places li").filter(has_text="good.example:80")).to_contain_text("has refused it")
    page.get_by_text("Decided lately", exact=True).click()
    decided = page.locator("#part-approvals li").filter(has_text="good.example:80")
    expect(decided.filter(has_text="refused")).to_be_visible()
    family = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="family"))
    expect(family).to_contain_text("asks before egress")
    assert_accessible(page)


def test_the_owner_decides_in_main_and_in_a_terminal_too(
    page: Page, andy: AndyProcess, api: ScriptedMessagesApi
):
    count = len(api.turns)
    api.then(fetch("good.example:8080"), fetch("good.example:8081"), Say("Seen both."))
    andy.say("@Andy look again", group="family", wait=0)

    def newest(place: str) -> int:
        found = until(lambda: [one for one in requests(andy) if one["subject"] == place], what=place)
        return int(str(found[0]["id"]))

    number = newest("good.example:8080")
    answer = andy.say(f"allow {number}", group="main")
    assert answer["reply"] == "Allowed for 15 minutes: `good.example:8080` for 'family'."
    done = andy.cli("approvals", "allow", str(newest("good.example:8081")), "--always")
    assert done.stdout.strip() == "Allowed from now on: good.example:8081 for 'family'."
    until(lambda: andy.rows("SELECT 1 FROM messages WHERE content = 'Seen both.'"), what="it goes on")
    assert all("hello from outside" in json.dumps(tool_results(turn)) for turn in api.turns[count + 1 :])
    assert andy.cli("approvals", "allow", "999").returncode == 1

    page.goto(f"{andy.address}/console/safety")
    kept = page.get_by_role("listitem").filter(has_text="good.example:8081")
    kept.get_by_role("button", name="Take back").click()
    expect(page.get_by_text(re.compile("Taken back from .*: good.example:8081"))).to_be_visible()
    assert not [one for one in requests(andy) if one["state"] in ("always", "waiting")]


def test_a_place_that_was_refused_is_allowed_where_it_stands(
    page: Page, andy: AndyProcess, api: ScriptedMessagesApi
):
    """For a while, then for the group; both count for the agent's next try, and nothing else is reached."""
    listed = json.dumps({"ask": None, "egress": {"allowlist": ["elsewhere.example:443"]}})
    done = andy.cli("groups", "config", "family", "--set", listed)
    assert done.returncode == 0, done.stderr
    place, other = "good.example:9100", "good.example:9101"

    def look() -> list[str]:
        count = len(api.turns)
        api.then(fetch(place), fetch(other), Say(f"Seen {count}."))
        andy.say("@Andy look", group="family", wait=0)
        until(lambda: andy.rows("SELECT 1 FROM messages WHERE content = ?", f"Seen {count}."), what="the end")
        return [json.dumps(tool_results(turn)) for turn in api.turns[count + 1 : count + 3]]

    assert not any("hello from outside" in one for one in look())
    page.goto(f"{andy.address}/console/safety?group=family")
    row = page.locator(".places li").filter(has_text=place)
    expect(row).to_contain_text("not on its list")
    assert_accessible(page)
    row.get_by_role("button", name="Allow for 15 minutes").click()
    expect(page.get_by_text(re.compile(f"Allowed for .* for 15 minutes: {place}"))).to_be_visible()
    reached, refused = look()
    assert "hello from outside" in reached
    assert "hello from outside" not in refused

    standing = page.locator("#part-approvals > ul > li").filter(has_text=place)
    standing.get_by_role("button", name="Take back").click()
    expect(page.get_by_text(re.compile(f"Taken back from .*: {place}"))).to_be_visible()
    row.get_by_role("button", name="Not again").click()
    expect(row).to_have_count(0)
    expect(standing).to_contain_text("never allowed")
    standing.get_by_role("button", name="Take back").click()
    row.get_by_role("button", name="Allow for this group").click()
    expect(page.get_by_text(re.compile(f".* may reach {place} from now on"))).to_be_visible()
    reached, refused = look()
    assert "hello from outside" in reached
    assert "hello from outside" not in refused
