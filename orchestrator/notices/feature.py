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
    """Stores notices, texts for an agent's later turns, and delivers them. Each host has one instance."""

    def __init__(self, host: HostContext) -> None:
        """Build the parts; `loops` runs them."""
        self._clock = host.clock
        self.service = NoticeService(clock=host.clock)
        self._sweeper = NoticeSweeper(host.database, clock=host.clock, bus=host.bus)

    def loops(self) -> dict[str, Callable[[], Any]]:
        """Return the loops that have to run, by their names."""
        return {"notices": self._sweeper.run}

    async def add(self, tx: Tx, turn: Turn, order: TurnOrder) -> TurnOrder:
        """Return `order` with the notices that are due: texts for the agent of the turn.

        `order` is the document by which a container gets the turn. The notices are claimed for the turn, so
        that no other gets them. `tx` has to be the transaction that hands the turn to its container. A turn
        outside of the group's conversation gets none.
        """
        # Read again: a claim names the attempt, which the caller's copy may not have yet.
        turn = await turns.get(tx, turn.id) or turn
        if not receives_notices(turn):
            return order
        session_id = await sessions.current(tx, turn.folder)
        claimed = await notice_claims.claim(tx, turn, session_id=session_id, now_ms=self._clock.now_ms())
        return order.model_copy(update={"notices": tuple(to_wire(notice) for notice in claimed)})


def receives_notices(turn: Turn) -> bool:
    """Return whether a turn gets notices, texts for its agent: it does if it continues the conversation.

    A dashboard's worker, an isolated task and a session command do not.
    """
    return turn.kind is not TurnKind.WORKER and not turn.is_isolated and turn.command is None
