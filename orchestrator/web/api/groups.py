"""`/groups`: list, register, rename, unregister, by the rules of `groups`; configure; speak as Andy."""

from __future__ import annotations

import secrets
from typing import TypedDict

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from orchestrator.base.clock import Clock
from orchestrator.groups import access, changes, registration
from orchestrator.groups.access import AccessDecision
from orchestrator.groups.registration import GroupProfile, Registration
from orchestrator.inbound.intake import check_text
from orchestrator.reports.groups import GroupView, group_row, group_rows
from orchestrator.store import audit
from orchestrator.store.conversation import outbox
from orchestrator.store.database import Database, announce
from orchestrator.store.groups import groups
from orchestrator.web.bodies import parse_body, parse_query

BY = "the HTTP API"
"""The author of changes that programs make."""


class AccessDecided(TypedDict):
    """The outcome of a decision about a chat that has called; `group` is the one that it got."""

    number: int
    group: GroupView | None
    text: str


class GroupRemoved(TypedDict):
    """The outcome of taking a chat's agent away."""

    folder: str
    failed_turns: int
    reminders: int
    text: str


class ChatRemoved(GroupView):
    """A group without the chat that was taken from it, and what became of the chat's turns."""

    failed_turns: int
    text: str


class TextQueued(TypedDict):
    """A text that Andy is to say, by its place in the outbox."""

    group: str
    id: str
    outbox: int


class GroupApi:
    """Changes groups, each in a transaction."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def every(self) -> list[GroupView]:
        """Return all registered groups."""
        return await self._database.read(group_rows)

    async def register(self, body: Registration) -> GroupView:
        """Register a chat as a group. Raises what `registration.register` raises."""
        async with self._database.transaction() as tx:
            group = await registration.register_by_hand(tx, body, now_ms=self._clock.now_ms())
        return group_row(group)

    async def decide_access(self, number: int, body: AccessAnswer, *, by: str = BY) -> AccessDecided:
        """Decide about a chat without a group that called Andy. Raises what `access.decide` raises."""
        async with self._database.transaction() as tx:
            now_ms = self._clock.now_ms()
            decided = await access.decide(tx, number, body.decision, by=by, now_ms=now_ms, name=body.name)
        group = group_row(decided.group) if decided.group is not None else None
        return {"number": number, "group": group, "text": decided.explain()}

    async def unregister(self, folder: str) -> GroupRemoved:
        """Remove a group's registration. Raises what `registration.unregister` raises."""
        async with self._database.transaction() as tx:
            departure = await registration.unregister(tx, folder, now_ms=self._clock.now_ms())
        return {
            "folder": departure.group.folder,
            "failed_turns": departure.failed_turns,
            "reminders": departure.reminders,
            "text": departure.explain(),
        }

    async def add_chat(self, folder: str, body: FurtherChat) -> GroupView:
        """Give a group one more chat, or set its notify chat. Raises what `registration.add_chat` raises."""
        async with self._database.transaction() as tx:
            group = await registration.add_chat(
                tx, folder, body.jid, now_ms=self._clock.now_ms(), is_notify_chat=body.is_notify_chat
            )
        return group_row(group)

    async def remove_chat(self, folder: str, jid: str) -> ChatRemoved:
        """Remove one of a group's chats. Raises what `registration.remove_chat` raises."""
        async with self._database.transaction() as tx:
            gone = await registration.remove_chat(tx, folder, jid, now_ms=self._clock.now_ms())
        return {**group_row(gone.group), "failed_turns": gone.failed_turns, "text": gone.explain()}

    async def set_profile(self, folder: str, body: GroupProfile) -> GroupView:
        """Change a group's name and trigger. Raises what `changes.set_profile` raises."""
        async with self._database.transaction() as tx:
            return group_row(await changes.set_profile(tx, folder, body, by=BY, now_ms=self._clock.now_ms()))

    async def configured(self, folder: str) -> GroupView:
        """Announce that a group's configuration was changed in the store. Raises `UnknownGroup`."""
        async with self._database.transaction() as tx:
            group = await groups.known(tx, folder)
            announce(tx, "group.configured", group=group.folder)
        return group_row(group)

    async def say(self, folder: str, text: str, *, chat: str | None = None) -> TextQueued:
        """Send a text to one of a group's chats as Andy, word for word; without `chat`, to its notify chat.

        Raises:
            UnknownGroup, TextEmpty, TextTooLong
            BadRequest: `chat` is no chat of the group.
        """
        check_text(text)
        now_ms, key = self._clock.now_ms(), f"owner:{secrets.token_hex(8)}"
        async with self._database.transaction() as tx:
            group = await groups.known(tx, folder)
            jid = registration.chosen_chat(group, chat, default=group.jid)
            await outbox.add(tx, chat_jid=jid, folder=group.folder, text=text, dedupe_key=key, now_ms=now_ms)
            queued = await outbox.by_key(tx, key)
            assert queued is not None
            event = audit.AuditEvent(
                at_ms=now_ms, kind="message.say", folder=group.folder, detail={"outbox": queued.id}
            )
            await audit.append(tx, event)
            announce(tx, "outbox.changed", group=group.folder)
        return {"group": group.folder, "id": queued.message_id, "outbox": queued.id}


