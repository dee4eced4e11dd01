"""What a group reaches outside, seen from inside its container, with the real host around it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.doubles.messages_api import (
    Say,
    ScriptedMessagesApi,
    Search,
    UseTool,
    is_offered,
    system_text,
    tool_results,
)
from tests.processes.andy import AndyProcess, until

pytestmark = [pytest.mark.timeout(900), pytest.mark.docker]
ROOT = Path(__file__).parents[2]


class Greeting(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello from outside")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def outside() -> Iterator[int]:
    """The port of a server on loopback that stands for the internet."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Greeting) as server:
        thread = threading.Thread(target=server.serve_forever, name="outside")
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def andy(tmp_path: Path, agent_image: str, api: ScriptedMessagesApi, outside: int) -> Iterator[AndyProcess]:
    environment = {
        "ANTHROPIC_API_KEY": "sk-ant-api03-key",
        "ANTHROPIC_BASE_URL": api.url,
        "INTERNET_PORT": str(outside),
    }
    andy = AndyProcess(tmp_path / "home", runtime="docker", agent="auto", environment=environment)
    andy.program = [sys.executable, str(ROOT / "tests" / "processes" / "andy_in_small_internet.py")]
    with andy:
        yield andy


def test_without_a_word_about_it_nothing_is_reached(andy: AndyProcess, api: ScriptedMessagesApi) -> None:
    api.then(UseTool("Bash", {"command": "env | grep -ic proxy; ls /sys/class/net | wc -l"}), Say("Nothing."))
    assert andy.say("what is outside?")["reply"] == "Nothing."
    assert "0\\n2" in json.dumps(tool_results(api.turns[1])), "no proxy; loopback and one network"
    assert not is_offered(api.turns[0], "WebFetch")
    assert "No page of the internet can be opened here" in system_text(api.turns[0])


