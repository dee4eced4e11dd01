"""The dashboard and the to-dos beside it: added to, told as numbered lists, changed, ended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from agent_runner.agents.offline import reminders
from agent_runner.agents.offline.checklists import Checklists, Item, ListFault
from agent_runner.agents.offline.conversation import Option, RequestContext, ShownEntry
from agent_runner.agents.offline.intents import PATTERNS, TODO, ParsedRequest, long_day
from agent_runner.agents.offline.lists import Lists
from agent_runner.ipc_client import HostClient
from agent_runner.wire import times
from agent_runner.wire.mailbox import Reply, ShowDashboard, UseDashboard
from agent_runner.wire.times import DateOnly, Recurrence, TimeRefusal

MAX_SHOWN = 50
SOON_DAYS = 7
"""A task that is due by then, or at no time, belongs to today too."""
_DATE_CHARS = len("2026-02-10")
_DAYS_BEFORE = {"the": 1, "a": 1, "one": 1, "two": 2, "three": 3} | {
    "전날": 1, "하루": 1, "이틀": 2, "사흘": 3, "당일": 0
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTask:
    """A task that is worked on."""

    id: str
    title: str
    pct: int
    deadline: str | None
    is_blocked: bool
    created: str

    @property
    def day(self) -> date | None:
        return date.fromisoformat(self.deadline[:_DATE_CHARS]) if self.deadline else None

    @property
    def ref(self) -> ShownEntry:
        return ShownEntry(kind="task", id=self.id, label=self.title)


class Board:
    """Changes tasks by the host's tools. A refusal of the host is told in its own words."""

    def __init__(self, host: HostClient, checklists: Checklists, reminders_: reminders.Reminders) -> None:
        self._host = host
        self._checklists = checklists
        self._lists = Lists(checklists)
        self._reminders = reminders_

    # Adding

    async def add(self, parsed: ParsedRequest, context: RequestContext) -> str:
        """Put a task on the board; one whose deadline cannot be is not made before that is clear."""
        title, deadline = parsed.slot("title") or parsed.slot("what"), ""
        if not title:
            return context.ask(parsed, "what", context.say("task_what"))
        if parsed.slot("when"):
            read = times.read(parsed.slot("when"), now=context.now, zone=context.zone)
            if isinstance(read, Recurrence):
                read = TimeRefusal(reason=times.Reason.NO_SUCH_DAY)
            if isinstance(read, TimeRefusal):
                why = reminders.unclear(read, context)
                return context.ask(parsed, "when", context.say("deadline_wrong", title=title, why=why))
            deadline = (
                read.day.isoformat() if isinstance(read, DateOnly) else read.at.isoformat(timespec="minutes")
            )
        arguments = {"title": title} | ({"deadline": deadline} if deadline else {})
        reply = await self._use(context, "create_task", arguments)
        if not reply.ok:
            return _refusal(reply)
        context.speak_of(task=str(reply.data.get("id", "")))
        kept = reply.data.get("deadline")
        form = "task_added_until" if kept else "task_added"
        return context.say(form, title=reply.data.get("title", title), date=_shown(kept))

    async def add_several(self, parsed: ParsedRequest, context: RequestContext) -> str:
        """Put a task on the board for each line of `titles`."""
        tasks = [
            parsed.of("add_task", title=title, when=parsed.slot("when"))
            for title in parsed.slot("titles").splitlines()
        ]
        return "\n".join([await self.add(task, context) for task in tasks])

    # Changing

    async def change(self, parsed: ParsedRequest, context: RequestContext) -> str:
        """Change the task that is meant; which, is asked where it could be several."""
        found = await self._meant(parsed, parsed.slot("task"), context)
        if isinstance(found, str):
            return found
        context.speak_of(task=found.id)
        if parsed.intent == "drop_task":
            return await self._update(context, found, "task_dropped", status="cancelled")
        if parsed.intent == "unblock":
            return await self._update(context, found, "task_unblocked", blocked=False)
        if parsed.intent == "block":
            note = parsed.slot("reason")
            said = {"reason": f" ({note})" if note else ""}
            more = {"blocker_note": note} if note else {}
            return await self._update(context, found, "task_blocked_now", said, blocked=True, **more)
        pct = int(parsed.slot("pct"))
        if pct == 100:
            return await self._update(context, found, "task_done", status="completed")
        return await self._update(context, found, "task_progress", {"pct": str(pct)}, progress=pct)

    async def finish(self, parsed: ParsedRequest, context: RequestContext) -> str:
        """End what is meant: a task, an entry of a list, a reminder. What could be several is asked about."""
        if parsed.slot("kind"):
            return await self._finish_ref(parsed, context)
        if parsed.slot("list") and parsed.slot("list") != TODO:
            return await self._lists.act(parsed, context)
        options = await self._finishable(parsed, context)
        if isinstance(options, str):
            return options
        if len(options) > 1:
            return context.ask(parsed, "which", context.say("which_done"), tuple(options))
        if not options:
            return context.say("nothing_to_finish", item=parsed.slot("item"))
        return await self._finish_ref(options[0].wish, context)

    async def _finishable(self, parsed: ParsedRequest, context: RequestContext) -> list[Option] | str:
        """Everything open that a number or a text can mean; a number means the list that was shown last."""
        item, shown = parsed.slot("item"), context.known.shown
        if item.isdecimal() and shown:
            if item not in shown:
                return context.say("which_number", item=item)
            return [Option(label=shown[item].label, wish=_ending(parsed, shown[item]))]
        open_tasks = [] if parsed.slot("list") else await self.open_tasks(context, is_again=True)
        todos = await self.todos()
        found = find(open_tasks, item) if not item.isdecimal() else _at(open_tasks, item)
        listed = [
            Option(label=context.say("option_todo", title=one.text), wish=_ending(parsed, _todo_ref(one)))
            for one in todos
            if (str(one.number) == item if item.isdecimal() else _is_like(item, one.text))
        ]
        return [
            Option(label=_task_label(one, context), wish=_ending(parsed, one.ref)) for one in found
        ] + listed

    async def _finish_ref(self, parsed: ParsedRequest, context: RequestContext) -> str:
        match parsed.slot("kind"):
            case "task":
                reply = await self._use(
                    context, "update_task", {"task_id": parsed.slot("id"), "status": "completed"}
                )
                return context.say("task_done", title=parsed.slot("label")) if reply.ok else _refusal(reply)
            case "item":
                return await self._lists.act(parsed.having(item=parsed.slot("label")), context)
            case _:
                return await self._reminders.cancel(parsed, context)

    async def _update(
        self,
        context: RequestContext,
        task: OpenTask,
        form: str,
        said: dict[str, str] | None = None,
        /,
        **changes: Any,
    ) -> str:
        reply = await self._use(context, "update_task", {"task_id": task.id, **changes})
        return context.say(form, title=task.title, **(said or {})) if reply.ok else _refusal(reply)

    async def _meant(self, parsed: ParsedRequest, which: str, context: RequestContext) -> OpenTask | str:
        """Return the one task that is meant, else what to say."""
        open_tasks = await self.open_tasks(context, is_again=True)
        if parsed.slot("task_id"):
            found = [one for one in open_tasks if one.id == parsed.slot("task_id")]
        elif which.isdecimal() and which in context.known.shown:
            found = [one for one in open_tasks if one.id == context.known.shown[which].id]
        else:
            found = find(open_tasks, which) or _at(open_tasks, which)
        if len(found) == 1:
            return found[0]
        if not found:
            is_ours = bool(open_tasks) or parsed.intent == "drop_task"
            return context.say("task_unknown", item=which) if is_ours else context.say("no_model")
        return _which_task(found, "which_task", parsed, context)

    # Answers to what the dashboard asks

    async def answer(self, parsed: ParsedRequest, context: RequestContext) -> str:
        """Take a bare yes or no as the answer to what the dashboard asked last."""
        if parsed.slot("question_id"):
            return await self._answer(parsed, context)
        if context.known.questions:
            return ""  # the agent itself asked last, and asks again
        reply = await self._host.ask(ShowDashboard(request_id=context.next_id()))
        rows = [
            row
            for row in reply.data.get("questions", [])
            if row.get("asked_count") and row.get("last_asked_at")
        ]
        latest = max((row["last_asked_at"] for row in rows), default="")
        rows = [row for row in rows if row["last_asked_at"] == latest]
        if not rows:
            return context.say("nothing_asked")
        options = tuple(
            Option(
                label=row["question"],
                wish=parsed.having(
                    question_id=row["id"],
                    task_id=row.get("related_task_id") or "",
                    is_done="yes" if PATTERNS["asks_if_done"].search(row["question"]) else "",
                ),
            )
            for row in rows
        )
        if len(options) > 1:
            return context.ask(parsed, "which", context.say("which_task"), options)
        return await self._answer(options[0].wish, context)

    async def _answer(self, parsed: ParsedRequest, context: RequestContext) -> str:
        tasks = await self.open_tasks(context, is_again=True)
        task = next((one for one in tasks if one.id == parsed.slot("task_id")), None)
        if parsed.intent == "yes" and task is not None and parsed.slot("is_done"):
            return await self._update(context, task, "task_done", status="completed")
        reply = await self._use(
            context, "answer_question", {"question_id": parsed.slot("question_id"), "answer": parsed.intent}
        )
        if not reply.ok:
            return _refusal(reply)
        if task is not None and parsed.intent == "no" and parsed.slot("is_done"):
            return context.say("not_done_yet", title=task.title)
        return context.say("answer_noted")

    # Telling

    async def show(self, _wish: ParsedRequest, context: RequestContext) -> str:
        """Say what is open: tasks and to-dos in one numbering, then questions."""
        reply = await self._host.ask(ShowDashboard())
        if not reply.ok:
            return reply.text
        refs, parts = _sections(_tasks(reply), await self.todos(), context)
        context.show(refs)
        questions = [f"• {one['question']}" for one in reply.data.get("questions", [])]
        if questions:
            parts.append([context.say("open_questions"), *_some(questions)])
        return "\n\n".join("\n".join(part) for part in parts) or context.say("nothing_open")

    async def due(self, parsed: ParsedRequest, context: RequestContext) -> str:
        """Say which tasks have a deadline, soonest first; those until a day where one is named."""
        until, shown = self._day(parsed, context), ""
        if isinstance(until, str):
            return until
        tasks = [
            one for one in await self.open_tasks(context) if one.day and (until is None or one.day <= until)
        ]
        tasks.sort(key=lambda one: one.deadline or "")
        if until is not None:
            shown = context.say("until_day", day=times.say_day(until, context.language))
        if not tasks:
            return context.say("nothing_due", until=shown)
        context.show({str(number): one.ref for number, one in enumerate(tasks, 1)})
        lines = [_line(number, one, context) for number, one in enumerate(tasks, 1)]
        return "\n".join([context.say("due"), *_some(lines)])

    async def agenda(self, parsed: ParsedRequest, context: RequestContext) -> str:
        """Say what is on a day: reminders and tasks; today also tasks due soon or at no time, and to-dos."""
        today = context.now.date()
        day = self._day(parsed, context)
        if isinstance(day, str):
            return day
        day = day or today
        due = await self._reminders.of_day(day, context)
        open_tasks = await self.open_tasks(context)
        tasks = [one for one in open_tasks if one.day == day]
        if day == today:
            soon = today + timedelta(days=SOON_DAYS)
            tasks = [one for one in open_tasks if one.day is None or one.day <= soon]
        try:
            todos = await self._lists.open_todos() if day == today else []
            trouble = []
        except (ListFault, OSError):
            todos, trouble = [], [[await self._lists.shown(TODO, context)]]
        refs, parts = _sections(tasks, todos, context)
        context.show(refs)
        shown = _day_name(day, today, context)
        parts = [*([due] if due else []), *parts, *trouble]
        if not parts:
            return context.say("agenda_nothing", day=shown)
        head = context.say("agenda", day=shown[:1].upper() + shown[1:])
        return "\n\n".join([head, *("\n".join(part) for part in parts)])

    def _day(self, parsed: ParsedRequest, context: RequestContext) -> date | str | None:
        if not parsed.slot("day"):
            return None
        read = times.read(
            parsed.slot("day"), now=context.now, zone=context.zone, policy=times.TimePolicy(takes_past=True)
        )
        if isinstance(read, TimeRefusal):
            return context.say(f"time.{read.reason.value}", moment="—", on="")
        return (read.first if isinstance(read, Recurrence) else read.at).date()

    # Before a deadline

    async def before_deadline(self, parsed: ParsedRequest, context: RequestContext) -> str:
        """Set a reminder before the deadline of a task: the one that is named or was spoken of last."""
        tasks = [one for one in await self.open_tasks(context, is_again=True) if one.day]
        if not tasks:
            return context.say("before_none")
        task_id, which = parsed.slot("task_id"), parsed.slot("task")
        found = [one for one in tasks if one.id == task_id] if task_id else find(tasks, which)
        if not (which or task_id):
            found = [one for one in tasks if one.id == context.known.task] or tasks
        if len(found) != 1:
            return _which_task(found or tasks, "before_which", parsed, context)
        assert found[0].day is not None
        day = found[0].day - timedelta(days=_days_before(parsed.slot("before")))
        clock = parsed.slot("clock") or "09:00"
        what = context.say("before_what", title=found[0].title, date=_shown(found[0].deadline))
        remind = parsed.of("remind", what=what, when=f"{day.isoformat()} {clock}", whom=parsed.slot("whom"))
        return await self._reminders.remind(remind, context)

    # Asking the host

    async def open_tasks(self, context: RequestContext, *, is_again: bool = False) -> list[OpenTask]:
        """Return the tasks that are worked on; none where the host tells of none.

        `is_again`: a turn that is tried again sees what it saw, so that what it did does not confuse it.
        """
        reply = await self._host.ask(ShowDashboard(request_id=context.next_id() if is_again else None))
        return _tasks(reply) if reply.ok else []

    async def todos(self) -> list[Item]:
        """Return the open to-dos; none where they cannot be read: whoever asks for them is told."""
        try:
            return await self._lists.open_todos()
        except (ListFault, OSError):
            return []

    async def _use(self, context: RequestContext, tool: str, arguments: dict[str, Any]) -> Reply:
        return await self._host.ask(
            UseDashboard(request_id=context.next_id(), tool=tool, arguments=arguments)
        )


