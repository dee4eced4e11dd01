"""What a conversation is about: plans, decisions, files, kept before the transaction that answers."""

from __future__ import annotations

from agent_runner.wire.mailbox import Remember
from orchestrator.ipc.handlers import CommandCaller, CommandResult, refused
from orchestrator.store.database import Tx

NOT_HERE = "Nothing is kept of conversations here."
APART = "This run is apart from the group's conversation: it leaves no trace in it."


async def remember(tx: Tx, caller: CommandCaller, command: Remember) -> CommandResult:
    """Tell what came of it; it was done before this transaction, for files take a while."""
    del tx, command
    return caller.remembered or refused("not_here", NOT_HERE)
