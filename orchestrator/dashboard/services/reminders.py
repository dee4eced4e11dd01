"""Set, move, cancel and list reminders for people, who know each by a short number.

A reminder is a notification that a person requested: rows, checks and delivery are those of `notifications`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypedDict
from zoneinfo import ZoneInfo

from agent_runner.wire import times
from agent_runner.wire.order import ECHO
from orchestrator.base.clock import local_iso, zone_note
from orchestrator.base.tables import short, table
from orchestrator.dashboard.rules import alerts
from orchestrator.dashboard.services import notifications
from orchestrator.dashboard.services.context import BoardLimits, ServiceContext
from orchestrator.dashboard.words import when
from orchestrator.domain.dashboard import (
    Actor,
    Caller,
    Notification,
    NotificationRequest,
    NotificationStatus,
    ToolRefused,
)
from orchestrator.domain.errors import BadTime, ReminderRefused, UnknownReminder
from orchestrator.domain.values import ChatJid, Group, ScheduledTask, TaskStatus
from orchestrator.inbound.intake import check_text
from orchestrator.store import audit
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.database import Tx, announce
from orchestrator.store.groups import groups
from orchestrator.store.schedule import tasks

_TIME_REFUSALS = ("UNPARSEABLE_TIME", "PAST_TIME", "TOO_FAR")


class ReminderView(TypedDict):
    """A reminder as the API, the console and the command line show it, by its number."""

    id: int | str
    group: str
    due: str
    due_ms: int
    timezone: str
    """The time zone of `due`: that of its group."""
    text: str
    repeats: str | None
    """The repetition, such as `every Monday at 09:00 (paused)`; None for one that comes once."""


def _always_deliverable(_: Group) -> bool:
    """Return True: every group counts as reachable unless a caller passes a check of its own."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReminderService:
    """Changes reminders in the caller's transaction. The owner's changes are audited, without the text."""

    zone_of: Callable[[Group], ZoneInfo]
    can_deliver: Callable[[Group], bool] = _always_deliverable
    limits: BoardLimits = BoardLimits()  # noqa: RUF009 - a frozen value

    # For an agent that carries out what a person wrote

    async def set(
        self,
        tx: Tx,
        group: Group,
        text: str,
        due_ms: int,
        *,
        now_ms: int,
        turn_id: int | None = None,
        task_id: str | None = None,
    ) -> Notification:
        """Set a reminder for a group's chat, due at `due_ms`; one whose time is past is sent at once.

        A reminder about the deadline of `task_id` takes the place of the alert of the same day, and is
        cancelled when the task ends or its deadline moves. `turn_id` is the turn that requests it; None
        outside of a turn.

        Raises:
            TextEmpty, TextTooLong: the text is no message.
            ReminderRefused: the group has too many or the same one already, no channel takes it, or the task
                is unknown or has ended.
        """
        check_text(text)
        ctx = self._context(tx, group, now_ms=now_ms, turn_id=turn_id)
        request = NotificationRequest(
            message=text,
            due_ms=due_ms,
            task_id=task_id,
            # A random part, because the store allows one open notification of a task for each cause.
            cause=None if task_id is None else f"{alerts.REMINDER_CAUSE_PREFIX}{secrets.token_hex(4)}",
        )
        outcome = await notifications.try_schedule(ctx, request)
        if outcome.notification is None:
            raise ReminderRefused(str(outcome.refused))
        if task_id is not None:
            await notifications.withdraw_alerts(ctx, outcome.notification)
        return outcome.notification

    async def end(
        self, tx: Tx, reminder: Notification, *, now_ms: int, turn_id: int | None = None
    ) -> Notification:
        """Cancel a reminder, and return the changed row.

        `turn_id` is the turn that requests the cancellation; None outside of a turn.

        Raises:
            ReminderRefused: it has ended, or has changed since that turn was shown it.
        """
        _check_open(reminder)
        ctx = self._context(tx, await self._group(tx, reminder), now_ms=now_ms, turn_id=turn_id)
        try:
            await notifications.cancel(ctx, notification_id=reminder.id)
        except ToolRefused as refused:
            raise ReminderRefused(str(refused)) from refused
        return await ctx.notification(reminder.id)

    # For the owner

    async def add(self, tx: Tx, folder: str, text: str, time_text: str, *, now_ms: int) -> ReminderView:
        """Set a reminder for a group's chat at a time that is written as text, and return it as people see
        it.

        `time_text` is such as `tomorrow 9am`. The change is audited and announced.

        Raises:
            UnknownGroup, BadTime, TextEmpty, TextTooLong
            ReminderRefused: the group has too many or the same one already, or no channel takes it.
        """
        group = await groups.known(tx, folder)
        check_text(text)
        try:
            due_ms = when.parse_due_time(time_text, now_ms=now_ms, zone=self.zone_of(group)).at_ms
        except ToolRefused as refused:
            raise BadTime(str(refused)) from refused
        reminder = await self.set(tx, group, text, due_ms, now_ms=now_ms)
        return await self._record_change(tx, "add", reminder, now_ms=now_ms)

    async def move(
        self, tx: Tx, reminder: str, time_text: str | None, *, now_ms: int, text: str | None = None
    ) -> ReminderView:
        """Change the time or the text of a reminder, and return it as people see it.

        `reminder` is its number or id; `time_text` is such as `tomorrow 9am`. A time or text that is None
        stays unchanged. The change is audited and announced.

        Raises:
            UnknownReminder, BadTime, TextEmpty, TextTooLong
            ReminderRefused: it was sent or cancelled, is being sent, would be the same as before or as
                another one, or repeats and so is a scheduled task.
        """
        row = await _known_reminder(tx, reminder)
        _check_open(row)
        if text is not None:
            check_text(text)
        ctx = self._context(tx, await self._group(tx, row), now_ms=now_ms)
        try:
            await notifications.update(ctx, notification_id=row.id, scheduled_at=time_text, message=text)
        except ToolRefused as refused:
            raise (BadTime if refused.code in _TIME_REFUSALS else ReminderRefused)(str(refused)) from refused
        return await self._record_change(tx, "move", await ctx.notification(row.id), now_ms=now_ms)

    async def cancel(self, tx: Tx, reminder: str, *, now_ms: int) -> ReminderView:
        """Cancel a reminder, and return it as people see it.

        `reminder` is its number or id. The change is audited and announced.

        Raises:
            UnknownReminder
            ReminderRefused: it was sent or cancelled, or repeats and so is a scheduled task.
        """
        ended = await self.end(tx, await _known_reminder(tx, reminder), now_ms=now_ms)
        return await self._record_change(tx, "cancel", ended, now_ms=now_ms)

    async def restore(self, tx: Tx, reminder: str, *, now_ms: int) -> ReminderView:
        """Set a new reminder like a cancelled one, for its chat and time, and return the new one.

        `reminder` is the number or id of the cancelled one. The change is audited and announced.

        Raises:
            UnknownReminder
            ReminderRefused: it was not cancelled, or `set` refuses the new one, as when there are too many.
        """
        row = await _known_reminder(tx, reminder)
        if row.status is not NotificationStatus.CANCELLED:
            raise ReminderRefused(
                f"Reminder {row.number} is {row.status.value}: only a deleted one comes back."
            )
        group = await self._group(tx, row)
        # The new one goes to the chat of the cancelled one, which may be another one than the group's first.
        restored = await self.set(
            tx,
            replace(group, jid=row.chat_jid or group.jid),
            row.message,
            row.due_ms,
            now_ms=now_ms,
            task_id=row.task_id,
        )
        return await self._record_change(tx, "restore", restored, now_ms=now_ms)

    async def list_views(self, tx: Tx, folder: str | None) -> list[ReminderView]:
        """Return the pending reminders of a group, or of all groups if `folder` is None, the next first.

        Repeating ones are included.

        Raises:
            UnknownGroup
        """
        group_folder = None if folder is None else (await groups.known(tx, folder)).folder
        rows = [
            await self._view(tx, reminder)
            for reminder in await board_notifications.reminders(tx, group_folder)
        ]
        repeating = [
            _repeating_view(task) for task in await tasks.every(tx, group_folder) if _is_reminder(task)
        ]
        return sorted([*rows, *repeating], key=lambda row: row["due_ms"])

    def _context(self, tx: Tx, group: Group, *, now_ms: int, turn_id: int | None = None) -> ServiceContext:
        """Return the context in which a person changes reminders of a group.

        `turn_id` is the turn that requests the change; None outside of a turn.
        """
        return ServiceContext(
            tx,
            group.folder,
            Caller(actor=Actor.USER, now_ms=now_ms, turn_id=turn_id, is_person=True),
            zone=self.zone_of(group),
            limits=self.limits,
            can_deliver=self.can_deliver(group),
            chat_jid=group.jid,
        )

    async def _group(self, tx: Tx, reminder: Notification) -> Group:
        """Return the group of a reminder, or one made of the reminder's fields if that was removed."""
        # A reminder stores its chat and is sent even if its group was removed, so it must stay cancellable.
        stand_in = Group(folder=reminder.folder, jid=reminder.chat_jid or ChatJid(""), name=reminder.folder)
        return await groups.by_folder(tx, reminder.folder) or stand_in

    async def _record_change(
        self, tx: Tx, action: str, reminder: Notification, *, now_ms: int
    ) -> ReminderView:
        """Audit and announce a change of a reminder, such as `move`; return the reminder as people see it."""
        # The audit outlives the reminder, so its text is not copied there.
        detail = {"reminder": reminder.number, "due_ms": reminder.due_ms}
        event = audit.AuditEvent(
            at_ms=now_ms, kind=f"reminder.{action}", folder=reminder.folder, detail=detail
        )
        await audit.append(tx, event)
        announce(tx, "reminder.changed", group=reminder.folder, detail=str(reminder.number))
        return await self._view(tx, reminder)

    async def _view(self, tx: Tx, reminder: Notification) -> ReminderView:
        """Return a reminder as people see it, with its time by the clocks of its group."""
        assert reminder.number is not None, "each reminder has a number"
        zone = self.zone_of(await self._group(tx, reminder))
        return {
            "id": reminder.number,
            "group": reminder.folder,
            "due": local_iso(reminder.due_ms, zone),
            "due_ms": reminder.due_ms,
            "timezone": zone.key,
            "text": reminder.message,
            "repeats": None,
        }


