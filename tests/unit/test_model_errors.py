from __future__ import annotations

import json

import pytest

from orchestrator.domain import failures
from orchestrator.domain.failures import ModelError
from orchestrator.proxies.model.exchange import classify
from orchestrator.queue.retries import outage_delay_ms

JSON = b"application/json"


def said(message: str, kind: str = "invalid_request_error") -> bytes:
    return json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (200, b'event: message_start\ndata: {"type": "message_start"}\n\n', None),
        (200, b'{"type": "message", "content": []}', None),
        (200, b"{}", ModelError.FOREIGN),
        (200, b"event: error\ndata: {}", ModelError.OUTAGE),
        (400, said("messages: at least one is needed"), ModelError.OTHER),
        (400, said("Your credit balance is too low to access the Anthropic API."), ModelError.NO_CREDIT),
        (400, said("no money", "billing_error"), ModelError.NO_CREDIT),
        (400, b"<html>credit balance</html>", ModelError.OTHER),
        (400, b"[" * 100_000, ModelError.OTHER),
        (401, said("invalid x-api-key"), ModelError.KEY_REFUSED),
        (402, b"", ModelError.NO_CREDIT),
        (403, said("not allowed"), ModelError.KEY_REFUSED),
        (404, said("model: claude-9", "not_found_error"), ModelError.UNKNOWN_MODEL),
        (408, b"", ModelError.OUTAGE),
        (400, said("Budget has been exceeded! Current cost: 3.1", "budget_exceeded"), ModelError.NO_CREDIT),
        (400, said("You have reached your specified API usage limits."), ModelError.NO_CREDIT),
        (400, said("Insufficient Balance"), ModelError.NO_CREDIT),
        (400, said("Invalid model name passed in model=x"), ModelError.UNKNOWN_MODEL),
        (400, said("This organization has been disabled."), ModelError.KEY_REFUSED),
        (400, said("Your credit balance is too low. \u20ac").decode().encode("utf-16"), ModelError.OTHER),
        (400, '{"error": {"message": "billing \u00e9"}}'.encode("latin-1"), ModelError.NO_CREDIT),
        (405, b"", ModelError.FOREIGN),
        (410, b"", ModelError.FOREIGN),
        (413, b"", ModelError.OTHER),
        (422, b"", ModelError.OTHER),
        (429, said("slow down"), ModelError.OUTAGE),
        (500, b"", ModelError.OUTAGE),
        (503, b"", ModelError.OUTAGE),
        (529, said("Overloaded", "overloaded_error"), ModelError.OUTAGE),
    ],
)
def test_an_answer_is_judged_by_its_status_and_words(
    status: int, body: bytes, error: ModelError | None
) -> None:
    assert classify(status, body) is error


def event(data: str, *, before: str = "", end: str = "\n") -> bytes:
    return f"{before}event: x{end}data: {data}{end}{end}".encode()


