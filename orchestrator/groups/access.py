"""Ask the owner about chats that call Andy and have no group; register, ignore or block such a chat.

Anybody who finds Andy's account can create such chats, in any number. So the owner is asked about only a few
a day, each waits until it is decided, and no more are stored than a person can go through.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Literal

from agent_runner.wire.unicode_forms import normalized
from orchestrator.base.terminal_escaping import drawn, quoted
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Group, Inbound
from orchestrator.groups import owner, registration
from orchestrator.groups.name_and_trigger import NameTaken
from orchestrator.groups.registration import RESERVED, Registration
from orchestrator.store import audit
from orchestrator.store.access import requests as access_requests
from orchestrator.store.access.requests import AccessRequest, AccessState, NewAccessRequest
from orchestrator.store.conversation import chats
from orchestrator.store.database import Tx, announce
from orchestrator.store.groups import groups

DAY_MS = 24 * 3_600_000
MAX_NOTIFIED_A_DAY = 3
"""Chats about which main is asked within 24 hours; any more are only listed."""
MAX_WAITING = 100
"""Requests that wait at a time; a chat that calls while so many wait is not stored."""
IGNORED_MS = 30 * DAY_MS
"""Milliseconds until an ignored chat may be asked about again."""
MAX_WORDS, MAX_NAME, MAX_ADDRESS = 200, 80, 200
"""Most characters of a stranger's texts that are stored and shown."""

AccessDecision = Literal["register", "ignore", "block"]
DECISIONS: tuple[AccessDecision, ...] = ("register", "ignore", "block")


class UnknownAccessRequest(BadRequest):
    """There is no such request."""

    code = "unknown_access_request"
    http_status = 404


class AccessIsDecided(BadRequest):
    """The chat has a group already."""

    code = "access_is_decided"
    http_status = 409


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedAccess:
    """A request after a decision, and the chat's group if it was registered."""

    request: AccessRequest
    group: Group | None

    def explain(self) -> str:
        """Return what was decided about the chat, in a sentence for people."""
        name = label(self.request)
        if self.group is not None:
            return f"Registered: {name} is the group '{self.group.folder}' now, and {_answers(self.group)}."
        if self.request.state is AccessState.BLOCKED:
            return f"Blocked: {name} is not asked about again."
        return f"Ignored: {name} is not asked about for {IGNORED_MS // DAY_MS} days."


async def ask(tx: Tx, message: Inbound, *, now_ms: int) -> AccessRequest | None:
    """Store the request of a chat without a group that calls Andy, and ask the owner about it.

    Return the stored request. After `MAX_NOTIFIED_A_DAY` questions in a day, the owner is not asked about the
    chat, but gets a message that one more chat calls. None if nothing is stored: a request of the chat waits
    already, the chat is blocked or was ignored less than `IGNORED_MS` ago, the message is from a program of
    this machine, or too many requests wait.
    """
    earlier = await access_requests.of_chat(tx, message.chat_jid)
    if earlier is not None and not _may_ask_again(earlier, now_ms=now_ms):
        return None
    # A program of this machine that writes without a messenger is no stranger.
    if message.channel is None:
        return None
    waiting = await access_requests.count_waiting(tx)
    # The newest call never pushes out the oldest: a flood would push out the chats that the owner waits for.
    if waiting.all >= MAX_WAITING:
        return None
    request = await access_requests.add(tx, await _shown_parts(tx, message), now_ms=now_ms)
    await _notify(tx, request, listed=waiting.only_listed, now_ms=now_ms)
    return request


def _may_ask_again(request: AccessRequest, *, now_ms: int) -> bool:
    """Return whether the owner may be asked again about a chat that called before. Pure."""
    match request.state:
        case AccessState.WAITING | AccessState.BLOCKED:
            return False
        case AccessState.IGNORED:
            return now_ms >= (request.decided_ms or 0) + IGNORED_MS
        case AccessState.REGISTERED:
            return True  # the chat has lost its group since, or this function would not be called for it


