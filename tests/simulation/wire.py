"""The network between the containers of a simulated world and the proxy of the host that lives now.

A request goes to the real ASGI app, in the process of the host; each message is under way for a drawn time.
While no host listens, a connection is refused. Who dies leaves the other end with a broken connection.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.loop import PROCESS, Process, SimulatedLoop

SILENT_SECONDS = 360.0
"""Seconds of silence after which the CLI closes a connection."""


@dataclass(slots=True)
class _End:
    """The bytes that come to one end of a connection, in order."""

    process: Process
    messages: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)
    last_at_s: float = 0.0


@dataclass(slots=True)
class _Listening:
    process: Process
    app: Callable[..., Any]
    context: contextvars.Context


class Answer:
    """The answer to a request, as it comes to the container."""

    def __init__(self, end: _End) -> None:
        self._end = end
        self.status = 0
        self.headers: Mapping[str, str] = {}

    async def _next(self) -> dict[str, Any]:
        async with asyncio.timeout(SILENT_SECONDS):
            message = await self._end.messages.get()
        if message["type"] == "broken":
            raise ConnectionResetError("the connection broke")
        return message

    async def begin(self) -> None:
        start = await self._next()
        self.status = start["status"]
        self.headers = {name.decode().lower(): value.decode() for name, value in start["headers"]}

    async def body(self) -> bytes:
        """Return the whole body. Raises `OSError` where it breaks off."""
        whole = b""
        while True:
            message = await self._next()
            whole += message.get("body", b"")
            if not message.get("more_body", False):
                return whole


class Wire:
    """Carries requests of containers to the host."""

    def __init__(self, loop: SimulatedLoop, seed: str) -> None:
        self._loop = loop
        self._chance = random.Random(f"{seed}:wire")
        self._listening: _Listening | None = None
        self._open: list[tuple[_End, _End]] = []
        """The ends of each connection: the container's and the host's."""

    async def serve(self, app: Callable[..., Any]) -> None:
        """Listen for the host that calls this, until it is cancelled or dies."""
        context = contextvars.copy_context()
        listening = self._listening = _Listening(PROCESS.get(), app, context)
        try:
            await asyncio.Event().wait()
        finally:
            if self._listening is listening:
                self._listening = None

    @asynccontextmanager
    async def post(
        self, peer: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncIterator[Answer]:
        """Send a request and enter with the begun answer. Raises `OSError`."""
        await asyncio.sleep(self._chance.uniform(0.0005, 0.02))
        listening = self._listening
        if listening is None or listening.process.is_dead:
            raise ConnectionRefusedError("nobody listens")
        mine, theirs = _End(PROCESS.get()), _End(listening.process)
        ends = (mine, theirs)
        self._open.append(ends)
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": b"beta=true",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": (peer, 40_000),
        }
        self._put(theirs, {"type": "http.request", "body": body, "more_body": False})
        self._loop.create_task(
            self._run(listening.app, scope, ends), name="proxy-request", context=listening.context.copy()
        )
        answer = Answer(mine)
        try:
            await answer.begin()
            yield answer
        finally:
            self._put(theirs, {"type": "http.disconnect"})
            self._open = [one for one in self._open if one is not ends]

    async def _run(self, app: Callable[..., Any], scope: dict[str, Any], ends: tuple[_End, _End]) -> None:
        mine, theirs = ends

        async def send(message: dict[str, Any]) -> None:
            self._put(mine, message)

        try:
            await app(scope, theirs.messages.get, send)
        finally:
            self._put(mine, {"type": "broken"})  # read only where the answer has no end

    def _put(self, end: _End, message: dict[str, Any]) -> None:
        """Have a message come to one end a drawn time later, and after the earlier ones."""
        at_s = max(end.last_at_s, self._loop.time() + self._chance.uniform(0.0005, 0.02))
        end.last_at_s = at_s
        # What is under way arrives, whatever becomes of who sent it.
        self._loop.call_at(at_s, end.messages.put_nowait, message, context=contextvars.Context())

    def note_death(self, process: Process) -> None:
        """Break the connections of a process that has died."""
        for mine, theirs in self._open:
            if theirs.process is process:
                self._put(mine, {"type": "broken"})
            elif mine.process is process:
                self._put(theirs, {"type": "http.disconnect"})
        self._open = [one for one in self._open if process not in (one[0].process, one[1].process)]
