"""Reports the notifications of dashboards, as rows for machines."""

from __future__ import annotations

from typing import TypedDict
from zoneinfo import ZoneInfo

from orchestrator.dashboard.views import serializers
from orchestrator.domain.dashboard import Notification, NotificationStatus
from orchestrator.groups import settings
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups


class _InGroup(TypedDict):
    group: str
    timezone: str
    """The time zone of the times: that of the group."""


class NotificationView(_InGroup, serializers.NotificationData):
    """A notification, and the group of its dashboard."""


async def rows(
    tx: Tx,
    folder: str | None,
    *,
    status: str | None = None,
    task: str | None = None,
    limit: int,
    zone: ZoneInfo,
) -> list[NotificationView]:
    """Return notifications of dashboards by due time, at most `limit`, as the API and `--json` show them.

    `folder` is the group, None for all. Only those with this `status` (a value of `NotificationStatus`), and
    about the dashboard's task with the id `task`, unless these are None. Times are in the zone of the group,
    or in `zone` where it is gone.

    Raises:
        UnknownGroup: there is no such group.
    """
    known_folder = None if folder is None else (await groups.known(tx, folder)).folder
    statuses = (NotificationStatus(status),) if status else ()  # none stands for all
    listed = await board_notifications.listed(tx, known_folder, statuses=statuses, task_id=task, limit=limit)
    zones = {group.folder: settings.zone_of(group, default=zone) for group in await groups.every(tx)}
    return [_row(notification, zones.get(notification.folder, zone)) for notification in listed]


def _row(notification: Notification, zone: ZoneInfo) -> NotificationView:
    """Return a notification as the API and `--json` show it, its times in `zone`."""
    return {
        "group": notification.folder,
        "timezone": zone.key,
        **serializers.notification(notification, zone),
    }
