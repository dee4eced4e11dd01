"""Speaks to the running Andy of a home over HTTP on loopback, with the home's token."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import quote, urlsplit

from orchestrator.base import installation
from orchestrator.base.clock import SystemClock
from orchestrator.domain.errors import AndyError, AndyFileDamaged, NotRunning, Starting
from orchestrator.home import lock as home_lock
from orchestrator.home import setting_sources
from orchestrator.home.directory import Home

if TYPE_CHECKING:
    import httpx

    from orchestrator.dashboard.feature import WorkerQueued
    from orchestrator.reports.status import StatusView
    from orchestrator.web.api.groups import TextQueued
    from orchestrator.web.api.pairing import PairingView

CONNECT_SECONDS = 3.0
HTTP_NOT_FOUND = 404


class AnswerLost(Exception):
    """The running Andy ended before it had answered: the request may have been carried out."""


class Client:
    """One connection to the running Andy: `async with Client.of(home) as client`.

    Every method raises `NotRunning` if nothing answers, and `AndyError` with the text of a refusal.
    """

    def __init__(self, http: httpx.AsyncClient) -> None:
        """`http` has the address and the token of the running Andy; `Client.of` opens and closes it."""
        self._http = http

    @classmethod
    @asynccontextmanager
    async def of(cls, home: Home) -> AsyncIterator[Self]:
        """Yield a connection to the Andy that runs on a home; it is closed after the block.

        Raises:
            NotRunning: nothing answers. If an answer was lost under way, `AnswerLost` is its cause.
        """
        import httpx

        address, headers = _endpoint_of(home)
        # Only connecting has a limit: a reply may take minutes, and a stream of events does not end.
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
        # `trust_env` is off, so that a proxy of the environment is neither asked nor shown the token.
        async with httpx.AsyncClient(
            base_url=address, headers=headers, timeout=timeout, trust_env=False
        ) as http:
            try:
                yield cls(http)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                raise _not_running(home) from error
            except httpx.TransportError as error:
                # The connection was there and broke: the request may have been carried out.
                raise _not_running(home) from AnswerLost(str(error))

    async def say(
        self, group: str, text: str, *, sender: str, wait_seconds: float, key: str | None = None
    ) -> dict[str, Any]:
        """Send a message to a group, and wait up to `wait_seconds` for the reply.

        Return its state: `{id, outcome, reply?, reason?, place?, joined?}`. `place` is its place in the
        queue, `joined` the number of earlier messages that are answered with it. A message that is sent again
        with the same `key` is accepted once.
        """
        body = {"group": group, "text": text, "sender": sender, "wait": wait_seconds}
        return _checked_content(
            await self._http.post("/chat", json=body if key is None else {**body, "key": key})
        )

    async def open_chat(self, group: str) -> dict[str, Any]:
        """Notify Andy that somebody is about to write to a group, so that its container starts in advance."""
        return _checked_content(await self._http.post(f"/chat/{quote(group, safe='')}/opened"))

    async def find(self, message_id: str, *, wait_seconds: float = 0.0) -> dict[str, Any]:
        """Return the state of a message, as `say` does, once it is answered or after `wait_seconds`."""
        return _checked_content(
            await self._http.get(f"/messages/{message_id}", params={"wait": wait_seconds})
        )

    async def say_as_andy(self, folder: str, text: str) -> TextQueued:
        """Let Andy send a text to the chat of the group `folder`, word for word."""
        path = f"/groups/{quote(folder, safe='')}/say"
        return cast("TextQueued", _checked_content(await self._http.post(path, json={"text": text})))

    async def ask_to_pair(self, phone: str) -> PairingView:
        """Request that the running Andy shows codes to pair WhatsApp, and return the state of the pairing.

        `phone` is the number of a phone that enters a code; empty for QR codes. Raises `AndyError` if
        WhatsApp is off.
        """
        response = await self._http.post("/whatsapp/pair", json={"phone": phone})
        if response.status_code == HTTP_NOT_FOUND:  # the path is there only while WhatsApp is on
            raise AndyError(
                "WhatsApp is off in ANDY_CHANNELS of the running Andy: put whatsapp into that line of .env,"
                " such as ANDY_CHANNELS=whatsapp, and start Andy again."
            )
        return cast("PairingView", _checked_content(response))

    async def pairing(self) -> PairingView:
        """Return the state of the pairing of WhatsApp."""
        headers = {"Accept": "application/json"}
        return cast("PairingView", _checked_content(await self._http.get("/whatsapp/pair", headers=headers)))

    async def ask_worker(self, folder: str) -> WorkerQueued:
        """Queue a turn in which a model looks at the dashboard of the group `folder`; return its ids."""
        path = f"/dashboards/{quote(folder, safe='')}/worker"
        return cast("WorkerQueued", _checked_content(await self._http.post(path)))

    async def console_address(self) -> str:
        """Return the console's address with a one-time code that signs a browser in."""
        code = _checked_content(await self._http.post("/sessions/codes"))
        return f"{str(self._http.base_url).rstrip('/')}{code['path']}"

    async def status(self) -> StatusView:
        """Return the status of the running Andy."""
        return cast("StatusView", _checked_content(await self._http.get("/status")))

    async def events(
        self, *, group: str | None = None, recent: int = 0, follows: bool = True
    ) -> AsyncGenerator[dict[str, Any]]:
        """Yield the latest `recent` events and, if `follows`, new events as they happen.

        `group` limits them to one group; None means all. The first item is an empty dict, which only marks
        that from then on no event is missed.
        """
        query = {"recent": str(recent), "follow": str(follows).lower(), **({"group": group} if group else {})}
        async with self._http.stream("GET", "/events", params=query) as response:
            if response.is_error:
                # The body of a streamed answer has to be read before its error can be shown.
                await response.aread()
                _checked_content(response)
            yield {}
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))


