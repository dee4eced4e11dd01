"""What the model service can do wrong, and how a container sees it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from orchestrator.domain.errors import StoreError
from orchestrator.domain.failures import ModelError
from orchestrator.proxies.model.exchange import Answered, ExchangeEnd, RunIdentity
from orchestrator.proxies.model.limits import ModelProxyLimits
from tests.doubles.faulty_upstream import Behave, FaultyUpstream, Received, answer, hang, reset, say
from tests.support.running_proxy import REAL_KEY, proxied

OF_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CUT_CHUNKED = OF_STREAM + b"transfer-encoding: chunked\r\n\r\nd\r\ndata: hello\n\n\r\n"
CUT_SIZED = OF_STREAM + b"content-length: 50\r\n\r\ndata: hello\n\n"
CUT_BEFORE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{",
    OF_STREAM + b"content-length: 50\r\n\r\ndata: hel",
)


@pytest.mark.parametrize(
    ("behave", "status", "kind"),
    [
        (hang, 504, "timeout_error"),
        (reset, 502, "api_error"),
        (say(b""), 502, "api_error"),
        (say(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), 502, "api_error"),
        (say(b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n"), 502, "api_error"),
        (say(b"HTTP/1.1 200 OK\r\na: " + b"a" * 200_000), 502, "api_error"),
        (say(b"HTTP/1.1 999 What\r\ncontent-length: 0\r\n\r\n"), 502, "api_error"),
    ],
)
async def test_a_service_that_does_not_answer_becomes_an_error_clients_try_again(
    tmp_path: Path, behave: Behave, status: int, kind: str
) -> None:
    async with proxied(tmp_path, limits=ModelProxyLimits(first_byte_seconds=2)) as served:
        served.upstream.behave = behave
        response = await served.call()
        assert (response.status_code, response.json()["error"]["type"]) == (status, kind)
        assert REAL_KEY not in response.text
        assert (await served.recorded())[0].ending is ExchangeEnd.REFUSED
        served.upstream.behave = answer(200, b"{}")
        assert (await served.call(token=served.other_token)).status_code == 200


async def test_a_service_that_is_not_there_is_a_bad_gateway(tmp_path: Path) -> None:
    async with FaultyUpstream() as gone:
        url = gone.url
    async with proxied(tmp_path) as served:
        served.environment["ANTHROPIC_BASE_URL"] = url
        with capture_logs() as logs:
            response = await served.call()
    assert (response.status_code, response.json()["error"]["type"]) == (502, "api_error")
    assert logs[0]["event"] == "the model service did not answer"
    assert logs[0]["cause"].startswith("ConnectError")
    assert "cannot be reached" in response.json()["error"]["message"]


@pytest.mark.parametrize("status", [400, 401, 429, 500, 529])
async def test_an_error_of_the_service_passes_as_it_is(tmp_path: Path, status: int) -> None:
    body = b'{"type":"error","error":{"type":"some_error","message":"as it is"}}'
    async with proxied(tmp_path) as served:
        served.upstream.behave = answer(status, body, retry_after="3", x_should_retry="true")
        response = await served.call()
    assert (response.status_code, response.content) == (status, body)
    assert (response.headers["retry-after"], response.headers["x-should-retry"]) == ("3", "true")


@pytest.mark.parametrize(
    ("status", "error"),
    [(200, None), (302, ModelError.FOREIGN), (308, ModelError.FOREIGN), (500, ModelError.OUTAGE)],
)
async def test_only_a_success_in_an_encoding_counts_as_a_models_answer(
    tmp_path: Path, status: int, error: ModelError | None
) -> None:
    judged: list[ModelError | None] = []

    async def judge(_: RunIdentity, answered: Answered) -> bool:
        judged.append(answered.error)
        return True

    async with proxied(tmp_path, judge=judge) as served:
        served.upstream.behave = answer(status, b"\x1f\x8b", content_encoding="gzip")
        await served.say(served.head("content-length: 0", "connection: close"))
        probed = await served.proxy.probe(None)
    assert judged == [error]
    assert probed.error == error


@pytest.mark.parametrize(
    ("dotenv", "error"),
    [
        (b"", ModelError.NO_KEY),
        ("ANTHROPIC_API_KEY=sk-gr\u00fcn\n".encode(), ModelError.KEY_UNREADABLE),
        (b"ANTHROPIC_API_KEY=\xff\n", ModelError.KEY_UNREADABLE),
    ],
)
async def test_the_hosts_own_request_tells_an_unusable_key_from_none(
    tmp_path: Path, dotenv: bytes, error: ModelError
) -> None:
    async with proxied(tmp_path) as served:
        (tmp_path / ".env").write_bytes(dotenv)
        assert (await served.proxy.probe(None)).error == error


async def test_a_refused_credential_is_told_once(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        served.upstream.behave = answer(401, b"{}")
        with capture_logs() as logs:
            for _ in range(3):
                await served.call()
            (tmp_path / ".env").write_text("ANTHROPIC_API_KEY=sk-another-bad-one\n")
            await served.call()
    told = [entry for entry in logs if entry["event"] == "the credential was refused: check .env"]
    assert [entry["log_level"] for entry in told] == ["error", "error"]


@pytest.mark.parametrize("cut", [CUT_CHUNKED, CUT_SIZED])
async def test_an_answer_that_is_cut_stays_cut(tmp_path: Path, cut: bytes) -> None:
    async with proxied(tmp_path) as served:
        served.upstream.behave = say(cut)
        raw = await served.say(served.head("content-length: 0"))
        assert (await served.recorded())[0].ending is ExchangeEnd.CUT
    assert b"hello" in raw
    assert not raw.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("cut", CUT_BEFORE)
async def test_an_answer_that_is_cut_before_it_can_be_judged_is_a_refusal(tmp_path: Path, cut: bytes) -> None:
    async with proxied(tmp_path) as served:
        served.upstream.behave = say(cut)
        response = await served.call()
        assert (await served.recorded())[0].ending is ExchangeEnd.REFUSED
    assert response.status_code == 502
    assert response.json()["type"] == "error"


async def refuse_early(
    _: Received, __: FaultyUpstream, ___: asyncio.StreamReader, to: asyncio.StreamWriter
) -> None:
    to.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
    await to.drain()
    to.close()


async def test_a_connection_that_the_service_closes_is_not_used_again(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        served.upstream.behave = refuse_early
        assert (await served.call()).status_code == 413
        served.upstream.behave = answer(200, b"{}")
        assert (await served.call()).status_code == 200
    assert served.upstream.connections == 2


async def test_a_fault_of_the_host_says_nothing_of_itself(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        served.runs.clear()
        served.fault = RuntimeError(f"the store is gone, and so is {REAL_KEY}")
        with capture_logs() as logs:
            response = await served.call()
    assert (response.status_code, response.json()["error"]["type"]) == (500, "api_error")
    assert REAL_KEY not in response.text + repr(logs)
    assert logs[0]["error"] == "RuntimeError"


async def test_a_fault_of_the_host_leaves_one_line_however_often_it_is_met(tmp_path: Path) -> None:
    async with proxied(tmp_path) as served:
        served.fault = StoreError("it is read-only")
        with capture_logs() as logs:
            for _ in range(5):
                assert (await served.call()).status_code == 500
    assert [entry["error"] for entry in logs if entry["log_level"] == "error"] == ["StoreError"]
