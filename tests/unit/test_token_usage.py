"""What is read off an answer about its usage, and what that costs."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.model_services import ModelService, ServicePrice
from orchestrator.proxies.model.token_usage import (
    MAX_LINE_BYTES,
    Cost,
    ParsedUsage,
    Prices,
    UsageParser,
    per_million,
)

STREAM = [(b"content-type", b"text/event-stream; charset=utf-8")]
JSON = [(b"Content-Type", b"application/json")]
USAGE = {
    "input_tokens": 1000,
    "output_tokens": 1,
    "cache_read_input_tokens": 300,
    "cache_creation_input_tokens": 20,
}


def sse(*events: dict[str, Any], end: str = "\n") -> bytes:
    return "".join(
        f"event: {event['type']}{end}data: {json.dumps(event, ensure_ascii=False)}{end}{end}"
        for event in events
    ).encode()


def start(model: str = "claude-sonnet-4-5-20250929", **usage: Any) -> dict[str, Any]:
    return {"type": "message_start", "message": {"model": model, "usage": {**USAGE, **usage}}}


def delta(text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}


def end(**usage: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}


STOP = {"type": "message_stop"}
WHOLE = sse(start(), delta('"usage": {"input_tokens": 9} 안녕'), end(output_tokens=50), STOP)


def tapped(
    *chunks: bytes, headers: list[tuple[bytes, bytes]] = STREAM, status: int = 200
) -> ParsedUsage | None:
    tap = UsageParser()
    tap.begin(status, headers)
    for chunk in chunks:
        tap.feed(chunk)
    return tap.usage_so_far()


@given(st.lists(st.integers(0, len(WHOLE)), max_size=12), st.sampled_from(["\n", "\r\n"]))
def test_a_stream_is_read_however_it_is_cut(cuts: list[int], line_end: str) -> None:
    text = WHOLE.replace(b"\n", line_end.encode())
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    seen = tapped(*(text[a:b] for a, b in itertools.pairwise(edges)))
    assert seen is not None
    assert (seen.input_tokens, seen.output_tokens) == (1000, 50)
    assert (seen.cache_read_tokens, seen.cache_write_tokens) == (300, 20)
    assert seen.is_whole
    assert Prices().cost_of(seen).nano_usd == 1000 * 3000 + 50 * 15000 + 300 * 300 + 20 * 3750


def test_the_numbers_of_the_end_replace_those_of_the_start() -> None:
    seen = tapped(sse(start(), end(input_tokens=1200, output_tokens=7, cache_read_input_tokens=None), STOP))
    assert seen is not None
    assert (seen.input_tokens, seen.output_tokens, seen.cache_read_tokens) == (1200, 7, 300)


def test_what_is_kept_for_an_hour_costs_more() -> None:
    usage = {"cache_creation_input_tokens": 100, "cache_creation": {"ephemeral_1h_input_tokens": 60}}
    seen = tapped(sse(start(**usage, input_tokens=0, cache_read_input_tokens=0), end(output_tokens=0), STOP))
    assert seen is not None
    assert Prices().cost_of(seen).nano_usd == 40 * 3750 + 60 * 6000


def test_what_each_iteration_stores_for_an_hour_costs_more() -> None:
    one = {"cache_creation_input_tokens": 100, "cache_creation": {"ephemeral_1h_input_tokens": 60}}
    usage = {"cache_creation_input_tokens": 100, "iterations": [one, one, "none", {"cache_creation": 7}]}
    seen = tapped(sse(start(**usage, input_tokens=0, cache_read_input_tokens=0), end(output_tokens=0), STOP))
    assert seen is not None
    assert (seen.cache_write_tokens, seen.cache_write_hour_tokens) == (200, 120)
    assert Prices().cost_of(seen).nano_usd == 80 * 3750 + 120 * 6000


def test_a_stream_that_breaks_off_tells_what_had_passed() -> None:
    seen = tapped(sse(start(), delta("a"), delta("b"), delta("c")))
    assert seen is not None
    assert not seen.is_whole
    assert (seen.input_tokens, seen.output_tokens) == (1000, 3)
    long = tapped(sse(start(), delta("x" * 40_000)))
    assert long is not None
    assert 9_990 <= long.output_tokens <= 10_010, "hanging up before the last number saves nothing"


def test_numbers_that_were_told_are_not_estimated_again() -> None:
    seen = tapped(sse(start(), delta("x" * 40_000), end(output_tokens=12)))
    assert seen is not None
    assert (seen.output_tokens, seen.is_whole) == (12, False)


def test_a_whole_answer_is_read_too() -> None:
    body = json.dumps({"type": "message", "model": "us.anthropic.claude-haiku-4-5-v1", "usage": USAGE})
    seen = tapped(body.encode()[:30], body.encode()[30:], headers=JSON)
    assert seen is not None
    assert (seen.input_tokens, seen.output_tokens, seen.is_whole) == (1000, 1, True)
    assert Prices().cost_of(seen).nano_usd == 1000 * 1000 + 5000 + 300 * 100 + 20 * 1250


@pytest.mark.parametrize(
    ("headers", "status", "body"),
    [
        (JSON, 400, json.dumps({"usage": USAGE}).encode()),
        ([], 200, json.dumps({"usage": USAGE}).encode()),
        (JSON, 200, b'{"usage": [1, 2]}'),
        (JSON, 200, b"[" * 200_000),
        (JSON, 200, b"\xff\xfe"),
        (STREAM, 200, b"data: {\n\ndata: [1]\n\ndata: " + b"{" * 9000 + b'"message_start"\n\n'),
        (STREAM, 200, b'data: {"type": "message_start", "message": 7}\n\n'),
        (STREAM, 200, b"data: " + b"x" * (MAX_LINE_BYTES + 1)),
    ],
)
def test_what_tells_no_usage_is_passed_over(
    headers: list[tuple[bytes, bytes]], status: int, body: bytes
) -> None:
    assert tapped(body, headers=headers, status=status) is None


def test_after_an_endless_line_the_next_is_read() -> None:
    seen = tapped(b"data: " + b"x" * (MAX_LINE_BYTES + 1), b"\n\n" + WHOLE)
    assert seen is not None
    assert seen.output_tokens == 50


@pytest.mark.parametrize("odd", [-1, 1.5, True, "9", 10**40, None])
def test_a_number_that_is_none_counts_as_nothing(odd: object) -> None:
    seen = tapped(sse(start(input_tokens=odd), STOP))
    assert seen is not None
    assert seen.input_tokens == 0


def test_a_search_costs_the_owners_price_also_at_a_service_with_a_price_of_its_own() -> None:
    service = ModelService(name="router", kind="openrouter", url="http://x", price=ServicePrice(3, 15))
    seen = tapped(WHOLE)
    assert seen is not None
    for of_service in (service, None):
        with_search, without = (
            Prices(search_usd=0.5).cost_at(of_service, replace(seen, searches=count)).nano_usd or 0
            for count in (1, 0)
        )
        assert with_search - without == 500_000_000


def test_an_unknown_model_has_no_cost() -> None:
    seen = tapped(sse(start(model="glm-9"), end(output_tokens=5), STOP))
    assert seen is not None
    assert Prices().cost_of(seen) == Cost(nano_usd=None)


@pytest.mark.parametrize(
    ("model", "read", "written"),
    [
        ("claude-opus-5-5", 15, 75),
        ("us.anthropic.claude-sonnet-9-v1", 3, 15),
        ("claude-haiku-5", 1, 5),
        ("claude-next-1", 15, 75),
    ],
)
def test_a_model_that_is_newer_than_the_list_counts_as_the_dearest_of_its_family(
    model: str, read: int, written: int
) -> None:
    seen = tapped(sse(start(model=model, input_tokens=10), end(output_tokens=5), STOP))
    assert seen is not None
    told = Prices({model: per_million(input=read, output=written)}).cost_of(seen)
    assert not told.is_assumed, "the owner's price is known"
    assert Prices().cost_of(seen) == Cost(nano_usd=told.nano_usd, is_assumed=True)


@pytest.mark.parametrize(
    ("model", "read", "written"),
    [
        ("claude-opus-4-5-20251101", 5000, 25000),
        ("claude-opus-4-1-20250805", 15000, 75000),
        ("claude-opus-4-20250514", 15000, 75000),
        ("anthropic/claude-sonnet-4-6", 3000, 15000),
        ("claude-3-5-haiku-20241022", 800, 4000),
    ],
)
def test_prices_go_by_the_prefix(model: str, read: int, written: int) -> None:
    price = Prices().of(model)
    assert price is not None
    assert (price.input, price.output) == (read, written)


@pytest.mark.parametrize("model", [None, "", "claude-opus-9", "claude-opus-4-12", "gpt"])
def test_no_price_is_guessed(model: str | None) -> None:
    assert Prices().of(model) is None


OWN = Prices(
    {
        "glm": per_million(input=1, output=2),
        "glm-5": per_million(input=3, output=4, cache_read=0.5, cache_write=6, cache_write_hour=7),
        "claude-sonnet-4-5": per_million(input=30, output=40),
    }
)


@pytest.mark.parametrize(
    ("model", "read"),
    [
        ("glm-5-air", 3000),
        ("glm-4", 1000),
        ("glm-50", 1000),
        ("us.anthropic.claude-sonnet-4-5-v1", 30_000),
        ("claude-haiku-4-5", 1000),
    ],
)
def test_the_owners_price_goes_before_the_lists(model: str, read: int) -> None:
    price = OWN.of(model)
    assert price is not None
    assert price.input == read


def test_the_owner_may_price_the_cache() -> None:
    price = OWN.of("glm-5")
    assert price is not None
    assert (price.cache_read, price.cache_write, price.cache_write_hour) == (500, 6000, 7000)
    derived = OWN.of("glm")
    assert derived is not None
    assert (derived.cache_read, derived.cache_write, derived.cache_write_hour) == (100, 1250, 2000)


def test_an_answer_in_iterations_counts_all_of_them() -> None:
    """Compaction at the service: the numbers at the top are those of the last iteration alone."""
    iterations = [
        {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3_500},
        {"type": "message", "input_tokens": 23_000, "output_tokens": 1_000},
    ]
    usage = {"input_tokens": 23_000, "output_tokens": 1_000, "iterations": iterations}
    seen = tapped(sse(start(**usage), end(**usage), STOP))

    assert seen is not None
    assert (seen.input_tokens, seen.output_tokens) == (203_000, 4_500)


@pytest.mark.parametrize("iterations", [7, [7], [{}], [{"input_tokens": "x"}], {"input_tokens": 9}])
def test_iterations_that_are_none_count_nothing_more(iterations: object) -> None:
    seen = tapped(sse(start(iterations=iterations), end(output_tokens=5), STOP))

    assert seen is not None
    assert (seen.input_tokens, seen.output_tokens) == (1_000, 5)


def test_fast_mode_and_a_long_input_cost_what_the_service_charges_for_them() -> None:
    def cost(model: str, tokens: int, **usage: Any) -> int | None:
        usage = {
            **usage,
            "input_tokens": tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        }
        seen = tapped(sse(start(model, **usage), end(output_tokens=1_000), STOP))
        assert seen is not None
        return Prices().cost_of(seen).nano_usd

    plain = 100_000 * 5_000 + 1_000 * 25_000
    assert cost("claude-opus-4-6", 100_000) == plain
    assert cost("claude-opus-4-6", 100_000, speed="fast") == 6 * plain
    assert cost("claude-opus-4-6", 300_000, speed="fast") == 12 * (300_000 * 5_000 + 1_000 * 25_000)
    assert cost("claude-opus-4-6", 100_000, inference_geo="us") == 1.1 * plain
    assert cost("claude-opus-4-6", 100_000, inference_geo="us", speed="fast") == 6.6 * plain
    assert cost("claude-opus-4-6", 100_000, inference_geo="global") == plain
    assert cost("claude-sonnet-4-5", 300_000) == 2 * 300_000 * 3_000 + 1.5 * 1_000 * 15_000
    assert cost("claude-sonnet-4-5", 200_000) == 200_000 * 3_000 + 1_000 * 15_000
