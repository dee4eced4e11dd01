"""Handle requests about the dashboard: add, change, end and show tasks.

The list of what is open has the tasks and the to-dos under common numbers. The slots of a request are the
words that it has under names such as `title` and `when`, and flags such as `deadline`; the head of
`intents.toml` describes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta
from typing import Any, TypedDict

from agent_runner.agents.offline import calendar
from agent_runner.agents.offline.answers import NOON, bare_clock, joined_time
from agent_runner.agents.offline.conversation import Option, ShownEntry
from agent_runner.agents.offline.handler import AnswerNow, RequestHandler, answered, carry_out, carry_out_undo
from agent_runner.agents.offline.intents import PATTERNS, ROWS, filled
from agent_runner.agents.offline.lists import Lists
from agent_runner.agents.offline.reading import parse_one
from agent_runner.agents.offline.reminders import Reminders
from agent_runner.agents.offline.spelling import fits_despite_slips
from agent_runner.agents.offline.wording import entries
from agent_runner.checklists import TODO, has_words
from agent_runner.wire import times
from agent_runner.wire.dashboard import asks_if_done
from agent_runner.wire.mailbox import ShowDashboard, UseDashboard
from agent_runner.wire.times import DateOnly, Duration, Reason, Recurrence, TimeRefusal

ALARMS = ("reminder", "repeat")
"""The kinds of a `ShownEntry` that are reminders: for one time, and repeating."""
SOON_DAYS = 7
"""Days ahead up to which a task's deadline puts the task on today's agenda."""
_DATE_CHARS = len("2026-02-10")
"""Characters of an ISO day: a longer deadline has a time of day."""
_WHO = "@"
"""The beginning of the tag that names who does a task."""


class OpenTask(TypedDict):
    """An open task, as in the host's reply."""

    id: str
    title: str
    progress: int
    deadline: str | None
    """An ISO day, or a time."""
    blocked: bool
    blocker_note: str | None
    tags: list[str]
    created_at: str | None


def _fits(words: str, text: str) -> bool:
    """Return whether words name an entry with this text: all of it or, unless they are a number, a part."""
    words, text = words.casefold(), text.casefold()
    return words == text or (not words.isdecimal() and has_words(text, words))


