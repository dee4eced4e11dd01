"""In the bridge's process: the library's client, autospecced, with a test's phone behind it."""

from __future__ import annotations

import asyncio
import importlib
import json
import secrets
from base64 import b64decode, b64encode
from contextlib import suppress
from pathlib import Path
from typing import Any

from neonize.events import EVENT_TO_INT
from neonize.exc import NeonizeError, SendMessageError
from neonize.proto.Neonize_pb2 import JID, GroupInfo, SendResponse, UploadResponse
from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import Message, ReactionMessage

from tests.doubles import whatsapp_store
from tests.doubles.whatsapp_client import FakeWhatsApp

EVENTS = {kind.__name__: kind for kind in EVENT_TO_INT}
LIMIT = 64 * 1024 * 1024


def remote_client(name: str, **_: Any) -> Any:
    return RemoteWhatsApp(store=Path(name)).client


class RemoteWhatsApp(FakeWhatsApp):
    """Every call goes to the phone."""

    def __init__(self, *, store: Path) -> None:
        self._store = store
        self._calls: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._writer: asyncio.StreamWriter | None = None
        super().__init__()

    async def _connect(self, proxy_settings: Any = None) -> asyncio.Future[None]:
        login = await super()._connect(proxy_settings)
        reader, self._writer = await asyncio.open_unix_connection(
            self._store.with_name("phone.sock"), limit=LIMIT
        )
        self._listening = asyncio.create_task(self._listen(reader))
        try:
            told = await self._call("connect")
            for name, value in told["haste"].items():
                module, _, constant = name.partition(".")
                setattr(importlib.import_module(f"orchestrator.channels.whatsapp.{module}"), constant, value)
        except SendMessageError as error:
            login.set_exception(NeonizeError(str(error)))
        return login

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        # A line that breaks while something is on its way over it ends with an error.
        with suppress(ConnectionError):
            while line := await reader.readline():
                await self._take(json.loads(line))
        if self.login is not None and not self.login.done():
            self.login.set_result(None)

    async def _take(self, told: dict[str, Any]) -> None:
        if "qr" in told:
            await self.client.event._qr(self.client, told["qr"].encode())
        elif "event" not in told:
            self._calls.pop(told["n"]).set_result(told)
        else:
            kind = EVENTS[told["event"]]
            await asyncio.to_thread(self._execute, b64decode(told["body"]), EVENT_TO_INT[kind])

    async def _call(self, call: str, **more: Any) -> dict[str, Any]:
        assert self._writer is not None
        number = len(self._calls) + secrets.randbelow(2**40)
        answer = self._calls[number] = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps({"n": number, "call": call, **more}).encode() + b"\n")
        told = await answer
        if "error" in told:
            raise SendMessageError(told["error"])
        return told

    async def _show_reaction(self, reaction: ReactionMessage) -> None:
        await self._call("react", message=reaction.key.ID, sign=reaction.text)

    async def _mark_read(
        self, *message_ids: str, chat: JID, sender: JID, receipt: Any, timestamp: int | None = None
    ) -> None:
        await self._call("read", messages=message_ids)

    async def _send_message(self, to: JID, message: Message, **_: Any) -> SendResponse:
        if message.HasField("reactionMessage"):
            await self._show_reaction(message.reactionMessage)
            return SendResponse(ID="3EBREACTION", Timestamp=1)
        chat, number = f"{to.User}@{to.Server}", f"3EB0{secrets.token_hex(9).upper()}"
        await asyncio.to_thread(
            whatsapp_store.put_secret,
            self._store,
            chat=chat,
            message_id=number,
            key=message.messageContextInfo.messageSecret,
        )
        body = b64encode(message.SerializeToString()).decode()
        await self._call("send", chat=chat, id=number, message=body)
        return SendResponse(ID=number, Timestamp=1)

    async def _revoke_message(self, chat: JID, sender: JID, message_id: str) -> SendResponse:
        await self._call("revoke", id=message_id)
        return SendResponse(ID="3EBREVOKE", Timestamp=1)

    async def _send_chat_presence(self, jid: JID, state: Any, media: Any) -> None:
        await self._call("typing", chat=f"{jid.User}@{jid.Server}", on=state.name.endswith("COMPOSING"))

    async def _get_joined_groups(self) -> list[GroupInfo]:
        told = await self._call("groups")
        return [GroupInfo.FromString(b64decode(one)) for one in told["groups"]]

    async def _get_group_info(self, jid: JID) -> GroupInfo:
        return next(one for one in await self._get_joined_groups() if one.JID.User == jid.User)

    async def _download_any(self, message: Message, path: str | None = None) -> bytes:
        part = next(value for _, value in message.ListFields())
        told = await self._call("download", key=b64encode(part.mediaKey).decode())
        return b64decode(told["body"])

    async def _upload(self, binary: bytes, media_type: Any = None) -> UploadResponse:
        told = await self._call("upload", body=b64encode(binary).decode())
        return UploadResponse(url="https://x/u", DirectPath="/u", MediaKey=b64decode(told["key"]))

    async def _pairphone(self, phone: str, show_push_notification: bool, *_: Any) -> str:
        return str((await self._call("pairphone", phone=phone))["letters"])

    async def _stop(self) -> None:
        if self._writer is not None:
            self._writer.close()
        await super()._stop()
