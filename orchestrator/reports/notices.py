"""Reports notices, as rows for machines and lines for people, and cancels them for a person."""

from __future__ import annotations

import re
from typing import TypedDict
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_minute
from orchestrator.base.tables import counted, short
from orchestrator.domain.errors import BadRequest
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.notices import notices
from orchestrator.store.notices.claims import DeliveredNoticeRow
from orchestrator.store.notices.notices import NoticeMaker, NoticeRow, NoticeScope, NoticeState

BY_HAND = "it was cancelled by hand"
_NUMBER = re.compile(r"[0-9]{1,18}")


class NoticeView(TypedDict):
    """A notice with stable keys; times are epoch milliseconds."""

    id: int
    group: str
    state: str
    reason: str | None
    made_by: str
    event_type: str
    priority: str
    severity: str
    category: str | None
    message: str
    count: int
    deliver_at: str
    turns_remaining: int | None
    tool_name: str | None
    condition: str | None
    outlives_session: bool
    session: str | None
    dedupe_key: str | None
    made_in_turn: int | None
    told_now_in_turn: int | None
    deliveries: int
    told_text: str | None
    created_ms: int
    expires_ms: int | None
    delivered_ms: int | None
    acknowledged_ms: int | None
    ended_ms: int | None


class UnknownNotice(BadRequest):
    """There is no such notice."""

    code = "unknown_notice"
    http_status = 404


async def every(tx: Tx, folder: str, *, with_ended: bool, limit: int) -> list[NoticeView]:
    """Return a group's notices, lines for its agent's prompts, that wait or were not acknowledged.

    With `with_ended`, those that are over are returned, too; at most `limit`.

    Raises:
        UnknownGroup: the group is not registered.
    """
    group = await groups.known(tx, folder)
    group_notices = await notices.of_group(tx, group.folder, with_ended=with_ended, limit=limit)
    return [row(notice) for notice in group_notices]


async def get(tx: Tx, folder: str, number: str) -> NoticeView:
    """Return the notice of a group with this number, as people and machines see it.

    Raises:
        UnknownGroup: there is no such group.
        UnknownNotice: the group has no such notice.
        BadRequest: `number` is no number.
    """
    return row(await _known(tx, folder, number))


async def cancel(tx: Tx, folder: str, number: str, *, now_ms: int) -> NoticeRow:
    """Cancel a notice, a line for the prompt of a group's agent, so that it is not delivered.

    Return it as it was before.

    Raises:
        UnknownGroup: there is no such group.
        UnknownNotice: the group has no such notice.
        BadRequest: `number` is no number, or the notice is over.
    """
    notice = await _known(tx, folder, number)
    if not await notices.cancel(tx, notice.folder, notice.id, reason=BY_HAND, now_ms=now_ms):
        raise BadRequest(
            f"Notice {notice.id} of '{notice.folder}' is {notice.state.value} already: "
            f"see 'andy notices list {notice.folder}' for those that are not."
        )
    return notice


async def _known(tx: Tx, folder: str, number: str) -> NoticeRow:
    """Return the notice of a group with this number.

    Raises:
        UnknownGroup: there is no such group.
        UnknownNotice: the group has no such notice.
        BadRequest: `number` is no number.
    """
    group = await groups.known(tx, folder)
    if not _NUMBER.fullmatch(number):
        raise BadRequest(
            f"'{short(number, 40)}' is no number of a notice: they are in the first column of "
            f"'andy notices list {group.folder}'."
        )
    notice = await notices.get(tx, group.folder, int(number))
    if notice is None:
        raise UnknownNotice(
            f"'{group.folder}' has no notice {number}: see 'andy notices list {group.folder} --all'."
        )
    return notice


