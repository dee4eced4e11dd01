"""The dashboard: tasks are added, changed, ended, and shown in numbered lists with the to-dos."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from agent_runner.agents.offline import lists, reminders
from agent_runner.agents.offline.checklists import Item, ListError
from agent_runner.agents.offline.conversation import AnswerNow, Option, RequestContext, ShownEntry
from agent_runner.agents.offline.intents import PATTERNS, ROWS, TODO, ParsedRequest, long_day
from agent_runner.wire import times
from agent_runner.wire.mailbox import Reply, ShowDashboard, UseDashboard
from agent_runner.wire.times import DateOnly, Duration, Reason, Recurrence, TimeRefusal

MAX_SHOWN = 50
SOON_DAYS = 7
"""A task that is due by then, or at no time, belongs to today too."""
_DATE_CHARS = len("2026-02-10")


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
        """The day of its deadline."""
        return date.fromisoformat(self.deadline[:_DATE_CHARS]) if self.deadline else None

    @property
    def entry(self) -> ShownEntry:
        """What its number in a list means."""
        return ShownEntry(kind="task", id=self.id, label=self.title)


# Adding


async def add(parsed: ParsedRequest, context: RequestContext) -> str:
    """Put a task on the board, or several with one deadline. None is made before the deadline is clear."""
    titles = parsed.slot("titles").splitlines() or [parsed.slot("title") or parsed.slot("what")]
    if not titles[0]:
        raise context.question(parsed, "what", context.say("task_what"))
    deadline = _deadline(parsed, ", ".join(titles), context)
    return "\n".join([await _create(title, deadline, context) for title in titles])


def _deadline(parsed: ParsedRequest, title: str, context: RequestContext) -> str:
    """Return the deadline as an ISO day or time, empty where none is named. Raises `AnswerNow` to ask."""
    if not parsed.slot("when"):
        return ""
    read = context.read_time(parsed.slot("when"))
    if isinstance(read, Recurrence):
        read = TimeRefusal(reason=Reason.NO_SUCH_DAY)
    if isinstance(read, TimeRefusal):
        why = reminders.unclear(read, context)
        raise context.question(parsed, "when", context.say("deadline_wrong", title=title, why=why))
    return read.day.isoformat() if isinstance(read, DateOnly) else read.at.isoformat(timespec="minutes")


async def _create(title: str, deadline: str, context: RequestContext) -> str:
    """Make one task. A refusal is an answer too: it leaves the tasks beside it as they are."""
    try:
        reply = await _use(
            context, "create_task", title=title, **({"deadline": deadline} if deadline else {})
        )
    except AnswerNow as refusal:
        return refusal.text
    context.speak_of(task=str(reply.data.get("id", "")))
    kept = reply.data.get("deadline")
    form = "task_added_until" if kept else "task_added"
    return context.say(form, title=reply.data.get("title", title), date=_shown(kept))


# Changing


async def change(parsed: ParsedRequest, context: RequestContext) -> str:
    """Change the task that is meant as the intent's row says; 100 % completes it."""
    task = await _meant(parsed, context)
    context.speak_of(task=task.id)
    changes, pct, reason = dict(ROWS[parsed.intent].changes), parsed.slot("pct"), parsed.slot("reason")
    if pct and int(pct) == 100:
        return await _complete(task.id, task.title, context)
    if pct:
        changes["progress"] = int(pct)
    if reason:
        changes["blocker_note"] = reason
    await _use(context, "update_task", task_id=task.id, **changes)
    because = f" ({reason})" if reason else ""
    return context.say(parsed.intent, title=task.title, pct=changes.get("progress"), reason=because)


async def _complete(task_id: str, title: str, context: RequestContext) -> str:
    await _use(context, "update_task", task_id=task_id, **ROWS["finish"].changes)
    return context.say("finish", title=title)


async def finish(parsed: ParsedRequest, context: RequestContext) -> str:
    """End what is meant: a task, an entry of a list, a reminder. What could be several is asked about."""
    if parsed.slot("kind"):
        return await _finish_entry(parsed, context)
    if parsed.slot("list") and parsed.slot("list") != TODO:
        return await lists.act(parsed, context)
    options = await _finishable(parsed, context)
    if not options:
        return context.say("nothing_to_finish", item=parsed.slot("item"))
    return await _finish_entry(context.choose(options, "which_done", parsed), context)


