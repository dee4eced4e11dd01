"""Who handles the requests of the household's groups."""

from __future__ import annotations

from collections.abc import Callable
from zoneinfo import ZoneInfo

from orchestrator.dashboard.service import DashboardService
from orchestrator.domain.values import Group
from orchestrator.ipc.command_dispatcher import CommandDispatcher
from orchestrator.scheduler.timing import schedule_reader
from orchestrator.scheduler.when import point_ms
from tests.support.household import Household

ZONE = ZoneInfo("Asia/Seoul")


def dispatcher_of(household: Household) -> CommandDispatcher:
    return CommandDispatcher(
        household.database,
        clock=household.clock,
        read_time=point_ms,
        times=schedule_reader(lambda _: ZONE),
        zone_of=lambda _: ZONE,
        wakeups=household.wakeups,
        bus=household.bus,
        dashboards=dashboards_of(household, lambda _: ZONE),
    )


def dashboards_of(household: Household, zone_of: Callable[[Group], ZoneInfo]) -> DashboardService:
    return DashboardService(
        household.database,
        clock=household.clock,
        bus=household.bus,
        wakeups=household.wakeups,
        zone_of=zone_of,
        can_deliver=lambda _: True,
    )
