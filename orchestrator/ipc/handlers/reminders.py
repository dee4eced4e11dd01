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
    """Store a reminder. Its time counts from the request; a time that has passed since means at once."""
    if caller.dashboards is None:
        return refused(NOT_HERE, NO_DASHBOARDS)
    try:
        due_ms = caller.read_time(command.at, now_ms=caller.asked_ms, zone=caller.zone)
        made = await caller.dashboards.reminders.set(
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
    data = {"id": made.number, "due_ms": due_ms, "due": local_iso(due_ms, caller.zone)}
    if due_ms < caller.now_ms:
        text = f"The time of reminder {made.number}, {when}, passed while the host was away: it is sent now."
        return CommandResult(code=SENT_LATE, text=text, data=data)
    return CommandResult(text=f"Reminder {made.number} is set for {when}.", data=data)


async def cancel_reminder(tx: Tx, caller: CommandCaller, command: CancelReminder) -> CommandResult:
    """Cancel a reminder of the caller's group or, from main, of any."""
    if caller.dashboards is None:
        return refused(NOT_HERE, NO_DASHBOARDS)
    found = await board_notifications.by_number(tx, command.reminder_id)
    # Another group's reminder is treated as if it did not exist.
    if found is None or not (caller.group.is_main or found.folder == caller.group.folder):
        return refused("unknown_reminder", f"There is no reminder {command.reminder_id} here.")
    # A turn of main was shown no other group's board.
    turn_id = _turn_id(caller) if found.folder == caller.group.folder else None
    try:
        await caller.dashboards.reminders.end(tx, found, now_ms=caller.now_ms, turn_id=turn_id)
    except BadRequest as error:
        return refused("not_pending", str(error))
    return CommandResult(text=f"Reminder {found.number} is cancelled.", data=_serialize(found, caller))


async def list_reminders(tx: Tx, caller: CommandCaller, command: ListReminders) -> CommandResult:
    """List the reminders of the caller's group that are still to come."""
    del command
    coming = await board_notifications.reminders(tx, caller.group.folder)
    lines = [f"{one.number}: {local_minute(one.due_ms, caller.zone)} {one.message}" for one in coming]
    return CommandResult(
        text="\n".join(lines) or "There are no reminders.",
        data={"reminders": [_serialize(one, caller) for one in coming]},
    )


def _turn_id(caller: CommandCaller) -> int | None:
    return caller.turn.id if caller.turn is not None else None


def _serialize(one: Notification, caller: CommandCaller) -> dict[str, Any]:
    return {
        "id": one.number,
        "text": one.message,
        "due_ms": one.due_ms,
        "due": local_iso(one.due_ms, caller.zone),
        "notification_id": one.id,
        "task_id": one.task_id,
        "person": person_of(one.asked_by or ""),
    }
