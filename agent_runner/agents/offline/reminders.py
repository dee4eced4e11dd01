"""Reminders: asked of the host, told in the group's own time. Repeating ones are the host's tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from typing import Any

from agent_runner.agents.offline.conversation import Option, RequestContext, ShownEntry
from agent_runner.agents.offline.intents import ECHO, ParsedRequest
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
class UpcomingReminder:
    """A reminder that the host keeps; `times` is there for one that comes again and again."""

    id: str
    at: datetime | None
    text: str
    times: str = ""
    rhythm: Reading | None = None

    @property
    def ref(self) -> ShownEntry:
        return ShownEntry(kind="repeat" if self.times else "reminder", id=self.id, label=self.text)


class Reminders:
    """Sets, tells and cancels. A refusal of the host is told in its own words."""

    def __init__(self, host: HostClient, folder: str) -> None:
        self._host = host
        self._folder = folder

    async def remind(self, parsed: ParsedRequest, context: RequestContext) -> str:
        """Set what is wished, or ask for what is missing."""
        parsed = _as_reminder(parsed, context)
        if question := _missing(parsed, context):
            return question
        read = times.read(parsed.slot("when"), now=context.now, zone=context.zone)
        if isinstance(read, TimeRefusal) and read.reason is Reason.WHICH_HALF and parsed.slot("half"):
            parsed = parsed.having(when=f"{parsed.slot('when')} {parsed.slot('half')}")
            read = times.read(parsed.slot("when"), now=context.now, zone=context.zone)
        if isinstance(read, TimeRefusal | DateOnly):
            why = unclear(read, context)
            if parsed.slot("offered"):
                return context.ask(
                    parsed, "when", context.say("sure_when", what=parsed.slot("what"), why=why)
                )
            return context.ask(parsed, "when", why + _about(parsed, context))
        if parsed.slot("offered") and not parsed.slot("sure"):
            shown = times.say(read, context.language)
            return context.ask(
                parsed, "sure", context.say("sure_remind", what=parsed.slot("what"), moment=shown)
            )
        if isinstance(read, Recurrence):
            return await self._repeat(parsed, read, context)
        return await self._set(parsed, read, context)

    async def _set(
        self, parsed: ParsedRequest, read: times.Instant | times.Duration, context: RequestContext
    ) -> str:
        command = SetReminder(
            request_id=context.next_id(), text=note(context, parsed), at=read.at.isoformat(timespec="seconds")
        )
        reply = await self._host.ask(command)
        due_ms, number = reply.data.get("due_ms"), reply.data.get("id")
        if not reply.ok or not isinstance(due_ms, int) or number is None:
            return reply.text
        at = datetime.fromtimestamp(due_ms / 1000, context.zone)
        if reply.code == "sent_late":
            return context.say("reminder_late", moment=context.moment(at, has_seconds=True))
        ref = ShownEntry(kind="reminder", id=str(number), label=parsed.slot("what"))
        context.show({**context.known.shown, str(number): ref})
        is_soon = at.timestamp() - context.now.timestamp() < SECONDS_SHOWN_WITHIN
        moment = context.moment(at, has_seconds=is_soon and at.second != 0)
        form = "reminder_set" if parsed.slot("what") else "reminder_set_bare"
        said = context.say(form, moment=moment, what=parsed.slot("what"), id=number)
        shift = read.shift if isinstance(read, times.Instant) else times.Shift.NONE
        offset = f"{read.at:%z}"
        return said + context.say(f"shifts.{shift.value}", offset=f"{offset[:3]}:{offset[3:5]}")

    async def _repeat(self, parsed: ParsedRequest, read: Recurrence, context: RequestContext) -> str:
        if read.interval is not None and read.interval < SOONEST_REPEAT:
            return context.ask(parsed.having(when=""), "when", context.say("too_often"))
        kind, value = ("cron", read.cron or "") if read.interval is None else ("interval", _ms(read.interval))
        command = ScheduleTask(
            request_id=context.next_id(),
            prompt=ECHO + note(context, parsed),
            schedule_type=kind,
            schedule_value=value,
        )
        reply = await self._host.ask(command)
        if not reply.ok:
            return reply.text
        return context.say(
            "repeat_set",
            times=times.say(read, context.language),
            what=parsed.slot("what") or context.say("reminders").rstrip(":").lower(),
            moment=context.moment(_next_run(reply.data, context) or read.first),
        )

    async def show(self, _wish: ParsedRequest, context: RequestContext) -> str:
        """List what is to come, by number."""
        coming = await self._coming(context)
        if isinstance(coming, Reply):
            return coming.text
        refs = numbered(coming)
        context.show({number: due.ref for number, due in refs.items()})
        lines = [_line(context, number, due) for number, due in refs.items()]
        return "\n".join([context.say("reminders"), *lines]) if lines else context.say("no_reminders")

    async def of_day(self, day: date, context: RequestContext) -> list[str]:
        """Those of a day, one a line with its clock time; a refusal is the only line."""
        coming = await self._coming(context)
        if isinstance(coming, Reply):
            return [coming.text]
        found = [(at, due.text) for due in coming if (at := _at_on(due, day)) is not None]
        return [f"• {at:%H:%M} {text}" for at, text in sorted(found)]

    async def cancel(self, parsed: ParsedRequest, context: RequestContext) -> str:
        """Cancel the one that is meant; which, is asked where it could be several."""
        if parsed.slot("id"):
            return await self._cancel(parsed, context)
        coming = await self._coming(context, request_id=context.next_id())
        if isinstance(coming, Reply):
            return coming.text
        if not coming:
            return context.say("no_reminders")
        if parsed.slot("all"):
            return await self._cancel_all(parsed, coming, context)
        found = _find(parsed.slot("item"), coming, context)
        if not found:
            return context.say("no_reminder", item=parsed.slot("item"))
        options = tuple(
            Option(label=_line(context, "", due).removeprefix(". "), wish=_cancelling(parsed, due))
            for due in found
        )
        if len(options) > 1:
            context.show({str(number): due.ref for number, due in enumerate(found, 1)})
            return context.ask(parsed, "which", context.say("which_reminder"), options)
        return await self._cancel(options[0].wish, context)

    async def _cancel_all(
        self, parsed: ParsedRequest, coming: list[UpcomingReminder], context: RequestContext
    ) -> str:
        if not parsed.slot("sure"):
            return context.ask(parsed, "sure", context.say("sure_cancel_all", count=len(coming)))
        refused = [said for due in coming if (said := await self._drop(due.ref, context)) is not None]
        done = context.say("all_cancelled", count=len(coming) - len(refused))
        return "\n".join([done, *dict.fromkeys(refused)])

    async def _cancel(self, parsed: ParsedRequest, context: RequestContext) -> str:
        ref = ShownEntry(kind=parsed.slot("kind"), id=parsed.slot("id"), label=parsed.slot("label"))
        refused = await self._drop(ref, context)
        return refused or context.say("reminder_cancelled", what=ref.label.removeprefix("⏰ ").rstrip("."))

    async def _drop(self, ref: ShownEntry, context: RequestContext) -> str | None:
        """Cancel one; a refusal is returned."""
        command: CancelTask | CancelReminder = (
            CancelTask(request_id=context.next_id(), task_id=ref.id)
            if ref.kind == "repeat"
            else CancelReminder(request_id=context.next_id(), reminder_id=int(ref.id))
        )
        reply = await self._host.ask(command)
        return None if reply.ok else reply.text

    async def _coming(
        self, context: RequestContext, *, request_id: str | None = None
    ) -> list[UpcomingReminder] | Reply:
        """Return all that is to come, soonest first, or the host's refusal."""
        reply = await self._host.ask(ListReminders(request_id=request_id))
        if not reply.ok:
            return reply
        once = [
            UpcomingReminder(
                id=str(row["id"]),
                at=datetime.fromtimestamp(row["due_ms"] / 1000, context.zone),
                text=row["text"].removeprefix("⏰ "),
            )
            for row in reply.data.get("reminders", [])
        ]
        again = await self._host.ask(ListTasks(request_id=f"{request_id}-t" if request_id else None))
        rows = again.data.get("tasks", []) if again.ok else []
        return once + [_repeating(row, context) for row in rows if self._is_ours(row)]

    def _is_ours(self, row: dict[str, Any]) -> bool:
        is_open = row.get("status") in ("active", "paused")
        return is_open and row.get("groupFolder") == self._folder and row["prompt"].startswith(ECHO)


