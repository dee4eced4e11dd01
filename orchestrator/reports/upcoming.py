"""Reports what is to happen when: tasks, notifications and reminders, and in `week` wakes and others too."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Annotated, TypedDict, cast
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_iso, local_midnight, zone_note
from orchestrator.base.tables import short, table
from orchestrator.calendars.service import words
from orchestrator.domain.dashboard import BoardTask, Deadline, Notification, NotificationStatus
from orchestrator.domain.values import ScheduledTask, TaskStatus
from orchestrator.groups import settings
from orchestrator.reports import tasks as task_reports
from orchestrator.scheduler import timing
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.board import tasks as board_tasks
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.loop import loops
from orchestrator.store.schedule import followed_calendars
from orchestrator.store.schedule.followed_calendars import FollowedEvent

MAX_TIMES_A_DAY = 100
"""Times of one task that are counted in a day; a task that comes more often is shown as coming that often."""
OPEN_STATUSES = (NotificationStatus.PENDING, NotificationStatus.SENDING)


class TimetableRow(TypedDict):
    """A task, notification or reminder in the timetable of all groups."""

    due: str | None
    due_ms: int | None
    timezone: str
    """The time zone of `due`: that of its group."""
    kind: str
    id: str
    group: str
    status: str
    what: str


class UpcomingView(TypedDict):
    """A task, notification, reminder, wake, deadline or calendar event on one of the coming days."""

    due: str
    due_ms: int
    date: str
    is_overdue: bool
    kind: Annotated[
        str,
        "task, notification, reminder, wake, deadline (of a task of the board), or event (of a calendar).",
    ]
    id: str
    group: str
    status: str
    what: str
    times: Annotated[int, "How many times a task is due on this day, at most 100; 1 for other kinds."]
    last_due: Annotated[str | None, "The last time on this day at which a task is due."]
    text: Annotated[str, "The whole text; `what` is its beginning on one line."]
    at: Annotated[
        list[str], "The times on this day, as `HH:MM` in Andy's zone; an empty text stands for the whole day."
    ]


async def rows(tx: Tx, folder: str | None, *, with_ended: bool, zone: ZoneInfo) -> list[TimetableRow]:
    """Return the scheduled tasks, notifications and reminders of a group, or of all groups for None.

    They are in the order of due times; those without one come last. With `with_ended`, also those that are
    over. Times of a task are in the zone of its schedule, all others in that of the group, or in `zone` for a
    group without one of its own. Raises `UnknownGroup`.
    """
    known_folder = None if folder is None else (await groups.known(tx, folder)).folder
    zones = {group.folder: settings.zone_of(group, default=zone) for group in await groups.every(tx)}
    unsorted = [
        _row(
            task.schedule.zone,
            task.next_ms,
            "task",
            task.id,
            task.folder,
            task.status.value,
            task.prompt,
        )
        for task in await task_reports.every(tx, known_folder, with_ended=with_ended)
    ]
    statuses = () if with_ended else OPEN_STATUSES
    # The reminders are among the notifications: those with a number.
    listed = await board_notifications.listed(tx, known_folder, statuses=statuses)
    unsorted += [_notification_row(zones.get(row.folder, zone), row) for row in listed]
    return sorted(unsorted, key=lambda row: (row["due_ms"] is None, row["due_ms"] or 0, row["id"]))


async def week(
    tx: Tx, folder: str | None, *, now_ms: int, zone: ZoneInfo, days: int = 7
) -> list[UpcomingView]:
    """Return what is to happen today and in the `days` whole days after it, by due time.

    These are scheduled tasks, notifications, reminders, wakes of loops, events of calendars and deadlines.
    Overdue ones come first. A task is one row a day: `times` is how often it comes on that day, at most
    `MAX_TIMES_A_DAY`, and `last_due` its last time there. `folder` is the group, None for all. Days are those
    of `zone`. Raises `UnknownGroup`.
    """
    known_folder = None if folder is None else (await groups.known(tx, folder)).folder
    until_ms = _midnight_ms(now_ms, zone, days_on=days + 1)
    zones = {group.folder: settings.zone_of(group, default=zone) for group in await groups.every(tx)}
    unsorted = [
        _on_day(
            _row(zone, times_ms[0], "task", task.id, task.folder, task.status.value, task.prompt),
            task.prompt,
            times_ms,
            now_ms=now_ms,
            zone=zone,
        )
        for task in await task_reports.every(tx, known_folder, with_ended=False)
        if task.status is TaskStatus.ACTIVE
        for times_ms in _times_by_day(task, until_ms, zone)
    ]
    unsorted += [
        _on_day(
            _notification_row(zone, notification),
            notification.message,
            (notification.due_ms,),
            now_ms=now_ms,
            zone=zone,
        )
        for notification in await board_notifications.listed(tx, known_folder, statuses=OPEN_STATUSES)
        if notification.due_ms < until_ms
    ]
    unsorted += [
        _on_day(
            _row(zone, next_ms, "wake", loop.folder, loop.folder, loop.status.value, loop.reason),
            loop.reason,
            (next_ms,),
            now_ms=now_ms,
            zone=zone,
        )
        for loop in await loops.alive(tx)
        if known_folder in (None, loop.folder)
        and (next_ms := loop.next_wake_ms) is not None
        and next_ms < until_ms
    ]
    unsorted += [
        _event_row(
            followed_event,
            now_ms=now_ms,
            zone=zone,
            group_zone=zones.get(followed_event.calendar.folder, zone),
        )
        for followed_event in await followed_calendars.between(tx, known_folder, now_ms, until_ms)
    ]
    unsorted += [
        _deadline_row(board_task, board_task.deadline, now_ms=now_ms, zone=zone)
        # A deadline of today without a time of day is stored as the midnight of its group's zone, which may
        # be yesterday in `zone`. So those of yesterday are read, too, and `_is_to_come` selects among them.
        for board_task in await board_tasks.due_between(
            tx, known_folder, _midnight_ms(now_ms, zone, days_on=-1), until_ms
        )
        if board_task.deadline is not None and _is_to_come(board_task.deadline, now_ms=now_ms, zone=zone)
    ]
    return sorted(unsorted, key=lambda row: (row["due_ms"], row["kind"], row["id"]))


def _is_to_come(deadline: Deadline, *, now_ms: int, zone: ZoneInfo) -> bool:
    """Return whether a deadline is on today's date in `zone` or later; today it may be past already."""
    # The first ten characters of an ISO time are its date, such as `2026-02-10`; dates compare as texts.
    day = deadline.date or local_iso(deadline.at_ms, zone)[:10]
    return day >= local_iso(now_ms, zone)[:10]


