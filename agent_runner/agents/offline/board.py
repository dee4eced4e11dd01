"""The dashboard: tasks are added, changed, ended, and shown in numbered lists with the to-dos."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from typing import Any, TypedDict

from agent_runner.agents.offline.conversation import Option, ShownEntry
from agent_runner.agents.offline.handler import AnswerNow, RequestHandler
from agent_runner.agents.offline.intents import PATTERNS, ROWS, ParsedRequest
from agent_runner.agents.offline.lists import Lists
from agent_runner.agents.offline.reminders import Reminders
from agent_runner.checklists import TODO, Item
from agent_runner.wire import times
from agent_runner.wire.mailbox import Reply, ShowDashboard, UseDashboard
from agent_runner.wire.times import DateOnly, Duration, Reason, Recurrence, TimeRefusal

SOON_DAYS = 7
"""A task that is due by then, or at no time, belongs to today too."""
_DATE_CHARS, _MINUTE_CHARS = len("2026-02-10"), len("2026-02-10 18:00")


class OpenTask(TypedDict):
    """A task that is worked on, as the host's reply has it."""

    id: str
    title: str
    progress: int
    deadline: str | None
    """An ISO day, or a time."""
    blocked: bool
    created_at: str | None


class Board(RequestHandler):
    """Handles requests about the dashboard."""

    # Adding

    async def do_add_task(self) -> str:
        """Put a task on the board, or several with one deadline; none before the deadline is clear."""
        titles = self.slot("titles").splitlines() or [self.slot("title") or self.slot("what")]
        if not titles[0]:
            raise self.question("what", self.say("task_what"))
        deadline = self._deadline(", ".join(titles))
        return "\n".join([await self._create(title, deadline) for title in titles])

    do_add_tasks = do_add_task

    def _deadline(self, title: str) -> dict[str, str]:
        """Return the deadline as an argument of the host's tool, none where none is named."""
        if not self.slot("when"):
            return {}
        read = self.context.read_time(self.slot("when"))
        if isinstance(read, Recurrence):
            read = TimeRefusal(reason=Reason.NO_SUCH_DAY)
        if isinstance(read, TimeRefusal):
            why = Reminders(self.parsed, self.context).unclear(read)
            raise self.question("when", self.say("deadline_wrong", title=title, why=why))
        day = read.day.isoformat() if isinstance(read, DateOnly) else ""
        return {"deadline": day or read.at.isoformat(timespec="minutes")}

    async def _create(self, title: str, deadline: dict[str, str]) -> str:
        """Make one task. A refusal is an answer too: it leaves the tasks beside it as they are."""
        try:
            reply = await self._use("create_task", title=title, **deadline)
        except AnswerNow as refusal:
            return refusal.text
        self.context.state = replace(self.context.state, task=str(reply.data.get("id", "")))
        kept = reply.data.get("deadline")
        form = "task_added_until" if kept else "task_added"
        return self.say(form, title=reply.data.get("title", title), date=_minute(kept))

    # Changing

    async def change(self) -> str:
        """Change the task that is meant as the intent's row says; 100 % completes it."""
        task = await self._meant()
        self.context.state = replace(self.context.state, task=task["id"])
        changes, pct, reason = (
            ROWS[self.parsed.intent].get("changes", {}) | {},
            self.slot("pct"),
            self.slot("reason"),
        )
        if pct and int(pct) == 100:
            return await self._complete(task["id"], task["title"])
        if pct:
            changes["progress"] = int(pct)
        if reason:
            changes["blocker_note"] = reason
        await self._use("update_task", task_id=task["id"], **changes)
        because = f" ({reason})" if reason else ""
        return self.say(self.parsed.intent, title=task["title"], pct=changes.get("progress"), reason=because)

    do_progress = do_block = do_unblock = do_drop_task = change

    async def do_finish(self) -> str:
        """End what is meant: a task, an entry of a list, a reminder. What could be several is asked about."""
        if self.slot("list") not in ("", TODO) and not self.slot("kind"):
            return await Lists(self.parsed, self.context).act()
        if not self.slot("kind"):
            options = await self._finishable()
            if not options:
                return self.say("nothing_to_finish", item=self.slot("item"))
            self.parsed = self.choose(options, "which_done")
        match self.slot("kind"):
            case "task":
                return await self._complete(self.slot("id"), self.slot("label"))
            case "item":
                return await Lists(self.parsed.having(item=self.slot("label")), self.context).act()
            case _:
                return await Reminders(self.parsed, self.context).do_cancel_reminder()

    async def _finishable(self) -> list[Option]:
        """Return everything open that a number or a text can mean; a number means the list shown last."""
        item, shown = self.slot("item"), self.context.state.shown
        is_number = item.isdecimal()
        if is_number and shown:
            if item not in shown:
                raise AnswerNow(self.say("which_number", item=item))
            return [self._ending(shown[item], shown[item].label)]
        tasks = [] if self.slot("list") else await self._open_tasks(is_again=True)
        found = _at(tasks, item) if is_number else find(tasks, item)
        todos = await self._todos()
        meant = [one for one in todos if (str(one.number) == item if is_number else _fits(item, one.text))]
        return [
            *(self._ending(_task_entry(task), self._label(task)) for task in found),
            *(self._ending(_todo_entry(one), self.say("option_todo", title=one.text)) for one in meant),
        ]

    def _ending(self, entry: ShownEntry, label: str) -> Option:
        """Offer to end an entry."""
        request = self.parsed.of("finish", kind=entry.kind, id=entry.id, label=entry.label, list=entry.list)
        return Option(label=label, request=request)

    async def _complete(self, task_id: str, title: str) -> str:
        await self._use("update_task", task_id=task_id, **ROWS["finish"]["changes"])
        return self.say("finish", title=title)

    async def _meant(self) -> OpenTask:
        """Return the one task that is meant. Raises `AnswerNow` to ask which, or where there is none."""
        tasks, which, shown = (
            await self._open_tasks(is_again=True),
            self.slot("task"),
            self.context.state.shown,
        )
        if self.slot("task_id"):
            found = _with_id(tasks, self.slot("task_id"))
        elif which.isdecimal() and which in shown:
            found = _with_id(tasks, shown[which].id)
        else:
            found = find(tasks, which) or _at(tasks, which)
        if not found:
            is_ours = tasks or self.parsed.intent == "drop_task"
            raise AnswerNow(self.say("task_unknown", item=which) if is_ours else self.say("unknown"))
        if len(found) > 1:
            raise self._which_task(found, "which_task")
        return found[0]

    def _which_task(self, tasks: Sequence[OpenTask], form: str) -> AnswerNow:
        options = [
            Option(label=self._label(task), request=self.parsed.having(task_id=task["id"])) for task in tasks
        ]
        return self.question("which", self.say(form), options)

    # Answers to what the dashboard asks

    async def answer(self) -> str:
        """Take a bare yes or no as the answer to what the dashboard asked last."""
        if not self.slot("question_id"):
            if self.context.state.questions:
                return ""  # the agent itself asked last, and asks again
            self.parsed = await self._to_last_question()
        tasks = _with_id(await self._open_tasks(is_again=True), self.slot("task_id"))
        task = tasks[0] if tasks and self.slot("is_done") else None
        if task and self.parsed.intent == "yes":
            return await self._complete(task["id"], task["title"])
        await self._use("answer_question", question_id=self.slot("question_id"), answer=self.parsed.intent)
        return self.say("not_done_yet", title=task["title"]) if task else self.say("answer_noted")

    do_yes = do_no = answer

    async def _to_last_question(self) -> ParsedRequest:
        """Return the answer with the question that it answers; which, is asked of several asked at once."""
        reply = await self.context.host.ask(ShowDashboard(request_id=self.context.next_id()))
        rows = [row for row in reply.data.get("questions", []) if row.get("asked_count")]
        latest = max((row.get("last_asked_at") or "" for row in rows), default="")
        options = []
        for row in rows if latest else ():
            if row.get("last_asked_at") == latest:
                is_done = "yes" if PATTERNS["asks_if_done"].search(row["question"]) else ""
                task_id = row.get("related_task_id") or ""
                request = self.parsed.having(question_id=row["id"], task_id=task_id, is_done=is_done)
                options.append(Option(label=row["question"], request=request))
        if not options:
            raise AnswerNow(self.say("never_mind"))
        return self.choose(options, "which_task")

    # Showing

    async def do_show_open(self) -> str:
        """Say what is open: tasks and to-dos in one numbering, then questions."""
        reply = await self.request(ShowDashboard())
        parts = self._sections(reply.data.get("tasks", []), await self._todos())
        questions = [f"• {row['question']}" for row in reply.data.get("questions", [])]
        if questions:
            parts.append(self.listed(self.say("open_questions"), questions))
        return "\n\n".join(parts) or self.say("nothing_open")

    async def do_due(self) -> str:
        """Say which tasks have a deadline, soonest first; those until a day where one is named."""
        until = self._day()
        last = (until or date.max).isoformat()
        tasks = [task for task in await self._open_tasks() if "" < _due_day(task) <= last]
        if not tasks:
            named = self.say("until_day", day=times.say_day(until, self.parsed.language)) if until else ""
            return self.say("nothing_due", until=named)
        tasks.sort(key=lambda task: task["deadline"] or "")
        return self._sections(tasks, [], head="due")[0]

    async def do_agenda(self) -> str:
        """Say what is on a day: reminders and tasks; today also tasks due soon or at no time, and to-dos."""
        today = self.context.now.date()
        day = self._day() or today
        reminders = await Reminders(self.parsed, self.context).of_day(day)
        tasks, todos, trouble = await self._open_tasks(), [], []
        if day == today:
            soon = (today + timedelta(days=SOON_DAYS)).isoformat()
            tasks = [task for task in tasks if _due_day(task) <= soon]
            try:
                todos = await Lists(self.parsed, self.context).open_todos()
            except AnswerNow as refusal:
                trouble = [refusal.text]
        else:
            tasks = [task for task in tasks if _due_day(task) == day.isoformat()]
        parts = ["\n".join(reminders)] if reminders else []
        parts += [*self._sections(tasks, todos), *trouble]
        named = times.say_long_day(day, self.parsed.language)
        named = self.say("today_is", day=named) if day == today else named
        if not parts:
            return self.say("agenda_nothing", day=named)
        return "\n\n".join([self.say("agenda", day=named[:1].upper() + named[1:]), *parts])

    def _day(self) -> date | None:
        """Return the day that is named, None where none is. Raises `AnswerNow` to say why it is none."""
        if not self.slot("day"):
            return None
        read = self.context.read_time(self.slot("day"), takes_past=True)
        if isinstance(read, TimeRefusal):
            raise AnswerNow(self.say(f"time.{read.reason.value}", moment="—", on=""))
        return (read.first if isinstance(read, Recurrence) else read.at).date()

    def _sections(
        self, tasks: Sequence[OpenTask], todos: Sequence[Item], *, head: str = "show_open"
    ) -> list[str]:
        """Return tasks and to-dos in one numbering that can be answered with; to-dos alone keep theirs."""
        places = [len(tasks) + place if tasks else one.number for place, one in enumerate(todos, 1)]
        numbers = [str(number) for number in (*range(1, len(tasks) + 1), *places)]
        entries = [*map(_task_entry, tasks), *map(_todo_entry, todos)]
        self.show(dict(zip(numbers, entries, strict=True)))
        texts = [*map(self._described, tasks), *(one.text for one in todos)]
        lines = [f"{number}. {text}" for number, text in zip(numbers, texts, strict=True)]
        parts = ((self.say(head), lines[: len(tasks)]), (self.say("todo_head"), lines[len(tasks) :]))
        return [self.listed(title, part) for title, part in parts if part]

    def _described(self, task: OpenTask) -> str:
        until = self.say("task_until", date=_minute(task["deadline"])) if task["deadline"] else ""
        blocked = f", {self.say('task_blocked')}" if task["blocked"] else ""
        return f"{task['title']} ({task['progress']}%{until}{blocked})"

    def _label(self, task: OpenTask) -> str:
        """Describe a task so that it differs from another of its title: deadline, progress, when added."""
        until = _minute(task["deadline"]) or self.say("no_deadline")
        added = self.say("added_on", date=_minute(task.get("created_at")))
        return self.say("option_task", title=task["title"], more=f"{task['progress']}%, {until}, {added}")

    async def do_before_deadline(self) -> str:
        """Set a reminder before the deadline of a task: the one that is named or was spoken of last."""
        tasks = [task for task in await self._open_tasks(is_again=True) if task["deadline"]]
        if not tasks:
            return self.say("before_none")
        if self.slot("task_id"):
            found = _with_id(tasks, self.slot("task_id"))
        elif self.slot("task"):
            found = find(tasks, self.slot("task"))
        else:
            found = _with_id(tasks, self.context.state.task) or tasks
        if len(found) != 1:
            raise self._which_task(found or tasks, "before_which")
        (task,) = found
        day = date.fromisoformat(_due_day(task)) - timedelta(days=self._days_before())
        what = self.say("before_deadline", title=task["title"], date=_minute(task["deadline"]))
        when = f"{day.isoformat()} {self.slot('clock') or '09:00'}"
        remind = self.parsed.of("remind", what=what, when=when, whom=self.slot("whom"))
        return await Reminders(remind, self.context).do_remind()

    def _days_before(self) -> int:
        """Read `two days before`, `이틀 전`; what names no days (`당일`) is the day itself."""
        words = self.slot("before").lower().replace("the day", "a day").replace("전날", "하루")
        span = self.context.read_time(words.removesuffix("before").removesuffix("전"))
        return span.days if isinstance(span, Duration) else 0

    # Asking the host

    async def _open_tasks(self, *, is_again: bool = False) -> list[OpenTask]:
        """Return the tasks that are worked on; none where the host refuses.

        `is_again`: a turn that is tried again sees what it saw, so that what it did does not confuse it.
        """
        request_id = self.context.next_id() if is_again else None
        reply = await self.context.host.ask(ShowDashboard(request_id=request_id))
        return reply.data.get("tasks", []) if reply.ok else []

    async def _todos(self) -> list[Item]:
        """Return the open to-dos; none where they cannot be read, which showing the list explains."""
        try:
            return await Lists(self.parsed, self.context).open_todos()
        except AnswerNow:
            return []

    async def _use(self, tool: str, **arguments: Any) -> Reply:
        """Use one of the dashboard's tools. Raises `AnswerNow` where the host refuses."""
        request_id = self.context.next_id()
        return await self.request(UseDashboard(request_id=request_id, tool=tool, arguments=arguments))


