"""Reminders: set at the host, shown and cancelled. Repeating ones are scheduled tasks of the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any

from agent_runner.agents.offline.conversation import AnswerNow, Option, RequestContext, ShownEntry
from agent_runner.agents.offline.intents import ECHO, PATTERNS, ParsedRequest
from agent_runner.wire import times
from agent_runner.wire.mailbox import (
    CancelReminder,
    CancelTask,
    Command,
    ListReminders,
    ListTasks,
    ScheduleTask,
    SetReminder,
)
from agent_runner.wire.times import DateOnly, Instant, Language, Reason, Recurrence, TimeRefusal

SECONDS_SHOWN_WITHIN = 120
MAX_SENDER_CHARS = 60
SOONEST_REPEAT = timedelta(minutes=10)
_BELL = "⏰ "


@dataclass(frozen=True, slots=True, kw_only=True)
class UpcomingReminder:
    """A reminder that the host keeps."""

    id: str
    at: datetime | None
    """When it comes next."""
    text: str
    rhythm: Recurrence | None = None
    repeats: str = ""
    """How one that comes again and again is said to: `every day at 09:00`."""

    @property
    def entry(self) -> ShownEntry:
        """What its number in a list means."""
        return ShownEntry(kind="repeat" if self.repeats else "reminder", id=self.id, label=self.text)

    def time_on(self, day: date) -> time | None:
        """Return when on a day it comes, None when it does not."""
        if self.at is None:
            return None
        if self.rhythm is not None and self.rhythm.interval is None:
            return self.rhythm.clock if self.at.date() <= day and self.rhythm.is_on(day) else None
        return self.at.time() if self.at.date() == day else None


# Setting


async def remind(parsed: ParsedRequest, context: RequestContext) -> str:
    """Set a reminder, or ask for what it lacks."""
    parsed = _as_reminder(parsed, context)
    if question := _missing(parsed, context):
        raise question
    read = context.read_time(parsed.slot("when"))
    if isinstance(read, TimeRefusal) and read.reason is Reason.WHICH_HALF and parsed.slot("half"):
        parsed = parsed.having(when=f"{parsed.slot('when')} {parsed.slot('half')}")
        read = context.read_time(parsed.slot("when"))
    what, offered = parsed.slot("what"), parsed.slot("offered")
    if isinstance(read, TimeRefusal | DateOnly):
        why = unclear(read, context)
        text = context.say("sure_when", what=what, why=why) if offered else why + _about(parsed, context)
        raise context.question(parsed, "when", text)
    if offered and not parsed.slot("sure"):
        moment = times.say(read, context.language)
        raise context.question(parsed, "sure", context.say("sure_remind", what=what, moment=moment))
    if isinstance(read, Recurrence):
        return await _repeat(parsed, read, context)
    return await _set(parsed, read, context)


async def _set(parsed: ParsedRequest, read: Instant | times.Duration, context: RequestContext) -> str:
    reply = await context.request(
        SetReminder(
            request_id=context.next_id(),
            text=_note(parsed, context),
            at=read.at.isoformat(timespec="seconds"),
        )
    )
    at = datetime.fromtimestamp(reply.data["due_ms"] / 1000, context.zone)
    if reply.code == "sent_late":
        return context.say("reminder_late", moment=context.moment(at, has_seconds=True))
    number, what = str(reply.data["id"]), parsed.slot("what")
    context.show({**context.state.shown, number: ShownEntry(kind="reminder", id=number, label=what)})
    is_soon = at.timestamp() - context.now.timestamp() < SECONDS_SHOWN_WITHIN
    moment = context.moment(at, has_seconds=is_soon and at.second != 0)
    form = "reminder_set" if what else "reminder_set_bare"
    shift = read.shift if isinstance(read, Instant) else times.Shift.NONE
    offset = read.at.isoformat(timespec="minutes")[-len("+09:00") :]
    clocks = context.say(f"clocks.{shift.value}", offset=offset)
    return context.say(form, moment=moment, what=what, id=number) + clocks


async def _repeat(parsed: ParsedRequest, read: Recurrence, context: RequestContext) -> str:
    interval = read.interval
    if interval is not None and interval < SOONEST_REPEAT:
        raise context.question(parsed.having(when=""), "when", context.say("too_often"))
    reply = await context.request(
        ScheduleTask(
            request_id=context.next_id(),
            prompt=ECHO + _note(parsed, context),
            schedule_type="interval" if interval else "cron",
            schedule_value=str(round(interval.total_seconds() * 1000)) if interval else read.cron or "",
        )
    )
    return context.say(
        "repeat_set",
        times=times.say(read, context.language),
        what=parsed.slot("what") or context.say("show_reminders").rstrip(":").lower(),
        moment=context.moment(_next_run(reply.data, context) or read.first),
    )


def _as_reminder(parsed: ParsedRequest, context: RequestContext) -> ParsedRequest:
    """Give a timer and a call to get up the words of a reminder."""
    is_korean = parsed.language is Language.KOREAN
    if parsed.intent == "timer" and not parsed.slot("what"):
        span = parsed.slot("span")
        has_form = span.lower().startswith(("in ", "at ")) or span.endswith(("뒤", "후"))
        when = span if has_form else f"{span} 뒤" if is_korean else f"in {span}"
        return parsed.having(what=context.say("what_timer"), when=when)
    if parsed.intent == "get_up":
        return parsed.having(what=context.say("what_wake"), half="오전" if is_korean else "am")
    return parsed


def _missing(parsed: ParsedRequest, context: RequestContext) -> AnswerNow | None:
    """Return the question for what a reminder lacks, None where it has a text or a time."""
    what, when, trouble = parsed.slot("what"), parsed.slot("when"), parsed.slot("trouble")
    if trouble == "unsure":
        return context.question(parsed.having(trouble=""), "when", context.say("time.unsure"))
    if trouble == "no_text" or not (what or when):
        return context.question(parsed, "what", context.say("no_text"))
    if not when:
        return context.question(parsed, "when", context.say("time.no_time") + _about(parsed, context))
    return None


def _about(parsed: ParsedRequest, context: RequestContext) -> str:
    """Name what a question is about, where others were asked in the same message."""
    has_others = context.new_questions or context.state.questions
    return f" ({parsed.slot('what')})" if parsed.slot("what") and has_others else ""


def unclear(read: TimeRefusal | DateOnly, context: RequestContext) -> str:
    """Say why a time cannot be taken, as a question."""
    if isinstance(read, DateOnly):
        day = times.say_day(read.day, context.language)
        return context.say("time.needs_clock", on=context.say("on_day", day=day))
    moment = context.moment(read.at) if read.at else "—"
    return context.say(f"time.{read.reason.value}", moment=moment, on="")


def _note(parsed: ParsedRequest, context: RequestContext) -> str:
    """Return what will stand in the chat when the time comes."""
    sender = " ".join((parsed.slot("sender") or context.sender).split())[:MAX_SENDER_CHARS]
    form = "reminder_note" if parsed.slot("what") else "reminder_note_bare"
    if not sender or PATTERNS["for_everyone"].fullmatch(parsed.slot("whom")):
        form += "_for_all"
    return context.say(form, sender=sender, what=parsed.slot("what"))


# Showing


async def show(parsed: ParsedRequest, context: RequestContext) -> str:
    """List what is to come, by number."""
    found = _numbered(await _upcoming(context))
    context.show({number: reminder.entry for number, reminder in found.items()})
    lines = [f"{number}. {_line(reminder, context)}" for number, reminder in found.items()]
    return "\n".join([context.say(parsed.intent), *lines]) if lines else context.say("no_reminders")


async def of_day(day: date, context: RequestContext) -> list[str]:
    """Return those of a day, one a line with its clock time; a refusal is the only line."""
    try:
        upcoming = await _upcoming(context)
    except AnswerNow as refusal:
        return [refusal.text]
    found = [(at, reminder.text) for reminder in upcoming if (at := reminder.time_on(day)) is not None]
    return [f"• {at:%H:%M} {text}" for at, text in sorted(found)]


def _line(reminder: UpcomingReminder, context: RequestContext) -> str:
    moment = context.moment(reminder.at) if reminder.at else "—"
    if reminder.repeats:
        return context.say("repeat_line", times=reminder.repeats, moment=moment, what=reminder.text)
    return f"{moment} · {reminder.text}"


def _numbered(upcoming: list[UpcomingReminder]) -> Mapping[str, UpcomingReminder]:
    """Number reminders by the host's own numbers; those that repeat follow the highest."""
    once = {reminder.id: reminder for reminder in upcoming if not reminder.repeats}
    first = max((int(number) for number in once), default=0) + 1
    again = [reminder for reminder in upcoming if reminder.repeats]
    return once | {str(number): reminder for number, reminder in enumerate(again, first)}


