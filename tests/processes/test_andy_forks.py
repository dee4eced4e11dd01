"""A fork of `andy` is told apart from a new process by nothing but its haste."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.andy import PROGRAM, AndyProcess


@pytest.fixture
def andy(tmp_path: Path) -> AndyProcess:
    return AndyProcess(tmp_path / "home", environment={"TZ": "Asia/Seoul"})


@pytest.mark.parametrize(
    "arguments", [("--version",), ("sttus",), ("status",), ("status", "--json"), ("tasks", "add", "--every")]
)
def test_it_says_and_returns_what_a_process_does(andy: AndyProcess, arguments: tuple[str, ...]) -> None:
    forked = andy.cli(*arguments)
    command = [*PROGRAM, *arguments]
    new = subprocess.run(command, env=andy.environment, capture_output=True, text=True, check=False)
    assert (forked.returncode, forked.stdout, forked.stderr) == (new.returncode, new.stdout, new.stderr)


def test_it_lives_in_its_own_environment_and_ends_by_a_signal(andy: AndyProcess) -> None:
    (andy.home / "groups").mkdir(parents=True)
    with andy:
        assert andy.pid != os.getpid()
        assert Path(f"/proc/{andy.pid}/cwd").readlink() == Path.cwd()
        assert {Path(f"/proc/{andy.pid}/fd/{number}").readlink().name for number in (1, 2)} == {"home.log"}
        assert str(andy.home) in andy.cli("status").stdout
        andy.kill()
        assert andy.wait() == -signal.SIGKILL


def test_it_does_not_start_with_what_no_fork_survives(andy: AndyProcess) -> None:
    with andy:
        assert "neonize" not in Path(f"/proc/{andy.pid}/maps").read_text()
        assert sys.executable in Path(f"/proc/{andy.pid}/cmdline").read_text()
