"""Serve the proxy on a socket that is bound beforehand."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any

from orchestrator.base.asgi_server import Server, listen
from orchestrator.domain.errors import AndyError
from orchestrator.proxies.model.limits import ModelProxyLimits
from orchestrator.proxies.model.protocol import ProxyConfig

_TAKEN = {errno.EADDRINUSE, errno.EACCES}


def bind(host: str, preferred_port: int) -> socket.socket:
    """Listen on `host` at `preferred_port`, or, when that is taken, at a port the system chooses.

    Raises:
        AndyError: this machine has no such address.
    """
    try:
        return listen(host, preferred_port)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise _no_address(host, error) from error
    try:
        return listen(host, 0)
    except OSError as error:
        raise _no_address(host, error) from error


def _no_address(host: str, error: OSError) -> AndyError:
    reason = error.strerror or str(error)
    return AndyError(
        f"The credential proxy cannot listen on {host} ({reason}): use an address of this machine."
    )


class ProxyServer:
    """Serves one ASGI app on one listening socket, which it owns."""

    def __init__(
        self, app: Callable[..., Any], listener: socket.socket, *, limits: ModelProxyLimits | None = None
    ) -> None:
        self._app = app
        self._listener = listener
        self._limits = limits or ModelProxyLimits()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    async def serve(self) -> None:
        """Serve until cancelled. Then requests under way have two seconds to end before they are cut.

        May be called again after it ended, until `close`.
        """
        await Server(ProxyConfig(self._app, self._limits)).serve_on(self._listener)

    def close(self) -> None:
        """Let go of the socket."""
        self._listener.close()
