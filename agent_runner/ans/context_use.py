"""Notice that the model's window fills, before it is compacted."""

from __future__ import annotations

from agent_runner.ans.event import Happening

WARN_SHARE = 0.70
OF_COMPACTION = 0.90
REARM_SHARE = 0.60


def threshold(max_tokens: int, compaction_at: int | None = None) -> int:
    """Return from how many tokens on to warn: before compaction, which small windows reach below 70 %."""
    full = int(max_tokens * WARN_SHARE)
    return min(full, int(compaction_at * OF_COMPACTION)) if compaction_at else full


class ContextUse:
    """Says `context.approaching_limit` once, and again after use fell below 60 % or the window was compacted.

    Where the threshold itself is below 60 %, use has to fall below the threshold by the same share.
    """

    def __init__(self) -> None:
        self._is_armed = True

    def compacted(self) -> None:
        self._is_armed = True

    def measured(
        self, current_tokens: int, max_tokens: int, *, compaction_at: int | None = None
    ) -> Happening | None:
        """Judge a measurement. `compaction_at` is where the window is compacted by itself, if it is."""
        if max_tokens <= 0:
            return None
        limit = threshold(max_tokens, compaction_at)
        if current_tokens < min(max_tokens * REARM_SHARE, limit * REARM_SHARE / WARN_SHARE):
            self._is_armed = True
        if current_tokens < limit or not self._is_armed:
            return None
        self._is_armed = False
        return _approaching(current_tokens, max_tokens, compaction_at)


def _approaching(current: int, maximum: int, compaction_at: int | None) -> Happening:
    remaining = max(0, (compaction_at or maximum) - current)
    return Happening(
        type="context.approaching_limit",
        severity="warning",
        payload={
            "current_tokens": current,
            "max_tokens": maximum,
            "percent": min(100, round(current * 100 / maximum)),
            "remaining_tokens": remaining,
            "message": "The conversation will be summarised soon: write down what must not be forgotten.",
        },
    )
