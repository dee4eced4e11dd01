"""Search the web for the agent of a group."""

from __future__ import annotations

from agent_runner.wire.mailbox import SearchWeb
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Group, Turn
from orchestrator.ipc.command_context import CommandCaller, CommandResult, SearchCommands, refused
from orchestrator.proxies.web_search import SearchingTurn
from orchestrator.store.database import Tx

NO_TURN = "Web search is for an agent at work: no turn of this group runs now."


async def search_web(tx: Tx, caller: CommandCaller, command: SearchWeb) -> CommandResult:
    """Return what was found before this transaction, which a slow service would have held up."""
    del tx, command
    return caller.early_result or refused("not_available", "Nobody searches the web for this group.")


async def search(
    service: SearchCommands, group: Group, turn: Turn | None, command: SearchWeb
) -> CommandResult:
    """Search, and return what was found or why nothing was."""
    if turn is None or turn.run_id is None or turn.ended_ms is not None:
        return refused("no_turn", NO_TURN)
    asking = SearchingTurn(run_id=turn.run_id, turn_id=turn.id, kind=turn.kind, task_id=turn.task_id)
    try:
        return CommandResult(text=await service.search(group, asking, command.query))
    except BadRequest as refusal:
        return refused(refusal.code, str(refusal))
