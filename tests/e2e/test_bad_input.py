"""Each command refuses bad input in one line that names the fix, and does nothing by halves."""

from __future__ import annotations

import os
import resource
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from tests.processes.andy import PATIENCE_SECONDS, AndyProcess, until


@pytest.fixture(scope="module")
def andy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AndyProcess]:
    with AndyProcess(tmp_path_factory.mktemp("bad") / "home") as running:
        yield running


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"group": "nobody", "text": "hi"}', 404, "unknown_group"),
        (b'{"group": "main", "text": ""}', 422, "text_empty"),
        (b'{"group": "main", "text": " \\n "}', 422, "text_empty"),
        (b'{"group": "main", "text": "' + b"x" * 100_000 + b'"}', 413, "text_too_long"),
        (b'{"group": "main", "text": "' + b"x" * 2**20 + b'"}', 413, "body_too_large"),
        (b'{"group": "main", "te', 400, "bad_body"),
        (b'["main"]', 400, "bad_body"),
        (b'{"group": "main"}', 400, "bad_body"),
        (b'{"group": "main", "text": "hi", "wait": "soon"}', 400, "bad_body"),
        (b'{"group": "main", "text": "hi", "is_main": true}', 400, "bad_body"),
    ],
)
def test_a_bad_message_is_refused_and_not_stored(
    andy: AndyProcess, body: bytes, status: int, code: str
) -> None:
    with andy.http() as http:
        response = http.post("/chat", content=body)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert "\n" not in response.json()["error"]["message"]
    assert andy.rows("SELECT * FROM messages") == []
    assert andy.rows("SELECT * FROM turns") == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": ""}, 401),
        ({"Origin": "https://evil.example"}, 403),
        ({"Host": "evil.example"}, 403),
    ],
)
def test_a_stranger_is_kept_out(andy: AndyProcess, headers: dict[str, str], status: int) -> None:
    with andy.http(**headers) as http:
        assert http.get("/status").status_code == status
        assert http.post("/chat", json={"group": "main", "text": "hi"}).status_code == status


def test_a_stranger_at_the_door_is_in_the_audit(andy: AndyProcess) -> None:
    with andy.http(Authorization="Bearer wrong") as http:
        assert http.get("/status").status_code == 401

    def is_recorded() -> bool:
        refusals = [row["detail"] for row in andy.listed("audit") if row["kind"] == "http.refused"]
        return [row["path"] for row in refusals if row["error"] == "bad_token"] == ["/status"]

    until(is_recorded, what="the refusal is in the audit")


def test_health_needs_no_token(andy: AndyProcess) -> None:
    with andy.http(Authorization="") as http:
        assert http.get("/healthz").json()["ok"] is True


def test_an_unknown_message_is_said_to_be_unknown(andy: AndyProcess) -> None:
    with andy.http() as http:
        assert http.get("/messages/nothing").status_code == 404


def test_a_second_orchestrator_on_the_home_is_refused(andy: AndyProcess) -> None:
    refused = andy.cli("up", "--runtime", "process", "--port", "0")
    assert refused.returncode == 1
    assert _one_line(refused.stderr).startswith("andy: Andy is running on")


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        refused = AndyProcess(tmp_path).cli("up", "--runtime", "process", "--port", str(port))
    assert refused.returncode == 1
    assert f"Port {port}" in _one_line(refused.stderr)


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    refused = AndyProcess(tmp_path / "file").cli("up", "--runtime", "process", "--port", "0")
    assert refused.returncode == 1
    assert "cannot be written" in _one_line(refused.stderr)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("port = = 1", "andy.toml"),
        ("colour = 'blue'", "'colour' is no setting"),
        ("andy_port = 'x'", "ANDY_PORT"),
    ],
)
def test_a_broken_andy_toml_is_named(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "andy.toml").write_text(text)
    refused = AndyProcess(tmp_path).cli("up")
    assert refused.returncode == 1
    assert named in _one_line(refused.stderr)


@pytest.mark.parametrize("words", [("chat", "main", "-m"), ("dashboard", "answer", "q_1"), ("messages",)])
def test_what_is_no_utf_8_is_refused_in_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    refused = AndyProcess(tmp_path).cli(*words, os.fsdecode(b"\xff hello"))
    assert refused.returncode == 1
    assert _one_line(refused.stderr) == "andy: '? hello' is no UTF-8: check the terminal's encoding."


def test_a_command_that_is_none_says_where_they_are(tmp_path: Path) -> None:
    refused = AndyProcess(tmp_path).cli("--home", str(tmp_path), "status")
    assert refused.returncode == 2
    assert "See 'andy --help'" in refused.stderr


def test_a_newer_database_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with closing(sqlite3.connect(tmp_path / "store" / "messages.db")) as database:
        database.execute("PRAGMA user_version = 999")
    before = (tmp_path / "store" / "messages.db").read_bytes()
    refused = AndyProcess(tmp_path).cli("up", "--runtime", "process", "--port", "0")
    assert refused.returncode == 1
    assert "version 999" in _one_line(refused.stderr)
    assert (tmp_path / "store" / "messages.db").read_bytes() == before


def test_usage_errors_exit_with_two(tmp_path: Path) -> None:
    andy = AndyProcess(tmp_path)
    assert andy.cli("up", "--port", "many").returncode == 2
    assert andy.cli("chat", "--colour").returncode == 2
    assert andy.cli("nonsense").returncode == 2


def test_a_group_that_cannot_be_registered_is_refused(andy: AndyProcess) -> None:
    assert andy.cli("groups", "register", "family").returncode == 0
    for folder, named in (("Family", "already"), ("../x", "folder name"), ("global", "reserved")):
        refused = andy.cli("groups", "register", folder)
        assert refused.returncode == 1
        assert named in _one_line(refused.stderr)
    assert "main group cannot be removed" in andy.cli("groups", "remove", "main").stderr


def test_a_thousand_half_sent_requests_freeze_nobody(andy: AndyProcess) -> None:
    host, _, port = andy.address.removeprefix("http://").partition(":")
    resource.prlimit(andy.pid, resource.RLIMIT_NOFILE, (512, 20_000))
    logged = andy.log.stat().st_size
    with ExitStack() as stack:
        silent = [stack.enter_context(_half_sent(host, int(port))) for _ in range(800)]
        assert andy.cli("status").returncode == 0
        assert andy.say("help")["outcome"] == "answered"
        with andy.http(Authorization="") as http:
            assert http.get("/healthz").json()["ok"] is True
        until(lambda: all(_is_cut(one) for one in silent), what="each half-sent request is cut off")
    assert andy.log.stat().st_size - logged < 64 * 1024


def _half_sent(host: str, port: int) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=PATIENCE_SECONDS)
    with suppress(OSError):  # it may be cut off already
        connection.sendall(b"GET /heal")
    connection.setblocking(False)
    return connection


def _is_cut(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _one_line(text: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith("andy:")]
    return line
