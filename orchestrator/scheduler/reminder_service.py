"""Set, move and cancel reminders for the owner: used by the command line and the HTTP API alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_iso
from orchestrator.base.tables import Rows, short, table
from orchestrator.domain.errors import ReminderRefused, TextEmpty, TextTooLong, UnknownReminder
from orchestrator.domain.values import Group, Reminder, ReminderState
from orchestrator.scheduler.scheduled_task_service import ReadTime
from orchestrator.store import audit, dashboard_notifications, groups, reminders
from orchestrator.store.database import Tx

MAX_PENDING = 500
"""Reminders of one group that are still to come."""
MAX_TEXT_CHARS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class ReminderService:
    """Changes reminders in the caller's transaction. Each change is audited, without the text."""

    read_time: ReadTime
    zone_of: Callable[[Group], ZoneInfo]

    async def add(self, tx: Tx, folder: str, text: str, at: str, *, now_ms: int) -> dict[str, Any]:
        """Set a reminder for a group's chat, and return its row.

        Raises:
            UnknownGroup, BadTime, TextEmpty, TextTooLong
            ReminderRefused: the group has too many.
        """
        group = await groups.known(tx, folder)
        check_text(text)
        if len(await reminders.pending(tx, group.folder)) >= MAX_PENDING:
            raise ReminderRefused(f"There are {MAX_PENDING} reminders already: cancel some first.")
        due_ms = self.read_time(at, now_ms=now_ms, zone=self.zone_of(group))
        number = await reminders.add(tx, group, text=text, due_ms=due_ms, now_ms=now_ms)
        made = await self._pending(tx, number)
        return await self._done(tx, "add", made, now_ms=now_ms)

    async def move(self, tx: Tx, number: int, at: str, *, now_ms: int) -> dict[str, Any]:
        """Let a reminder be due at another time, and return its row.

        Raises:
            UnknownReminder, BadTime
            ReminderRefused: it was sent or cancelled.
        """
        found = await self._pending(tx, number)
        due_ms = self.read_time(at, now_ms=now_ms, zone=await self._zone(tx, found))
        await reminders.set_due(tx, number, due_ms)
        return await self._done(tx, "move", replace(found, due_ms=due_ms), now_ms=now_ms)

    async def cancel(self, tx: Tx, number: int, *, now_ms: int) -> dict[str, Any]:
        """Cancel a reminder, and return its row.

        Raises:
            UnknownReminder
            ReminderRefused: it was sent or cancelled.
        """
        found = await self._pending(tx, number)
        await reminders.close(tx, number, ReminderState.CANCELLED)
        return await self._done(tx, "cancel", found, now_ms=now_ms)

    async def rows(self, tx: Tx, folder: str | None) -> Rows:
        """Return the pending reminders of a group, or of all, the next first. Raises `UnknownGroup`.

        Those that Claude set are notifications of the dashboard, with ids such as `n_1a2b3c4d`.
        """
        known = None if folder is None else (await groups.known(tx, folder)).folder
        rows = [await self._row(tx, one) for one in await reminders.pending(tx, known)]
        for one in await dashboard_notifications.reminders_to_come(tx, known):
            group = await groups.by_folder(tx, one.folder)
            if group is None:
                continue  # it is cancelled when it is due
            zone = self.zone_of(group)
            rows.append(
                {
                    "id": one.id,
                    "group": one.folder,
                    "due": local_iso(one.due_ms, zone),
                    "due_ms": one.due_ms,
                    "text": one.message,
                }
            )
        return sorted(rows, key=lambda row: row["due_ms"])

    async def _pending(self, tx: Tx, number: int) -> Reminder:
        found = await reminders.get(tx, number)
        if found is None:
            raise UnknownReminder(number)
        if found.state is not ReminderState.PENDING:
            raise ReminderRefused(f"Reminder {number} is {found.state.value} already.")
        return found

    async def _zone(self, tx: Tx, reminder: Reminder) -> ZoneInfo:
        return self.zone_of(await groups.known(tx, reminder.folder))

    async def _done(self, tx: Tx, action: str, reminder: Reminder, *, now_ms: int) -> dict[str, Any]:
        detail = {"reminder": reminder.id, "due_ms": reminder.due_ms}
        event = audit.AuditEvent(
            at_ms=now_ms, kind=f"reminder.{action}", folder=reminder.folder, detail=detail
        )
        await audit.append(tx, event)
        return await self._row(tx, reminder)

    async def _row(self, tx: Tx, reminder: Reminder) -> dict[str, Any]:
        return {
            "id": reminder.id,
            "group": reminder.folder,
            "due": local_iso(reminder.due_ms, await self._zone(tx, reminder)),
            "due_ms": reminder.due_ms,
            "text": reminder.text,
        }


def check_text(text: str) -> None:
    """Check that a text can be sent to a chat. Raises `TextEmpty`, `TextTooLong`."""
    if not text.strip():
        raise TextEmpty
    if len(text) > MAX_TEXT_CHARS:
        raise TextTooLong(len(text), MAX_TEXT_CHARS)


def shown_due(row: dict[str, Any]) -> str:
    """Return when a reminder is due, by its group's clocks: `Mon 2026-11-23 09:00`."""
    return f"{datetime.fromisoformat(row['due']):%a %Y-%m-%d %H:%M}"


def lines(rows: Rows) -> list[str]:
    """Return the reminders as a table for people."""
    if not rows:
        return ["There are no reminders."]
    cells = [(row["id"], row["group"], shown_due(row), short(row["text"], 80)) for row in rows]
    return table(("id", "group", "due", "text"), cells)
