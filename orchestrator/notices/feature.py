"""Build the notice service, and add to each turn the notices for its agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent_runner.wire.order import TurnOrder
from orchestrator.domain.values import Turn, TurnKind
from orchestrator.groups.host_context import HostContext
from orchestrator.notices.service import NoticeService, NoticeSweeper, to_wire
from orchestrator.store.database import Tx
from orchestrator.store.notices import claims as notice_claims
from orchestrator.store.runs import sessions, turns


class NoticeFeature:
    """The notice ability. Each host has one instance."""

    def __init__(self, host: HostContext) -> None:
        self._clock = host.clock
        self.service = NoticeService(clock=host.clock)
        self._sweeper = NoticeSweeper(host.database, clock=host.clock, bus=host.bus)

    def loops(self) -> dict[str, Callable[[], Any]]:
        return {"notices": self._sweeper.run}

    async def add(self, tx: Tx, turn: Turn, order: TurnOrder) -> TurnOrder:
        """Return a turn's order with its notices, in the transaction that hands the turn to its run."""
        # Read again: a claim names the attempt, which the caller's copy may not have yet.
        turn = await turns.get(tx, turn.id) or turn
        if not receives_notices(turn):
            return order
        session_id = await sessions.current(tx, turn.folder)
        claimed = await notice_claims.claim(tx, turn, session_id=session_id, now_ms=self._clock.now_ms())
        return order.model_copy(update={"notices": tuple(to_wire(notice) for notice in claimed)})


def receives_notices(turn: Turn) -> bool:
    """Return whether a turn gets notices: only turns that continue the group's conversation do."""
    return turn.kind is not TurnKind.WORKER and not turn.is_isolated and turn.command is None
