"""`andy up` as a real process on a home of its own, spoken to as a user would: HTTP and the command line."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Any, Self

import httpx

from orchestrator.containers.firewall import Firewall, FirewallOutOfReach
from tests.processes.andy_forks import andy_forks
from tests.processes.forked_host import ForkedHost
from tests.support.until import DEADLINE_SECONDS, wait_until

until = wait_until
PATIENCE_SECONDS = DEADLINE_SECONDS
END_SECONDS = 180.0
ENGINE_SECONDS = 300
"""For one call to an engine."""
COMMAND_SECONDS = 300.0
PROGRAM = [sys.executable, "-m", "orchestrator"]
KEPT = ("PATH", "HOME", "LANG", "TZ", "ANDY_IMAGE")


def _text_of(written: IO[bytes]) -> str:
    written.seek(0)
    return written.read().decode().replace("\r\n", "\n")


class AndyProcess:
    """Enter it to start, leave it to stop with all its containers."""

    def __init__(
        self,
        home: Path,
        *,
        runtime: str = "process",
        agent: str = "offline",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.home = home
        self._runtime = runtime
        self._agent = agent
        self._port = "0"
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | ForkedHost | None = None
        self.program = PROGRAM
        self.is_forked = True
        """It begins as a fork, which takes a tenth of the time, where `program` is nothing special."""
        self.log = home.parent / f"{home.name}.log"

    def __enter__(self) -> Self:
        self.home.mkdir(parents=True, exist_ok=True)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._remove_containers()

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        return {**kept, "ANDY_HOME": str(self.home), **self._environment}

    def start(self) -> None:
        """Start it and wait until it listens."""
        self.address_file.unlink(missing_ok=True)
        self.launch()
        try:
            until(self.is_up, what="andy up listens")
        except AssertionError as error:
            raise AssertionError(f"{error}; it says: {self.log.read_text()[-2_000:]}") from error

    def start_at(self, port: str) -> None:
        """Start it again where it listened before, as a page that is open expects."""
        self._port = port
        self.start()

    @property
    def command(self) -> list[str]:
        return ["up", "--runtime", self._runtime, "--agent", self._agent, "--port", self._port]

    def launch(self) -> None:
        with self.log.open("ab") as log, Path(os.devnull).open("rb") as nothing:
            if self.is_forked and self.program is PROGRAM:
                streams = {"stdin": nothing.fileno(), "stdout": log.fileno(), "stderr": log.fileno()}
                self._process = andy_forks().begin(self.command, self.environment, **streams)
            else:
                command = [*self.program, *self.command]
                self._process = subprocess.Popen(
                    command, env=self.environment, stdin=nothing, stdout=log, stderr=log
                )

    def is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()
        return self.listens()

    def listens(self) -> bool:
        """Whether it has written down where; one that ends takes that away."""
        try:
            return bool(self.address_file.read_text())
        except FileNotFoundError:
            return False

    def kill(self) -> None:
        """End it as a power cut would."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """End it as `docker stop` would, and return its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end, and return its exit code."""
        assert self._process is not None
        return self._process.wait(timeout=END_SECONDS)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def address_file(self) -> Path:
        return self.home / "data" / "address"

    @property
    def address(self) -> str:
        return self.address_file.read_text()

    @property
    def install(self) -> str:
        return (self.home / "data" / "install").read_text()

    def http(self, *, seconds: float = PATIENCE_SECONDS, **headers: str) -> httpx.Client:
        token = (self.home / "data" / "token").read_text()
        return httpx.Client(
            base_url=self.address,
            headers={"Authorization": f"Bearer {token}", **headers},
            timeout=seconds,
            trust_env=False,
        )

    def say(
        self, text: str, *, group: str = "main", sender: str = "you", wait: float = PATIENCE_SECONDS
    ) -> dict[str, Any]:
        """Write to a group, and return where the message is then."""
        body = {"group": group, "text": text, "wait": wait, "sender": sender}
        with self.http(seconds=wait + PATIENCE_SECONDS) as http:
            response = http.post("/chat", json=body)
        response.raise_for_status()
        found: dict[str, Any] = response.json()
        return found

    def find(self, message_id: str) -> dict[str, Any]:
        with self.http() as http:
            found: dict[str, Any] = http.get(f"/messages/{message_id}").json()
        return found

    def until_settled(self, message_id: str, *, seconds: float | None = None) -> dict[str, Any]:
        """Wait for the outcome of a message, also across restarts. `seconds` is for a model that is slow."""
        return until(lambda: self._settled(message_id), seconds=seconds, what=f"message {message_id} settled")

    def _settled(self, message_id: str) -> dict[str, Any] | None:
        found = self.find(message_id)
        is_sent = found["outcome"] not in ("answered", "failed") or not self.rows(
            "SELECT 1 FROM outbox WHERE turn_id = ? AND state IN ('pending', 'sending')", found["turn"]
        )
        if found["outcome"] not in ("answered", "failed", "ignored") or not is_sent:
            return None
        return self.find(message_id)  # it may have been sent only since it was found

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `andy …` on this home."""
        with (
            Path(os.devnull).open("rb") as nothing,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            streams = {"stdin": nothing.fileno(), "stdout": out.fileno(), "stderr": err.fileno()}
            code = andy_forks().begin(arguments, self.environment, **streams).wait(COMMAND_SECONDS)
            said = [_text_of(out), _text_of(err)]
        return subprocess.CompletedProcess(["andy", *arguments], code, *said)

    def listed(self, *arguments: str) -> Any:
        """What a listing command gives as JSON."""
        done = self.cli(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def rows(self, sql: str, *values: object) -> list[sqlite3.Row]:
        """Look into the store from outside."""
        uri = f"file:{self.home / 'store' / 'messages.db'}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=10)) as connection:
            connection.row_factory = sqlite3.Row
            return connection.execute(sql, values).fetchall()

    def logged(self) -> list[dict[str, Any]]:
        """The log's lines, oldest first, without one that is being written."""
        *whole, _ = self.log.read_text(errors="replace").split("\n")
        return [json.loads(line) for line in whole if line[:1] == "{"]

    def events(self) -> list[str]:
        """The kinds of the log's lines, oldest first."""
        return [line.get("event", "") for line in self.logged()]

    def _remove_containers(self) -> None:
        if self._runtime != "docker":
            return
        import docker
        from docker.utils import kwargs_from_env

        from tests.support.engine_cleanup import clear_engine

        with closing(docker.APIClient(**kwargs_from_env(), timeout=ENGINE_SECONDS)) as client:
            clear_engine(client, f"andy.install={self.install}")
        with suppress(FirewallOutOfReach):
            Firewall(install=self.install, bridge="", gateway="").remove()