def find(tasks: Sequence[OpenTask], which: str) -> list[OpenTask]:
    """Return the tasks that a title or a part of one means."""
    which = " ".join(which.casefold().split())
    same = [one for one in tasks if one.title.casefold() == which]
    return same or [one for one in tasks if _is_like(which, one.title)]


def _is_like(which: str, text: str) -> bool:
    which, text = which.casefold(), text.casefold()
    return which == text or (len(which) > 1 and not which.isdecimal() and which in text)


def _at(tasks: Sequence[OpenTask], number: str) -> list[OpenTask]:
    place = int(number) - 1 if number.isdecimal() and len(number) < 6 else -1
    return [tasks[place]] if 0 <= place < len(tasks) else []


def _ending(parsed: ParsedRequest, ref: ShownEntry) -> ParsedRequest:
    return parsed.of("finish", kind=ref.kind, id=ref.id, label=ref.label, list=ref.list)


def _todo_ref(one: Item) -> ShownEntry:
    return ShownEntry(kind="item", label=one.text, list=TODO)


def _tasks(reply: Reply) -> list[OpenTask]:
    rows: list[dict[str, Any]] = reply.data.get("tasks", [])
    return [
        OpenTask(
            id=row["id"],
            title=row["title"],
            pct=row["progress"],
            deadline=row["deadline"],
            is_blocked=row["blocked"],
            created=str(row.get("created_at") or "")[:16].replace("T", " "),
        )
        for row in rows
    ]


