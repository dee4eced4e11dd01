"""Reminders: asked of the host, told in the group's own time. Repeating ones are the host's tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from typing import Any

from agent_runner.agents.offline.conversation import Asked, Option, Ref
from agent_runner.agents.offline.intents import ECHO, Wish
from agent_runner.ipc_client import HostClient
from agent_runner.wire import times
from agent_runner.wire.mailbox import (
    CancelReminder,
    CancelTask,
    ListReminders,
    ListTasks,
    Reply,
    ScheduleTask,
    SetReminder,
)
from agent_runner.wire.times import DateOnly, Language, Reading, Reason, Recurrence, TimeRefusal

SECONDS_SHOWN_WITHIN = 120
MAX_SENDER_CHARS = 60
SOONEST_REPEAT = timedelta(minutes=10)
_FOR_ALL = ("us", "everyone", "everybody", "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A reminder that the host keeps; `times` is there for one that comes again and again."""

    id: str
    at: datetime | None
    text: str
    times: str = ""
    rhythm: Reading | None = None

    @property
    def ref(self) -> Ref:
        return Ref(kind="repeat" if self.times else "reminder", id=self.id, label=self.text)


class Reminders:
    """Sets, tells and cancels. A refusal of the host is told in its own words."""

    def __init__(self, host: HostClient, folder: str) -> None:
        self._host = host
        self._folder = folder

    async def remind(self, wish: Wish, asked: Asked) -> str:
        """Set what is wished, or ask for what is missing."""
        wish = _as_reminder(wish, asked)
        if question := _missing(wish, asked):
            return question
        read = times.read(wish.slot("when"), now=asked.now, zone=asked.zone)
        if isinstance(read, TimeRefusal) and read.reason is Reason.WHICH_HALF and wish.slot("half"):
            wish = wish.having(when=f"{wish.slot('when')} {wish.slot('half')}")
            read = times.read(wish.slot("when"), now=asked.now, zone=asked.zone)
        if isinstance(read, TimeRefusal | DateOnly):
            why = unclear(read, asked)
            if wish.slot("offered"):
                return asked.ask(wish, "when", asked.say("sure_when", what=wish.slot("what"), why=why))
            return asked.ask(wish, "when", why + _about(wish, asked))
        if wish.slot("offered") and not wish.slot("sure"):
            shown = times.say(read, asked.language)
            return asked.ask(wish, "sure", asked.say("sure_remind", what=wish.slot("what"), moment=shown))
        if isinstance(read, Recurrence):
            return await self._repeat(wish, read, asked)
        return await self._set(wish, read, asked)

    async def _set(self, wish: Wish, read: times.Instant | times.Duration, asked: Asked) -> str:
        command = SetReminder(
            request_id=asked.next_id(), text=note(asked, wish), at=read.at.isoformat(timespec="seconds")
        )
        reply = await self._host.ask(command)
        due_ms, number = reply.data.get("due_ms"), reply.data.get("id")
        if not reply.ok or not isinstance(due_ms, int) or number is None:
            return reply.text
        at = datetime.fromtimestamp(due_ms / 1000, asked.zone)
        if reply.code == "sent_late":
            return asked.say("reminder_late", moment=asked.moment(at, has_seconds=True))
        ref = Ref(kind="reminder", id=str(number), label=wish.slot("what"))
        asked.show({**asked.known.shown, str(number): ref})
        is_soon = at.timestamp() - asked.now.timestamp() < SECONDS_SHOWN_WITHIN
        moment = asked.moment(at, has_seconds=is_soon and at.second != 0)
        form = "reminder_set" if wish.slot("what") else "reminder_set_bare"
        said = asked.say(form, moment=moment, what=wish.slot("what"), id=number)
        shift = read.shift if isinstance(read, times.Instant) else times.Shift.NONE
        offset = f"{read.at:%z}"
        return said + asked.say(f"shifts.{shift.value}", offset=f"{offset[:3]}:{offset[3:5]}")

    async def _repeat(self, wish: Wish, read: Recurrence, asked: Asked) -> str:
        if read.interval is not None and read.interval < SOONEST_REPEAT:
            return asked.ask(wish.having(when=""), "when", asked.say("too_often"))
        kind, value = ("cron", read.cron or "") if read.interval is None else ("interval", _ms(read.interval))
        command = ScheduleTask(
            request_id=asked.next_id(),
            prompt=ECHO + note(asked, wish),
            schedule_type=kind,
            schedule_value=value,
        )
        reply = await self._host.ask(command)
        if not reply.ok:
            return reply.text
        return asked.say(
            "repeat_set",
            times=times.say(read, asked.language),
            what=wish.slot("what") or asked.say("reminders").rstrip(":").lower(),
            moment=asked.moment(_next_run(reply.data, asked) or read.first),
        )

    async def show(self, _wish: Wish, asked: Asked) -> str:
        """List what is to come, by number."""
        coming = await self._coming(asked)
        if isinstance(coming, Reply):
            return coming.text
        refs = numbered(coming)
        asked.show({number: due.ref for number, due in refs.items()})
        lines = [_line(asked, number, due) for number, due in refs.items()]
        return "\n".join([asked.say("reminders"), *lines]) if lines else asked.say("no_reminders")

    async def of_day(self, day: date, asked: Asked) -> list[str]:
        """Those of a day, one a line with its clock time; a refusal is the only line."""
        coming = await self._coming(asked)
        if isinstance(coming, Reply):
            return [coming.text]
        found = [(at, due.text) for due in coming if (at := _at_on(due, day)) is not None]
        return [f"• {at:%H:%M} {text}" for at, text in sorted(found)]

    async def cancel(self, wish: Wish, asked: Asked) -> str:
        """Cancel the one that is meant; which, is asked where it could be several."""
        if wish.slot("id"):
            return await self._cancel(wish, asked)
        coming = await self._coming(asked, request_id=asked.next_id())
        if isinstance(coming, Reply):
            return coming.text
        if not coming:
            return asked.say("no_reminders")
        if wish.slot("all"):
            return await self._cancel_all(wish, coming, asked)
        found = _find(wish.slot("item"), coming, asked)
        if not found:
            return asked.say("no_reminder", item=wish.slot("item"))
        options = tuple(
            Option(label=_line(asked, "", due).removeprefix(". "), wish=_cancelling(wish, due))
            for due in found
        )
        if len(options) > 1:
            asked.show({str(number): due.ref for number, due in enumerate(found, 1)})
            return asked.ask(wish, "which", asked.say("which_reminder"), options)
        return await self._cancel(options[0].wish, asked)

    async def _cancel_all(self, wish: Wish, coming: list[Due], asked: Asked) -> str:
        if not wish.slot("sure"):
            return asked.ask(wish, "sure", asked.say("sure_cancel_all", count=len(coming)))
        refused = [said for due in coming if (said := await self._drop(due.ref, asked)) is not None]
        done = asked.say("all_cancelled", count=len(coming) - len(refused))
        return "\n".join([done, *dict.fromkeys(refused)])

    async def _cancel(self, wish: Wish, asked: Asked) -> str:
        ref = Ref(kind=wish.slot("kind"), id=wish.slot("id"), label=wish.slot("label"))
        refused = await self._drop(ref, asked)
        return refused or asked.say("reminder_cancelled", what=ref.label.removeprefix("⏰ ").rstrip("."))

    async def _drop(self, ref: Ref, asked: Asked) -> str | None:
        """Cancel one; a refusal is returned."""
        command: CancelTask | CancelReminder = (
            CancelTask(request_id=asked.next_id(), task_id=ref.id)
            if ref.kind == "repeat"
            else CancelReminder(request_id=asked.next_id(), reminder_id=int(ref.id))
        )
        reply = await self._host.ask(command)
        return None if reply.ok else reply.text

    async def _coming(self, asked: Asked, *, request_id: str | None = None) -> list[Due] | Reply:
        """Return all that is to come, soonest first, or the host's refusal."""
        reply = await self._host.ask(ListReminders(request_id=request_id))
        if not reply.ok:
            return reply
        once = [
            Due(
                id=str(row["id"]),
                at=datetime.fromtimestamp(row["due_ms"] / 1000, asked.zone),
                text=row["text"].removeprefix("⏰ "),
            )
            for row in reply.data.get("reminders", [])
        ]
        again = await self._host.ask(ListTasks(request_id=f"{request_id}-t" if request_id else None))
        rows = again.data.get("tasks", []) if again.ok else []
        return once + [_repeating(row, asked) for row in rows if self._is_ours(row)]

    def _is_ours(self, row: dict[str, Any]) -> bool:
        is_open = row.get("status") in ("active", "paused")
        return is_open and row.get("groupFolder") == self._folder and row["prompt"].startswith(ECHO)


