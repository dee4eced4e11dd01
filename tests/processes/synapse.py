"""A real Matrix homeserver: Synapse with SQLite, in a process of its own, on loopback, known to nobody else.

Its libraries do not fit beside Andy's, so it has an environment of its own, `.matrix-server`, which
`make matrix-server` sets up from `tests/matrix-server.lock`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import httpx

from tests.support.until import DEADLINE_SECONDS

PYTHON = (
    Path(os.environ.get("ANDY_MATRIX_SERVER", Path(__file__).parents[2] / ".matrix-server")) / "bin/python"
)
START_SECONDS = DEADLINE_SECONDS
UPLOAD_BYTES = 2 * 1024**2
"""The largest file that it takes."""
RATE = "{per_second: 10000, burst_count: 10000}"
CONFIG = """\
server_name: localhost
pid_file: {folder}/pid
listeners:
  - {{port: {port}, bind_addresses: ["127.0.0.1"], type: http, tls: false, resources: [{{names: [client]}}]}}
database: {{name: sqlite3, args: {{database: {folder}/homeserver.db}}}}
log_config: {folder}/log.yaml
media_store_path: {folder}/media
max_upload_size: {upload}
enable_registration: true
enable_registration_without_verification: true
registration_shared_secret: shared
macaroon_secret_key: macaroon
form_secret: form
signing_key_path: {folder}/signing.key
trusted_key_servers: []
suppress_key_server_warning: true
report_stats: false
bcrypt_rounds: 4
presence: {{enabled: false}}
rc_message: {messages}
rc_registration: {rate}
rc_login: {{address: {rate}, account: {rate}, failed_attempts: {rate}}}
rc_joins: {{local: {rate}, remote: {rate}}}
rc_invites: {{per_room: {rate}, per_user: {rate}, per_issuer: {rate}}}
rc_media_create: {rate}
"""
LOG = """\
version: 1
formatters: {{plain: {{format: "%(asctime)s %(levelname)s %(name)s %(message)s"}}}}
handlers: {{file: {{class: logging.FileHandler, filename: {folder}/synapse.log, formatter: plain}}}}
root: {{level: WARNING, handlers: [file]}}
loggers: {{synapse.access.http: {{level: INFO}}}}
disable_existing_loggers: false
"""


class Synapse:
    """A homeserver on `folder`; it can be killed and started again, on the same port with the same data."""

    def __init__(self, folder: Path, *, messages_per_second: float | None = None) -> None:
        """`messages_per_second` makes it answer 429 to whoever sends more."""
        self.folder = folder
        self.port = _free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._http = httpx.Client(timeout=DEADLINE_SECONDS)
        folder.mkdir(parents=True, exist_ok=True)
        messages = (
            f"{{per_second: {messages_per_second}, burst_count: 1}}"
            if messages_per_second is not None
            else RATE
        )
        values = {"folder": folder, "port": self.port, "rate": RATE, "messages": messages}
        (folder / "homeserver.yaml").write_text(CONFIG.format(**values, upload=UPLOAD_BYTES))
        (folder / "log.yaml").write_text(LOG.format(folder=folder))
        subprocess.run([*self._command, "--generate-keys"], check=True, capture_output=True)

    @property
    def _command(self) -> list[str]:
        config = str(self.folder / "homeserver.yaml")
        return [str(PYTHON), "-m", "synapse.app.homeserver", "--config-path", config]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._http.close()

    def start(self) -> None:
        """Start it and wait until it answers."""
        with (self.folder / "out").open("ab") as out:
            self._process = subprocess.Popen(self._command, stdout=out, stderr=out)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self._process.poll() is None, (self.folder / "out").read_text()[-2000:]
            try:
                self._http.get(f"{self.address}/_matrix/client/versions").raise_for_status()
            except httpx.HTTPError:
                time.sleep(0.1)
            else:
                return
        raise AssertionError("Synapse did not start")

    def stop(self) -> None:
        """End it in order, so that it has written all that it took."""
        self._end(signal.SIGTERM)

    def forget_transactions(self) -> None:
        """Delete what it knows transactions by, as it does by itself with those of a day ago."""
        self.kill()
        database = sqlite3.connect(self.folder / "homeserver.db")
        with database:
            database.execute("DELETE FROM event_txn_id_device_id")
        database.close()
        self.start()

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, sign: int) -> None:
        if self._process is not None:
            self._process.send_signal(sign)
            self._process.wait()
            self._process = None

    def post(self, path: str, *, token: str, method: str = "POST") -> None:
        """Make a request with a token."""
        headers = {"Authorization": f"Bearer {token}"}
        answer = self._http.request(method, f"{self.address}/_matrix/client/v3/{path}", headers=headers)
        assert answer.is_success, answer.text

    def requests(self) -> list[str]:
        """Return a line for each request so far, with its address."""
        lines = (self.folder / "synapse.log").read_text().splitlines()
        return [line for line in lines if "synapse.access" in line]

    def person(self, name: str) -> Person:
        """Register somebody with the password `secret` and log them in."""
        body = {"username": name, "password": "secret", "auth": {"type": "m.login.dummy"}}
        answer = self._http.post(f"{self.address}/_matrix/client/v3/register", json=body)
        answer.raise_for_status()
        return Person(self._http, self.address, answer.json())


@dataclass(frozen=True, slots=True)
class Page:
    """An answer of a server before the homeserver, as HTML."""

    status: int


class Fault(StrEnum):
    """A way in which a request ends without its answer."""

    SWALLOWED = "the homeserver does what is asked, and the connection is cut before it says so"
    HANGS = "the request is never answered"


@asynccontextmanager
async def strict_entrance(
    server: Synapse, refusals: dict[str, list[float | Page | Fault]]
) -> AsyncIterator[str]:
    """Yield another address of a homeserver, where it is asked in vain at first.

    `refusals` has, by a piece of a path, the end of each of its next requests: the seconds that it is told to
    wait, a page, or a fault.
    """
    from aiohttp import ClientSession, web  # installed where the library of Matrix is
    from yarl import URL

    async def pass_on(request: web.Request) -> web.Response:
        for path, pauses in refusals.items():
            if path not in request.path or not pauses:
                continue
            match pauses.pop(0):
                case Page(status):
                    text = f"<html><body><h1>{status}</h1></body></html>"
                    return web.Response(text=text, status=status, content_type="text/html")
                case Fault.HANGS:
                    await asyncio.Event().wait()
                case Fault.SWALLOWED:
                    await answered(request)
                    assert request.transport is not None
                    request.transport.abort()
                    raise ConnectionResetError
                case seconds:
                    wait = {"retry_after_ms": int(seconds * 1000)}
                    error = {"errcode": "M_LIMIT_EXCEEDED", "error": "Too Many Requests"}
                    return web.json_response(error | wait, status=429)
        return await answered(request)

    async def answered(request: web.Request) -> web.Response:
        target = URL(server.address + request.raw_path, encoded=True)
        headers = {
            name: request.headers[name]
            for name in ("Authorization", "Content-Type")
            if name in request.headers
        }
        async with client.request(
            request.method, target, data=await request.read(), headers=headers
        ) as answer:
            kind = {"Content-Type": answer.headers["Content-Type"]}
            return web.Response(body=await answer.read(), status=answer.status, headers=kind)

    app = web.Application(client_max_size=10 * UPLOAD_BYTES)
    app.router.add_route("*", "/{path:.*}", pass_on)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    async with ClientSession() as client:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield "http://{}:{}".format(*runner.addresses[0][:2])
        finally:
            await runner.cleanup()


class Person:
    """Somebody with a client of their own, who writes in rooms and sees what is in them."""

    def __init__(self, http: httpx.Client, address: str, login: dict[str, str]) -> None:
        self.address = address
        self.user_id, self.token, self.device_id = login["user_id"], login["access_token"], login["device_id"]
        self._http = http
        self._numbers = 0

    def _asked(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}", **more.pop("headers", {})}
        answer = self._http.request(method, f"{self.address}/_matrix/{path}", headers=headers, **more)
        answer.raise_for_status()
        return answer

    def call(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        """Make a request of the client-server API and return its answer. Raises `httpx.HTTPStatusError`."""
        return dict(self._asked(method, f"client/v3/{path}", json=body if method != "GET" else None).json())

    def make_room(self, *invited: str, **more: Any) -> str:
        return str(self.call("POST", "createRoom", invite=list(invited), **more)["room_id"])

    def write(self, room: str, text: str, **content: Any) -> str:
        """Write a message and return its event id; `content` is added to it."""
        return self.send(room, "m.room.message", {"msgtype": "m.text", "body": text, **content})

    def send(self, room: str, kind: str, content: dict[str, Any]) -> str:
        self._numbers += 1
        return str(self.call("PUT", f"rooms/{room}/send/{kind}/p{self._numbers}", **content)["event_id"])

    def redact(self, room: str, event_id: str) -> str:
        self._numbers += 1
        return str(self.call("PUT", f"rooms/{room}/redact/{event_id}/p{self._numbers}")["event_id"])

    def upload(self, body: bytes, mime: str) -> str:
        answer = self._asked("POST", "media/v3/upload", content=body, headers={"Content-Type": mime})
        return str(answer.json()["content_uri"])

    def download(self, uri: str) -> bytes:
        return self._asked("GET", f"client/v1/media/download/{uri.removeprefix('mxc://')}").content

    def events(self, room: str, kind: str = "m.room.message") -> list[dict[str, Any]]:
        """Return every event of a kind in a room, oldest first, as this person's client is given them."""
        found: list[dict[str, Any]] = []
        place = ""
        while True:
            page = self.call("GET", f"rooms/{room}/messages?dir=b&limit=500{place}")
            found += [one for one in page["chunk"] if one["type"] == kind]
            if not page["chunk"] or "end" not in page:
                return found[::-1]
            place = f"&from={page['end']}"

    def texts(self, room: str, sender: str) -> list[str]:
        """Return what somebody has written in a room, oldest first; what was taken back is left out."""
        return [
            one["content"]["body"]
            for one in self.events(room)
            if one["sender"] == sender and "body" in one["content"]
        ]

    def members(self, room: str) -> list[str]:
        return list(self.call("GET", f"rooms/{room}/joined_members")["joined"])

    def now(self, room: str) -> dict[str, list[Any]]:
        """Return who is typing in a room and the receipts in it, by the kind of the event."""
        answer = self.call("GET", "sync?timeout=0")
        found = answer["rooms"]["join"][room]["ephemeral"]["events"]
        return {one["type"]: one["content"] for one in found}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
