"""Whatever the schema of Anthropic's Messages API admits as an answer, and near misses, through the proxy.

The schema is tests/schemas/messages_api.json, taken from the types of Anthropic's Python SDK.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.proxies.model.exchange import ExchangeEnd
from orchestrator.proxies.model.token_usage import ParsedUsage, UsageParser
from tests.doubles.faulty_upstream import Behave, answer, reset, say
from tests.support.json_schemas import JUNK, TEXT, any_of, examples, load, valid
from tests.support.running_proxy import REAL_KEY, proxied

ANY = settings(deadline=None, suppress_health_check=list(HealthCheck))
API = load("messages_api")
MESSAGE = valid(API["Message"], API)
EVENT = valid(API["RawMessageStreamEvent"], API)
NEWER = st.builds(lambda kind, more: {**more, "type": kind}, TEXT, st.dictionaries(TEXT, JUNK, max_size=2))
"""Events of a kind that no version knows."""
ERROR = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
EVENTS = st.lists(any_of(EVENT) | NEWER | st.just(ERROR) | st.just({"type": "ping"}), max_size=8)


def stream_of(events: list[Any]) -> bytes:
    """Return events as the service writes them, each under its kind."""
    found = [one if isinstance(one, dict) else {"type": "odd", "is": one} for one in events]
    return "".join(
        f"event: {str(one.get('type')).encode('unicode_escape').decode()}\ndata: {json.dumps(one)}\n\n"
        for one in found
    ).encode()


def seen(body: bytes, cuts: list[int], kind: bytes) -> ParsedUsage | None:
    """Return what is read of a body that comes in pieces."""
    parser = UsageParser()
    parser.begin(200, [(b"content-type", kind)])
    places = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    for start, end in pairwise(places):
        parser.feed(body[start:end])
    return parser.usage_so_far()


@settings(ANY, max_examples=examples(60))
@given(EVENTS, st.lists(st.integers(0, 10**6), max_size=6))
def test_usage_is_read_of_any_stream_however_it_is_cut(events, cuts):
    body = stream_of(events)
    found = seen(body, cuts, b"text/event-stream")
    assert found == seen(body, [], b"text/event-stream")
    if found is not None:
        assert min(found.input_tokens, found.output_tokens, found.cache_read_tokens, found.searches) >= 0


@settings(ANY, max_examples=examples(60))
@given(any_of(MESSAGE))
def test_usage_is_read_of_any_message(message):
    found = seen(json.dumps(message).encode(), [], b"application/json; charset=utf-8")
    usage = message.get("usage") if isinstance(message, dict) else None
    if isinstance(usage, dict) and usage.get("output_tokens") == 1 and not usage.get("iterations"):
        assert found is not None
        assert found.output_tokens == 1


def as_events(events: list[Any]) -> Behave:
    return answer(200, stream_of(events), content_type="text/event-stream; charset=utf-8")


def as_json(body: Any, status: int = 200, charset: str = "utf-8") -> Behave:
    kind = f"application/json; charset={charset}"
    return answer(status, json.dumps(body).encode(charset), content_type=kind)


def _head(kind: bytes, length: int) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n" % (kind, length)


PAGE = b"<html><h1>200 OK</h1></html>"
QUOTE = f"the key {REAL_KEY} is wrong".encode()
ANSWER = st.one_of(
    EVENTS.map(as_events),
    any_of(MESSAGE).map(as_json),
    any_of(MESSAGE).map(lambda one: as_json(one, charset="utf-16")),
    st.sampled_from([200, 400, 429, 500, 529]).map(lambda status: as_json(ERROR, status)),
    EVENTS.map(lambda one: say(_head(b"text/event-stream", 10**6) + stream_of(one))),
    st.sampled_from(
        [
            answer(200, PAGE, content_type="text/html"),
            answer(404, PAGE, content_type="text/html"),
            answer(302, b"", location="http://127.0.0.1:9/v1/messages"),
            answer(308, QUOTE, location=f"http://127.0.0.1:9/{REAL_KEY}"),
            answer(200, b""),
            answer(200, b"\x1f\x8bno gzip", content_encoding="gzip", content_type="application/json"),
            answer(401, QUOTE, content_type="text/plain"),
            answer(200, QUOTE, content_type="text/event-stream", request_id=REAL_KEY),
            say(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-5\r\n"),
            say(b""),
            reset,
        ]
    ),
)


@settings(ANY, max_examples=examples(8))
@given(st.lists(ANSWER, min_size=1, max_size=6))
def test_any_answer_of_the_service_has_one_outcome_and_the_next_request_is_taken(found):
    async def all_of() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with proxied(Path(folder)) as served:
                for behave in found:
                    before = len(served.exchanges)
                    served.upstream.behave = behave
                    raw = await served.say(served.head("content-length: 0", "connection: close"))
                    assert raw.startswith(b"HTTP/1.1 ")
                    assert REAL_KEY.encode() not in raw
                    served.upstream.behave = answer(200, b"{}", content_type="application/json")
                    assert (await served.call(token=served.other_token)).status_code == 200
                    first, second = (await served.recorded(before + 2))[before:]
                    assert len(served.exchanges) == before + 2
                    assert second.ending is ExchangeEnd.WHOLE
                    assert first.ending is not ExchangeEnd.STOPPED
                assert served.upstream.received
                assert all(one.values("x-api-key") == [REAL_KEY] for one in served.upstream.received)

    asyncio.run(all_of())