def _as_reminder(parsed: ParsedRequest, context: RequestContext) -> ParsedRequest:
    """A timer and a call to get up are reminders with words of their own."""
    is_korean = parsed.language is Language.KOREAN
    if parsed.intent == "timer" and not parsed.slot("what"):
        span = parsed.slot("span").replace("-", " ")
        has_form = span.lower().startswith(("in ", "at ")) or span.endswith(("뒤", "후"))
        when = span if has_form else f"{span} 뒤" if is_korean else f"in {span}"
        return parsed.having(what=context.say("what_timer"), when=when)
    if parsed.intent == "get_up":
        return parsed.having(what=context.say("what_wake"), half="오전" if is_korean else "am")
    return parsed


def unclear(read: TimeRefusal | DateOnly, context: RequestContext) -> str:
    """Say why a time cannot be taken, as a question."""
    if isinstance(read, DateOnly):
        day = times.say_day(read.day, context.language)
        return context.say("time.needs_clock", on=context.say("on_day", day=day))
    moment = context.moment(read.at) if read.at else "—"
    return context.say(f"time.{read.reason.value}", moment=moment, on="")


def note(context: RequestContext, parsed: ParsedRequest) -> str:
    """What will stand in the chat when the time comes."""
    sender = " ".join((parsed.slot("sender") or context.sender).split())[:MAX_SENDER_CHARS]
    is_for_all = parsed.slot("whom").lower() in _FOR_ALL or parsed.slot("whom").startswith(
        ("우리", "모두", "다들")
    )
    form = "note" if parsed.slot("what") else "note_bare"
    if is_for_all or not sender:
        form += "_for_all"
    return context.say(form, sender=sender, what=parsed.slot("what"))