def _sections(
    tasks: Sequence[OpenTask], todos: Sequence[Item], context: RequestContext
) -> tuple[dict[str, ShownEntry], list[list[str]]]:
    """Tasks and to-dos in one numbering; to-dos alone keep their own numbers."""
    refs = {str(number): one.ref for number, one in enumerate(tasks, 1)}
    parts = []
    if tasks:
        lines = [_line(number, one, context) for number, one in enumerate(tasks, 1)]
        parts.append([context.say("open_tasks"), *_some(lines)])
    if todos:
        numbers = [one.number if not tasks else len(tasks) + place for place, one in enumerate(todos, 1)]
        refs |= {str(number): _todo_ref(one) for number, one in zip(numbers, todos, strict=True)}
        lines = [f"{number}. {one.text}" for number, one in zip(numbers, todos, strict=True)]
        name = context.say("todo_name")
        parts.append([f"{name[:1].upper()}{name[1:]}:", *_some(lines)])
    return refs, parts


def _day_name(day: date, today: date, context: RequestContext) -> str:
    shown = long_day(datetime(day.year, day.month, day.day), context.language)  # noqa: DTZ001  # a day, no moment
    return context.say("today_is", day=shown) if day == today else shown


def _line(number: int, one: OpenTask, context: RequestContext) -> str:
    until = context.say("task_until", date=_shown(one.deadline)) if one.deadline else ""
    blocked = f", {context.say('task_blocked')}" if one.is_blocked else ""
    return f"{number}. {one.title} ({one.pct}%{until}{blocked})"


