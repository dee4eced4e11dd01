"""Search the web for the agent of a group."""

from __future__ import annotations

import structlog

from agent_runner.wire.mailbox import SearchWeb
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Group, Turn
from orchestrator.ipc.command_context import CommandCaller, CommandResult, SearchCommands, refused
from orchestrator.proxies.web_search import MAX_SEARCH_MS, SearchingTurn
from orchestrator.store.database import Tx

log = structlog.get_logger(__name__)

NO_TURN = "An agent can search only while it answers: no turn of this group runs now."
TOO_LATE = "The search waited too long behind other commands: nothing was sent. Try again."


async def search_web(tx: Tx, caller: CommandCaller, command: SearchWeb) -> CommandResult:
    """Return the result of a web search, which was made before this transaction.

    A slow search service would otherwise block the database. Without a result, the command is refused.
    """
    del tx, command
    return caller.early_result or refused("not_available", "Nobody searches the web for this group.")


async def search(
    service: SearchCommands, group: Group, turn: Turn | None, command: SearchWeb, *, now_ms: int
) -> CommandResult:
    """Search the web for an agent's turn, and return the results, or why there are none.

    The search is refused outside of a running turn, and if the request has waited too long. Nothing is
    raised: an error would make the host try the request again.
    """
    if turn is None or turn.run_id is None or turn.ended_ms is not None:
        return refused("no_turn", NO_TURN)
    if command.asked_ms is not None and now_ms - command.asked_ms > MAX_SEARCH_MS:
        return refused("too_late", TOO_LATE)
    searching_turn = SearchingTurn(
        run_id=turn.run_id, turn_id=turn.id, kind=turn.kind, task_id=turn.task_id, role=turn.role
    )
    try:
        return CommandResult(text=await service.search(group, searching_turn, command.query))
    except BadRequest as refusal:
        return refused(refusal.code, str(refusal))
    except Exception:  # otherwise the host would make the search again
        log.exception("search.broke", group=group.folder)
        return refused("search_failed", "The search broke off by an error of Andy's own; it is in his log.")
