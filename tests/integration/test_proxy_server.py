from __future__ import annotations

import asyncio
import gc
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.domain.errors import AndyError
from orchestrator.proxies.model.exchange import ExchangeEnd
from orchestrator.proxies.model.server import ProxyServer, bind
from tests.doubles.faulty_upstream import hang
from tests.support.running_proxy import BODY, proxied
from tests.support.until import DEADLINE_SECONDS


def test_a_taken_port_is_left_to_its_owner() -> None:
    first = bind("127.0.0.1", 0)
    port = first.getsockname()[1]
    second = bind("127.0.0.1", port)
    assert second.getsockname()[1] not in {0, port}
    first.close()
    third = bind("127.0.0.1", port)
    assert third.getsockname()[1] == port
    second.close()
    third.close()


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host"])
def test_an_address_of_another_machine_is_told(host: str) -> None:
    with pytest.raises(AndyError, match=f"cannot listen on {host}"):
        bind(host, 0)


async def test_no_answer_waits_for_nagle() -> None:
    accepted: asyncio.Queue[int] = asyncio.Queue()

    def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        accepted.put_nowait(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listener = bind("127.0.0.1", 0)
    async with await asyncio.start_server(note, sock=listener):
        _, writer = await asyncio.open_connection(*listener.getsockname())
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert await accepted.get() != 0
        writer.close()
        await writer.wait_closed()


async def test_signals_are_left_to_the_app(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    async with proxied(tmp_path) as served:
        await served.call()
        assert signal.getsignal(signal.SIGTERM) is before


async def test_closing_ends_requests_that_are_under_way(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        served.upstream.behave = hang
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(served.head(f"content-length: {len(BODY)}") + BODY)
        await served.upstream.until_received()
    with suppress(ConnectionError):
        async with asyncio.timeout(DEADLINE_SECONDS):
            await reader.read()
    writer.close()
    assert served.exchanges[0].ending is ExchangeEnd.STOPPED
    assert served.upstream.hung_up.is_set()


async def test_it_can_be_served_again_after_it_was_stopped() -> None:
    async def app(scope: object, receive: object, send) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    server = ProxyServer(app, bind("127.0.0.1", 0))
    for _ in range(2):
        serving = asyncio.create_task(server.serve(), name="proxy")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert (await reader.readline()).startswith(b"HTTP/1.1 204")
        writer.close()
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
    server.close()
    gc.collect()


def test_the_http_client_is_loaded_with_the_first_start_only() -> None:
    code = "import sys, orchestrator.proxies.model.proxy; print('httpx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
