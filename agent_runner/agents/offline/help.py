"""Requests about the agent itself and the chats that it serves."""

from __future__ import annotations

from agent_runner.agents.offline.handler import RequestHandler
from agent_runner.wire.mailbox import ModelMissing, RefreshGroups


class Help(RequestHandler):
    """Says what can be asked, which chats there are, and that something was not understood."""

    async def do_show_groups(self) -> str:
        """List the chats that the host knows."""
        reply = await self.request(RefreshGroups())
        nowhere = self.say("not_registered")
        chats = reply.data.get("chats", [])
        lines = [f"• {chat['name']} ({chat['jid']}): {chat['folder'] or nowhere}" for chat in chats]
        return "\n".join([self.say("show_groups"), *lines]) if lines else self.say("no_groups")

    async def do_help(self) -> str:
        """Say what can be asked; in main also what only main may ask."""
        return await self.answer_of_row() + (self.say("help_main") if self.context.order.is_main else "")

    async def do_unknown(self) -> str:
        """Say that it was not understood, and to the owner, in main once a day, how more would be."""
        text, today = await self.answer_of_row(), self.context.now.date().isoformat()
        if self.context.state.explained_day != today:
            self.remember(explained_day=today)
            if self.context.order.is_main:
                return text + self.say("add_model")
            await self.context.host.ask(ModelMissing(request_id=self.context.next_id()))
        return text

    do_unknown_part = do_unknown
