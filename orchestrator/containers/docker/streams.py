"""The engine's byte streams: a container's attached stdin and output, its stored output, and its exit."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from docker import APIClient
    from requests import Response

CHUNK_BYTES = 64 * 1024
UPGRADE = {"Connection": "Upgrade", "Upgrade": "tcp"}


class AttachedStreams:
    """The stdin and the output of a container, on one connection."""

    def __init__(self, client: APIClient, ref: str) -> None:
        """Attach to the container `ref`. Blocks. Raises docker-py's errors."""
        response = _send(client, "POST", f"{ref}/attach?stdin=1&stdout=1&stderr=1&stream=1", UPGRADE)
        self._socket = _socket_of(response)
        response.close()

    def write_order(self, order: str, *, name: str) -> None:
        """Write `order`, the line that tells the container what to do, to its stdin, and close stdin.

        This returns at once: a thread called `name` writes, because the container may never read the line. No
        error is raised for a container that has ended or never reads: the host notices that by its exit or
        its silence.
        """
        threading.Thread(target=self._write, args=(order.encode() + b"\n",), name=name, daemon=True).start()

    def chunks(self) -> Iterator[bytes]:
        """Yield the output as it comes, until it ends or `interrupt` is called."""
        while chunk := self._socket.recv(CHUNK_BYTES):
            yield chunk

    def interrupt(self) -> None:
        """Make a read of the output that blocks another thread return, as at the end of the output."""
        _shut_down(self._socket)

    def close(self) -> None:
        """Close the connection."""
        _shut_down(self._socket)
        self._socket.close()

    def _write(self, line: bytes) -> None:
        """Write a line to stdin and close stdin. Blocks until the container reads it."""
        with suppress(OSError):  # the container has ended, or `close` was called
            self._socket.sendall(line)
            self._socket.shutdown(socket.SHUT_WR)


class EngineResponse:
    """A streamed response of the engine, on a client that is closed with it."""

    def __init__(self, client: APIClient, response: Response) -> None:
        """`client` is used for this response alone, and closed with it."""
        self._client = client
        self._response = response
        self._socket = _socket_of(response)

    def chunks(self) -> Iterator[bytes]:
        """Yield the response as it comes, until it ends or `interrupt` is called."""
        yield from self._response.iter_content(None)

    def interrupt(self) -> None:
        """Make a read of the response that blocks another thread return, as at the end of the response."""
        _shut_down(self._socket)

    def close(self) -> None:
        """Close the response and its client."""
        self._socket.close()
        self._response.close()
        self._client.close()


def request_output(connect: Callable[[], APIClient], ref: str) -> EngineResponse:
    """Request all output of the container, from the first byte, and its further output. Blocks."""
    return _stream(connect(), "GET", f"{ref}/logs?follow=1&stdout=1&stderr=1")


def request_exit(connect: Callable[[], APIClient], ref: str) -> EngineResponse:
    """Request the container's exit: `{"StatusCode": …}`, sent once it ends. Blocks for the request only."""
    return _stream(connect(), "POST", f"{ref}/wait")


def _stream(client: APIClient, method: str, path: str) -> EngineResponse:
    """Send a request about containers and return its streamed response.

    `client` is used for this request alone: it is closed with the response, or here if the request fails.
    `path` starts after `/containers/`.
    """
    try:
        return EngineResponse(client, _send(client, method, path))
    except BaseException:
        client.close()
        raise


def _send(client: APIClient, method: str, path: str, headers: dict[str, str] | None = None) -> Response:
    """Send a request about containers and return the open response. `path` starts after `/containers/`.

    docker-py's own calls are not used, because they cannot be ended from another thread. Raises docker-py's
    errors.
    """
    import requests
    from docker.errors import create_api_error_from_http_exception

    address = f"{client.base_url}/v{client.api_version}/containers/{path}"
    response = client.request(method, address, stream=True, headers=headers)
    try:
        response.raise_for_status()
    except requests.HTTPError as error:
        # Despite its name, this function of docker-py raises the error that it creates.
        create_api_error_from_http_exception(error)
    return response


def _socket_of(response: Response) -> socket.socket:
    """Return a duplicate of the response's socket. Shutting it down ends a read in another thread."""
    duplicate = socket.socket(fileno=os.dup(response.raw.fileno()))
    duplicate.settimeout(None)  # a container may be silent for any time
    return duplicate


def _shut_down(connection: socket.socket) -> None:
    """Shut a socket down in both directions, which also ends a read of it in another thread."""
    with suppress(OSError):  # the other side closed first
        connection.shutdown(socket.SHUT_RDWR)
