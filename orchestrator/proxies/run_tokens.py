"""Tokens of runs: what a container shows the proxies instead of a key. Each is valid in one container."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict

from orchestrator.domain.values import RunId


def new_token() -> str:
    """Return a new printable token of 256 random bits, for one run."""
    return f"andy-{secrets.token_urlsafe(32)}"


def token_hash(token: str) -> str:
    """Return the SHA-256 of a run's token in hex: the store has only this.

    A random token needs no salt and no slow hash.
    """
    return hashlib.sha256(token.encode()).hexdigest()


def new_token_and_hash() -> tuple[str, str]:
    """Create a run's token. Return the token, for the container, and its hash, for the store."""
    token = new_token()
    return token, token_hash(token)


MAX_REMEMBERED = 1_000
"""Runs that are remembered, the latest; far more than are live at once."""


class TokenBinding:
    """Binds each run's token to the first address that shows it, so that it is useless elsewhere."""

    def __init__(self) -> None:
        self._first_peers: OrderedDict[RunId, str] = OrderedDict()
        """The first address of each run, the least recently used first."""

    def owns(self, run_id: RunId, peer: str) -> bool:
        """Return whether the address `peer` may show the token of a run.

        The first address that shows it is stored as that of the run's container, and no other may. Of more
        than `MAX_REMEMBERED` runs, the one that was asked about least recently is forgotten.
        """
        first_peer = self._first_peers.setdefault(run_id, peer)
        self._first_peers.move_to_end(run_id)
        if len(self._first_peers) > MAX_REMEMBERED:
            self._first_peers.popitem(last=False)
        return first_peer == peer