def _as_reminder(wish: Wish, asked: Asked) -> Wish:
    """A timer and a call to get up are reminders with words of their own."""
    is_korean = wish.language is Language.KOREAN
    if wish.intent == "timer" and not wish.slot("what"):
        span = wish.slot("span").replace("-", " ")
        has_form = span.lower().startswith(("in ", "at ")) or span.endswith(("뒤", "후"))
        when = span if has_form else f"{span} 뒤" if is_korean else f"in {span}"
        return wish.having(what=asked.say("what_timer"), when=when)
    if wish.intent == "get_up":
        return wish.having(what=asked.say("what_wake"), half="오전" if is_korean else "am")
    return wish


def unclear(read: TimeRefusal | DateOnly, asked: Asked) -> str:
    """Say why a time cannot be taken, as a question."""
    if isinstance(read, DateOnly):
        day = times.say_day(read.day, asked.language)
        return asked.say("time.needs_clock", on=asked.say("on_day", day=day))
    moment = asked.moment(read.at) if read.at else "—"
    return asked.say(f"time.{read.reason.value}", moment=moment, on="")


def note(asked: Asked, wish: Wish) -> str:
    """What will stand in the chat when the time comes."""
    sender = " ".join((wish.slot("sender") or asked.sender).split())[:MAX_SENDER_CHARS]
    is_for_all = wish.slot("whom").lower() in _FOR_ALL or wish.slot("whom").startswith(
        ("우리", "모두", "다들")
    )
    form = "note" if wish.slot("what") else "note_bare"
    if is_for_all or not sender:
        form += "_for_all"
    return asked.say(form, sender=sender, what=wish.slot("what"))


