"""Send a text, a poll or an emoji to a chat at once, before the turn of the agent ends."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from agent_runner.wire import mailbox
from agent_runner.wire.mailbox import ModelMissing, ReactToMessage, SendMessage, SendPoll
from agent_runner.wire.unicode_forms import composed, is_emoji
from orchestrator.base.clock import local_iso
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.polls import Poll
from orchestrator.domain.protocols import Feature
from orchestrator.domain.values import ChatJid, Message, MessageId, Turn, is_hook
from orchestrator.groups import owner
from orchestrator.ipc.command_context import CommandCaller, CommandResult, refused
from orchestrator.store.conversation import chats, messages, outbox, polls
from orchestrator.store.database import Tx

MAX_WAITING = 100
"""Texts of a group that may wait to be sent."""
MAX_A_TURN = 100
"""Texts that an agent may send in one turn."""
MAX_OUTSIDE_AN_HOUR = 30
"""Texts that an agent may send in an hour outside of its turns, as a background program of its does."""
HOUR_MS = 3_600_000
MAX_POLLS_AN_HOUR = 20
"""Questions with options that a group is asked in an hour, at most."""
MIN_OPEN_MS, MAX_OPEN_MS = 60_000, 90 * 24 * HOUR_MS
ASKED = (
    "The question is on its way. The first answer begins a turn by itself, and so does the end if it has one;"
    " you read all other answers with the next message, each with who gave it."
)
MAX_LOOKED_AT = 200
"""The newest messages of a chat that are searched for one by its text."""
NO_MODEL = (
    "People ask for more than I understand without a language model. To add one, put ANTHROPIC_API_KEY=… or "
    "CLAUDE_CODE_OAUTH_TOKEN=… into the file .env of Andy's home; it is taken at once. "
    "I say this once a day at most."
)


async def send_message(tx: Tx, caller: CommandCaller, command: SendMessage) -> CommandResult:
    """Queue a text for a chat.

    The command was authorised before: the chat is one of the caller's group or, from main, any. Without a
    chat in the command, the text goes to the chat that the turn answers. In one turn, the same text is sent
    to a chat only once. The command is refused when too many texts wait or were sent.
    """
    jid = ChatJid(command.chat_jid) if command.chat_jid else caller.chat
    turn = caller.turn
    if (why_not := await _too_many(tx, caller, turn)) is not None:
        return refused("too_many", why_not)
    # The outbox refers to a known chat, and main may write to one that was never seen.
    await chats.upsert(tx, jid, name=None, channel=None, is_group=False, at_ms=None)
    is_new = await outbox.add(
        tx,
        chat_jid=jid,
        folder=caller.group.folder,
        text=command.text,
        dedupe_key=_dedupe_key(caller, jid, command.text, turn),
        # A text to another chat than the turn's does not count as one of the turn's messages.
        turn_id=turn.id if turn is not None and jid == turn.chat_jid else None,
        now_ms=caller.now_ms,
    )
    if not is_new:
        return CommandResult(
            code="said_before", text="You have said this in this turn; it is not sent twice."
        )
    return CommandResult(text="The message is on its way.")


async def send_poll(tx: Tx, caller: CommandCaller, command: SendPoll) -> CommandResult:
    """Queue a poll, a question with options, for the chat that the turn answers.

    The same poll is sent once in a turn. The command is refused when too many texts wait, or too many texts
    or polls were sent.
    """
    jid, turn = caller.chat, caller.turn
    try:
        poll = _poll_of(caller, command)
    except BadRequest as error:
        return refused("bad_arguments", str(error))
    why_not = await _too_many(tx, caller, turn)
    now_ms = caller.now_ms
    count = await polls.count_since(tx, caller.group.folder, now_ms - HOUR_MS, now_ms=now_ms)
    if why_not is None and count >= MAX_POLLS_AN_HOUR:
        why_not = f"{MAX_POLLS_AN_HOUR} questions were asked in this hour: wait."
    if why_not is not None:
        return refused("too_many", why_not)
    # The rows below refer to the row of their chat, which may be missing yet.
    await chats.upsert(tx, jid, name=None, channel=None, is_group=False, at_ms=None)
    dedupe_key = "poll:" + _dedupe_key(caller, jid, poll.text, turn)
    is_new = await outbox.add(
        tx,
        chat_jid=jid,
        folder=caller.group.folder,
        text=poll.text,
        dedupe_key=dedupe_key,
        turn_id=turn.id if turn is not None and jid == turn.chat_jid else None,
        now_ms=caller.now_ms,
    )
    outgoing = await outbox.by_key(tx, dedupe_key)
    if not is_new or outgoing is None:
        return CommandResult(code="said_before", text="You have asked this in this turn; it is asked once.")
    await polls.add(tx, replace(poll, message_id=outgoing.message_id))
    return CommandResult(text=ASKED)


def _poll_of(caller: CommandCaller, command: SendPoll) -> Poll:
    """Return the poll that a command describes, without its message's id, which is not known yet.

    Raises:
        BadRequest: a part of the command is invalid; the text says which.
    """
    question = " ".join(command.question.split())
    options = tuple(" ".join(option.split()) for option in command.options)
    if not question or len(question) > mailbox.MAX_QUESTION_CHARS:
        raise BadRequest(f"question: give 1 to {mailbox.MAX_QUESTION_CHARS} characters.")
    if not mailbox.MIN_OPTIONS <= len(options) <= mailbox.MAX_OPTIONS:
        raise BadRequest(f"options: give {mailbox.MIN_OPTIONS} to {mailbox.MAX_OPTIONS} of them.")
    if not all(0 < len(option) <= mailbox.MAX_OPTION_CHARS for option in options):
        raise BadRequest(f"options: each has 1 to {mailbox.MAX_OPTION_CHARS} characters.")
    if len({composed(option).casefold() for option in options}) < len(options):
        raise BadRequest("options: two of them are the same.")
    ends_ms = None
    if command.until is not None:
        ends_ms = caller.read_time(command.until, now_ms=caller.asked_ms, zone=caller.zone)
        if not MIN_OPEN_MS <= ends_ms - caller.now_ms <= MAX_OPEN_MS:
            raise BadRequest("until: give a time from one minute to 90 days from now.")
    return Poll(
        question=question,
        options=options,
        is_multiple=command.is_multiple,
        folder=caller.group.folder,
        chat_jid=caller.chat,
        message_id=MessageId(""),
        role=caller.role,
        created_ms=caller.now_ms,
        ends_ms=ends_ms,
    )


async def react(tx: Tx, caller: CommandCaller, command: ReactToMessage) -> CommandResult:
    """Queue an emoji as a reaction to a message of the turn's chat. An empty emoji removes the reaction.

    The command is refused if the text is not one emoji, outside of a turn of a chat, in a chat whose
    messenger has no reactions, when no such message is found, and when too many texts wait or were sent.
    """
    emoji, turn = command.emoji.strip(), caller.turn
    if emoji and not is_emoji(emoji):
        return refused("bad_arguments", "emoji: give one emoji and nothing else, or none to take yours away.")
    if turn is None or turn.chat_jid not in caller.group.chats:
        return refused("not_here", "You can react in a turn that answers a chat, and only there.")
    if Feature.REACTIONS not in caller.features_of(turn.chat_jid):
        return refused("not_here", "This chat shows no reactions: say it in words.")
    if (why_not := await _too_many(tx, caller, turn)) is not None:
        return refused("too_many", why_not)
    target = await _reacted_to(tx, turn, command.message)
    if target is None:
        return refused("unknown_message", "No message of others in this chat has these words.")
    await outbox.add(
        tx,
        chat_jid=turn.chat_jid,
        folder=caller.group.folder,
        text=emoji,
        dedupe_key=f"react:{caller.group.folder}:{caller.request_id}",
        turn_id=turn.id,
        reacts_to=target.id,
        now_ms=caller.now_ms,
    )
    return CommandResult(text="Your emoji is on its way." if emoji else "Your emoji is taken away.")


async def _reacted_to(tx: Tx, turn: Turn, words: str) -> Message | None:
    """Return the newest message of a person in the turn's chat that contains `words`; None if there is none.

    With empty `words`, return the newest message that the turn answers. Left out are messages without text,
    and messages of hooks: a program sent them to the host, so no messenger has them.
    """
    if words.strip():
        wanted = " ".join(composed(words).casefold().split())
        newest = await messages.newest(tx, turn.chat_jid, limit=MAX_LOOKED_AT)
        candidates = [
            message for message in newest if wanted in " ".join(composed(message.text).casefold().split())
        ]
    else:
        candidates = await messages.requests_of(tx, turn.id, limit=MAX_LOOKED_AT)
    by_people = [
        message
        for message in candidates
        if not (message.is_bot_message or is_hook(message.sender)) and message.text
    ]
    return by_people[-1] if by_people else None  # both lists are oldest first


async def notify_model_missing(tx: Tx, caller: CommandCaller, command: ModelMissing) -> CommandResult:
    """Notify the owner's group, main, that a language model would understand more, and how to add one.

    The notification is sent once a day at most, whichever group the command comes from.
    """
    del command
    day = local_iso(caller.now_ms, caller.zone)[:10]  # the date
    is_new = await owner.notify(tx, NO_MODEL, about=f"no model {day}", now_ms=caller.now_ms)
    return CommandResult(text="Main is told." if is_new else "Main was told today.")


async def _too_many(tx: Tx, caller: CommandCaller, turn: Turn | None) -> str | None:
    """Return why a group may send no more texts now; None when it may.

    The owner is notified if too many texts were sent outside of turns.
    """
    if (await outbox.waiting_of(tx, caller.group.folder)).count >= MAX_WAITING:
        return f"{MAX_WAITING} messages are on their way already: wait until they are sent."
    if turn is not None and await outbox.count_released(tx, turn.id) >= MAX_A_TURN:
        return f"You have sent {MAX_A_TURN} messages in this turn: say the rest in your answer."
    if turn is None:
        folder, now_ms = caller.group.folder, caller.now_ms
        sent = await outbox.count_outside_turns(tx, folder, since_ms=now_ms - HOUR_MS, now_ms=now_ms)
        if sent >= MAX_OUTSIDE_AN_HOUR:
            await _notify_of_flood(tx, caller)
            return f"{MAX_OUTSIDE_AN_HOUR} messages that nobody had asked for were sent in this hour: wait."
    return None


async def _notify_of_flood(tx: Tx, caller: CommandCaller) -> None:
    """Notify the owner, once a day per group, that an agent sends too many messages outside of its turns."""
    folder, day = caller.group.folder, local_iso(caller.now_ms, caller.zone)[:10]  # the date
    text = (
        f"⚠️ The agent of '{folder}' sends messages that nobody asked for: more than {MAX_OUTSIDE_AN_HOUR} "
        f"in an hour are not sent. 'andy audit --group {folder}' lists them."
    )
    await owner.notify(tx, text, about=f"messages outside of turns {folder} {day}", now_ms=caller.now_ms)


def _dedupe_key(caller: CommandCaller, jid: ChatJid, text: str, turn: Turn | None) -> str:
    """Return the key by which the outbox recognises a repeated text, which it does not send again.

    In a turn, it is the same for equal texts to a chat, so that a turn that is tried again does not repeat
    itself. Outside of a turn, each request has its own.
    """
    if turn is None:
        return f"{outbox.SAID}{caller.group.folder}:{caller.request_id}"
    digest = hashlib.sha256(f"{jid} {text}".encode()).hexdigest()[:20]
    return f"{outbox.SAID}{turn.id}:{digest}"