async def _finishable(parsed: ParsedRequest, context: RequestContext) -> list[Option]:
    """Return everything open that a number or a text can mean; a number means the list shown last."""
    item, shown = parsed.slot("item"), context.state.shown
    is_number = item.isdecimal()
    if is_number and shown:
        if item not in shown:
            raise AnswerNow(context.say("which_number", item=item))
        return [_ending(parsed, shown[item], shown[item].label)]
    tasks = [] if parsed.slot("list") else await open_tasks(context, is_again=True)
    found = _at(tasks, item) if is_number else find(tasks, item)
    todos = [
        one
        for one in await _todos(context)
        if (str(one.number) == item if is_number else _fits(item, one.text))
    ]
    return [
        *(_ending(parsed, task.entry, _task_label(task, context)) for task in found),
        *(_ending(parsed, _todo_entry(one), context.say("option_todo", title=one.text)) for one in todos),
    ]


def _ending(parsed: ParsedRequest, entry: ShownEntry, label: str) -> Option:
    """Offer to end an entry."""
    request = parsed.of("finish", kind=entry.kind, id=entry.id, label=entry.label, list=entry.list)
    return Option(label=label, request=request)


async def _finish_entry(parsed: ParsedRequest, context: RequestContext) -> str:
    match parsed.slot("kind"):
        case "task":
            return await _complete(parsed.slot("id"), parsed.slot("label"), context)
        case "item":
            return await lists.act(parsed.having(item=parsed.slot("label")), context)
        case _:
            return await reminders.cancel(parsed, context)


async def _meant(parsed: ParsedRequest, context: RequestContext) -> OpenTask:
    """Return the one task that is meant. Raises `AnswerNow` to ask which, or to say that there is none."""
    tasks, which, shown = await open_tasks(context, is_again=True), parsed.slot("task"), context.state.shown
    if parsed.slot("task_id"):
        found = _with_id(tasks, parsed.slot("task_id"))
    elif which.isdecimal() and which in shown:
        found = _with_id(tasks, shown[which].id)
    else:
        found = find(tasks, which) or _at(tasks, which)
    if not found:
        is_ours = tasks or parsed.intent == "drop_task"
        raise AnswerNow(context.say("task_unknown", item=which) if is_ours else context.say("no_model"))
    if len(found) > 1:
        raise _which_task(found, "which_task", parsed, context)
    return found[0]


def _which_task(
    tasks: Sequence[OpenTask], form: str, parsed: ParsedRequest, context: RequestContext
) -> AnswerNow:
    options = [
        Option(label=_task_label(task, context), request=parsed.having(task_id=task.id)) for task in tasks
    ]
    return context.question(parsed, "which", context.say(form), options)


# Answers to what the dashboard asks


async def answer(parsed: ParsedRequest, context: RequestContext) -> str:
    """Take a bare yes or no as the answer to what the dashboard asked last."""
    if not parsed.slot("question_id"):
        if context.state.questions:
            return ""  # the agent itself asked last, and asks again
        parsed = await _to_last_question(parsed, context)
    tasks = await open_tasks(context, is_again=True)
    asked_if_done = [task for task in tasks if task.id == parsed.slot("task_id") and parsed.slot("is_done")]
    if asked_if_done and parsed.intent == "yes":
        return await _complete(asked_if_done[0].id, asked_if_done[0].title, context)
    await _use(context, "answer_question", question_id=parsed.slot("question_id"), answer=parsed.intent)
    if asked_if_done:
        return context.say("not_done_yet", title=asked_if_done[0].title)
    return context.say("answer_noted")


async def _to_last_question(parsed: ParsedRequest, context: RequestContext) -> ParsedRequest:
    """Return the answer with the question that it answers; which, is asked of several asked at once."""
    reply = await context.host.ask(ShowDashboard(request_id=context.next_id()))
    rows = [
        row for row in reply.data.get("questions", []) if row.get("asked_count") and row.get("last_asked_at")
    ]
    latest = max((row["last_asked_at"] for row in rows), default="")
    options = [
        Option(
            label=row["question"],
            request=parsed.having(
                question_id=row["id"],
                task_id=row.get("related_task_id") or "",
                is_done="yes" if PATTERNS["asks_if_done"].search(row["question"]) else "",
            ),
        )
        for row in rows
        if row["last_asked_at"] == latest
    ]
    if not options:
        raise AnswerNow(context.say("never_mind"))
    return context.choose(options, "which_task", parsed)


