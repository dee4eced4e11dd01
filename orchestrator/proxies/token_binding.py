"""Where the token of a run comes from: its own container, whose address is the first that shows it."""

from __future__ import annotations

from collections import OrderedDict

from orchestrator.domain.values import RunId

MAX_REMEMBERED = 1_000
"""Runs, the latest; far more than live at once."""


class TokenBinding:
    """Remembers addresses. A token that was given away is worth nothing in another container."""

    def __init__(self) -> None:
        self._seen: OrderedDict[RunId, str] = OrderedDict()

    def owns(self, run_id: RunId, peer: str) -> bool:
        """Whether `peer` may show the token of this run; the first that asks is taken for its container."""
        first = self._seen.setdefault(run_id, peer)
        self._seen.move_to_end(run_id)
        if len(self._seen) > MAX_REMEMBERED:
            self._seen.popitem(last=False)
        return first == peer
