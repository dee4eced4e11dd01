"""`kill -9` of the host, at every point of a turn and at random under load: nothing lost, nothing doubled."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import httpx
import pytest

from tests.fakes.andy_process import AndyProcess, until

pytestmark = pytest.mark.timeout(1500)
RANDOM_KILLS = int(os.environ.get("SOAK_KILLS", "260"))
GROUPS = ("main", "one", "two", "three")


class MortalAndy(AndyProcess):
    """`andy up` on a home that other parties watch, killed again and again."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, runtime="process")
        self.program = [sys.executable, str(Path(__file__).with_name("dying_host.py"))]

    def start_to_die_at(self, point: int) -> None:
        self._environment["DIE_AT"] = str(point)
        self.address_file.unlink(missing_ok=True)
        self.launch()

    def is_up(self) -> bool:
        return not self.is_dead() and self.address_file.exists() and bool(self.address_file.read_text())

    def is_dead(self) -> bool:
        assert self._process is not None
        return self._process.poll() is not None

    def has_died_by_kill(self) -> bool:
        assert self._process is not None
        return self._process.poll() == -signal.SIGKILL

    def try_to_say(self, text: str, group: str = "main") -> str | None:
        """The id of the message if it was accepted; None when the host died before it said so."""
        try:
            with self.http() as http:
                answer = http.post("/chat", json={"group": group, "text": text, "wait": 0})
        except (httpx.HTTPError, FileNotFoundError):
            return None
        return str(answer.json()["id"])

    def unsettled(self) -> int:
        (row,) = self.rows(
            "SELECT (SELECT count(*) FROM turns WHERE state IN ('queued', 'running'))"
            " + (SELECT count(*) FROM outbox WHERE state IN ('held', 'pending', 'sending')) AS n"
        )
        return int(row["n"])

    def seen(self) -> dict[str, set[str]]:
        """What the other party saw: text by message id."""
        seen: dict[str, set[str]] = defaultdict(set)
        for line in (self.home / "data" / "seen").read_text(encoding="utf-8").splitlines():
            message = json.loads(line)
            seen[message["id"]].add(message["text"])
        return seen


def check(andy: MortalAndy, said: dict[str, str | None]) -> None:
    """Every accepted message has one outcome, and its answer was seen under one message id."""
    stored = {
        row["content"]: row
        for row in andy.rows(
            "SELECT m.content, m.id, t.state FROM messages m LEFT JOIN turns t ON t.id = m.turn_id"
            " WHERE m.sender <> 'andy'"
        )
    }
    for text, message_id in said.items():
        assert message_id is None or stored[text]["id"] == message_id, f"{text} was accepted and lost"
    answers: dict[str, list[str]] = defaultdict(list)
    for message_id, texts in andy.seen().items():
        (text,) = texts
        for word in text.split():
            answers[word].append(message_id)
    for text, row in stored.items():
        word = text.split()[-1]
        assert row["state"] in ("answered", "failed"), text
        expected = 1 if row["state"] == "answered" else 0
        assert len(answers[word]) == expected, (
            f"{text} ({row['state']}) was answered {len(answers[word])} times"
        )


def test_no_point_of_a_turn_is_a_bad_one_to_die_at(tmp_path: Path) -> None:
    said: dict[str, str | None] = {}
    deaths = 0
    with MortalAndy(tmp_path / "home") as andy:
        for point in range(1, 500):
            andy.kill()
            andy.start_to_die_at(point)
            until(lambda: andy.is_dead() or andy.is_up(), what="up or dead")
            word = f"w{point:03d}"
            if not andy.is_dead():
                said[f"echo {word}"] = andy.try_to_say(f"echo {word}")
            until(lambda: andy.is_dead() or andy.unsettled() == 0, what=f"dead or done at point {point}")
            if not andy.is_dead():
                break
            assert andy.has_died_by_kill()
            deaths += 1
        else:
            pytest.fail("the work has no end")
        check(andy, said)
    assert deaths > 25, "a turn has more points than that"


def test_random_kills_under_load(tmp_path: Path) -> None:
    chance = random.Random(20261122)
    said: dict[str, str | None] = {}
    with MortalAndy(tmp_path / "home") as andy:
        for group in GROUPS[1:]:
            andy.cli("groups", "register", group, "--no-trigger")
        andy.kill()
        for kill in range(RANDOM_KILLS):
            andy.start_to_die_at(chance.randint(1, 60))
            until(lambda: andy.is_dead() or andy.is_up(), what="up or dead")
            for number in range(chance.randint(1, 4)):
                text = f"echo k{kill:04d}n{number}"
                said[text] = andy.try_to_say(text, group=chance.choice(GROUPS))
            until(lambda: andy.is_dead() or andy.unsettled() == 0, what=f"dead or done after kill {kill}")
            andy.kill()
        andy.start_to_die_at(0)
        until(lambda: andy.is_up() and andy.unsettled() == 0, seconds=200, what="all settled at last")
        check(andy, said)
        assert _processes_of(andy) <= len(GROUPS)


def _processes_of(andy: AndyProcess) -> int:
    """How many agents of this home live: idle ones may, one a group."""
    listed = subprocess.run(["pgrep", "-f", "agent_runner"], capture_output=True, text=True, check=False)
    mark = str(andy.home / "data" / "process")
    environments = (Path(f"/proc/{pid}/environ") for pid in listed.stdout.split())
    return sum(mark in file.read_text(errors="replace") for file in environments if file.exists())
