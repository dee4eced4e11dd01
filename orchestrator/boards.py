"""Dashboards at work: joins what keeps them up and tells of them with what carries messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

from orchestrator.clock import Clock
from orchestrator.config import Settings
from orchestrator.dashboard import brief
from orchestrator.dashboard.desk import Desk
from orchestrator.dashboard.dispatch import NotificationDispatcher
from orchestrator.dashboard.ledger import Ledger
from orchestrator.dashboard.slots import Hours
from orchestrator.dashboard.work import Limits
from orchestrator.events import Bus
from orchestrator.hints import Hints
from orchestrator.models import Group, Turn
from orchestrator.outbound.delivery import Origin
from orchestrator.store.database import Database, Tx


class Boards:
    """Made once for a host."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        *,
        clock: Clock,
        hints: Hints,
        bus: Bus,
        zone_of: Callable[[Group], ZoneInfo],
        can_deliver: Callable[[Group], bool],
    ) -> None:
        """`can_deliver` tells whether a channel takes messages for a group's chat."""
        self._settings = settings
        self._zone_of = zone_of
        self._clock = clock
        self.desk = Desk(
            database,
            clock=clock,
            bus=bus,
            hints=hints,
            zone_of=zone_of,
            can_deliver=can_deliver,
            limits=limits_of(settings),
        )
        ledger = Ledger(bus=bus, hint=hints.notifications)
        self.origin = Origin(
            why_not=ledger.why_not,
            note_sent=ledger.note_sent,
            note_failed=ledger.note_failed,
            note_ended=ledger.note_ended,
        )
        self._dispatcher = NotificationDispatcher(
            database,
            clock=clock,
            hints=hints,
            bus=bus,
            hours_of=self.hours_of,
            daily_limit=settings.notify_daily_limit,
        )

    def loops(self) -> dict[str, Callable[[], Any]]:
        return {"notifications": self._dispatcher.run}

    async def brief(self, tx: Tx, turn: Turn, group: Group) -> str | None:
        """What a turn is told of its group's dashboard; None where there is none."""
        return await brief.brief(tx, turn, zone=self._zone_of(group), now_ms=self._clock.now_ms())

    def hours_of(self, group: Group) -> Hours:
        """The times of day of a group."""
        return hours_of(self._settings, self._zone_of(group))


def limits_of(settings: Settings) -> Limits:
    """How much of each a group may have, by the settings."""
    return Limits(pending_a_task=settings.notify_cap_per_task)


def hours_of(settings: Settings, zone: ZoneInfo) -> Hours:
    """When a group in a zone is told something, by the settings."""
    return Hours(
        zone=zone,
        slots=settings.slots,
        quiet_start=settings.notify_quiet_start,
        quiet_end=settings.notify_quiet_end,
    )
