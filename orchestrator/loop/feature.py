"""Build the loop's services from the host's context, and connect them with turns and budgets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.base.clock import local_minute
from orchestrator.domain.silence import is_silence
from orchestrator.domain.values import Folder, Group, Turn
from orchestrator.groups.host_context import HostContext
from orchestrator.loop import service
from orchestrator.loop.cycle_recorder import CycleRecorder, Summary
from orchestrator.loop.cycle_starter import CycleStarter, StopRun
from orchestrator.loop.service import WakeSetting
from orchestrator.loop.workspace import Workspaces
from orchestrator.outbound.format import for_people
from orchestrator.proxies.model import budget_sums as rules
from orchestrator.store.database import Tx
from orchestrator.store.money import budgets


class LoopFeature:
    """The loop ability: recorder, starter and file watcher. Each host has one instance."""

    def __init__(
        self,
        host: HostContext,
        *,
        summary: Summary,
        stop_run: StopRun,
    ) -> None:
        """Build the parts; `loops` runs them.

        `summary` returns the dashboard's part of the prompt when an agent wakes by itself. `stop_run` ends a
        container, with a reason.
        """
        self._clock = host.clock
        self._zone = host.settings.zone
        self._zone_of = host.zone_of
        self._recorder = CycleRecorder(
            clock=host.clock, zone_of=host.zone_of, for_people=visible_text, summary=summary
        )
        self._loops = CycleStarter(
            host.database,
            self._recorder,
            clock=host.clock,
            wakeups=host.wakeups,
            bus=host.bus,
            why_spent=self._why_spent,
            stop_run=stop_run,
        )
        self._workspaces = Workspaces(
            host.home.groups,
            host.database,
            clock=host.clock,
            bus=host.bus,
            changed_by_agent=self._recorder.changed_by_agent,
        )

    def loops(self) -> dict[str, Callable[[], Any]]:
        """Return the loops that have to run, by their names."""
        return {"loops": self._loops.run, "workspaces": self._workspaces.run}

    async def begin(self, tx: Tx, turn: Turn) -> None:
        """Record that a turn starts, if the group's agent wakes by itself at times; else do nothing.

        The prompt of a turn for which the agent woke by itself is stored, too. `tx` has to be the transaction
        that starts the turn.
        """
        await self._recorder.begin(tx, turn)

    async def on_turn_success(self, tx: Tx, turn: Turn) -> None:
        """Read when the agent wants to wake next from the tags in the replies of a turn that has succeeded.

        It has to be called before the replies are sent.
        """
        await self._recorder.read_schedule_tags(tx, turn)

    async def set_next_wake(self, tx: Tx, group: Group, text: str, reason: str) -> WakeSetting:
        """Record when a group's agent wants to wake next: `text` says when, and `reason` why.

        Return the reply to the agent. Raises `LoopOff` and `BadWake`, see `service.set_next_wake`.
        """
        return await service.set_next_wake(
            tx, group, text, reason, now_ms=self._clock.now_ms(), zone_of=self._zone_of
        )

    async def act(
        self, tx: Tx, folder: str, action: str, reason: str, *, source: str = service.OWNER
    ) -> Folder:
        """Switch a group's loop on or off, pause, resume or wake it; return the group's folder.

        `action` is one of `service.ACTIONS`. Raises `UnknownGroup`, `LoopOff` and `BadRequest`, see
        `service.apply_action`.
        """
        return await service.apply_action(
            tx, folder, action, reason=reason, source=source, now_ms=self._clock.now_ms()
        )

    async def _why_spent(self, tx: Tx, group: Group) -> str | None:
        """Return the reason why a group's agent may not wake by itself: until when a budget is spent.

        None if no budget that counts for the group is spent.
        """
        account = rules.BudgetAccount(folder=group.folder, is_main=group.is_main, is_background=True)
        now_ms = self._clock.now_ms()
        spent = await rules.spent_budget(tx, await budgets.every(tx), account, now_ms=now_ms, zone=self._zone)
        if spent is None:
            return None
        until = local_minute(spent.span.end_ms, self._zone)
        return f"the budget of the {spent.budget.period} is spent until {until}"


def visible_text(text: str) -> str:
    """Return the part of an agent's text that people see; empty if the agent chose to be silent."""
    shown = for_people(text)
    return "" if is_silence(shown) else shown
