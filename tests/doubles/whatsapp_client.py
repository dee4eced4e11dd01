"""A double of the WhatsApp library's client, checked against the library's signatures.

It records the messages that chats would show. Its events arrive as from the library's Go side: serialised,
on a thread of their own.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from google.protobuf.message import Message as Protobuf
from neonize.aioze import events as library_events
from neonize.aioze.client import NewAClient
from neonize.events import EVENT_TO_INT
from neonize.exc import DecryptPollVoteError, GetJIDFromStoreError, SendMessageError
from neonize.proto.Neonize_pb2 import JID, Device, GroupInfo, SendResponse, UploadResponse
from neonize.proto.Neonize_pb2 import Message as MessageEvent
from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import Message, PollVoteMessage, ReactionMessage

from tests.doubles import whatsapp_events as wa

_SIGNATURES = {
    name: inspect.signature(getattr(NewAClient, name))
    for name in (
        "connect", "stop", "send_message", "revoke_message", "send_chat_presence", "send_presence",
        "get_pn_from_lid", "get_joined_groups", "get_group_info", "download_any", "upload", "PairPhone",
        "decrypt_poll_vote", "build_reaction", "mark_read", "get_lid_from_pn",
    )
}  # fmt: skip
"""The calls of the library that have a double, with the library's parameters.