def _task_label(one: OpenTask, context: RequestContext) -> str:
    """What tells a task from another of the same title: deadline, share, and when it was added."""
    until = _shown(one.deadline) if one.deadline else context.say("no_deadline")
    more = f"{one.pct}%, {until}, {context.say('added_on', date=one.created)}"
    return context.say("option_task", title=one.title, more=more)


def _which_task(tasks: Sequence[OpenTask], form: str, parsed: ParsedRequest, context: RequestContext) -> str:
    options = [Option(label=_task_label(one, context), wish=parsed.having(task_id=one.id)) for one in tasks]
    return context.ask(parsed, "which", context.say(form), tuple(options))


def _some(lines: list[str]) -> list[str]:
    return [*lines[:MAX_SHOWN], "…"] if len(lines) > MAX_SHOWN else lines


def _shown(deadline: str | None) -> str:
    """`2026-02-10`, and its time if it has one."""
    if not deadline or len(deadline) == _DATE_CHARS:
        return deadline or ""
    return deadline[:16].replace("T", " ")


def _days_before(words: str) -> int:
    first = words.split(maxsplit=1)[0].lower() if words else ""
    digits = re.match(r"\d+", first)
    return int(digits[0]) if digits else _DAYS_BEFORE.get(first.removesuffix("전"), 1)


def _refusal(reply: Reply) -> str:
    return reply.text.removeprefix(f"{reply.code}: ")
