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
    UseTool,
    system_text,
    tool_names,
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
def api() -> Iterator[ScriptedMessagesApi]:
    with ScriptedMessagesApi() as api:
        yield api


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
    assert not {"WebFetch", "WebSearch"} & set(tool_names(api.turns[0]))
    assert "There is no internet here" in system_text(api.turns[0])


def test_a_list_lets_out_to_exactly_what_is_on_it(andy: AndyProcess, api: ScriptedMessagesApi) -> None:
    configure(andy, {"allowlist": ["good.example:443", "home.example:443"]})
    api.then(
        UseTool("Bash", {"command": fetch("good.example:443")}),
        UseTool("Bash", {"command": fetch("good.example:80")}),
        UseTool("Bash", {"command": fetch("other.example:443")}),
        UseTool("Bash", {"command": fetch("home.example:443")}),
        Say("Done."),
    )
    assert andy.say("look around")["reply"] == "Done."
    seen = [json.dumps(tool_results(request)) for request in api.turns[1:]]
    assert "hello from outside" in seen[0]
    assert ["hello" in each or "403" not in each for each in seen[1:]] == [False] * 3, seen
    assert "good.example:443, home.example:443" in system_text(api.turns[0])
    assert not {"WebFetch", "WebSearch"} & set(tool_names(api.turns[0]))

    until(lambda: len(egress_of(andy)) >= 3, what="it is written down")
    rows = sorted(egress_of(andy), key=lambda row: row["kind"])  # a connection is told of when it has ended
    assert [(row["kind"], row["detail"]["target"]) for row in rows] == [
        ("egress.connection", "good.example:443"),
        ("egress.refused", "good.example:80"),
        ("egress.refused", "home.example:443"),
    ]
    assert rows[0]["detail"]["bytes_in"] > len("hello from outside")
    assert {row["group"] for row in egress_of(andy)} == {"main"}
    assert andy.listed("audit", "verify")["ok"]

    configure(andy, "none")
    until(lambda: not containers(andy), what="the container that had a list has ended")


def test_an_open_group_is_on_a_second_network_and_is_shouted_about(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    configure(andy, "open")
    api.then(Say("Hello."))
    assert andy.say("hi")["reply"] == "Hello."
    (container,) = containers(andy)
    assert inside(container, "ls /sys/class/net | wc -l").strip() == "3"
    assert {"WebFetch", "WebSearch"} <= set(tool_names(api.turns[0]))
    assert "There is no internet here" not in system_text(api.turns[0])
    assert "run.reaches_the_internet" in andy.events()
    assert andy.listed("status")["open"] == ["main"]
    assert "all of the internet: main" in andy.cli("status").stdout
    configure(andy, "none")
    until(lambda: not containers(andy), what="the idle container that reaches the internet has ended")
    changes = [row["detail"] for row in andy.listed("audit") if row["kind"] == "group.configured"]
    assert changes == [{"changed": {"egress": "open"}}, {"changed": {"egress": None}}]
    api.then(Say("Still here."))
    assert andy.say("and now?")["reply"] == "Still here."
    (container,) = containers(andy)
    assert inside(container, "ls /sys/class/net | wc -l").strip() == "2"


def fetch(place: str) -> str:
    return f'curl -sS -m 60 -p -x "$HTTPS_PROXY" http://{place}/ 2>&1 || true'


def configure(andy: AndyProcess, egress: object) -> None:
    done = andy.cli("groups", "config", "main", "--set", json.dumps({"egress": egress}))
    assert done.returncode == 0, done.stderr


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
