"""Read the updates for a bot: a message, an edit, a reaction. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

import telegram
from telegram import Message, MessageEntity, ReactionTypeEmoji, Update

from orchestrator.channels.telegram import incoming_text

KINDS = ("message", "edited_message", "message_reaction", "poll_answer")
"""The kinds of update that are requested. A bot receives reactions only where it is an administrator."""


MAX_OPTIONS = 100
"""Options of a poll that are read; Telegram has no more than a dozen."""
_TYPES: dict[object, type] = {"bool": bool, "int": int, "str": str}


def _check_types(instance: Any) -> None:
    """Check that each field of a dataclass has a value of its declared type, if that is in `_TYPES`.

    The library passes on whatever a server sends.

    Raises:
        TypeError: a value is of another type, or is an integer that is too large for the database.
    """
    for field in fields(instance):
        # `field.type` is the annotation as a text, such as `int`.
        value, expected = getattr(instance, field.name), _TYPES.get(field.type)
        # The database has integers of 64 bits. With `type()`, because a bool is also an `int`.
        is_too_large = expected is int and type(value) is int and abs(value) >= 2**63
        if expected is not None and (type(value) is not expected or is_too_large):
            raise TypeError(f"{field.name} is no {field.type} that can be used")


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramFile:
    """A file of a message, as `attachments.FileFacts` describes it, with the id that it is fetched by."""

    file_id: str
    kind: str
    mime: str
    name: str
    size: int
    seconds: int = 0

    def __post_init__(self) -> None:
        """Raise `TypeError` for a field of another type: the library passes on whatever a server sends."""
        _check_types(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatUpdate:
    """One event in a chat. `answers` and `edits` are ids of messages; 0 for none."""

    update_id: int
    chat_id: int
    chat_name: str
    is_group: bool
    message_id: str
    sender_id: int
    sender_name: str
    text: str = ""
    sent_ms: int = 0
    answers: int = 0
    answered_text: str = ""
    answered_name: str = ""
    answers_bot: bool = False
    is_call: bool = False
    edits: int = 0
    emoji: str = ""
    """The emoji that it puts under the message that it answers."""
    file: TelegramFile | None = None
    thread: str = ""
    ignored: str = ""
    """The reason why this message never triggers the agent; empty if it may."""

    def __post_init__(self) -> None:
        """Raise `TypeError` for a field of another type: the library passes on whatever a server sends."""
        _check_types(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMove:
    """A group became a supergroup, which has another address."""

    old: int
    new: int

    def __post_init__(self) -> None:
        """Raise `TypeError` for a field of another type: the library passes on whatever a server sends."""
        _check_types(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PollAnswer:
    """The options that somebody has chosen in a poll of the bot's; empty if the answer was withdrawn."""

    update_id: int
    poll_id: str
    sender_id: int
    sender_name: str
    chosen: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raise `TypeError` for a field of another type: the library passes on whatever a server sends."""
        _check_types(self)
        if not all(type(index) is int and 0 <= index < MAX_OPTIONS for index in self.chosen):
            raise TypeError("chosen holds no numbers of options")


def read(
    update: Update, *, bot_id: int, username: str, assistant: str
) -> ChatUpdate | ChatMove | PollAnswer | None:
    """Return the content of an update: an event in a chat, a group's move to another address, or a vote.

    None for an update without meaning here, such as a pinned message. `username` is the bot's name without
    `@`; `assistant` is the name by which people address it.
    """
    if update.poll_answer is not None:
        return _poll_answer(update, update.poll_answer)
    if update.message_reaction is not None:
        return _reaction(update)
    message = update.message or update.edited_message
    is_edit = update.edited_message is not None
    if message is None or (is_edit and message.location is not None):
        return None  # a live location moves with its sender, many times a minute
    # A "move" to the chat's present address is ignored: carried out, it would leave the group without any.
    if message.migrate_to_chat_id not in (None, 0, message.chat_id):
        return ChatMove(old=message.chat_id, new=message.migrate_to_chat_id)
    if message.migrate_from_chat_id not in (None, 0, message.chat_id):
        return ChatMove(old=message.migrate_from_chat_id, new=message.chat_id)
    return _message(update, message, is_edit=is_edit, bot=_Bot(bot_id, username, f"@{assistant}"))


@dataclass(frozen=True, slots=True)
class _Bot:
    """The bot that received an update, and how people address it."""

    id: int
    username: str
    call: str
    """The text that calls the assistant."""


def _message(update: Update, message: Message, *, is_edit: bool, bot: _Bot) -> ChatUpdate | None:
    """Return a new message or an edit as an event in its chat; None for one without content.

    A message of an unknown kind gets a text that says so, and never triggers the agent; an edit of such a
    message has no content. Of an edit only the text is used, not the file.
    """
    text, file = _text(message, bot), _file(message)
    unknown_kind = "" if text or file is not None or is_edit else incoming_text.unknown_kind(message)
    if not text and file is None and not unknown_kind:
        return None
    # For somebody who writes as a channel or a group, the id is that of the channel or group, and the name
    # is that of the account, if Telegram sends one.
    sender = message.sender_chat or message.from_user
    author = message.from_user or message.sender_chat
    # With its time in the id, each edit of a message is a message of its own.
    edited_s = int(message.edit_date.timestamp()) if message.edit_date else 0
    return ChatUpdate(
        update_id=update.update_id,
        chat_id=message.chat_id,
        chat_name=message.chat.effective_name or "",
        is_group=message.chat.type != "private",
        message_id=f"{message.message_id}.{edited_s}" if is_edit else str(message.message_id),
        sender_id=sender.id if sender is not None else 0,
        sender_name=(author.full_name if author is not None else "") or "",
        text=text or (f"[something that cannot be read here: {unknown_kind}]" if unknown_kind else ""),
        ignored=incoming_text.UNKNOWN_KIND if unknown_kind else "",
        sent_ms=int(message.date.timestamp() * 1000),
        is_call=_calls(message, bot),
        edits=message.message_id if is_edit else 0,
        file=None if is_edit else file,
        thread=str(message.message_thread_id or "") if message.is_topic_message else "",
        **_answered(message, bot),
    )


def _text(message: Message, bot: _Bot) -> str:
    """Return the content of a message in words; mentions of the bot become the assistant's name."""
    text = incoming_text.text_of(message)
    if not (message.text or message.caption):
        return text
    entities = message.entities if message.text else message.caption_entities
    return incoming_text.with_call(text, entities, bot_id=bot.id, username=bot.username, call=bot.call)


