"""`/groups`: list, register, rename, unregister, by the rules of `groups`; configure; speak as Andy."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TypedDict

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from orchestrator.base.clock import Clock
from orchestrator.groups import access, changes, model_choices, registration
from orchestrator.groups.access import AccessDecision
from orchestrator.groups.name_and_trigger import GroupProfile
from orchestrator.groups.registration import Registration
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
    """Lists and changes groups for programs; each change is one transaction."""

    def __init__(self, database: Database, *, clock: Clock, has_gateway: Callable[[], bool]) -> None:
        """`database` stores the groups, `clock` is the host's.

        `has_gateway` returns whether the model service of `.env` is a gateway, whose models may have any
        names.
        """
        self._database = database
        self._clock = clock
        self._has_gateway = has_gateway

    async def every(self) -> list[GroupView]:
        """Return all registered groups as the API shows them."""
        return await self._database.read(group_rows)

    async def register(self, body: Registration) -> GroupView:
        """Register a chat as a group, as the owner's own act, and return the group.

        Raises what `register_by_hand` raises, and `BadRequest` if a model in the settings cannot be used.
        """
        has_gateway = self._has_gateway()
        async with self._database.transaction() as tx:
            await model_choices.check_settings(tx, body.config, has_gateway=has_gateway)
            group = await registration.register_by_hand(tx, body, now_ms=self._clock.now_ms())
        return group_row(group)

    async def decide_access(self, number: int, body: AccessAnswer, *, by: str = BY) -> AccessDecided:
        """Register, ignore or block a chat that wrote to Andy and has no group; `number` is its request.

        `by` is the author of the decision. A chat that is registered becomes a group named `body.name`, or
        named like the chat if that is None. Raises what `access.decide` raises.
        """
        async with self._database.transaction() as tx:
            now_ms = self._clock.now_ms()
            decided = await access.decide(tx, number, body.decision, by=by, now_ms=now_ms, name=body.name)
        group = group_row(decided.group) if decided.group is not None else None
        return {"number": number, "group": group, "text": decided.explain()}

    async def unregister(self, folder: str) -> GroupRemoved:
        """Remove a group's registration, and return what ended with it, such as its waiting turns.

        Raises what `registration.unregister` raises.
        """
        async with self._database.transaction() as tx:
            departure = await registration.unregister(tx, folder, now_ms=self._clock.now_ms())
        return {
            "folder": departure.group.folder,
            "failed_turns": departure.failed_turns,
            "reminders": departure.reminders,
            "text": departure.explain(),
        }

    async def add_chat(self, folder: str, body: FurtherChat) -> GroupView:
        """Add a chat to a group, or make a chat of the group the one that receives notifications.

        Raises what `registration.add_chat` raises.
        """
        async with self._database.transaction() as tx:
            group = await registration.add_chat(
                tx, folder, body.jid, now_ms=self._clock.now_ms(), is_notify_chat=body.is_notify_chat
            )
        return group_row(group)

    async def remove_chat(self, folder: str, jid: str) -> ChatRemoved:
        """Remove one of a group's chats, and return the group with the number of turns that failed by that.

        Raises what `registration.remove_chat` raises.
        """
        async with self._database.transaction() as tx:
            removed = await registration.remove_chat(tx, folder, jid, now_ms=self._clock.now_ms())
        return {**group_row(removed.group), "failed_turns": removed.failed_turns, "text": removed.explain()}

    async def set_profile(self, folder: str, body: GroupProfile) -> GroupView:
        """Change a group's name and trigger. Raises what `changes.set_profile` raises."""
        async with self._database.transaction() as tx:
            return group_row(await changes.set_profile(tx, folder, body, by=BY, now_ms=self._clock.now_ms()))

    async def configured(self, folder: str) -> GroupView:
        """Announce to the host that another process has changed a group's configuration in the store.

        Return the group. Raises `UnknownGroup`.
        """
        async with self._database.transaction() as tx:
            group = await groups.known(tx, folder)
            announce(tx, "group.configured", group=group.folder)
        return group_row(group)

    async def say(self, folder: str, text: str, *, chat: str | None = None) -> TextQueued:
        """Queue a text that Andy sends to one of a group's chats, word for word.

        `chat` is the address of the chat; None is the one that receives the group's notifications. The audit
        gets a row.

        Raises:
            UnknownGroup: there is no such group.
            TextEmpty, TextTooLong: the text cannot be sent.
            BadRequest: `chat` is no chat of the group.
        """
        check_text(text)
        # A random key, because the same text may be sent again.
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
    """Whether this becomes the group's chat that receives notifications."""


class ChatQuery(BaseModel):
    """The query of `DELETE /groups/{folder}/chats`."""

    model_config = ConfigDict(extra="forbid")

    jid: str = Field(min_length=1, max_length=200)
    """The address of one of the group's chats."""


def group_routes(service: GroupApi) -> list[Route]:
    """Return the routes that list, register, change and remove groups."""

    async def every(_: Request) -> Response:
        """Answer with all registered groups."""
        return JSONResponse({"groups": await service.every()})

    async def register(request: Request) -> Response:
        """Register the chat in the body as a group, and answer with the group."""
        return JSONResponse(await service.register(await parse_body(request, Registration)), status_code=201)

    async def decide_access(request: Request) -> Response:
        """Register, ignore or block a chat that asked for access; the path has the number of its request."""
        body: AccessAnswer = await parse_body(request, AccessAnswer)
        number = access.number_of(request.path_params["number"])
        return JSONResponse(await service.decide_access(number, body))

    async def unregister(request: Request) -> Response:
        """Remove the registration of the group in the path, and answer with what ended with it."""
        return JSONResponse(await service.unregister(request.path_params["folder"]))

    async def set_profile(request: Request) -> Response:
        """Change the name or the trigger of the group in the path, and answer with the group."""
        body: GroupProfile = await parse_body(request, GroupProfile)
        return JSONResponse(await service.set_profile(request.path_params["folder"], body))

    async def configured(request: Request) -> Response:
        """Announce that the configuration of the group in the path was changed in the store."""
        return JSONResponse(await service.configured(request.path_params["folder"]))

    async def say(request: Request) -> Response:
        """Queue the text in the body for a chat of the group in the path, in Andy's name."""
        body: Speech = await parse_body(request, Speech)
        result = await service.say(request.path_params["folder"], body.text, chat=body.chat)
        return JSONResponse(result, status_code=202)

    async def add_chat(request: Request) -> Response:
        """Add the chat in the body to the group in the path, and answer with the group."""
        body: FurtherChat = await parse_body(request, FurtherChat)
        return JSONResponse(await service.add_chat(request.path_params["folder"], body))

    async def remove_chat(request: Request) -> Response:
        """Remove the chat in the query from the group in the path, and answer with the group."""
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