def test_the_weather_is_searched_and_answered_with_no_way_out(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    page = ("Seoul weather", "https://weather.example/seoul")
    api.then(
        UseTool("WebSearch", {"query": "서울 날씨"}),
        Search("Seoul: sunny, 7 °C.", found=(page,), query="서울 날씨"),
        Say("서울은 맑고 7도예요. (weather.example)"),
    )
    assert andy.say("@Andy 날씨 알려줘")["reply"] == "서울은 맑고 7도예요. (weather.example)"
    asked, searched, answered = api.turns
    assert is_offered(asked, "WebSearch")
    assert "WebSearch finds" in system_text(asked)
    assert searched.body["tools"] == [{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}]
    assert searched.headers["x-api-key"] == "sk-ant-api03-key"
    found = json.dumps(tool_results(answered), ensure_ascii=False)
    assert "https://weather.example/seoul" in found
    assert "Seoul: sunny, 7 °C." in found
    (container,) = containers(andy)
    assert inside(container, "ls /sys/class/net | wc -l").strip() == "2", "loopback and the closed network"

    until(lambda: searches_of(andy), what="the search is written down")
    (row,) = searches_of(andy)
    assert row["group"] == "main"
    assert row["detail"]["number"] == 1
    assert "날씨" not in json.dumps(row, ensure_ascii=False), "what was searched for is nobody else's"
    (used,) = andy.rows("SELECT turn_id, searches FROM usage WHERE searches > 0")
    assert used["searches"] == 1
    assert used["turn_id"] is not None
    assert andy.listed("usage")["total"]["searches"] == 1

    configure(andy, web_search=False)
    until(lambda: not containers(andy), what="the container that was told of the search has ended")
    api.then(UseTool("Bash", {"command": SEARCH_BY_HAND}), Say("I cannot search."))
    assert andy.say("and tomorrow?")["reply"] == "I cannot search."
    told, refused = api.turns[3:]
    assert "There is no web search here" in system_text(told)
    assert "permission_error" in json.dumps(tool_results(refused)), "whoever asks for it past the tool"


def test_a_list_lets_out_to_exactly_what_is_on_it(andy: AndyProcess, api: ScriptedMessagesApi) -> None:
    listed = ["good.example:8080", "good.example:443", "home.example:443"]
    configure(andy, egress={"allowlist": listed})
    api.then(
        UseTool("Bash", {"command": fetch("good.example:8080")}),
        UseTool("Bash", {"command": fetch("good.example:80")}),
        UseTool("Bash", {"command": fetch("other.example:443")}),
        UseTool("Bash", {"command": fetch("home.example:443")}),
        UseTool("WebFetch", {"url": "https://good.example/", "prompt": "What is there?"}),
        Say("Done."),
    )
    assert andy.say("look around")["reply"] == "Done."
    seen = [json.dumps(tool_results(request)) for request in api.turns[1:]]
    assert "hello from outside" in seen[0]
    assert ["hello" in each or "403" not in each for each in seen[1:4]] == [False] * 3, seen
    assert "good.example:443, good.example:8080, home.example:443" in system_text(api.turns[0])

    until(lambda: len(egress_of(andy)) >= 4, what="it is written down")
    # A connection is told of when it has ended.
    rows = sorted(egress_of(andy), key=lambda row: (row["kind"], row["detail"]["target"]))
    assert [(row["kind"], row["detail"]["target"]) for row in rows] == [
        ("egress.connection", "good.example:443"),  # of WebFetch, which finds no TLS there
        ("egress.connection", "good.example:8080"),
        ("egress.refused", "good.example:80"),
        ("egress.refused", "home.example:443"),
    ]
    assert rows[1]["detail"]["bytes_in"] > len("hello from outside")
    assert {row["group"] for row in egress_of(andy)} == {"main"}
    assert andy.listed("audit", "verify")["ok"]

    configure(andy, egress="none")
    until(lambda: not containers(andy), what="the container that had a list has ended")


def test_an_open_group_is_on_a_second_network_and_is_shouted_about(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    configure(andy, egress="open")
    api.then(Say("Hello."))
    assert andy.say("hi")["reply"] == "Hello."
    (container,) = containers(andy)
    assert inside(container, "ls /sys/class/net | wc -l").strip() == "3"
    assert all(is_offered(api.turns[0], name) for name in ("WebFetch", "WebSearch"))
    assert "No page of the internet can be opened here" not in system_text(api.turns[0])
    assert "run.reaches_the_internet" in andy.events()
    assert andy.listed("status")["open"] == ["main"]
    assert "all of the internet: main" in andy.cli("status").stdout
    configure(andy, egress="none")
    until(lambda: not containers(andy), what="the idle container that reaches the internet has ended")
    changes = [row["detail"]["changed"] for row in andy.listed("audit") if row["kind"] == "group.configured"]
    assert changes == [{"egress": "open"}, {"egress": None}]
    api.then(Say("Still here."))
    assert andy.say("and now?")["reply"] == "Still here."
    (container,) = containers(andy)
    assert inside(container, "ls /sys/class/net | wc -l").strip() == "2"


def fetch(place: str) -> str:
    return f'curl -sS -m 60 -p -x "$HTTPS_PROXY" http://{place}/ 2>&1 || true'


def configure(andy: AndyProcess, **changes: object) -> None:
    done = andy.cli("groups", "config", "main", "--set", json.dumps(changes))
    assert done.returncode == 0, done.stderr


SEARCH_BY_HAND = (
    """curl -s $ANTHROPIC_BASE_URL/v1/messages -H "x-api-key: $ANTHROPIC_API_KEY" -d '{"model": "m","""
    """ "max_tokens": 9, "messages": [], "tools": [{"type": "web_search_20250305", "max_uses": 1}]}'"""
)


def searches_of(andy: AndyProcess) -> list[dict]:
    return [row for row in andy.listed("audit") if row["kind"] == "web.search"]


def egress_of(andy: AndyProcess) -> list[dict]:
    return [row for row in andy.listed("audit") if row["kind"].startswith("egress.")]


def containers(andy: AndyProcess) -> list[str]:
    listed = ["docker", "ps", "-q", "--filter", f"label=andy.install={andy.install}"]
    return subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()


def inside(container: str, command: str) -> str:
    done = subprocess.run(
        ["docker", "exec", container, "sh", "-c", command], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr
