from __future__ import annotations

import json

import pytest

from orchestrator.domain import failures
from orchestrator.domain.failures import ModelError
from orchestrator.proxies.model.exchange import classify
from orchestrator.queue.retries import outage_delay_ms


def said(message: str, kind: str = "invalid_request_error") -> bytes:
    return json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (200, b"event: message_start\n", None),
        (200, b"{}", None),
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


def test_only_what_comes_again_every_time_is_permanent() -> None:
    passing = {ModelError.OUTAGE, ModelError.SLOW, ModelError.FOREIGN, ModelError.OTHER}
    assert {error for error in ModelError if not error.is_permanent} == passing


def test_an_outage_is_waited_out_for_a_quarter_of_an_hour_and_no_longer() -> None:
    assert [outage_delay_ms(seconds * 1000) for seconds in (0, 8, 60, 300)] == [5_000, 5_000, 30_000, 60_000]
    assert outage_delay_ms(failures.MAX_OUTAGE_MS) is None


@pytest.mark.parametrize("cause", [cause for cause in ModelError if cause.is_permanent])
@pytest.mark.parametrize("model", [None, "", "claude-9"])
def test_the_owner_reads_cause_and_mend_and_no_group_does(cause: ModelError, model: str | None) -> None:
    told = failures.refusal_notice(cause, setting="ANTHROPIC_API_KEY", model=model, status=401)
    assert told.startswith("⚠️ I cannot answer: ")
    assert failures.refusal_mend(cause, setting="ANTHROPIC_API_KEY", model=model) in told
    for word in ("key", ".env", "http", "andy", "settings", "credit", "main"):
        assert word not in failures.REFUSED.lower()
