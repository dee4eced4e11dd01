"""Read what Telegram tells a bot: a message, an edit, a reaction. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from telegram import Message, ReactionTypeEmoji, Update

KINDS = ("message", "edited_message", "message_reaction")
"""What is asked for. Of reactions a bot is told where it is an administrator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramFile:
    """A file of a message, as `attachments.FileFacts` describes it, with the id that it is fetched by."""

    file_id: str
    kind: str
    mime: str
    name: str
    size: int
    seconds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatUpdate:
    """One thing that happened in a chat. `answers` and `edits` are ids of messages; 0 for none."""

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
    sign: str = ""
    file: TelegramFile | None = None
    thread: str = ""


def read(update: Update, *, bot_id: int, username: str) -> ChatUpdate | None:
    """Return what an update says; None for what means nothing here, such as a pinned message."""
    if update.message_reaction is not None:
        return _reaction(update)
    message = update.message or update.edited_message
    if message is None:
        return None
    text, file = message.text or message.caption or "", _file(message)
    if not text and file is None:
        return None
    sender = message.sender_chat or message.from_user
    name = message.from_user.full_name if message.from_user else (message.sender_chat.title or "")  # type: ignore[union-attr]
    is_edit = update.edited_message is not None
    edited_s = int(message.edit_date.timestamp()) if message.edit_date else 0
    return ChatUpdate(
        update_id=update.update_id,
        chat_id=message.chat_id,
        chat_name=message.chat.effective_name or "",
        is_group=message.chat.type != "private",
        message_id=f"{message.message_id}.{edited_s}" if is_edit else str(message.message_id),
        sender_id=sender.id if sender is not None else 0,
        sender_name=name,
        text=text,
        sent_ms=int(message.date.timestamp() * 1000),
        is_call=_calls(message, bot_id=bot_id, username=username),
        edits=message.message_id if is_edit else 0,
        file=None if is_edit else file,
        thread=str(message.message_thread_id or "") if message.is_topic_message else "",
        **_answered(message, bot_id=bot_id),
    )


def _answered(message: Message, *, bot_id: int) -> dict[str, Any]:
    answered = message.reply_to_message
    # In a topic each message answers the one that opened it, which means nothing.
    if answered is None or answered.forum_topic_created is not None:
        return {}
    author = answered.from_user
    return {
        "answers": answered.message_id,
        "answered_text": answered.text or answered.caption or "",
        "answered_name": author.full_name if author else "",
        "answers_bot": author is not None and author.id == bot_id,
    }


def _calls(message: Message, *, bot_id: int, username: str) -> bool:
    found = {**message.parse_entities(["mention", "text_mention", "bot_command"]),
             **message.parse_caption_entities(["mention", "text_mention"])}  # fmt: skip
    own = f"@{username}".lower()
    for entity, text in found.items():
        if entity.type == "text_mention" and entity.user is not None and entity.user.id == bot_id:
            return True
        if entity.type in {"mention", "bot_command"} and text.lower().endswith(own):
            return True
    return False


def _reaction(update: Update) -> ChatUpdate | None:
    reaction = update.message_reaction
    assert reaction is not None
    signs = [one.emoji for one in reaction.new_reaction if isinstance(one, ReactionTypeEmoji)]
    if not signs or reaction.user is None:
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
        sign=signs[-1],
    )


def _file(message: Message) -> TelegramFile | None:
    if message.photo:
        best = message.photo[-1]
        return TelegramFile(
            file_id=best.file_id, kind="image", mime="image/jpeg", name="", size=best.file_size or 0
        )
    for kind, found in (
        ("voice note", message.voice),
        ("audio", message.audio),
        ("video", message.video),
        ("video", message.video_note),
        ("sticker", message.sticker),
        ("document", message.document),
    ):
        if found is not None:
            return TelegramFile(
                file_id=found.file_id,
                kind=kind,
                mime=getattr(found, "mime_type", None) or ("image/webp" if kind == "sticker" else ""),
                name=getattr(found, "file_name", None) or "",
                size=found.file_size or 0,
                seconds=_seconds(found),
            )
    return None


def _seconds(found: Any) -> int:
    duration = getattr(found, "duration", None) or 0
    return int(duration.total_seconds()) if isinstance(duration, timedelta) else int(duration)
