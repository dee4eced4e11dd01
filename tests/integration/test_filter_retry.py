"""The filter starts the orchestrator again where a taken port kept it away, and never otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from orchestrator.compose.socket_filter.inventory import Engine
from orchestrator.compose.socket_filter.retry import retry_starts, start_if_port_was_taken
from tests.doubles.engine import ANDY, SELF, EngineDouble
from tests.support.until import DEADLINE_SECONDS

TAKEN = "driver failed: listen tcp4 127.0.0.1:8700: bind: address already in use"
LABELS = {"com.docker.compose.project": "p", "andy.role": "orchestrator"}
START = f"POST /containers/{ANDY}/start"


@pytest.fixture
async def double(tmp_path) -> AsyncIterator[EngineDouble]:
    made = EngineDouble(tmp_path / "engine.sock", answers={START: {}})
    server = await made.start()
    yield made
    server.close()


def andy_is(double: EngineDouble, status: str, *, error: str = "") -> None:
    listed: dict[str, Any] = {"Id": ANDY, "Created": 1, "State": status, "Labels": LABELS}
    double.answers |= {
        f"GET /containers/{SELF}/json": {"Id": SELF, "Config": {"Labels": LABELS}},
        "GET /containers/json": [listed],
        f"GET /containers/{ANDY}/json": {"Id": ANDY, "State": {"Status": status, "Error": error}},
    }


def starts(double: EngineDouble) -> int:
    return sum(head.startswith(START) for head in double.heads)


@pytest.mark.parametrize("status", ["created", "exited"])
async def test_it_is_started_where_its_port_was_taken(double, status):
    andy_is(double, status, error=TAKEN)

    async with Engine(str(double.socket)) as engine:
        assert await start_if_port_was_taken(engine, own_id=SELF)

    assert starts(double) == 1


@pytest.mark.parametrize(
    ("status", "error"),
    [("running", ""), ("exited", ""), ("created", ""), ("exited", "no such image"), ("paused", TAKEN)],
)
async def test_it_is_left_alone_where_it_runs_or_was_stopped_or_cannot(double, status, error):
    andy_is(double, status, error=error)

    async with Engine(str(double.socket)) as engine:
        assert not await start_if_port_was_taken(engine, own_id=SELF)

    assert starts(double) == 0


async def test_it_is_tried_again_and_an_engine_that_is_away_ends_nothing(double):
    double.answers["GET /containers/json"] = []  # it does not even know the filter yet
    double.answers[f"GET /containers/{SELF}/json"] = "no answer of an engine"
    async with Engine(str(double.socket)) as engine:
        retrying = asyncio.create_task(retry_starts(engine, own_id=SELF, every_seconds=0.01), name="retry")
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not double.heads:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            andy_is(double, "created", error=TAKEN)
            while starts(double) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        retrying.cancel()
        with suppress(asyncio.CancelledError):
            await retrying