def row(notice: NoticeRow) -> NoticeView:
    """Return a notice, a line for the prompt of an agent, as the API and `--json` show it.

    `told_now_in_turn` is the turn that is to deliver it now, and `told_text` the text that the model reads.
    """
    return {
        "id": notice.id,
        "group": notice.folder,
        "state": notice.state.value,
        "reason": notice.reason,
        "made_by": "agent" if notice.maker is NoticeMaker.SELF else "host",
        "event_type": notice.event_type,
        "priority": notice.priority,
        "severity": notice.severity,
        "category": notice.category,
        "message": notice.message,
        "count": notice.count,
        "deliver_at": notice.deliver_at,
        "turns_remaining": notice.turns_remaining,
        "tool_name": notice.tool_name,
        "condition": notice.condition,
        "outlives_session": notice.scope is NoticeScope.CROSS_SESSION,
        "session": notice.session_id,
        "dedupe_key": notice.dedupe_key,
        "made_in_turn": notice.made_turn,
        "told_now_in_turn": notice.claim_turn,
        "deliveries": notice.deliveries,
        "told_text": notice.content,
        "created_ms": notice.created_ms,
        "expires_ms": notice.expires_ms,
        "delivered_ms": notice.delivered_ms,
        "acknowledged_ms": notice.acknowledged_ms,
        "ended_ms": notice.ended_ms,
    }


def list_lines(rows: list[NoticeView]) -> list[str]:
    """Return a line for each notice."""
    return [_line(notice) for notice in rows] or ["No notices."]


def _line(notice: NoticeView) -> str:
    """Return a notice in one line: number, state, priority, maker, text, and what it waits for."""
    count = f" {notice['count']}×" if notice["count"] > 1 else ""
    waits = f" ({when(notice)})" if notice["state"] == NoticeState.PENDING else ""
    excerpt = short(notice["message"], 80)
    head = f"{notice['id']:>4} {notice['state']} {notice['priority']} {notice['made_by']}{count}"
    return f"{head}: {excerpt}{waits}"


def when(notice: NoticeView) -> str:
    """Return in words when a notice that waits is delivered to the agent.

    One that waited for a number of turns, all of which are over, comes in the next turn, as most notices do.
    """
    if notice["told_now_in_turn"] is not None:
        return f"turn {notice['told_now_in_turn']} has it"
    match notice["deliver_at"]:
        case "after_n_turns" if notice["turns_remaining"]:
            return f"{counted(notice['turns_remaining'], 'turn')} of the chat from now"
        case "after_tool":
            return f"after the next call of {notice['tool_name'] or 'any tool'}"
        case "on_condition":
            return f"once {notice['condition']}"
        case _:
            return "next turn"


def show_lines(notice: NoticeView, zone: ZoneInfo) -> list[str]:
    """Return a notice as lines for people, one for each fact that is known of it, with times in `zone`."""
    times_ms = {
        "kept": notice["created_ms"],
        "told": notice["delivered_ms"],
        "over": notice["ended_ms"],
    }
    facts = {
        "what": f"{notice['event_type']}, {notice['priority']}, by the {notice['made_by']}",
        "waits": when(notice) if notice["state"] == NoticeState.PENDING else None,
        "why": notice["reason"],
        "times": f"noticed {notice['count']} times" if notice["count"] > 1 else None,
        "lives": "until it expires" if notice["outlives_session"] else "as long as its conversation",
        **{name: None if ms is None else local_minute(ms, zone) for name, ms in times_ms.items()},
        "expires": "never" if notice["expires_ms"] is None else local_minute(notice["expires_ms"], zone),
        "tellings": str(notice["deliveries"]) if notice["deliveries"] else None,
        "as told": notice["told_text"],
    }
    head = f"Notice {notice['id']} of {notice['group']}: {notice['state']}"
    return [head, f"  {notice['message']}", *(f"  {name:<9}{text}" for name, text in facts.items() if text)]


class DeliveredNoticeView(TypedDict):
    """An urgent notice that a model received; `id` is None of one that was not stored as a notice."""

    at_ms: int
    group: str
    turn: int
    id: int | None
    event_type: str
    priority: str
    text: str


def delivered_row(notice: DeliveredNoticeRow) -> DeliveredNoticeView:
    """Return the row of the host's status for a notice that a model has received; its text is shortened."""
    return {
        "at_ms": notice.delivered_ms,
        "group": notice.folder,
        "turn": notice.turn_id,
        "id": notice.notice_id,
        "event_type": notice.event_type,
        "priority": notice.priority,
        "text": short(notice.text, 200),
    }
