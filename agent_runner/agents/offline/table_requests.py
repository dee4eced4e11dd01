"""Requests that the table of intents answers by itself: by one command to the host, or by a sentence."""

from __future__ import annotations

import json
from dataclasses import replace

from agent_runner.agents.offline.handler import RequestHandler
from agent_runner.agents.offline.intents import ROWS
from agent_runner.wire import times
from agent_runner.wire.document import WireError
from agent_runner.wire.mailbox import ModelMissing, RefreshGroups, parse_command


class TableRequests(RequestHandler):
    """Handles what no other handler does."""

    async def answer(self) -> str:
        """Send the command of the intent's row, if it has one, and say the sentence that has its name."""
        if command := ROWS.get(self.parsed.intent, {}).get("request"):
            return await self._send(command)
        order, now = self.context.order, self.context.now
        return self.say(
            self.parsed.intent,
            text=self.slot("text"),
            name=order.assistant_name,
            sender=f" {self.context.sender}" if self.context.sender else "",
            clock=f"{now:%H:%M}",
            zone=order.timezone,
            day=times.say_long_day(now, self.parsed.language),
        )

    async def _send(self, command: dict[str, object]) -> str:
        """Send a command, its blanks filled with the slots, which fill those of the answer too."""
        slots = {"name": self.slot("folder"), **self.parsed.slots}
        fields = {
            name: value.format(**slots) if isinstance(value, str) else value
            for name, value in command.items()
        }
        try:
            request = parse_command(json.dumps(fields | {"requestId": self.context.next_id()}))
        except WireError as error:
            return self.say("not_possible", reason=str(error).removeprefix(f"{command['type']}."))
        reply = await self.request(request)
        return self.say(self.parsed.intent, **(reply.data | slots))

    async def do_show_groups(self) -> str:
        """List the chats that the host knows."""
        reply = await self.request(RefreshGroups())
        nowhere = self.say("not_registered")
        chats = reply.data.get("chats", [])
        lines = [f"• {chat['name']} ({chat['jid']}): {chat['folder'] or nowhere}" for chat in chats]
        return "\n".join([self.say("show_groups"), *lines]) if lines else self.say("no_groups")

    async def do_help(self) -> str:
        """Say what can be asked; in main also what only main may ask."""
        return await self.answer() + (self.say("help_main") if self.context.order.is_main else "")

    async def do_unknown(self) -> str:
        """Say that it was not understood, and to the owner, in main once a day, how more would be."""
        text, today = await self.answer(), self.context.now.date().isoformat()
        if self.context.state.explained_day != today:
            self.context.state = replace(self.context.state, explained_day=today)
            if self.context.order.is_main:
                return text + self.say("add_model")
            await self.context.host.ask(ModelMissing(request_id=self.context.next_id()))
        return text

    do_unknown_part = do_unknown
