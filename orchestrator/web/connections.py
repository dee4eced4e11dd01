"""The bound on connections to the HTTP API: those that have shown the token stay open.

Every local program may connect, and one that opens connections and says nothing must not use up the open
files of the host. So connections without a request of the owner share a fixed number of places, and the
oldest of them is dropped for a new one: a client such as the CLI, which sends its request at once, is always
served. Requests with the token are counted by the guard.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import Scope

from orchestrator.base.asgi_server import BoundedProtocol

MAX_STRANGERS = 256
"""Connections that have no admitted request under way: silent, half-sent, refused or idle."""
_ADMITTED = "andy.admitted"


def mark_admitted(scope: Scope) -> None:
    """Note that a request showed the token: its connection is kept until it is answered."""
    scope.setdefault("state", {})[_ADMITTED] = True


class WebProtocol(BoundedProtocol):
    """One connection to the HTTP API."""

    @property
    def is_stranger(self) -> bool:
        """Whether no request that showed the token is under way on it."""
        if self.cycle is None or self.cycle.response_complete:
            return True
        return not self.cycle.scope.get("state", {}).get(_ADMITTED)

    def surplus(self) -> Collection[BoundedProtocol]:
        strangers = [one for one in self.connections if isinstance(one, WebProtocol) and one.is_stranger]
        if len(strangers) <= MAX_STRANGERS:
            return ()
        strangers.sort(key=lambda one: one.number)
        return strangers[:-MAX_STRANGERS]
