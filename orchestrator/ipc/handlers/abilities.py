"""Commands for the dashboard, the loop, notices and the context: passed to their services."""

from __future__ import annotations

from agent_runner.wire.mailbox import (
    AcknowledgeNotice,
    CancelNotice,
    ControlLoop,
    ListNotices,
    NotifySelf,
    Remember,
    Reply,
    SetNextWake,
    ShowDashboard,
    UseDashboard,
)
from orchestrator.domain.errors import BadRequest
from orchestrator.ipc.command_context import CommandCaller, CommandResult, refused
from orchestrator.store.database import Tx

NOT_HERE = "not_here"
NO_DASHBOARDS = "There are no dashboards here."
NO_LOOPS = "There are no loops here."
NO_NOTICES = "No notices are kept here."
NO_CONTEXT = "Nothing is kept of conversations here."
ISOLATED = "This run is apart from the group's conversation: it leaves no trace in it."


async def use_dashboard(tx: Tx, caller: CommandCaller, command: UseDashboard) -> CommandResult:
    """Call a dashboard tool for the group's agent, and return its result.

    The turn is the one that the store has as running, not one that the agent claims.
    """
    if caller.dashboards is None:
        return refused(NOT_HERE, NO_DASHBOARDS)
    reply = await caller.dashboards.answer(
        tx, caller.group, caller.turn, command.tool, command.arguments, caller.request_id
    )
    return result_of(reply)


async def show_dashboard(tx: Tx, caller: CommandCaller, command: ShowDashboard) -> CommandResult:
    """Return what is on the dashboard of the caller's group, as text for a person."""
    del command
    if caller.dashboards is None:
        return refused(NOT_HERE, NO_DASHBOARDS)
    return result_of(await caller.dashboards.show(tx, caller.group, caller.request_id))


async def set_next_wake(tx: Tx, caller: CommandCaller, command: SetNextWake) -> CommandResult:
    """Store when the group's agent wants to wake by itself next, and return the time at which it will.

    The two differ (`bounded`) if the owner's limits do not allow the requested time.
    """
    if caller.loops is None:
        return refused(NOT_HERE, NO_LOOPS)
    try:
        wake = await caller.loops.set_next_wake(tx, caller.group, command.next, command.reason)
    except BadRequest as error:
        return refused(error.code, str(error))
    return CommandResult(
        text=wake.text, data={"applied_minutes": wake.applied_ms / 60_000, "bounded": wake.is_bounded}
    )


async def control_loop(tx: Tx, caller: CommandCaller, command: ControlLoop) -> CommandResult:
    """Switch a group's loop, the agent's waking by itself, on or off, pause it, or wake it.

    Without a group in the command, it is the caller's.
    """
    if caller.loops is None:
        return refused(NOT_HERE, NO_LOOPS)
    folder = command.target_folder or caller.group.folder
    try:
        folder = await caller.loops.act(tx, folder, command.action, command.reason, source="agent")
    except BadRequest as error:
        return refused(error.code, str(error))
    return CommandResult(text=f"The loop of '{folder}': {command.action}, done.", data={"folder": folder})


async def use_notices(
    tx: Tx, caller: CommandCaller, command: NotifySelf | AcknowledgeNotice | ListNotices | CancelNotice
) -> CommandResult:
    """Carry out a command about notices, lines for the agent and not for people, and return the result."""
    if caller.notices is None:
        return refused(NOT_HERE, NO_NOTICES)
    reply = await caller.notices.answer(tx, caller.group, caller.turn, command, caller.request_id)
    return result_of(reply)


async def remember(tx: Tx, caller: CommandCaller, command: Remember) -> CommandResult:
    """Return the result of a context tool, which was called before this transaction, because it writes files.

    On a host without context tools the command is refused.
    """
    del tx, command
    return caller.early_result or refused(NOT_HERE, NO_CONTEXT)


def result_of(reply: Reply) -> CommandResult:
    """Return a service's reply as the result of a command."""
    return CommandResult(ok=reply.ok, code=reply.code, text=reply.text, data=reply.data)