# Cancelling


async def cancel(parsed: ParsedRequest, context: RequestContext) -> str:
    """Cancel the one that is meant; which, is asked where it could be several."""
    if parsed.slot("id"):
        return await _cancel(parsed, context)
    upcoming = await _upcoming(context, request_id=context.next_id())
    if not upcoming:
        return context.say("no_reminders")
    if parsed.slot("all"):
        return await _cancel_all(parsed, upcoming, context)
    found = _find(parsed.slot("item"), upcoming, context)
    if not found:
        return context.say("no_reminder", item=parsed.slot("item"))
    if len(found) > 1:
        context.show({str(number): reminder.entry for number, reminder in enumerate(found, 1)})
    options = []
    for reminder in found:
        entry = reminder.entry
        request = parsed.having(kind=entry.kind, id=entry.id, label=entry.label, item="")
        options.append(Option(label=_line(reminder, context), request=request))
    return await _cancel(context.choose(options, "which_reminder", parsed), context)


async def _cancel_all(
    parsed: ParsedRequest, upcoming: list[UpcomingReminder], context: RequestContext
) -> str:
    if not parsed.slot("sure"):
        question = context.say("sure_cancel_all", count=len(upcoming))
        raise context.question(parsed, "sure", question)
    refusals = []
    for reminder in upcoming:
        try:
            await context.request(_cancelling(reminder.entry.kind, reminder.id, context))
        except AnswerNow as refusal:
            refusals.append(refusal.text)
    done = context.say("all_cancelled", count=len(upcoming) - len(refusals))
    return "\n".join([done, *dict.fromkeys(refusals)])


