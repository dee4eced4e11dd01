"""The door to the notices of a run: all behind it is loaded while nobody waits for it.

Notices take a tenth of a second to import, and no start of a container is worth that. Until they are
loaded, what is to be noticed waits here in its order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from agent_runner.error_log import log_fault
from agent_runner.interfaces import TurnOutcome
from agent_runner.wire.notices import ToldNotice
from agent_runner.wire.order import RunOrder, TurnOrder
from agent_runner.workspace import Workspace

if TYPE_CHECKING:
    from agent_runner.ans.rules import NoticeRules

Act = Callable[["NoticeRules"], None]
Make = Callable[[RunOrder, Workspace], "NoticeRules"]


def _make(order: RunOrder, workspace: Workspace) -> NoticeRules:
    from agent_runner.ans.rules import NoticeRules

    return NoticeRules(order, workspace)


class LazyNotices:
    """One for a run."""

    def __init__(self, order: RunOrder, workspace: Workspace, *, make: Make = _make) -> None:
        self.rules: NoticeRules | None = None
        """Set once they are loaded."""
        self._order = order
        self._workspace = workspace
        self._make = make
        self._waiting: list[Act] = []
        self._loading = asyncio.Lock()
        self._warming: asyncio.Task[None] | None = None

    async def load(self) -> NoticeRules:
        """Return the rules. The first time takes long, but blocks nobody else."""
        async with self._loading:
            if self.rules is None:
                rules = await asyncio.to_thread(self._make, self._order, self._workspace)
                for act in self._waiting:
                    act(rules)
                self._waiting.clear()
                self.rules = rules
        return self.rules

    @property
    def starts_with_something(self) -> bool:
        """Whether the first prompt of the run has something to tell."""
        return bool(self._order.turn.notices) or self._order.restore.mode != "fresh"

    def warm_soon(self) -> None:
        """Begin to load what telling needs, and go on."""
        if self._warming is None:
            self._warming = asyncio.create_task(self.warm(), name="notices")

    async def warm(self) -> None:
        """Load all that telling needs. Never raises."""
        try:
            rules = await self.load()
            await asyncio.to_thread(rules.warm)
        except Exception as error:  # noqa: BLE001  # whoever needs them is told
            log_fault("the notices were not loaded", error)

    def do(self, act: Act) -> None:
        """Do something with the rules: now, or once they are there."""
        if self.rules is not None:
            act(self.rules)
        else:
            self._waiting.append(act)

    def begin_turn(self, turn: TurnOrder, *, session_id: str | None) -> None:
        """Open a turn, with the notices that the host gives to it."""
        self.do(lambda rules: rules.begin_turn(turn, session_id=session_id))

    def end_turn(self, outcome: TurnOutcome, *, session_id: str | None) -> tuple[ToldNotice, ...]:
        """Close the turn and return what its model was told in it: nothing that counts, if it failed."""
        if self.rules is not None:
            return self.rules.end_turn(outcome, session_id=session_id)
        self._waiting.append(lambda rules: _end_untold(rules, outcome, session_id))
        return ()

    def end_session(self, *, session_id: str | None) -> None:
        """Say that the run is over, to whom listens already."""
        if self._warming is not None:
            self._warming.cancel()
        if self.rules is not None:
            self.rules.end_session(session_id=session_id)


def _end_untold(rules: NoticeRules, outcome: TurnOutcome, session_id: str | None) -> None:
    rules.end_turn(outcome, session_id=session_id)