def numbered(coming: list[UpcomingReminder]) -> Mapping[str, UpcomingReminder]:
    """Number reminders by the host's own numbers; those that repeat follow the highest."""
    once = {due.id: due for due in coming if not due.times}
    highest = max((int(number) for number in once), default=0)
    again = [due for due in coming if due.times]
    return once | {str(number): due for number, due in enumerate(again, highest + 1)}


def _missing(parsed: ParsedRequest, context: RequestContext) -> str | None:
    what, when = parsed.slot("what"), parsed.slot("when")
    if parsed.slot("trouble") == "unsure":
        return context.ask(parsed.having(trouble=""), "when", context.say("time.unsure"))
    if parsed.slot("trouble") == "no_text" or not (what or when):
        return context.ask(parsed, "what", context.say("no_text"))
    if not when:
        return context.ask(parsed, "when", context.say("time.no_time") + _about(parsed, context))
    return None


def _about(parsed: ParsedRequest, context: RequestContext) -> str:
    """Name what a question is about, where others were asked in the same message."""
    has_others = context.new_questions or context.known.questions
    return f" ({parsed.slot('what')})" if parsed.slot("what") and has_others else ""


def _find(item: str, coming: list[UpcomingReminder], context: RequestContext) -> list[UpcomingReminder]:
    """Those that a number, a text or nothing at all can mean."""
    if not item:
        return coming
    if item.isdecimal():
        ref = context.known.shown.get(item)
        meant = [due for due in coming if ref is not None and due.ref.id == ref.id]
        return meant or [due for number, due in numbered(coming).items() if number == item]
    return [due for due in coming if item.casefold() in due.text.casefold()]


def _cancelling(parsed: ParsedRequest, due: UpcomingReminder) -> ParsedRequest:
    return parsed.having(kind=due.ref.kind, id=due.id, label=due.text, item="")


def _line(context: RequestContext, number: str, due: UpcomingReminder) -> str:
    moment = context.moment(due.at) if due.at else "—"
    if due.times:
        return context.say("repeat_line", number=number, times=due.times, moment=moment, what=due.text)
    return f"{number}. {moment} · {due.text}"


def _repeating(row: dict[str, Any], context: RequestContext) -> UpcomingReminder:
    text = row["prompt"].removeprefix(ECHO).removeprefix("⏰ ")
    at = _next_run(row, context)
    rhythm = _rhythm(row, at or context.now)
    said = times.say(rhythm, context.language) or row["schedule_value"]
    return UpcomingReminder(id=row["id"], at=at, text=text, times=said, rhythm=rhythm)


def _at_on(due: UpcomingReminder, day: date) -> time | None:
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


def _next_run(row: dict[str, Any], context: RequestContext) -> datetime | None:
    next_run = row.get("next_run")
    return datetime.fromisoformat(next_run).astimezone(context.zone) if next_run else None


def _ms(interval: timedelta) -> str:
    return str(round(interval.total_seconds() * 1000))
