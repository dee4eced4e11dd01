"""Parse the head of a request to the egress proxy: CONNECT, the target, and the token of the run."""

from __future__ import annotations

import asyncio
import base64
import binascii
from dataclasses import dataclass

import h11

from orchestrator.domain.network_targets import NetworkTarget, parse_target

MAX_HEAD_BYTES = 8 * 1024
"""Bytes of a request's head, at most."""
MAX_HEAD_LINES = 100
"""Lines of a head; clients send about five. Parsing 2,600 short ones takes 6 ms."""
USER = "run"
"""The user name with which containers show their token; the token is the password."""


class BadHead(Exception):
    """The head cannot be served; `status` is for the container, the text for the container and the log."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Gone(Exception):
    """The container closed its connection before the head of its request was whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """A CONNECT request. Its repr omits the token; `early` are the bytes that were read after its head."""

    target: NetworkTarget
    token: str
    early: bytes

    def __repr__(self) -> str:
        return f"Connect({self.target})"


async def read_connect(reader: asyncio.StreamReader) -> Connect:
    """Read one CONNECT request, and return it with the bytes that came after its head.

    Raises:
        BadHead: it is no CONNECT with a target and a token, or longer than `MAX_HEAD_BYTES`.
        Gone: the connection was closed.
    """
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
    request = await _next_event(parser, reader)
    if not isinstance(request, h11.Request):
        raise Gone
    headers = [(name.lower(), value) for name, value in request.headers]
    if request.method != b"CONNECT":
        raise BadHead(405, "only CONNECT is served here: use https")
    if any(name in {b"content-length", b"transfer-encoding"} for name, _ in headers):
        raise BadHead(400, "CONNECT has no body")
    token = _parse_token([value for name, value in headers if name == b"proxy-authorization"])
    # The bytes after the head: a client may send its TLS hello together with it.
    return Connect(target=_parse_connect_target(request.target), token=token, early=parser.trailing_data[0])


async def _next_event(
    parser: h11.Connection, reader: asyncio.StreamReader
) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
    """Read until the parser has an event, and return it; a closed connection is an event, too.

    Raises `BadHead`.
    """
    try:
        while (event := parser.next_event()) is h11.NEED_DATA:
            parser.receive_data(await reader.read(MAX_HEAD_BYTES))
            # The bytes that the parser has not taken yet begin with the head, as far as it has arrived. The
            # head ends with an empty line; lines after that are not counted.
            if parser.trailing_data[0].partition(b"\r\n\r\n")[0].count(b"\n") > MAX_HEAD_LINES:
                raise BadHead(400, "its head has too many lines")
    except h11.RemoteProtocolError as error:
        raise BadHead(400, "this is no HTTP/1.1 request") from error
    return event


def _parse_connect_target(text: bytes) -> NetworkTarget:
    """Return the host and port in CONNECT. Raises `BadHead`."""
    try:
        return parse_target(text.decode("ascii"))
    except ValueError as error:
        raise BadHead(400, "the target is no host and port") from error


def _parse_token(header_values: list[bytes]) -> str:
    """Return the token in the values of the header proxy-authorization.

    There must be exactly one value: `Basic`, and `run:TOKEN` in base 64. Raises `BadHead` (407) otherwise.
    """
    header_value = header_values[0] if len(header_values) == 1 else b""
    scheme, _, encoded = header_value.partition(b" ")
    try:
        user, _, token = base64.b64decode(encoded.strip(), validate=True).decode("ascii").partition(":")
    except (binascii.Error, UnicodeDecodeError):
        user = token = ""
    if scheme.lower() != b"basic" or user != USER or not token:
        raise BadHead(407, "the token of the run is missing")
    return token
