"""Reminders: asked of the host, told in the group's own time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agent_runner.agents.offline.asked import Asked
from agent_runner.agents.offline.dates import Moment, Trouble
from agent_runner.host import Host
from agent_runner.wire.mailbox import CancelReminder, ListReminders, Reply, SetReminder

SECONDS_SHOWN_WITHIN = 120
MAX_SENDER_CHARS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A reminder that the host keeps."""

    id: int
    at: datetime
    text: str


class Reminders:
    """Sets, tells and cancels. A refusal of the host is told in its own words."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def set(self, asked: Asked, what: str, moment: Moment, *, is_for_all: bool) -> str:
        command = SetReminder(
            request_id=asked.request_id,
            text=note(asked, what, is_for_all=is_for_all),
            at=moment.at.isoformat(timespec="seconds"),
        )
        reply = await self._host.ask(command)
        at = _due_at(reply, asked)
        if not reply.ok or at is None or "id" not in reply.data:
            return reply.text
        if reply.code == "sent_late":
            return asked.words.reminder_late.format(moment=asked.words.moment(at, has_seconds=True))
        return _set(asked, what, at, moment, reply.data["id"])

    async def cancel(self, asked: Asked, reminder_id: int) -> str:
        reply = await self._host.ask(CancelReminder(request_id=asked.request_id, reminder_id=reminder_id))
        return asked.words.reminder_cancelled.format(id=reminder_id) if reply.ok else reply.text

    async def told(self, asked: Asked) -> str:
        reply = await self._host.ask(ListReminders())
        if not reply.ok:
            return reply.text
        lines = [line(asked, due) for due in _coming(reply, asked)]
        return "\n".join([asked.words.reminders, *lines]) if lines else asked.words.no_reminders

    async def lines_of_today(self, asked: Asked) -> list[str]:
        """Those of today, one a line with its clock time; a refusal is the only line."""
        reply = await self._host.ask(ListReminders())
        if not reply.ok:
            return [reply.text]
        today = [due for due in _coming(reply, asked) if due.at.date() == asked.now.date()]
        return [f"• {due.at:%H:%M} {due.text}" for due in today]


def note(asked: Asked, what: str, *, is_for_all: bool) -> str:
    """What will stand in the chat when the time comes."""
    sender = " ".join(asked.sender.split())[:MAX_SENDER_CHARS]
    form = asked.words.note_for_all if is_for_all or not sender else asked.words.note
    return form.format(sender=sender, what=what)


def line(asked: Asked, due: Due) -> str:
    return f"{due.id}. {asked.words.moment(due.at)} · {due.text.removeprefix('⏰ ')}"


def unclear(asked: Asked, trouble: Trouble, at: datetime | None = None) -> str:
    """Say why there is no reminder, and how to ask for one."""
    return asked.words.troubles[trouble].format(moment=asked.words.moment(at) if at else "—")


def _set(asked: Asked, what: str, at: datetime, moment: Moment, reminder_id: int) -> str:
    is_soon = at.timestamp() - asked.now.timestamp() < SECONDS_SHOWN_WITHIN
    said = asked.words.reminder_set.format(
        moment=asked.words.moment(at, has_seconds=is_soon and at.second != 0), what=what, id=reminder_id
    )
    return said + _shift(asked, moment)


def _shift(asked: Asked, moment: Moment) -> str:
    offset = f"{moment.at:%z}"
    return asked.words.shifts[moment.shift].format(offset=f"{offset[:3]}:{offset[3:5]}")


def _coming(reply: Reply, asked: Asked) -> list[Due]:
    listed: list[dict[str, Any]] = reply.data.get("reminders", [])
    return [Due(id=one["id"], at=_local(one["due_ms"], asked), text=one["text"]) for one in listed]


def _due_at(reply: Reply, asked: Asked) -> datetime | None:
    due_ms = reply.data.get("due_ms")
    return _local(due_ms, asked) if isinstance(due_ms, int) else None


def _local(due_ms: int, asked: Asked) -> datetime:
    return datetime.fromtimestamp(due_ms / 1000, asked.now.tzinfo)