async def _cancel(parsed: ParsedRequest, context: RequestContext) -> str:
    await context.request(_cancelling(parsed.slot("kind"), parsed.slot("id"), context))
    return context.say("cancel_reminder", what=parsed.slot("label").removeprefix(_BELL).rstrip("."))


def _cancelling(kind: str, reminder_id: str, context: RequestContext) -> Command:
    if kind == "repeat":
        return CancelTask(request_id=context.next_id(), task_id=reminder_id)
    return CancelReminder(request_id=context.next_id(), reminder_id=int(reminder_id))


def _find(item: str, upcoming: list[UpcomingReminder], context: RequestContext) -> list[UpcomingReminder]:
    """Return those that a number, a text or nothing at all can mean."""
    if not item.isdecimal():
        return [reminder for reminder in upcoming if item.casefold() in reminder.text.casefold()]
    shown = context.state.shown.get(item)
    meant = [reminder for reminder in upcoming if shown is not None and reminder.id == shown.id]
    return meant or [reminder for number, reminder in _numbered(upcoming).items() if number == item]


# What the host keeps


async def _upcoming(context: RequestContext, *, request_id: str | None = None) -> list[UpcomingReminder]:
    """Return all that is to come, soonest first. Raises `AnswerNow` where the host refuses."""
    reply = await context.request(ListReminders(request_id=request_id))
    once = [
        UpcomingReminder(
            id=str(row["id"]),
            at=datetime.fromtimestamp(row["due_ms"] / 1000, context.zone),
            text=row["text"].removeprefix(_BELL),
        )
        for row in reply.data.get("reminders", [])
    ]
    tasks = await context.host.ask(ListTasks(request_id=f"{request_id}-t" if request_id else None))
    rows = tasks.data.get("tasks", []) if tasks.ok else []
    return once + [_repeating(row, context) for row in rows if _is_ours(row, context)]


def _is_ours(row: Mapping[str, Any], context: RequestContext) -> bool:
    is_open = row.get("status") in ("active", "paused")
    return is_open and row.get("groupFolder") == context.order.group and row["prompt"].startswith(ECHO)


def _repeating(row: Mapping[str, Any], context: RequestContext) -> UpcomingReminder:
    at, value = _next_run(row, context), row["schedule_value"]
    first = at or context.now
    if row["schedule_type"] == "interval" and value.isdecimal():
        rhythm: Recurrence | None = Recurrence(first=first, interval=timedelta(milliseconds=int(value)))
    else:
        rhythm = Recurrence.of_cron(value, first=first)
    return UpcomingReminder(
        id=row["id"],
        at=at,
        text=row["prompt"].removeprefix(ECHO).removeprefix(_BELL),
        rhythm=rhythm,
        repeats=times.say(rhythm, context.language) if rhythm else value,
    )


def _next_run(row: Mapping[str, Any], context: RequestContext) -> datetime | None:
    next_run = row.get("next_run")
    return datetime.fromisoformat(next_run).astimezone(context.zone) if next_run else None
