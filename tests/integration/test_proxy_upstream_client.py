"""The proxy's connections to the model service."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
import subprocess
from pathlib import Path

import httpcore
import pytest

from orchestrator.proxies.model.error_responses import ProxyRefused
from orchestrator.proxies.model.limits import ModelProxyLimits
from orchestrator.proxies.model.network import AsyncioBackend, AsyncioStream
from orchestrator.proxies.model.upstream_client import UpstreamClient, UpstreamRequest, UpstreamResponse
from orchestrator.proxies.name_lookups import LOOKUPS_A_SHARE, NameLookups
from tests.doubles.faulty_upstream import FaultyUpstream, Received, answer, say
from tests.doubles.name_server import silent_name_server
from tests.support.running_proxy import BODY, REAL_KEY, proxied

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


async def speak_twice(
    _: Received, __: FaultyUpstream, ___: asyncio.StreamReader, to: asyncio.StreamWriter
) -> None:
    to.write(OK + b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nof other")


async def continue_first(
    _: Received, __: FaultyUpstream, ___: asyncio.StreamReader, to: asyncio.StreamWriter
) -> None:
    to.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" + OK)


async def test_what_a_service_says_unasked_is_nobodys_answer(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        served.upstream.behave = speak_twice
        assert (await served.call()).text == "{}"
        served.upstream.behave = answer(200, b"mine")
        assert (await served.call(token=served.other_token)).text == "mine"
    assert served.upstream.connections == 2


async def test_a_connection_is_used_again_after_a_whole_answer(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        for token in (served.token, served.other_token, served.token):
            assert (await served.call(token=token)).text == "{}"
    assert served.upstream.connections == 1


async def test_a_word_before_the_answer_is_passed_over(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        served.upstream.behave = continue_first
        response = await served.call()
    assert (response.status_code, response.text) == (200, "{}")


async def test_an_answer_that_ends_with_its_connection_is_whole(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        served.upstream.behave = say(b"HTTP/1.1 200 OK\r\n\r\nall of it")
        assert (await served.call()).text == "all of it"


async def test_a_body_without_a_length_goes_on_in_chunks(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        raw = await served.say(
            served.head("transfer-encoding: chunked", "connection: close")
            + b'8\r\n{"max_to\r\n8\r\nkens":1}\r\n0\r\n\r\n'
        )
    assert raw.startswith(b"HTTP/1.1 200")
    received = served.upstream.received[0]
    assert (received.body, received.values("transfer-encoding")) == (b'{"max_tokens":1}', ["chunked"])


async def test_a_large_answer_comes_whole_though_its_reader_is_slow(tmp_path: Path) -> None:
    large = bytes(range(256)) * 16_384
    async with proxied(tmp_path) as served:
        served.upstream.behave = answer(200, large)
        async with served.socket() as (reader, writer):
            writer.write(served.head("content-length: 0", "connection: close"))
            received = bytearray()
            while part := await reader.read(4_096):
                received += part
    assert bytes(received).partition(b"\r\n\r\n")[2] == large


async def test_a_proxy_of_this_machine_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with FaultyUpstream() as between:
        monkeypatch.setenv("http_proxy", between.url)
        async with proxied(tmp_path) as served:
            served.environment["ANTHROPIC_BASE_URL"] = "http://model.example/base"
            monkeypatch.setenv("no_proxy", "127.0.0.1")
            response = await served.call()
    assert (response.status_code, response.text) == (200, "{}")
    assert between.received[0].target == "http://model.example/base/v1/messages"
    assert between.received[0].body == BODY
    assert between.received[0].values("x-api-key") == [REAL_KEY]


async def test_a_host_that_needs_no_proxy_is_asked_straight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FaultyUpstream() as between:
        monkeypatch.setenv("http_proxy", between.url)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        async with proxied(tmp_path) as served:
            assert (await served.call()).text == "{}"
    assert (between.connections, served.upstream.connections) == (0, 1)


@pytest.mark.parametrize(
    ("in_url", "login"), [("me:p%40ss", b"me:p@ss"), ("me:%C3%A4", "me:ä".encode()), ("me:%E4", b"me:\xe4")]
)
async def test_the_login_of_a_proxy_goes_to_the_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_url: str, login: bytes
) -> None:
    async with FaultyUpstream() as between:
        monkeypatch.setenv("http_proxy", between.url.replace("//", f"//{in_url}@"))
        async with proxied(tmp_path) as served:
            served.environment["ANTHROPIC_BASE_URL"] = "http://model.example"
            monkeypatch.setenv("no_proxy", "127.0.0.1")
            await served.call()
    shown = base64.b64encode(login).decode()
    assert between.received[0].values("proxy-authorization") == [f"Basic {shown}"]


async def test_a_connection_whose_socket_is_gone_is_not_used_again() -> None:
    stream = AsyncioStream()
    stream.connection_made(asyncio.Transport())  # has no socket, as that of a connection which was just reset
    assert stream.get_extra_info("is_readable")


@pytest.mark.parametrize(
    "proxy",
    [
        "socks5://127.0.0.1:1080",
        "http://me:hunter2@proxy:eighty",
        "http://[",
        "http://",
        "ftp://x",
        "http://me:hunter2@prüf:3128",
    ],
)
async def test_a_proxy_that_cannot_be_used_is_named_as_the_reason(
    monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    client = UpstreamClient(ModelProxyLimits())
    with pytest.raises(ProxyRefused) as refused:
        async with client.send(
            UpstreamRequest(method="GET", url="https://model.example/", headers=[], body=None)
        ):
            pass
    assert refused.value.refusal.status == 502
    assert "names no proxy by http:// or https://" in (refused.value.cause or "")
    assert "hunter2" not in (refused.value.cause or "")


async def test_a_service_with_a_trusted_certificate_is_asked(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
    assert await _asked_over_tls(certificate) == b"{}"


async def test_a_service_with_any_other_certificate_hears_nothing(certificate: Path) -> None:
    with pytest.raises(ProxyRefused) as refused:
        await _asked_over_tls(certificate)
    assert refused.value.refusal.status == 502
    assert "CERTIFICATE_VERIFY_FAILED" in (refused.value.cause or "")


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """One for `localhost`, signed by itself."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    return tmp_path


