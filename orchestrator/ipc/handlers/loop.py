"""The loop: an agent says when it wakes next; main's switches loops."""

from __future__ import annotations

from agent_runner.wire.mailbox import ControlLoop, SetNextWake
from orchestrator.domain.errors import BadRequest
from orchestrator.ipc.handlers import CommandCaller, CommandResult, refused
from orchestrator.store.database import Tx

NOT_HERE = "There are no loops here."


async def set_next_wake(tx: Tx, caller: CommandCaller, command: SetNextWake) -> CommandResult:
    """Keep what is asked for until the turn ends, and tell what it comes to."""
    if caller.loops is None:
        return refused("not_here", NOT_HERE)
    try:
        found = await caller.loops.set_next_wake(tx, caller.group, command.next, command.reason)
    except BadRequest as error:
        return refused(error.code, str(error))
    return CommandResult(
        text=found.text, data={"applied_minutes": found.applied_ms / 60_000, "bounded": found.is_bounded}
    )


async def control_loop(tx: Tx, caller: CommandCaller, command: ControlLoop) -> CommandResult:
    """Switch a loop, let it rest, or wake it."""
    if caller.loops is None:
        return refused("not_here", NOT_HERE)
    folder = command.target_folder or caller.group.folder
    try:
        folder = await caller.loops.act(tx, folder, command.action, command.reason)
    except BadRequest as error:
        return refused(error.code, str(error))
    return CommandResult(text=f"The loop of '{folder}': {command.action}, done.", data={"folder": folder})
