"""What the real SDK and CLI use is counted, bounded and told, in real containers too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles.messages_api import Say, SayThenCut, ScriptedMessagesApi, Tokens, UseTool
from tests.processes.andy import AndyProcess, until
from tests.support.skips import only_in_soak

TOKENS = Tokens(
    input_tokens=101, output_tokens=23, cache_read_input_tokens=5000, cache_creation_input_tokens=700
)


@pytest.fixture
def api() -> Iterator[ScriptedMessagesApi]:
    with ScriptedMessagesApi(tokens=TOKENS) as api:
        yield api


@pytest.fixture
def andy(tmp_path: Path, runtime: str, api: ScriptedMessagesApi) -> Iterator[AndyProcess]:
    environment = {
        "ANTHROPIC_API_KEY": "sk-ant-api03-key",
        "ANTHROPIC_BASE_URL": api.url,
        "TZ": "Asia/Seoul",
        "ANDY_PRICES": '{"claude": {"input": 1000, "output": 0, "cache_read": 0, "cache_write": 0}}',
    }
    home = tmp_path / "home"
    with AndyProcess(home, runtime=runtime, agent="auto", environment=environment) as andy:
        yield andy


def asked(api: ScriptedMessagesApi) -> int:
    return sum(request.path == "/v1/messages" for request in api.requests)


def test_counted_usage_agrees_with_the_service_to_the_token(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    api.then(UseTool("list_tasks"), Say("None."), Say("Still none."))
    andy.say("which reminders are there?")
    andy.say("and now?")
    until(lambda: len(andy.rows("SELECT 1 FROM usage")) == asked(api), what="all is written down")
    count = asked(api)
    assert count >= 3
    total = andy.listed("usage", "--by", "group")["rows"][0]
    assert (total["group"], total["requests"]) == ("main", count)
    assert total["input_tokens"] == count * 101
    assert total["output_tokens"] == count * 23
    assert total["cache_read_tokens"] == count * 5000
    assert total["cache_write_tokens"] == count * 700
    assert total["cost_usd"] == pytest.approx(count * 101 / 1000), "at the price that the owner has set"
    in_turns = andy.rows("SELECT DISTINCT turn_id FROM usage WHERE kind = 'chat' ORDER BY turn_id")
    assert [row["turn_id"] for row in in_turns] == [1, 2]
    assert andy.listed("audit", "verify")["ok"]
    assert {"api.request", "command"} <= {row["kind"] for row in andy.listed("audit")}


def test_a_spent_budget_ends_the_turn_at_once_and_says_why(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    assert andy.cli("budget", "set", "1tokens", "--per", "month", "--group", "main").returncode == 0
    api.then(Say("One."), Say("Two."))
    assert andy.say("first")["reply"] == "One."
    until(lambda: andy.rows("SELECT 1 FROM usage"), what="it is written down")
    refused = andy.say("second")
    assert refused["outcome"] == "failed"
    assert "the budget of main for this month is spent (1 tokens)" in refused["reply"]
    (turn,) = andy.rows("SELECT * FROM turns WHERE state = 'failed'")
    assert turn["attempt"] == 1
    assert len(api.turns) == 1, "the service was not asked"
    noted = until(
        lambda: andy.rows("SELECT 1 FROM audit WHERE kind = 'api.refused'"), what="it is written down"
    )
    assert len(noted) < 4, "nor the proxy in a loop"
    told = until(
        lambda: andy.rows("SELECT text FROM outbox WHERE dedupe_key LIKE 'budget:%'"), what="it is told"
    )
    assert len(told) == 1, "told once, in the chat that is the owner's and the group's"
    assert andy.listed("usage")["budgets"][0]["percent"] >= 100

    assert andy.cli("budget", "remove", "1").returncode == 0
    assert andy.say("third")["reply"] == "Two."


@only_in_soak
@pytest.mark.parametrize("runtime", ["process"], indirect=True)
def test_a_turn_that_asks_without_end_is_stopped(andy: AndyProcess, api: ScriptedMessagesApi) -> None:
    api._default = UseTool("list_tasks")
    found = andy.say("go on for ever", wait=400)
    assert found["outcome"] == "failed"
    assert "it asked the model more than 200 times in one turn" in found["reply"]
    (turn,) = andy.rows("SELECT * FROM turns")
    assert turn["attempt"] == 1
    assert asked(api) <= 201
    until(lambda: not andy.listed("status")["containers"], what="the container is closed")
    (run,) = andy.rows("SELECT * FROM runs")
    assert run["exit_kind"] == "timed_out"


@pytest.mark.parametrize("runtime", ["process"], indirect=True)
def test_a_stream_that_breaks_off_is_counted_with_what_came(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    api.then(SayThenCut("half an ans"), Say("A whole answer."))
    assert andy.say("hello")["reply"] == "A whole answer."
    until(lambda: len(andy.rows("SELECT 1 FROM usage")) >= 2, what="both are written down")
    cut = andy.rows("SELECT * FROM usage WHERE is_whole = 0")
    assert [(row["input_tokens"], row["output_tokens"]) for row in cut] == [(11, 1)]


@pytest.mark.parametrize("runtime", ["process"], indirect=True)
def test_the_accounts_are_told_with_andy_down(andy: AndyProcess, api: ScriptedMessagesApi) -> None:
    api.then(Say("One."))
    andy.say("first")
    assert andy.terminate() == 0
    assert andy.listed("usage", "--group", "main")["total"]["requests"] == asked(api)
    assert andy.cli("usage", "--by", "kind").stdout.startswith("kind")
    assert andy.cli("audit", "--group", "main", "--since", "1h").returncode == 0
    assert andy.cli("budget", "set", "5usd", "--per", "day").returncode == 0
    assert andy.listed("budget", "list")[0]["ends"].endswith("T00:00:00+09:00")
    assert andy.cli("audit", "verify").returncode == 0
    unknown = andy.cli("budget", "set", "5usd", "--per", "day", "--group", "nobody")
    assert (unknown.returncode, unknown.stderr.count("\n")) == (1, 1)


@pytest.mark.parametrize("runtime", ["process"], indirect=True)
def test_the_counts_are_told_to_prometheus(andy: AndyProcess, api: ScriptedMessagesApi) -> None:
    api.then(Say("One."))
    andy.say("first")
    until(lambda: len(andy.rows("SELECT 1 FROM usage")) == asked(api), what="all is written down")
    with andy.http() as http:
        told = http.get("/metrics")
        assert told.headers["content-type"].startswith("text/plain")
        lines = told.text.splitlines()
    with andy.http(Authorization="") as stranger:
        assert stranger.get("/metrics").status_code == 401
    tokens = 'andy_tokens_total{direction="cache_read",group="main",kind="chat"}'
    assert f"{tokens} {asked(api) * 5000:.1f}" in lines
    assert 'andy_turns_total{outcome="answered"} 1.0' in lines
    assert 'andy_containers{state="idle"} 1.0' in lines
    assert 'andy_outbox{state="sent"} 1.0' in lines
