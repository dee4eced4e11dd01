"""Set, cancel and list reminders: texts that are sent at a time, word for word, without an agent."""

from __future__ import annotations

from typing import Any

from agent_runner.wire.mailbox import CancelReminder, ListReminders, SetReminder
from orchestrator.base.clock import local_iso, local_minute
from orchestrator.domain.errors import BadTime
from orchestrator.domain.values import Reminder, ReminderState
from orchestrator.ipc.command_context import CommandCaller, CommandResult, refused
from orchestrator.ipc.late_answers import SENT_LATE
from orchestrator.scheduler.reminder_service import MAX_PENDING
from orchestrator.store import messages, reminders
from orchestrator.store.database import Tx


async def set_reminder(tx: Tx, caller: CommandCaller, command: SetReminder) -> CommandResult:
    """Store a reminder. Its time counts from when it was asked; one that has passed since is sent at once."""
    try:
        due_ms = caller.read_time(command.at, now_ms=caller.asked_ms, zone=caller.zone)
    except BadTime as error:
        return refused(error.code, str(error))
    if len(await reminders.pending(tx, caller.group.folder)) >= MAX_PENDING:
        return refused("too_many", f"There are {MAX_PENDING} reminders already: cancel some first.")
    asked_by = await messages.asker_of(tx, caller.turn.id) if caller.turn is not None else None
    number = await reminders.add(
        tx, caller.group, text=command.text, due_ms=due_ms, now_ms=caller.now_ms, asked_by=asked_by
    )
    when = f"{local_minute(due_ms, caller.zone)} ({caller.zone.key})"
    data = {"id": number, "due_ms": due_ms, "due": local_iso(due_ms, caller.zone)}
    if due_ms < caller.now_ms:
        text = f"The time of reminder {number}, {when}, passed while the host was away: it is sent now."
        return CommandResult(code=SENT_LATE, text=text, data=data)
    return CommandResult(text=f"Reminder {number} is set for {when}.", data=data)


async def cancel_reminder(tx: Tx, caller: CommandCaller, command: CancelReminder) -> CommandResult:
    """Cancel a reminder of the caller's group or, from main, of any."""
    found = await reminders.get(tx, command.reminder_id)
    # Nothing is said of another group's reminder, not even that it exists.
    if found is None or not (caller.group.is_main or found.folder == caller.group.folder):
        return refused("unknown_reminder", f"There is no reminder {command.reminder_id} here.")
    if found.state is not ReminderState.PENDING:
        return refused("not_pending", f"Reminder {found.id} is {found.state.value} already.")
    await reminders.close(tx, found.id, ReminderState.CANCELLED)
    return CommandResult(text=f"Reminder {found.id} is cancelled.", data=_serialize(found, caller))


async def list_reminders(tx: Tx, caller: CommandCaller, command: ListReminders) -> CommandResult:
    """List the reminders of the caller's group that are still to come."""
    del command
    coming = await reminders.pending(tx, caller.group.folder)
    lines = [f"{one.id}: {local_minute(one.due_ms, caller.zone)} {one.text}" for one in coming]
    return CommandResult(
        text="\n".join(lines) or "There are no reminders.",
        data={"reminders": [_serialize(one, caller) for one in coming]},
    )


def _serialize(reminder: Reminder, caller: CommandCaller) -> dict[str, Any]:
    return {
        "id": reminder.id,
        "text": reminder.text,
        "due_ms": reminder.due_ms,
        "due": local_iso(reminder.due_ms, caller.zone),
    }
