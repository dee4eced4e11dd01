"""What a hostile or broken container can do, while another run is served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from orchestrator.proxies.model.limits import ModelProxyLimits, SearchCounts
from orchestrator.proxies.model.proxy import ProxyRouter
from orchestrator.proxies.model.usage_writer import UsageWriter
from orchestrator.proxies.run_tokens import token_hash
from tests.doubles.clock import FakeClock
from tests.doubles.faulty_upstream import FaultyUpstream, Received, answer, hang
from tests.support.running_proxy import BODY, Proxied, proxied
from tests.support.store_harness import StoreHarness
from tests.support.until import until

MIB = 1024 * 1024


def refusal(raw: bytes) -> tuple[int, str]:
    """The status and the API's error type of a raw answer."""
    head, _, body = raw.partition(b"\r\n\r\n")
    document = json.loads(body)
    assert document["type"] == "error"
    return int(head.split(b" ")[1]), document["error"]["type"]


async def other_run_is_served(served: Proxied) -> None:
    response = await served.call(token=served.other_token)
    assert response.status_code == 200


@pytest.mark.parametrize("token", ["wrong", "sk-ant-api03-x", "\u00e9".encode("latin-1").decode("latin-1")])
async def test_a_wrong_token_is_refused(tmp_path: Path, token: str) -> None:
    async with proxied(tmp_path) as served:
        raw = f"POST /v1/messages HTTP/1.1\r\nhost: p\r\nx-api-key: {token}\r\ncontent-length: 0\r\n\r\n"
        assert refusal(await served.say(raw.encode("latin-1"))) == (401, "authentication_error")
        await other_run_is_served(served)
    assert len(served.upstream.received) == 1


async def test_no_token_is_refused(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        raw = (
            b"POST /v1/messages HTTP/1.1\r\nhost: p\r\nauthorization: Basic eA==\r\ncontent-length: 0\r\n\r\n"
        )
        assert refusal(await served.say(raw)) == (401, "authentication_error")


async def test_the_token_of_an_ended_run_is_refused(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        assert (await served.call()).status_code == 200
        served.end_run()
        assert (await served.call()).status_code == 401
        await other_run_is_served(served)


async def test_a_token_is_worth_nothing_in_another_container(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        assert (await served.call()).status_code == 200
        with capture_logs() as logs:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", served.port, local_addr=("127.0.0.2", 0)
            )
            writer.write(served.head("content-length: 0", "connection: close"))
            assert refusal(await reader.read()) == (401, "authentication_error")
            writer.close()
        assert (await served.call()).status_code == 200
    assert len(served.upstream.received) == 2
    refused = next(entry for entry in logs if entry["event"] == "model request refused")
    assert (refused["folder"], refused["peer"]) == ("group-0", "127.0.0.2")


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("POST", "/v1/complete", 404, "not_found_error"),
        ("POST", "/v1/messages/", 404, "not_found_error"),
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
        ("POST", "//v1/messages", 404, "not_found_error"),
        ("POST", "/v1/../v1/messages/../organizations", 404, "not_found_error"),
        ("GET", "/v1/files", 404, "not_found_error"),
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("DELETE", "/v1/models", 405, "invalid_request_error"),
        ("CONNECT", "example.org:443", 404, "not_found_error"),
    ],
)
async def test_another_path_or_method_is_refused(
    tmp_path: Path, method: str, path: str, status: int, kind: str
) -> None:
    async with proxied(tmp_path) as served:
        raw = served.head("content-length: 0").replace(b"POST /v1/messages", f"{method} {path}".encode(), 1)
        assert refusal(await served.say(raw)) == (status, kind)
        await other_run_is_served(served)
    assert len(served.upstream.received) == 1


@pytest.mark.parametrize(
    "lines",
    [
        ("content-length: 2", "transfer-encoding: chunked"),
        ("content-length: 2", "content-length: 2"),
        ("content-length: 2", "content-length: 3"),
        ("content-length: 2, 2", "content-length: 2"),
        ("content-length: +2",),
        ("content-length : 2",),
        ("transfer-encoding: chunked", "transfer-encoding: chunked"),
        ("transfer-encoding: gzip, chunked",),
        ("content-length: 2", "x-app: a\n b: c"),
        ("content-length: 2", "x-app: a\r\n folded"),
        ("content-length: 2", "x-app: a\rb"),
        ("content-length: 2", "x-app: a\0b"),
        ("content-length: 2", "x-api-key: another"),
        ("content-length: 2", "x-app: " + "a" * 17_000),
        ("content-length: 2", *["x:"] * 300),
    ],
)
async def test_a_head_that_can_be_read_in_two_ways_is_refused(tmp_path: Path, lines: tuple[str, ...]) -> None:
    async with proxied(tmp_path, limits=ModelProxyLimits(linger_seconds=0.05)) as served:
        assert refusal(await served.say(served.head(*lines) + b"{}")) == (400, "invalid_request_error")
        await other_run_is_served(served)
    assert len(served.upstream.received) == 1


