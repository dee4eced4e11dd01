"""Reminders: set at the host, shown and cancelled. Repeating ones are scheduled tasks of the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any

from agent_runner.agents.offline.conversation import Option, ShownEntry
from agent_runner.agents.offline.handler import AnswerNow, RequestHandler
from agent_runner.agents.offline.intents import ECHO, PATTERNS, ParsedRequest
from agent_runner.wire import mailbox, times
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
    """When one comes that comes again and again: `every day at 09:00`."""

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


class Reminders(RequestHandler):
    """Handles requests about reminders."""

    # Setting

    async def do_remind(self) -> str:
        """Set a reminder, or ask for what it lacks."""
        self._ask_for_missing()
        read = self.context.read_time(self.slot("when"))
        if isinstance(read, TimeRefusal) and read.reason is Reason.WHICH_HALF and self.slot("half"):
            self.parsed = self.parsed.having(when=f"{self.slot('when')} {self.slot('half')}")
            read = self.context.read_time(self.slot("when"))
        what, is_offered = self.slot("what"), bool(self.slot("offered"))
        if isinstance(read, TimeRefusal | DateOnly):
            why = self.unclear(read)
            text = self.say("sure_when", what=what, why=why) if is_offered else why + self._about()
            raise self.question("when", text)
        if is_offered and not self.slot("sure"):
            moment = times.say(read, self.parsed.language)
            raise self.question("sure", self.say("sure_remind", what=what, moment=moment))
        return await self._repeat(read) if isinstance(read, Recurrence) else await self._set(read)

    async def do_timer(self) -> str:
        """Set a reminder that a span of time is over."""
        if not self.slot("what"):
            span, is_korean = self.slot("span"), self.parsed.language is Language.KOREAN
            has_form = span.lower().startswith(("in ", "at ")) or span.endswith(("뒤", "후"))
            when = span if has_form else f"{span} 뒤" if is_korean else f"in {span}"
            self.parsed = self.parsed.having(what=self.say("what_timer"), when=when)
        return await self.do_remind()

    async def do_get_up(self) -> str:
        """Set a reminder to get up, in the morning where no half of the day is named."""
        half = "오전" if self.parsed.language is Language.KOREAN else "am"
        self.parsed = self.parsed.having(what=self.say("what_wake"), half=half)
        return await self.do_remind()

    async def _set(self, read: Instant | times.Duration) -> str:
        at, request_id = read.at.isoformat(timespec="seconds"), self.context.next_id()
        reply = await self.request(mailbox.SetReminder(request_id=request_id, text=self._note(), at=at))
        due = datetime.fromtimestamp(reply.data["due_ms"] / 1000, self.context.zone)
        if reply.code == "sent_late":
            return self.say("reminder_late", moment=self.moment(due, has_seconds=True))
        number, what = str(reply.data["id"]), self.slot("what")
        entry = ShownEntry(kind="reminder", id=number, label=what)
        self.show({**self.context.state.shown, number: entry})
        is_soon = due.timestamp() - self.context.now.timestamp() < SECONDS_SHOWN_WITHIN
        moment = self.moment(due, has_seconds=is_soon and due.second != 0)
        text = self.say("reminder_set" if what else "reminder_set_bare", moment=moment, what=what, id=number)
        shift = read.shift if isinstance(read, Instant) else times.Shift.NONE
        return text + self.say(f"clocks.{shift.value}", offset=at[-len("+09:00") :])

    async def _repeat(self, read: Recurrence) -> str:
        interval = read.interval
        if interval is not None and interval < SOONEST_REPEAT:
            self.parsed = self.parsed.having(when="")
            raise self.question("when", self.say("too_often"))
        command = mailbox.ScheduleTask(
            request_id=self.context.next_id(),
            prompt=ECHO + self._note(),
            schedule_type="interval" if interval else "cron",
            schedule_value=str(round(interval.total_seconds() * 1000)) if interval else read.cron or "",
        )
        reply = await self.request(command)
        what = self.slot("what") or self.say("show_reminders").rstrip(":").lower()
        moment = self.moment(self._next_run(reply.data) or read.first)
        return self.say("repeat_set", times=times.say(read, self.parsed.language), what=what, moment=moment)

    def _ask_for_missing(self) -> None:
        """Raise the question for what a reminder lacks: a text or a time, or which words are the time."""
        what, when, trouble = self.slot("what"), self.slot("when"), self.slot("trouble")
        if trouble == "unsure":
            self.parsed = self.parsed.having(trouble="")
            raise self.question("when", self.say("time.unsure"))
        if trouble == "no_text" or not (what or when):
            raise self.question("what", self.say("no_text"))
        if not when:
            raise self.question("when", self.say("time.no_time") + self._about())

    def _about(self) -> str:
        """Name what a question is about, where others were asked in the same message."""
        has_others = self.context.new_questions or self.context.state.questions
        return f" ({self.slot('what')})" if self.slot("what") and has_others else ""

    def unclear(self, read: TimeRefusal | DateOnly) -> str:
        """Say why a time cannot be taken, as a question."""
        if isinstance(read, DateOnly):
            day = times.say_day(read.day, self.parsed.language)
            return self.say("time.needs_clock", on=self.say("on_day", day=day))
        moment = self.moment(read.at) if read.at else "—"
        choices = times.say_choices(read, self.parsed.language)
        return self.say(f"time.{read.reason.value}", moment=moment, on="", choices=choices)

    def _note(self) -> str:
        """Return what will stand in the chat when the time comes."""
        sender = " ".join((self.slot("sender") or self.context.sender).split())[:MAX_SENDER_CHARS]
        form = "reminder_note" if self.slot("what") else "reminder_note_bare"
        if not sender or PATTERNS["for_everyone"].fullmatch(self.slot("whom")):
            form += "_for_all"
        return self.say(form, sender=sender, what=self.slot("what"))

    # Showing

    async def do_show_reminders(self) -> str:
        """List what is to come, by number."""
        found = _numbered(await self._upcoming())
        self.show({number: reminder.entry for number, reminder in found.items()})
        lines = [f"{number}. {self._line(reminder)}" for number, reminder in found.items()]
        return "\n".join([self.say("show_reminders"), *lines]) if lines else self.say("no_reminders")

    async def of_day(self, day: date) -> list[str]:
        """Return those of a day, one a line with its clock time; a refusal is the only line."""
        try:
            upcoming = await self._upcoming()
        except AnswerNow as refusal:
            return [refusal.text]
        found = [(at, reminder.text) for reminder in upcoming if (at := reminder.time_on(day)) is not None]
        return [f"• {at:%H:%M} {text}" for at, text in sorted(found)]

    def _line(self, reminder: UpcomingReminder) -> str:
        moment = self.moment(reminder.at) if reminder.at else "—"
        if reminder.repeats:
            return self.say("repeat_line", times=reminder.repeats, moment=moment, what=reminder.text)
        return f"{moment} · {reminder.text}"

    # Cancelling

    async def do_cancel_reminder(self) -> str:
        """Cancel the one that is meant; which, is asked where it could be several."""
        if not self.slot("id"):
            upcoming = await self._upcoming(request_id=self.context.next_id())
            if not upcoming:
                return self.say("no_reminders")
            if self.slot("all"):
                return await self._cancel_all(upcoming)
            self.parsed = self._meant(upcoming)
        await self._cancel(self.slot("kind"), self.slot("id"))
        return self.say("cancel_reminder", what=self.slot("label").removeprefix(_BELL).rstrip("."))

    def _meant(self, upcoming: Sequence[UpcomingReminder]) -> ParsedRequest:
        """Return the request with the reminder that a number, a text or nothing at all can mean."""
        item = self.slot("item")
        found = [reminder for reminder in upcoming if item.casefold() in reminder.text.casefold()]
        if item.isdecimal():
            shown = self.context.state.shown.get(item)
            found = [reminder for reminder in upcoming if shown is not None and reminder.id == shown.id]
            found = found or [reminder for number, reminder in _numbered(upcoming).items() if number == item]
        if not found:
            raise AnswerNow(self.say("no_reminder", item=item))
        entries = [reminder.entry for reminder in found]
        if len(found) > 1:
            self.show({str(number): entry for number, entry in enumerate(entries, 1)})
        requests = [self.parsed.having(kind=one.kind, id=one.id, label=one.label, item="") for one in entries]
        lines = map(self._line, found)
        options = [Option(label=line, request=request) for line, request in zip(lines, requests, strict=True)]
        return self.choose(options, "which_reminder")

    async def _cancel_all(self, upcoming: Sequence[UpcomingReminder]) -> str:
        if not self.slot("sure"):
            raise self.question("sure", self.say("sure_cancel_all", count=len(upcoming)))
        refusals = []
        for reminder in upcoming:
            try:
                await self._cancel(reminder.entry.kind, reminder.id)
            except AnswerNow as refusal:
                refusals.append(refusal.text)
        done = self.say("all_cancelled", count=len(upcoming) - len(refusals))
        return "\n".join([done, *dict.fromkeys(refusals)])

    async def _cancel(self, kind: str, reminder_id: str) -> None:
        request_id = self.context.next_id()
        if kind == "repeat":
            await self.request(mailbox.CancelTask(request_id=request_id, task_id=reminder_id))
        else:
            await self.request(mailbox.CancelReminder(request_id=request_id, reminder_id=int(reminder_id)))

    # What the host keeps

    async def _upcoming(self, *, request_id: str | None = None) -> list[UpcomingReminder]:
        """Return all that is to come, soonest first. Raises `AnswerNow` where the host refuses."""
        reply = await self.request(mailbox.ListReminders(request_id=request_id))
        upcoming = [
            UpcomingReminder(
                id=str(row["id"]),
                at=datetime.fromtimestamp(row["due_ms"] / 1000, self.context.zone),
                text=row["text"].removeprefix(_BELL),
            )
            for row in reply.data.get("reminders", [])
        ]
        command = mailbox.ListTasks(request_id=f"{request_id}-t" if request_id else None)
        tasks = await self.context.host.ask(command)
        for row in tasks.data.get("tasks", []) if tasks.ok else []:
            is_ours = row.get("groupFolder") == self.context.order.group and row["prompt"].startswith(ECHO)
            if is_ours and row.get("status") in ("active", "paused"):
                upcoming.append(self._repeating(row))
        return upcoming

    def _repeating(self, row: Mapping[str, Any]) -> UpcomingReminder:
        at, value = self._next_run(row), row["schedule_value"]
        rhythm = Recurrence.of_cron(value, first=at or self.context.now)
        if row["schedule_type"] == "interval" and value.isdecimal():
            rhythm = Recurrence(first=at or self.context.now, interval=timedelta(milliseconds=int(value)))
        repeats = times.say(rhythm, self.parsed.language) if rhythm else value
        text = row["prompt"].removeprefix(ECHO).removeprefix(_BELL)
        return UpcomingReminder(id=row["id"], at=at, text=text, rhythm=rhythm, repeats=repeats)

    def _next_run(self, row: Mapping[str, Any]) -> datetime | None:
        next_run = row.get("next_run")
        return datetime.fromisoformat(next_run).astimezone(self.context.zone) if next_run else None


def _numbered(upcoming: Sequence[UpcomingReminder]) -> Mapping[str, UpcomingReminder]:
    """Number reminders by the host's own numbers; those that repeat follow the highest."""
    once = {reminder.id: reminder for reminder in upcoming if not reminder.repeats}
    first = max((int(number) for number in once), default=0) + 1
    again = [reminder for reminder in upcoming if reminder.repeats]
    return once | {str(number): reminder for number, reminder in enumerate(again, first)}