# Showing


async def show(_parsed: ParsedRequest, context: RequestContext) -> str:
    """Say what is open: tasks and to-dos in one numbering, then questions."""
    reply = await context.request(ShowDashboard())
    parts = _sections(_tasks(reply), await _todos(context), context)
    questions = [f"• {one['question']}" for one in reply.data.get("questions", [])]
    if questions:
        parts.append(_part(context.say("open_questions"), questions))
    return "\n\n".join(parts) or context.say("nothing_open")


async def due(parsed: ParsedRequest, context: RequestContext) -> str:
    """Say which tasks have a deadline, soonest first; those until a day where one is named."""
    until = _day(parsed, context)
    tasks = [task for task in await open_tasks(context) if task.day and (until is None or task.day <= until)]
    if not tasks:
        shown = context.say("until_day", day=times.say_day(until, context.language)) if until else ""
        return context.say("nothing_due", until=shown)
    tasks.sort(key=lambda task: task.deadline or "")
    (part,) = _sections(tasks, [], context, head=parsed.intent)
    return part


async def agenda(parsed: ParsedRequest, context: RequestContext) -> str:
    """Say what is on a day: reminders and tasks; today also tasks due soon or at no time, and to-dos."""
    today = context.now.date()
    day = _day(parsed, context) or today
    due_that_day = await reminders.of_day(day, context)
    tasks, todos, trouble = await open_tasks(context), [], []
    if day == today:
        soon = today + timedelta(days=SOON_DAYS)
        tasks = [task for task in tasks if task.day is None or task.day <= soon]
        try:
            todos = await lists.open_todos(context)
        except (ListError, OSError):
            trouble = [await lists.shown(TODO, context)]
    else:
        tasks = [task for task in tasks if task.day == day]
    parts = ["\n".join(due_that_day)] if due_that_day else []
    parts += [*_sections(tasks, todos, context), *trouble]
    named = _day_name(day, today, context)
    if not parts:
        return context.say("agenda_nothing", day=named)
    return "\n\n".join([context.say("agenda", day=named[:1].upper() + named[1:]), *parts])


def _day(parsed: ParsedRequest, context: RequestContext) -> date | None:
    """Return the day that is named, None where none is. Raises `AnswerNow` to say why it is none."""
    if not parsed.slot("day"):
        return None
    read = context.read_time(parsed.slot("day"), takes_past=True)
    if isinstance(read, TimeRefusal):
        raise AnswerNow(context.say(f"time.{read.reason.value}", moment="—", on=""))
    return (read.first if isinstance(read, Recurrence) else read.at).date()


def _sections(
    tasks: Sequence[OpenTask], todos: Sequence[Item], context: RequestContext, *, head: str = "show_open"
) -> list[str]:
    """Return tasks and to-dos in one numbering, which the chat may answer with; to-dos alone keep theirs."""
    numbers = [one.number if not tasks else len(tasks) + place for place, one in enumerate(todos, 1)]
    entries = {str(number): task.entry for number, task in enumerate(tasks, 1)}
    entries |= {str(number): _todo_entry(one) for number, one in zip(numbers, todos, strict=True)}
    context.show(entries)
    parts = []
    if tasks:
        lines = [_line(number, task, context) for number, task in enumerate(tasks, 1)]
        parts.append(_part(context.say(head), lines))
    if todos:
        name = context.say("todo_name")
        lines = [f"{number}. {one.text}" for number, one in zip(numbers, todos, strict=True)]
        parts.append(_part(f"{name[:1].upper()}{name[1:]}:", lines))
    return parts


def _part(head: str, lines: Sequence[str]) -> str:
    return "\n".join([head, *lines[:MAX_SHOWN], *(["…"] if len(lines) > MAX_SHOWN else [])])


def _day_name(day: date, today: date, context: RequestContext) -> str:
    shown = long_day(datetime(day.year, day.month, day.day), context.language)  # noqa: DTZ001  # a day, no moment
    return context.say("today_is", day=shown) if day == today else shown


def _line(number: int, task: OpenTask, context: RequestContext) -> str:
    until = context.say("task_until", date=_shown(task.deadline)) if task.deadline else ""
    blocked = f", {context.say('task_blocked')}" if task.is_blocked else ""
    return f"{number}. {task.title} ({task.pct}%{until}{blocked})"


