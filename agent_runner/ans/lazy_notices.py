"""Load the notices of a run in the background, so that its start does not wait for their imports.

Importing the notices takes a tenth of a second, too much for the start of a container. Until they are loaded,
`LazyNotices` stores the calls to them and makes them afterwards, in their order.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from agent_runner.error_log import log_fault
from agent_runner.interfaces import TurnOutcome
from agent_runner.wire.notices import DeliveredNotice
from agent_runner.wire.order import RunOrder, TurnOrder
from agent_runner.workspace import Workspace

if TYPE_CHECKING:
    from agent_runner.ans.rules import NoticeRules

Act = Callable[["NoticeRules"], None]
"""A call to the notice rules, made at once or once they are loaded."""
Make = Callable[[RunOrder, Workspace], "NoticeRules"]


def _make(order: RunOrder, workspace: Workspace) -> NoticeRules:
    """Import `NoticeRules` and build those of a run. Slow: call it in a thread."""
    from agent_runner.ans.rules import NoticeRules

    return NoticeRules(order, workspace)


class LazyNotices:
    """The notices of a run, loaded when something needs them. There is one per run.

    They are loaded as `NoticeRules`, which hold the notices and find the events that lead to them.
    """

    def __init__(self, order: RunOrder, workspace: Workspace, *, make: Make = _make) -> None:
        """Set up the notices for the run of `order`, in the group of `workspace`; nothing is loaded yet.

        `make` builds the notice rules when they are loaded; it may take long, and is called in a thread.
        """
        self.rules: NoticeRules | None = None
        """The run's notices with the rules that find its events; None until they are loaded."""
        self._order = order
        self._workspace = workspace
        self._make = make
        self._waiting: list[Act] = []
        self._loading = asyncio.Lock()
        self._warming: asyncio.Task[None] | None = None

    async def load(self) -> NoticeRules:
        """Return the notice rules. The first call loads them in a thread, so that it blocks no other task.

        Then it makes the calls that `do` has stored until now.
        """
        async with self._loading:
            if self.rules is None:
                rules = await asyncio.to_thread(self._make, self._order, self._workspace)
                for act in self._waiting:
                    _apply(act, rules)
                self._waiting.clear()
                self.rules = rules
        return self.rules

    @property
    def starts_with_notice(self) -> bool:
        """Return whether the first prompt of the run has a notice to deliver.

        That is a notice of the host, or the one which says that an earlier conversation was loaded.
        """
        return bool(self._order.turn.notices) or self._order.restore.mode != "fresh"

    def use_order(self, order: RunOrder) -> None:
        """Set the order for which the `NoticeRules` will be built, in place of the one of `__init__`.

        A run that was started ahead gets its final order with its first turn. Call this before they are
        loaded: it does not change loaded ones.
        """
        self._order = order

    async def preload(self) -> None:
        """Import the modules of the notice rules without building them: their order has not arrived yet."""
        await asyncio.to_thread(importlib.import_module, "agent_runner.ans.rules")
        await asyncio.to_thread(importlib.import_module, "agent_runner.ans.templating")

    def warm_soon(self) -> None:
        """Start loading in the background, unless that was started before."""
        if self._warming is None:
            self._warming = asyncio.create_task(self.warm(), name="notices")

    async def warm(self) -> None:
        """Load everything that a delivery needs. Never raises: an error is logged."""
        try:
            rules = await self.load()
            await asyncio.to_thread(rules.warm)
        except Exception as error:  # noqa: BLE001  # `load` tries again, and raises to its caller
            log_fault("the notices were not loaded", error)

    def do(self, act: Act) -> None:
        """Apply `act` to the notice rules now, or once they are loaded. An error in it is only logged."""
        if self.rules is not None:
            _apply(act, self.rules)
        else:
            self._waiting.append(act)

    def begin_turn(self, turn: TurnOrder, *, session_id: str | None) -> None:
        """Open a turn, as `NoticeRules.begin_turn` does: now, or once they are loaded.

        `session_id` is the agent's session; None before its first.
        """
        self.do(lambda rules: rules.begin_turn(turn, session_id=session_id))

    def end_turn(self, outcome: TurnOutcome, *, session_id: str | None) -> tuple[DeliveredNotice, ...]:
        """Close the turn and return the notices that its model read.

        There are none if the turn failed, or if the rules are not loaded; then the turn is closed once they
        are. `session_id` is the agent's session; None if it has none.
        """
        if self.rules is not None:
            return self.rules.end_turn(outcome, session_id=session_id)
        self._waiting.append(lambda rules: _end_unreported(rules, outcome, session_id))
        return ()

    def end_session(self, *, session_id: str | None) -> None:
        """Report to the notice rules that the run has ended; if they are not loaded yet, stop loading them.

        `session_id` is the agent's session; None if it has none.
        """
        if self._warming is not None:
            self._warming.cancel()
        if self.rules is not None:
            self.rules.end_session(session_id=session_id)


def _apply(act: Act, rules: NoticeRules) -> None:
    """Apply `act` to the notice rules; an error is logged, so that it fails no turn and no later notice."""
    try:
        act(rules)
    except Exception as error:  # noqa: BLE001  # `act` may report a message of the CLI, which may contain anything
        log_fault("an event was not reported", error)


def _end_unreported(rules: NoticeRules, outcome: TurnOutcome, session_id: str | None) -> None:
    """Close a turn whose notices were not read, because the rules were not loaded."""
    rules.end_turn(outcome, session_id=session_id)
