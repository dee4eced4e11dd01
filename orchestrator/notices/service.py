"""Store, list, acknowledge and cancel notices for agents, and end expired ones.

A notice is a text that an agent gets in a later turn. An agent creates one with the tool `notify_self`; the
host creates others itself (`orchestrator/store/notices/host_events.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from typing import Any, cast

import structlog

from agent_runner.wire import notify_self
from agent_runner.wire.mailbox import (
    TRANSPORT,
    AcknowledgeNotice,
    CancelNotice,
    ListNotices,
    NotifySelf,
    Reply,
)
from agent_runner.wire.notices import (
    DEFAULT_HOURS,
    MAX_UNDELIVERED,
    Category,
    DeliverAt,
    Notice,
    Priority,
)
from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus
from orchestrator.domain.values import Group, Turn, TurnState
from orchestrator.store.database import Database, Tx
from orchestrator.store.notices import claims as notice_claims
from orchestrator.store.notices import notices
from orchestrator.store.notices.notices import NewNotice, NoticeMaker, NoticeRow, NoticeScope
from orchestrator.store.runs import sessions

log = structlog.get_logger(__name__)

SOURCE = "agent"
LISTED = 50
"""Notices that a list shows at most."""
BY_ITS_AGENT = "its agent cancelled it"
WHEN = {
    "immediate": "you are told as soon as this turn lets you",
    "next_turn": "you are told as your next turn begins",
    "after_n_turns": "you are told as a turn of the chat begins, this many turns on: {turns}",
    "after_tool": "you are told after the next call of {tool}",
    "on_condition": "you are told once {condition}",
}

AgentRequest = NotifySelf | AcknowledgeNotice | ListNotices | CancelNotice


class NoticeService:
    """Carries out the notice requests of agents, each in the caller's transaction."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock

    async def answer(
        self, tx: Tx, group: Group, turn: Turn | None, request: AgentRequest, request_id: str
    ) -> Reply:
        """Carry out a request of the group's agent about its notices, and return the reply.

        A notice is a text that the agent gets in a later turn. A refused request gets a reply with the
        reason. `turn` is the agent's running turn, if any; `request_id` is repeated in the reply.
        """
        try:
            match request:
                case NotifySelf():
                    text, data = await self._add(tx, group, turn, request)
                case AcknowledgeNotice(notice_id=notice_id):
                    text, data = await self._acknowledge(tx, group, notice_id)
                case ListNotices():
                    text, data = await _list(tx, group)
                case CancelNotice():
                    text, data = await self._cancel(tx, group, await _id_of_notice(tx, group, request))
        except NoticeRefused as error:
            return Reply(request_id=request_id, ok=False, code=error.code, text=str(error))
        return Reply(request_id=request_id, ok=True, code="ok", text=text, data=data)

    async def _add(
        self, tx: Tx, group: Group, turn: Turn | None, request: NotifySelf
    ) -> tuple[str, dict[str, Any]]:
        """Store the notice that an agent requests for a later turn, or for its running `turn`.

        It replaces a waiting notice with the same key, even if no further one may be stored. A notice for the
        running turn is claimed for it, so that no other turn gets it. It is not claimed if the turn has
        claimed the replaced notice, because the turn then delivers that older text.

        Return the text and data of the reply. Raises `NoticeRefused` if the request cannot be carried out.
        """
        refusal = notify_self.refusal_of(request)
        if refusal is not None:
            raise NoticeRefused(refusal.code, refusal.text)
        now_ms = self._clock.now_ms()
        new_notice = await _new_notice(tx, group, turn, request, now_ms=now_ms)
        replaced = await _replaced(tx, new_notice)
        if replaced is None:
            await _check_room(tx, new_notice)
        try:
            notice = await notices.add(tx, new_notice, now_ms=now_ms)
        except sqlite3.Error as error:
            log.exception("notice.not_kept", group=group.folder)
            raise NoticeRefused(
                "persist_failed", f"The host could not store it ({error}): try again."
            ) from error
        # A turn that waits for a retry gets all waiting notices when the retry starts.
        is_running = turn is not None and turn.state is TurnState.RUNNING
        is_now = is_running and _is_for_this_turn(request)
        if turn is not None and is_now and not _has_claimed(turn, replaced):
            await notice_claims.take_now(tx, turn, notice.id, now_ms=now_ms)
        return _confirmation(notice), {**row(notice), "status": "ok"}

    async def _acknowledge(self, tx: Tx, group: Group, notice_id: int) -> tuple[str, dict[str, Any]]:
        """Record that the agent has read a notice, so that it does not come again.

        Return the text and data of the reply. Raises `NoticeRefused` if there is no such notice, or it has
        ended.
        """
        is_done = await notices.acknowledge(tx, group.folder, notice_id, now_ms=self._clock.now_ms())
        await _check_done(tx, group, notice_id, is_done=is_done)
        return f"Notice {notice_id} is acknowledged: it does not come again.", {"id": notice_id}

    async def _cancel(self, tx: Tx, group: Group, notice_id: int) -> tuple[str, dict[str, Any]]:
        """Cancel a notice of the group's agent, so that it is not delivered.

        Return the text and data of the reply. Raises `NoticeRefused` if there is no such notice, or it has
        ended.
        """
        is_done = await notices.cancel(
            tx, group.folder, notice_id, reason=BY_ITS_AGENT, now_ms=self._clock.now_ms()
        )
        await _check_done(tx, group, notice_id, is_done=is_done)
        return f"Notice {notice_id} is cancelled.", {"id": notice_id}


