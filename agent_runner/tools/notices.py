"""The tools for notices to oneself: the host stores them until delivery, except those delivered at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, cast

from agent_runner.ans.lazy_notices import LazyNotices
from agent_runner.ipc_client import HostClient
from agent_runner.tools.tool import BadArguments, Tool
from agent_runner.wire import mailbox, notify_self
from agent_runner.wire.mailbox import Command, NotifySelf, Reply
from agent_runner.wire.notices import (
    Category,
    DeliverAt,
    InjectAt,
    Notice,
    Priority,
    Severity,
)

ANSWER_SECONDS = 5.0
"""Seconds that the host may take to store a notice."""
SOURCE = "notify_self"
PERSIST_FAILED = "persist_failed"
HOST_UNREACHED = ("no_answer", "not_written", "bad_reply")
"""Reply codes of the container itself: the host may not have got the request."""
_LOOK_FIRST = "it may still keep it. Look with list_notices before you repeat it."
ANY_TOOL = ""
"""The tool name of a notice that follows whichever tool ends next."""


def notice_tools(noticing: LazyNotices) -> tuple[Tool, ...]:
    """Return the tools for notices of one run, in the order in which a model is shown them.

    `noticing` has the notices of the run.
    """
    return (
        NotifySelfTool(
            name="notify_self",
            description="Leave a note for yourself that you get later: next turn, after a tool, "
            "when a condition comes true, or in a later session. Nobody else sees it.",
            command=mailbox.NotifySelf,
            is_deferred=True,
            refusal="bad_value",
            noticing=noticing,
        ),
        WithdrawingTool(
            name="acknowledge_notification",
            description="Say that you have taken care of a notice, so that it does not come again.",
            command=mailbox.AcknowledgeNotice,
            is_deferred=True,
            noticing=noticing,
        ),
        Tool(
            name="list_notices",
            description="List the notices that wait for you, with their numbers.",
            command=mailbox.ListNotices,
            is_deferred=True,
        ),
        CancelTool(
            name="cancel_notice",
            description="Drop a notice that waits for you.",
            command=mailbox.CancelNotice,
            is_deferred=True,
            noticing=noticing,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifySelfTool(Tool):
    """Leaves a note: at the host if it may outlast the turn, and in this run if it may come in the turn."""

    noticing: LazyNotices

    async def call(
        self,
        arguments: dict[str, Any],
        host: HostClient,
        *,
        turn: int | None = None,
        request_id: str | None = None,
    ) -> Reply:
        """Leave a note for the agent itself, and return the reply, which says when the note will be shown.

        An invalid note is refused with the code of the first mistake. The host stores a note that may outlast
        this turn, under the id `request_id` and with the number of the `turn`.
        """
        try:
            note = cast("NotifySelf", self.read(arguments))
        except BadArguments as error:
            return _refused(self.refusal, str(error))
        if refusal := notify_self.refusal_of(note):
            return _refused(refusal.code, refusal.text)
        notice_id = None
        # A note that is shown in this turn only needs no row at the host.
        if note.deliver_at != "immediate" or note.persist_cross_session:
            reply = await _store_at_host(
                host, note.model_copy(update={"turn": turn, "request_id": request_id})
            )
            if not reply.ok:
                return reply
            notice_id = reply.data.get("id")
        event_id = await self._pass_to_run(note, notice_id)
        return _confirmation(note, event_id=event_id, notice_id=notice_id)

    async def _pass_to_run(self, note: NotifySelf, notice_id: int | None) -> str:
        """Give a note to the notices of this run, and return the id of its event.

        `notice_id` is the note's number at the host. A note that the host has becomes a notice of the run
        only if it can be shown in this turn. For None the host does not have the note, which is for this turn
        alone: it is emitted as an event, of which the run makes a notice. Any note about a discovery or a
        checkpoint is also reported as an event of that kind.
        """
        notices = (await self.noticing.load()).notices
        if notice_id is None:
            event_type, severity, payload = _event(note)
            event_id = notices.emit(event_type, severity, payload, source=SOURCE).id
        else:
            event_id = f"notice-{notice_id}"
            if note.deliver_at in notify_self.IN_THIS_TURN:
                notices.give([_notice(note, notice_id)], at=_inject_at(note))
        note_payload = {"message": note.message, "priority": note.priority, "event_id": event_id}
        if note.category == "discovery":
            notices.emit("discovery.notable", "info", note_payload, source=SOURCE)
        elif note.category == "checkpoint":
            notices.emit("task.checkpoint", "info", note_payload, source=SOURCE)
        return event_id


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawingTool(Tool):
    """Removes a notice at the host, then from the notices of this run, so that it is not delivered."""

    noticing: LazyNotices

    async def call(
        self,
        arguments: dict[str, Any],
        host: HostClient,
        *,
        turn: int | None = None,
        request_id: str | None = None,
    ) -> Reply:
        """Make the host remove a notice, and return its reply; if it did, remove the notice from this run."""
        # `super` needs arguments: `slots=True` replaces this class by another, which a bare `super()` does
        # not know.
        reply = await super(WithdrawingTool, self).call(arguments, host, turn=turn, request_id=request_id)
        # The host's reply has the number, also of a notice that the call named by its dedupe key.
        number = reply.data.get("id", arguments.get("notice_id"))
        if reply.ok and number is not None:
            rules = await self.noticing.load()
            rules.notices.withdraw(int(number))
        return reply


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTool(WithdrawingTool):
    """Refuses a call that names no notice, or names one in two ways, before the host is asked."""

    def read(self, arguments: dict[str, Any]) -> Command:
        """Return the command for the arguments.

        Raises `BadArguments`, also if not exactly one of `notice_id` and `dedupe_key` is set.
        """
        # `super` needs arguments: `slots=True` replaces this class by another, which a bare `super()` does
        # not know.
        command = super(CancelTool, self).read(arguments)
        has_id, has_key = arguments.get("notice_id") is not None, bool(arguments.get("dedupe_key"))
        if has_id == has_key:
            raise BadArguments("Give notice_id or dedupe_key, one of them.")
        return command


def _inject_at(note: NotifySelf) -> InjectAt:
    """Return the point of a turn at which a note is delivered."""
    return notify_self.INJECT_AT[cast("DeliverAt", note.deliver_at)]


def _event(note: NotifySelf) -> tuple[str, Severity, dict[str, Any]]:
    """Return the type, the severity and the payload of the event for a note."""
    category, priority = cast("Category", note.category), cast("Priority", note.priority)
    return notify_self.event_type_of(category), notify_self.severity_of(priority), _payload(note)


def _payload(note: NotifySelf) -> dict[str, Any]:
    """Return the fields of a note's event."""
    return {
        "message": note.message.strip(),
        "priority": note.priority,
        "category": note.category,
        "deliver_at": note.deliver_at,
        "inject_at": _inject_at(note),
        "persist_cross_session": note.persist_cross_session,
    }


