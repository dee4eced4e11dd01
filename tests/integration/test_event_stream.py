"""Streams of events, served by the server of the host to a real client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_runner.wire.listeners import listen
from orchestrator.base.asgi_server import BoundedConfig, BoundedProtocol, Server
from orchestrator.base.clock import SystemClock
from orchestrator.base.event_bus import EventBus
from orchestrator.web.api.events import event_route
from orchestrator.web.event_stream import EventStream
from tests.support.until import until

Stop = Callable[[], None]


@pytest.fixture(autouse=True)
def _server_that_logs(caplog):
    # Doubles of this process set the level of uvicorn's one logger, and mute every other server's with it.
    caplog.set_level(logging.INFO, logger="uvicorn.error")


@asynccontextmanager
async def served(*routes: Route) -> AsyncIterator[tuple[httpx.AsyncClient, Stop]]:
    """Serve routes; yield a client of them and what makes the server stop."""
    listener = listen("127.0.0.1", 0)
    config = BoundedConfig(Starlette(routes=list(routes)), http=BoundedProtocol, head_seconds=5)
    serving = asyncio.create_task(Server(config).serve_on(listener), name="serve")
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        async with httpx.AsyncClient(base_url=address, trust_env=False, timeout=60) as client:
            yield client, serving.cancel
    finally:
        serving.cancel()
        await asyncio.wait({serving})
        listener.close()


async def test_a_server_that_stops_ends_its_open_streams_and_logs_nothing(caplog):
    bus = EventBus(SystemClock())
    async with served(event_route(bus)) as (client, stop), client.stream("GET", "/events") as response:
        texts = response.aiter_text()
        assert await anext(texts) == ": listening\n\n"
        bus.publish("turn.started", group="family")
        assert (await anext(texts)).startswith("event: turn.started\nid: 1\ndata: {")
        stop()
        assert [text async for text in texts] == []  # a cut would raise
        assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []
    await until(lambda: not bus._listeners, "nobody listens any more")


async def test_a_stream_whose_client_goes_is_closed():
    bus = EventBus(SystemClock())
    async with served(event_route(bus)) as (client, _):
        async with client.stream("GET", "/events"):
            await until(lambda: bus._listeners, "somebody listens")
        await until(lambda: not bus._listeners, "nobody listens any more")


async def test_a_stream_that_nothing_happens_in_is_kept_alive(monkeypatch):
    monkeypatch.setattr("orchestrator.web.api.events.PING_SECONDS", 0.01)
    async with (
        served(event_route(EventBus(SystemClock()))) as (client, _),
        client.stream("GET", "/events") as response,
    ):
        lines = response.aiter_lines()
        async for line in lines:
            if line == ": ping":
                break


async def test_a_stream_is_kept_alive_while_only_other_groups_are_busy(monkeypatch):
    monkeypatch.setattr("orchestrator.web.api.events.PING_SECONDS", 0.5)
    bus = EventBus(SystemClock())

    async def be_busy() -> None:
        while True:
            bus.publish("turn.started", group="work")
            await asyncio.sleep(0.001)

    async with (
        served(event_route(bus)) as (client, _),
        client.stream("GET", "/events?group=family") as response,
    ):
        busy = asyncio.create_task(be_busy(), name="busy")
        try:
            async with asyncio.timeout(10):
                async for line in response.aiter_lines():
                    assert "turn.started" not in line
                    if line == ": ping":
                        break
        finally:
            busy.cancel()


async def test_asking_for_the_head_of_a_stream_is_answered_at_once():
    bus = EventBus(SystemClock())
    async with served(event_route(bus)) as (client, _):
        answered = await client.head("/events")
    assert answered.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert not bus._listeners


async def test_what_fails_within_a_stream_is_logged_and_cuts_it(caplog):
    async def failing() -> AsyncGenerator[str]:
        yield ": listening\n\n"
        raise RuntimeError("the reason")

    async def answer(_: Request) -> Response:
        return EventStream(failing())

    async with served(Route("/", answer)) as (client, _):
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("/")
    assert "the reason" in caplog.text
