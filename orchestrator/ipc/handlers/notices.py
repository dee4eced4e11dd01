"""Notices: what an agent wants to be told later, and what it has dealt with."""

from __future__ import annotations

from agent_runner.wire.mailbox import AcknowledgeNotice, CancelNotice, ListNotices, NotifySelf
from orchestrator.ipc.handlers import CommandCaller, CommandResult, refused
from orchestrator.store.database import Tx

NOT_HERE = "No notices are kept here."


async def use_notices(
    tx: Tx, caller: CommandCaller, command: NotifySelf | AcknowledgeNotice | ListNotices | CancelNotice
) -> CommandResult:
    """Do it for the agent whose turn runs."""
    if caller.notices is None:
        return refused("not_here", NOT_HERE)
    reply = await caller.notices.answer(tx, caller.group, caller.turn, command, caller.request_id)
    return CommandResult(ok=reply.ok, code=reply.code, text=reply.text, data=reply.data)
