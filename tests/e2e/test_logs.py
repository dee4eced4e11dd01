"""`andy logs`: what a container did, with Andy up or down; and the host's own log."""

from __future__ import annotations

import json
import os
import selectors
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.processes.andy import AndyProcess, until

SECRET_WORDS = "the cake is for grandmother"


def test_the_log_of_a_run_is_told_with_andy_down(tmp_path: Path, runtime: str) -> None:
    with AndyProcess(tmp_path / "home", runtime=runtime) as andy:
        andy.say(f"echo {SECRET_WORDS}")
        assert "turn.answered turn=1" in until(
            lambda: (log := andy.cli("logs", "main").stdout) and "turn.answered" in log and log
        )
        assert andy.terminate() == 0
        told = andy.cli("logs", "main", "--raw").stdout
        (run,) = [row["id"] for row in andy.rows("SELECT id FROM runs")]
        assert told.splitlines()[0].split(" ")[1:5] == [
            "run.begun",
            f"run={run}",
            "group=main",
            f"runtime={runtime}",
        ]
        assert "/workspace/group:rw" in told
        assert "turn.acknowledged turn=1" in told
        assert ("run.left" if runtime == "docker" else "run.ended") in told
        assert ("image=andy-agent:latest" in told) is (runtime == "docker")
        assert (
            andy.cli("logs", "main", "--raw", "--run", run[:6], "--lines", "1").stdout
            == f"{told.splitlines()[-1]}\n"
        )
        if runtime == "docker":
            andy.start()
            until(
                lambda: "run.adopted" in andy.cli("logs", "main").stdout,
                what="the adoption is in the same log",
            )

        logs = andy.home / "data" / "logs"
        for path in [logs, *logs.rglob("*")]:
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
            assert path.is_dir() or SECRET_WORDS not in path.read_text()


def test_the_hosts_own_log_is_kept(tmp_path: Path) -> None:
    with AndyProcess(tmp_path / "home") as andy:
        andy.say("echo hello")
        assert andy.terminate() == 0
        told = [json.loads(line) for line in andy.cli("logs", "--raw").stdout.splitlines()]
        kinds = [line["event"] for line in told]
        of_the_host = [kind for kind in kinds if kind.startswith("host.")]
        assert (of_the_host[0], kinds[-1]) == ("host.started", "host.ended")
        assert all("timestamp" in line and "level" in line for line in told)


def test_what_is_not_there_is_said_in_a_line(tmp_path: Path) -> None:
    with AndyProcess(tmp_path / "home") as andy:
        for arguments in (["nobody"], ["main"], ["../.."], ["main", "--run", "x"]):
            refused = andy.cli("logs", *arguments)
            assert (refused.returncode, refused.stdout) == (1, "")
            assert "There is no log of" in refused.stderr


def test_following_goes_on_with_the_next_run(tmp_path: Path) -> None:
    environment = {"IDLE_TIMEOUT": "1000"}
    with AndyProcess(tmp_path / "home", environment=environment) as andy:
        andy.say("echo one")
        with following(andy, "logs", "main", "-f") as lines:
            first = read_until(lines, "run.ended")
            andy.say("echo two")
            second = read_until(lines, "turn.answered")
        runs = [row["id"] for row in andy.rows("SELECT id FROM runs ORDER BY started_ms")]
        assert f"run={runs[0]}" in first
        assert f"──── run {runs[1]}" in second
        assert f"run={runs[1]}" in second


@contextmanager
def following(andy: AndyProcess, *arguments: str) -> Iterator[Iterator[str]]:
    command = [sys.executable, "-m", "orchestrator", *arguments]
    with subprocess.Popen(command, env=andy.environment, stdout=subprocess.PIPE) as process:
        try:
            yield lines_of(process)
        finally:
            process.kill()


def lines_of(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """Its lines as they come; ends when none comes for three minutes."""
    assert process.stdout is not None
    descriptor, rest = process.stdout.fileno(), b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while selector.select(timeout=180) and (chunk := os.read(descriptor, 65536)):
            *whole, rest = (rest + chunk).split(b"\n")
            yield from (line.decode() for line in whole)


def read_until(lines: Iterator[str], word: str) -> str:
    told = []
    for line in lines:
        told.append(line)
        if word in line:
            return "\n".join(told)
    raise AssertionError(f"{word} did not come: {told}")
