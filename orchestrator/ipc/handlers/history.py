"""Find earlier messages of the chats of the caller's group."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from agent_runner.wire.mailbox import SearchHistory
from orchestrator.base.clock import local_minute
from orchestrator.base.redaction import redact
from orchestrator.base.tables import short
from orchestrator.domain.values import Group
from orchestrator.ipc.command_context import CommandCaller, CommandResult, refused
from orchestrator.store.conversation import message_search
from orchestrator.store.conversation.message_search import BadSearch
from orchestrator.store.database import Tx

TEXT_CHARS = 400
"""Characters of one message; fifty of them are about 6,000 tokens."""


async def search_history(tx: Tx, caller: CommandCaller, command: SearchHistory) -> CommandResult:
    """Return the result of the search, which ran before this transaction so as not to hold it up."""
    del tx, command
    assert caller.early_result is not None
    return caller.early_result


async def search(tx: Tx, group: Group, command: SearchHistory, *, zone: ZoneInfo) -> CommandResult:
    """Search the messages of the requesting group, and return a line for each message found, newest first.

    Messages of other groups are not searched, not even for main. Secrets are removed from the lines.
    """
    try:
        terms = message_search.parse_terms(command.query)
    except BadSearch as error:
        return refused(error.code, str(error))
    matches = await message_search.find(
        tx, terms, folder=group.folder, before_seq=command.before, limit=command.limit, is_for_agent=True
    )
    lines = [
        f"{message.seq}  {local_minute(message.sent_ms, zone)}  {message.sender_name}: "
        f"{short(redact(message.text), TEXT_CHARS)}"
        for message in matches
    ]
    if len(matches) == command.limit:
        lines.append(f"There may be more: search again with before={matches[-1].seq}.")
    return CommandResult(text="\n".join(lines) or "No message of this group has these words.")
