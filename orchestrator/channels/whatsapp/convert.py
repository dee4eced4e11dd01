"""Convert the library's events into the messages and groups of `protocol`. Pure.

No event makes these functions raise: an exception from here is a bug.

The addresses of the chat, the sender, the quoted author and mentioned people become phone numbers where
known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from agent_runner.wire.unicode_forms import composed
from orchestrator.channels.whatsapp import addresses, message_text
from orchestrator.channels.whatsapp.addresses import GROUP, LID, PHONE, Address, Directory
from orchestrator.channels.whatsapp.protocol import BridgeMessage, GroupMember, QuotedMessage, SeenGroup
from orchestrator.domain.polls import UNREADABLE_VOTE, VOTE

if TYPE_CHECKING:
    from neonize.proto.Neonize_pb2 import ChatPresence as PresenceEvent
    from neonize.proto.Neonize_pb2 import GroupInfo, GroupParticipant, MessageSource
    from neonize.proto.Neonize_pb2 import Message as MessageEvent
    from neonize.proto.Neonize_pb2 import UndecryptableMessage as UndecryptableEvent
    from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import Message

REVOKE, EPHEMERAL_SETTING, EDIT = 0, 3, 14
"""The types of WhatsApp's protocol messages that are read: a deletion, the time to disappear, and an edit."""
MAX_TEXT_CHARS = 60_000
"""Characters of a text that are passed on; the rest is cut off."""
MAX_MENTIONS = 1_024
"""Mentions of a message that are read: as many as the members that a group can have."""
MAX_QUOTE_CHARS = 4_000
"""Characters of a quoted text that are passed on; the rest is cut off."""
MAX_ID_CHARS = 128
"""Characters of a message's id; a message with a longer one is ignored."""
REACTION = "reaction"
UNKNOWN_KIND = "of a kind that cannot be read"
# Parts of messages that show no new text in the chat.
_INVISIBLE_PARTS = ("encReactionMessage", "keepInChatMessage", "pinInChatMessage", "encEventResponseMessage")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnAccount:
    """The account that the bridge is logged in to."""

    phone: str
    lid: str = ""
    own_name: str = ""
    """The assistant's name if the account is the assistant's own, else empty.

    Where it is set, a mention of the account triggers the assistant.
    """
    assistant: str = ""
    """The assistant's name.

    No other person is shown by it in a mention, because it would trigger the assistant.
    """

    def is_me(self, address: Address) -> bool:
        """Return whether an address, by phone number or by LID, is the account's own."""
        return bool(address.user) and address.user in (self.phone, self.lid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """A vote in a poll."""

    question: str = ""
    """The poll's question; empty if the poll is unknown."""
    chosen: tuple[str, ...] | None = None
    """The options voted for; None if the vote could not be decrypted or the poll is unknown."""
    hashes: tuple[str, ...] | None = None
    """The SHA-256 of each option voted for, in hexadecimal digits; None if it could not be decrypted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoredEvent:
    """The reason why an event is not converted into a message."""

    reason: str


def convert(
    event: MessageEvent, *, people: Directory, me: OwnAccount, vote: Vote | None = None
) -> BridgeMessage | IgnoredEvent:
    """Convert an event of the library to a message for the host, or return the reason to ignore it.

    Args:
        event: the event, which may also be an edit, a deletion, a reaction or a vote.
        people: the known phone numbers and names of people.
        me: the account that is logged in.
        vote: the decrypted vote, if the event is a vote in a poll and it could be decrypted.
    """
    common_fields = _common_fields(event, people)
    if isinstance(common_fields, IgnoredEvent):
        return common_fields
    message, is_from_me = message_text.unwrapped(event.Message), event.Info.MessageSource.IsFromMe
    if message.HasField("pollUpdateMessage"):
        key = message.pollUpdateMessage.pollCreationMessageKey
        content_fields: dict[str, Any] | IgnoredEvent = _vote_fields(
            key, vote or Vote(), is_from_me=is_from_me, people=people, me=me
        )
    else:
        content_fields = _content_fields(message, is_from_me=is_from_me, people=people, me=me)
    return (
        BridgeMessage(**common_fields, **content_fields)
        if isinstance(content_fields, dict)
        else content_fields
    )


def unreadable(event: UndecryptableEvent, *, people: Directory) -> BridgeMessage | IgnoredEvent:
    """Return a message without text in place of one that could not be decrypted, or the reason to ignore it.

    `people` are the known phone numbers and names of people.
    """
    if event.Info.MessageSource.IsFromMe:
        return IgnoredEvent(reason="unreadable, of the account itself")
    common_fields = _common_fields(event, people)
    return (
        common_fields
        if isinstance(common_fields, IgnoredEvent)
        else BridgeMessage(**common_fields, is_unreadable=True)
    )


def _common_fields(
    event: MessageEvent | UndecryptableEvent, people: Directory
) -> dict[str, Any] | IgnoredEvent:
    """Return the fields of `BridgeMessage` that each message has: chat, id, sender and time.

    Or return the reason to ignore the event. `people` are the known phone numbers and names of people.
    """
    source = event.Info.MessageSource
    chat, sender = chat_of(event), sender_of(event)
    # A status, and what the account sends to a broadcast list, belong to no single chat. What others send to
    # a list belongs to the chat with its sender, see `_chat_in`.
    if source.Chat.User == "status" or (source.Chat.Server == "broadcast" and source.IsFromMe):
        return IgnoredEvent(reason="status broadcast")
    if chat is None or sender is None:
        return IgnoredEvent(reason=f"not a chat: {source.Chat.Server[:40]}")
    if not event.Info.ID or len(event.Info.ID) > MAX_ID_CHARS:
        return IgnoredEvent(reason="no id")
    sender_addresses = [
        item for jid in (source.Sender, source.SenderAlt) if (item := addresses.of(jid)) is not None
    ]
    chat, sender = people.resolved(chat), people.resolved(sender)
    # The sender's other address, by LID, under which earlier messages may be stored.
    alias = next(
        (str(address) for address in sender_addresses if address.is_person and address != sender), None
    )
    return {
        "chat": str(chat),
        "is_group": chat.server == GROUP,
        "id": event.Info.ID,
        "sender": str(sender),
        "sender_alias": alias,
        "sender_name": event.Info.Pushname.strip()[:80] or people.display_name(sender),
        "sent_ms": _ms(event.Info.Timestamp),
        "is_from_me": source.IsFromMe,
    }


def _content_fields(
    message: Message, *, is_from_me: bool, people: Directory, me: OwnAccount
) -> dict[str, Any] | IgnoredEvent:
    """Return the fields of `BridgeMessage` that depend on a message's content, or why to ignore it.

    Ignored are, among others, messages with a part that shows no new text in the chat, such as a pin.
    `is_from_me` says whether the account itself has sent the message, from any of its devices. `people` are
    the known phone numbers and names of people, and `me` is the account that is logged in.
    """
    if message.HasField("protocolMessage"):
        return _edit_or_deletion_fields(message.protocolMessage, people=people, me=me)
    if message.HasField("reactionMessage"):
        return _reaction_fields(message.reactionMessage, is_from_me=is_from_me, people=people, me=me)
    invisible_part = next((name for name in _INVISIBLE_PARTS if message.HasField(name)), None)
    if invisible_part is not None:
        return IgnoredEvent(reason=invisible_part)
    fields = _text_fields(message, people=people, me=me)
    if fields["text"] or fields["media"] is not None:
        return fields
    return _unreadable_fields(message, fields, is_from_me=is_from_me, people=people, me=me)


def _unreadable_fields(
    message: Message, fields: dict[str, Any], *, is_from_me: bool, people: Directory, me: OwnAccount
) -> dict[str, Any] | IgnoredEvent:
    """Return the fields of `BridgeMessage` for content that this program cannot read.

    Their text says what kind of content it is, with the text in it, if any; the message never triggers the
    agent. An encrypted change of another message gets a text, and quotes that message. For a message without
    content that people are shown, return why to drop it.

    Args:
        message: the message.
        fields: the fields that `_text_fields` returned for it; an encrypted change uses none of them.
        is_from_me: whether the account itself has sent the message.
        people: the known phone numbers and names of people.
        me: the account that is logged in.
    """
    if message.HasField("secretEncryptedMessage"):
        target_key = message.secretEncryptedMessage.targetMessageKey
        quote = (
            _referenced_message(target_key, is_from_me=is_from_me, people=people, me=me)
            if target_key.ID
            else None
        )
        return {"text": "[changed a message; how cannot be read]", "quote": quote, "ignored": UNKNOWN_KIND}
    kind = message_text.unknown_kind(message)
    if not kind:
        return IgnoredEvent(reason="nothing to read")
    contained_text = message_text.text_of_unknown(message)
    text = f"[{kind}] {contained_text}" if contained_text else f"[something that cannot be read here: {kind}]"
    return {**fields, "text": _cut(text, MAX_TEXT_CHARS), "ignored": UNKNOWN_KIND}


def _text_fields(message: Message, *, people: Directory, me: OwnAccount) -> dict[str, Any]:
    """Return the fields of `BridgeMessage` for text, file, quoted message and mentions.

    In `text`, mentioned people have their names. In `call_text` they have their numbers: by this text the
    host decides whether the assistant is called; None if nobody is mentioned. `calls_me` says whether the
    account is mentioned and is the assistant's, not a person's (only then it has an `own_name`): that calls
    the assistant, too. `people` are the known phone numbers and names of people, and `me` is the account that
    is logged in.
    """
    context = _context(message)
    mentioned_jids = dict.fromkeys(islice(context.mentionedJID, MAX_MENTIONS) if context else ())
    mentioned = [address for jid in mentioned_jids if (address := addresses.parse(jid))]
    # One character more than the limit, so that `_cut` notes that there were more.
    text = message_text.text_of(message)[: MAX_TEXT_CHARS + 1]
    return {
        "text": _cut(_with_names(text, mentioned, people, me), MAX_TEXT_CHARS),
        "call_text": _cut(_with_numbers(text, mentioned, people, me), MAX_TEXT_CHARS) if mentioned else None,
        "media": message_text.media_of(message),
        "quote": _quote(context, people, me) if context is not None else None,
        "calls_me": bool(me.own_name) and any(me.is_me(person) for person in mentioned),
        "mentions": tuple(dict.fromkeys(str(people.resolved(person)) for person in mentioned)),
    }


def _edit_or_deletion_fields(
    part: Any, *, people: Directory, me: OwnAccount
) -> dict[str, Any] | IgnoredEvent:
    """Return the fields of `BridgeMessage` for an edit or a deletion, or why to ignore `part`.

    `part` is a protocol message of WhatsApp. Other kinds of protocol messages are exchanged between devices,
    and ignored; an edit without a text is ignored, too. An edit leaves the message's file as it is, so the
    fields have no file.

    `people` are the known phone numbers and names of people, and `me` is the account that is logged in.
    """
    target_id = part.key.ID[:MAX_ID_CHARS]
    if part.type == REVOKE and part.HasField("key") and target_id:
        return {"deletes": target_id}
    if part.type == EDIT and part.HasField("editedMessage") and target_id:
        fields = _text_fields(message_text.unwrapped(part.editedMessage), people=people, me=me)
        return (
            {**fields, "media": None, "edits": target_id}
            if fields["text"]
            else IgnoredEvent(reason="empty edit")
        )
    return IgnoredEvent(reason="protocol message")


def _reaction_fields(
    part: Any, *, is_from_me: bool, people: Directory, me: OwnAccount
) -> dict[str, Any] | IgnoredEvent:
    """Return the fields of `BridgeMessage` for the reaction `part`, or why to ignore it.

    `is_from_me` says whether the account itself reacts. `people` are the known phone numbers and names of
    people, and `me` is the account that is logged in.
    """
    if not part.text or not part.key.ID:
        return IgnoredEvent(reason="reaction taken back")
    quote = _referenced_message(part.key, is_from_me=is_from_me, people=people, me=me)
    emoji = part.text[:20]
    return {"text": f"[reacted {emoji}]", "quote": quote, "ignored": REACTION, "reaction": emoji}


def _referenced_message(
    key: Any, *, is_from_me: bool, people: Directory, me: OwnAccount, text: str = ""
) -> QuotedMessage:
    """Return the message that a reaction or a vote refers to by `key`, WhatsApp's reference to a message.

    The reference has no text: `text` is the one to show, empty if it is not known. `is_from_me` says whether
    the account itself reacts or votes. `people` are the known phone numbers and names of people, and `me` is
    the account that is logged in.
    """
    # Only in a group may the reference name the author. Without one, `fromMe` says whether whoever reacts or
    # votes wrote the message. So the account wrote it if it reacts to its own message, or if the other person
    # of a chat between two reacts to one that is not theirs.
    author = addresses.parse(key.participant)
    return QuotedMessage(
        id=key.ID[:MAX_ID_CHARS],
        author=people.display_name(author) if author else "",
        is_mine=key.fromMe == is_from_me if author is None else me.is_me(people.resolved(author)),
        text=_cut(text, MAX_QUOTE_CHARS),
    )


def _vote_fields(
    poll_key: Any, vote: Vote, *, is_from_me: bool, people: Directory, me: OwnAccount
) -> dict[str, Any] | IgnoredEvent:
    """Return the fields of `BridgeMessage` for a vote; for one that names no poll, return why to drop it.

    The field `ignored` marks the message as one that never triggers the agent.
    The message quotes the poll that `poll_key`, WhatsApp's reference to a message, names. Its text has the
    chosen options in words, and `chosen` their hashes, by which the host knows them in a poll of its own.

    `vote` is the decrypted vote; `is_from_me` says whether it is the account's own. `people` are the known
    phone numbers and names of people, and `me` is the account that is logged in.
    """
    if not poll_key.ID:
        return IgnoredEvent(reason="a vote in no poll")
    if vote.chosen is None:
        text = UNREADABLE_VOTE
    else:
        text = f"[voted for {', '.join(vote.chosen)}]" if vote.chosen else "[took a vote back]"
    quote = _referenced_message(
        poll_key,
        is_from_me=is_from_me,
        people=people,
        me=me,
        text=f"[poll] {vote.question}" if vote.question else "",
    )
    return {
        "text": _cut(text, MAX_TEXT_CHARS),
        "quote": quote,
        "ignored": VOTE,
        "chosen": vote.hashes,
    }


def _quote(context: Any, people: Directory, me: OwnAccount) -> QuotedMessage | None:
    """Return the message that a message replies to; None if it replies to none.

    `context` is the part of the message that has the quoted one. `people` are the known phone numbers and
    names of people, and `me` is the account that is logged in.
    """
    if not context.stanzaID:
        return None
    author = addresses.parse(context.participant)
    quoted = message_text.unwrapped(context.quotedMessage)
    return QuotedMessage(
        id=context.stanzaID[:MAX_ID_CHARS],
        author=people.display_name(author) if author else "",
        is_mine=author is not None and me.is_me(author),
        text=_cut(message_text.text_of(quoted), MAX_QUOTE_CHARS),
        media=message_text.media_of(quoted),
    )


def _context(message: Message) -> Any | None:
    """Return the part of a message that has its quote, its mentions and its timer; None if there is none.

    The timer is the time after which the message disappears.
    """
    body_part = message_text.content_part(message)
    # Not every kind of content has this field: asking for a missing one would raise an error.
    if body_part is None or "contextInfo" not in body_part.DESCRIPTOR.fields_by_name:
        return None
    return body_part.contextInfo if body_part.HasField("contextInfo") else None


def _with_names(text: str, mentioned: list[Address], people: Directory, me: OwnAccount) -> str:
    """Return the text with each `@number` of a mentioned person replaced by `@name`.

    The account itself gets the assistant's name if it is the assistant's own. `people` are the known phone
    numbers and names of people, and `me` is the account that is logged in.
    """
    name_by_user = {
        address.user: me.own_name if me.own_name and me.is_me(address) else _shown_name(address, people, me)
        for address in mentioned
    }
    return _replace_mentions(text, name_by_user)


def _with_numbers(text: str, mentioned: list[Address], people: Directory, me: OwnAccount) -> str:
    """Return the text with the assistant's name in mentions of it, and phone numbers in other mentions.

    The host looks for a call of the assistant in this text and not in the one with names, because a mentioned
    person may have the same name. `people` are the known phone numbers and names of people, and `me` is the
    account that is logged in.
    """
    name_by_user = {
        address.user: me.own_name if me.own_name and me.is_me(address) else _number(address, people)
        for address in mentioned
    }
    return _replace_mentions(text, name_by_user)


def _replace_mentions(text: str, name_by_user: dict[str, str]) -> str:
    """Return the text with each `@user` replaced by `@` and the name of that user.

    `name_by_user` maps the user part of an address, a number, to the name. All are replaced in one pass,
    because a name may itself contain such a number.
    """
    if not name_by_user:
        return text
    # Longer numbers first, and no digit after the number: one number may be the beginning of another.
    numbers = "|".join(map(re.escape, sorted(name_by_user, key=len, reverse=True)))
    return re.sub(rf"@({numbers})(?!\d)", lambda match: f"@{name_by_user[match[1]]}", text)


def _shown_name(address: Address, people: Directory, me: OwnAccount) -> str:
    """Return the name to show for a mentioned person, or the number if that name would trigger the assistant.

    A name triggers it if it begins with the assistant's name, or contains "@" and the assistant's name.
    `people` are the known phone numbers and names of people, and `me` is the account that is logged in.
    """
    name = people.display_name(address)
    assistant_name = re.escape(composed(me.assistant))
    # The two other signs are wide and small forms of "@".
    trigger = rf"(?:^|[@\uff20\ufe6b]){assistant_name}"
    would_trigger = bool(assistant_name) and re.search(trigger, composed(name), re.IGNORECASE) is not None
    return _number(address, people) if would_trigger else name


def _number(address: Address, people: Directory) -> str:
    """Return a person's phone number with `+`, or the LID (WhatsApp's other number) if it is unknown."""
    person = people.resolved(address)
    return f"+{person.user}" if person.server == PHONE else person.user


# Addresses in an event. The session looks up their phone numbers before it converts the event.


def chat_of(event: MessageEvent | UndecryptableEvent) -> Address | None:
    """Return the address of an event's chat; None if it is no chat of people.

    A chat between two has the phone number of the other person, if the event contains it.
    """
    return _chat_in(event.Info.MessageSource)


def chat_typed_in(event: PresenceEvent) -> Address | None:
    """Return the address of the chat in which somebody else started to type or to record a voice note.

    Return None when somebody stopped, or when it is the account itself that types.
    """
    source = event.MessageSource
    return None if source.IsFromMe or event.State != event.COMPOSING else _chat_in(source)


def _chat_in(source: MessageSource) -> Address | None:
    """Return the address of the chat in an event's source; None if it is no chat of people.

    A chat between two has the phone number of the other person, if the source contains it.
    """
    if source.Chat.Server == "broadcast" and not source.IsFromMe:
        # WhatsApp shows a message to a broadcast list in each receiver's chat with its sender.
        sender, other_address = addresses.of(source.Sender), addresses.of(source.SenderAlt)
        return other_address if other_address is not None and other_address.server == PHONE else sender
    chat = addresses.of(source.Chat)
    if chat is None or chat.server != LID:
        return chat
    other_address = addresses.of(source.RecipientAlt if source.IsFromMe else source.SenderAlt)
    return other_address if other_address is not None and other_address.server == PHONE else chat


def sender_of(event: MessageEvent | UndecryptableEvent) -> Address | None:
    """Return the address of an event's sender, by phone number if the event contains it.

    None if the sender is a group, or if the event has neither a phone number nor a valid address for them.
    """
    source = event.Info.MessageSource
    sender, other_address = addresses.of(source.Sender), addresses.of(source.SenderAlt)
    if sender is not None and sender.server == GROUP:
        return None
    return other_address if other_address is not None and other_address.server == PHONE else sender


def pairs_of(event: MessageEvent) -> dict[str, str]:
    """Return which phone numbers belong to which LIDs (WhatsApp's other numbers), as an event itself shows.

    The LIDs are the keys, and the phone numbers the values.
    """
    source = event.Info.MessageSource
    pairs = {}
    for main, alternative in ((source.Sender, source.SenderAlt), (source.Chat, source.RecipientAlt)):
        user_by_server = {
            parsed.server: parsed.user for jid in (main, alternative) if (parsed := addresses.of(jid))
        }
        if LID in user_by_server and PHONE in user_by_server:
            pairs[user_by_server[LID]] = user_by_server[PHONE]
    return pairs


def timer_of(event: MessageEvent) -> int | None:
    """Return the seconds after which messages of the event's chat disappear.

    0 means never; None means that the event does not contain the setting.
    """
    message = message_text.unwrapped(event.Message)
    if message.HasField("protocolMessage"):
        setting = message.protocolMessage
        return int(setting.ephemeralExpiration) if setting.type == EPHEMERAL_SETTING else None
    context = _context(message)
    if context is None:
        return None
    # 0 is the default of this field, so here it does not mean "never".
    return int(context.expiration) or None


def people_in(event: MessageEvent) -> frozenset[Address]:
    """Return the addresses of all people whom an event names: chat, sender, quoted author and mentions."""
    people = {address for address in (chat_of(event), sender_of(event)) if address is not None}
    people.update(address for text in _texts_with_addresses(event) if (address := addresses.parse(text)))
    return frozenset(address for address in people if address.is_person)


def _texts_with_addresses(event: MessageEvent) -> Iterator[str]:
    """Yield the addresses of people that a message's content names, as text; some may be empty.

    Of the mentions, only the first 200 are read.
    """
    message = message_text.unwrapped(event.Message)
    if message.HasField("reactionMessage"):
        yield message.reactionMessage.key.participant
    if message.HasField("pollUpdateMessage"):
        yield message.pollUpdateMessage.pollCreationMessageKey.participant
    if message.HasField("protocolMessage"):
        yield message.protocolMessage.key.participant
        # Of an edit, the new content is read below.
        message = message_text.unwrapped(message.protocolMessage.editedMessage)
    context = _context(message)
    if context is not None:
        yield context.participant
        yield from context.mentionedJID[:200]  # a bound, because each may be looked up


def _ms(timestamp: int) -> int:
    """Return a time of the library, in epoch seconds or milliseconds, as epoch milliseconds."""
    # The library gives seconds or milliseconds here: as seconds, this limit is the year 5138. The host
    # replaces impossible times.
    return timestamp if timestamp > 100_000_000_000 else timestamp * 1000


def _cut(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters, with a note if the rest was cut off."""
    return text if len(text) <= limit else f"{text[:limit]}… [cut]"


def seen_group(info: GroupInfo, people: Directory) -> SeenGroup | None:
    """Return a group with its name and members, by phone number where known.

    None if `info` is not about a group. `people` are the known phone numbers and names of people.
    """
    address = addresses.of(info.JID)
    if address is None or address.server != GROUP:
        return None
    members = [
        member for participant in info.Participants if (member := _member(participant, people)) is not None
    ]
    return SeenGroup(
        jid=str(address), name=info.GroupName.Name.strip()[:200] or str(address), members=tuple(members)
    )


def _member(participant: GroupParticipant, people: Directory) -> GroupMember | None:
    """Return a member of a group; None if the entry `participant` has no address of a person.

    `people` are the known phone numbers and names of people.
    """
    address = (
        addresses.of(participant.PhoneNumber)
        or addresses.of(participant.JID)
        or addresses.of(participant.LID)
    )
    if address is None or not address.is_person:
        return None
    person = people.resolved(address)
    name = participant.DisplayName.strip()[:80] or people.names.get(person.user, "")
    return GroupMember(jid=str(person), name=name, is_admin=participant.IsAdmin or participant.IsSuperAdmin)


def pairs_of_group(info: GroupInfo) -> dict[str, str]:
    """Return which phone numbers belong to which LIDs (WhatsApp's other numbers), by a group's members.

    The LIDs are the keys, and the phone numbers the values.
    """
    pairs = {}
    for participant in info.Participants:
        user_by_server = {
            parsed.server: parsed.user
            for jid in (participant.JID, participant.LID, participant.PhoneNumber)
            if (parsed := addresses.of(jid))
        }
        if LID in user_by_server and PHONE in user_by_server:
            pairs[user_by_server[LID]] = user_by_server[PHONE]
    return pairs
