"""`notifications` and `notification_history`: texts to send at a time, and the history of each.

The rows are the schedule: nothing else remembers due times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.domain.dashboard import (
    Audience,
    Notification,
    NotificationStatus,
    NotificationType,
)
from orchestrator.domain.errors import FARTHEST_RETRY_MS
from orchestrator.domain.values import Folder
from orchestrator.store.board import dashboards
from orchestrator.store.database import Tx, returned
from orchestrator.store.row_mapper import Json, RowMapper

_OPEN = "status IN ('pending', 'sending')"
# The time of the next attempt; 0 if it is due now because the clock was set back, or if there was no attempt.
_NEXT_ATTEMPT_MS = f"iif(next_attempt_ms <= :now + {FARTHEST_RETRY_MS}, next_attempt_ms, 0)"
_MAPPER = RowMapper(Notification, "notifications", {"folder": "group_folder"})


async def put(tx: Tx, notification: Notification, *, read_version: int | None) -> bool:
    """Insert or update a notification; return False, and write nothing, if the caller's copy is stale.

    `read_version` is the version that the caller has read, or None for a new notification. The copy is stale
    if the stored one has another version by now. A new reminder for people that has no number gets the next
    free one.
    """
    row = _MAPPER.values(notification)
    is_reminder = notification.type is NotificationType.REMINDER and notification.audience is Audience.USER
    if read_version is None and is_reminder and notification.number is None:
        cursor = await tx.execute("SELECT ifnull(max(number), 0) + 1 AS next FROM notifications")
        row["number"] = (await returned(cursor))["next"]
    return await dashboards.put_row(tx, _MAPPER, row, read_version=read_version)


async def get(tx: Tx, folder: Folder, notification_id: str) -> Notification | None:
    """Return the notification of a group with this id, or None."""
    return await _first(tx, "group_folder = ? AND id = ?", folder, notification_id)


async def listed(
    tx: Tx,
    folder: Folder | None,
    *,
    statuses: Sequence[NotificationStatus] = (),
    kind: NotificationType | None = None,
    task_id: str | None = None,
    from_ms: int | None = None,
    to_ms: int | None = None,
    limit: int = -1,
) -> list[Notification]:
    """Return the notifications of the group `folder`, or of all groups if it is None, by due time.

    Each of `kind`, `task_id`, `from_ms` and `to_ms` that is not None restricts them; the latter two are the
    first and the last due time that counts (epoch ms). No `statuses` means any; a negative limit means no
    limit.
    """
    if folder is not None and len(statuses) != 1:
        # One query per status: each finds its rows in the order of an index, so SQLite sorts none.
        notifications = [
            notification
            for status in statuses or NotificationStatus
            for notification in await listed(
                tx,
                folder,
                statuses=(status,),
                kind=kind,
                task_id=task_id,
                from_ms=from_ms,
                to_ms=to_ms,
                limit=limit,
            )
        ]
        notifications.sort(key=lambda notification: (notification.due_ms, notification.id))
        return notifications if limit < 0 else notifications[:limit]
    quoted_statuses = ", ".join(f"'{status.value}'" for status in statuses)
    status_condition = f"AND status IN ({quoted_statuses})" if statuses else ""
    group_condition = "TRUE" if folder is None else "group_folder = :folder"
    return await _MAPPER.fetch_all(
        tx,
        f"""
        SELECT * FROM notifications
        WHERE {group_condition} {status_condition}
          AND (:kind IS NULL OR type = :kind) AND (:task IS NULL OR task_id = :task)
          AND (:from IS NULL OR due_ms >= :from) AND (:to IS NULL OR due_ms <= :to)
        ORDER BY due_ms, id LIMIT :limit
        """,  # noqa: S608 - values of an enum
        {
            "folder": folder,
            "kind": kind,
            "task": task_id,
            "from": from_ms,
            "to": to_ms,
            "limit": limit,
        },
    )


async def count_open(tx: Tx, folder: Folder) -> int:
    """Count the notifications of a group that are still to be sent or are being sent."""
    cursor = await tx.execute(
        f"SELECT count(*) AS n FROM notifications WHERE group_folder = ? AND {_OPEN}",  # noqa: S608
        (folder,),
    )
    return int((await returned(cursor))["n"])


async def to_come(tx: Tx, folder: Folder, *, limit: int = -1) -> list[Notification]:
    """Return the notifications of a group that are still to be sent or are being sent, by due time.

    A negative limit means no limit.
    """
    return await _MAPPER.fetch_all(
        tx,
        f"""
        SELECT * FROM notifications WHERE group_folder = ? AND {_OPEN} ORDER BY due_ms, id LIMIT ?
        """,  # noqa: S608 - a constant
        (folder, limit),
    )


async def alike(
    tx: Tx, folder: Folder, kind: NotificationType, *, task_id: str | None, question_id: str | None
) -> list[Notification]:
    """Return the notifications of the type `kind` about a task, except failed and expired ones, by due time.

    If `task_id` is None, those about the question; if both are None, those that are about neither.
    """
    has_subject = "task_id = :task" if task_id is not None else "task_id IS NULL AND question_id IS :question"
    return await _MAPPER.fetch_all(
        tx,
        f"""
        SELECT * FROM notifications WHERE group_folder = :folder AND {has_subject} AND type = :kind
          AND status IN ('pending', 'sending', 'delivered', 'cancelled')
        ORDER BY due_ms, id
        """,  # noqa: S608 - constants
        {"folder": folder, "kind": kind, "task": task_id, "question": question_id},
    )


async def open_of_task(tx: Tx, folder: Folder, task_id: str) -> list[Notification]:
    """Return the notifications about a task that are still to be sent or are being sent, by due time."""
    return await _MAPPER.fetch_all(
        tx,
        f"""
        SELECT * FROM notifications
        WHERE group_folder = ? AND task_id = ? AND {_OPEN} ORDER BY due_ms, id
        """,  # noqa: S608 - a constant
        (folder, task_id),
    )


async def open_of_question(tx: Tx, folder: Folder, question_id: str) -> list[Notification]:
    """Return the notifications about a question that are still to be sent or are being sent, by due time."""
    return await _MAPPER.fetch_all(
        tx,
        f"""
        SELECT * FROM notifications
        WHERE group_folder = ? AND question_id = ? AND {_OPEN} ORDER BY due_ms, id
        """,  # noqa: S608 - a constant
        (folder, question_id),
    )


async def orphans(tx: Tx, folder: Folder) -> list[Notification]:
    """Return a group's notifications that are still to be sent although their task has ended or is gone."""
    return await _MAPPER.fetch_all(
        tx,
        """
        SELECT n.* FROM notifications n
        LEFT JOIN dashboard_tasks t ON t.group_folder = n.group_folder AND t.id = n.task_id
        WHERE n.group_folder = ? AND n.task_id IS NOT NULL AND n.status IN ('pending', 'sending')
          AND (t.id IS NULL OR t.status IN ('completed', 'cancelled'))
        ORDER BY n.due_ms, n.id
        """,
        (folder,),
    )