class Speech(BaseModel):
    """The body of `POST /groups/{folder}/say`."""

    model_config = ConfigDict(extra="forbid")

    text: str
    chat: str | None = Field(None, max_length=200)
    """One of the group's chats. Default: the notify chat."""


class AccessAnswer(BaseModel):
    """The body of `POST /groups/requests/{number}`."""

    model_config = ConfigDict(extra="forbid")

    decision: AccessDecision
    name: str | None = Field(None, max_length=200)
    """The name of the group that the chat gets. Default: the name of the chat."""


class FurtherChat(BaseModel):
    """The body of `POST /groups/{folder}/chats`."""

    model_config = ConfigDict(extra="forbid")

    jid: str = Field(min_length=1, max_length=200)
    is_notify_chat: bool = False
    """Whether it is told from now on what nobody asked for in another chat."""


class ChatQuery(BaseModel):
    """The query of `DELETE /groups/{folder}/chats`."""

    model_config = ConfigDict(extra="forbid")

    jid: str = Field(min_length=1, max_length=200)
    """The address of one of the group's chats."""


def group_routes(service: GroupApi) -> list[Route]:
    """Return the routes of groups."""

    async def every(_: Request) -> Response:
        return JSONResponse({"groups": await service.every()})

    async def register(request: Request) -> Response:
        return JSONResponse(await service.register(await parse_body(request, Registration)), status_code=201)

    async def decide_access(request: Request) -> Response:
        body: AccessAnswer = await parse_body(request, AccessAnswer)
        number = access.number_of(request.path_params["number"])
        return JSONResponse(await service.decide_access(number, body))

    async def unregister(request: Request) -> Response:
        return JSONResponse(await service.unregister(request.path_params["folder"]))

    async def set_profile(request: Request) -> Response:
        body: GroupProfile = await parse_body(request, GroupProfile)
        return JSONResponse(await service.set_profile(request.path_params["folder"], body))

    async def configured(request: Request) -> Response:
        return JSONResponse(await service.configured(request.path_params["folder"]))

    async def say(request: Request) -> Response:
        body: Speech = await parse_body(request, Speech)
        result = await service.say(request.path_params["folder"], body.text, chat=body.chat)
        return JSONResponse(result, status_code=202)

    async def add_chat(request: Request) -> Response:
        body: FurtherChat = await parse_body(request, FurtherChat)
        return JSONResponse(await service.add_chat(request.path_params["folder"], body))

    async def remove_chat(request: Request) -> Response:
        query = parse_query(request.query_params, ChatQuery)
        return JSONResponse(await service.remove_chat(request.path_params["folder"], query.jid))

    return [
        Route("/groups", every),
        Route("/groups", register, methods=["POST"]),
        Route("/groups/{folder}", unregister, methods=["DELETE"]),
        Route("/groups/{folder}", set_profile, methods=["PATCH"]),
        Route("/groups/{folder}/chats", add_chat, methods=["POST"]),
        Route("/groups/{folder}/chats", remove_chat, methods=["DELETE"]),
        Route("/groups/{folder}/configured", configured, methods=["POST"]),
        Route("/groups/{folder}/say", say, methods=["POST"]),
        # Last, so that the routes of a group whose folder is named `requests` match before it.
        Route("/groups/requests/{number}", decide_access, methods=["POST"]),
    ]