def _deadline_row(task: BoardTask, deadline: Deadline, *, now_ms: int, zone: ZoneInfo) -> UpcomingView:
    """Return the row of the deadline of a dashboard's task.

    A deadline of a whole day has its date, no time of day (`at`), and is not overdue on that day.
    """
    row = _row(zone, deadline.at_ms, "deadline", task.id, task.folder, task.status.value, task.title)
    upcoming = _on_day(row, task.title, (deadline.at_ms,), now_ms=now_ms, zone=zone)
    whole_day = {"date": deadline.date, "at": [""], "is_overdue": False} if deadline.date else {}
    return cast("UpcomingView", {**upcoming, **whole_day})


def _event_row(followed: FollowedEvent, *, now_ms: int, zone: ZoneInfo, group_zone: ZoneInfo) -> UpcomingView:
    """Return the row of an event of a calendar; one that has already begun is listed at the present time.

    An event of a whole day has no time of day (`at`), and the date that it has in its group's zone.
    """
    event, due_ms = followed.event, max(followed.event.start_ms, now_ms)
    row = _row(zone, due_ms, "event", event.id, followed.calendar.folder, "", event.title)
    # `words` returns the event's title, place and calendar as text.
    upcoming = _on_day(row, words(followed), (due_ms,), now_ms=now_ms, zone=zone)
    if not event.is_all_day:
        return upcoming
    # It begins at the midnight of its group's zone, which may be on the day before in `zone`.
    first_date = local_iso(event.start_ms, group_zone)[:10]
    return {**upcoming, "at": [""], "date": max(first_date, local_iso(now_ms, zone)[:10])}


