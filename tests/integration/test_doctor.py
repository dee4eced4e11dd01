"""The doctor finds what is wrong with a home and says how to fix it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from agent_runner.wire.document import WIRE_VERSION
from orchestrator.channels.whatsapp import doctor_checks
from orchestrator.cli import client, doctor
from orchestrator.cli import doctor_checks as checks
from orchestrator.cli.doctor_checks import DoctorFinding, permissions
from orchestrator.domain.errors import NotRunning
from orchestrator.domain.model_services import ModelService, WorkKind
from orchestrator.groups import changes, registration
from orchestrator.home import lock as home_lock
from orchestrator.home.directory import Home
from orchestrator.home.settings import load
from orchestrator.store.database import Database, migrations
from orchestrator.store.groups import groups
from orchestrator.store.settings import model_services
from orchestrator.store.settings.model_services import ChosenModel
from tests.doubles.messages_api import Say, ScriptedMessagesApi

KEY = "sk-ant-api03-of-a-test"
LOADS = doctor_checks.ChannelFinding(is_problem=False, text="The WhatsApp library loads.")
NAMES = [
    "settings", "permissions", "store", "disk", "watches", "clock", "lists", "engine", "image", "compose",
    "firewall", "port", "parts", "credential", "models", "search", "mcp", "whatsapp",
]  # fmt: skip


@pytest.fixture
def home(request, tmp_path, monkeypatch) -> Home:
    """A home on which nothing is wrong, without Docker and without a credential."""
    for name in (
        "ANTHROPIC_API_KEY",
        "CLAUDE_CODE_OAUTH_TOKEN",
        "ANTHROPIC_AUTH_TOKEN",
        "ANTHROPIC_BASE_URL",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("ANDY_RUNTIME", "process")
    monkeypatch.setenv("ANDY_PORT", "0")
    monkeypatch.setenv("TZ", "Asia/Seoul")
    if request.function.__name__ != "test_nothing_is_wrong_with_a_fresh_home":
        monkeypatch.setattr(doctor_checks, "check_library", lambda _: LOADS)  # 60 MB and 2 s
    made = Home(tmp_path / "home")
    made.make()
    return made


async def found(home: Home, *, is_online: bool = False) -> dict[str, DoctorFinding]:
    return {one.name: one for one in await doctor.examine(home.root, is_online=is_online)}


async def wrong(home: Home, *, is_online: bool = False) -> list[DoctorFinding]:
    return [one for one in (await found(home, is_online=is_online)).values() if one.is_bad]


async def test_nothing_is_wrong_with_a_fresh_home(home):
    seen = await found(home)

    assert list(seen) == NAMES
    assert [one for one in seen.values() if one.is_bad] == []


async def test_a_log_of_the_database_that_a_long_reader_holds_is_named_with_the_fix(home, monkeypatch):
    database = await Database.open(home.database)
    try:
        async with database.transaction() as tx:
            await tx.execute("CREATE TABLE filler (body BLOB)")
        with closing(sqlite3.connect(home.database, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM filler").fetchone()
            async with database.transaction() as tx:
                await tx.execute("INSERT INTO filler VALUES (randomblob(1000000))")
            assert checks._store(home.database).state == "ok"
            monkeypatch.setattr(checks.database, "WAL_BYTES", 256 * 1024)
            held = checks._store(home.database)
            assert "which cannot be truncated while a program reads it" in held.text
            assert f"sudo fuser {home.database}" in (held.fix or "")
    finally:
        await database.close()


@pytest.mark.parametrize(("choice", "fix"), [("searxng", "ANDY_SEARXNG_URL"), ("brave", "BRAVE_API_KEY")])
async def test_a_search_of_a_group_that_lacks_its_key_or_address_is_named(home, monkeypatch, choice, fix):
    monkeypatch.delenv("BRAVE_API_KEY", raising=False)
    database = await Database.open(home.database)
    async with database.transaction() as tx:
        await registration.ensure_main(tx, now_ms=0)
        (main,) = await groups.every(tx)
        await groups.set_config(tx, main.folder, {"web_search": choice}, now_ms=0)
    await database.close()

    (problem,) = [one for one in await wrong(home) if one.name == "search"]
    assert fix in problem.fix


async def test_a_store_that_was_made_is_sound_and_has_its_version(home):
    await (await Database.open(home.database)).close()

    store = (await found(home))["store"]
    assert (store.state, f"version {len(migrations())}" in store.text) == ("ok", True)


async def only(home: Home, name: str, *, says: str, fix: str, is_online: bool = False) -> None:
    (one,) = await wrong(home, is_online=is_online)
    assert one.name == name
    assert says in one.text
    assert fix in one.fix


async def test_a_setting_that_is_none_is_named(home, monkeypatch):
    monkeypatch.setenv("ANDY_RUNTIMES", "docker")

    seen = await found(home)
    assert seen["settings"].is_bad
    assert "'ANDY_RUNTIMES' is no setting" in seen["settings"].text


async def test_a_secret_that_others_may_read_is_named(home):
    (home.root / ".env").write_text("TZ=Asia/Seoul")
    (home.root / ".env").chmod(0o644)

    await only(home, "permissions", says=f"others may read {home.root}/.env", fix="chmod 600")


async def test_a_secret_of_another_user_is_not_called_ones_own(home, monkeypatch):
    secret = home.root / ".env"
    secret.write_text("TZ=Asia/Seoul")
    secret.chmod(0o600)
    monkeypatch.setattr(os, "access", lambda path, mode: path != secret or mode != os.R_OK)

    fix = f"sudo chown {os.geteuid()} {secret} && sudo chmod 600 {secret}"
    await only(home, "permissions", says=f"this user may not read {secret}", fix=fix)


async def test_a_place_where_no_home_can_be_made_is_named_but_not_taken(tmp_path, monkeypatch):
    # As on a file system that is read-only: even root may write nothing there.
    monkeypatch.setattr(os, "access", lambda path, _mode: path != tmp_path)

    seen = await permissions(Home(tmp_path / "none" / "yet"), [])

    assert (seen.state, seen.text) == ("bad", f"{tmp_path} cannot be written by this user")
    assert "ANDY_HOME" in seen.fix
    assert "chown" not in seen.fix


async def test_a_store_of_a_newer_andy_is_named(home):
    with closing(sqlite3.connect(home.database)) as connection:
        connection.execute("PRAGMA user_version = 999")

    assert "version 999, written by a newer Andy" in (await found(home))["store"].text
    assert (await found(home))["store"].is_bad


async def test_a_store_of_an_older_andy_is_led_on_by_the_next_start(home):
    with closing(sqlite3.connect(home.database)) as connection:
        connection.executescript(f"{migrations()[0]}; PRAGMA user_version = 1;")
    home.database.chmod(0o600)

    seen = (await found(home))["store"]
    assert (seen.state, "version 1; the next start copies it" in seen.text) == ("note", True)


async def test_a_damaged_store_is_named_with_what_to_restore(home):
    home.database.write_bytes(b"no database" * 1000)
    home.database.chmod(0o600)

    seen = (await found(home))["store"]
    assert seen.is_bad
    assert "andy restore FILE" in seen.text


async def test_a_damaged_store_is_a_fault_of_the_store_alone(home):
    home.database.write_bytes(b"no database" * 1000)
    home.database.chmod(0o600)

    faults = [one.name for one in await wrong(home)]
    assert [name for name in faults if name in ("store", "credential", "models", "search", "mcp")] == [
        "store"
    ]


async def test_a_zone_that_a_running_andy_has_not_read_yet_is_named(home, monkeypatch):
    monkeypatch.delenv("TZ")
    (home.root / ".env").write_text("TZ=Asia/Seoul")
    status = {"zone": "Etc/UTC", "settings_changed": [{"name": "TZ", "source": ".env"}]}

    seen = await checks.clock(home, load(home.root), status)

    assert seen.is_bad
    assert seen.text == "TZ is Asia/Seoul in .env; Andy runs with Etc/UTC until it is started again"
    assert seen.fix.startswith("restart")


async def test_the_clock_is_shown_in_the_zone_of_the_running_andy(home):
    seen = await checks.clock(home, load(home.root), {"zone": "Europe/Berlin", "settings_changed": []})

    assert (seen.state, seen.text.endswith(" in Europe/Berlin")) == ("ok", True)


async def test_a_clock_behind_the_newest_message_is_named(home):
    database = await Database.open(home.database)
    late = int(time.time() * 1000) + 60 * 60_000
    async with database.transaction() as tx:
        await tx.execute("INSERT INTO chats (jid, name) VALUES ('local:x', 'x')")
        await tx.execute(
            "INSERT INTO messages"
            " (chat_jid, id, sender, sender_name, content, sent_ms, received_ms, ignored_reason)"
            " VALUES ('local:x', 'm', 's', 's', 't', ?, ?, 'no trigger')",
            (late, late),
        )
    await database.close()

    await only(home, "clock", says="before the newest message", fix="timedatectl")


async def test_a_broken_list_is_named(home, tmp_path):
    (tmp_path / "config" / "andy").mkdir(parents=True)
    (tmp_path / "config" / "andy" / "mount-allowlist.json").write_text("{")

    await only(home, "lists", says="mount-allowlist.json cannot be used", fix="correct the file")


async def test_a_port_that_another_has_is_named(home, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setenv("ANDY_PORT", str(other.getsockname()[1]))

        await only(home, "port", says="is taken", fix="ANDY_PORT")


async def test_a_port_that_this_user_may_not_bind_is_not_called_taken(home, monkeypatch):
    def listen(*_: object) -> socket.socket:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(checks, "listen", listen)
    monkeypatch.setenv("ANDY_PORT", "80")

    await only(home, "port", says="80 of 127.0.0.1 cannot be used (Permission denied)", fix="ANDY_PORT")


async def test_a_port_that_the_system_chooses_is_not_called_zero(home, monkeypatch):
    monkeypatch.setenv("ANDY_PORT", "0")

    assert (await found(home))["port"].text == "chosen by the system at the start: Andy is not running"


async def test_another_program_at_the_port_of_a_killed_andy_does_not_end_the_checks(home):
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as other:
        home.address_file.write_text(f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}")
        home.token()
        findings = await found(home)
        with pytest.raises(NotRunning, match="Another program"):
            await asyncio.to_thread(client.running_status, home)
    assert findings["parts"].text == "checked only while Andy runs and answers"
    assert "andy" not in findings


@pytest.mark.parametrize("is_locked", [True, False])
async def test_an_andy_that_answers_only_with_an_error_is_named_while_his_home_is_locked(
    home, monkeypatch, is_locked
):
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = b'{"error": {"message": "The database is damaged."}}'
        head = f"HTTP/1.1 500 Oops\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("ANDY_PORT", str(port))
        home.address_file.write_text(f"http://127.0.0.1:{port}")
        home.token()
        with home_lock.acquire(home) if is_locked else nullcontext():
            findings = await found(home)
    if not is_locked:
        assert "andy" not in findings, "it is another home's, or another program"
        assert findings["port"].is_bad
        return
    assert findings["andy"].is_bad
    assert "The database is damaged." in findings["andy"].text
    assert "andy logs" in findings["andy"].fix
    assert findings["parts"].text == "checked only while Andy runs and answers"
    assert "port" not in findings, "it is Andy who has it"


async def test_a_damaged_file_of_the_running_andy_is_named(home):
    home.address_file.write_text("http://127.0.0.1:87x0")
    home.token()
    findings = await found(home)
    assert findings["andy"].is_bad
    assert f"{home.address_file} is damaged" in findings["andy"].text
    assert "port" not in findings


@pytest.mark.parametrize(
    ("status", "body"), [(200, b"[]"), (404, b'{"detail":"Not Found"}'), (404, b'{"error":"no"}'), (200, b"")]
)
def test_what_is_no_answer_of_andy_is_told(status, body):
    with pytest.raises(NotRunning, match="Another program"):
        client._parse_answer(status, body)


async def test_what_the_user_may_not_look_at_is_told_with_the_mend(home, monkeypatch):
    def refuses(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/srv/andy/store")

    monkeypatch.setattr(checks, "_store", refuses)
    await only(home, "store", says="may not read /srv/andy/store", fix="the user who owns")


async def test_an_engine_that_is_gone_is_named(home, monkeypatch, tmp_path):
    monkeypatch.setenv("ANDY_RUNTIME", "docker")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")

    seen = await found(home)
    assert seen["engine"].is_bad
    assert "start Docker" in seen["engine"].fix


async def test_podman_in_the_place_of_docker_is_named(home, monkeypatch):
    class Podman(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            engine = {"Version": "4.3.1", "ApiVersion": "1.41", "Components": [{"Name": "Podman Engine"}]}
            body = json.dumps(engine).encode() if self.path.endswith("/version") else b"{}"
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Podman) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        monkeypatch.setenv("ANDY_RUNTIME", "docker")
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.server_port}")
        engine = (await found(home))["engine"]
        server.shutdown()
        thread.join()
    assert engine.is_bad
    assert "Podman 4.3.1" in engine.text
    assert "Docker's own engine" in engine.fix


async def test_the_runtime_is_that_of_the_running_andy_whatever_a_file_says(home, monkeypatch):
    """`andy up --runtime process` where Docker answers, too: nothing of a container is missing."""
    monkeypatch.setenv("ANDY_RUNTIME", "auto")

    async def answers(**_: object) -> bool:
        return True

    async def of_process(_: object) -> tuple[dict[str, Any], None]:
        return {"runtime": "process"}, None

    monkeypatch.setattr(checks.runtime, "answers", answers)
    monkeypatch.setattr(doctor, "_running_status", of_process)

    seen = await found(home)

    assert [seen[name].text for name in ("image", "compose", "firewall")] == [
        "not used: agents run as processes",
        "Andy does not run in a container",
        "not used: no agent runs in a container",
    ]
    assert [seen[name].fix for name in ("image", "compose", "firewall")] == ["", "", ""]


@pytest.mark.parametrize(
    ("tag", "wire_version", "state", "fix"),
    [
        ("andy-agent:latest", "0", "bad", "andy image build"),
        ("andy-agent:latest", str(WIRE_VERSION), "note", "andy image build"),
        ("r.example/andy-agent@sha256:1", "0", "bad", "write the digest that it says to ANDY_IMAGE"),
        (
            "r.example/andy-agent@sha256:1",
            str(WIRE_VERSION),
            "bad",
            "write the digest that it says to ANDY_IMAGE",
        ),
    ],
)
def test_an_image_with_a_digest_is_never_built_so_another_has_to_be_named(
    monkeypatch, tag, wire_version, state, fix
):
    labels = {checks.image.WIRE_LABEL: wire_version, checks.image.SOURCE_LABEL: "old"}
    details = {"Created": "2026-01-01T00:00:00Z", "Config": {"Labels": labels}}
    monkeypatch.setattr(checks.docker_client, "connect", lambda: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(checks.base, "inspect", lambda *_: details)
    monkeypatch.setattr(checks.runtime_selection, "image_sources", object)
    monkeypatch.setattr(checks.image, "is_current", lambda *_: False)
    finding = checks._agent_image(tag)
    assert finding.state == state
    assert finding.fix.endswith(fix)
    assert ("the next start builds it" in finding.text) == (state == "note")


async def test_without_an_engine_that_answers_the_mounts_of_compose_count_as_not_checked(home, monkeypatch):
    monkeypatch.setenv("ANDY_RUNTIME", "docker")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{home.root}/nothing.sock")
    monkeypatch.setattr(checks, "own_id", lambda: "0" * 64)
    seen = await found(home)
    assert [(seen[name].state, seen[name].text) for name in ("image", "compose")] == [
        ("note", "cannot be checked without an engine")
    ] * 2
    monkeypatch.setattr(checks, "own_id", lambda: None)
    compose = (await found(home))["compose"]
    assert (compose.state, compose.text) == ("ok", "Andy does not run in a container")


async def test_a_check_that_says_itself_what_to_do_points_to_nothing_else(monkeypatch):
    async def fails() -> DoctorFinding:
        raise NotRunning("Andy does not run: 'andy up' starts it.")

    finding = await doctor._run_check("port", fails)
    (row,) = doctor.as_rows([finding])
    assert row == {
        "check": "port", "state": "bad", "text": "Andy does not run: 'andy up' starts it.", "mend": "",
    }  # fmt: skip


async def test_a_library_that_does_not_load_is_named(home, monkeypatch):
    broken = doctor_checks.ChannelFinding(
        is_problem=True, text="WhatsApp needs libmagic: apt-get install libmagic1."
    )
    monkeypatch.setattr(doctor_checks, "check_library", lambda _: broken)

    await only(home, "whatsapp", says="apt-get install libmagic1", fix="other channels work")


@pytest.fixture
def asked(home, monkeypatch) -> Iterator[list[str]]:
    """The paths that a model service was asked for; it takes `KEY` only."""
    paths: list[str] = []

    class Service(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            paths.append(self.path)
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200 if self.headers["x-api-key"] == KEY else 401)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        Thread(target=server.serve_forever, name="service").start()
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{server.server_port}")
        yield paths
        server.shutdown()


async def test_a_credential_is_asked_about_only_when_online_is_said(home, asked, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-api03-wrong")
    assert await wrong(home) == []
    assert asked == []

    await only(home, "credential", says="refuses ANTHROPIC_API_KEY", fix="valid", is_online=True)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    assert (await found(home, is_online=True))["credential"].state == "ok"
    assert asked == ["/v1/messages/count_tokens"] * 2


async def test_a_service_that_is_not_reached_is_named(home, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")

    await only(home, "credential", says="cannot be reached", fix="network", is_online=True)


@pytest.mark.slow
def test_the_command_says_it_for_people_and_machines_and_exits_with_1(home):
    (home.root / ".env").write_text("")
    (home.root / ".env").chmod(0o644)
    command = [sys.executable, "-m", "orchestrator", "doctor", "--home", str(home.root)]

    said = subprocess.run(command, capture_output=True, text=True, check=False)
    told = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)

    assert (said.returncode, told.returncode) == (1, 1)
    assert f"✗ permissions  others may read {home.root}/.env" in said.stdout
    assert f"→ chmod 600 {home.root}/.env" in said.stdout
    assert f"1 of {len(NAMES)} needs fixing." in said.stdout
    rows = json.loads(told.stdout)
    assert [row["check"] for row in rows] == NAMES
    assert [row["check"] for row in rows if row["state"] == "bad"] == ["permissions"]


async def test_where_the_settings_cannot_be_read_those_of_the_environment_still_count(home, monkeypatch):
    """With Compose they name the one image that the filter lets be looked at, and the published port."""
    (home.root / ".env").write_text("ANDY_PORT=many\n")
    monkeypatch.setenv("ANDY_IMAGE", "andy-agent:of-compose")
    asked: list[str] = []

    async def look(settings):
        asked.append(settings.andy_image)
        return DoctorFinding(name="image", state="ok", text="")

    monkeypatch.setattr("orchestrator.cli.doctor_checks.agent_image", look)
    monkeypatch.delenv("ANDY_PORT")

    first = (await found(home))["settings"]

    assert (first.is_bad, "ANDY_PORT" in first.text) == (True, True)
    assert asked == ["andy-agent:of-compose"]


@pytest.mark.parametrize(
    ("fix", "on_the_host"),
    [
        ("chmod 600 /andy/.env", "on the host, beside docker-compose.yml: chmod 600 .env"),
        (
            "sudo chown 1000 /andy/.env /andy/data/token && sudo chmod 600 /andy/.env /andy/data/token",
            (
                "on the host, beside docker-compose.yml:"
                " sudo chown 1000 .env data/token && sudo chmod 600 .env data/token"
            ),
        ),
        ("andy up", "docker compose up -d"),
        ("andy whatsapp pair", "docker compose exec andy andy whatsapp pair"),
        ("see 'andy logs', or upgrade", "see 'docker compose exec andy andy logs', or upgrade"),
        ("docker compose build agent", "docker compose build agent"),
        ("for a model put ANTHROPIC_API_KEY=… into .env", "for a model put ANTHROPIC_API_KEY=… into .env"),
    ],
)
def test_inside_compose_a_fix_is_one_of_the_host(fix, on_the_host):
    found = doctor.on_the_host(DoctorFinding(name="any", state="bad", text="", fix=fix))

    assert found.fix == on_the_host


async def test_inside_compose_every_finding_is_worded_for_the_host(home, monkeypatch):
    (home.root / ".env").write_text("")
    (home.root / ".env").chmod(0o644)
    monkeypatch.setattr(doctor, "COMPOSE_HOME", str(home.root))

    seen = await found(home)

    assert seen["permissions"].fix == "on the host, beside docker-compose.yml: chmod 600 .env"
    assert seen["port"].fix == "docker compose up -d"


async def test_low_limits_for_watching_files_are_named_with_their_fix(tmp_path):
    (tmp_path / "max_user_watches").write_text("1024\n")
    (tmp_path / "max_user_instances").write_text("1024\n")

    found = await checks.watches(tmp_path)

    assert found.state == "note"
    assert "sudo sysctl fs.inotify.max_user_watches=8192," in found.fix
    (tmp_path / "max_user_watches").write_text("65536\n")
    assert (await checks.watches(tmp_path)).state == "ok"


async def test_a_service_that_a_group_asks_is_checked_for_its_key_and_asked_only_online(home, monkeypatch):
    async def with_service(**fields: Any) -> None:
        service = ModelService(name="local", model="qwen3", **fields)
        database = await Database.open(home.database)
        async with database.transaction() as tx:
            await registration.ensure_main(tx, now_ms=0)
            await model_services.put(tx, service, now_ms=0)
            await model_services.choose(
                tx, WorkKind.ALL, [ChosenModel(WorkKind.ALL, "local/qwen3")], now_ms=0
            )
        await database.close()

    await with_service(kind="openrouter", url="https://openrouter.ai/api", key_env="OPENROUTER_API_KEY")
    await only(home, "models", says="local is used for main and has no key", fix="OPENROUTER_API_KEY=…")
    with ScriptedMessagesApi(default=Say("Hello.")) as api:
        await with_service(kind="llama.cpp", url=api.url)
        seen = await found(home)
        assert (seen["models"].state, seen["models"].text[:14]) == ("ok", "local for main")
        assert "none is needed" in seen["credential"].text
        assert api.requests == []
        assert (await found(home, is_online=True))["models"].state == "ok"
        assert len(api.requests) == 1
    await only(home, "models", says="local at http://127.0.0.1", fix="check that it runs", is_online=True)


async def test_a_chosen_model_of_no_known_service_is_named(home):
    database = await Database.open(home.database)
    async with database.transaction() as tx:
        await registration.ensure_main(tx, now_ms=0)
        await changes.configure(tx, "main", {"model": "foo/bar"}, by="a test", now_ms=0)
    await database.close()
    (home.root / ".env").write_text("ANDY_MODEL=glm-4.6\n")
    (home.root / ".env").chmod(0o600)

    told = "the setting ANDY_MODEL is glm-4.6. 'glm-4.6' is neither a service nor a model of Claude's:"
    await only(home, "models", says=told, fix="andy models use")
    await only(home, "models", says="the group main is foo/bar. There is no service 'foo':", fix=".env")
    (home.root / ".env").write_text("ANTHROPIC_BASE_URL=https://gateway.example.org\n")
    assert (await found(home))["models"].state == "ok"


@pytest.mark.parametrize(("stand_in", "state"), [("spare/qwen3", "note"), (None, "bad")])
async def test_a_service_that_the_running_andy_finds_down_is_named(home, stand_in, state):
    row = {
        "name": "local", "url": "http://127.0.0.1:9", "key_env": None, "is_usable": True,
        "used_by": ["main"], "down_since_ms": 0, "cause": "does not answer", "mend": "Look whether it runs.",
        "stand_in": stand_in,
    }  # fmt: skip
    seen = await checks.models(home, load(home.root), {"models": [row]}, is_online=False)
    assert (seen.state, seen.fix) == (state, "Look whether it runs.")
    assert "local does not answer since" in seen.text
