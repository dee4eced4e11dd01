"""Groups, which only main administers."""

from __future__ import annotations

from pydantic import ValidationError

from agent_runner.agents.offline.conversation import Asked
from agent_runner.agents.offline.intents import Wish
from agent_runner.ipc_client import HostClient
from agent_runner.wire.mailbox import RefreshGroups, RegisterGroup, Reply, UnregisterGroup


class Groups:
    """Asks the host, which decides by itself who may."""

    def __init__(self, host: HostClient, *, is_main: bool) -> None:
        self._host = host
        self._is_main = is_main

    async def change(self, wish: Wish, asked: Asked) -> str:
        if not self._is_main:
            return asked.say("only_main")
        try:
            return await self._change(wish, asked)
        except ValidationError as error:
            return asked.say("not_possible", reason=_reason(error))

    async def told(self, asked: Asked) -> str:
        if not self._is_main:
            return asked.say("only_main")
        reply = await self._host.ask(RefreshGroups())
        return _told(reply, asked) if reply.ok else reply.text

    async def _change(self, wish: Wish, asked: Asked) -> str:
        folder = wish.slot("folder")
        if wish.intent == "add_group":
            name = wish.slot("name") or folder
            done = asked.say("registered", name=name, folder=folder)
            command: RegisterGroup | UnregisterGroup = RegisterGroup(
                request_id=asked.next_id(), jid=wish.slot("jid"), folder=folder, name=name
            )
        else:
            done = asked.say("unregistered", folder=folder)
            command = UnregisterGroup(request_id=asked.next_id(), folder=folder)
        reply = await self._host.ask(command)
        return done if reply.ok else reply.text


def _told(reply: Reply, asked: Asked) -> str:
    chats = reply.data.get("chats", [])
    if not chats:
        return asked.say("no_groups")
    nowhere = asked.say("not_registered")
    lines = [f"• {chat['name']} ({chat['jid']}): {chat['folder'] or nowhere}" for chat in chats]
    return "\n".join([asked.say("groups"), *lines])


def _reason(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False)[0]
    return f"{first['loc'][0]}: {first['msg']}"