async def _asked_over_tls(certificate: Path) -> bytes:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await writer.drain()
        await reader.read()
        writer.close()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    server = await asyncio.start_server(serve, "localhost", 0, ssl=context)
    client = await asyncio.to_thread(UpstreamClient, ModelProxyLimits())
    url = f"https://localhost:{server.sockets[0].getsockname()[1]}/v1/models"
    try:
        async with client.send(UpstreamRequest(method="GET", url=url, headers=(), body=None)) as found:
            return await _whole(found)
    finally:
        await client.close()
        server.close()
        await server.wait_closed()


async def _whole(found: UpstreamResponse) -> bytes:
    return b"".join([chunk async for chunk in found.chunks])


async def test_a_server_whose_name_server_is_silent_takes_no_thread_from_the_rest_of_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = AsyncioBackend(NameLookups())
    with (
        silent_name_server(monkeypatch, "127.0.0.1") as names,
        socket.create_server(("127.0.0.1", 0)) as door,
    ):
        async with asyncio.TaskGroup() as tasks:
            waiting = [
                tasks.create_task(backend.connect_tcp("silent.example", 443), name=f"{number}")
                for number in range(LOOKUPS_A_SHARE + 3)
            ]
            await names.two_wait.wait()
            await asyncio.to_thread(lambda: None)
            stream = await backend.connect_tcp("good.example", door.getsockname()[1])
            assert not names.released.is_set()
            assert names.waiting <= LOOKUPS_A_SHARE
            await stream.aclose()
            for one in waiting:
                one.cancel()


async def test_a_name_without_an_answer_in_time_is_a_fault_of_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        silent_name_server(monkeypatch),
        pytest.raises(httpcore.ConnectError, match="name server may be silent"),
    ):
        await AsyncioBackend(NameLookups(lookup_seconds=0.01)).connect_tcp("silent.example", 443)


async def test_the_address_of_a_name_that_answers_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        silent_name_server(monkeypatch, "127.0.0.2", "::1", "127.0.0.1"),
        socket.create_server(("127.0.0.1", 0)) as door,
    ):
        stream = await AsyncioBackend(NameLookups()).connect_tcp("good.example", door.getsockname()[1])
        assert stream.get_extra_info("peername")[0] == "127.0.0.1"
        await stream.aclose()
