"""Put the content of a Telegram message into words: text, captions, polls, contacts, places. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from telegram import Gift, Message, MessageEntity, UniqueGift

UNKNOWN_KIND = "of a kind that cannot be read"
"""The reason why a message asks for nothing."""
MAX_KINDS, MAX_KIND_CHARS = 3, 40
_HEAD = frozenset({
    "message_id", "message_thread_id", "direct_messages_topic", "from_user", "sender_chat",
    "sender_boost_count", "sender_business_bot", "sender_tag", "date", "chat", "forward_origin",
    "is_topic_message", "is_automatic_forward", "reply_to_message", "external_reply", "quote",
    "reply_to_story", "reply_to_checklist_task_id", "reply_to_poll_option_id", "via_bot", "edit_date",
    "has_protected_content",
    "is_from_offline", "is_paid_post", "media_group_id", "author_signature", "paid_star_count", "entities",
    "caption_entities", "link_preview_options", "suggested_post_info", "effect_id", "reply_markup",
    "show_caption_above_media", "has_media_spoiler", "business_connection_id", "guest_query_id",
    "guest_bot_caller_user", "guest_bot_caller_chat", "text", "caption",
})  # fmt: skip
"""Fields of every message, which have no content by themselves."""
_SERVICE = frozenset({
    "new_chat_members", "left_chat_member", "new_chat_title", "new_chat_photo", "delete_chat_photo",
    "group_chat_created", "supergroup_chat_created", "channel_chat_created", "migrate_to_chat_id",
    "migrate_from_chat_id", "message_auto_delete_timer_changed", "pinned_message", "forum_topic_created",
    "forum_topic_edited", "forum_topic_closed", "forum_topic_reopened", "general_forum_topic_hidden",
    "general_forum_topic_unhidden", "video_chat_scheduled", "video_chat_started", "video_chat_ended",
    "video_chat_participants_invited", "proximity_alert_triggered", "boost_added", "chat_background_set",
    "write_access_allowed", "users_shared", "chat_shared", "connected_website", "passport_data",
    "giveaway_created", "chat_owner_changed", "chat_owner_left", "direct_message_price_changed",
    "paid_message_price_changed", "managed_bot_created", "new_chat_participant", "new_chat_member",
    "left_chat_participant",
})  # fmt: skip
"""Fields of the chat's own messages, such as that somebody joined; nobody wrote those."""


def text_of(message: Message) -> str:
    """Return what a reader sees, in words, without its file; empty if there is nothing to read."""
    text = message.text or message.caption or ""
    words = next((words(part) for name, words in _WORDS if (part := getattr(message, name))), "")
    return "\n".join(one for one in (text, words) if one)


def unknown_kind(message: Message) -> str:
    """Return the name of a part that nothing here reads; empty if nobody wrote the message.

    It uses the names of the fields, so that future kinds leave a trace as well.
    """
    parts = message.to_dict(recursive=False)
    names = [name for name, part in parts.items() if part and name not in _HEAD]
    if not names or any(name in _SERVICE for name in names):
        return ""
    return ", ".join(name.replace("_", " ")[:MAX_KIND_CHARS] for name in names[:MAX_KINDS])


def with_call(text: str, entities: Iterable[MessageEntity], *, bot_id: int, username: str, call: str) -> str:
    """Return a text with `call` for mentions of the bot, and its commands without the bot's name.

    Telegram's clients write `/clear@andy_bot` in groups for `/clear`.
    """
    units, own = text.encode("utf-16-le"), f"@{username}".casefold()
    for entity in sorted(entities, key=lambda one: one.offset, reverse=True):
        begin, end = 2 * entity.offset, 2 * (entity.offset + entity.length)
        shown = units[begin:end].decode("utf-16-le", "replace")
        if entity.type == MessageEntity.BOT_COMMAND and shown.casefold().endswith(own):
            new = shown[: -len(own)]
        elif (entity.type == MessageEntity.MENTION and shown.casefold() == own) or _names(entity, bot_id):
            new = call
        else:
            continue
        units = units[:begin] + new.encode("utf-16-le") + units[end:]
    return units.decode("utf-16-le", "replace")


def _names(entity: MessageEntity, bot_id: int) -> bool:
    user = entity.user if entity.type == MessageEntity.TEXT_MENTION else None
    return user is not None and user.id == bot_id


def _poll(part: Any) -> str:
    return _lines(f"[poll] {part.question}", (f"- {one.text}" for one in part.options))


def _checklist(part: Any) -> str:
    tasks = (f"- [{'x' if one.completion_date else ' '}] {one.text}" for one in part.tasks)
    return _lines(f"[checklist] {part.title}", tasks)


def _tasks_added(part: Any) -> str:
    return _lines("[added to the checklist]", (f"- {one.text}" for one in part.tasks))


def _tasks_done(part: Any) -> str:
    titles = {one.id: one.text for one in part.checklist_message.checklist.tasks} if _has_list(part) else {}
    marks = ((part.marked_as_done_task_ids, "x"), (part.marked_as_not_done_task_ids, " "))
    lines = (f"- [{mark}] {titles.get(one, f'task {one}')}" for ids, mark in marks for one in ids or ())
    return _lines("[marked in the checklist]", lines)


def _has_list(part: Any) -> bool:
    return part.checklist_message is not None and part.checklist_message.checklist is not None


def _contact(part: Any) -> str:
    name = " ".join(one for one in (part.first_name, part.last_name) if one)
    return f"[contact] {name}: {part.phone_number or 'no number'}"


def _place(part: Any, kind: str = "place") -> str:
    return f"[{kind}] {part.latitude:.6f}, {part.longitude:.6f}"


def _location(part: Any) -> str:
    return _place(part, "live place" if part.live_period else "place")


def _venue(part: Any) -> str:
    return f"{_place(part.location)} {', '.join(one for one in (part.title, part.address) if one)}"


def _story(part: Any) -> str:
    return f"[story of {part.chat.effective_name or 'somebody'}: bots cannot see it]"


def _gift(part: Any) -> str:
    gift: Gift | UniqueGift = part.gift
    name = gift.base_name if isinstance(gift, UniqueGift) else (gift.sticker.emoji or "")
    return " ".join(one for one in ("[gift]", name, getattr(part, "text", "")) if one)


def _giveaway(part: Any) -> str:
    return f"[giveaway] {part.winner_count} winners {part.prize_description or ''}".rstrip()


def _titled(kind: str) -> Callable[[Any], str]:
    return lambda part: f"[{kind}] {part.title}: {part.description}"


def _lines(first: str, rest: Iterable[str]) -> str:
    return "\n".join([first, *rest])


_WORDS: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("poll", _poll),
    ("checklist", _checklist),
    ("checklist_tasks_added", _tasks_added),
    ("checklist_tasks_done", _tasks_done),
    ("contact", _contact),
    # A venue also has a location, for clients that do not know venues.
    ("venue", _venue),
    ("location", _location),
    ("dice", lambda part: f"[dice {part.emoji}] {part.value}"),
    ("story", _story),
    ("paid_media", lambda part: f"[paid media for {part.star_count} stars: bots cannot see it]"),
    ("gift", _gift),
    ("unique_gift", _gift),
    ("game", _titled("game")),
    ("invoice", _titled("invoice")),
    ("giveaway", _giveaway),
    ("giveaway_winners", _giveaway),
)
"""Functions that describe each kind of message. A message has one of these parts."""
