"""The dashboard: what an agent does with it, and what it is told of it."""

from __future__ import annotations

from agent_runner.wire.mailbox import Reply, ShowDashboard, UseDashboard
from orchestrator.ipc.handlers import CommandCaller, CommandResult, refused
from orchestrator.store.database import Tx

NOT_HERE = "There are no dashboards here."


async def use_dashboard(tx: Tx, caller: CommandCaller, command: UseDashboard) -> CommandResult:
    """Use a tool for the agent whose turn runs; whose that is, the store tells."""
    if caller.dashboards is None:
        return refused("not_here", NOT_HERE)
    reply = await caller.dashboards.answer(
        tx, caller.group, caller.turn, command.tool, command.arguments, caller.request_id
    )
    return _answer(reply)


async def show_dashboard(tx: Tx, caller: CommandCaller, command: ShowDashboard) -> CommandResult:
    del command
    if caller.dashboards is None:
        return refused("not_here", NOT_HERE)
    return _answer(await caller.dashboards.show(tx, caller.group, caller.request_id))


def _answer(reply: Reply) -> CommandResult:
    return CommandResult(ok=reply.ok, code=reply.code, text=reply.text, data=reply.data)
