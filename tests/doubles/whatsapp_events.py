"""Make events of the WhatsApp library from its own protobuf classes; importing this needs neonize."""

from __future__ import annotations

import hashlib
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as Protobuf
from neonize.proto.Neonize_pb2 import JID, ChatPresence, MessageInfo, MessageSource
from neonize.proto.Neonize_pb2 import Message as MessageEvent
from neonize.proto.waCommon.WACommon_pb2 import MessageKey
from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import (
    ContextInfo,
    ExtendedTextMessage,
    FutureProofMessage,
    Message,
    PollEncValue,
    PollUpdateMessage,
    PollVoteMessage,
    ProtocolMessage,
    ReactionMessage,
)

from tests.support.whatsapp_names import ANDY, ANDY_LID, FAMILY, JANE, JANE_LID, OWNER

IN_CLEAR = b"in clear:"
__all__ = ["ANDY", "ANDY_LID", "FAMILY", "JANE", "JANE_LID", "OWNER"]


def jid(user: str, server: str = "s.whatsapp.net", device: int = 0) -> JID:
    return JID(User=user, Server=server, Device=device, RawAgent=0, Integrator=0, IsEmpty=not user)


def lid(user: str) -> JID:
    return jid(user, "lid")


def group(user: str = FAMILY) -> JID:
    return jid(user, "g.us")


def heard(
    message: Message | str,
    *,
    message_id: str = "3AAA",
    chat: JID | None = None,
    sender: JID | None = None,
    sender_alt: JID | None = None,
    recipient_alt: JID | None = None,
    is_from_me: bool = False,
    name: str = "Jane",
    at_ms: int = 1_780_000_000_000,
) -> MessageEvent:
    """An event of a message in the family's group, from Jane, unless told otherwise."""
    content = Message(conversation=message) if isinstance(message, str) else message
    where = chat or group()
    source = MessageSource(
        Chat=where,
        Sender=sender or jid(JANE, device=7),
        IsFromMe=is_from_me,
        IsGroup=where.Server == "g.us",
        SenderAlt=sender_alt or jid("", ""),
        RecipientAlt=recipient_alt or jid("", ""),
    )
    info = MessageInfo(MessageSource=source, ID=message_id, Pushname=name, Timestamp=at_ms, Type="text")
    return MessageEvent(Info=info, Message=content, Raw=content)


def typing(*, chat: JID | None = None, is_from_me: bool = False, stops: bool = False) -> ChatPresence:
    """An event of somebody who begins to type in the family's group, unless told otherwise, or stops."""
    source = heard("", chat=chat, is_from_me=is_from_me).Info.MessageSource
    state = ChatPresence.PAUSED if stops else ChatPresence.COMPOSING
    return ChatPresence(MessageSource=source, State=state, Media=ChatPresence.TEXT)


def text(words: str, **context: Any) -> Message:
    """An extended text, which alone has a context: a quote, mentions."""
    return Message(extendedTextMessage=ExtendedTextMessage(text=words, contextInfo=ContextInfo(**context)))


def words_of(message: Message) -> str:
    """The words of a message that was sent, whether it has a context or not."""
    return message.conversation or message.extendedTextMessage.text or message.pollCreationMessage.name


def a_vote(poll: str, *options: str, author: str) -> Message:
    """A vote in a poll; the double of the library finds in it, in clear, what it would decrypt."""
    chosen = PollVoteMessage(selectedOptions=[hashlib.sha256(one.encode()).digest() for one in options])
    return Message(
        pollUpdateMessage=PollUpdateMessage(
            pollCreationMessageKey=MessageKey(ID=poll, participant=author),
            vote=PollEncValue(encPayload=IN_CLEAR + chosen.SerializeToString()),
        )
    )


def a_reaction(message_id: str, sign: str, *, chat: JID, sender: JID) -> Message:
    """A reaction as the library builds it: in a group its key names the author of the message."""
    own = sender.User in (ANDY, ANDY_LID)
    key = MessageKey(ID=message_id, fromMe=own, remoteJID=f"{chat.User}@{chat.Server}")
    if chat.Server == "g.us" and not own:
        key.participant = f"{sender.User}@{sender.Server}"
    return Message(reactionMessage=ReactionMessage(key=key, text=sign))


def wrapped(inner: Message, wrapper: str) -> Message:
    return Message(**{wrapper: FutureProofMessage(message=inner)})


def edit(target: str, new: Message) -> Message:
    return Message(
        protocolMessage=ProtocolMessage(
            key=MessageKey(ID=target, remoteJID=f"{FAMILY}@g.us"),
            type=ProtocolMessage.MESSAGE_EDIT,
            editedMessage=new,
        )
    )


def deletion(target: str) -> Message:
    return Message(
        protocolMessage=ProtocolMessage(
            key=MessageKey(ID=target, remoteJID=f"{FAMILY}@g.us"), type=ProtocolMessage.REVOKE
        )
    )


def complete(message: Protobuf) -> Protobuf:
    """The message with its required fields filled in, as the Go side sends them: empty where nothing is."""
    for one in message.DESCRIPTOR.fields:
        if one.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            _complete_inner(message, one)
        elif _is_required(one) and not message.HasField(one.name):
            setattr(message, one.name, one.default_value)
    return message


def _complete_inner(message: Protobuf, one: FieldDescriptor) -> None:
    inner = getattr(message, one.name)
    if not hasattr(inner, "DESCRIPTOR"):
        for part in inner:
            complete(part)
    elif message.HasField(one.name) or _is_required(one):
        inner.SetInParent()
        complete(inner)


def _is_required(one: FieldDescriptor) -> bool:
    return bool(getattr(one, "is_required", False))
