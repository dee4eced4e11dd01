"""A real model of another maker: llama.cpp's own server through the real CLI, as a process and in Docker."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.doubles.messages_api import Say, ScriptedMessagesApi
from tests.processes.andy import AndyProcess, until
from tests.support.skips import ON_PURPOSE

pytestmark = pytest.mark.skipif(
    not os.environ.get("TESTS_OF_LLAMA"),
    reason=f"{ON_PURPOSE}asks a model on the processor for minutes: `make llama-server`, part of `make soak`",
)
ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".llama-server" / "bin" / "python"
WINDOW = 16_384
ANSWER_SECONDS = 900.0
"""Seconds that a first answer may take on a processor that others use, too."""
REUSED = 0.95
"""The share of a second prompt that has to come from the server's cache."""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def llama(port: int) -> Iterator[subprocess.Popen[str]]:
    """Serve a small model at a port until the block ends."""
    command = [str(PYTHON), str(ROOT / "tests/processes/llama_server.py"), str(port), str(WINDOW)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline().startswith("http")
            yield server
        finally:
            server.kill()


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def andy(tmp_path: Path, runtime: str, api: ScriptedMessagesApi, port: int) -> Iterator[AndyProcess]:
    environment = {
        "ANTHROPIC_API_KEY": "sk-ant-api03-of-a-test",
        "ANTHROPIC_BASE_URL": api.url,
        "ANDY_MAX_OUTPUT_TOKENS": "48",
    }
    with AndyProcess(tmp_path / "home", runtime=runtime, agent="claude", environment=environment) as andy:
        words = ("local", f"http://127.0.0.1:{port}", "--kind", "llama.cpp", "--model", "smollm2")
        assert andy.cli("models", "add", *words, "--window", str(WINDOW)).returncode == 0
        assert andy.cli("models", "use", "local/smollm2").returncode == 0
        yield andy


def test_a_group_on_a_local_model_is_answered_and_its_prompt_is_read_once(
    andy: AndyProcess, port: int
) -> None:
    with llama(port):
        for number, text in enumerate(("Say hi.", "Say it again.")):
            began = time.monotonic()
            said = andy.until_settled(andy.say(text, wait=0)["id"], seconds=ANSWER_SECONDS)
            assert said["outcome"] == "answered", said
            print(f"answer {number + 1} after {time.monotonic() - began:.1f} s: {said['reply'][:60]!r}")
    first, *_, last = andy.rows("SELECT input_tokens, cache_read_tokens, output_tokens, service FROM usage")
    whole = last["input_tokens"] + last["cache_read_tokens"]
    print(f"the last prompt has {whole} tokens, {last['cache_read_tokens'] / whole:.1%} of them reused")
    assert {first["service"], last["service"]} == {"local"}
    assert first["output_tokens"] > 0
    assert last["cache_read_tokens"] / whole >= REUSED


def test_a_local_model_that_is_killed_in_a_turn_is_stood_in_for(
    andy: AndyProcess, api: ScriptedMessagesApi, port: int
) -> None:
    api.then(Say("From the other one."))
    assert andy.cli("models", "fallback", "claude-haiku-4-5", "--even-if-dearer").returncode == 0
    with llama(port) as server:
        message = andy.say("Tell me a long story.", wait=0)["id"]
        until(lambda: andy.rows("SELECT 1 FROM turns WHERE state = 'running'"), what="the turn runs")
        server.kill()
        began = time.monotonic()
        assert andy.until_settled(message)["reply"].endswith("From the other one.")
        print(f"the other one answered {time.monotonic() - began:.1f} s after the kill")


def test_a_question_that_is_stopped_leaves_the_local_model_free_for_the_next(
    andy: AndyProcess, port: int
) -> None:
    with llama(port):
        message = andy.say("Tell me a long story.", wait=0)["id"]
        until(lambda: andy.rows("SELECT 1 FROM turns WHERE state = 'running'"), what="the turn runs")
        assert "Stopped" in andy.say("stop")["reply"]
        assert andy.until_settled(message)["outcome"] == "failed"
        said = andy.until_settled(andy.say("Say hi.", wait=0)["id"], seconds=ANSWER_SECONDS)
        assert said["outcome"] == "answered"
