"""Bodies of requests that are too large."""

from __future__ import annotations

from itertools import count

import pytest
from starlette.requests import Request

from orchestrator.web.bodies import DISCARDED_BYTES, BadBody, BodyTooLarge, read_body


async def test_a_body_over_the_limit_is_read_to_its_end_before_it_is_refused():
    """Or a client that is still sending sees a broken connection instead of the answer."""
    pieces = [b"a" * 1024] * 200
    with pytest.raises(BodyTooLarge, match="over 4 KiB"):
        await read_body(request_of(pieces), limit=4096)

    assert pieces == []


async def test_a_body_without_an_end_is_refused_at_some_time():
    numbers = count()
    with pytest.raises(BodyTooLarge):
        await read_body(request_of(numbers), limit=4096)

    assert next(numbers) * 1024 < DISCARDED_BYTES + 2 * 4096


async def test_a_body_at_the_limit_is_read():
    assert await read_body(request_of([b"a" * 2048] * 2), limit=4096) == b"a" * 4096


async def test_a_client_that_hangs_up_in_the_middle_of_a_body_is_no_fault_of_the_host():
    messages = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> dict[str, object]:
        return messages.pop(0)

    with pytest.raises(BadBody, match="went away"):
        await read_body(Request({"type": "http", "headers": []}, receive))


def request_of(pieces: list[bytes] | count[int]) -> Request:
    """Return a request whose body has these pieces, or one without an end."""

    async def receive() -> dict[str, object]:
        if not isinstance(pieces, list):
            next(pieces)
            return {"type": "http.request", "body": b"a" * 1024, "more_body": True}
        body = pieces.pop()
        return {"type": "http.request", "body": body, "more_body": bool(pieces)}

    return Request({"type": "http", "headers": []}, receive)