async def _new_notice(
    tx: Tx, group: Group, turn: Turn | None, request: NotifySelf, *, now_ms: int
) -> NewNotice:
    """Return the notice to store for a request of an agent; its fields have to be checked already.

    `turn` is the turn in which the agent requests it, if any.

    Raises `NoticeRefused` for a task's notice that would come only after the task's conversation.
    """
    priority, category = cast("Priority", request.priority), cast("Category", request.category)
    deliver_at = cast("DeliverAt", request.deliver_at)
    hours = DEFAULT_HOURS if request.expires_in_hours is None else request.expires_in_hours
    is_isolated = turn is not None and turn.is_isolated
    if is_isolated and not request.persist_cross_session and not _is_for_this_turn(request):
        raise NoticeRefused(
            "bad_value",
            "This task's conversation ends with this turn: set 'persist_cross_session' to be told after it.",
        )
    return NewNotice(
        folder=group.folder,
        maker=NoticeMaker.SELF,
        event_type=notify_self.event_type_of(category),
        source=SOURCE,
        payload={
            "message": notice_claims.plain(request.message.strip()),
            "category": category,
            "priority": priority,
        },
        severity=notify_self.severity_of(priority),
        priority=priority,
        category=category,
        scope=NoticeScope.CROSS_SESSION if request.persist_cross_session else NoticeScope.SESSION,
        # A task's own conversation ends with its turn, and a notice bound to it would never be delivered.
        session_id=None if is_isolated else await sessions.current(tx, group.folder),
        deliver_at=deliver_at,
        inject_at=notify_self.INJECT_AT[deliver_at],
        turns_remaining=request.turns,
        tool_name=(request.tool_name or "") if deliver_at == "after_tool" else None,
        condition=request.condition,
        dedupe_key=_dedupe_key(request, turn.id if turn else None),
        made_turn=turn.id if turn else None,
        expires_ms=now_ms + hours * HOUR_MS if hours else None,
    )


def _is_for_this_turn(request: NotifySelf) -> bool:
    """Return whether a requested notice can be delivered in the same turn in which it is requested."""
    return request.deliver_at in notify_self.IN_THIS_TURN


def _dedupe_key(request: NotifySelf, turn_id: int | None) -> str | None:
    """Return the key of a requested notice: it replaces a waiting notice with the same key.

    It is the key that the agent chose. Without one it is made of the whole request and the turn, so that a
    turn that is tried again stores the same notice once. None without both.
    """
    if request.dedupe_key is not None:
        return f"{OF_ITS_AGENT}{request.dedupe_key}"
    if turn_id is None:
        return None
    # Without the fields that the tool or the container fills in, which differ when the turn is tried again.
    content = request.model_dump_json(exclude=set(TRANSPORT))
    return f"turn:{turn_id}:{hashlib.sha256(content.encode()).hexdigest()[:20]}"


async def _replaced(tx: Tx, new_notice: NewNotice) -> NoticeRow | None:
    """Return the waiting notice that `new_notice` replaces, by its key; None if it replaces none."""
    if new_notice.dedupe_key is None:
        return None
    return await notices.pending_by_key(tx, new_notice.folder, new_notice.dedupe_key)


def _has_claimed(turn: Turn, replaced: NoticeRow | None) -> bool:
    """Return whether a turn had claimed the notice `replaced`, which a new notice has just replaced.

    If so, the turn delivers the older text, and the new notice has to wait for the next turn. `replaced` was
    read before the replacement, and is None if the new notice replaces none.
    """
    return replaced is not None and replaced.claim_turn == turn.id


async def _check_room(tx: Tx, new_notice: NewNotice) -> None:
    """Check that the group's agent may store another notice. Raises `NoticeRefused` if too many wait."""
    if await notices.count_undelivered(tx, new_notice.folder, NoticeMaker.SELF) >= MAX_UNDELIVERED:
        text = f"{MAX_UNDELIVERED} notices wait already, which is the most: cancel one with cancel_notice."
        raise NoticeRefused("limit_reached", text)


async def _id_of_notice(tx: Tx, group: Group, request: CancelNotice) -> int:
    """Return the number of the notice that a request names, either by its number or by the agent's key.

    Raises `NoticeRefused` if the request names it by both or neither, or if no notice with the key waits.
    """
    if request.notice_id is not None and request.dedupe_key is None:
        return request.notice_id
    if request.notice_id is not None or request.dedupe_key is None:
        raise NoticeRefused("bad_value", "Name the notice by 'notice_id' or by 'dedupe_key', one of them.")
    notice = await notices.pending_by_key(tx, group.folder, f"{OF_ITS_AGENT}{request.dedupe_key}")
    if notice is None:
        raise NoticeRefused("unknown_notice", "No notice with this key waits: see list_notices.")
    return notice.id


