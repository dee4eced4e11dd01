"""Reports notices, as rows for machines and lines for people, and cancels them for a person."""

from __future__ import annotations

import re
from typing import TypedDict
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_minute
from orchestrator.base.tables import short
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


async def every(tx: Tx, folder: str, *, with_over: bool, limit: int) -> list[NoticeView]:
    """Return a group's notices that wait or were not acknowledged; all of them `with_over`.

    Raises:
        UnknownGroup: there is none.
    """
    group = await groups.known(tx, folder)
    found = await notices.of_group(tx, group.folder, with_over=with_over, limit=limit)
    return [row(notice) for notice in found]


async def one(tx: Tx, folder: str, number: str) -> NoticeView:
    """Return one notice, whole. Raises `UnknownGroup`, `UnknownNotice`; `BadRequest` for no number."""
    return row(await _known(tx, folder, number))


async def cancel(tx: Tx, folder: str, number: str, *, now_ms: int) -> NoticeRow:
    """Cancel a notice, so that it is not delivered. Raises what `one` does; `BadRequest` if it is over."""
    notice = await _known(tx, folder, number)
    if not await notices.cancel(tx, notice.folder, notice.id, reason=BY_HAND, now_ms=now_ms):
        raise BadRequest(
            f"Notice {notice.id} of '{notice.folder}' is {notice.state.value} already: "
            f"see 'andy notices list {notice.folder}' for those that are not."
        )
    return notice


async def _known(tx: Tx, folder: str, number: str) -> NoticeRow:
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
    """Return a notice as people and machines see it."""
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
    return [_line(one) for one in rows] or ["No notices."]


def _line(found: NoticeView) -> str:
    count = f" {found['count']}×" if found["count"] > 1 else ""
    waits = f" ({when(found)})" if found["state"] == NoticeState.PENDING else ""
    what = short(found["message"], 80)
    return f"{found['id']:>4} {found['state']} {found['priority']} {found['made_by']}{count}: {what}{waits}"


def when(found: NoticeView) -> str:
    """Return in words what a notice waits for."""
    if found["told_now_in_turn"] is not None:
        return f"turn {found['told_now_in_turn']} has it"
    match found["deliver_at"]:
        case "after_n_turns" if found["turns_remaining"]:
            return f"{found['turns_remaining']} turns of the chat from now"
        case "after_tool":
            return f"after the next call of {found['tool_name'] or 'any tool'}"
        case "on_condition":
            return f"once {found['condition']}"
        case _:
            return "next turn"


def show_lines(found: NoticeView, zone: ZoneInfo) -> list[str]:
    """Return all facts of one notice, a line each; those that it does not have are left out."""
    at = {
        "kept": found["created_ms"],
        "told": found["delivered_ms"],
        "over": found["ended_ms"],
        "expires": found["expires_ms"],
    }
    facts = {
        "what": f"{found['event_type']}, {found['priority']}, by the {found['made_by']}",
        "waits": when(found) if found["state"] == NoticeState.PENDING else None,
        "why": found["reason"],
        "times": f"noticed {found['count']} times" if found["count"] > 1 else None,
        "lives": "until it expires" if found["outlives_session"] else "as long as its conversation",
        **{name: None if ms is None else local_minute(ms, zone) for name, ms in at.items()},
        "expires": "never" if found["expires_ms"] is None else local_minute(found["expires_ms"], zone),
        "tellings": str(found["deliveries"]) if found["deliveries"] else None,
        "as told": found["told_text"],
    }
    head = f"Notice {found['id']} of {found['group']}: {found['state']}"
    return [head, f"  {found['message']}", *(f"  {name:<9}{text}" for name, text in facts.items() if text)]


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
    """Return an urgent notice that a model received, as the status lists it."""
    return {
        "at_ms": notice.delivered_ms,
        "group": notice.folder,
        "turn": notice.turn_id,
        "id": notice.notice_id,
        "event_type": notice.event_type,
        "priority": notice.priority,
        "text": short(notice.text, 200),
    }
