"""A stream of the model service is cut when it stops, and not when its reader is slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from orchestrator.proxies.model.error_responses import AnswerCut
from orchestrator.proxies.model.forwarder import paced_events

EVENT = b'event: content_block_delta\ndata: {"type": "content_block_delta"}\n\n'
PING = b'event: ping\ndata: {"type": "ping"}\n\n'
SECONDS, PING_SECONDS = 15.0, 60.0


class PassedTime:
    """Seconds that are added to the time of the running loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        loop = asyncio.get_running_loop()
        time = loop.time
        monkeypatch.setattr(loop, "time", lambda: time() + self.seconds)


@pytest.fixture
async def passed(monkeypatch: pytest.MonkeyPatch) -> PassedTime:
    return PassedTime(monkeypatch)


@pytest.mark.parametrize("piece", [EVENT, PING])
async def test_a_reader_that_is_slow_cuts_no_stream(passed: PassedTime, piece: bytes) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            await asyncio.sleep(0)
            yield piece

    read = []
    async for chunk in paced_events(chunks(), EVENT, SECONDS, PING_SECONDS):
        read.append(chunk)
        passed.seconds += 2 * PING_SECONDS
    assert read == [EVENT, piece, piece, piece]


@pytest.mark.parametrize(("piece", "pause"), [(EVENT, SECONDS + 1), (PING, SECONDS - 1), (b":", SECONDS - 1)])
async def test_a_stream_that_stops_or_only_pings_is_cut(
    passed: PassedTime, piece: bytes, pause: float
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        while True:
            passed.seconds += pause
            for _ in range(3):  # so that the loop sees that the time is over
                await asyncio.sleep(0)
            yield piece

    with pytest.raises(AnswerCut, match="stop"):
        async for _ in paced_events(chunks(), EVENT, SECONDS, PING_SECONDS):
            pass