def _answered(message: Message, bot: _Bot) -> dict[str, Any]:
    """Return the fields of `ChatUpdate` about the message that is answered; empty if none is."""
    answered = message.reply_to_message
    # In a topic each message formally answers the one that opened it: ignore that.
    if answered is None or answered.forum_topic_created is not None:
        return {}
    author = answered.from_user
    return {
        "answers": answered.message_id,
        "answered_text": incoming_text.text_of(answered),
        "answered_name": author.full_name if author else "",
        "answers_bot": author is not None and author.id == bot.id,
    }


def _calls(message: Message, bot: _Bot) -> bool:
    """Return whether a message mentions the bot, or gives a command that names it: `/clear@andy_bot`."""
    kinds: list[str | None] = [MessageEntity.MENTION, MessageEntity.TEXT_MENTION, MessageEntity.BOT_COMMAND]
    marked_parts = {**message.parse_entities(kinds), **message.parse_caption_entities(kinds)}
    own_name = f"@{bot.username}".lower()
    for entity, text in marked_parts.items():
        if entity.type == "text_mention" and entity.user is not None and entity.user.id == bot.id:
            return True
        if entity.type in {"mention", "bot_command"} and text.lower().endswith(own_name):
            return True
    return False


def _reaction(update: Update) -> ChatUpdate | None:
    """Return a reaction to a message as an event in its chat.

    None if the reaction was removed, is no emoji, or has no known sender. Of several emoji the last is used.
    """
    reaction = update.message_reaction
    assert reaction is not None
    emojis = [
        reaction_type.emoji
        for reaction_type in reaction.new_reaction
        if isinstance(reaction_type, ReactionTypeEmoji)
    ]
    if not emojis or reaction.user is None:
        return None
    return ChatUpdate(
        update_id=update.update_id,
        chat_id=reaction.chat.id,
        chat_name=reaction.chat.effective_name or "",
        is_group=reaction.chat.type != "private",
        message_id=f"r{update.update_id}",
        sender_id=reaction.user.id,
        sender_name=reaction.user.full_name,
        sent_ms=int(reaction.date.timestamp() * 1000),
        answers=reaction.message_id,
        emoji=emojis[-1],
    )


def _poll_answer(update: Update, answer: telegram.PollAnswer) -> PollAnswer | None:
    """Return the vote in an update, with the options that were chosen; None if the voter is not known."""
    # Somebody who writes as a channel or a group also votes as that.
    voter = answer.voter_chat or answer.user
    if voter is None:
        return None
    name = answer.voter_chat.effective_name if answer.voter_chat is not None else voter.full_name
    return PollAnswer(
        update_id=update.update_id,
        poll_id=answer.poll_id,
        sender_id=voter.id,
        sender_name=name or "",
        chosen=tuple(dict.fromkeys(answer.option_ids)),
    )


def _file(message: Message) -> TelegramFile | None:
    """Return the file of a message: a picture, a sound, a film, a sticker or a document. None without one."""
    if message.photo:
        # Telegram sends a picture in several sizes, the largest last.
        largest_photo = message.photo[-1]
        return TelegramFile(
            file_id=largest_photo.file_id,
            kind="image",
            mime="image/jpeg",
            name="",
            size=largest_photo.file_size or 0,
        )
    for kind, part in (
        ("voice note", message.voice),
        ("audio", message.audio),
        ("video", message.video),
        ("video", message.video_note),
        ("sticker", message.sticker),
        ("document", message.document),
    ):
        if part is not None:
            return TelegramFile(
                file_id=part.file_id,
                kind=kind,
                mime=getattr(part, "mime_type", None) or ("image/webp" if kind == "sticker" else ""),
                name=getattr(part, "file_name", None) or "",
                size=part.file_size or 0,
                seconds=_seconds(part),
            )
    return None


def _seconds(part: Any) -> int:
    """Return the playing time of a file in seconds; 0 if it has none."""
    duration = getattr(part, "duration", None) or 0
    return int(duration.total_seconds()) if isinstance(duration, timedelta) else int(duration)
