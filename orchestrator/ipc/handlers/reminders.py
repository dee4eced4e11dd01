"""Set, cancel and list reminders: texts that are sent at a time, word for word, without an agent."""

from __future__ import annotations

from typing import Any

from agent_runner.wire.mailbox import CancelReminder, ListReminders, SetReminder
from orchestrator.base.clock import local_iso, local_minute
from orchestrator.domain.dashboard import Notification
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import person_of
from orchestrator.ipc.command_context import CommandCaller, CommandResult, refused
from orchestrator.ipc.handlers.abilities import NO_DASHBOARDS, NOT_HERE
from orchestrator.ipc.late_answers import SENT_LATE
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.database import Tx


async def set_reminder(tx: Tx, caller: CommandCaller, command: SetReminder) -> CommandResult:
    """Store a reminder, a text that is sent to the chat at its time, and return its number and time.

    A duration counts from the request, which may have waited. A time that has passed since then means at
    once.
    """
    if caller.dashboards is None:
        return refused(NOT_HERE, NO_DASHBOARDS)
    try:
        due_ms = caller.read_time(command.at, now_ms=caller.asked_ms, zone=caller.zone)
        reminder = await caller.dashboards.reminders.set(
            tx,
            caller.group,
            command.text,
            due_ms,
            now_ms=caller.now_ms,
            turn_id=_turn_id(caller),
            task_id=command.task_id,
        )
    except BadRequest as error:
        return refused(error.code, str(error))
    when = f"{local_minute(due_ms, caller.zone)} ({caller.zone.key})"
    data = {"id": reminder.number, "due_ms": due_ms, "due": local_iso(due_ms, caller.zone)}
    if due_ms < caller.now_ms:
        text = (
            f"The time of reminder {reminder.number}, {when}, passed while the host was away: it is sent now."
        )
        return CommandResult(code=SENT_LATE, text=text, data=data)
    return CommandResult(text=f"Reminder {reminder.number} is set for {when}.", data=data)


async def cancel_reminder(tx: Tx, caller: CommandCaller, command: CancelReminder) -> CommandResult:
    """Cancel a reminder of the caller's group; a caller of the group main may cancel that of any group.

    If it has ended, or has changed since the calling turn was shown it, the refusal is "not_pending".
    """
    if caller.dashboards is None:
        return refused(NOT_HERE, NO_DASHBOARDS)
    reminder = await board_notifications.by_number(tx, command.reminder_id)
    # Another group's reminder is treated as if it did not exist.
    if reminder is None or not (caller.group.is_main or reminder.folder == caller.group.folder):
        return refused("unknown_reminder", f"There is no reminder {command.reminder_id} here.")
    # `end` refuses to cancel for a turn that has not been shown the reminder as it is now. A turn of main is
    # shown main's own dashboard alone, so for the reminder of another group no turn is named.
    turn_id = _turn_id(caller) if reminder.folder == caller.group.folder else None
    try:
        await caller.dashboards.reminders.end(tx, reminder, now_ms=caller.now_ms, turn_id=turn_id)
    except BadRequest as error:
        return refused("not_pending", str(error))
    return CommandResult(text=f"Reminder {reminder.number} is cancelled.", data=_serialize(reminder, caller))


async def list_reminders(tx: Tx, caller: CommandCaller, command: ListReminders) -> CommandResult:
    """List the reminders of the caller's group that are still to come."""
    del command
    pending = await board_notifications.reminders(tx, caller.group.folder)
    lines = [
        f"{reminder.number}: {local_minute(reminder.due_ms, caller.zone)} {reminder.message}"
        for reminder in pending
    ]
    return CommandResult(
        text="\n".join(lines) or "There are no reminders.",
        data={"reminders": [_serialize(reminder, caller) for reminder in pending]},
    )


def _turn_id(caller: CommandCaller) -> int | None:
    """Return the turn in which a request was made; None if it was made outside of one."""
    return caller.turn.id if caller.turn is not None else None


def _serialize(reminder: Notification, caller: CommandCaller) -> dict[str, Any]:
    """Return a reminder as JSON fields for the agent's program.

    `due_ms` is its time in epoch milliseconds, and `due` the same in the group's zone, with offset.
    """
    return {
        "id": reminder.number,
        "text": reminder.message,
        "due_ms": reminder.due_ms,
        "due": local_iso(reminder.due_ms, caller.zone),
        "notification_id": reminder.id,
        "task_id": reminder.task_id,
        "person": person_of(reminder.asked_by or ""),
    }