def _notice(note: NotifySelf, notice_id: int) -> Notice:
    """Return a note as a notice of this run, under the id that the host gave it."""
    event_type, severity, payload = _event(note)
    return Notice(
        id=notice_id,
        event_type=event_type,
        source=SOURCE,
        severity=severity,
        priority=cast("Priority", note.priority),
        payload=payload,
        tool_name=(note.tool_name or ANY_TOOL) if note.deliver_at == "after_tool" else None,
        condition=note.condition,
    )


async def _store_at_host(host: HostClient, note: NotifySelf) -> Reply:
    """Send a note to the host, which stores it, and return the reply.

    If the host was not reached or did not answer in time, the reply has the code `persist_failed`.
    """
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            reply = await host.ask(note)
    except TimeoutError:
        return _refused(PERSIST_FAILED, f"The host did not answer in {ANSWER_SECONDS:g} s; {_LOOK_FIRST}")
    if reply.ok:
        return reply
    return _refused(PERSIST_FAILED if reply.code in HOST_UNREACHED else reply.code, reply.text)


def _confirmation(note: NotifySelf, *, event_id: str, notice_id: int | None) -> Reply:
    """Return the reply to a note that was accepted.

    `event_id` is the id of its event in this run, `notice_id` its number at the host; None if the host has
    not stored it.
    """
    number = "" if notice_id is None else f" It is notice {notice_id}."
    data = {"status": "ok"} | _payload(note) | {"event_id": event_id, "persistence_id": notice_id}
    return Reply(request_id="none", ok=True, code="noted", text=f"{_when(note)}{number}", data=data)


def _when(note: NotifySelf) -> str:
    """Return the sentence that says when a note will be shown."""
    match note.deliver_at:
        case "immediate":
            return "You are told with the next tool result."
        case "after_tool":
            return f"You are told when {note.tool_name or 'the next tool'} has ended."
        case "on_condition":
            return f"You are told when {note.condition} comes true."
        case "after_n_turns":
            return f"You are told in {note.turns} turn{'' if note.turns == 1 else 's'}."
        case _:
            return "You are told at the start of the next turn."


def _refused(code: str, text: str) -> Reply:
    """Return the reply that refuses a note; its code is in the data, too, which the model reads."""
    return Reply(request_id="none", ok=False, code=code, text=text, data={"code": code})
