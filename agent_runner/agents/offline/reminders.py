"""Handle requests about reminders, which the host stores; repeating ones are scheduled tasks there.

The slots of a request are the words that it has under names such as `what` and `when`, and flags such as
`sure`, which is set once the person has confirmed; the head of `intents.toml` describes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from agent_runner.agents.offline.answers import NOON, bare_clock, joined_time
from agent_runner.agents.offline.conversation import Option, ShownEntry
from agent_runner.agents.offline.handler import AnswerNow, RequestHandler, answered
from agent_runner.agents.offline.intents import PATTERNS, ROWS, ParsedRequest, filled, in_language, say
from agent_runner.agents.offline.reading import meaning_words
from agent_runner.checklists import has_words
from agent_runner.wire import mailbox, times
from agent_runner.wire.order import ECHO
from agent_runner.wire.times import DateOnly, Instant, Language, Reason, Recurrence, TimeRefusal

SECONDS_SHOWN_WITHIN = 120
"""Seconds from now within which a reminder's time is shown with its seconds."""
MAX_SENDER_CHARS = 60
"""Most characters of a sender's name in the text of a reminder."""
MAX_DAYS = 366
"""Days for which reminders can be shown."""
DAYS_OF_WEEK, MAX_DAYS_EACH = 7, 14
"""The days of a week, and the most days for which one request sets a reminder on each."""
SOONEST_REPEAT = timedelta(minutes=10)
"""The shortest interval of a repeating reminder."""
_BELL = "⏰ "
"""The start of a reminder's text in the chat, called the bell below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpcomingReminder:
    """A reminder at the host."""

    entry: ShownEntry
    """Its id and text, with which a request refers to it."""
    number: str
    """The number by which people know it: `7`, or `R2` of one that repeats."""
    at: datetime | None
    """The next time when the reminder is due; None if the host has planned none."""
    notification_id: str = ""
    person: str = ""
    """The short name of the person who requested it, if the host knows it."""
    rhythm: Recurrence | None = None
    repeats: str = ""
    """The times of a repeating reminder in words: `every day at 09:00`."""
    is_paused: bool = False
    """Whether it is a repeating one that does not come until it is resumed."""

    @property
    def text(self) -> str:
        """The text as it will appear in the chat, without the bell that it begins with there."""
        return self.entry.label

    @property
    def slots(self) -> dict[str, str]:
        """Return the slots by which a request refers to this reminder and no other."""
        at = self.at.isoformat() if self.at else ""
        known = {"at": at, "repeats": self.repeats, "notification": self.notification_id}
        # Emptied, because they may name another reminder: the words of the message, and "all".
        return self.entry.slots | known | {"item": "", "all": ""}

    def time_on(self, day: date) -> time | None:
        """Return the time of day when the reminder is due on a day; None if it is not due then."""
        if self.at is None or self.is_paused:
            return None
        # A rhythm with an interval, such as every two hours, is only known by its next time.
        if self.rhythm is not None and self.rhythm.interval is None:
            return self.rhythm.clock if self.at.date() <= day and self.rhythm.is_on(day) else None
        return self.at.time() if self.at.date() == day else None


class Reminders(RequestHandler):
    """Handles requests about reminders."""

    # Setting

    async def do_remind(self) -> str:
        """Set a reminder, and return the answer.

        A reminder that nobody asked for (slot `offered`: the words only suggest it) is set after a "yes"
        (slot `sure`). Raises `AnswerNow` to ask for that, or for a text or time that is missing or not clear.
        """
        # Some rows have words for slots that the message leaves empty, such as the text of a timer.
        fills = in_language(ROWS[self.parsed.intent].get("fills", ({}, {})), self.parsed.language)
        missing = {name: words for name, words in fills.items() if not self.slot(name)}
        self.parsed = self.parsed.having(**filled(missing, self.parsed.slots))
        self._ask_for_missing()
        parsed_time = self._time()
        what, is_offered = self.slot("what"), bool(self.slot("offered"))
        if isinstance(parsed_time, TimeRefusal | DateOnly):
            why = self.unclear(parsed_time)
            is_past = isinstance(parsed_time, TimeRefusal) and parsed_time.reason is Reason.PAST
            # A past time may come from a task's deadline, not from the message: name what it is about.
            about = self._about(is_always_named=is_past)
            text = self.say("sure_when", what=what, why=why) if is_offered else why + about
            raise self.question("when", text)
        if self.slot("last"):  # "from Monday to Wednesday"
            raise self._which_days(parsed_time.at)
        if self.slot("days"):  # the answer to that question: on each day
            return await self._set_each(parsed_time.at)
        if is_offered and not self.slot("sure"):
            moment = times.say(parsed_time, self.parsed.language)
            raise self.question("sure", self.say("sure_remind", what=what, moment=moment))
        return (
            await self._repeat(parsed_time)
            if isinstance(parsed_time, Recurrence)
            else await self._set(parsed_time)
        )

    do_timer = do_get_up = do_remind

    def _time(self) -> times.Reading:
        """Return the time of the reminder, or a refusal if the words in the slots give none.

        An hour that leaves am or pm open is in the half of the day of the slot `half`. With a span in the
        slot `before`, the reminder is that much earlier than the time in the slot `when`.
        """
        parsed_time = self.context.read_time(self.slot("when"))
        if (
            isinstance(parsed_time, TimeRefusal)
            and parsed_time.reason is Reason.WHICH_HALF
            and self.slot("half")
        ):
            self.parsed = self.parsed.having(when=f"{self.slot('when')} {self.slot('half')}")
            parsed_time = self.context.read_time(self.slot("when"))
        if self.slot("before") and not isinstance(parsed_time, TimeRefusal | DateOnly):
            parsed_time = self._before(parsed_time)
        return parsed_time

    def _which_days(self, at: datetime) -> AnswerNow:
        """Return the question which days `from Monday to Wednesday` means, for the caller to raise.

        `at` is the time on the first day; the slot `last` names the last one. The options are each of these
        days once; each of them every week, if they lie within one; and only the first day, if the request
        does not say "each day" (slot `each`). If the last day is not clear, is the first one or is too far,
        the question asks for another time, and the request gets the slot `unsure`.
        """
        parsed_time = self.context.read_time(self.slot("last"))
        ahead = (parsed_time.day - at.date()).days if isinstance(parsed_time, DateOnly) else 0
        ahead += DAYS_OF_WEEK if ahead < 0 else 0  # "Friday to Monday": the Monday after that Friday
        if not 0 < ahead < MAX_DAYS_EACH:
            self.parsed = self.parsed.having(last="", unsure="yes")
            return self.question("when", self.say("time.unsure"))
        last = at + timedelta(days=ahead)
        clock = f"{at:%H:%M}"
        language = self.parsed.language
        parsed = self.parsed.having(last="", each="", sure="yes", when=f"{at:%Y-%m-%d} at {clock}")
        first_day, last_day = times.say_day(at, language), times.say_day(last, language)
        label = self.say("days_each", first=first_day, last=last_day, clock=clock)
        options = [Option(label=label, request=parsed.having(days=str(ahead + 1)))]
        weekly = self.context.read_time(f"every {at:%A} to {last:%A} at {clock}")
        if isinstance(weekly, Recurrence) and ahead < DAYS_OF_WEEK:
            rhythm = times.say(weekly, language)
            request = parsed.having(when=rhythm)
            options.append(Option(label=self.say("days_weekly", times=rhythm), request=request))
        if not self.slot("each"):  # "each day from …" cannot mean the first day alone
            options.append(Option(label=self.say("days_once", moment=self.moment(at)), request=parsed))
        return self.question("which", self.say("which_days"), options)

    async def _set_each(self, at: datetime) -> str:
        """Set a reminder on each of several days, and return the answers.

        `at` is the time on the first day; the slot `days` has the number of days.
        """
        texts = []
        for ahead in range(int(self.slot("days"))):
            day = at.date() + timedelta(days=ahead)
            request = self.parsed.having(when=f"{day.isoformat()} at {at:%H:%M}", days="")
            texts.append(await Reminders(request, self.context).do_remind())
        return "\n".join(texts)

    def _before(self, event_time: Instant | times.Duration | Recurrence) -> times.Reading:
        """Return the time that is earlier than an event's time by the span in the slot `before`.

        It replaces the event's time in the slot `when`, and `before` is emptied. A refusal if the words are
        no span or one that is too long. Raises `AnswerNow` for a repeating event.
        """
        if isinstance(event_time, Recurrence):
            raise AnswerNow(self.say("repeat_limited"))
        span = self.context.read_span(self.slot("before"))
        if not isinstance(span, times.Duration):
            # Emptied, because the answer to the question after a refusal is the time of the reminder itself.
            self.parsed = self.parsed.having(before="")
            if not isinstance(span, TimeRefusal):
                return TimeRefusal(reason=Reason.NO_TIME)
            # A span from now is past only if it is zero: then the reminder comes at the time of the event.
            return event_time if span.reason is Reason.PAST else span
        # Days keep the time of day, also over a change of the clocks; hours are counted as time passes.
        day = event_time.at - timedelta(days=span.days)
        at = (day.astimezone(UTC) - span.elapsed).astimezone(self.context.zone)
        self.parsed = self.parsed.having(when=at.isoformat(timespec="seconds"), before="")
        return self.context.read_time(self.slot("when"))

    async def _set(self, parsed_time: Instant | times.Duration) -> str:
        """Set a reminder for one time, and return the answer.

        The answer says so if the clocks are changed around that time, or if the host has sent the reminder
        already because its time had just passed.
        """
        note = self._note()
        reply = await self._set_once(note, parsed_time.at, note.removeprefix(_BELL))
        due = datetime.fromtimestamp(reply.data["due_ms"] / 1000, self.context.zone)
        if reply.code == "sent_late":
            return self.say("reminder_late", moment=self.moment(due, has_seconds=True))
        is_soon = due.timestamp() - self.context.now.timestamp() < SECONDS_SHOWN_WITHIN
        moment, what = self.moment(due, has_seconds=is_soon and due.second != 0), self.slot("what")
        form = "reminder_set" if what else "reminder_set_bare"
        text = self.say(form, whom=self._whom(), moment=moment, what=what, id=reply.data["id"])
        shift = parsed_time.shift if isinstance(parsed_time, Instant) else times.Shift.NONE
        offset = parsed_time.at.isoformat()[-len("+09:00") :]
        return text + self.say(f"clocks.{shift.value}", offset=offset)  # `clocks.none` is an empty sentence

    async def do_remind_again(self) -> str:
        """Set a reminder anew that was cancelled or sent, and return the answer.

        The slot `label` has its text without the bell, `at` its time. The agent makes this request itself: to
        undo a cancellation, or for a person who wants a reminder once more.
        """
        at, label = datetime.fromisoformat(self.slot("at")), self.slot("label")
        reply = await self._set_once(_BELL + label, at, label)
        what, whom = self._subject_and_addressee(label)
        return self.say("reminder_set", whom=whom, moment=self.moment(at), what=what, id=reply.data["id"])

    def _subject_and_addressee(self, label: str) -> tuple[str, str]:
        """Return the subject of a reminder, and the words by which an answer names who is reminded.

        `label` is the reminder's text without the bell (`_BELL`).
        """
        subject = self.brief(label).rstrip(".")
        if label.startswith(self._beginnings("reminder_note_for_all")):
            return subject, self.say("whom_all")
        # Besides the beginning for everyone, `brief` cuts off only `Reminder for Ann: ` if Ann is the sender.
        names_sender = subject != label.rstrip(".")
        if not names_sender:
            for language in Language:
                # A text that begins like "Reminder for Ann: " names somebody else. The \0 in place of the
                # name shows which words stand before and after it.
                beginning = say("reminder_note", language, sender="\0", what="").removeprefix(_BELL)
                before_name, _, after_name = beginning.partition("\0")
                name, separator, rest = label.removeprefix(before_name).partition(after_name)
                if label.startswith(before_name) and separator and len(name) <= MAX_SENDER_CHARS:
                    return rest.rstrip("."), self.say("whom_other", name=name)
        return subject, self.say("whom_me")

    async def _set_once(self, text: str, at: datetime, label: str) -> mailbox.Reply:
        """Send a reminder to the host and return its reply; record how to undo it.

        `text` is what the chat will read at the time `at`, `label` the text by which later requests name the
        reminder. If the time has just passed, the host sends the text at once and replies `sent_late`. Raises
        `AnswerNow` if the host refuses.
        """
        fields = {
            "text": text,
            "at": at.isoformat(timespec="seconds"),
            "task_id": self.slot("task_id") or None,
        }
        # The host refuses a reminder that it has already, with these words.
        with self._rewording_refusal("says so already", "reminder_there", at):
            reply = await self.request(mailbox.SetReminder, **fields)
        if reply.code != "sent_late":
            self._record_set(ShownEntry(kind="reminder", id=str(reply.data["id"]), label=label))
        return reply

    def _record_set(self, entry: ShownEntry) -> None:
        """Record that the reminder was set: an undo cancels it, and "it" in the next message means it."""
        self.record_change(self.parsed.of("cancel_reminder", **entry.slots), last=entry)

    @contextmanager
    def _rewording_refusal(self, known: str, form: str, at: datetime) -> Iterator[None]:
        """Replace a refusal of the host in the block by a sentence of our own.

        A refusal whose text contains `known` is replaced by the sentence named `form`, which names the
        reminder and its time `at`. Any other refusal is raised as it is.
        """
        try:
            yield
        except AnswerNow as refusal:
            if known not in refusal.text:
                raise
            what = self.slot("what") or self.brief(self.slot("label"))
            raise AnswerNow(self.say(form, moment=self.moment(at), what=what)) from refusal

    async def _repeat(self, parsed_time: Recurrence) -> str:
        """Schedule a repeating reminder, and return the answer.

        Raises `AnswerNow` to ask for another time if it is too frequent.
        """
        if parsed_time.interval is not None and parsed_time.interval < SOONEST_REPEAT:
            self.parsed = self.parsed.having(when="")
            raise self.question("when", self.say("too_often"))
        # A prompt that begins with `ECHO` makes the task send the text after it to the chat.
        reply = await self.request(mailbox.ScheduleTask, prompt=ECHO + self._note(), **_schedule(parsed_time))
        task_id, what = str(reply.data["id"]), self.slot("what")
        # Without a text, the answer has the heading of the list of reminders in its place.
        what = what or self.say("show_reminders").rstrip(":").lower()
        self._record_set(ShownEntry(kind="repeat", id=task_id, label=what))
        moment = self.moment(self._next_run(reply.data) or parsed_time.first)
        rhythm, number = times.say(parsed_time, self.parsed.language), self._repeat_number(task_id)
        form = "repeat_set" if parsed_time.interval is None else "repeat_set_every"
        return self.say(form, whom=self._whom(), times=rhythm, what=what, moment=moment, id=number)

    def _repeat_number(self, task_id: str) -> str:
        """Return the number, such as `R2`, of the repeating reminder of a scheduled task.

        A reminder without a number gets the next one, which is remembered.
        """
        known = self.context.state.repeats
        if task_id not in known:
            highest = max((int(number.removeprefix("R")) for number in known.values()), default=0)
            known = {**known, task_id: f"R{highest + 1}"}
            self.remember(repeats=known)
        return known[task_id]

    def _ask_for_missing(self) -> None:
        """Raise `AnswerNow` to ask for a missing text or time, or for the time if its words are not clear.

        A reminder with a time needs no text, unless its words begin one that is missing (`trouble` is
        `no_text`), as in `remind me at 9 to`.
        """
        what, when, trouble = self.slot("what"), self.slot("when"), self.slot("trouble")
        if PATTERNS["that_one"].fullmatch(what):  # "remind me of it" has no text of its own
            self.parsed = self.parsed.having(what="")
            what = ""
            trouble = trouble or "no_text"
        if trouble == "unsure":
            self.parsed = self.parsed.having(trouble="", unsure="yes")
            raise self.question("when", self.say("time.unsure"))
        if trouble == "no_text" or not (what or when):
            raise self.question("what", self.say("no_text"))
        if not when:
            raise self.question("when", self.say("time.no_time") + self._about())

    def _about(self, *, is_always_named: bool = False) -> str:
        """Return the reminder's text in brackets, to be added to a question about its time.

        Empty if the reminder has no text yet, or if the question is clear without it, as no other question is
        open. `is_always_named`: whether the text is added to the only question, too.
        """
        is_named = is_always_named or self.context.new_questions or self.context.state.questions
        return f" ({self.slot('what')})" if self.slot("what") and is_named else ""

    def _whom(self) -> str:
        """Return the words by which an answer names the person who is reminded: "you", a name or all."""
        whom = self.slot("whom")
        if PATTERNS["for_everyone"].fullmatch(whom):
            return self.say("whom_all")
        is_me = not whom or PATTERNS["for_me"].fullmatch(whom)
        return self.say("whom_me") if is_me else self.say("whom_other", name=whom)

    @property
    def _sender(self) -> str:
        """The name of the person who asked for the reminder, on one line."""
        return " ".join((self.slot("sender") or self.context.request.sender).split())[:MAX_SENDER_CHARS]

    def _note(self) -> str:
        """Return the text that the chat will read when the time comes: who is reminded, and of what.

        The person who asked is reminded, unless the request names another person or everyone.
        """
        whom, addressee = self.slot("whom"), self._sender
        if PATTERNS["for_everyone"].fullmatch(whom):
            addressee = ""
        elif whom and not PATTERNS["for_me"].fullmatch(whom):
            addressee = whom
        form = "reminder_note" if self.slot("what") else "reminder_note_bare"
        return self.say(form if addressee else f"{form}_for_all", sender=addressee, what=self.slot("what"))

    def _beginnings(self, *forms: str) -> tuple[str, ...]:
        """Return the words that come before the subject in reminders for the sender or for everyone.

        By them such a reminder is recognised, and its text shortened. There is one beginning, without the
        bell (`_BELL`), for each language and each sentence of `intents.toml` that `forms` names.
        """
        notes = (say(form, language, sender=self._sender, what="") for form in forms for language in Language)
        return tuple(note.removeprefix(_BELL) for note in notes)

    def brief(self, text: str) -> str:
        """Return a reminder's text without the bell and the words that name the sender or everyone."""
        text = text.removeprefix(_BELL)
        for beginning in self._beginnings("reminder_note", "reminder_note_for_all"):
            text = text.removeprefix(beginning)
        return text

    # Showing

    async def do_show_reminders(self) -> str:
        """Return a list of the upcoming reminders with their numbers; if asked for, only the sender's own.

        The numbers are remembered, so that a later message can use them.
        """
        upcoming = all_upcoming = await self.upcoming()
        if self.slot("mine"):
            upcoming = [reminder for reminder in all_upcoming if not self._is_foreign(reminder)]
        if all_upcoming and not upcoming:
            return self.say("none_yours_shown")
        self.remember(shown={reminder.number: reminder.entry for reminder in upcoming})
        lines = [f"{reminder.number}. {self._line(reminder)}" for reminder in upcoming]
        return "\n".join([self.say("show_reminders"), *lines]) if lines else self.say("no_reminders")

    async def between(self, first: date, last: date) -> list[str]:
        """Return a line for each reminder from one day to another, both included.

        Days after the first `MAX_DAYS` are left out. For a single day the lines have only the time of day. If
        the host refuses to list the reminders, the only line is its reason.
        """
        try:
            upcoming = await self.upcoming()
        except AnswerNow as refusal:
            return [refusal.text]
        if first == last:
            due = [
                (at, self.brief(reminder.text))
                for reminder in upcoming
                if (at := reminder.time_on(first)) is not None
            ]
            return [f"• {at:%H:%M} {text}" for at, text in sorted(due)]
        days = [first + timedelta(days=ahead) for ahead in range(min((last - first).days + 1, MAX_DAYS))]
        return [
            f"• {self._line(reminder)}"
            for reminder in upcoming
            if any(reminder.time_on(day) is not None for day in days)
        ]

    def _line(self, reminder: UpcomingReminder) -> str:
        """Return a reminder as a line of a list: when it is due, and what it is about."""
        moment = self.moment(reminder.at) if reminder.at else "—"
        if reminder.repeats:
            line = "repeat_paused" if reminder.is_paused else "repeat_line"
            return self.say(line, times=reminder.repeats, moment=moment, what=self.brief(reminder.text))
        return f"{moment} · {self.brief(reminder.text)}"

    # Cancelling

    async def do_cancel_reminder(self) -> str:
        """Cancel the reminder that the request names, or all (slot `all`), and return the answer.

        Record how to undo it if it was for one time; a repeating one cannot be set again, so nothing can be
        undone then. Raises `AnswerNow` to ask which one is meant if that is in doubt (`_chosen`), or to have
        it confirmed if the slot `ask` is set: the slot `sure` says that it was.
        """
        if not self.slot("id"):
            upcoming = await self.upcoming()
            if not upcoming:
                return self.say("no_reminders")
            if self.slot("all"):
                return await self._cancel_all(upcoming)
            self.parsed = self._chosen(upcoming, upcoming, "which_reminder")
        if not self.slot("at"):
            # The entry was chosen elsewhere: its time is needed for the request that undoes this.
            same = [reminder for reminder in await self.upcoming() if reminder.entry.id == self.slot("id")]
            self.parsed = self.parsed.having(**same[0].slots) if same else self.parsed
        what = self.brief(self.slot("label")).rstrip(".")
        if self.slot("ask") and not self.slot("sure"):
            raise self.question("sure", self.say("sure_cancel", what=what))
        await self._cancel(self.entry)
        is_single = self.slot("at") and self.slot("kind") == "reminder"
        self._record_cancelled(self.slot("label"), self.slot("at") if is_single else "")
        return self.say("cancel_reminder", what=what)

    def options(self, upcoming: Sequence[UpcomingReminder]) -> list[Option]:
        """Return an option for each of the `upcoming` reminders that the slot `item` can mean.

        The slot has a number or words; if it is empty, all are returned. If no text has all of the words,
        those that share some of them are returned, and their slot `doubt` is "yes".
        """
        item = self.slot("item").casefold()
        if PATTERNS["reminder_number"].fullmatch(item):
            fitting = certain = [reminder for reminder in upcoming if reminder.number.casefold() == item]
        else:
            # First those whose texts have the words as they are, then those with all significant words, then
            # those with some of them.
            words = set(meaning_words(item))
            texts = [(reminder, reminder.text.casefold()) for reminder in upcoming]
            certain = [reminder for reminder, text in texts if not item or has_words(text, item)]
            certain = certain or [
                reminder for reminder, text in texts if words and words <= set(meaning_words(text))
            ]
            fitting = certain or [reminder for reminder, text in texts if words & set(meaning_words(text))]
        doubt = "" if certain else "yes"
        return [
            self.option(self._line(reminder), reminder.number, **reminder.slots, doubt=doubt)
            for reminder in fitting
        ]

    def _chosen(
        self, candidates: Sequence[UpcomingReminder], upcoming: Sequence[UpcomingReminder], form: str
    ) -> ParsedRequest:
        """Return the request about the one of the `candidates` that the person means.

        `upcoming` are all upcoming reminders; `form` names the sentence that asks which one is meant.

        Raises:
            AnswerNow: no reminder fits; or the words may mean one occurrence of a repeating reminder, which
                cannot be changed alone; or the person is asked, because several fit, because another person
                set the reminder, or because only some of the words fit.
        """
        options, item = self.options(candidates), self.slot("item")
        if not options:
            # Without words each candidate is an option, so here are none at all. A request to cancel has its
            # own answer for that: this is a move.
            raise AnswerNow(self.say("no_reminder" if item else "nothing_to_move", item=item))
        foreign_ids = {reminder.entry.id for reminder in upcoming if self._is_foreign(reminder)}
        own = [option for option in options if option.request.slot("id") not in foreign_ids]
        fitting = options if item else own or options
        may_mean_one_occurrence = (
            item
            and _may_name_one_occurrence(item)
            and any(option.request.slot("repeats") for option in fitting)
        )
        if may_mean_one_occurrence:  # "this week's": a repeating reminder can only be changed as a whole
            raise AnswerNow(self.say("repeat_limited"))
        is_doubtful = any(
            option.request.slot("id") in foreign_ids or option.request.slot("doubt") for option in fitting
        )
        return self.choose(fitting, form, is_sure=not is_doubtful)

    def _is_foreign(self, reminder: UpcomingReminder) -> bool:
        """Return whether another person set a reminder that is not for the sender.

        If the host does not know who set it, one for everyone counts as the sender's own.
        """
        if reminder.person:
            is_own = reminder.person == self.context.request.person
        else:
            is_own = reminder.text.startswith(self._beginnings("reminder_note_for_all"))
        return not is_own and not self._is_for_sender(reminder)

    async def _cancel_all(self, upcoming: Sequence[UpcomingReminder]) -> str:
        """Cancel all `upcoming` reminders, or all of the sender's, and return the answer.

        Record how to undo it, except for a repeating one, which cannot be set again. Raises `AnswerNow` with
        a question that lists them, unless the person has confirmed.
        """
        is_only_own = bool(PATTERNS["own"].search(self.slot("all")))
        chosen = upcoming
        if is_only_own:  # judged by its text, and by the person who requested it, if known
            by_person = [
                reminder for reminder in upcoming if reminder.person in ("", self.context.request.person)
            ]
            chosen = [reminder for reminder in by_person if self._is_for_sender(reminder)]
        if not chosen:
            return self.say("none_yours", count=len(upcoming))
        if not self.slot("sure"):
            form = "sure_cancel_own" if is_only_own else "sure_cancel_all"
            text = self.say(form, count=len(chosen), name=self.context.request.sender)
            lines = [f"{reminder.number}. {self._line(reminder)}" for reminder in chosen]
            raise self.question("sure", self.listed(text, lines))
        # An empty text stands for a reminder that was cancelled, any other for the host's refusal.
        texts = [await answered(self._cancel(reminder.entry)) for reminder in chosen]
        refusals = [text for text in texts if text]
        # From the last to the first, as each is recorded before the others.
        for reminder, text in reversed([*zip(chosen, texts, strict=True)]):
            if not text:
                at = "" if reminder.repeats else reminder.slots["at"]
                self._record_cancelled(reminder.entry.label, at)
        done = self.say("all_cancelled", count=len(chosen) - len(refusals))
        return "\n".join([done, *dict.fromkeys(refusals)])

    def _record_cancelled(self, label: str, at: str) -> None:
        """Record how to undo the cancellation of the reminder with this label, due `at` an ISO time.

        An empty `at` stands for a repeating reminder, which cannot be set again: an undo only says so, and
        takes back no older change in its place.
        """
        if at:
            self.record_change(self.parsed.of("remind_again", label=label, at=at))
        else:
            self.remember(undo=())
            self.record_change(self.parsed.of("stays_cancelled", text=self.brief(label).rstrip(".")))

    def _is_for_sender(self, reminder: UpcomingReminder) -> bool:
        """Return whether the text of a reminder names the sender."""
        return bool(self._sender) and reminder.text.startswith(
            self._beginnings("reminder_note", "reminder_note_bare")
        )

    # Moving

    async def move(self) -> str:
        """Move the reminder that the request names to another time, and return the answer.

        Record how to undo it. A reminder that was sent already is set again. Raises `AnswerNow` to ask which
        reminder or time is meant, or for the text of a new one if "again" refers to no sent reminder.
        """
        if not self.slot("id"):
            upcoming = await self.upcoming()
            if answer := await self._set_sent_one_again(upcoming):
                return answer
            if self.slot("again"):  # no sent reminder is meant: ask for the text of a new one
                # English words give a time (`when`), Korean ones a span (`later`): `뒤` is "from now".
                when = self.slot("when") or f"{self.slot('later')} 뒤"
                self.parsed = self.parsed.of("remind", when=when)
                raise self.question("what", self.say("no_text"))
            pointed_at = self._pointed_at(upcoming)
            self.parsed = self._chosen(pointed_at or upcoming, upcoming, "which_move")
        parsed_time = self._new_time()
        if self.slot("kind") == "repeat":
            return await self._move_repeat(parsed_time)
        at = self._single_moment(parsed_time)
        notification_id = self.slot("notification")
        written = at.isoformat(timespec="seconds")
        # The host refuses a time that the reminder has already, with these words.
        with self._rewording_refusal("would be different", "move_same", at):
            await self.use("update_notification", notification_id=notification_id, scheduled_at=written)
        # The undo is a move from the new time (`at`) to the old one (`when`).
        self.record_change(
            self.parsed.having(at=written, when=self.slot("at"), later="", earlier=""), last=self.entry
        )
        return self.say("move", what=self.brief(self.slot("label")), moment=self.moment(at))

    def _single_moment(self, parsed_time: times.Reading) -> datetime:
        """Return the moment of a time that does not repeat.

        Raises:
            AnswerNow: the time is unclear or has no hour, so the person is asked for another; or it repeats,
                which a reminder for one time cannot.
        """
        if isinstance(parsed_time, TimeRefusal | DateOnly):
            raise self.question("when", self.unclear(parsed_time))
        if isinstance(parsed_time, Recurrence):
            raise AnswerNow(self.say("move_to_repeat"))
        return parsed_time.at

    async def _move_repeat(self, parsed_time: times.Reading) -> str:
        """Give a repeating reminder another rhythm, and return the answer; record how to undo it.

        Raises `AnswerNow` for a time that does not repeat.
        """
        if not isinstance(parsed_time, Recurrence):
            raise AnswerNow(self.say("move_repeat"))
        reply = await self.request(mailbox.UpdateTask, task_id=self.slot("id"), **_schedule(parsed_time))
        rhythm, what = times.say(parsed_time, self.parsed.language), self.brief(self.slot("label"))
        # The undo is a move from the new rhythm (`repeats`) to the old one (`when`).
        self.record_change(self.parsed.having(repeats=rhythm, when=self.slot("repeats")), last=self.entry)
        moment = self.moment(self._next_run(reply.data) or parsed_time.first)
        return self.say("move_repeated", what=what, times=rhythm, moment=moment)

    def _new_time(self) -> times.Reading:
        """Return the new time of a reminder, or a refusal if the words give none.

        A part that the person left out is that of the old time: `Saturday` keeps the old time of day, `10`
        the old day. The completed words replace those in the slots, so that a question about them can be
        answered.
        """
        # A scheduled task whose last run has begun has no next time: it is due now.
        at = datetime.fromisoformat(self.slot("at")) if self.slot("at") else self.context.now
        words = self.slot("when")
        if self.slot("later") or self.slot("earlier"):
            moved = self.context.shifted(at, self.parsed)
            if isinstance(moved, TimeRefusal):
                return moved
            words = moved.isoformat(timespec="seconds")
            self.parsed = self.parsed.having(later="", earlier="")
        elif at.hour >= NOON and (clock := bare_clock(words)):
            # After an afternoon time, "10" may be in the morning or in the evening: ask which.
            self.parsed = self.parsed.having(when=f"{at:%Y-%m-%d} at {clock}")
            choices = self.context.halves(self.slot("when"))
            return TimeRefusal(reason=Reason.WHICH_HALF, choices=choices)
        else:
            old_words = self.slot("repeats") or f"{at:%Y-%m-%d} at {at:%H:%M}"
            if words:
                words = joined_time(old_words, words, self.context) or words
        parsed_time = self.context.read_time(words)
        if isinstance(parsed_time, times.Duration) and not PATTERNS["from_now"].search(words):
            return TimeRefusal(reason=Reason.NO_TIME)  # "move it an hour" does not say which way
        self.parsed = self.parsed.having(when=words)
        return parsed_time

    async def _set_sent_one_again(self, upcoming: Sequence[UpcomingReminder]) -> str:
        """Set a reminder again that was sent already, and return the answer.

        It is the one whose text the message replies to, or that was last referred to. It is set for the end
        of the span in the slot `later`, which begins now, or without that slot for the time in `when`. Empty,
        with nothing set, if the request means no such reminder; those that are `upcoming` were not sent yet.
        Raises `AnswerNow` to ask for a time that is not clear, or to refuse one that repeats.
        """
        last, quoted = self.context.last, self.context.request.quoted
        # The text with the bell, as it was sent.
        text = quoted if quoted.startswith(_BELL) else ""
        if not text and not self.slot("item") and last is not None and last.kind == "reminder":
            text = (
                "" if any(reminder.entry.id == last.id for reminder in upcoming) else f"{_BELL}{last.label}"
            )
        if not text or any(_BELL + reminder.text == text for reminder in upcoming):
            return ""
        later = self.slot("later")
        parsed_time = self.context.read_span(later) if later else self.context.read_time(self.slot("when"))
        label = text.removeprefix(_BELL)
        # If `_single_moment` raises a question about the time, its answer completes this request.
        self.parsed = self.parsed.of("remind", what=label, when=self.slot("when"))
        at = self._single_moment(parsed_time)
        self.parsed = self.parsed.of("remind_again", label=label, at=at.isoformat())
        return await self.do_remind_again()

    def _pointed_at(self, upcoming: Sequence[UpcomingReminder]) -> list[UpcomingReminder]:
        """Return those of the `upcoming` reminders that a message points at: usually one.

        They are those that the message replies to, or else the one last referred to. The reply may be to the
        reminder's text, which several may have, or to a confirmation that has its number. Empty if there is
        none, or if the request names a reminder in words.
        """
        last, quoted = self.context.last, self.context.request.quoted
        match = PATTERNS["quoted_number"].search(quoted)  # `(reminder 3)`, `(알림 3번)`
        numbers = {match["number"] or match["number_ko"]} if match else set()
        replied = [
            reminder for reminder in upcoming if _BELL + reminder.text == quoted or reminder.number in numbers
        ]
        # A message that replies to another text does not mean the reminder last referred to: ask which one.
        last_id = last.id if last is not None and not quoted else None
        pointed_at = replied or [reminder for reminder in upcoming if reminder.entry.id == last_id]
        return [] if self.slot("item") else pointed_at

    async def _cancel(self, entry: ShownEntry) -> str:
        """Cancel a one-time or repeating reminder. Raises `AnswerNow` if the host refuses.

        Returns an empty text, so that `answered` returns either that or the refusal.
        """
        if entry.kind == "repeat":
            await self.request(mailbox.ActOnTask, type="cancel_task", task_id=entry.id)
        else:
            await self.request(mailbox.CancelReminder, reminder_id=int(entry.id))
        return ""

    # Reminders at the host

    async def one_time(self) -> list[UpcomingReminder]:
        """Return the upcoming reminders that do not repeat; none if the host refuses."""
        try:
            return [reminder for reminder in await self.upcoming() if not reminder.repeats]
        except AnswerNow:
            return []

    async def upcoming(self) -> list[UpcomingReminder]:
        """Return the upcoming reminders: first those for one time, in the host's order, then repeating ones.

        Raises `AnswerNow` if the host refuses to list those for one time. If it refuses to list its scheduled
        tasks, which the repeating ones are, these are missing.
        """
        reply = await self.request(mailbox.ListReminders)
        upcoming = [
            UpcomingReminder(
                entry=_entry("reminder", str(row["id"]), row["text"]),
                number=str(row["id"]),
                at=datetime.fromtimestamp(row["due_ms"] / 1000, self.context.zone),
                notification_id=row.get("notification_id") or "",
                person=row.get("person") or "",
            )
            for row in reply.data.get("reminders", [])
        ]
        tasks = await self.context.ask(mailbox.ListTasks)
        # A repeating reminder is a scheduled task whose prompt asks to repeat a text (`ECHO`).
        for row in tasks.data.get("tasks", []) if tasks.ok else []:
            is_ours = row.get("groupFolder") == self.context.order.group and row["prompt"].startswith(ECHO)
            if is_ours and row.get("status") in ("active", "paused"):
                upcoming.append(self._repeating(row))
        return upcoming

    def _repeating(self, row: Mapping[str, Any]) -> UpcomingReminder:
        """Return the repeating reminder that a scheduled task of the host is; `row` has the task's fields.

        The task's prompt is `ECHO`, which asks to repeat a text word for word, and then the reminder's text.
        """
        at, value = self._next_run(row), row["schedule_value"]
        rhythm = Recurrence.of_schedule(row["schedule_type"], value, first=at or self.context.now)
        return UpcomingReminder(
            entry=_entry("repeat", row["id"], row["prompt"].removeprefix(ECHO)),
            number=self._repeat_number(row["id"]),
            at=at,
            rhythm=rhythm,
            repeats=times.say(rhythm, self.parsed.language) if rhythm else value,
            is_paused=row.get("status") == "paused",
        )

    def _next_run(self, row: Mapping[str, Any]) -> datetime | None:
        """Return the next time at which a scheduled task runs, in the group's zone; None if it has none.

        `row` has the task's fields from the host.
        """
        next_run = row.get("next_run")
        return datetime.fromisoformat(next_run).astimezone(self.context.zone) if next_run else None


def _entry(kind: str, reminder_id: str, text: str) -> ShownEntry:
    """Return a reminder as an entry of a list that is shown; its label is the text without the bell.

    `kind` is `reminder` or `repeat`; `reminder_id` is the reminder's number or the scheduled task's id.
    """
    return ShownEntry(kind=kind, id=reminder_id, label=text.removeprefix(_BELL))


def _may_name_one_occurrence(item: str) -> bool:
    """Return whether Korean words may name one occurrence of a repeating reminder, such as today's."""
    is_time = PATTERNS["words_of_time"].search(item) and not PATTERNS["repeats"].search(item)
    return bool(is_time and PATTERNS["hangul"].search(item))


def _schedule(parsed_time: Recurrence) -> dict[str, str]:
    """Return the fields of a command to the host that describe a repeating time: its type and its value."""
    return dict(zip(("schedule_type", "schedule_value"), parsed_time.schedule, strict=True))
