"""The limit of connections to the HTTP API; those with an authorised request stay open.

Every local program may connect, and one that opens connections without a request must not use up the open
files of the host. So connections without an authorised request share a fixed number of places, and the oldest
of them is closed for a new one: a client such as the CLI, which sends its request at once, is always served.
The guard limits authorised requests.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import Scope

from orchestrator.base.asgi_server import BoundedProtocol

MAX_STRANGERS = 256
"""The largest number of connections without an authorised request: silent, incomplete, refused or idle ones.
"""
_ADMITTED = "andy.admitted"
"""The key of the mark in the state of a request's ASGI scope."""


def mark_admitted(scope: Scope) -> None:
    """Mark a request as authorised, given its ASGI scope: its connection stays open until it is answered."""
    scope.setdefault("state", {})[_ADMITTED] = True


class WebProtocol(BoundedProtocol):
    """One connection to the HTTP API."""

    @property
    def is_stranger(self) -> bool:
        """Whether the connection has no authorised request under way."""
        # `cycle` is uvicorn's: the last request of this connection with its answer; None before the first.
        if self.cycle is None or self.cycle.response_complete:
            return True
        return not self.cycle.scope.get("state", {}).get(_ADMITTED)

    def surplus(self) -> Collection[BoundedProtocol]:
        """Return the connections to close, so that at most `MAX_STRANGERS` have no authorised request.

        They are the oldest of those without one.
        """
        strangers = [
            connection
            for connection in self.connections
            if isinstance(connection, WebProtocol) and connection.is_stranger
        ]
        if len(strangers) <= MAX_STRANGERS:
            return ()
        strangers.sort(key=lambda connection: connection.number)  # the oldest first
        return strangers[:-MAX_STRANGERS]