def _task_label(task: OpenTask, context: RequestContext) -> str:
    """Tell a task from another of the same title: by its deadline, its share, and when it was added."""
    until = _shown(task.deadline) if task.deadline else context.say("no_deadline")
    more = f"{task.pct}%, {until}, {context.say('added_on', date=task.created)}"
    return context.say("option_task", title=task.title, more=more)


def _shown(deadline: str | None) -> str:
    """Return `2026-02-10`, and its time if it has one."""
    return (deadline or "")[:16].replace("T", " ")


# Before a deadline


async def before_deadline(parsed: ParsedRequest, context: RequestContext) -> str:
    """Set a reminder before the deadline of a task: the one that is named or was spoken of last."""
    tasks = [task for task in await open_tasks(context, is_again=True) if task.day]
    if not tasks:
        return context.say("before_none")
    task_id, which = parsed.slot("task_id"), parsed.slot("task")
    if which and not task_id:
        found = find(tasks, which)
    else:
        found = _with_id(tasks, task_id or context.state.task) or ([] if task_id else tasks)
    if len(found) != 1:
        raise _which_task(found or tasks, "before_which", parsed, context)
    (task,) = found
    assert task.day is not None
    day = task.day - timedelta(days=_days_before(parsed.slot("before"), context))
    what = context.say("before_deadline", title=task.title, date=_shown(task.deadline))
    when = f"{day.isoformat()} {parsed.slot('clock') or '09:00'}"
    remind = parsed.of("remind", what=what, when=when, whom=parsed.slot("whom"))
    return await reminders.remind(remind, context)


def _days_before(words: str, context: RequestContext) -> int:
    """Read `two days before`, `이틀 전`; what names no days (`당일`) is the day itself."""
    words = words.lower().replace("the day", "a day").replace("전날", "하루")
    span = context.read_time(words.removesuffix("before").removesuffix("전"))
    return span.days if isinstance(span, Duration) else 0


# Asking the host


async def open_tasks(context: RequestContext, *, is_again: bool = False) -> list[OpenTask]:
    """Return the tasks that are worked on; none where the host refuses.

    `is_again`: a turn that is tried again sees what it saw, so that what it did does not confuse it.
    """
    reply = await context.host.ask(ShowDashboard(request_id=context.next_id() if is_again else None))
    return _tasks(reply) if reply.ok else []


def _tasks(reply: Reply) -> list[OpenTask]:
    return [
        OpenTask(
            id=row["id"],
            title=row["title"],
            pct=row["progress"],
            deadline=row["deadline"],
            is_blocked=row["blocked"],
            created=str(row.get("created_at") or "")[:16].replace("T", " "),
        )
        for row in reply.data.get("tasks", [])
    ]


async def _todos(context: RequestContext) -> list[Item]:
    """Return the open to-dos; none where they cannot be read: whoever asks for the list is told why."""
    try:
        return await lists.open_todos(context)
    except (ListError, OSError):
        return []


async def _use(context: RequestContext, tool: str, **arguments: Any) -> Reply:
    """Use one of the dashboard's tools. Raises `AnswerNow` where the host refuses."""
    return await context.request(UseDashboard(request_id=context.next_id(), tool=tool, arguments=arguments))


# Finding


def find(tasks: Sequence[OpenTask], which: str) -> list[OpenTask]:
    """Return the tasks that a title or a part of one means."""
    which = " ".join(which.casefold().split())
    same = [task for task in tasks if task.title.casefold() == which]
    return same or [task for task in tasks if _fits(which, task.title)]


def _fits(which: str, text: str) -> bool:
    which, text = which.casefold(), text.casefold()
    return which == text or (len(which) > 1 and not which.isdecimal() and which in text)


def _with_id(tasks: Sequence[OpenTask], task_id: str) -> list[OpenTask]:
    return [task for task in tasks if task.id == task_id]


def _at(tasks: Sequence[OpenTask], number: str) -> list[OpenTask]:
    place = int(number) - 1 if number.isdecimal() and len(number) < 6 else -1
    return [tasks[place]] if 0 <= place < len(tasks) else []


def _todo_entry(item: Item) -> ShownEntry:
    return ShownEntry(kind="item", label=item.text, list=TODO)
