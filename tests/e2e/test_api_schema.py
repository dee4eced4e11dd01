"""Schemathesis asks a whole host whatever `/api/openapi.json` admits, and near misses, signed in and not.

It follows the links of the description from what one answer names to what may be asked of it next. A few
examples of each operation here; `make conformance` asks for more with the Hypothesis profile `soak`.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.processes.andy import AndyProcess

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
CONFIG = Path(__file__).parents[1] / "conformance/schemathesis.toml"
IS_SOAK = settings.default.max_examples >= 500
EXAMPLES = "50" if IS_SOAK else "3"
PHASES = "coverage,fuzzing,stateful" if IS_SOAK else "fuzzing,stateful"
SEED = () if IS_SOAK else ("--seed", "28")
WRITTEN_BY_THE_HOST = {"audit", "host_events", "runs", "sqlite_sequence"}
"""Tables that a host without work may write to by itself, or that say who was not let in."""


@pytest.fixture(scope="module")
def andy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AndyProcess]:
    # No test asks WhatsApp's own servers for a code.
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    with AndyProcess(tmp_path_factory.mktemp("schema") / "home", environment=nowhere) as andy:
        with andy.http() as http:
            assert http.post("/groups", json={"folder": "family", "jid": "local:family"}).is_success
            andy.say("remind me tomorrow at 9:00 to buy milk")
            new = {"group": "main", "prompt": "look", "schedule_type": "cron", "schedule_value": "0 9 * * *"}
            assert http.post("/tasks", json=new).is_success
            description_of(andy).write_bytes(http.get("/api/openapi.json").raise_for_status().content)
        yield andy


def description_of(andy: AndyProcess) -> Path:
    """Return where its description is kept, for who may not read it."""
    return andy.home.parent / "openapi.json"


def asked(andy: AndyProcess, *arguments: str, phases: str = PHASES) -> str:
    """Return what Schemathesis found; fails the test where that is anything."""
    command = [
        str(SCHEMATHESIS), "--config-file", str(CONFIG), "run", str(description_of(andy)),
        "--url", andy.address, "--phases", phases, "-n", EXAMPLES, "--continue-on-failure", *SEED, *arguments,
    ]  # fmt: skip
    hooks = {"SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": str(CONFIG.parent)}
    environment = {**os.environ, **hooks, "NO_COLOR": "1"}
    found = subprocess.run(
        command, cwd=andy.home.parent, env=environment, capture_output=True, text=True, check=False
    )
    print(found.stdout)
    assert found.returncode == 0, found.stdout[-20_000:] + found.stderr[-2_000:]
    return found.stdout


def token_of(andy: AndyProcess) -> tuple[str, str]:
    return "-H", f"Authorization: Bearer {(andy.home / 'data' / 'token').read_text().strip()}"


def stored(andy: AndyProcess) -> dict[str, list[Any]]:
    """Return every row of the store, by its table."""
    path = andy.home / "store" / "messages.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        names = [one for (one,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            name: database.execute(f"SELECT * FROM {name}").fetchall()
            for name in names
            if name not in WRITTEN_BY_THE_HOST
        }


def test_what_only_reads_changes_nothing_and_answers_by_its_schema(andy):
    before = stored(andy)

    asked(andy, *token_of(andy), "--include-method", "GET", phases="fuzzing")

    assert stored(andy) == before


def test_who_is_not_signed_in_changes_nothing_and_is_told_so_by_the_schema(andy):
    before = stored(andy)

    asked(andy, phases="fuzzing")

    assert stored(andy) == before


def test_every_answer_is_one_of_the_schema_whatever_was_asked_before(andy):
    asked(andy, *token_of(andy))

    with andy.http() as http:
        assert http.get("/healthz").json()["ok"]
    assert andy.say("hello")["outcome"] == "answered"
