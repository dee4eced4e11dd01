"""`GET /events`: recent events, and new ones as they happen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.base.event_bus import RING, EventBus, HostEvent
from orchestrator.web.bodies import parse_query
from orchestrator.web.event_stream import LISTENING, PING, PING_SECONDS, EventStream, server_sent


class EventQuery(BaseModel):
    """The query."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    group: str | None = None
    recent: int = Field(0, ge=0, le=RING)
    """The number of recent events that are sent first."""
    follow: bool = True
    progress: bool = False
    """Whether to send `agent.tool` and `agent.text` too, which come several times a second in a turn."""

    def wants(self, event: HostEvent) -> bool:
        """Return whether an event is of the requested group, or of no group: those concern the whole host."""
        return self.group is None or event.group in (self.group, None)


def event_route(bus: EventBus) -> Route:
    """Return the route `GET /events`, which sends the host's events as a stream of server-sent events."""

    async def events(request: Request) -> Response:
        """Answer with a stream of the events that the query selects."""
        return EventStream(_events(bus, parse_query(request.query_params, EventQuery)))

    return Route("/events", events)


async def _events(bus: EventBus, query: EventQuery) -> AsyncGenerator[str]:
    """Yield recent events and then, with `query.follow`, new ones without end, as texts of the stream.

    Only events that the query wants are sent. While none of these comes, a ping is sent every `PING_SECONDS`.
    """
    # Transient events are those that `progress` asks for. They are never in the ring.
    with bus.listening(with_transient=query.progress) as queue:
        # Nothing is awaited since the queue began: each event is either in the ring or in the queue.
        earlier_events = [event for event in bus.ring if query.wants(event)]
        yield LISTENING
        # Without the condition, `-0` would select all of them.
        recent = earlier_events[-query.recent :] if query.recent else []
        for event in recent:
            yield _server_sent(event)
        while query.follow:
            try:
                async with asyncio.timeout(PING_SECONDS):
                    while not query.wants(event := await queue.get()):
                        pass
            except TimeoutError:
                yield PING
                continue
            yield _server_sent(event)


def _server_sent(event: HostEvent) -> str:
    """Return an event of the host as a server-sent event: its kind, its number, and its fields in JSON."""
    return server_sent(event.kind, id=str(event.n), data=json.dumps(event.to_json_dict()))
