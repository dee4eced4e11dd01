"""Requests that are one command to the host, as the table of intents has them; and the known chats."""

from __future__ import annotations

import json

from agent_runner.agents.offline.handler import RequestHandler
from agent_runner.agents.offline.intents import ROWS
from agent_runner.wire.document import WireError
from agent_runner.wire.mailbox import RefreshGroups, parse_command


class HostRequests(RequestHandler):
    """Handles what the host does."""

    async def send(self) -> str:
        """Send the command of the intent's row, its blanks filled with the slots; answer as the row says."""
        row = ROWS[self.parsed.intent]["request"]
        slots = {"name": self.slot("folder"), **self.parsed.slots}
        fields = {
            key: value.format(**slots) if isinstance(value, str) else value for key, value in row.items()
        }
        try:
            command = parse_command(json.dumps(fields | {"requestId": self.context.next_id()}))
        except WireError as error:
            return self.say("not_possible", reason=str(error).removeprefix(f"{row['type']}."))
        reply = await self.request(command)
        return self.say(self.parsed.intent, **(reply.data | slots))

    do_note = do_send_file = do_wake = do_add_group = do_drop_group = send

    async def do_show_groups(self) -> str:
        """List the chats that the host knows."""
        reply = await self.request(RefreshGroups())
        nowhere = self.say("not_registered")
        chats = reply.data.get("chats", [])
        lines = [f"• {chat['name']} ({chat['jid']}): {chat['folder'] or nowhere}" for chat in chats]
        return "\n".join([self.say("show_groups"), *lines]) if lines else self.say("no_groups")
