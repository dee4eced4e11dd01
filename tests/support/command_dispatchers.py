"""Build the dispatcher of agents' requests, and the dashboard's service, around the store of a test."""

from __future__ import annotations

from collections.abc import Callable
from zoneinfo import ZoneInfo

from orchestrator.dashboard.service import DashboardService
from orchestrator.domain.protocols import Feature
from orchestrator.domain.values import Group
from orchestrator.ipc.command_context import SearchCommands
from orchestrator.ipc.command_dispatcher import CommandDispatcher
from orchestrator.ipc.handlers.files import CopyFile, no_files
from orchestrator.scheduler.timing import schedule_reader
from orchestrator.scheduler.when import point_ms
from tests.support.store_harness import StoreHarness

ZONE = ZoneInfo("Asia/Seoul")


def dispatcher_of(
    store_harness: StoreHarness,
    *,
    copy_file: CopyFile = no_files,
    web: SearchCommands | None = None,
    features: frozenset[Feature] = frozenset(),
) -> CommandDispatcher:
    return CommandDispatcher(
        store_harness.database,
        clock=store_harness.clock,
        read_time=point_ms,
        times=schedule_reader(lambda _: ZONE),
        zone_of=lambda _: ZONE,
        wakeups=store_harness.wakeups,
        bus=store_harness.bus,
        dashboards=dashboards_of(store_harness, lambda _: ZONE),
        copy_file=copy_file,
        web=web,
        features_of=lambda _: features,
    )


def dashboards_of(store_harness: StoreHarness, zone_of: Callable[[Group], ZoneInfo]) -> DashboardService:
    return DashboardService(
        store_harness.database,
        clock=store_harness.clock,
        zone_of=zone_of,
        can_deliver=lambda _: True,
    )
