"""Groups, which only main administers."""

from __future__ import annotations

from pydantic import ValidationError

from agent_runner.agents.offline.asked import Asked
from agent_runner.agents.offline.intents import AddGroup, DropGroup
from agent_runner.host import Host
from agent_runner.wire.mailbox import RefreshGroups, RegisterGroup, Reply, UnregisterGroup


class Groups:
    """Asks the host, which decides by itself who may."""

    def __init__(self, host: Host, *, is_main: bool) -> None:
        self._host = host
        self._is_main = is_main

    async def change(self, wish: AddGroup | DropGroup, asked: Asked) -> str:
        if not self._is_main:
            return asked.words.only_main
        try:
            return await self._change(wish, asked)
        except ValidationError as error:
            return asked.words.not_possible.format(reason=_reason(error))

    async def told(self, asked: Asked) -> str:
        if not self._is_main:
            return asked.words.only_main
        reply = await self._host.ask(RefreshGroups())
        return _told(reply, asked) if reply.ok else reply.text

    async def _change(self, wish: AddGroup | DropGroup, asked: Asked) -> str:
        if isinstance(wish, AddGroup):
            done = asked.words.registered.format(name=wish.name, folder=wish.folder)
            command: RegisterGroup | UnregisterGroup = RegisterGroup(
                request_id=asked.request_id, jid=wish.jid, folder=wish.folder, name=wish.name
            )
        else:
            done = asked.words.unregistered.format(folder=wish.folder)
            command = UnregisterGroup(request_id=asked.request_id, folder=wish.folder)
        reply = await self._host.ask(command)
        return done if reply.ok else reply.text


def _told(reply: Reply, asked: Asked) -> str:
    chats = reply.data.get("chats", [])
    if not chats:
        return asked.words.no_groups
    lines = [
        f"• {chat['name']} ({chat['jid']}): {chat['folder'] or asked.words.not_registered}" for chat in chats
    ]
    return "\n".join([asked.words.groups, *lines])


def _reason(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False)[0]
    return f"{first['loc'][0]}: {first['msg']}"