async def test_a_body_in_many_small_chunks_is_refused_and_one_in_large_ones_is_not(
    tmp_path: Path,
) -> None:
    """Each chunk costs the same: 32 MiB of single bytes would keep the host busy for ten minutes."""

    def request(chunk: bytes) -> bytes:
        chunks = b"%x\r\n%b\r\n" % (len(chunk), chunk) * 200
        rest = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
        return served.head("transfer-encoding: chunked", "connection: close") + chunks + rest

    async with proxied(tmp_path, limits=ModelProxyLimits(linger_seconds=0.05)) as served:
        assert refusal(await served.say(request(b" "))) == (400, "invalid_request_error")
        assert (await served.say(request(b" " * 1024))).startswith(b"HTTP/1.1 200")
    assert len(served.upstream.received) == 1


async def test_requests_without_end_are_answered_slower_and_wait_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even a request without a token, or at no path, costs the host some work."""
    waits, statuses = list[float](), list[int]()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def receive() -> dict[str, object]:
        return {"type": "http.request"}

    async def send(message: dict[str, object]) -> None:
        statuses.append(message.get("status", 0))  # type: ignore[arg-type]

    async def serve(*_: object) -> None:
        raise AssertionError("nothing is served at this path")

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr("orchestrator.proxies.model.proxy.SystemClock", FakeClock)
    limits = ModelProxyLimits(body_bytes_at_once=2_000, body_bytes_a_second=2_000, stranger_bytes=1_000)
    app = ProxyRouter(serve, limits)
    for peer in ["172.18.0.2"] * 9 + ["172.18.0.3"]:
        scope = {"headers": [], "method": "GET", "query_string": b"", "client": (peer, 1), "path": "/x"}
        await app(scope, receive, send)  # type: ignore[arg-type]

    assert waits == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0, 2.0]
    assert statuses.count(404) == 10


async def test_requests_are_counted_by_run_and_without_a_valid_token_by_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents that run as processes have one address: one that asks without end slows down itself."""
    monkeypatch.setattr("orchestrator.proxies.model.proxy.SystemClock", FakeClock)
    limits = ModelProxyLimits(
        body_bytes_at_once=2_000, body_bytes_a_second=2_000, request_bytes=1_000, stranger_bytes=2_000
    )
    async with proxied(tmp_path, limits=limits) as served:
        waits = list[float]()
        real_sleep = asyncio.sleep

        async def sleep(seconds: float) -> None:
            if seconds >= 0.1:
                waits.append(seconds)
            await real_sleep(0)

        async def waited(path: str, token: str) -> list[float]:
            waits.clear()
            for _ in range(4):
                await served.call(path, token=token, content=b"")
            return list(waits)

        monkeypatch.setattr(asyncio, "sleep", sleep)
        path = "/v1/messages/count_tokens"
        assert await waited(path, served.token) == [0.5, 1.0]
        assert await waited(path, "wrong") == [1.0, 2.0, 2.0]
        assert await waited("/elsewhere", served.token) == [2.0] * 4, "no path is asked for by address, too"
        assert await waited(path, served.other_token) == [0.5, 1.0]


