"""`POST /chat` sends a message to a group, and `GET /messages/{id}` returns the state of a message.

`POST /chat/{group}/opened` notifies the host that somebody is about to write, so that a container can start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from orchestrator.domain.values import Group, Inbound, MessageId
from orchestrator.groups.registration import chosen_chat, writing_chat
from orchestrator.web.bodies import parse_body, parse_query
from orchestrator.web.chat_service import ChatService

MAX_WAIT_SECONDS = 600.0

Write = Callable[..., Inbound]
"""`(chat, text, *, sender, now_ms)`: returns a new message to Andy, which is not stored yet."""


class ChatRequest(BaseModel):
    """The body of `POST /chat`."""

    model_config = ConfigDict(extra="forbid")

    group: str = Field(min_length=1, max_length=64)
    text: str
    sender: str = Field("you", min_length=1, max_length=80)
    wait: float = Field(120.0, ge=0, le=MAX_WAIT_SECONDS)
    chat: str | None = Field(None, max_length=200)
    """One of the group's chats. Default: that of this machine, else the notify chat."""
    key: str | None = Field(None, min_length=1, max_length=200)
    """A key that the client chooses: a message that is sent again with it is accepted once."""


class MessageQuery(BaseModel):
    """The query of `GET /messages/{id}`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    wait: float = Field(0.0, ge=0, le=MAX_WAIT_SECONDS)
    """Seconds to wait for the reply."""


def id_by_key(chat_jid: str, key: str) -> MessageId:
    """Return the id of the message to which a client gave this key; the same key gives the same id.

    `chat_jid` is the address of the message's chat.
    """
    # The chat is hashed too: the same key in another chat marks another message. An id that begins with `K`
    # was made from a key.
    digest = hashlib.sha256(f"{chat_jid} {key}".encode()).hexdigest()
    return MessageId(f"K{digest[:24]}")


def chat_routes(service: ChatService, write: Write) -> list[Route]:
    """Return the routes by which programs send messages and follow them.

    `write` makes an inbound message from a text.
    """

    async def chat(request: Request) -> Response:
        """Store a message for a group, and answer with its state once it is settled or the wait is over.

        The status is 200 for a settled message, and 202 for one that will still be answered.
        """
        body = await parse_body(request, ChatRequest)

        def inbound_to(group: Group, now_ms: int) -> Inbound:
            """Return the message to store, in the chosen chat of the group.

            If the client gave a key, the id is made from it, so that a message sent again is recognised.
            """
            jid = chosen_chat(group, body.chat, default=writing_chat(group))
            inbound = write(jid, body.text, sender=body.sender, now_ms=now_ms)
            return inbound if body.key is None else replace(inbound, id=id_by_key(inbound.chat_jid, body.key))

        status = await service.say(inbound_to, body.group, wait_seconds=body.wait)
        return JSONResponse(status.to_json_dict(), status_code=200 if status.is_settled else 202)

    async def message(request: Request) -> Response:
        """Answer with the state of a message once it is settled or the requested wait is over."""
        query = parse_query(request.query_params, MessageQuery)
        status = await service.find(request.path_params["id"], wait_seconds=query.wait)
        return JSONResponse(status.to_json_dict())

    async def opened(request: Request) -> Response:
        """Notify the host that somebody is about to write to a group, so that it can start a container."""
        await service.open(request.path_params["group"])
        return JSONResponse({"group": request.path_params["group"]})

    return [
        Route("/chat", chat, methods=["POST"]),
        Route("/chat/{group}/opened", opened, methods=["POST"]),
        Route("/messages/{id}", message),
    ]
