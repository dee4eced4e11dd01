"""Reports groups, their settings and the chats seen, as rows for machines and lines for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, TypedDict
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_minute
from orchestrator.base.tables import table
from orchestrator.base.terminal_escaping import all_visible
from orchestrator.domain.values import Group
from orchestrator.store.access import requests as access_requests
from orchestrator.store.access.requests import AccessRequest
from orchestrator.store.conversation import chats
from orchestrator.store.database import Tx
from orchestrator.store.groups import changes as group_changes
from orchestrator.store.groups import groups
from orchestrator.store.groups.changes import GroupChangeView, GroupPart


class GroupView(TypedDict):
    """A registered group; `config` has the settings that were changed for this group."""

    folder: str
    name: str
    jid: Annotated[
        str, "The address of the chat that receives notifications which belong to no other chat of the group."
    ]
    chats: Annotated[list[str], "The addresses of all chats of the group; `jid` is the first."]
    trigger: str | None
    requires_trigger: bool
    is_main: bool
    config: dict[str, object]


class GroupPersonView(TypedDict):
    """Somebody of a group with their role, or everybody else, whose address is `*`."""

    address: str
    name: str
    role: str
    has_own_role: bool
    aliases: list[str]
    since_ms: int | None


class AccessRequestView(TypedDict):
    """A chat that called Andy and has no group. Its names and words are as people wrote them, shortened."""

    number: int
    state: Annotated[str, "waiting, registered, ignored or blocked."]
    jid: str
    name: str
    channel: str
    is_direct: Annotated[bool, "Whether the chat is between one person and an account of Andy's own."]
    people: Annotated[int | None, "The number of people in the chat, if the messenger reports it."]
    sender: str
    sender_name: str
    is_owner: bool
    words: Annotated[str, "The message that called Andy; empty after the decision."]
    asked_ms: int
    notified_ms: Annotated[int | None, "The time of the question in the main group; null if none was sent."]
    decided_ms: int | None
    decided_by: str | None


class ChatView(TypedDict):
    """A known chat, with or without a group."""

    jid: str
    name: str
    channel: str | None
    is_group: bool
    last_message_ms: int | None
    group: str | None
    request: Annotated[AccessRequestView | None, "The request of a chat that called Andy without a group."]


async def group_rows(tx: Tx) -> list[GroupView]:
    """Return all registered groups, as the API and `--json` show them."""
    return [group_row(group) for group in await groups.every(tx)]


def group_row(group: Group) -> GroupView:
    """Return a group as the API and `--json` show it."""
    return {
        "folder": group.folder,
        "name": group.name,
        "jid": group.jid,
        "chats": list(group.chats),
        "trigger": group.trigger,
        "requires_trigger": group.requires_trigger,
        "is_main": group.is_main,
        "config": group.container_config,
    }


def group_lines(rows: list[GroupView], *, assistant: str) -> list[str]:
    """Return the groups as a table for people; `assistant` is the name by which they call the assistant."""
    return table(
        ("folder", "name", "chats", "answers"),
        [
            (row["folder"], row["name"], ", ".join(row["chats"]), _answered_messages(row, assistant))
            for row in rows
        ],
    )


def _answered_messages(row: GroupView, assistant: str) -> str:
    """Return in words which messages get an answer in a group: all, or those with one of its triggers."""
    if row["is_main"] or not row["requires_trigger"]:
        return "every message" + (" (main)" if row["is_main"] else "")
    # A group may have a trigger of its own beside the usual one.
    usual, own = f"@{assistant}", row["trigger"] or ""
    # An imported group may have the usual trigger as its own, too: then it is named once.
    return f"{usual} or {own}" if own.casefold() not in ("", usual.casefold()) else usual


async def config_fields(tx: Tx, folder: str) -> dict[str, object]:
    """Return the settings that a group has of its own, by name. Raises `UnknownGroup`."""
    from orchestrator.groups import settings  # slow to load, and only this function needs it

    return settings.of(await groups.known(tx, folder)).to_fields()


def config_lines(config: Mapping[str, object]) -> list[str]:
    """Return a line for each setting of a group, its value as JSON."""
    if not config:
        return ["Nothing is set: the settings of the host count."]
    return [f"{key:<11} {json.dumps(value, ensure_ascii=False)}" for key, value in config.items()]


async def people_rows(tx: Tx, folder: str) -> list[GroupPersonView]:
    """Return the people of a group with their roles, as the API and `--json` show them.

    The last row, with the address `*`, stands for everybody else. Raises `UnknownGroup`.
    """
    from orchestrator.groups import people  # slow to load, and only this function needs it

    return [
        {
            "address": person.address,
            "name": person.name,
            "role": person.role.value,
            "has_own_role": person.has_own_role,
            "aliases": list(person.aliases),
            "since_ms": person.since_ms,
        }
        for person in await people.of_group(tx, folder)
    ]


def people_lines(rows: list[GroupPersonView], *, zone: ZoneInfo) -> list[str]:
    """Return the people as a table for people.

    `rows` are those of `people_rows`: the last one, `*`, has the role of everybody who has none of their own.
    """
    return table(
        ("address", "name", "role", "since"),
        [
            (
                all_visible(", ".join([row["address"], *row["aliases"]])),
                all_visible(row["name"]) or ("everybody else" if row["address"] == "*" else ""),
                row["role"] if row["has_own_role"] else f"{row['role']} (default)",
                "" if row["since_ms"] is None else local_minute(row["since_ms"], zone),
            )
            for row in rows
        ],
    )


async def chat_rows(tx: Tx) -> list[ChatView]:
    """Return every chat that was seen, the last active one first, as the API and `--json` show it.

    `group` of a row is the folder of the chat's group, if it has one; `request` is the request to the owner
    about a chat without a group in which somebody called Andy.
    """
    folders = await groups.folders_of_chats(tx)
    requests = await access_requests.every(tx)
    return [
        {
            "jid": chat.jid,
            "name": chat.name,
            "channel": chat.channel,
            "is_group": chat.is_group,
            "last_message_ms": chat.last_message_ms,
            "group": folders.get(chat.jid),
            "request": access_row(requests[chat.jid]) if chat.jid in requests else None,
        }
        for chat in await chats.every(tx)
    ]


def access_row(request: AccessRequest) -> AccessRequestView:
    """Return the request of a chat without a group as the API and `--json` show it."""
    return {
        "number": request.id,
        "state": request.state.value,
        "jid": request.chat_jid,
        "name": request.chat_name,
        "channel": request.channel,
        "is_direct": request.is_direct,
        "people": request.people,
        "sender": request.sender,
        "sender_name": request.sender_name,
        "is_owner": request.is_owner,
        "words": request.words,
        "asked_ms": request.asked_ms,
        "notified_ms": request.notified_ms,
        "decided_ms": request.decided_ms,
        "decided_by": request.decided_by,
    }


def chat_lines(rows: list[ChatView], *, zone: ZoneInfo) -> list[str]:
    """Return the chats as a table for people, then a line for each request that waits for a decision."""
    if not rows:
        return ["No chat was seen yet."]
    waiting = [row["request"] for row in rows if row["request"] and row["request"]["state"] == "waiting"]
    return [*_chat_table(rows, zone=zone), *(_call_line(request) for request in waiting)]


def _call_line(row: AccessRequestView) -> str:
    """Return as a line who called Andy in which chat without a group, and how the owner decides on it."""
    writer = "you" if row["is_owner"] else f"{all_visible(row['sender_name'])} ({all_visible(row['sender'])})"
    people = f" among {row['people']} people" if row["people"] else ""
    chat = all_visible(row["name"] or row["jid"])
    return (
        f"Request {row['number']}: in {chat}{people} {writer} wrote: {all_visible(row['words'])}"
        f" ('andy groups decide {row['number']} register', or ignore, or block)"
    )


def _request_state(row: ChatView) -> str:
    """Return the number and the state of a chat's request; empty where it has none or has a group by now."""
    request = row["request"]
    return f"{request['number']} {request['state']}" if request and row["group"] is None else ""


