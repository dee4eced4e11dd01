"""Requests that are one command to the host, as the table of intents has them; and the known chats."""

from __future__ import annotations

import json

from agent_runner.agents.offline.conversation import RequestContext
from agent_runner.agents.offline.intents import ROWS, ParsedRequest
from agent_runner.wire.document import WireError
from agent_runner.wire.mailbox import RefreshGroups, parse_command


async def send(parsed: ParsedRequest, context: RequestContext) -> str:
    """Send the command of an intent's row, its blanks filled with the slots, and answer as the row says."""
    template = ROWS[parsed.intent].request
    slots = {"name": parsed.slot("folder"), **parsed.slots}
    fields = {
        name: value.format(**slots) if isinstance(value, str) else value for name, value in template.items()
    }
    try:
        command = parse_command(json.dumps(fields | {"requestId": context.next_id()}))
    except WireError as error:
        return context.say("not_possible", reason=str(error).removeprefix(f"{template['type']}."))
    reply = await context.request(command)
    return context.say(parsed.intent, **(reply.data | slots))


async def show_groups(parsed: ParsedRequest, context: RequestContext) -> str:
    """List the chats that the host knows."""
    reply = await context.request(RefreshGroups())
    chats = reply.data.get("chats", [])
    if not chats:
        return context.say("no_groups")
    nowhere = context.say("not_registered")
    lines = [f"• {chat['name']} ({chat['jid']}): {chat['folder'] or nowhere}" for chat in chats]
    return "\n".join([context.say(parsed.intent), *lines])
