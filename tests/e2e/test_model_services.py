"""The real CLI with several model services: a group asks another, and one stands in for one that is down."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from tests.doubles.messages_api import (
    Fail,
    Hang,
    Say,
    SayThenCut,
    ScriptedMessagesApi,
    UseTool,
    all_text,
    system_text,
    tool_names,
    tool_results,
)
from tests.processes.andy import AndyProcess, until
from tests.support.skips import only_in_soak

KEY = "sk-ant-api03-the-key-of-dotenv"


@pytest.fixture
def spare() -> Iterator[ScriptedMessagesApi]:
    with ScriptedMessagesApi(default=Say("From the spare one.")) as api:
        yield api


@pytest.fixture
def andy(
    tmp_path: Path, runtime: str, api: ScriptedMessagesApi, spare: ScriptedMessagesApi
) -> Iterator[AndyProcess]:
    environment = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": api.url}
    with AndyProcess(tmp_path / "home", runtime=runtime, agent="auto", environment=environment) as andy:
        command(andy, "add", "spare", spare.url, "--kind", "llama.cpp", "--model", "qwen3")
        yield andy


def command(andy: AndyProcess, *words: str) -> None:
    done = andy.cli("models", *words)
    assert done.returncode == 0, done.stderr


def test_a_group_is_answered_by_another_service_and_goes_back(
    andy: AndyProcess, api: ScriptedMessagesApi, spare: ScriptedMessagesApi
) -> None:
    api.then(Say("From the first."), Say("From the first again."))
    assert andy.say("Remember the number 17.")["reply"] == "From the first."
    command(andy, "use", "spare/qwen3", "--group", "main")
    spare.then(UseTool("send_message", {"text": "One moment …"}), Say("From the spare one."))
    assert andy.say("Which number?")["reply"] == "One moment …\n\nFrom the spare one."
    assert andy.say("And now?")["reply"] == "From the spare one."
    command(andy, "use", "default", "--group", "main")
    assert andy.say("And at the end?")["reply"] == "From the first again."

    asked, _, followed = spare.turns
    assert "number 17" in all_text(asked), "what was said before is retold"
    assert asked.body["model"] == "qwen3"
    assert "thinking" not in str(asked.body["messages"])
    assert "anthropic-beta" not in asked.headers
    assert "mcp__andy__send_message" in tool_names(asked), "no tool has to be looked up"
    assert followed.body["system"] == asked.body["system"], "a cache of its prompt survives"
    assert followed.body["messages"][: len(asked.body["messages"])] == asked.body["messages"]
    assert KEY not in str([one.headers for one in spare.requests])
    services = [row["service"] for row in andy.rows("SELECT service FROM usage ORDER BY id")]
    assert services == [None, "spare", "spare", "spare", None]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(SayThenCut("I beg"), id="cut", marks=only_in_soak),
        pytest.param(Fail(401, "authentication_error", "invalid x-api-key"), id="refused"),
        pytest.param(Fail(529, "overloaded_error", "Overloaded"), id="overloaded", marks=only_in_soak),
        pytest.param(Hang(), id="silent"),
    ],
)
def test_the_next_service_answers_in_the_middle_of_a_turn_and_the_first_comes_back(
    andy: AndyProcess, api: ScriptedMessagesApi, spare: ScriptedMessagesApi, fault: Fail
) -> None:
    command(andy, "fallback", "spare/qwen3")
    api.then(UseTool("send_message", {"text": "One moment …"}), *[fault] * 20)
    api.probe = Say("ok")
    reply = andy.say("Is it sunny?")["reply"]

    assert "From the spare one." in reply
    said = "SELECT 1 FROM messages WHERE content = 'One moment …'"
    until(lambda: andy.rows(said), what="what was said before is there")
    assert len(andy.rows(said)) == 1, "nothing is done twice"
    assert "send_message: One moment …" in all_text(spare.turns[0])
    (turn,) = andy.rows("SELECT attempt, state FROM turns")
    assert tuple(turn) == (1, "answered")

    api.start_over()
    api.then(Say("From the first."))
    until(lambda: not andy.rows("SELECT 1 FROM service_outages WHERE ended_ms IS NULL"), what="it is back")
    assert andy.say("And now?")["reply"] == "From the first."


class SearchEngine(BaseHTTPRequestHandler):
    """Answers each search as a SearXNG does, and notes what was asked."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        found = [{"url": "https://weather.example/", "title": "Seoul: 7 °C", "content": "Sunny until six."}]
        body = json.dumps({"query": "x", "results": found, "unresponsive_engines": []}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def engine() -> Iterator[str]:
    """The address of a search engine that was asked nothing yet."""
    SearchEngine.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), SearchEngine) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_weather_is_answered_with_a_model_of_another_maker(
    tmp_path: Path, runtime: str, spare: ScriptedMessagesApi, engine: str
) -> None:
    environment = {"ANDY_WEB_SEARCH": "searxng", "ANDY_SEARXNG_URL": engine, "ANDY_MODEL": "spare/qwen3"}
    with AndyProcess(tmp_path / "home", runtime=runtime, agent="claude", environment=environment) as andy:
        command(andy, "add", "spare", spare.url, "--kind", "llama.cpp", "--model", "qwen3")
        spare.then(UseTool("web_search", {"query": "서울 날씨"}), Say("서울은 맑고 7도예요."))
        assert andy.say("@Andy 날씨 알려줘")["reply"] == "서울은 맑고 7도예요."

        asked, answered = spare.turns
        assert "mcp__andy__web_search" in tool_names(asked)
        assert "web_search finds" in system_text(asked)
        found = json.dumps(tool_results(answered), ensure_ascii=False)
        assert "Sunny until six." in found
        assert "text of strangers" in found
        assert len(SearchEngine.asked) == 1
        assert andy.listed("usage")["total"]["searches"] == 1
