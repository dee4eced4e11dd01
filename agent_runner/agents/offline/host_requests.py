"""What is one request to the host: groups, which only main administers, files, wakes and notes to itself."""

from __future__ import annotations

from pydantic import ValidationError

from agent_runner.agents.offline.conversation import RequestContext
from agent_runner.agents.offline.intents import ParsedRequest
from agent_runner.ipc_client import HostClient
from agent_runner.wire import mailbox
from agent_runner.wire.notify_self import refusal_of
from agent_runner.wire.times import Language

NEVER = 0


class HostRequests:
    """Asks the host, which decides by itself who may. A refusal is passed on in the host's words."""

    def __init__(self, host: HostClient, *, is_main: bool) -> None:
        self._host = host
        self._is_main = is_main

    async def change_group(self, parsed: ParsedRequest, context: RequestContext) -> str:
        """Register or unregister a group."""
        if not self._is_main:
            return context.say("only_main")
        folder = parsed.slot("folder")
        name = parsed.slot("name") or folder
        request_id = context.next_id()
        try:
            command: mailbox.RegisterGroup | mailbox.UnregisterGroup = (
                mailbox.RegisterGroup(request_id=request_id, jid=parsed.slot("jid"), folder=folder, name=name)
                if parsed.intent == "add_group"
                else mailbox.UnregisterGroup(request_id=request_id, folder=folder)
            )
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            return context.say("not_possible", reason=f"{first['loc'][0]}: {first['msg']}")
        done = "registered" if parsed.intent == "add_group" else "unregistered"
        reply = await self._host.ask(command)
        return context.say(done, name=name, folder=folder) if reply.ok else reply.text

    async def show_groups(self, _wish: ParsedRequest, context: RequestContext) -> str:
        """List the chats that the host knows."""
        if not self._is_main:
            return context.say("only_main")
        reply = await self._host.ask(mailbox.RefreshGroups())
        chats = reply.data.get("chats", [])
        if not reply.ok or not chats:
            return context.say("no_groups") if reply.ok else reply.text
        nowhere = context.say("not_registered")
        lines = [f"• {chat['name']} ({chat['jid']}): {chat['folder'] or nowhere}" for chat in chats]
        return "\n".join([context.say("groups"), *lines])

    async def keep_note(self, parsed: ParsedRequest, context: RequestContext) -> str:
        """Have the host keep a note to itself until it was said."""
        note = mailbox.NotifySelf(
            request_id=context.next_id(),
            message=parsed.slot("note"),
            category="reminder",
            persist_cross_session=True,
            expires_in_hours=NEVER,
        )
        if refusal := refusal_of(note):
            return refusal.text
        reply = await self._host.ask(note)
        return context.say("note_kept", note=parsed.slot("note")) if reply.ok else reply.text

    async def send_file(self, parsed: ParsedRequest, context: RequestContext) -> str:
        """Send a file of the group to its chat."""
        path = parsed.slot("path")
        if len(path) > mailbox.MAX_PATH_CHARS:
            return context.say("no_model")
        reply = await self._host.ask(mailbox.SendFile(request_id=context.next_id(), path=path))
        return context.say("file_sent", path=path) if reply.ok else reply.text

    async def set_wake(self, parsed: ParsedRequest, context: RequestContext) -> str:
        """Say when the agent is to wake by itself."""
        after = parsed.slot("after")
        if context.language is Language.KOREAN:
            after = after.replace("시간", "h").replace("분", "m").replace(" ", "")
        reply = await self._host.ask(mailbox.SetNextWake(next=after.strip(), reason="you asked for it"))
        minutes = reply.data.get("applied_minutes")
        if not reply.ok or not isinstance(minutes, int | float):
            return reply.text
        return context.say("wake_set", minutes=round(minutes))