class Board(RequestHandler):
    """Handles requests about the dashboard."""

    # Adding

    async def do_add_task(self) -> str:
        """Add a task, or several with one deadline, and return the answer to each.

        Raises `AnswerNow` to ask for a missing title or an unclear deadline.
        """
        titles = self.slot("titles").splitlines() or [self.slot("title") or self.slot("what")]
        if not titles[0]:
            raise self.question("what", self.say("task_what"))
        deadline = self._deadline(", ".join(titles))
        # Each is added on its own: when the host refuses one, the others are still added.
        return "\n".join([await answered(self._create(title, deadline)) for title in titles])

    do_add_tasks = do_add_task

    def _deadline(self, title: str, *, form: str = "deadline_wrong") -> str:
        """Return the deadline in ISO form for the host's tool: a day, or a time; empty if none is named.

        Raises `AnswerNow` for a time that cannot be a deadline, with the question named `form` in
        `intents.toml`; `title` is the task's title in that question.
        """
        if not self.slot("when"):
            return ""
        parsed_time = self.context.read_time(self.slot("when"))
        if isinstance(parsed_time, Recurrence):  # a deadline does not repeat
            parsed_time = TimeRefusal(reason=Reason.NO_SUCH_DAY)
        if isinstance(parsed_time, TimeRefusal):
            raise self.question("when", self.say(form, title=title, why=self.unclear(parsed_time)))
        if isinstance(parsed_time, DateOnly):
            return parsed_time.day.isoformat()
        # "in two weeks" names no hour; "in two hours" does, and only there is `elapsed` more than zero.
        if isinstance(parsed_time, times.Duration) and not parsed_time.elapsed:
            return parsed_time.at.date().isoformat()
        return parsed_time.at.isoformat(timespec="minutes")

    async def _create(self, title: str, deadline: str) -> str:
        """Add a task and return the answer; record how to undo it. Raises `AnswerNow` if the host refuses.

        `deadline` is an ISO day or time; empty for none.
        """
        reply = await self.use("create_task", title=title, deadline=deadline)
        task_id, title = str(reply.data.get("id", "")), str(reply.data.get("title", title))
        entry = ShownEntry(kind="task", id=task_id, label=title)
        self.record_change(self.parsed.of("drop_task", **entry.slots), last=entry)
        until = self._date(reply.data.get("deadline"))
        return self.say("task_added_until" if until else "task_added", title=title, date=until)

    # Changing

    async def change(self) -> str:
        """Change the task that the request names, and return the answer; record how to undo the change.

        The intent's row in `intents.toml` says which fields change. A progress of 100 % completes the task.
        """
        if PATTERNS["for_me"].fullmatch(self.slot("who")):  # "I do it"
            self.parsed = self.parsed.having(who=self.context.request.sender)
        task = await self._find_task()
        if self.parsed.intent == "progress" and int(self.slot("pct")) == 100:
            self.parsed = self.parsed.having(**_entry(task).slots)
            return await self._complete()
        changes = self._changes(task)
        await self.use("update_task", task_id=task["id"], **changes)
        inverse = ROWS[self.parsed.intent].get("inverse", self.parsed.intent)
        self.record_change(self.parsed.of(inverse, **_slots_of_state(task)), last=_entry(task))
        reason = self.slot("reason")
        # Undoing the first "assign" of a task leaves it without a person.
        is_nobodys = self.parsed.intent == "assign" and not self.slot("who")
        return self.say(
            "assign_nobody" if is_nobodys else self.parsed.intent,
            title=changes.get("title", task["title"]),
            pct=changes.get("progress"),
            because=f" ({reason})" if reason else "",
            who=self.slot("who"),
        )

    do_progress = do_block = do_unblock = do_drop_task = do_retitle = do_assign = change

    def _changes(self, task: OpenTask) -> dict[str, Any]:
        """Return the fields of a task that the request changes, with their new values.

        Most of them are in the intent's row in `intents.toml`. Here the new progress is added, or, for
        "assign", the tags with the tag of the person who is to do the task; without a person, that tag is
        removed.
        """
        # A request to block a task may name no reason: then the placeholder of it in the row becomes empty.
        changes = filled(ROWS[self.parsed.intent].get("changes", {}), {"reason": "", **self.parsed.slots})
        if self.parsed.intent == "progress":
            changes["progress"] = int(self.slot("pct"))
        if self.parsed.intent == "assign":
            # The board has no field for a person: a tag names them.
            other_tags = [tag for tag in task["tags"] if not tag.startswith(_WHO)]
            changes["tags"] = [*other_tags, f"{_WHO}{self.slot('who')}"] if self.slot("who") else other_tags
        return changes

    async def describe(self) -> str:
        """Return the answer to the question on which date a task is due, or who does it.

        Raises `AnswerNow` if there is no such task, or to ask which one is meant.
        """
        task = await self._find_task()
        date, who = self._date(task["deadline"]), _who(task)
        is_known = date if self.parsed.intent == "when_due" else who
        form = self.parsed.intent if is_known else f"{self.parsed.intent}_none"
        return self.say(form, title=task["title"], date=date, who=who)

    do_when_due = do_who_does = describe

    async def do_reopen(self) -> str:
        """Make a completed or dropped task active again, with the progress and blocker that it had before.

        The request has these in its slots, because it is made to undo a change.
        """
        before: dict[str, Any] = {"progress": int(self.slot("pct"))}
        if self.slot("blocked"):
            before |= {"blocked": True, "blocker_note": self.slot("reason")}
        await self.use("update_task", task_id=self.slot("id"), status="active", **before)
        self.record_change(last=self.entry)
        return self.say("reopen", title=self.slot("label"))

    async def do_move(self) -> str:
        """Move a reminder or a task's deadline to another time, and return the answer.

        When an entry is chosen here, the request gets its slots, such as `kind`, and this method is called
        again. Raises `AnswerNow` to ask which one is meant if several fit, or if only a misspelt task fits;
        also to ask for the time.
        """
        item = self.slot("item")
        last_entry = self.context.last
        # "the deadline", without a word about the task
        if self.slot("deadline") and not (item or self.slot("kind")):
            tasks = [task for task in await self._open_tasks() if task["deadline"]]
            if not tasks:
                return self.say("before_none")
            last_task_id = self.context.state.task
            meant = _with_id(tasks, last_task_id)
            # The task last referred to has no deadline, or is done: do not take another one without asking.
            is_sure = bool(meant) or not last_task_id
            self.parsed = self.choose(self._options(meant or tasks), "which_move", is_sure=is_sure)
            return await self.do_move()
        # "move it" means the task that was referred to last.
        if not (item or self.slot("kind")) and last_entry is not None and last_entry.kind == "task":
            self.parsed = self.parsed.having(**last_entry.slots)
        if self.slot("kind") == "task":
            return await self._move_deadline()
        # The flag `alarm` says that the words name a reminder: then they are not looked for among the tasks.
        means_reminder = not item or self.slot("kind") or self.slot("alarm")
        open_tasks = [] if means_reminder else await self._open_tasks()
        tasks = find(open_tasks, item)
        reminders = Reminders(self.parsed, self.context)
        misspelt = [] if tasks else find(open_tasks, item, fits_despite_slips)
        if misspelt and not reminders.options(await reminders.upcoming()):
            # This always raises: as it is not sure, it asks whether a misspelt task is meant.
            self.choose(self._options(misspelt), "which_move", is_sure=False)
        if not tasks:
            return await reminders.move()
        options = self._options(tasks)
        if not self.slot("deadline"):  # with the word "deadline", no reminder is meant
            options += reminders.options(await reminders.upcoming())
        self.parsed = self.choose(options, "which_move")
        return await self.do_move()

    async def _move_deadline(self) -> str:
        """Set the deadline of the task that the request names, and return the answer.

        What the new time leaves open, such as the day, is taken from the old deadline. Record how to undo it.
        Raises `AnswerNow` to ask for a missing time, or for the half of the day that an hour means if the old
        deadline is in the afternoon.
        """
        task = await self._find_task()
        before = task["deadline"] or ""
        new_time = self.slot("when")
        if not new_time:
            raise self.question("when", self.say("time.no_time"))
        # The stored ISO time, written as `joined_time` reads it.
        old_time = before.replace("T", " at ")[: len("2026-02-10 at 18:00")]
        clock = bare_clock(new_time) if len(before) > _DATE_CHARS else ""
        # "10" in place of 18:00 may be 10:00 or 22:00: ask which.
        if clock and datetime.fromisoformat(before).hour >= NOON:
            self.parsed = self.parsed.having(when=f"{before[:_DATE_CHARS]} at {clock}")
            halves = self.context.halves(self.slot("when"))
            raise self.question("when", self.unclear(TimeRefusal(reason=Reason.WHICH_HALF, choices=halves)))
        when = joined_time(old_time, new_time, self.context) or new_time
        self.parsed = self.parsed.having(when=when)
        deadline = self._deadline(task["title"], form="deadline_unclear")
        await self.use("update_task", task_id=task["id"], deadline=deadline)
        self._record_deadline(task)
        return self.say("deadline_moved", title=task["title"], date=self._date(deadline))

    def _record_deadline(self, task: OpenTask) -> None:
        """Record how to undo the move of a task's deadline; `task` is as it was before."""
        entry, before = _entry(task), task["deadline"] or ""
        undo = self.parsed.of("restore_deadline", **entry.slots, task=task["title"], when=before)
        self.record_change(undo, last=entry)

    async def do_restore_deadline(self) -> str:
        """Give a task back the deadline that it had before a move, and return the answer.

        The slot `when` has that deadline in ISO form; empty if it had none. Raises `AnswerNow` if the task is
        no longer open.
        """
        task = await self._find_task()
        deadline = self.slot("when")
        # Not by `use`, which leaves empty arguments out: an empty deadline removes the one that is there.
        arguments = {"task_id": task["id"], "deadline": deadline}
        await self.request(UseDashboard, tool="update_task", arguments=arguments)
        self._record_deadline(task)
        form = "deadline_moved" if deadline else "when_due_none"
        return self.say(form, title=task["title"], date=self._date(deadline))

    # Ending, and opening again

    async def do_finish(self) -> str:
        """Finish the task, list entry or reminder that the request names, and return the answer.

        Raises `AnswerNow` to ask which one is meant if several fit, or if only a misspelt name fits.
        """
        # With a named list, only an entry of that list is meant.
        if self.slot("list") not in ("", TODO) and not self.slot("kind"):
            return await Lists(self.parsed, self.context).act()
        if not self.slot("kind"):
            options = await self._options_to_finish()
            misspelt = [] if options else await self._options_to_finish(fits=fits_despite_slips)
            if not (options or misspelt):  # the words may name several things
                return await self._finish_each()
            # A misspelt entry, and a number that was not shown, are asked about even as the only option.
            self.parsed = self.choose(
                options or misspelt, "which_done", is_sure=not misspelt and self._surely_names("item")
            )
            # Nobody was asked about a single fit: if it is a reminder, ask before it is cancelled.
            self.parsed = self.parsed.having(ask="yes" if len(options) == 1 else "")
        match self.slot("kind"):
            case "task":
                return await self._complete()
            case "item":
                return await Lists(self.parsed.having(item=self.slot("label")), self.context).act()
            case _:
                return await Reminders(self.parsed, self.context).do_cancel_reminder()

    async def _finish_each(self) -> str:
        """Finish each of several things that one request names, and return the answers.

        Called when nothing open fits the words as a whole. If they name only one thing, the answer says that
        it has ended already, or is unknown.
        """
        item = self.slot("item")
        parts = entries(item, self.parsed.language)
        if len(parts) < 2:
            return await self._ended_already() or self.say("nothing_to_finish", item=item)
        return "\n".join(filter(None, [await answered(self._finish_part(part)) for part in parts]))

    async def _finish_part(self, part: str) -> str:
        """Finish the thing that a part of a request names, and return the answer.

        A part that reports progress, such as `blog 60%`, only changes the progress.
        """
        parsed = parse_one(part)
        if parsed is not None and parsed.intent == "progress":
            return await carry_out(parsed, self.context)
        # `the blog is done` → `blog`
        item = PATTERNS["the"].sub("", PATTERNS["state_words"].sub("", part))
        return await Board(self.parsed.having(item=item), self.context).do_finish()

    async def _ended_already(self) -> str:
        """Return the sentence that an entry of a list is ticked off already; empty if no such entry fits."""
        lists = Lists(self.parsed, self.context)
        for entry in await lists.entries([], is_open=False):
            if _fits(self.slot("item"), entry.label):
                lists.name = entry.list
                return lists.say("on_list_done", item=entry.label)
        return ""

    async def _options_to_finish(self, *, fits: Callable[[str, str], bool] = _fits) -> list[Option]:
        """Return an option for each open task, list entry and reminder that the slot `item` can mean.

        A number means the entry with that number in the list shown last. If that list had reminders, or none
        was shown, the number may also be the place of a task or the number of a to-do. For other words,
        `fits(words, text)` decides whether they mean the entry with this text; they never mean a reminder.

        Raises:
            AnswerNow: the list shown last has no such number.
        """
        item, shown = self.slot("item"), self.context.state.shown
        is_number, entry = item.isdecimal(), shown.get(item)
        reminders_were_shown = any(known.kind in ALARMS for known in shown.values())
        if is_number and shown and not reminders_were_shown:
            if entry is None:
                raise AnswerNow(self.say("which_number", item=item))
            return [self._finish_option(entry, entry.label)]
        is_in_list = bool(self.slot("list"))
        tasks = [] if is_in_list else await self._open_tasks()
        # Here a list that is named is the to-dos. Words may name an entry of any list: `entries([])` has all.
        items = await Lists(self.parsed, self.context).entries([TODO] if is_number or is_in_list else [])
        fitting = [todo for todo in items if (todo.id == item if is_number else fits(item, todo.label))]
        # Entries with exactly this text are meant before those that only contain it.
        same = [todo for todo in fitting if todo.label.casefold() == item.casefold()]
        options = [
            self._finish_option(_entry(task), self._label(task))
            for task in (_at_place(tasks, item) if is_number else find(tasks, item, fits))
        ]
        for todo in same or fitting:
            form = "option_todo" if todo.list == TODO else "option_item"
            options.append(self._finish_option(todo, self.say(form, title=todo.label, list=todo.list)))
        if is_number and entry is not None:  # the reminder that was shown with this number
            title = Reminders(self.parsed, self.context).brief(entry.label)
            options.append(self._finish_option(entry, self.say("option_reminder", title=title)))
        return options

    def _finish_option(self, entry: ShownEntry, label: str) -> Option:
        """Return the option to finish an entry; `label` is its text in a question."""
        return Option(label=label, request=self.parsed.of("finish", **entry.slots))

    async def _complete(self) -> str:
        """Complete the task that the request's slots name, and return the answer.

        The host cancels the reminders of a completed task; the recorded undo sets them again.
        """
        task = self.entry
        reminders = Reminders(self.parsed, self.context)
        tasks = _with_id(await self._open_tasks(), task.id)
        reminders_before = await reminders.one_time()
        await self.use("update_task", task_id=task.id, **ROWS["finish"]["changes"])
        # The host does not say which reminders it has cancelled: they are no longer listed.
        reminders_after = await reminders.one_time() if reminders_before else []
        remaining_numbers = {reminder.number for reminder in reminders_after}
        cancelled = [reminder for reminder in reminders_before if reminder.number not in remaining_numbers]
        undo = [self.parsed.of("reopen", **_slots_of_state(open_task)) for open_task in tasks]
        undo += [self.parsed.of("remind_again", task_id=task.id, **one.slots) for one in cancelled]
        self.record_change(*undo, last=task)
        return self.say("finish", title=task.label)

    async def do_untick(self) -> str:
        """Reopen the task that the last change completed, if the words name it; else untick a list's entry.

        The task is reopened by undoing its completion, so its reminders are set again, too. Returns the
        answer. Raises `AnswerNow` to ask which list is meant, or which entry if only a misspelt one fits.
        """
        item = self.slot("item")
        state = self.context.state
        lists = Lists(self.parsed, self.context)
        # A named list, "it" or a chosen entry: no task is meant.
        if self.slot("list") or self.slot("it") or self.slot("kind"):
            return await lists.act()  # this unticks the entry
        shown = state.shown.get(item)
        label = shown.label if shown else item
        if any(step.intent == "reopen" and _fits(label, step.slot("label")) for step in state.undo):
            steps = [step for step in state.undo if step.intent in ("reopen", "remind_again")]
            return await carry_out_undo(steps, self.context)
        if shown is not None and shown.kind == "item":
            return await Lists(self.parsed.having(item=label, list=shown.list), self.context).act()
        # A number means an entry of the list last referred to, or else a to-do.
        ticked = await lists.entries([state.list or TODO] if item.isdecimal() else [], is_open=False)
        if not any(
            entry.id == item or _fits(item, entry.label) or fits_despite_slips(item, entry.label)
            for entry in ticked
        ):
            return self.say("nothing_to_reopen", item=label)
        return await lists.act()

    # Finding the task

    async def _find_task(self) -> OpenTask:
        """Return the open task that the request names.

        Raises `AnswerNow` if there is none, or to ask which one is meant.
        """
        tasks = await self._open_tasks()
        fitting = self._fitting(tasks)
        misspelt = [] if fitting else find(tasks, self.slot("task"), fits_despite_slips)
        if not (fitting or misspelt):
            # Without open tasks the words hardly name one, but "drop the task …" always does.
            is_about_task = tasks or self.parsed.intent == "drop_task"
            form = "task_unknown" if is_about_task else "unknown"
            raise AnswerNow(self.say(form, item=self.slot("task")))
        options = self._options(fitting or misspelt)
        is_sure = bool(fitting) and self._surely_names("task")
        # This raises a question unless exactly one task is sure to be meant: the one in `fitting`.
        self.parsed = self.choose(options, "which_task", is_sure=is_sure)
        return fitting[0]

    def _surely_names(self, slot: str) -> bool:
        """Return whether the slot with this name surely names an entry: by words, or by a known number.

        A number is known if it was in the list shown last, or if the request has the entry's id already.
        """
        number = self.slot(slot)
        return not number.isdecimal() or bool(self.slot("id")) or number in self.context.state.shown

    def _fitting(self, tasks: Sequence[OpenTask]) -> list[OpenTask]:
        """Return the tasks that the request can mean: by an id, a pronoun, a number or words of the title."""
        which, state = self.slot("task"), self.context.state
        if self.slot("id") or PATTERNS["that_one"].fullmatch(which):
            return _with_id(tasks, self.slot("id") or state.task)
        if which.isdecimal() and which in state.shown:
            return _with_id(tasks, state.shown[which].id)
        return find(tasks, which) or _at_place(tasks, which)

    def _options(self, tasks: Sequence[OpenTask]) -> list[Option]:
        """Return an option for each task: the same request, about that task."""
        return [self.option(self._label(task), **_entry(task).slots) for task in tasks]

    # Answers to questions of the dashboard

    async def answer(self) -> str:
        """Answer the dashboard's last question with yes or no, as the intent says; return what to reply.

        A yes to a question such as "is it done?" completes the task that the question is about, and so ends
        the question. The request names its question (slot `question_id`) if a choice among several was made
        before; else the last one is looked up. Empty, with nothing answered, if the agent itself has an open
        question then. Raises `AnswerNow` to ask which question
        is meant if the dashboard asked several at once.
        """
        if not self.slot("question_id"):
            if self.context.own_questions:
                return ""  # the caller repeats that question
            options = await self._last_questions()
            if not options:
                return self._not_asked()
            self.parsed = self.choose(options, "which_task")
        # The slot `is_done` marks a question that asks whether a task is done. This list has that task, if it
        # is still open.
        asked_about = _with_id(await self._open_tasks(), self.slot("id")) if self.slot("is_done") else []
        if asked_about:
            self.parsed = self.parsed.having(**_entry(asked_about[0]).slots)
        if asked_about and self.parsed.intent == "yes":
            return await self._complete()
        await self.use("answer_question", question_id=self.slot("question_id"), answer=self.parsed.intent)
        return self.say("not_done_yet" if asked_about else "answer_noted", title=self.slot("label"))

    do_yes = do_no = answer

    async def _last_questions(self) -> list[Option]:
        """Return the questions that the dashboard asked last, as options: several if they came at once."""
        reply = await self.context.ask(ShowDashboard)
        rows = [row for row in reply.data.get("questions", []) if row.get("asked_count")]
        latest = max((row.get("last_asked_at") or "" for row in rows), default="")
        return [
            self.option(
                row["question"],
                question_id=row["id"],
                id=row.get("related_task_id") or "",
                is_done="yes" if asks_if_done(row["question"]) else "",
            )
            for row in rows
            if latest and row.get("last_asked_at") == latest
        ]

    async def do_never_mind(self) -> str:
        """Return the answer that no question is open, or only one for somebody else: nothing is given up.

        Empty if the sender has an open question: the agent then asks it again. Without any open question,
        `cancel it` is about the reminder that the sender last referred to: the agent asks whether to cancel.
        """
        last = self.context.last
        if self.slot("it") and last is not None and last.kind in ALARMS and not self.context.state.questions:
            cancel = self.parsed.of("cancel_reminder", **last.slots, ask="yes")
            return await carry_out(cancel, self.context)
        return "" if self.context.own_questions else self._not_asked()

    def _not_asked(self) -> str:
        """Return the sentence that no question is open, or that the open ones are for the people it names."""
        names = dict.fromkeys(question.sender for question in self.context.state.questions)
        return self.say("not_yours", name=", ".join(filter(None, names))) if names else self.say("never_mind")

    # Showing

    async def do_show_open(self) -> str:
        """Return the open tasks and to-dos in one numbering, then the open questions."""
        reply = await self.request(ShowDashboard)
        parts = self._sections(
            reply.data.get("tasks", []), await Lists(self.parsed, self.context).entries([TODO])
        )
        questions = [f"• {row['question']}" for row in reply.data.get("questions", [])]
        if questions:
            parts.append(self.listed(self.say("open_questions"), questions))
        return "\n\n".join(parts) or self.say("nothing_open")

    async def do_due(self) -> str:
        """Return a list of the tasks that have a deadline, soonest first.

        If the request names a day, only those that are due by its end.
        """
        until = self._day()
        words = self.say("until_day", day=times.say_day(until, self.parsed.language)) if until else ""
        # "0" sorts before every day, but after the empty day of a task without a deadline.
        tasks = await self._due_between("0", (until or date.max).isoformat())
        return self._due(tasks) or self.say("nothing_due", until=words)

    async def do_late(self) -> str:
        """Return a list of the tasks that are past their deadline; if there are none, say so."""
        tasks = [task for task in await self._open_tasks() if _is_late(task, self.context.now)]
        return self._due(tasks, "late") or self.say("nothing_late")

    async def do_blocked(self) -> str:
        """Return a list of the tasks that are blocked; if there are none, say so."""
        tasks = [task for task in await self._open_tasks() if task["blocked"]]
        return self._due(tasks, "blocked") or self.say("nothing_blocked")

    async def _due_between(self, since: str, until: str) -> list[OpenTask]:
        """Return the tasks that are due from the ISO day `since` to `until`, both included.

        An empty `since` includes the tasks without a deadline, `0` all that have one.
        """
        # The day of a task without a deadline is the empty text, which sorts before every other text.
        return [task for task in await self._open_tasks() if since <= _due_day(task) <= until]

    def _due(self, tasks: Iterable[OpenTask], head: str = "due") -> str:
        """Return tasks under the heading that `head` names, soonest first; empty if there are none.

        Their numbers are remembered, in place of those of the list shown before.
        """
        return "".join(self._sections(sorted(tasks, key=_due_day), [], head=head))

    async def do_week(self) -> str:
        """Return the events, reminders and due tasks from one day to another.

        By default these are overdue tasks, and all from today to the Sunday of this week, or of the next week
        if that is named.
        """
        today = self.context.now.date()
        named_first = self._day()
        first = named_first or today
        weeks = 2 if PATTERNS["next_week"].fullmatch(self.slot("week")) else 1
        last = self._day("last") or today + timedelta(days=weeks * 7 - 1 - today.weekday())
        if last < first:  # "from Saturday to Sunday" on a Sunday
            last += timedelta(days=7)
        # "0" sorts before each day, so overdue tasks are included; the empty day of no deadline is not.
        since = named_first.isoformat() if named_first else "0"
        until = last.isoformat()
        first_name, last_name = (times.say_long_day(day, self.parsed.language) for day in (first, last))
        head = self.say("week_from" if named_first else "week_until", first=first_name, day=last_name)
        # The words for the days in the answer that nothing is on.
        days = head.rstrip(":") if named_first else self.say("until_day", day=last_name).strip()
        due = self._due(await self._due_between(since, until))
        return await self._plan(first, last, head, days, [due])

    async def do_agenda(self) -> str:
        """Return the events, reminders and due tasks of a day.

        Today also has the tasks that are overdue, due soon or without a deadline, and the to-dos.
        """
        today = self.context.now.date()
        day = self._day() or today
        since = until = day.isoformat()
        todos = []
        trouble = ""
        if day == today:
            since = ""  # sorts before each day, and includes the empty day of a task without a deadline
            until = (today + timedelta(days=SOON_DAYS)).isoformat()
            try:
                todos = await Lists(self.parsed, self.context).open_todos()
            except AnswerNow as refusal:  # the agenda is shown without the to-dos, with the reason
                trouble = refusal.text
        tasks = await self._due_between(since, until)
        name = times.say_long_day(day, self.parsed.language)
        name = self.say("today_is", day=name) if day == today else name
        head = self.say("agenda", day=name[:1].upper() + name[1:])
        return await self._plan(day, day, head, name, [*self._sections(tasks, todos), trouble])

    async def _plan(self, first: date, last: date, head: str, days: str, parts: Sequence[str]) -> str:
        """Return the events and reminders from one day to another, then the other parts, under a heading.

        `first` and `last` are included; `parts` are texts. If all is empty, return the answer that nothing is
        on; `days` are the words in that answer which name the days.
        """
        events = await asyncio.to_thread(calendar.events, self.context.workspace.snapshots, self.context.zone)
        lines = calendar.between(events, first, last, self.parsed.language)
        lines += await Reminders(self.parsed, self.context).between(first, last)
        return self.joined(head, "\n".join(lines), *parts) or self.say("agenda_nothing", day=days)

    def _date(self, at: str | None) -> str:
        """Return an ISO deadline as people read it: `Tue 2026-02-10`, with the time of day if it has one.

        Empty if there is no deadline.
        """
        if not at:
            return ""
        if len(at) == _DATE_CHARS:
            return times.say_day(date.fromisoformat(at), self.parsed.language)
        return self.moment(datetime.fromisoformat(at), has_seconds=False)

    def _day(self, slot: str = "day") -> date | None:
        """Return the day that the words in a slot mean; None if the slot is empty.

        Raises `AnswerNow` to ask which of several days is meant, or to say why the words name no day.
        """
        if not self.slot(slot):
            return None
        parsed_time = self.context.read_time(self.slot(slot), takes_past=True)
        if not isinstance(parsed_time, TimeRefusal):
            return parsed_time.at.date()
        # Both halves of "tomorrow at 5" are on one day, about which nothing has to be asked.
        days = sorted({choice.at.date() for choice in parsed_time.choices})
        if not days:
            raise AnswerNow(self.unclear(parsed_time))
        names = [times.say_day(day, self.parsed.language) for day in days]
        options = [
            self.option(name, **{slot: day.isoformat()}) for name, day in zip(names, days, strict=True)
        ]
        return date.fromisoformat(self.choose(options, "which_days").slot(slot))

    def _sections(
        self, tasks: Sequence[OpenTask], todos: Sequence[ShownEntry], *, head: str = "show_open"
    ) -> list[str]:
        """Return a text with the tasks and one with the to-dos, in one numbering; empty ones are left out.

        Without tasks, the to-dos have the numbers of their list. The numbers are remembered, so that a later
        message can use them; those of the list shown before are forgotten. `head` names the heading of the
        tasks.
        """
        shown = {str(number): _entry(task) for number, task in enumerate(tasks, 1)}
        described = [f"{number}. {self._described(task)}" for number, task in enumerate(tasks, 1)]
        numbered = {
            str(len(tasks) + place) if tasks else todo.id: todo for place, todo in enumerate(todos, 1)
        }
        self.remember(shown=shown | numbered)
        listed = [f"{number}. {todo.label}" for number, todo in numbered.items()]
        parts = ((self.say(head), described), (self.say("todo_head"), listed))
        return [self.listed(title, lines) for title, lines in parts if lines]

    def _described(self, task: OpenTask) -> str:
        """Return a task as a line of a list: progress, deadline, whether it is blocked, and the person."""
        until = self.say("task_until", date=self._date(task["deadline"])) if task["deadline"] else ""
        blocked = self.say("task_blocked") if task["blocked"] else ""
        details = filter(None, (f"{task['progress']}%{until}", blocked, _who(task)))
        return f"{task['title']} ({', '.join(details)})"

    def _label(self, task: OpenTask) -> str:
        """Return a task's title, progress, deadline and date of creation: titles alone may be the same."""
        until = self._date(task["deadline"]) or self.say("no_deadline")
        added = self.say("added_on", date=self._date(task.get("created_at")))
        return self.say("option_task", title=task["title"], more=f"{task['progress']}%, {until}, {added}")

    async def do_before_deadline(self) -> str:
        """Set a reminder before the deadline of a task, and return the answer.

        It is the task that is named, or else the one last referred to, or else the only one with a deadline.
        Raises `AnswerNow` to ask which task is meant.
        """
        tasks = [task for task in await self._open_tasks() if task["deadline"]]
        if not tasks:
            return self.say("before_none")
        is_named = self.slot("id") or self.slot("task")
        last = self.context.state.task
        fitting = self._fitting(tasks) if is_named else _with_id(tasks, last) or tasks
        # The task last referred to has no deadline, or is done: do not take another one without asking.
        is_last_unfit = bool(last) and not is_named and not _with_id(tasks, last)
        if len(fitting) != 1 or is_last_unfit:
            misspelt = find(tasks, self.slot("task"), fits_despite_slips)
            # This raises the question, also if there is only one option.
            self.choose(self._options(fitting or misspelt or tasks), "before_which", is_sure=False)
        (task,) = fitting
        day = date.fromisoformat(_due_day(task)) - timedelta(days=self._days_before())
        what = self.say("before_deadline", title=task["title"], date=self._date(task["deadline"]))
        # "the evening before" without a time of day is 18:00, "the day before" 09:00.
        default_clock = "18:00" if PATTERNS["day_before_late"].match(self.slot("before")) else "09:00"
        when = f"{day.isoformat()} {self.slot('clock') or default_clock}"
        details = {"whom": self.slot("whom"), "task_id": task["id"]}
        return await carry_out(self.parsed.of("remind", what=what, when=when, **details), self.context)

    def _days_before(self) -> int:
        """Return the number of days in the slot `before`: 2 in `two days before` and in `이틀 전`.

        It is 0 for words that name no number of days, such as `당일` ("on the day").
        """
        words = PATTERNS["day_before"].sub("a day", self.slot("before").lower()).replace("전날", "하루")
        span = self.context.read_time(words.removesuffix("before").removesuffix("전"))
        return span.days if isinstance(span, Duration) else 0

    async def _open_tasks(self) -> list[OpenTask]:
        """Return the open tasks; none if the host refuses."""
        reply = await self.context.ask(ShowDashboard)
        return reply.data.get("tasks", []) if reply.ok else []


