"""Read the bodies and queries of requests within limits, and refuse invalid ones."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from orchestrator.domain.errors import BadRequest

MAX_BODY_BYTES = 512 * 1024
"""Most bytes of a body, where a route has no limit of its own."""
DISCARDED_BYTES = 8 * 2**20
"""Most bytes beyond the limit that are read and thrown away before a body is refused."""

BAD_FIELD = "A field is empty, too long, or of the wrong kind."
"""The text of a page about a form with a field that is refused."""

Body = TypeVar("Body", bound=BaseModel)


class BadBody(BadRequest):
    """The body is not a JSON object of the expected shape."""

    code = "bad_body"
    http_status = 400


class BodyTooLarge(BadRequest):
    """The body is too large."""

    code = "body_too_large"
    http_status = 413


def whole_number(text: str) -> int | None:
    """Return the number that a text of 1 to 15 digits stands for; None for any other text.

    A number with more digits might not fit the store's integers.
    """
    # `isdigit` alone accepts signs such as '²', which `int` refuses.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


async def read_body(request: Request, *, limit: int = MAX_BODY_BYTES) -> bytes:
    """Read the body of a request and return it.

    Raises:
        BodyTooLarge: it has more than `limit` bytes.
        BadBody: the client disconnected before the end of the body.
    """
    refusal = f"The body is over {limit / 1024:.0f} KiB: send less text."
    return b"".join([chunk async for chunk in bounded(request, limit, refusal)])


async def bounded(request: Request, limit: int, refusal: str) -> AsyncGenerator[bytes, None]:
    """Yield the body of a request in pieces as they arrive, at most `limit` bytes.

    Raises:
        BodyTooLarge: it has more than `limit` bytes; the error's text is `refusal`.
        BadBody: the client disconnected before the end of the body.
    """
    received = 0
    try:
        # Counted as it arrives: the length in the headers may be missing or wrong.
        async for chunk in request.stream():
            received += len(chunk)
            if received <= limit:
                yield chunk
            elif received > limit + DISCARDED_BYTES:
                break
    except ClientDisconnect as error:
        # Nobody reads this error, but any other one would be logged as a fault of the host, with a traceback.
        raise BadBody("The client went away before the end of the body.") from error
    if received > limit:
        # Raised at the end of the body: an earlier answer closes the connection, and a client that is still
        # sending would see a broken connection instead of the answer. Only a body that is more than
        # `DISCARDED_BYTES` too large is not read to its end.
        raise BodyTooLarge(refusal)


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body; for an empty body, an empty object.

    Raises `BadBody` if the body is other JSON or none, or is nested too deeply.
    """
    try:
        content = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise BadBody from error
    if not isinstance(content, dict):
        raise BadBody
    return content


class BadQuery(BadRequest):
    """The query does not have the expected shape."""

    code = "bad_query"
    http_status = 400


def parse_query(query: Mapping[str, str], model: type[Body]) -> Body:
    """Return the parameters of a query as a model.

    Raises `BadQuery`, which names the first parameter that the model does not accept.
    """
    try:
        return model.model_validate(dict(query))
    except ValidationError as error:
        raise BadQuery(_first_mistake(error)) from error


async def parse_body(request: Request, model: type[Body]) -> Body:
    """Read the JSON body of a request and return it as a model.

    Raises:
        BadBody: the model does not accept it; the text names the first wrong field.
        BodyTooLarge: it has more than `MAX_BODY_BYTES`.
    """
    try:
        return model.model_validate_json(await read_body(request))
    except ValidationError as error:
        raise BadBody(_first_mistake(error)) from error


def _first_mistake(error: ValidationError) -> str:
    """Return the first wrong field and what is wrong with it: `group: Field required`."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    return f"{field}: {first['msg']}" if field else first["msg"]