async def test_garbage_is_refused(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        assert refusal(await served.say(b"\x16\x03\x01\x02\x00\r\n\r\n")) == (400, "invalid_request_error")


async def test_a_broken_chunk_ends_the_upstream_request(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        head = served.head("transfer-encoding: chunked")
        assert refusal(await served.say(head + b"2\r\n{}\r\nnot a size\r\n")) == (
            400,
            "invalid_request_error",
        )
        await other_run_is_served(served)


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_of_100_mib_is_refused(tmp_path: Path, announced: bool) -> None:
    line = f"content-length: {100 * MIB}" if announced else "transfer-encoding: chunked"
    piece = b"a" * MIB
    chunk = piece if announced else b"%x\r\n%s\r\n" % (MIB, piece)
    async with proxied(tmp_path) as served:
        async with served.socket() as (reader, writer):
            writer.write(served.head(line))
            sending = asyncio.create_task(send_all(writer, chunk, 100), name="sender")
            status = await reader.readuntil(b"\r\n\r\n")
            sending.cancel()
        assert status.startswith(b"HTTP/1.1 413")
        await other_run_is_served(served)
    assert len(served.upstream.received) == 1


async def send_all(writer: asyncio.StreamWriter, chunk: bytes, times: int) -> None:
    for _ in range(times):
        writer.write(chunk)
        await writer.drain()


async def test_a_refused_body_is_not_read_for_ever(tmp_path: Path) -> None:
    limits = ModelProxyLimits(body_bytes=1000, linger_seconds=0.05)
    async with proxied(tmp_path, limits=limits) as served, served.socket() as (reader, writer):
        writer.write(served.head("transfer-encoding: chunked") + b"fff\r\n")
        writer.write(b"a" * 2000)
        raw = await reader.read()
        assert refusal(raw) == (413, "request_too_large")


async def test_a_head_that_never_ends_is_cut(tmp_path: Path) -> None:
    async with proxied(tmp_path, limits=ModelProxyLimits(head_seconds=1)) as served:
        async with served.socket() as (reader, writer), served.socket() as (silent, _):
            writer.write(b"POST /v1/messages HTTP/1.1\r\nhost: p\r\n")
            assert await closed(reader)
            assert await closed(silent)
        await other_run_is_served(served)


async def test_a_second_head_that_never_ends_is_cut(tmp_path: Path) -> None:
    async with (
        proxied(tmp_path, limits=ModelProxyLimits(head_seconds=1)) as served,
        served.socket() as (reader, writer),
    ):
        writer.write(served.head("content-length: 2") + b"{}")
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(b"POST /v1")
        assert await closed(reader)


async def closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def test_a_body_that_does_not_come_is_given_up(tmp_path: Path) -> None:
    async with proxied(tmp_path, limits=ModelProxyLimits(body_seconds=1, linger_seconds=0.05)) as served:
        async with served.socket() as (reader, writer):
            writer.write(served.head("content-length: 10") + b"{")
            assert refusal(await reader.read()) == (408, "timeout_error")
        await other_run_is_served(served)


async def test_a_client_that_does_not_read_is_cut(tmp_path: Path) -> None:
    async with proxied(tmp_path, limits=ModelProxyLimits(stall_seconds=1)) as served:
        served.upstream.behave = answer(200, b"a" * (30 * MIB))
        async with served.socket() as (_, writer):
            assert isinstance(writer.transport, asyncio.Transport)
            writer.transport.pause_reading()
            writer.write(served.head("content-length: 0"))
            assert (await served.recorded())[0].ending == "gone"
        served.upstream.behave = answer(200, b"{}")
        await other_run_is_served(served)


async def test_one_group_has_a_bounded_number_of_requests_under_way(tmp_path: Path) -> None:
    async with proxied(tmp_path, limits=ModelProxyLimits(requests_a_group=2)) as served:
        served.upstream.behave = hang
        async with served.socket() as (_, first), served.socket() as (_, second):
            for number, writer in enumerate((first, second), start=1):
                writer.write(served.head(f"content-length: {len(BODY)}") + BODY)
                await served.upstream.until_received(number)
            response = await served.call()
            assert (response.status_code, response.json()["error"]["type"]) == (429, "rate_limit_error")
            assert response.headers["retry-after"] == "1"
            served.upstream.behave = answer(200, b"{}")
            await other_run_is_served(served)
        await served.recorded(3)
        assert (await served.call()).status_code == 200


async def test_one_peer_has_a_bounded_number_of_connections(tmp_path: Path) -> None:
    async with (
        proxied(tmp_path, limits=ModelProxyLimits(connections_a_peer=1)) as served,
        served.socket() as (first, to_first),
        served.socket() as (second, _),
    ):
        assert await closed(second)
        to_first.write(served.head("content-length: 0"))
        assert (await first.readline()).startswith(b"HTTP/1.1 200")


async def test_refusals_in_a_loop_leave_one_line(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        with capture_logs() as logs:
            for _ in range(20):
                await served.call(token="wrong")
    assert [entry["event"] for entry in logs] == ["model request refused"]


async def test_idle_streams_and_bodies_that_do_not_come_refuse_nobody(tmp_path: Path) -> None:
    """Each may bring 32 MiB, and brings a byte: what has not come holds nothing."""
    limits = ModelProxyLimits(requests_a_group=32)
    async with proxied(tmp_path, limits=limits) as served, AsyncExitStack() as stack:
        for _ in range(10):
            _, writer = await stack.enter_async_context(served.socket())
            writer.write(served.head("transfer-encoding: chunked") + b"1\r\n{\r\n")
            await writer.drain()
        await until(lambda: served.proxy._held_bytes._held.total() == 10, "all have begun")

        assert (await served.call()).status_code == 200
        assert (await served.call(token=served.other_token)).status_code == 200


async def test_a_body_that_has_gone_up_holds_nothing_while_its_answer_lasts(tmp_path: Path) -> None:
    body = BODY[:-1] + b" " * 100_000 + BODY[-1:]
    limits = ModelProxyLimits(held_bytes_a_group=150_000)
    async with proxied(tmp_path, limits=limits) as served:
        at_once, served.upstream.behave = served.upstream.behave, hang
        waiting = asyncio.create_task(served.call(content=body), name="an answer that lasts")
        await until(lambda: len(served.upstream.received) == 1, "the body has gone up")
        served.upstream.behave = at_once

        assert (await served.call(content=body)).status_code == 200
        waiting.cancel()
        await asyncio.wait({waiting})


async def test_every_request_of_a_turn_counts_whatever_becomes_of_it(tmp_path: Path) -> None:
    async with proxied(tmp_path, limits=ModelProxyLimits(requests_a_turn=3)) as served:
        path = "/v1/messages/count_tokens"
        codes = [(await served.call(path, content=body)).status_code for body in (b"{", BODY, b"{", BODY)]
        other = (await served.call(path, token=served.other_token)).status_code

    assert codes == [400, 200, 400, 429]
    assert other == 200


SEARCHING_BODY = json.dumps(
    {
        "model": "claude",
        "messages": [],
        "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 10}],
    }
).encode()


@asynccontextmanager
async def searching(home: Path) -> AsyncIterator[Proxied]:
    """A proxy whose first run may have the web searched fifty times in a turn."""
    async with proxied(home, searches=SearchCounts(50)) as served:
        hashed = token_hash(served.token)
        served.runs[hashed] = replace(served.runs[hashed], may_search=True)
        yield served


async def test_searches_of_requests_at_the_same_time_count_for_their_turn_before_they_are_made(
    tmp_path: Path,
) -> None:
    async with searching(tmp_path) as served:
        at_once, served.upstream.behave = served.upstream.behave, hang
        waiting = [
            asyncio.create_task(served.call(content=SEARCHING_BODY), name=f"search-{number}")
            for number in range(5)
        ]
        await served.upstream.until_received(5)
        served.upstream.behave = at_once

        one_more = await served.call(content=SEARCHING_BODY)
        assert one_more.status_code == 429
        assert "50 web searches under way" in one_more.json()["error"]["message"]
        assert (await served.call()).status_code == 200  # without a search, it goes on

        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        await served.recorded(7)
        # What the service searched for who has disconnected is told to nobody.
        assert (await served.call(content=SEARCHING_BODY)).status_code == 403


async def test_searches_that_a_broken_off_answer_showed_count_once(
    tmp_path: Path, store_harness: StoreHarness
) -> None:
    searches = SearchCounts(50)
    usage_writer = UsageWriter(
        store_harness.database,
        clock=store_harness.clock,
        on_entry=lambda entry: searches.add(entry.run_id, entry.turn_id, entry.searches),
    )
    begun = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    events = [
        {
            "type": "message_start",
            "message": {"model": "claude", "usage": {"input_tokens": 1, "output_tokens": 1}},
        },
        {"type": "content_block_start", "index": 0, "content_block": begun},
        {"type": "content_block_start", "index": 1, "content_block": begun},
    ]
    stream = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()

    async def begin_and_hang(
        _: Received, upstream: FaultyUpstream, reader: asyncio.StreamReader, to: asyncio.StreamWriter
    ) -> None:
        to.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + stream)
        await upstream.until_hung_up(reader)

    async with proxied(tmp_path, searches=searches, usage_writer=usage_writer) as served:
        hashed = token_hash(served.token)
        served.runs[hashed] = replace(served.runs[hashed], may_search=True)
        served.upstream.behave = begin_and_hang
        async with served.streaming(SEARCHING_BODY) as response:
            received = b""
            async for chunk in response.aiter_raw():
                received += chunk
                if received.count(b"content_block_start") == 4:  # twice in each event
                    break
        (exchange,) = await served.recorded()
        assert exchange.ending == "gone"
        assert exchange.usage is not None
        assert exchange.usage.searches == 2
        # The two that had begun are among the ten of the request.
        run = served.runs[hashed]
        await until(lambda: searches.remaining(run.run_id, run.turn_id) == 40, "all ten are counted")


async def test_searches_that_were_not_made_stay_with_their_turn(tmp_path: Path) -> None:
    async with searching(tmp_path) as served:
        codes = [(await served.call(content=SEARCHING_BODY)).status_code for _ in range(8)]
    assert codes == [200] * 8


async def test_a_count_of_tokens_that_is_broken_off_costs_its_turn_no_search(tmp_path: Path) -> None:
    async with searching(tmp_path) as served:
        at_once, served.upstream.behave = served.upstream.behave, hang
        path = "/v1/messages/count_tokens"
        counting = [
            asyncio.create_task(served.call(path, content=SEARCHING_BODY), name=f"count-{number}")
            for number in range(5)
        ]
        await served.upstream.until_received(5)
        served.upstream.behave = at_once
        during = (await served.call(content=SEARCHING_BODY)).status_code
        for task in counting:
            task.cancel()
        await asyncio.wait(counting)
        await served.recorded(6)
        assert (during, (await served.call(content=SEARCHING_BODY)).status_code) == (200, 200)