async def _check_done(tx: Tx, group: Group, notice_id: int, *, is_done: bool) -> None:
    """Check that a notice was changed (`is_done`). Raises `NoticeRefused` with the reason if it was not.

    The reason is that there is no such notice in the group, or that it has ended.
    """
    if is_done:
        return
    notice = await notices.get(tx, group.folder, notice_id)
    if notice is None:
        raise NoticeRefused("unknown_notice", f"There is no notice {notice_id}: see list_notices.")
    raise NoticeRefused("notice_over", f"Notice {notice_id} is {notice.state.value} already.")


async def _list(tx: Tx, group: Group) -> tuple[str, dict[str, Any]]:
    """Return a group's notices that wait or were not acknowledged, as the text and the data of a reply.

    The most urgent come first, at most `LISTED`.
    """
    waiting = await notices.of_group(tx, group.folder, with_ended=False, limit=LISTED)
    lines = [f"{notice.id} [{notice.priority}, {notice.state.value}] {notice.message}" for notice in waiting]
    return "\n".join(lines) or "No notices wait.", {"notices": [row(notice) for notice in waiting]}


def _confirmation(notice: NoticeRow) -> str:
    """Return the text for the agent that its notice is stored, and when it will be delivered."""
    when = WHEN[notice.deliver_at].format(
        turns=notice.turns_remaining, tool=notice.tool_name or "any tool", condition=notice.condition
    )
    again = f", noticed {notice.count} times" if notice.count > 1 else ""
    return f"Notice {notice.id} is kept{again}: {when}."


def row(notice: NoticeRow) -> dict[str, Any]:
    """Return a notice as data for its agent, without the fields that have no value (None).

    `id` is the host's number for it, also in `TurnEnd.told`. `persistence_id` is the same number, under the
    name that it has in the reply to a new notice.
    """
    fields = {
        "id": notice.id,
        "persistence_id": notice.id,
        "event_type": notice.event_type,
        "message": notice.message,
        "category": notice.category,
        "priority": notice.priority,
        "severity": notice.severity,
        "deliver_at": notice.deliver_at,
        "inject_at": notice.inject_at,
        "persist_cross_session": notice.scope is NoticeScope.CROSS_SESSION,
        "turns_remaining": notice.turns_remaining,
        "tool_name": notice.tool_name,
        "condition": notice.condition,
        "dedupe_key": own_key(notice),
        "count": notice.count,
        "state": notice.state.value,
        "created_ms": notice.created_ms,
        "expires_ms": notice.expires_ms,
        "deliveries": notice.deliveries,
    }
    return {name: value for name, value in fields.items() if value is not None}


def own_key(notice: NoticeRow) -> str | None:
    """Return the key that the agent gave to the notice; None where the host made the key."""
    key = notice.dedupe_key or ""
    return key.removeprefix(OF_ITS_AGENT) if key.startswith(OF_ITS_AGENT) else None


def to_wire(notice: NoticeRow) -> Notice:
    """Return a notice in the form in which a turn's order has it."""
    return Notice(
        id=notice.id,
        event_type=notice.event_type,
        source=notice.source,
        severity=notice.severity,
        priority=notice.priority,
        payload=dict(notice.payload),
        created_ms=notice.created_ms,
        count=notice.count,
        tool_name=notice.tool_name,
        condition=notice.condition,
    )


HOUR_MS = 3_600_000
OF_ITS_AGENT = "self:"
"""The prefix of keys that an agent chose; keys without it are the host's own."""


class NoticeRefused(Exception):
    """The request cannot be carried out; the text says why, and what can be done instead."""

    def __init__(self, code: str, text: str) -> None:
        """`code` is the code of the reply to the agent, and `text` its text."""
        super().__init__(text)
        self.code = code


SWEEP_SECONDS = 60.0
"""Seconds between two sweeps. They may be rare: an expired notice is delivered to no turn anyway."""


class NoticeSweeper:
    """Ends the expired notices once a minute."""

    def __init__(self, database: Database, *, clock: Clock, bus: EventBus) -> None:
        self._database = database
        self._clock = clock
        self._bus = bus

    async def run(self) -> None:
        """End expired notices every `SWEEP_SECONDS`, until cancelled."""
        while True:
            await self.sweep()
            await asyncio.sleep(SWEEP_SECONDS)

    async def sweep(self) -> None:
        """End the notices that have expired and publish that; delete old ones that have ended.

        Notices that a turn had claimed and did not deliver are released first.
        """
        now_ms = self._clock.now_ms()
        async with self._database.transaction() as tx:
            # First, because a claimed notice does not expire: one that is set free now may end in the same
            # pass.
            freed = await notice_claims.free_stale(tx, now_ms=now_ms)
            expired = await notices.expire(tx, now_ms=now_ms)
            await notices.prune(tx, now_ms=now_ms)
        if freed:
            log.warning(
                "notices.set_free", count=freed, reason="their turns had ended without a word of them"
            )
        for notice in expired:
            self._bus.publish(
                "notice.expired", group=notice.folder, detail=str(notice.id), reason=notice.reason
            )
