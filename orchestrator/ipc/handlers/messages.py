"""`messages/`: an agent says something now, before its turn ends."""

from __future__ import annotations

import hashlib

from agent_runner.wire.mailbox import SendMessage
from orchestrator.ipc.handlers import Answer, Caller
from orchestrator.models import ChatJid, Turn
from orchestrator.store import chats, outbox, turns
from orchestrator.store.database import Tx


async def send_message(tx: Tx, caller: Caller, command: SendMessage) -> Answer:
    """Queue a text for the caller's chat or, from main, any chat."""
    jid = ChatJid(command.chat_jid) if command.chat_jid else caller.group.jid
    await chats.see(tx, jid, name=None, channel=None, is_group=False, at_ms=None)
    turn = await turns.running_of(tx, caller.group.folder)
    is_new = await outbox.add(
        tx,
        chat_jid=jid,
        folder=caller.group.folder,
        text=command.text,
        dedupe_key=_key(caller, jid, command.text, turn),
        turn_id=turn.id if turn is not None and jid == turn.chat_jid else None,
        now_ms=caller.now_ms,
    )
    if not is_new:
        return Answer(code="said_before", text="You have said this in this turn; it is not sent twice.")
    return Answer(text="The message is on its way.")


def _key(caller: Caller, jid: ChatJid, text: str, turn: Turn | None) -> str:
    """A turn says a sentence once, so that a turn tried again does not repeat itself."""
    if turn is None:
        return f"say:{caller.group.folder}:{caller.request_id}"
    digest = hashlib.sha256(f"{jid} {text}".encode()).hexdigest()[:20]
    return f"say:{turn.id}:{digest}"
