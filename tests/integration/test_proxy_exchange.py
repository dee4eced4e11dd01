from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from orchestrator.proxies.model.exchange import ExchangeEnd
from orchestrator.proxies.run_tokens import token_hash
from tests.doubles.faulty_upstream import FaultyUpstream, Received, answer, hang
from tests.support.running_proxy import BODY, REAL_KEY, proxied
from tests.support.until import DEADLINE_SECONDS

OAUTH = "sk-ant-oat01-the-real-token"
EVENTS = (
    b"event: message_start\ndata: {}\n\n",
    b'event: ping\ndata: {"text":"\xea\xb0',
    b'\x80"}\n\n',
    b"event: message_stop\ndata: {}\n\n",
)


async def stream_in_steps(
    _: Received, up: FaultyUpstream, __: asyncio.StreamReader, to: asyncio.StreamWriter
) -> None:
    """Send one event, then the others when the test has seen it."""
    to.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    for number, event in enumerate(EVENTS):
        to.write(b"%x\r\n%s\r\n" % (len(event), event))
        await to.drain()
        if number == 0:
            await up.more.wait()
    to.write(b"0\r\n\r\n")


async def stream_and_hang(
    request: Received, up: FaultyUpstream, reader: asyncio.StreamReader, to: asyncio.StreamWriter
) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    to.write(head + b"9\r\ndata: x\n\n\r\n")
    await hang(request, up, reader, to)