def numbered(coming: list[Due]) -> Mapping[str, Due]:
    """Number reminders by the host's own numbers; those that repeat follow the highest."""
    once = {due.id: due for due in coming if not due.times}
    highest = max((int(number) for number in once), default=0)
    again = [due for due in coming if due.times]
    return once | {str(number): due for number, due in enumerate(again, highest + 1)}


def _missing(wish: Wish, asked: Asked) -> str | None:
    what, when = wish.slot("what"), wish.slot("when")
    if wish.slot("trouble") == "unsure":
        return asked.ask(wish.having(trouble=""), "when", asked.say("time.unsure"))
    if wish.slot("trouble") == "no_text" or not (what or when):
        return asked.ask(wish, "what", asked.say("no_text"))
    if not when:
        return asked.ask(wish, "when", asked.say("time.no_time") + _about(wish, asked))
    return None


def _about(wish: Wish, asked: Asked) -> str:
    """Name what a question is about, where others were asked in the same message."""
    has_others = asked.new_questions or asked.known.questions
    return f" ({wish.slot('what')})" if wish.slot("what") and has_others else ""


def _find(item: str, coming: list[Due], asked: Asked) -> list[Due]:
    """Those that a number, a text or nothing at all can mean."""
    if not item:
        return coming
    if item.isdecimal():
        ref = asked.known.shown.get(item)
        meant = [due for due in coming if ref is not None and due.ref.id == ref.id]
        return meant or [due for number, due in numbered(coming).items() if number == item]
    return [due for due in coming if item.casefold() in due.text.casefold()]


def _cancelling(wish: Wish, due: Due) -> Wish:
    return wish.having(kind=due.ref.kind, id=due.id, label=due.text, item="")


def _line(asked: Asked, number: str, due: Due) -> str:
    moment = asked.moment(due.at) if due.at else "—"
    if due.times:
        return asked.say("repeat_line", number=number, times=due.times, moment=moment, what=due.text)
    return f"{number}. {moment} · {due.text}"


def _repeating(row: dict[str, Any], asked: Asked) -> Due:
    text = row["prompt"].removeprefix(ECHO).removeprefix("⏰ ")
    at = _next_run(row, asked)
    rhythm = _rhythm(row, at or asked.now)
    said = times.say(rhythm, asked.language) or row["schedule_value"]
    return Due(id=row["id"], at=at, text=text, times=said, rhythm=rhythm)


def _at_on(due: Due, day: date) -> time | None:
    """Return when on a day it comes, None when it does not."""
    if isinstance(due.rhythm, Recurrence) and due.rhythm.interval is None:
        is_begun = due.at is not None and due.at.date() <= day
        return due.rhythm.clock if is_begun and due.rhythm.is_on(day) else None
    return due.at.time() if due.at and due.at.date() == day else None


def _rhythm(row: dict[str, Any], first: datetime) -> Reading:
    """Read a schedule of this agent's own again: one of the forms that `Recurrence.cron` writes."""
    nothing = TimeRefusal(reason=Reason.NO_TIME)
    try:
        if row["schedule_type"] == "interval":
            return Recurrence(first=first, interval=timedelta(milliseconds=int(row["schedule_value"])))
        minute, hour, day, month, weekdays = row["schedule_value"].split()
        one = Recurrence(first=first, clock=time(int(hour), int(minute)))
        return replace(
            one,
            weekdays=()
            if weekdays == "*"
            else tuple(sorted((int(each) + 6) % 7 for each in weekdays.split(","))),
            month_day=None if day == "*" else int(day),
            month=None if month == "*" else int(month),
        )
    except (ValueError, OverflowError):
        return nothing


def _next_run(row: dict[str, Any], asked: Asked) -> datetime | None:
    next_run = row.get("next_run")
    return datetime.fromisoformat(next_run).astimezone(asked.zone) if next_run else None


def _ms(interval: timedelta) -> str:
    return str(round(interval.total_seconds() * 1000))