def find(tasks: Sequence[OpenTask], which: str, fits: Callable[[str, str], bool] = _fits) -> list[OpenTask]:
    """Return the tasks whose title is the words `which`; if there are none, those whose titles fit the words.

    `fits(words, title)` decides whether a title fits; by default it has to contain the words.
    """
    which = " ".join(which.casefold().split())
    exact = [task for task in tasks if task["title"].casefold() == which]
    return exact or [task for task in tasks if fits(which, task["title"])]


def _with_id(tasks: Sequence[OpenTask], task_id: str) -> list[OpenTask]:
    """Return the task with this id, as a list of at most one."""
    return [task for task in tasks if task["id"] == task_id]


def _at_place(tasks: Sequence[OpenTask], number: str) -> list[OpenTask]:
    """Return the task at a place, counted from 1, as a list of at most one."""
    return [task for place, task in enumerate(tasks, 1) if str(place) == number]


def _entry(task: OpenTask) -> ShownEntry:
    """Return the entry that stands for a task in a list that is shown."""
    return ShownEntry(kind="task", id=task["id"], label=task["title"])


def _slots_of_state(task: OpenTask) -> dict[str, str]:
    """Return the slots of a request that restores a task to its present state."""
    blocked, reason = "yes" if task["blocked"] else "", task["blocker_note"] or ""
    state = {"title": task["title"], "pct": str(task["progress"]), "blocked": blocked, "reason": reason}
    return _entry(task).slots | state | {"who": _who(task)}


def _due_day(task: OpenTask) -> str:
    """Return the day of a deadline as ISO text, which sorts as days do; empty without a deadline."""
    return (task["deadline"] or "")[:_DATE_CHARS]


def _is_late(task: OpenTask, now: datetime) -> bool:
    """Return whether a task's deadline has passed; a deadline without a time of day lasts until midnight."""
    deadline = task["deadline"] or ""
    if len(deadline) > _DATE_CHARS:
        return datetime.fromisoformat(deadline).timestamp() < now.timestamp()
    return "" < deadline < now.date().isoformat()


def _who(task: OpenTask) -> str:
    """Return the name of the person who does a task, from its tags; empty if it has no such tag."""
    return next((tag.removeprefix(_WHO) for tag in task["tags"] if tag.startswith(_WHO)), "")
