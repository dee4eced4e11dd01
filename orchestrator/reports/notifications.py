"""Reports the notifications of dashboards, as rows for machines."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from orchestrator.base.tables import Rows
from orchestrator.dashboard.views import serializers
from orchestrator.domain.dashboard import NotificationStatus
from orchestrator.groups import settings
from orchestrator.store import dashboard_notifications, groups
from orchestrator.store.database import Tx


async def rows(
    tx: Tx,
    folder: str | None,
    *,
    status: str | None = None,
    task: str | None = None,
    limit: int,
    zone: ZoneInfo,
) -> Rows:
    """What was told and what is to be told, by due time, each in the zone of its group (else `zone`).

    Raises:
        UnknownGroup
    """
    known = None if folder is None else (await groups.known(tx, folder)).folder
    statuses = (NotificationStatus(status),) if status else ()
    found = await dashboard_notifications.listed(tx, known, statuses=statuses, task_id=task, limit=limit)
    zones = {one.folder: settings.zone_of(one, default=zone) for one in await groups.every(tx)}
    return [
        {"group": one.folder, **serializers.notification(one, zones.get(one.folder, zone))} for one in found
    ]