@pytest.mark.parametrize(
    ("kind", "body", "error"),
    [
        (JSON, b'{"type": "message", "content": [{"type": "text", "text": "hi"}], "new": 1}', None),
        (JSON, b'\n \n{"type": "message", "content": []}', None),
        (b"application/json; charset=utf-8", b'{"type": "message", "content": []}', None),
        (JSON, b'{"type": "message", "content": "hi"}', ModelError.FOREIGN),
        (JSON, b'{"type": "message"}', ModelError.FOREIGN),
        (JSON, b'{"type": "message", "content": [', ModelError.FOREIGN),
        (JSON, b'{"object": "chat.completion", "choices": []}', ModelError.FOREIGN),
        (JSON, b'{"id": "resp_1", "object": "response", "output": []}', ModelError.FOREIGN),
        (JSON, b'{"candidates": [{"content": {"parts": []}}]}', ModelError.FOREIGN),
        (JSON, b'{"model": "qwen3", "response": "hi", "done": true}', ModelError.FOREIGN),
        (JSON, b"[]", ModelError.FOREIGN),
        (JSON, b"null", ModelError.FOREIGN),
        (JSON, b"", ModelError.FOREIGN),
        (JSON, b"[" * 100_000, ModelError.FOREIGN),
        (JSON, b"<html>Log in</html>", ModelError.FOREIGN),
        (b"text/html", b"<html>Log in</html>", ModelError.FOREIGN),
        (b"text/plain", b'{"type": "message", "content": []}', ModelError.FOREIGN),
        (JSON, said("Overloaded", "overloaded_error"), ModelError.OUTAGE),
        (JSON, said("invalid x-api-key", "authentication_error"), ModelError.KEY_REFUSED),
        (JSON, said("Your credit balance is too low"), ModelError.NO_CREDIT),
        (JSON, said("model: claude-9", "not_found_error"), ModelError.UNKNOWN_MODEL),
        (JSON, said("later", "a_newer_error"), ModelError.OUTAGE),
        (JSON, b'{"error": {"code": 502, "message": "Provider returned error"}}', ModelError.OUTAGE),
        (JSON, b'{"error": {"code": 402, "message": "Insufficient credits"}}', ModelError.NO_CREDIT),
        (JSON, b'{"error": {"code": "502"}}', ModelError.OUTAGE),
        (JSON, b'{"type": "error", "error": "later"}', ModelError.OUTAGE),
    ],
)
def test_a_good_status_is_believed_only_with_a_message_below_it(
    kind: bytes, body: bytes, error: ModelError | None
) -> None:
    assert classify(200, body, kind) is error


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (event('{"type": "message_start", "message": {}}'), None),
        (event('{"type": "message_start"}', end="\r\n"), None),
        (event('{"type": "ping"}'), None),
        (event('{"type": "a_newer_event"}'), None),
        (event('{"type": "message_start"}', before=": PROCESSING\n\n: PROCESSING\n\n"), None),
        (b'data: {"type": "message_start"}\n\n', None),
        (event('{"type": "error", "error": {"type": "overloaded_error"}}'), ModelError.OUTAGE),
        (
            event('{"type": "error", "error": {"type": "authentication_error"}}'),
            ModelError.KEY_REFUSED,
        ),
        (b'data: {"id": "1", "object": "chat.completion.chunk", "choices": []}\n\n', ModelError.FOREIGN),
        (event('{"type": "response.created", "response": {}}'), ModelError.FOREIGN),
        (b"data: [DONE]\n\n", ModelError.FOREIGN),
        (event("hello"), ModelError.FOREIGN),
        (event('{"type": 1}'), ModelError.FOREIGN),
        (b": nothing but comments\n\n" * 800, ModelError.FOREIGN),
        (b'{"type": "message", "content": []}', ModelError.FOREIGN),
    ],
)
def test_a_stream_is_judged_by_its_first_event(body: bytes, error: ModelError | None) -> None:
    assert classify(200, body, b"text/event-stream", is_streamed=True) is error


def test_a_message_in_one_piece_is_no_answer_where_a_stream_was_asked_for() -> None:
    body = b'{"type": "message", "content": []}'
    assert classify(200, body, JSON, is_streamed=True) is ModelError.FOREIGN
    assert classify(200, body, is_streamed=True) is ModelError.FOREIGN


def test_only_what_comes_again_every_time_is_permanent() -> None:
    passing = {ModelError.OUTAGE, ModelError.SLOW, ModelError.FOREIGN, ModelError.OTHER}
    assert {error for error in ModelError if not error.is_permanent} == passing


def test_an_outage_is_waited_out_for_a_quarter_of_an_hour_and_no_longer() -> None:
    assert [outage_delay_ms(seconds * 1000) for seconds in (0, 8, 60, 300)] == [5_000, 5_000, 30_000, 60_000]
    assert outage_delay_ms(failures.MAX_OUTAGE_MS) is None


@pytest.mark.parametrize("cause", [cause for cause in ModelError if cause.is_permanent])
@pytest.mark.parametrize("model", [None, "", "claude-9"])
def test_the_owner_reads_cause_and_mend_and_no_group_does(cause: ModelError, model: str | None) -> None:
    told = failures.refusal_text(cause, setting="ANTHROPIC_API_KEY", model=model, status=401)
    assert told.startswith("⚠️ I cannot answer: ")
    assert failures.refusal_fix(cause, setting="ANTHROPIC_API_KEY", model=model) in told
    for word in ("key", ".env", "http", "andy", "settings", "credit", "main"):
        assert word not in failures.REFUSED.lower()
