"""`andy up` on a home that another party watches, killed again and again, and what must hold afterwards."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

import docker
import httpx

from tests.processes.andy import ENGINE_SECONDS, AndyProcess, until
from tests.processes.forked_host import HostForks

SOAK_KILLS = int(os.environ.get("SOAK_KILLS", "0"))
"""Number of kills that `make soak` asks of each test; 0 in `make check`, which has a few of its own."""


def every_nth(count: int) -> int:
    """Return the distance between two points of a host's work at which it is killed: 1 in the soak."""
    return 1 if SOAK_KILLS else count


class MortalAndy(AndyProcess):
    """The host as `crashing_host.py` runs it: it can be told where to die, and notes what it sends."""

    def __init__(
        self,
        home: Path,
        *,
        runtime: str = "process",
        agent: str = "offline",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(home, runtime=runtime, agent=agent, environment=environment)
        self._forks: HostForks | None = None
        self._die_at = 0

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        if self._forks is not None:
            self._forks.close()

    def launch(self) -> None:
        """Begin a host that is forked: to import all of it anew takes most of the time of a short life."""
        if self._forks is None:
            with self.log.open("ab") as log:
                self._forks = HostForks(self.command, self.environment, log)
        self._points_file.unlink(missing_ok=True)
        self._process = self._forks.begin(self._die_at)

    def register(self, *folders: str) -> None:
        """Register groups that need no trigger."""
        for folder in folders:
            done = self.cli("groups", "register", folder, "--no-trigger")
            assert done.returncode == 0, done.stderr

    def points(self) -> int:
        """How many points the host has passed since it began."""
        return self._points_file.stat().st_size

    @property
    def _points_file(self) -> Path:
        return self.home.with_name(f"{self.home.name}.points")

    def start_to_die_at(self, point: int) -> None:
        self._die_at = point
        self.address_file.unlink(missing_ok=True)
        self.launch()

    def is_up(self) -> bool:
        return not self.is_dead() and self.listens()

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

    def until_settled_all(self, *, seconds: float = 400) -> None:
        until(lambda: self.is_up() and self.unsettled() == 0, seconds=seconds, what="all settled at last")

    def seen(self) -> dict[str, set[str]]:
        """What the other party saw: text by message id."""
        seen: dict[str, set[str]] = defaultdict(set)
        for line in (self.home / "data" / "seen").read_text(encoding="utf-8").splitlines():
            message = json.loads(line)
            seen[message["id"]].add(message["text"])
        return seen

    def check_answers(self, said: Mapping[str, str | None]) -> None:
        """Every accepted message has one outcome, and its answer was seen under one message id.

        `said` are echoes: the last word of each is its own, and its answer is that word.
        """
        stored = self._stored()
        for text, message_id in said.items():
            assert message_id is None or stored[text][0] == message_id, f"{text} was accepted and lost"
        answers: dict[str, list[str]] = defaultdict(list)
        for message_id, texts in self.seen().items():
            (text,) = texts
            for word in text.split():
                answers[word.rstrip(".")].append(message_id)
        for text, (_, state) in stored.items():
            assert state in ("answered", "failed"), f"{text} is {state}"
            times = len(answers[text.split()[-1]])
            assert times == (state == "answered"), f"{text} ({state}) was answered {times} times"

    def keep_notice(self, word: str) -> None:
        """Leave a note for main's agent to tell, while no host is up; nothing before the first has been."""
        path = self.home / "store" / "messages.db"
        if not path.exists():
            return
        connection = sqlite3.connect(path, timeout=10)
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'told_notices'").fetchone():
            connection.execute(
                """
                INSERT INTO cross_session_notifications
                    (group_folder, agent, scope, event_type, source, severity, payload_json, created_ms)
                VALUES ('main', 'self', 'cross_session', 'agent.self.notify', 'agent', 'info', ?, 1)
                """,
                (json.dumps({"message": word, "category": "context", "priority": "normal"}),),
            )
        connection.commit()
        connection.close()

    def check_notices(self) -> int:
        """Each note waits, or was told under one message id; no turn that is over has one. Gives how many."""
        kept = self.rows("SELECT * FROM cross_session_notifications WHERE agent = 'self'")
        running = {row["id"] for row in self.rows("SELECT id FROM turns WHERE state = 'running'")}
        times = Counter(word for (text,) in self.seen().values() for word in text.split())
        for row in kept:
            word = json.loads(row["payload_json"])["message"]
            assert row["claim_turn"] is None or row["claim_turn"] in running, f"{word} is held by nobody"
            assert (row["state"], row["deliveries"]) in (("pending", 0), ("delivered", 1)), word
            assert times[word] == row["deliveries"], f"{word} ({row['state']}) was told {times[word]} times"
        return len(kept)

    def _stored(self) -> dict[str, tuple[str, str]]:
        rows = self.rows(
            "SELECT m.content, m.id, t.state FROM messages m LEFT JOIN turns t ON t.id = m.turn_id"
            " WHERE m.sender <> 'andy'"
        )
        return {row["content"]: (row["id"], row["state"]) for row in rows}

    def live_runs(self) -> set[str]:
        """The runs that the store has not seen end."""
        return {row["id"] for row in self.rows("SELECT id FROM runs WHERE ended_ms IS NULL")}

    def containers(self) -> dict[str, str]:
        """All that the engine has of this install, ended ones too: container by run."""
        client = docker.APIClient(base_url=self._environment.get("DOCKER_HOST"), timeout=ENGINE_SECONDS)
        try:
            found = client.containers(all=True, filters={"label": [f"andy.install={self.install}"]})
        finally:
            client.close()
        return {one["Labels"]["andy.run"]: one["Id"] for one in found}

    def check_no_leak(self) -> None:
        """What the engine, the store and the host hold to be alive is the same, and all of it is idle."""

        def agree() -> bool:
            slots = {one["run"]: one["state"] for one in self.listed("status")["containers"]}
            engine = set(slots) if self._runtime == "process" else set(self.containers())
            return set(slots) == self.live_runs() == engine and set(slots.values()) <= {"idle"}

        until(agree, what="slots, rows and containers are the same")
