"""What is told of an Andy that starts and does not listen yet."""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import httpx

from orchestrator.web.feature import KEEP_ALIVE_SECONDS
from tests.processes.andy import AndyProcess, until

NEW_YEAR = date((datetime.now(UTC) + timedelta(days=2)).year + 1, 1, 1)
"""A day that is not over in any time zone."""


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


def test_the_address_of_an_earlier_run_is_replaced_whole(tmp_path: Path) -> None:
    """A command that reads the file while Andy starts finds an address, never the empty file before it."""
    with AndyProcess(tmp_path / "home") as andy:
        andy.kill()
        earlier = andy.address_file
        read_meanwhile = tmp_path / "read-meanwhile"
        read_meanwhile.hardlink_to(earlier)
        earlier.write_text("http://127.0.0.1:9")
        andy.launch()
        until(lambda: earlier.read_text() != "http://127.0.0.1:9", what="Andy listens")
        assert read_meanwhile.read_text() == "http://127.0.0.1:9"


def test_the_api_keeps_an_idle_connection_longer_than_its_clients_do() -> None:
    """The client drops an idle connection first: a server that does may cut off a request on its way."""
    assert httpx.Limits().keepalive_expiry is not None
    assert httpx.Limits().keepalive_expiry < KEEP_ALIVE_SECONDS


def test_a_terminal_reads_sentences_and_the_log_has_the_lines(tmp_path: Path) -> None:
    andy = AndyProcess(tmp_path / "home")
    andy.home.mkdir()
    reader, writer = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "orchestrator", *andy.command],
        env=andy.environment,
        stdin=writer,
        stdout=writer,
        stderr=writer,
    ) as process:
        os.close(writer)
        until(andy.listens, what="andy up listens")
        process.terminate()
        said = "".join(_written(reader))

    assert process.returncode == 0
    assert "Andy listens on http://127.0.0.1:" in said
    assert "host.started" not in said
    assert "host.started" in andy.cli("logs").stdout


def _written(reader: int) -> Iterator[str]:
    """Yield what a program wrote to its terminal, until it has closed it."""
    with suppress(OSError), os.fdopen(reader, "rb") as terminal:
        while chunk := os.read(terminal.fileno(), 65536):
            yield chunk.decode()


def test_a_demo_whose_reader_goes_away_ends_without_a_traceback(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "demo", "--runtime", "process"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        said = process.stderr.read()

    assert (process.returncode, said) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_a_zone_written_into_env_holds_from_the_next_start_on_and_the_commands_say_so(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".env").write_text("TZ=Asia/Seoul\n")
    with AndyProcess(home, environment={"TZ": ""}) as andy:
        assert andy.cli("reminders", "add", "main", "stretch", "--at", f"{NEW_YEAR} 09:00").returncode == 0
        (home / ".env").write_text("TZ=Europe/Berlin\n")
        listed, doctor = andy.cli("reminders", "list").stdout, andy.cli("doctor").stdout
        status = andy.cli("status").stdout
    assert "09:00" in listed
    assert (
        "✗ clock        TZ is Europe/Berlin in .env; Andy runs with Asia/Seoul until it is started" in doctor
    )
    assert "changed since the start, so not in force: TZ (.env). Restart Andy" in status
    with andy:
        assert "01:00" in andy.cli("reminders", "list").stdout
        assert " in Europe/Berlin" in andy.cli("doctor").stdout
        assert "since the start" not in andy.cli("status").stdout


def test_the_time_of_a_group_in_another_zone_is_that_of_the_group_wherever_it_is_listed(
    tmp_path: Path,
) -> None:
    with AndyProcess(tmp_path / "home", environment={"TZ": "Europe/Berlin"}) as andy:
        assert andy.cli("groups", "register", "family").returncode == 0
        assert andy.cli("groups", "config", "family", "--set", '{"timezone": "Asia/Seoul"}').returncode == 0
        for group in ("family", "main"):
            made = andy.cli("reminders", "add", group, "stretch", "--at", f"{NEW_YEAR} 09:00").stdout
            assert (f"{NEW_YEAR:%a %Y-%m-%d} 09:00 (Asia/Seoul)." in made) == (group == "family")
            assert andy.cli("tasks", "add", group, "look", "--at", f"{NEW_YEAR} 09:00").returncode == 0
        for command in ("reminders", "cron", "dashboard"):
            what = "notifications" if command == "dashboard" else "list"
            lines = andy.cli(command, what).stdout.splitlines()
            of_family = [line for line in lines if "family" in line]
            of_main = [line for line in lines if "main" in line]
            assert of_family
            assert all("09:00 (Asia/Seoul)" in line for line in of_family), lines
            assert of_main
            assert all("09:00 " in line and "Berlin" not in line for line in of_main), lines
        status = andy.cli("status").stdout.splitlines()
    assert "reminders   2, next: family 01-01 09:00 (Asia/Seoul), main 01-01 09:00" in status
    assert "tasks       2, next: family 01-01 09:00 (Asia/Seoul), main 01-01 09:00" in status
