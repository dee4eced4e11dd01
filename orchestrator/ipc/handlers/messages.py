"""Send a text to a chat at once, before the turn of the agent ends."""

from __future__ import annotations

import hashlib

from agent_runner.wire.mailbox import ModelMissing, SendMessage
from orchestrator.base.clock import local_iso
from orchestrator.domain.values import ChatJid, Turn
from orchestrator.groups import owner
from orchestrator.ipc.command_context import CommandCaller, CommandResult, refused
from orchestrator.store import chats, outbox
from orchestrator.store.database import Tx

MAX_WAITING = 100
"""Texts of a group that may wait to be sent."""
MAX_A_TURN = 100
"""Texts that an agent may send in one turn."""
MAX_OUTSIDE_AN_HOUR = 30
"""Texts that an agent may send in an hour outside of its turns, as a program that it left running does."""
HOUR_MS = 3_600_000
NO_MODEL = (
    "People ask for more than I understand without a language model. To add one, put ANTHROPIC_API_KEY=… or "
    "CLAUDE_CODE_OAUTH_TOKEN=… into the file .env of Andy's home; it is taken at once. "
    "I say this once a day at most."
)


async def send_message(tx: Tx, caller: CommandCaller, command: SendMessage) -> CommandResult:
    """Queue a text for a chat of the caller's group or, from main, any chat; refuse it when too many wait."""
    jid = ChatJid(command.chat_jid) if command.chat_jid else caller.chat
    turn = caller.turn
    if (why_not := await _too_many(tx, caller, turn)) is not None:
        return refused("too_many", why_not)
    await chats.upsert(tx, jid, name=None, channel=None, is_group=False, at_ms=None)
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
        return CommandResult(
            code="said_before", text="You have said this in this turn; it is not sent twice."
        )
    return CommandResult(text="The message is on its way.")


async def notify_model_missing(tx: Tx, caller: CommandCaller, command: ModelMissing) -> CommandResult:
    """Notify main, once a day for all groups, that a model would understand more, and how to add one."""
    del command
    day = local_iso(caller.now_ms, caller.zone)[:10]
    is_new = await owner.notify(tx, NO_MODEL, about=f"no model {day}", now_ms=caller.now_ms)
    return CommandResult(text="Main is told." if is_new else "Main was told today.")


async def _too_many(tx: Tx, caller: CommandCaller, turn: Turn | None) -> str | None:
    if (await outbox.waiting_of(tx, caller.group.folder)).count >= MAX_WAITING:
        return f"{MAX_WAITING} messages are on their way already: wait until they are sent."
    if turn is not None and (await outbox.said_in(tx, turn.id)).count >= MAX_A_TURN:
        return f"You have sent {MAX_A_TURN} messages in this turn: say the rest in your answer."
    if turn is None:
        folder, since_ms = caller.group.folder, caller.now_ms - HOUR_MS
        if await outbox.said_outside_turns(tx, folder, since_ms=since_ms) >= MAX_OUTSIDE_AN_HOUR:
            await _notify_of_flood(tx, caller)
            return f"{MAX_OUTSIDE_AN_HOUR} messages that nobody had asked for were sent in this hour: wait."
    return None


async def _notify_of_flood(tx: Tx, caller: CommandCaller) -> None:
    """Notify the owner, once a day and group, that an agent sends more than it may."""
    folder, day = caller.group.folder, local_iso(caller.now_ms, caller.zone)[:10]
    text = (
        f"⚠️ The agent of '{folder}' sends messages that nobody asked for: more than {MAX_OUTSIDE_AN_HOUR} "
        f"in an hour are not sent. 'andy audit --group {folder}' lists them."
    )
    await owner.notify(tx, text, about=f"messages outside of turns {folder} {day}", now_ms=caller.now_ms)


def _key(caller: CommandCaller, jid: ChatJid, text: str, turn: Turn | None) -> str:
    """Return what two equal texts of a turn share, so that a turn tried again does not repeat itself."""
    if turn is None:
        return f"say:{caller.group.folder}:{caller.request_id}"
    digest = hashlib.sha256(f"{jid} {text}".encode()).hexdigest()[:20]
    return f"say:{turn.id}:{digest}"
