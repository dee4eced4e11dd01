"""The list of commands is true, and no command loads what it does not need."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from orchestrator.cli import commands, main
from orchestrator.home.directory import Home
from orchestrator.store.database import Database
from tests.doubles.clock import FakeClock
from tests.support.store_harness import StoreHarness, a_message

LIBRARIES = frozenset(
    {
        *("aiosqlite", "asyncio", "cyclopts", "docker", "httpx", "jinja2", "neonize", "prometheus_client"),
        *(
            "pydantic",
            "pydantic_settings",
            "rich",
            "starlette",
            "structlog",
            "tiktoken",
            "uvicorn",
            "watchdog",
        ),
    }
)
"""What takes long to load: each of them more than a bare interpreter takes to start."""

REPORT = """
import sys
from orchestrator.__main__ import main
sys.argv = ["andy", *sys.argv[1:]]
try:
    main()
except SystemExit as done:
    code = done.code or 0
else:
    code = 0
print(code, *sorted(sys.modules), file=sys.stderr)
"""


def loaded_by(*words: str, home: Path) -> set[str]:
    """Return the names of the modules that `andy WORDS` has loaded when it is done."""
    environment = {**os.environ, "ANDY_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", REPORT, *words], capture_output=True, text=True, check=True, env=environment
    )
    code, *modules = done.stderr.split()
    assert code == "0", done.stderr
    assert done.stdout
    return set(modules)


def test_the_list_of_commands_says_what_they_say_of_themselves():
    names = [entry.name for entry in commands.COMMANDS]
    assert names == sorted(set(names))
    for entry in commands.COMMANDS:
        own = " ".join(main.app[entry.name].help.split())
        assert own.startswith(entry.summary), entry.name


def test_every_command_is_under_one_topic_of_the_help():
    page = commands.help_page(width=200)

    places = [page.index(f"─ {topic} ─") for topic in commands.TOPICS]
    assert places == sorted(places)
    assert {entry.topic for entry in commands.COMMANDS} == set(commands.TOPICS)
    assert [entry.name for entry in commands.COMMANDS if page.count(f"│ {entry.name} ") != 1] == []


def test_the_words_of_intents_are_no_commands_and_belong_to_one_intent():
    words = [word for intent in commands.INTENTS for word in intent.words]

    assert sorted(words) == sorted(set(words))
    assert {entry.name for entry in commands.COMMANDS} & set(words) == set()


def test_a_page_of_all_commands_is_as_wide_as_it_is_told():
    for width in (60, 80, 200):
        page = commands.help_page(width=width)
        assert {len(line) for line in page.splitlines() if line.startswith(("│", "╭", "╰"))} == {width}
        assert [entry.name for entry in commands.COMMANDS if f"│ {entry.name} " not in page] == []


@pytest.mark.parametrize("words", [("--help",), ("-h",), ("help",), ("--version",), ()])
def test_what_andy_is_loads_no_command(tmp_path: Path, words: tuple[str, ...]) -> None:
    loaded = loaded_by(*words, home=tmp_path)

    assert LIBRARIES & loaded == set()
    assert {name for name in loaded if name.startswith("orchestrator.cli.")} <= {"orchestrator.cli.commands"}


READING = ("groups list", "messages family", "outbox list", "turns")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a group, a message and its turn, whose zone is written in a file."""
    root = tmp_path_factory.mktemp("home")
    (root / ".env").write_text("TZ=Asia/Seoul\n")
    (root / "andy.toml").write_text("andy_port = 0\n")

    async def fill() -> None:
        database = await Database.open(root / "store" / "messages.db")
        harness = StoreHarness(database, clock=FakeClock())
        await harness.add_group("family", requires_trigger=False)
        await harness.intake.accept(a_message("what is new?"))
        await database.close()

    asyncio.run(fill())
    return root


@pytest.mark.parametrize("line", READING)
def test_a_command_that_reads_loads_nothing_of_the_host(home: Path, line: str) -> None:
    loaded = loaded_by(*line.split(), home=home)

    assert LIBRARIES & loaded == {"cyclopts"}
    packages = {name.split(".")[1] for name in loaded if name.startswith("orchestrator.")}
    assert packages <= {"__main__", "base", "cli", "domain", "home", "reports", "store"}


def test_the_status_is_asked_without_the_libraries_of_the_host(home: Path) -> None:
    status = {**STATUS_OF_NOTHING, "home": str(home)}
    with answering(status) as address:
        (home / "data").mkdir(exist_ok=True)
        Home(home).address_file.write_text(address)
        Home(home).token_file.write_text("token")
        loaded = loaded_by("status", home=home)

    assert LIBRARIES & loaded == {"cyclopts"}
    packages = {name.split(".")[1] for name in loaded if name.startswith("orchestrator.")}
    assert packages <= {"__main__", "base", "cli", "domain", "home", "reports"}


@contextmanager
def answering(status: dict[str, Any]) -> Iterator[str]:
    """Serve what a running Andy tells of itself; give the address."""

    class StatusHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.headers["Authorization"] == "Bearer token" else 401)
            self.end_headers()
            self.wfile.write(json.dumps(status).encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), StatusHandler) as server:
        thread = Thread(target=server.serve_forever, name="status")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


STATUS_OF_NOTHING: dict[str, Any] = {
    "version": "1",
    "uptime_seconds": 1,
    "stopping": False,
    "runtime": "process",
    "isolated": False,
    "engine": True,
    "image_problem": None,
    "image": None,
    "agent": "offline",
    "credential": {"problem": "", "present": False, "refusals": []},
    "outages": [],
    "disk_free_bytes": 1,
    "channels": {},
    "failing": [],
    "groups": ["main"],
    "zone": "Etc/UTC",
    "settings_changed": [],
    "open": [],
    "slots": 5,
    "foresight": {"hits": {}, "misses": {}, "wasted_cpu_seconds": 0.0},
    "containers": [],
    "conversations": [],
    "waiting": [],
    "reminders": {"pending": 0, "next": []},
    "tasks": {"active": 0, "next": []},
    "turns": {},
    "outbox": {"waiting": 0, "unknown": 0, "dead": 0},
    "errors": [],
    "notices": [],
}


def test_a_command_loads_no_other(tmp_path: Path) -> None:
    loaded = {
        name for name in loaded_by("groups", "--help", home=tmp_path) if name.startswith("orchestrator")
    }

    targets = {f"orchestrator.cli.{entry.target.partition(':')[0]}" for entry in commands.COMMANDS}
    assert loaded & targets == {"orchestrator.cli.groups"}