def find(tasks: Sequence[OpenTask], which: str) -> list[OpenTask]:
    """Return the tasks that a title or a part of one means."""
    which = " ".join(which.casefold().split())
    same = [task for task in tasks if task["title"].casefold() == which]
    return same or [task for task in tasks if _fits(which, task["title"])]


def _fits(which: str, text: str) -> bool:
    which, text = which.casefold(), text.casefold()
    return which == text or (len(which) > 1 and not which.isdecimal() and which in text)


def _with_id(tasks: Sequence[OpenTask], task_id: str) -> list[OpenTask]:
    return [task for task in tasks if task["id"] == task_id]


def _at(tasks: Sequence[OpenTask], number: str) -> list[OpenTask]:
    is_place = number.isdecimal() and len(number) < 6  # no list is longer, and int() of a long number is slow
    place = int(number) - 1 if is_place else -1
    return [tasks[place]] if 0 <= place < len(tasks) else []


def _task_entry(task: OpenTask) -> ShownEntry:
    return ShownEntry(kind="task", id=task["id"], label=task["title"])


def _todo_entry(item: Item) -> ShownEntry:
    return ShownEntry(kind="item", label=item.text, list=TODO)


def _due_day(task: OpenTask) -> str:
    """Return the day of a deadline as ISO text, which sorts as days do; empty without a deadline."""
    return (task["deadline"] or "")[:_DATE_CHARS]


def _minute(at: str | None) -> str:
    """Return an ISO day as it is, and a time to the minute: `2026-02-10 18:00`."""
    return (at or "")[:_MINUTE_CHARS].replace("T", " ")
