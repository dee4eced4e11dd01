"""A model service that refuses, for those who ask and those who run Andy: the real CLI, plain processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.domain import failures
from tests.doubles.messages_api import Fail, Recorded, Say, ScriptedMessagesApi, Step
from tests.processes.andy import AndyProcess, until

GOOD_KEY, BAD_KEY = "sk-ant-api03-good", "sk-ant-api03-bad"


def answer(request: Recorded) -> Step:
    """Take one key, refuse all others."""
    if request.headers["x-api-key"] == GOOD_KEY:
        return Say("Hello.")
    return Fail(401, "authentication_error", "invalid x-api-key")


@pytest.fixture(scope="module")
def api() -> Iterator[ScriptedMessagesApi]:
    with ScriptedMessagesApi(answer) as api:
        yield api


@pytest.fixture(scope="module")
def andy(tmp_path_factory: pytest.TempPathFactory, api: ScriptedMessagesApi) -> Iterator[AndyProcess]:
    home = tmp_path_factory.mktemp("refused") / "home"
    home.mkdir()
    put_key(home, BAD_KEY)
    with AndyProcess(home, agent="auto", environment={"ANTHROPIC_BASE_URL": api.url}) as andy:
        assert andy.cli("groups", "register", "family", "--name", "Family").returncode == 0
        yield andy


def put_key(home: Path, key: str) -> None:
    (home / ".env").write_text(f"ANTHROPIC_API_KEY={key}\n")
    (home / ".env").chmod(0o600)


def texts(andy: AndyProcess, folder: str) -> list[str]:
    rows = andy.rows("SELECT text FROM outbox WHERE group_folder = ? ORDER BY id", folder)
    return [row["text"] for row in rows]


def metric(andy: AndyProcess) -> str:
    with andy.http() as http:
        lines = http.get("/metrics").text.splitlines()
    return next(line for line in lines if line.startswith('andy_model_refused{cause="key_refused"}'))


def test_a_refused_key_is_told_at_once_and_taken_back_when_it_is_mended(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    asked = andy.say("@Andy hi", group="family")
    assert (asked["outcome"], asked["reply"]) == ("failed", failures.REFUSED)
    assert len(api.turns) == 1, "neither the CLI nor the host asks again"
    (told,) = texts(andy, "main")
    assert "the model service refuses ANTHROPIC_API_KEY (HTTP 401)" in told
    assert [row["attempt"] for row in andy.rows("SELECT attempt FROM turns")] == [1]

    assert andy.say("@Andy hi?", group="family")["reply"] == failures.REFUSED
    assert len(andy.rows("SELECT 1 FROM runs")) == 1, "the second question starts no container"
    assert andy.say("hi", group="main")["reply"] == failures.STILL_REFUSED

    credential = andy.listed("status")["credential"]
    assert credential["accepted"] is False
    assert "refuses ANTHROPIC_API_KEY (HTTP 401)" in andy.cli("status").stdout
    doctor = andy.cli("doctor")
    assert doctor.returncode == 1
    assert "✗ credential   the model service refuses ANTHROPIC_API_KEY (HTTP 401)" in doctor.stdout
    assert metric(andy).endswith(" 1.0")

    put_key(andy.home, GOOD_KEY)
    assert andy.say("@Andy hi", group="family")["reply"] == "Hello."
    until(lambda: failures.WORKS_AGAIN in texts(andy, "main"), what="the owner is told that it is over")
    assert andy.listed("status")["credential"]["accepted"] is True
    assert metric(andy).endswith(" 0.0")