async def _known_reminder(tx: Tx, reminder: str) -> Notification:
    """Return the reminder with this number, or with the id that agents use.

    Raises:
        UnknownReminder: there is none.
        ReminderRefused: it repeats, so it is a scheduled task.
    """
    if reminder.startswith("task-"):
        raise ReminderRefused(
            f"{reminder[:80]} repeats: cancel it with 'andy tasks cancel {reminder[:80]}' and set a new one."
        )
    # `isdigit` alone takes digits of other scripts, and a long number would not fit an SQLite integer.
    if reminder.isascii() and reminder.isdigit() and len(reminder) < 16:
        row = await board_notifications.by_number(tx, int(reminder))
    else:
        row = await board_notifications.by_id(tx, reminder)
    if row is None or row.number is None:
        raise UnknownReminder(reminder)
    return row


def _is_reminder(task: ScheduledTask) -> bool:
    """Return whether a scheduled task is a repeating reminder: it only sends a sentence, and is due again."""
    return task.prompt.startswith(ECHO) and task.next_ms is not None


def _repeating_view(task: ScheduledTask) -> ReminderView:
    """Return the view of a repeating reminder, which is stored as a scheduled task (see `_is_reminder`).

    Its id is the task's. A paused one is not sent until it is resumed; `repeats` says that it is paused.
    """
    assert task.next_ms is not None
    zone = task.schedule.zone
    first = datetime.fromtimestamp(task.next_ms / 1000, zone)
    recurrence = times.Recurrence.of_schedule(task.schedule.kind.value, task.schedule.value, first=first)
    repeats = times.say(recurrence, times.Language.ENGLISH) if recurrence else task.schedule.value
    return {
        "id": task.id,
        "group": task.folder,
        "due": local_iso(task.next_ms, zone),
        "due_ms": task.next_ms,
        "timezone": zone.key,
        "text": task.prompt.removeprefix(ECHO),
        "repeats": f"{repeats} (paused)" if task.status is TaskStatus.PAUSED else repeats,
    }


def _check_open(reminder: Notification) -> None:
    """Raise `ReminderRefused` if a reminder was sent or cancelled."""
    if not reminder.status.is_open:
        word = "sent" if reminder.status.value == "delivered" else reminder.status.value
        raise ReminderRefused(f"Reminder {reminder.number} is {word} already.")


def shown_due(row: ReminderView, *, reader_zone: ZoneInfo) -> str:
    """Return when a reminder is due, by its group's clocks: `Mon 2026-11-23 09:00`, and how it repeats.

    The group's time zone is named if it is not `reader_zone`, that of the person who reads it.
    """
    zone = zone_note(row["timezone"], reader_zone)
    due = f"{datetime.fromisoformat(row['due']):%a %Y-%m-%d %H:%M}{zone}"
    return f"{due}, {row['repeats']}" if row["repeats"] else due


def lines(rows: list[ReminderView], *, reader_zone: ZoneInfo) -> list[str]:
    """Return the reminders as a table for a person whose time zone is `reader_zone`."""
    if not rows:
        return ["There are no reminders."]
    cells = [
        (row["id"], row["group"], shown_due(row, reader_zone=reader_zone), short(row["text"], 80))
        for row in rows
    ]
    return table(("id", "group", "due", "text"), cells)
