"""Put the content of an incoming Telegram message into words: text, captions, polls, places. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from telegram import Gift, Message, MessageEntity, UniqueGift

UNKNOWN_KIND = "of a kind that cannot be read"
"""The reason why a message asks for nothing."""
MAX_KINDS, MAX_KIND_CHARS = 3, 40
_COMMON_FIELDS = frozenset({
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
_SERVICE_FIELDS = frozenset({
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
    """Return the content of a message in words: its text, and its poll, contact, place or the like.

    Its file is left out. Empty if there is nothing to read.
    """
    text = message.text or message.caption or ""
    part_text = next(
        (describe(part) for name, describe in _TEXT_OF_PART if (part := getattr(message, name))), ""
    )
    return "\n".join(line for line in (text, part_text) if line)


def unknown_kind(message: Message) -> str:
    """Return the names of at most `MAX_KINDS` parts of a message that this module cannot read, with commas.

    Empty if the message has none, or if it is one that nobody wrote, such as that somebody joined. The names
    are those of Telegram's fields, so that a kind of message that is unknown today gets a name as well.
    """
    parts = message.to_dict(recursive=False)
    names = [name for name, part in parts.items() if part and name not in _COMMON_FIELDS]
    if not names or any(name in _SERVICE_FIELDS for name in names):
        return ""
    return ", ".join(name.replace("_", " ")[:MAX_KIND_CHARS] for name in names[:MAX_KINDS])


def with_call(text: str, entities: Iterable[MessageEntity], *, bot_id: int, username: str, call: str) -> str:
    """Return a text in which mentions of the bot are replaced by `call`, and commands lack the bot's name.

    Telegram's clients write `/clear@andy_bot` in groups for `/clear`.

    Args:
        text: the text of a message.
        entities: the parts of the text that Telegram has marked, such as mentions and commands.
        bot_id: the user id of the bot.
        username: the name of the bot, without `@`.
        call: the text by which people address the assistant.
    """
    # Telegram counts offsets in UTF-16 units, of two bytes.
    utf16 = text.encode("utf-16-le")
    own_name = f"@{username}".casefold()
    # From the end, so that the offsets of earlier entities stay valid.
    for entity in sorted(entities, key=lambda item: item.offset, reverse=True):
        begin, end = 2 * entity.offset, 2 * (entity.offset + entity.length)
        entity_text = utf16[begin:end].decode("utf-16-le", "replace")
        if entity.type == MessageEntity.BOT_COMMAND and entity_text.casefold().endswith(own_name):
            replacement = entity_text[: -len(own_name)]
        elif (entity.type == MessageEntity.MENTION and entity_text.casefold() == own_name) or _mentions_bot(
            entity, bot_id
        ):
            replacement = call
        else:
            continue
        utf16 = utf16[:begin] + replacement.encode("utf-16-le") + utf16[end:]
    return utf16.decode("utf-16-le", "replace")


def _mentions_bot(entity: MessageEntity, bot_id: int) -> bool:
    """Return whether a marked part of a text is a link to the bot's account, instead of the bot's name."""
    user = entity.user if entity.type == MessageEntity.TEXT_MENTION else None
    return user is not None and user.id == bot_id


def _poll(part: Any) -> str:
    """Return a poll as text: its question, then a line for each option."""
    return _lines(f"[poll] {part.question}", (f"- {option.text}" for option in part.options))


def _checklist(part: Any) -> str:
    """Return a checklist as text, with a cross at each task that is done."""
    tasks = (f"- [{'x' if task.completion_date else ' '}] {task.text}" for task in part.tasks)
    return _lines(f"[checklist] {part.title}", tasks)


def _tasks_added(part: Any) -> str:
    """Return the tasks that were added to a checklist, as text."""
    return _lines("[added to the checklist]", (f"- {task.text}" for task in part.tasks))


def _tasks_done(part: Any) -> str:
    """Return the tasks of a checklist that were marked as done or not done, as text."""
    titles = (
        {task.id: task.text for task in part.checklist_message.checklist.tasks}
        if _has_checklist(part)
        else {}
    )
    changes = ((part.marked_as_done_task_ids, "x"), (part.marked_as_not_done_task_ids, " "))
    lines = (
        f"- [{sign}] {titles.get(task_id, f'task {task_id}')}"
        for ids, sign in changes
        for task_id in ids or ()
    )
    return _lines("[marked in the checklist]", lines)


def _has_checklist(part: Any) -> bool:
    """Return whether an event about tasks contains the checklist itself, and so the titles of its tasks."""
    return part.checklist_message is not None and part.checklist_message.checklist is not None


def _contact(part: Any) -> str:
    """Return a contact as text: its name and phone number."""
    name = " ".join(name_part for name_part in (part.first_name, part.last_name) if name_part)
    return f"[contact] {name}: {part.phone_number or 'no number'}"


def _place(part: Any, kind: str = "place") -> str:
    """Return a position as text, in degrees of latitude and longitude."""
    return f"[{kind}] {part.latitude:.6f}, {part.longitude:.6f}"


def _location(part: Any) -> str:
    """Return a shared location as text; a live one moves with its sender."""
    return _place(part, "live place" if part.live_period else "place")


def _venue(part: Any) -> str:
    """Return a venue as text: its position, title and address."""
    return f"{_place(part.location)} {', '.join(line for line in (part.title, part.address) if line)}"


def _story(part: Any) -> str:
    """Return the text for a story: whose it is, which is all that bots can see of it."""
    return f"[story of {part.chat.effective_name or 'somebody'}: bots cannot see it]"


def _gift(part: Any) -> str:
    """Return a gift as text: its name or emoji, and the text with it."""
    gift: Gift | UniqueGift = part.gift
    name = gift.base_name if isinstance(gift, UniqueGift) else (gift.sticker.emoji or "")
    return " ".join(word for word in ("[gift]", name, getattr(part, "text", "")) if word)


def _giveaway(part: Any) -> str:
    """Return a giveaway, or the message about its winners, as text: the number of winners and the prize."""
    return f"[giveaway] {part.winner_count} winners {part.prize_description or ''}".rstrip()


def _titled(kind: str) -> Callable[[Any], str]:
    """Return a function that describes a part of a message by `kind`, its title and its description."""
    return lambda part: f"[{kind}] {part.title}: {part.description}"


def _lines(first: str, others: Iterable[str]) -> str:
    """Return a text whose lines are `first` and the `others`."""
    return "\n".join([first, *others])


_TEXT_OF_PART: tuple[tuple[str, Callable[[Any], str]], ...] = (
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