An autospec of the whole client would say the same, and take 50 ms for each test.
"""


def _checked(name: str, double: Callable[..., Any]) -> Mock:
    """Return a call of the client that `double` answers. It fails with parameters that the library lacks."""

    def call(*values: Any, **named: Any) -> Any:
        _SIGNATURES[name].bind(None, *values, **named)
        return double(*values, **named)

    return Mock(side_effect=call)


@dataclass
class FakeWhatsApp:
    """WhatsApp as far as one client sees it."""

    numbers: dict[str, str] = field(default_factory=lambda: {wa.JANE_LID: wa.JANE})
    groups: list[GroupInfo] = field(default_factory=list)
    files: dict[bytes, bytes] = field(default_factory=dict)
    """By media key."""
    uploaded_as: dict[bytes, Any] = field(default_factory=dict)
    """By media key, the kind of file that the library was told."""
    votes: dict[str, list[bytes]] = field(default_factory=dict)
    """By the message that votes: the hashes of the options it is for. Of others it cannot be read."""
    shown: list[tuple[str, str, Message]] = field(default_factory=list)
    """Chat, id, message: what people see, in order. What was taken back is not in it."""
    signs: list[tuple[str, bool]] = field(default_factory=list)
    reactions: list[tuple[str, str, str]] = field(default_factory=list)
    """Message, its author as the reaction names them, sign."""
    read: list[tuple[str, str, str]] = field(default_factory=list)
    """Message, chat and author of each that was marked as read."""
    presences: list[str] = field(default_factory=list)
    trouble: list[Exception] = field(default_factory=list)
    """Raised by the next sends, one each, before anything is shown."""
    gate: asyncio.Event | None = None
    """Sends are shown at once and answered when it is set."""
    refusal: Exception | None = None
    """Raised on connecting."""

    def __post_init__(self) -> None:
        calls = {name: _checked(name, getattr(self, f"_{name.lower()}")) for name in _SIGNATURES}
        self.client: Any = SimpleNamespace(name="whatsapp.db", uuid=b"andy", me=None, **calls)
        self.client.event = library_events.Event(self.client)
        self.login: asyncio.Future[None] | None = None

    # What tests do

    async def tell(self, event: Protobuf) -> None:
        """Hand an event in, as the Go side does."""
        body = wa.complete(event).SerializeToString()
        await asyncio.to_thread(self._execute, body, EVENT_TO_INT[type(event)])

    def _execute(self, body: bytes, code: int) -> None:
        buffer = ctypes.create_string_buffer(body, len(body))
        self.client.event.execute(b"andy", ctypes.addressof(buffer), len(body), code)

    async def connect_as(self, user: str = wa.ANDY, lid: str = wa.ANDY_LID) -> None:
        await self.tell(Device(JID=wa.jid(user, device=9), LID=wa.lid(lid)))
        await self.tell(library_events.ConnectedEv(status=True))

    def texts(self, chat: str | None = None) -> list[str]:
        return [wa.words_of(message) for at, _, message in self.shown if chat in (None, at)]

    # What the client does

    async def _connect(self, proxy_settings: Any = None) -> asyncio.Future[None]:
        del proxy_settings
        loop = asyncio.get_running_loop()
        library_events.event_global_loop = loop
        self.login = loop.create_future()
        if self.refusal is not None:
            self.login.set_exception(self.refusal)
        return self.login

    async def _stop(self) -> None:
        if self.login is not None and not self.login.done():
            self.login.set_result(None)

    async def _send_message(self, to: JID, message: Message, **_: Any) -> SendResponse:
        if self.trouble:
            raise self.trouble.pop(0)
        if message.HasField("reactionMessage"):
            await self._show_reaction(message.reactionMessage)
            return SendResponse(ID="3EBREACTION", Timestamp=1)
        number = f"3EBFAKE{len(self.shown)}"
        self.shown.append((f"{to.User}@{to.Server}", number, message))
        if self.gate is not None:
            await self.gate.wait()
        return SendResponse(ID=number, Timestamp=1)

    async def _revoke_message(self, chat: JID, sender: JID, message_id: str) -> SendResponse:
        del chat, sender
        self.shown = [one for one in self.shown if one[1] != message_id]
        return SendResponse(ID="3EBREVOKE", Timestamp=1)

    async def _show_reaction(self, reaction: ReactionMessage) -> None:
        self.reactions.append((reaction.key.ID, reaction.key.participant, reaction.text))

    async def _build_reaction(self, chat: JID, sender: JID, message_id: str, reaction: str) -> Message:
        return wa.a_reaction(message_id, reaction, chat=chat, sender=sender)

    async def _mark_read(
        self, *message_ids: str, chat: JID, sender: JID, receipt: Any, timestamp: int | None = None
    ) -> None:
        assert receipt.name == "READ"
        where, who = (f"{one.User}@{one.Server}" for one in (chat, sender))
        self.read.extend((one, where, who) for one in message_ids)

    async def _get_lid_from_pn(self, jid: JID) -> JID:
        known = {phone: lid for lid, phone in self.numbers.items()}
        if jid.User not in known:
            raise GetJIDFromStoreError("no such number")
        return wa.lid(known[jid.User])

    async def _send_chat_presence(self, jid: JID, state: Any, media: Any) -> None:
        self.signs.append((f"{jid.User}@{jid.Server}", state.name.endswith("COMPOSING")))

    async def _send_presence(self, presence: Any) -> None:
        self.presences.append(presence.name)

    async def _get_pn_from_lid(self, jid: JID) -> JID:
        if jid.User not in self.numbers:
            raise GetJIDFromStoreError("no such LID")
        return wa.jid(self.numbers[jid.User])

    async def _decrypt_poll_vote(self, message: MessageEvent) -> PollVoteMessage:
        vote = message.Message.pollUpdateMessage.vote
        if vote.encPayload.startswith(wa.IN_CLEAR):
            return PollVoteMessage.FromString(vote.encPayload.removeprefix(wa.IN_CLEAR))
        if message.Info.ID not in self.votes:
            raise DecryptPollVoteError("failed to decrypt poll vote: message secret not found")
        return PollVoteMessage(selectedOptions=self.votes[message.Info.ID])

    async def _get_joined_groups(self) -> list[GroupInfo]:
        return self.groups

    async def _get_group_info(self, jid: JID) -> GroupInfo:
        return next(one for one in self.groups if one.JID.User == jid.User)

    async def _download_any(self, message: Message, path: str | None = None) -> bytes:
        part = next(value for _, value in message.ListFields())
        if part.mediaKey not in self.files:
            raise SendMessageError("download failed with status code 404")
        return self.files[part.mediaKey]

    async def _upload(self, binary: bytes, media_type: Any = None) -> UploadResponse:
        key = f"up{len(self.files)}".encode()
        self.files[key] = binary
        self.uploaded_as[key] = media_type
        return UploadResponse(
            url="https://mmg.example/u", DirectPath="/u", MediaKey=key, FileLength=len(binary)
        )

    async def _pairphone(self, phone: str, show_push_notification: bool, *_: Any) -> str:
        return "ABCD-EFGH"
