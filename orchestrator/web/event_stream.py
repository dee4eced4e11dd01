"""Server-sent events: their format, and the response that sends them until the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from orchestrator.base.asgi_server import STOPPING

PING_SECONDS = 15.0
"""Seconds without an event after which `PING` is sent, so that each end notices that the other is gone."""
PING = ": ping\n\n"
LISTENING = ": listening\n\n"
"""The first bytes of a stream: they tell the client that it gets every event from now on."""


def server_sent(kind: str, *, data: str, id: str) -> str:  # noqa: A002 - as the standard names it
    """Return one event in the format of server-sent events; `data` must be one line."""
    return f"event: {kind}\nid: {id}\ndata: {data}\n\n"


class EventStream(Response):
    """Sends what `events` yields until it ends, the client disconnects, or the server stops.

    A stopping server would otherwise wait for the stream as for any request, and then abort it.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[str]) -> None:
        """`events` yields the events, each in the format of server-sent events."""
        # nginx holds events back until its buffer is full, unless the second header forbids it.
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        # The base class counts the body that it was given: a length of 0 would end the stream at once.
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request with the stream; a `HEAD` request gets only the headers."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._events):
            if scope["method"] != "HEAD":
                await self._send_until_closed(scope, receive, send)
        await send({"type": "http.response.body", "body": b""})

    async def _send_until_closed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until there are no more, the client disconnects, or the server stops.

        Raises the error of sending, if it failed.
        """
        sending = asyncio.create_task(self._send_all(send), name="web:stream")
        tasks = [sending, asyncio.create_task(_until_disconnected(receive), name="web:stream-client")]
        # The server puts this event into the state of each request, and sets it when it begins to stop.
        stopping: asyncio.Event | None = scope.get("state", {}).get(STOPPING)
        if stopping is not None:
            tasks.append(asyncio.create_task(stopping.wait(), name="web:stream-server"))  # type: ignore[arg-type]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            # Waited for, because a generator cannot be closed while a task still runs in it.
            await asyncio.wait(tasks)
        if not sending.cancelled():
            sending.result()  # raises the error of sending, if it failed

    async def _send_all(self, send: Send) -> None:
        """Send each event to the client as it comes, until there are no more."""
        async for event in self._events:
            await send({"type": "http.response.body", "body": event.encode(), "more_body": True})


async def _until_disconnected(receive: Receive) -> None:
    """Wait until the client of a request has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