def running_status(home: Home) -> StatusView:
    """Return the answer of the running Andy to `GET /status`. Blocks.

    Raises:
        NotRunning: nothing answers; while Andy is starting it is its subclass `Starting`.
        AndyError: the answer is an error.
    """
    # The standard library, because loading httpx takes ten times as long as Andy's answer.
    import http.client

    address, headers = _endpoint_of(home)
    endpoint = urlsplit(address)
    with closing(
        http.client.HTTPConnection(endpoint.hostname or "", endpoint.port, timeout=CONNECT_SECONDS)
    ) as connection:
        try:
            connection.connect()
            connection.sock.settimeout(None)  # it may take long to answer on a busy machine
            connection.request("GET", "/status", headers=headers)
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise _not_running(home) from error
    return cast("StatusView", _parse_answer(response.status, body))


def _endpoint_of(home: Home) -> tuple[str, dict[str, str]]:
    """Return the address of the running Andy and the headers that it requires. Raises `NotRunning`."""
    try:
        address = read_address(home)
    except FileNotFoundError as error:
        raise _not_running(home) from error
    except OSError as error:
        raise _unreadable(home.address_file, error) from error
    try:
        token = _line_in(home.token_file)
    except FileNotFoundError as error:
        # Not "Andy is not running": a person who then types 'andy up' would read that Andy runs already.
        raise NotRunning(
            f"Nobody can speak to Andy, for {home.token_file} is missing: end Andy, then start it"
            " with 'andy up', which makes a new one."
        ) from error
    except OSError as error:
        raise _unreadable(home.token_file, error) from error
    return address, {"Authorization": f"Bearer {token}"}


def read_address(home: Home) -> str:
    """Return the address of the Andy that was started last on a home, as his file has it.

    Raises:
        AndyFileDamaged: the file is damaged.
        OSError: it cannot be read, or is not there.
    """
    address = _line_in(home.address_file)
    try:
        is_address = address.startswith("http://") and urlsplit(address).port is not None
    except ValueError:
        is_address = False
    if not is_address:
        raise _damaged(home.address_file)
    return address


def _line_in(path: Path) -> str:
    """Return the only line of a file that Andy writes for his commands, without blanks around it.

    Raises:
        AndyFileDamaged: it has no such line.
        OSError: it cannot be read, or is not there.
    """
    try:
        line = path.read_text(encoding="ascii").strip()
    except UnicodeDecodeError as error:
        raise _damaged(path) from error
    if not line.isprintable() or not line:
        raise _damaged(path)
    return line


def _damaged(path: Path) -> AndyFileDamaged:
    """Return the error for a file of the running Andy whose content cannot be from him."""
    return AndyFileDamaged(
        f"{path} is damaged: end Andy, remove the file, then start Andy with 'andy up', which writes it anew."
    )


def _unreadable(path: Path, error: OSError) -> NotRunning:
    """Return the error for a file of the running Andy that this user cannot read."""
    return NotRunning(f"{path} cannot be read ({error.strerror}): call andy as the user who runs Andy.")


def _checked_content(response: httpx.Response) -> dict[str, Any]:
    """Return the JSON object of a response. Raises `AndyError` if the response is an error."""
    return _parse_answer(response.status_code, response.content)


def _parse_answer(status: int, body: bytes) -> dict[str, Any]:
    """Return the JSON object in an answer's body.

    Raises:
        AndyError: the answer is an error.
        NotRunning: another program has answered, not Andy.
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    is_object = isinstance(content, dict)
    if is_object and status < 400:
        return cast("dict[str, Any]", content)
    error = content.get("error") if is_object else None
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        raise AndyError(error["message"])
    if status >= 500:
        raise AndyError(f"Andy failed to answer (HTTP {status}): its log says why.")
    # After Andy was killed, another program may have got the port that his file still names.
    raise NotRunning(
        f"Another program answers in the place of Andy (HTTP {status}): 'andy doctor' says what is wrong."
    )


def _not_running(home: Home) -> NotRunning:
    """Return the error for a home whose Andy does not answer: a `Starting` if a process is starting him.

    Its text says to start Andy, to ask again in a moment while he starts, or why no start can succeed: a
    setting or the store cannot be used.
    """
    since_ms = home_lock.starting_since_ms(home)
    if since_ms is None:
        from orchestrator.home import settings
        from orchestrator.store.database import refuse_newer

        # With such settings, or a store of a newer Andy, no start succeeds: "start it" would be no help.
        try:
            settings.load(home.root)
            refuse_newer(home.database)
        except AndyError as error:
            return NotRunning(f"Andy is not running on {home.root} and cannot start: {error}")
        if str(home.root) == installation.COMPOSE_HOME:
            return NotRunning(
                "Andy is not running: on the host, 'docker compose logs --tail 20 andy' tells why,"
                " and 'docker compose up -d' starts him."
            )
        return NotRunning(
            f"Andy is not running on {home.root}: start it with 'andy up', or say where with --home."
        )
    at = datetime.fromtimestamp(since_ms / 1000, setting_sources.zone(home.root))
    seconds = max(0, SystemClock().now_ms() - since_ms) // 1000
    return Starting(
        f"Andy is starting on {home.root}, since {at:%H:%M:%S} ({seconds} s ago):"
        " ask again in a moment; 'andy logs' tells what it does."
    )