def _chat_table(rows: list[ChatView], *, zone: ZoneInfo) -> list[str]:
    """Return the chats as a table for people."""
    return table(
        ("chat", "name", "messenger", "last", "group", "request"),
        [
            (
                all_visible(row["jid"]),
                all_visible(row["name"]),
                row["channel"] or "",
                local_minute(row["last_message_ms"], zone) if row["last_message_ms"] else "",
                row["group"] or "",
                _request_state(row),
            )
            for row in rows
        ],
    )


async def change_rows(tx: Tx, folder: str) -> list[GroupChangeView]:
    """Return what the owner changed of a group's settings and memory, newest first. Raises `UnknownGroup`."""
    group = await groups.known(tx, folder)
    return await group_changes.views(tx, group.folder)


def part_text(part: str) -> str:
    """Return a part of a group (a `GroupPart`) in the words of people."""
    return "name and trigger" if part == GroupPart.PROFILE else part


def change_lines(rows: list[GroupChangeView], *, zone: ZoneInfo) -> list[str]:
    """Return the changes as a table for people, each with the number of lines it added and took away."""
    if not rows:
        return ["Nothing was changed yet: settings and memory are as they began."]
    return table(
        ("change", "when", "what", "by", "lines", ""),
        [
            (
                str(row["number"]),
                local_minute(row["at_ms"], zone),
                part_text(row["part"]),
                row["by"],
                f"+{row['added']} -{row['removed']}",
                f"undoes {row['undoes']}" if row["undoes"] else "",
            )
            for row in rows
        ],
    )


def diff_lines(before: str, after: str) -> list[str]:
    """Return the lines in which two texts differ, with some unchanged lines around them.

    A `+` is before a new line, a `-` before one that is gone, and `…` stands for unchanged lines in between.
    """
    from orchestrator.groups import changes

    return [f"{line.kind} {line.text}".rstrip() for line in changes.diff(before, after)]