async def _shown_parts(tx: Tx, message: Inbound) -> NewAccessRequest:
    """Return the parts of a message and its chat that the owner is shown, with each text cut to its limit."""
    chat = await chats.get(tx, message.chat_jid)
    members = await chats.members_of(tx, message.chat_jid)
    name = "" if chat is None or chat.name == message.chat_jid else chat.name
    return NewAccessRequest(
        chat_jid=message.chat_jid,
        chat_name=_bounded(name, MAX_NAME),
        channel=message.channel or "",
        is_direct=message.is_direct,
        people=message.people or len(members) or None,
        sender=_bounded(message.sender, MAX_ADDRESS),
        sender_name=_bounded(message.sender_name, MAX_NAME),
        is_owner=message.is_from_me,
        message_id=message.id,
        words=_bounded(message.text or message.file or "", MAX_WORDS),
    )


def _bounded(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters, of which the last is `…` if the rest was cut off."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


async def _notify(tx: Tx, request: AccessRequest, *, listed: int, now_ms: int) -> None:
    """Ask the owner in the main group about a request.

    After `MAX_NOTIFIED_A_DAY` questions in 24 hours, the owner gets only one text a day, with the number of
    further chats that call, which is brought up to date until the text is sent. `listed` is the number of
    earlier waiting requests about which the owner was not asked.
    """
    notified = await access_requests.count_notified(tx, since_ms=now_ms - DAY_MS, now_ms=now_ms)
    if notified < MAX_NOTIFIED_A_DAY:
        # A text whose `about` begins with `ASKED` is left out of what main's agent reads: that agent may do
        # more than others, and must not be given a stranger's words.
        text = question(request, listed=listed)
        await owner.notify_once(tx, text, about=f"{owner.ASKED}access:{request.id}", now_ms=now_ms)
        await access_requests.note_notified(tx, request.id, now_ms=now_ms)
    else:
        text = f"🚪 {_and_more(listed + 1)} I ask about {MAX_NOTIFIED_A_DAY} chats a day."
        await owner.notify_once(tx, text, about=f"{owner.ASKED}access-more:{now_ms // DAY_MS}", now_ms=now_ms)


def question(request: AccessRequest, *, listed: int = 0) -> str:
    """Return the text that asks the owner about a chat without a group that calls Andy. Pure.

    The stranger's texts are bounded, quoted and escaped, so that they cannot look like Andy's. `listed` is
    the number of further chats that wait, about which the owner was not asked.
    """
    number = request.id
    call = f"🚪 {where(request)} calls me, and has no group (request {number})."
    words = f"{who(request)} wrote: {quoted(request.words, MAX_WORDS)}"
    answers = (
        f"Answer here: register {number}, register {number} as NAME, ignore {number}, or block {number}."
    )
    more = f"\n{_and_more(listed)}" if listed else ""
    return f"{call} {words}\n{answers} Until then nobody there gets an answer.{more}"


def _and_more(listed: int) -> str:
    """Return a sentence that `listed` more chats call Andy, and where the owner finds them."""
    chats_call = "1 more chat calls" if listed == 1 else f"{listed} more chats call"
    return f"And {chats_call}: the console lists all under Groups, and so does 'andy groups chats'."


def where(request: AccessRequest) -> str:
    """Return the calling chat for people: its name, messenger and number of members. Pure."""
    people = f", {request.people} people" if request.people else ""
    kind = "direct chat" if request.is_direct else "chat"
    return f"The {kind} {label(request)} ({request.channel}{people})"


def label(request: AccessRequest) -> str:
    """Return the name of the chat, or its address if it has none, readable for people. Pure."""
    return quoted(request.chat_name or request.chat_jid, MAX_NAME)


def who(request: AccessRequest) -> str:
    """Return the caller's name and address, readable for people; "You" if it was the owner. Pure."""
    if request.is_owner:
        return "You"
    return f"{quoted(request.sender_name or 'somebody', MAX_NAME)} ({quoted(request.sender, MAX_ADDRESS)})"


def number_of(text: str) -> int:
    """Return the number of a request that somebody typed. Pure.

    Raises `UnknownAccessRequest` if the text is no such number.
    """
    if not re.fullmatch("[0-9]{1,15}", text):
        raise _unknown(text[:20])
    return int(text)


def _unknown(number: str) -> UnknownAccessRequest:
    """Return the error that there is no request with this number."""
    return UnknownAccessRequest(f"There is no request {number} of a chat: see 'andy groups chats'.")


async def decide(
    tx: Tx, number: int, decision: AccessDecision, *, by: str, now_ms: int, name: str | None = None
) -> DecidedAccess:
    """Register, ignore or block a chat without a group that has called Andy, and return the result.

    A chat that was ignored or blocked before can be decided about again. The decision is audited and
    published.

    Args:
        tx: the transaction.
        number: the number of the request.
        decision: what to do with the chat.
        by: who decides.
        now_ms: the present time, in epoch milliseconds.
        name: the name of the new group; None for that of the chat or its sender.

    Raises:
        UnknownAccessRequest: there is no such request.
        AccessIsDecided: the chat has a group already.
        BadRequest: the name cannot be used, belongs to another group, or is given without "register".
    """
    request = await access_requests.get(tx, number)
    if request is None:
        raise _unknown(str(number))
    if await groups.by_jid(tx, request.chat_jid) is not None:
        raise AccessIsDecided(f"Request {number} is decided: the chat has a group already.")
    if name is not None and decision != "register":
        raise BadRequest("Only a chat that is registered gets a name: leave the name out.")
    group = await _register(tx, request, name, now_ms=now_ms) if decision == "register" else None
    state = {
        "register": AccessState.REGISTERED,
        "ignore": AccessState.IGNORED,
        "block": AccessState.BLOCKED,
    }[decision]
    await access_requests.decide(tx, number, state, by=by, now_ms=now_ms)
    detail = {"request": number, "jid": request.chat_jid, "by": by}
    folder = group.folder if group is not None else None
    event = audit.AuditEvent(at_ms=now_ms, kind=f"access.{state.value}", folder=folder, detail=detail)
    await audit.append(tx, event)
    announce(tx, "access.decided", detail=str(number))
    # The store deletes the caller's words with the decision, so the result has none either.
    return DecidedAccess(request=replace(request, state=state, words=""), group=group)


async def ignore_all(tx: Tx, *, by: str, now_ms: int) -> int:
    """Ignore every chat without a group that waits for a decision; return how many there were.

    `by` is who decides.
    """
    waiting = await access_requests.waiting(tx)
    for request in waiting:
        await decide(tx, request.id, "ignore", by=by, now_ms=now_ms)
    return len(waiting)


async def _register(tx: Tx, request: AccessRequest, name: str | None, *, now_ms: int) -> Group:
    """Register the chat of a request as a group, and return the group.

    Its folder is one that no group ever had, so that a stranger gets nobody's files. `name` is the name that
    the owner has chosen; None takes the chat's or the sender's name, with a number if another group has it.

    Raises `NameTaken` if other groups have the chosen name or all of the default ones, and `BadRequest` if
    the name cannot be used.
    """
    taken = {folder.lower() for folder in await audit.registered_folders(tx)} | RESERVED
    taken |= {group.folder.lower() for group in await groups.every(tx)}
    default_name = drawn(request.chat_name) or drawn(request.sender_name) or f"Chat {request.id}"
    names = (
        [name]
        if name is not None
        else [default_name, *(f"{default_name} ({suffix})" for suffix in range(2, MAX_WAITING))]
    )
    # The next name is tried only if another group has the one before: so many names hardly ever run out.
    for number, wanted in enumerate(names, start=1):
        registration_request = Registration(
            folder=free_folder(wanted, taken),
            jid=request.chat_jid,
            name=wanted,
            # In a direct chat every message was a call, so every message is answered.
            requires_trigger=not request.is_direct,
        )
        try:
            return await registration.register_by_hand(tx, registration_request, now_ms=now_ms)
        except NameTaken:
            if number == len(names):
                raise
    raise AssertionError("a name is tried at least")


def free_folder(name: str, taken: Collection[str]) -> str:
    """Return a folder name like `name` that is not `taken`: lower-case letters, digits and dashes. Pure."""
    plain = normalized("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:40].strip("-")
    named = [slug] if slug else []
    numbered = (f"{slug or 'group'}-{number}" for number in count(2 if slug else 1))
    return next(candidate for candidate in chain(named, numbered) if candidate not in taken)


def _answers(group: Group) -> str:
    """Return the end of a sentence about a chat: which of its messages are answered."""
    return "is answered when it calls me" if group.requires_trigger else "every message there is answered"