async def test_the_real_key_replaces_the_token_of_the_run(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        response = await served.call(
            "/v1/messages?beta=true", headers={"anthropic-beta": "effort-2025-11-24,oauth-2025-04-20"}
        )
    received = served.upstream.received[0]
    assert response.status_code == 200
    assert received.target == "/v1/messages?beta=true"
    assert received.body == BODY
    assert received.values("x-api-key") == [REAL_KEY]
    assert received.values("authorization") == []
    assert received.values("anthropic-beta") == ["effort-2025-11-24"]
    assert served.token not in repr(received)


async def test_what_costs_more_goes_up_for_the_group_that_the_owner_lets_pay_for_it(tmp_path: Path) -> None:
    fast = b'{"model":"claude","speed":"fast","messages":[]}'
    headers = {"anthropic-beta": "fast-mode-2026-02-01,effort-2025-11-24"}
    async with proxied(tmp_path) as served:
        refused = await served.call(content=fast, headers=headers)
        hashed = token_hash(served.token)
        served.runs[hashed] = replace(served.runs[hashed], model_features=("fast_mode",))
        allowed = await served.call(content=fast, headers=headers)
    assert (refused.status_code, allowed.status_code) == (403, 200)
    assert "model_features" in refused.json()["error"]["message"]
    (received,) = served.upstream.received
    assert received.body == fast
    assert received.values("anthropic-beta") == ["fast-mode-2026-02-01,effort-2025-11-24"]


async def test_an_oauth_token_goes_as_bearer_with_its_beta(tmp_path: Path) -> None:
    async with proxied(tmp_path, settings=[f"CLAUDE_CODE_OAUTH_TOKEN={OAUTH}"]) as served:
        await served.call(headers={"anthropic-beta": "effort-2025-11-24", "anthropic-version": "2023-06-01"})
    received = served.upstream.received[0]
    assert received.values("authorization") == [f"Bearer {OAUTH}"]
    assert received.values("x-api-key") == []
    assert received.values("anthropic-beta") == ["effort-2025-11-24,oauth-2025-04-20"]
    assert received.values("anthropic-version") == ["2023-06-01"]


async def test_a_bearer_token_of_the_run_is_taken_too(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        headers = {"x-api-key": "", "authorization": f"Bearer {served.token}"}
        assert (await served.call(headers=headers)).status_code == 200
    assert served.token not in repr(served.upstream.received)


async def test_a_chunk_arrives_before_the_upstream_has_finished(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        served.upstream.behave = stream_in_steps
        async with (
            httpx.AsyncClient(trust_env=False, timeout=60) as client,
            client.stream(
                "POST", f"{served.url}/v1/messages", headers={"x-api-key": served.token}, content=BODY
            ) as response,
        ):
            chunks = response.aiter_raw()
            assert await anext(chunks) == EVENTS[0]
            served.upstream.more.set()
            rest = b"".join([chunk async for chunk in chunks])
        assert rest == b"".join(EVENTS[1:])
        assert (await served.recorded())[0].ending is ExchangeEnd.WHOLE


async def test_a_compressed_answer_passes_byte_for_byte(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        served.upstream.behave = answer(200, b"\x1f\x8b-not-really", content_encoding="br-of-ours")
        async with served.socket() as (reader, writer):
            writer.write(served.head("content-length: 0", "connection: close", "accept-encoding: gzip"))
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert body == b"\x1f\x8b-not-really"
    assert b"content-encoding: br-of-ours" in head
    assert served.upstream.received[0].values("accept-encoding") == ["identity"]


@pytest.mark.parametrize("behave", [hang, stream_and_hang])
async def test_a_client_that_leaves_ends_the_upstream_request(tmp_path: Path, behave) -> None:
    async with proxied(tmp_path) as served:
        served.upstream.behave = behave
        async with served.socket() as (reader, writer):
            writer.write(served.head(f"content-length: {len(BODY)}") + BODY)
            if behave is stream_and_hang:
                await reader.readuntil(b"data: x\n\n")
            else:
                await served.upstream.until_received()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await served.upstream.hung_up.wait()
        assert (await served.recorded())[0].ending is ExchangeEnd.GONE
        served.upstream.behave = answer(200, b"{}")
        assert (await served.call()).status_code == 200


async def test_a_second_request_uses_the_warm_connection(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        for _ in range(3):
            await served.call()
    assert len(served.upstream.received) == 3
    assert served.upstream.connections == 1


async def test_models_can_be_listed_and_tokens_counted(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        assert (await served.call("/v1/models?limit=5", method="GET")).status_code == 200
        assert (await served.call("/v1/messages/count_tokens")).status_code == 200
    assert [one.target for one in served.upstream.received] == [
        "/v1/models?limit=5",
        "/v1/messages/count_tokens",
    ]


async def test_the_probe_is_answered_here(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        for method in ("GET", "HEAD"):
            assert (await served.call("/", method=method, token="none")).status_code == 200
    assert served.upstream.received == []


async def test_only_the_headers_a_client_needs_come_back(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        served.upstream.behave = answer(
            200,
            b"{}",
            request_id="req_1",
            retry_after="7",
            anthropic_ratelimit_requests_limit="9",
            anthropic_organization_id="org",
            set_cookie="a=b",
            x_echo=REAL_KEY,
            anthropic_ratelimit_echo=REAL_KEY,
        )
        response = await served.call()
    assert sorted(response.headers) == [
        "anthropic-ratelimit-requests-limit",
        "content-length",
        "request-id",
        "retry-after",
    ]


async def test_an_answer_that_quotes_the_key_is_cut_before_it(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        served.upstream.behave = answer(400, b"invalid key " + REAL_KEY.encode())
        with capture_logs() as logs:
            raw = await served.say(served.head("content-length: 0"))
    assert REAL_KEY.encode() not in raw
    assert any(entry["event"] == "the upstream quoted the credential: answer cut" for entry in logs)


async def test_a_changed_credential_is_used_at_once(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        await served.call()
        (tmp_path / ".env").write_text("ANTHROPIC_API_KEY=sk-another\n")
        await served.call()
    assert [one.values("x-api-key") for one in served.upstream.received] == [[REAL_KEY], ["sk-another"]]


async def test_without_a_credential_the_refusal_says_so(tmp_path: Path) -> None:
    async with proxied(tmp_path, settings=()) as served:
        response = await served.call()
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (403, "permission_error")
    assert "No model credential is configured" in error["message"]
    assert served.upstream.received == []


async def test_a_request_leaves_one_line_without_its_content(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with proxied(tmp_path) as served:
        with capture_logs() as logs:
            await served.call(content=b'{"system":"the prompt"}')
            await served.recorded()
            served.end_run()
            await served.call()
    assert [entry["event"] for entry in logs] == ["model request", "model request refused"]
    line = logs[0]
    assert (line["run"], line["folder"], line["path"]) == ("run-0", "group-0", "/v1/messages")
    assert (line["status"], line["bytes_in"], line["bytes_out"]) == (200, 23, 2)
    everything = json.dumps(logs, default=str) + caplog.text
    for secret in (REAL_KEY, served.token, "the prompt"):
        assert secret not in everything