async def reminders(tx: Tx, folder: Folder | None = None) -> list[Notification]:
    """Return the reminders still to be sent, of the group `folder` or of all groups if it is None, by due
    time.
    """
    # Only reminders have a number.
    return await _MAPPER.fetch_all(
        tx,
        f"""
        SELECT * FROM notifications
        WHERE (:folder IS NULL OR group_folder = :folder) AND {_OPEN} AND number IS NOT NULL
        ORDER BY due_ms, number
        """,  # noqa: S608 - a constant
        {"folder": folder},
    )


async def by_number(tx: Tx, number: int) -> Notification | None:
    """Return the reminder of any group that people know by this number, or None."""
    return await _first(tx, "number = ?", number)


async def by_id(tx: Tx, notification_id: str) -> Notification | None:
    """Return a notification of any group by its id, or None.

    Imports may repeat an id in several groups: then the one of the group whose folder sorts first is
    returned.
    """
    return await _first(tx, "id = ? ORDER BY group_folder", notification_id)


async def due(tx: Tx, now_ms: int, *, limit: int = -1) -> list[Notification]:
    """Return the notifications to people in all groups that are due now, also for another attempt.

    Left out are those for agents, and those that a dispatcher has claimed, as long as its claim lasts. The
    longest due come first. A negative limit means no limit.
    """
    return await _MAPPER.fetch_all(
        tx,
        f"""
        SELECT * FROM notifications
        WHERE {_OPEN} AND due_ms <= :now AND audience = 'user'
          AND {_NEXT_ATTEMPT_MS} <= :now AND ifnull(claim_until_ms, 0) <= :now
        ORDER BY due_ms, id LIMIT :limit
        """,  # noqa: S608 - constants
        {"now": now_ms, "limit": limit},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationOutlook:
    """The two facts that tell whether there is anything to do for notifications."""

    next_ms: int | None
    """The time when the next one is to be sent or tried again (epoch ms)."""
    newest_change: int
    """The number of the newest change in all groups, 0 when there is none."""


async def outlook(tx: Tx, *, now_ms: int) -> NotificationOutlook:
    """Return when the next notification is due, and the number of the newest change, in one call."""
    return NotificationOutlook(
        next_ms=await next_due_ms(tx, now_ms=now_ms), newest_change=await newest_history_id(tx)
    )


async def next_due_ms(tx: Tx, *, now_ms: int) -> int | None:
    """Return when the next notification to people is to be sent or tried again (epoch ms), or None."""
    # Most notifications were never tried: an index yields the earliest of those. The few others also wait for
    # their next attempt or for the end of a claim, so the latest of their times counts.
    cursor = await tx.execute(
        f"""
        SELECT min(at) AS due FROM (
            SELECT * FROM (SELECT due_ms AS at FROM notifications
                WHERE {_OPEN} AND audience = 'user' AND next_attempt_ms IS NULL AND claim_until_ms IS NULL
                ORDER BY due_ms LIMIT 1)
            UNION ALL
            SELECT max(due_ms, {_NEXT_ATTEMPT_MS}, ifnull(claim_until_ms, 0)) FROM notifications
            WHERE {_OPEN} AND (next_attempt_ms IS NOT NULL OR claim_until_ms IS NOT NULL)
              AND audience = 'user')
        """,  # noqa: S608 - constants
        {"now": now_ms},
    )
    return (await returned(cursor))["due"]  # type: ignore[no-any-return]


async def delivered_since(tx: Tx, folder: Folder, since_ms: int) -> list[Notification]:
    """Return the notifications of a group that were delivered since `since_ms` (epoch ms), oldest first."""
    return await _MAPPER.fetch_all(
        tx,
        """
        SELECT * FROM notifications
        WHERE group_folder = ? AND status = 'delivered' AND delivered_ms >= ? ORDER BY delivered_ms, id
        """,
        (folder, since_ms),
    )


async def by_channel_message(tx: Tx, message_id: str) -> Notification | None:
    """Return the notification that was sent as the message with this id in its messenger, or None."""
    return await _first(tx, "channel_msg_id = ?", message_id)


async def _first(tx: Tx, where: str, *parameters: str | int) -> Notification | None:
    """Return the first notification for which the SQL condition `where` holds, or None."""
    sql = f"SELECT * FROM notifications WHERE {where}"  # noqa: S608 - constants
    return await _MAPPER.fetch_one(tx, sql, parameters)


async def ids_like(tx: Tx, folder: Folder, prefix: str) -> list[str]:
    """Return at most ten ids of a group's notifications that begin with `prefix`."""
    rows = await tx.execute_fetchall(
        """
        SELECT id FROM notifications
        WHERE group_folder = ? AND substr(id, 1, length(?)) = ? ORDER BY id LIMIT 10
        """,
        (folder, prefix, prefix),
    )
    return [row["id"] for row in rows]


REWORDED = "reworded"
"""The `what` of a history entry about a changed text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One change of one notification."""

    folder: Folder
    notification_id: str
    at_ms: int
    what: str
    """`created`, `moved`, `postponed`, `reworded`, `reprioritised`, `not sent`, or the final status."""
    by: str
    """`worker`, `user`, `main_agent`, or `host`."""
    turn_id: int | None = None
    """The turn in which an agent made the change."""
    detail: Mapping[str, Any]
    id: int = 0
    """The ascending number in the store; 0 for an entry that is not stored yet."""


_HISTORY_MAPPER = RowMapper(
    HistoryEntry,
    "notification_history",
    {"folder": "group_folder", "by": "by_whom", "detail": Json("detail_json")},
    assigned=("id",),
)


async def add_history(tx: Tx, entry: HistoryEntry) -> None:
    """Add a change of a notification to its history."""
    await _HISTORY_MAPPER.insert(tx, entry)


async def history_of(tx: Tx, folder: Folder, notification_id: str) -> list[HistoryEntry]:
    """Return all changes of one notification, oldest first."""
    return await _HISTORY_MAPPER.fetch_all(
        tx,
        "SELECT * FROM notification_history WHERE group_folder = ? AND notification_id = ? ORDER BY id",
        (folder, notification_id),
    )


async def newest_history(tx: Tx, *, limit: int) -> list[HistoryEntry]:
    """Return the newest `limit` changes of notifications in all groups, oldest first."""
    entries = await _HISTORY_MAPPER.fetch_all(
        tx, "SELECT * FROM notification_history ORDER BY id DESC LIMIT ?", (limit,)
    )
    return entries[::-1]


async def newest_history_id(tx: Tx) -> int:
    """Return the number of the newest change of a notification in any group, 0 when there is none."""
    cursor = await tx.execute("SELECT ifnull(max(id), 0) AS id FROM notification_history")
    return int((await returned(cursor))["id"])


async def history_after(tx: Tx, entry_id: int, *, limit: int) -> list[HistoryEntry]:
    """Return at most `limit` changes of notifications in all groups after the one numbered `entry_id`, oldest
    first.
    """
    return await _HISTORY_MAPPER.fetch_all(
        tx, "SELECT * FROM notification_history WHERE id > ? ORDER BY id LIMIT ?", (entry_id, limit)
    )
