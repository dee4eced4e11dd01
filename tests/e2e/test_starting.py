"""What is told of an Andy that starts and does not listen yet."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from tests.processes.andy import AndyProcess, until


def test_while_it_starts_the_status_says_so_and_since_when(tmp_path: Path) -> None:
    """Held up by an engine that takes a connection and says nothing."""
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(tmp_path / "engine.sock"))
        engine.listen()
        slow = {"DOCKER_HOST": f"unix://{tmp_path}/engine.sock", "TZ": "Asia/Seoul"}
        andy = AndyProcess(tmp_path / "home", runtime="docker", environment=slow)
        andy.home.mkdir()
        assert "Andy is not running" in andy.cli("status").stderr
        andy.launch()
        until((andy.home / "data" / "starting").exists, what="it starts")

        done = andy.cli("status")

        assert done.returncode == 3
        assert "Andy is starting on" in done.stderr
        assert ", since " in done.stderr
    assert andy.wait() == 1, "it needs the engine"
    assert "Andy is not running" in andy.cli("status").stderr


def test_once_it_listens_it_starts_no_more_also_after_a_kill(tmp_path: Path) -> None:
    andy = AndyProcess(tmp_path / "home")
    andy.is_forked = False  # as a person starts it: nothing is imported yet
    with andy:
        until(lambda: not (andy.home / "data" / "starting").exists(), what="it does not start any more")
        (andy.home / "data" / "starting").write_text(f"{2**22 + 7} 1790000000000")  # of one that was killed
        assert json.loads(andy.cli("status", "--json").stdout)["groups"] == ["main"]
        andy.kill()
        assert "Andy is not running" in andy.cli("status").stderr