def _on_day(
    row: TimetableRow, text: str, times_ms: tuple[int, ...], *, now_ms: int, zone: ZoneInfo
) -> UpcomingView:
    """Return a row of the timetable, which has one time, as a row of `week`, which has all times of a day.

    `text` is its whole text. `times_ms` are its times on that day, at least one, in epoch milliseconds.
    """
    # Such as `2026-02-10T09:30:00+01:00`: the first ten characters are the date, then comes the time.
    local_times = [local_iso(moment_ms, zone) for moment_ms in times_ms]
    return {
        "due": local_times[0],
        "due_ms": times_ms[0],
        "kind": row["kind"],
        "id": row["id"],
        "group": row["group"],
        "status": row["status"],
        "what": row["what"],
        "text": text,
        "date": local_times[0][:10],
        "is_overdue": times_ms[0] < now_ms,
        "times": len(local_times),
        "at": [local_time[11:16] for local_time in local_times],
        # Only scheduled tasks come several times a day.
        "last_due": local_times[-1] if row["kind"] == "task" else None,
    }


def _times_by_day(task: ScheduledTask, until_ms: int, zone: ZoneInfo) -> Iterator[tuple[int, ...]]:
    """Yield the times of a scheduled task before `until_ms`, all of one day at once, in epoch milliseconds.

    Days are those of `zone`, and `until_ms` is the start of one. Days without any time are left out. A day
    has at most `MAX_TIMES_A_DAY`.
    """
    due_ms = task.next_ms
    if due_ms is None:
        return
    following = timing.following_times(task.schedule, due_ms, after_ms=due_ms)
    while due_ms is not None and due_ms < until_ms:
        times_ms = [due_ms]
        midnight_ms = _midnight_ms(due_ms, zone, days_on=1)
        while (due_ms := next(following, None)) is not None and due_ms < midnight_ms:
            if len(times_ms) == MAX_TIMES_A_DAY:
                # Times beyond the limit are skipped: a task that comes every minute costs 100 steps a day,
                # not 1,440.
                following = timing.following_times(task.schedule, due_ms, after_ms=midnight_ms - 1)
            else:
                times_ms.append(due_ms)
        yield tuple(times_ms)


def _midnight_ms(at_ms: int, zone: ZoneInfo, *, days_on: int) -> int:
    """Return the start of the day that is `days_on` days after the day of `at_ms`, in epoch milliseconds."""
    day = local_midnight(at_ms, zone)
    # Added to the local time: when the clocks change, a day has 23 or 25 hours.
    return round((day + timedelta(days=days_on)).timestamp() * 1000)


def lines(rows: list[TimetableRow], *, reader_zone: ZoneInfo) -> list[str]:
    """Return the timetable as a table for a person in the time zone `reader_zone`.

    A time in another zone is followed by the name of that zone.
    """
    if not rows:
        return ["Nothing is scheduled."]
    cells = [
        (_due_text(row, reader_zone), row["kind"], row["id"], row["group"], row["status"], row["what"])
        for row in rows
    ]
    return table(("due", "kind", "id", "group", "status", "what"), cells)


def _due_text(row: TimetableRow, reader_zone: ZoneInfo) -> str:
    """Return the time of a row as people read it, with the day of the week; empty text without one.

    If the row's zone is not `reader_zone`, it is named.
    """
    if row["due"] is None:
        return ""
    return f"{datetime.fromisoformat(row['due']):%a %Y-%m-%d %H:%M}{zone_note(row['timezone'], reader_zone)}"


def _notification_row(zone: ZoneInfo, notification: Notification) -> TimetableRow:
    """Return a notification as a row of the timetable; one with a number is a reminder."""
    kind, row_id = (
        ("notification", notification.id)
        if notification.number is None
        else ("reminder", str(notification.number))
    )
    return _row(
        zone,
        notification.due_ms,
        kind,
        row_id,
        notification.folder,
        notification.status.value,
        notification.message,
    )


def _row(
    zone: ZoneInfo, due_ms: int | None, kind: str, row_id: str, folder: str, status: str, text: str
) -> TimetableRow:
    """Return a row of the timetable with its time in `zone`; `what` is the beginning of `text` on one line.

    `due_ms` is None for something without a time.
    """
    return {
        "due": None if due_ms is None else local_iso(due_ms, zone),
        "due_ms": due_ms,
        "timezone": zone.key,
        "kind": kind,
        "id": row_id,
        "group": folder,
        "status": status,
        "what": short(text, 80),
    }
