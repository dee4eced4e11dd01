"""Coming: the days ahead with what happens by itself, and all that is scheduled, to change in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from operator import itemgetter
from typing import Literal
from urllib.parse import parse_qs, urlencode, urlsplit
from zoneinfo import ZoneInfo

from pydantic import ValidationError
from starlette.responses import Response

from agent_runner.wire import times
from agent_runner.wire.mailbox import ScheduleTask, UpdateTask
from agent_runner.wire.order import ECHO
from orchestrator.base.clock import local_iso
from orchestrator.base.terminal_escaping import all_visible
from orchestrator.domain.dashboard import Notification
from orchestrator.domain.errors import AndyError, BadRequest, UnknownReminder
from orchestrator.domain.values import ChatJid, Group, Schedule, ScheduledTask, ScheduleKind, TaskStatus
from orchestrator.inbound.intake import check_text
from orchestrator.reports import tasks, upcoming
from orchestrator.reports.upcoming import UpcomingView
from orchestrator.scheduler import scheduled_task_service, when
from orchestrator.scheduler.when import WrittenSchedule
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.web.api.reminders import NewReminder
from orchestrator.web.console.form_tokens import SentForm, typed
from orchestrator.web.console.page import Page, View

TASK_ACTIONS = ("pause", "resume", "run", "cancel", "restore")
OFTEN_MS = 600_000
"""Milliseconds between two times of a schedule up to which the page also says how often a day it comes."""
DAY_MS = 86_400_000
CHANGES = (
    "dashboard.*",
    "calendar.read",
    "reminder.*",
    "task.*",
    "notification.*",
    "cycle.*",
    "turn.*",
    "loop.*",
)
DAYS = 7
MAX_ROWS_A_DAY = 12
"""Lines of a day that are shown at first; for the others, the page shows their number with a link to them."""
MAX_NAMED = 60
"""Characters of a text that a sentence about it repeats."""
MAX_SCHEDULED = 50
"""Scheduled tasks and later reminders that are shown at first."""
CLOCKS_SHOWN = 4
"""Most times of a day that the line of a task names, if the task comes several times on that day."""

Kind = Literal["reminder", "request", "notification", "wake", "event", "deadline"]


class NoSuchAction(BadRequest):
    """A task can be paused, resumed, run now or cancelled."""

    code = "no_such_action"


@dataclass(frozen=True, slots=True, kw_only=True)
class DayLine:
    """One line of a day: what happens, and when."""

    id: str
    kind: Kind
    folder: str
    group: str
    """The group's name."""
    text: str
    """The words that people read: those of a reminder, or the request to an agent."""
    clock: str
    rhythm: str
    """The words for its repetition; empty for one that comes once."""
    is_overdue: bool
    is_task: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """A day with its lines; `left_out` of them are not shown."""

    date: str
    lines: list[DayLine]
    left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """A scheduled task, or a reminder by its number, as it is listed and changed."""

    id: str
    is_task: bool
    kind: Kind
    group: str
    text: str
    rhythm: str
    next_ms: int | None
    is_paused: bool
    at: str
    """The schedule as it is written to change it: `every Monday at 09:00`, `2026-11-28 08:00`."""

    @property
    def state(self) -> dict[str, object]:
        """The state that the page shows, from which a change is made."""
        return {"text": self.text, "when": self.at}


async def show(view: View) -> Response:
    """Show the days ahead, and everything that is scheduled."""
    return await _show(view)


async def add(view: View, form: SentForm) -> Response:
    """Set the reminder, or schedule the request to an agent, that the form describes.

    A refused form is shown again with the reason.
    """
    try:
        planned = await _add(view, form.text("whose"), form.text("kind"), form.text("text"), form.text("at"))
        async with view.host.reader.reading() as tx:
            # Only for its effect: it stores the names of the groups in the view, where `_group_name` below
            # looks one up.
            view.choices(await groups.every(tx))
    except (AndyError, ValidationError) as error:
        return await _show(view, problem=error, form=form)
    return view.done(
        _page_path(view),
        view.t(".added", when=_planned_text(view, planned), group=_group_name(view, form.text("whose"))),
    )


def _group_name(view: View, folder: str) -> str:
    """Return the name of a group, shortened for a sentence; its folder if `view.choices` never saw it."""
    return _short(view.group_names.get(folder, folder))


def _planned_text(view: View, planned: WrittenSchedule) -> str:
    """Return when a new schedule comes, in words; for a short interval, also how often a day."""
    if planned.kind == ScheduleKind.ONCE:
        return f"{view.day(planned.value[:10])} {planned.value[11:16]}"
    rhythm = rhythm_text(view, Schedule(kind=ScheduleKind(planned.kind), value=planned.value, timezone=""))
    # A schedule that is no interval names times of day, and so says how often it comes: `DAY_MS` counts as
    # not often.
    every_ms = int(planned.value) if planned.kind == ScheduleKind.INTERVAL else DAY_MS
    return (
        f"{rhythm} ({view.t('.times_a_day', n=f'{DAY_MS // every_ms:,}')})"
        if every_ms <= OFTEN_MS
        else rhythm
    )


async def _add(
    view: View, folder: str, kind: str, text: str, time_text: str, *, chat_jid: ChatJid | None = None
) -> WrittenSchedule:
    """Set a reminder or schedule a request to an agent, and return when it comes.

    `folder` is the group, `kind` is `request` or else a reminder, `text` what is sent or asked, and
    `time_text` the time as a person has written it. A reminder that repeats is stored as a scheduled task
    that only sends its text. `chat_jid` is the group's chat to which a scheduled task sends its answers; None
    means the one that receives the group's notifications.

    Raises:
        AndyError: the group, the text or the time cannot be used.
        ValidationError: a text is too long.
    """
    group = await view.host.reader.read(lambda tx: groups.known(tx, folder))
    check_text(text)
    planned = when.schedule(time_text, now_ms=view.now_ms, zone=view.host.zone_of(group))
    is_reminder = kind != "request"
    if is_reminder and planned.kind == ScheduleKind.ONCE:
        await view.api.reminders.add(NewReminder(group=folder, text=text, at=planned.value))
        return planned
    # `ECHO` asks the agent to repeat the text after it in the chat.
    prompt = ECHO + text if is_reminder else text
    request = ScheduleTask(prompt=prompt, schedule_type=planned.kind, schedule_value=planned.value)
    await view.api.tasks.add(folder, request, asked_in=chat_jid)
    return planned


async def change_reminder(view: View, form: SentForm) -> Response:
    """Change a reminder's text or time; one that is to repeat becomes a scheduled task.

    A refused form is shown again. Raises `UnknownReminder`, and `ChangedSince` if somebody else has changed
    it.
    """
    number = view.path_param("id")
    reminder = await _reminder(view, number)
    form.check_unchanged(reminder.state)
    text, time_text = form.text("text"), form.text("at")
    try:
        await _change_reminder(view, reminder, text, time_text)
    except (AndyError, ValidationError) as error:
        return await _show(view, problem=error, form=form, editing=number)
    return view.done(_page_path(view), view.t(".changed"))


async def _change_reminder(view: View, reminder: Scheduled, text: str, time_text: str) -> None:
    """Change a reminder's text and time as far as the form's `text` and `time_text` differ from them.

    With a time that repeats, a new scheduled task takes the reminder's place.

    Raises:
        AndyError: the text or the time cannot be used, or the reminder is gone.
        ValidationError: the text is too long.
    """
    new_text = None if text == reminder.text else text
    if time_text == reminder.at:
        if new_text is not None:
            await view.api.reminders.move(reminder.id, None, text=new_text)
        return
    async with view.host.reader.reading() as tx:
        stored = await _stored_reminder(tx, reminder.id)
        group = await groups.by_folder(tx, stored.folder)
    planned = when.schedule(time_text, now_ms=view.now_ms, zone=_zone(view, group))
    if planned.kind == ScheduleKind.ONCE:
        await view.api.reminders.move(reminder.id, planned.value, text=new_text)
    else:
        # In this order: should the second step fail, the person has two reminders and not none.
        await _add(view, stored.folder, "reminder", text, time_text, chat_jid=stored.chat_jid)
        await view.api.reminders.cancel(reminder.id)


async def cancel_reminder(view: View, _: SentForm) -> Response:
    """Cancel the reminder that the address names; the next page offers to restore it."""
    number = view.path_param("id")
    text = (await _reminder(view, number)).text
    await view.api.reminders.cancel(number)
    done_text = view.t(".task_cancel", text=_short(text))
    return view.done(_page_path(view), done_text, undo=f"/coming/reminders/{number}/restore")


async def restore_reminder(view: View, _: SentForm) -> Response:
    """Set the cancelled reminder that the address names again, for its earlier time."""
    row = await view.api.reminders.restore(view.path_param("id"))
    return view.done(_page_path(view), view.t(".task_restore", text=_short(row["text"])))


def _short(text: str) -> str:
    """Return the beginning of a text on one line, for a sentence about it."""
    line = " ".join(text.split())
    return all_visible(line if len(line) <= MAX_NAMED else f"{line[:MAX_NAMED]}…")


async def change_task(view: View, form: SentForm) -> Response:
    """Change the text or the schedule of a scheduled task; an unchanged schedule keeps its next time.

    A refused form is shown again. Raises `ChangedSince` if somebody else has changed the task meanwhile.
    """
    async with view.host.reader.reading() as tx:
        task = await scheduled_task_service.find(tx, view.path_param("id"))
        group = await groups.known(tx, task.folder)
    # Without the groups: only the name of the task's group, which is not needed here, comes from them.
    scheduled = _scheduled_task(view, task, {})
    form.check_unchanged(scheduled.state)
    text, time_text = form.text("text"), form.text("at")
    try:
        check_text(text)
        planned = (
            None
            if time_text == scheduled.at
            else when.schedule(time_text, now_ms=view.now_ms, zone=view.host.zone_of(group))
        )
        # A reminder here is a task whose agent is to repeat the text after `ECHO`. The model's own checks are
        # left out: the text and the time were checked above.
        request = UpdateTask.model_construct(
            task_id=task.id,
            prompt=ECHO + text if scheduled.kind == "reminder" else text,
            schedule_type=planned.kind if planned else None,
            schedule_value=planned.value if planned else None,
        )
        await view.api.tasks.change(request)
    except AndyError as error:
        return await _show(view, problem=error, form=form, editing=task.id)
    return view.done(_page_path(view), view.t(".changed"))


async def act_on_task(view: View, _: SentForm) -> Response:
    """Pause, resume, run, cancel or restore a scheduled task, as the address says.

    Raises `NoSuchAction` for any other action. After a cancellation, the next page offers to restore the
    task.
    """
    action, number = view.path_param("action"), view.path_param("id")
    if action not in TASK_ACTIONS:
        raise NoSuchAction
    await view.api.tasks.act(number, action)
    async with view.host.reader.reading() as tx:
        task = await scheduled_task_service.find(tx, number)
    # `ECHO` begins the prompt of a repeating reminder: it is for the agent, and people know only the rest.
    done_text = view.t(f".task_{action}", text=_short(task.prompt.removeprefix(ECHO)))
    undo = f"/coming/tasks/{number}/restore" if action == "cancel" else ""
    return view.done(_page_path(view), done_text, undo=undo)


def _page_parameter(view: View, name: str) -> str:
    """Return a parameter of this page's query; in the answer to a form, of the page that the form was on.

    Empty if it is missing.
    """
    return parse_qs(urlsplit(view.here).query).get(name, [""])[-1]


def _page_path(view: View) -> str:
    """Return the path of the page that a form was on, with its group, but with no entry open for a change."""
    group = _page_parameter(view, "group")
    return f"/coming?{urlencode({'group': group})}" if group else "/coming"


async def _show(
    view: View,
    *,
    problem: Exception | None = None,
    form: SentForm | None = None,
    editing: str = "",
) -> Response:
    """Show the page. `problem` says why `form` was refused.

    `editing` is the id of the entry that is open for a change; empty for the one in the query.
    """
    # The address may name the group in upper or lower case; `folder` is its name as it is stored.
    named = _page_parameter(view, "group")
    folder = (await view.host.reader.read(lambda tx: groups.known(tx, named))).folder if named else None
    editing = editing or view.query("edit")
    if problem is not None:
        view.error = view.why(problem) if isinstance(problem, AndyError) else view.t(".incomplete")
        if _meanings(view, problem):
            view.error += " " + view.t(".choose_below")
    upcoming_rows = await _week(view, folder)
    async with view.host.reader.reading() as tx:
        all_groups = await groups.every(tx)
        scheduled_tasks = await tasks.every(tx, folder, with_ended=False)
        to_come = await board_notifications.reminders(tx, folder)
    by_folder = {str(group.folder): group for group in all_groups}
    reminders = [_scheduled_reminder(view, reminder, by_folder) for reminder in to_come]
    scheduled = [_scheduled_task(view, task, by_folder) for task in scheduled_tasks]
    days = _days(view, upcoming_rows, {task.id: task for task in scheduled}, by_folder)
    # The list below the days has all scheduled tasks, but only reminders that come after those days.
    listed = [*scheduled, *(reminder for reminder in reminders if _is_later(view, reminder))]
    is_whole = view.query("all") == "yes"
    return view.render(
        "coming.html",
        days=days,
        is_empty=not any(day.lines for day in days),
        scheduled=listed if is_whole else listed[:MAX_SCHEDULED],
        left_out=0 if is_whole else max(0, len(listed) - MAX_SCHEDULED),
        editing=next((entry for entry in [*scheduled, *reminders] if entry.id == editing), None),
        on=_date_of_editing(view, editing, days),
        here=view.url("/coming") + (f"?{urlencode({'group': folder})}&" if folder else "?"),
        group=folder or "",
        choices=view.choices(all_groups),  # groups by which the page can be filtered
        folders=view.choices(all_groups, first=""),  # groups that a new entry can be for
        given=typed(form, "text", "at", "whose", "kind"),
        meanings=_meanings(view, problem),
    )


def _date_of_editing(view: View, editing: str, days: list[Day]) -> str:
    """Return the date of the day in which the entry `editing` is open for a change.

    Empty if it is open in the list below the days instead, or none is open. An entry may come on several
    days; the query's `on` says in which of them it was opened.
    """
    dates = [day.date for day in days if any(line.id == editing for line in day.lines)]
    # Without `on`, a scheduled task was opened in the list below, which has all tasks. A reminder that comes
    # on one of the days was opened there: the list has only reminders of later days.
    requested = _page_parameter(view, "on")
    if requested in dates or (requested == "" and editing.startswith("task-")):
        return requested
    return dates[0] if dates else ""


def _meanings(view: View, problem: Exception | None) -> list[tuple[str, str]]:
    """Return the times that an ambiguous text can mean; empty for other problems.

    Each is a pair: a text that means only this time, and the time in the language of the page.
    """
    if not isinstance(problem, when.RefusedTime):
        return []
    return [
        (times.say(choice, times.Language.ENGLISH), times.say(choice, times.Language(view.language)))
        for choice in problem.refusal.choices
    ]


# What is shown


def _days(
    view: View, rows: list[UpcomingView], tasks_by_id: dict[str, Scheduled], by_folder: Mapping[str, Group]
) -> list[Day]:
    """Return the past days with overdue lines, then today and the next `DAYS` days, each with its lines.

    `rows` is the report of what comes; scheduled tasks are in `tasks_by_id`. A day has at most
    `MAX_ROWS_A_DAY` lines, and all of them if the query names it; `left_out` counts the others.
    """
    today = _today(view)
    dates = {row["date"] for row in rows} | {str(today + timedelta(days=n)) for n in range(DAYS + 1)}
    days = []
    for day in sorted(dates):
        lines = [_day_line(view, row, tasks_by_id, by_folder) for row in rows if row["date"] == day]
        shown = len(lines) if view.query("day") == day else MAX_ROWS_A_DAY
        days.append(Day(date=day, lines=lines[:shown], left_out=max(0, len(lines) - shown)))
    return days


async def _week(view: View, folder: str | None) -> list[UpcomingView]:
    """Return what comes in the days ahead in the group `folder`, or in all groups if it is None.

    Raises `UnknownGroup`.
    """
    now_ms, zone = view.now_ms, view.console.zone
    # To count the times of many tasks of every minute takes long: `read` does it in a thread, and the lock
    # lets only one page do it at a time.
    async with view.console.counting_ahead:
        return await view.api.lists.read(
            lambda tx: upcoming.week(tx, folder, now_ms=now_ms, zone=zone, days=DAYS)
        )


async def next_lines(view: View, *, limit: int) -> list[Day]:
    """Return at most `limit` next lines of all groups in the days ahead, by day, without overdue ones."""
    upcoming_rows = await _week(view, None)
    async with view.host.reader.reading() as tx:
        by_folder = {str(group.folder): group for group in await groups.every(tx)}
        scheduled_tasks = await tasks.every(tx, None, with_ended=False)
    tasks_by_id = {task.id: _scheduled_task(view, task, by_folder) for task in scheduled_tasks}
    # By day and not by time: an event of a whole day begins at midnight in its group's time zone, maybe on
    # the day before in the console's.
    rows = sorted((row for row in upcoming_rows if not row["is_overdue"]), key=itemgetter("date"))[:limit]
    dates = dict.fromkeys(row["date"] for row in rows)
    lines = {
        day: [_day_line(view, row, tasks_by_id, by_folder) for row in rows if row["date"] == day]
        for day in dates
    }
    return [Day(date=day, lines=day_lines, left_out=0) for day, day_lines in lines.items()]


def _today(view: View) -> date:
    """Return the present day in the console's time zone."""
    return datetime.fromtimestamp(view.now_ms / 1000, view.console.zone).date()


def _day_line(
    view: View, row: UpcomingView, tasks_by_id: dict[str, Scheduled], by_folder: Mapping[str, Group]
) -> DayLine:
    """Return the line of a day for one row of the report of what comes.

    If it is of a scheduled task, the task is in `tasks_by_id`. `by_folder` has the groups by their folders.
    """
    task = tasks_by_id.get(row["id"]) if row["kind"] == "task" else None
    rhythm = task.rhythm if task else ""
    if row["times"] > 1:
        clocks = ", ".join(row["at"][:CLOCKS_SHOWN]) + (" …" if row["times"] > CLOCKS_SHOWN else "")
        is_at_limit = row["times"] >= upcoming.MAX_TIMES_A_DAY  # so there may be more
        rhythm = view.t(
            "coming.very_often" if is_at_limit else "coming.often",
            rhythm=rhythm,
            times=row["times"],
            clocks=clocks,
        )
    # All other rows of the report are requests to an agent.
    kinds: dict[str, Kind] = {
        "reminder": "reminder",
        "notification": "notification",
        "wake": "wake",
        "event": "event",
        "deadline": "deadline",
    }
    return DayLine(
        id=row["id"],
        kind=task.kind if task else kinds.get(row["kind"], "request"),
        folder=row["group"],
        group=_name_of(by_folder, row["group"]),
        text=task.text if task else view.reason(row["text"]),
        clock=row["at"][0],
        rhythm=rhythm,
        is_overdue=row["is_overdue"],
        is_task=row["kind"] == "task",
    )


def _scheduled_task(view: View, task: ScheduledTask, by_folder: Mapping[str, Group]) -> Scheduled:
    """Return a scheduled task as the page lists it; `by_folder` has the groups by their folders.

    A task that only sends a text is shown as a reminder.
    """
    is_reminder = task.prompt.startswith(ECHO)
    return Scheduled(
        id=task.id,
        is_task=True,
        kind="reminder" if is_reminder else "request",
        group=_name_of(by_folder, task.folder),
        text=task.prompt.removeprefix(ECHO).strip(),
        rhythm=rhythm_text(view, task.schedule),
        next_ms=task.next_ms,
        is_paused=task.status is TaskStatus.PAUSED,
        at=_schedule_text(view, task),
    )


def _scheduled_reminder(view: View, reminder: Notification, by_folder: Mapping[str, Group]) -> Scheduled:
    """Return a reminder as the page lists it; `by_folder` has the groups by their folders."""
    return Scheduled(
        id=str(reminder.number),
        is_task=False,
        kind="reminder",
        group=_name_of(by_folder, reminder.folder),
        text=reminder.message.strip(),
        rhythm="",
        next_ms=reminder.due_ms,
        is_paused=False,
        at=_minute_text(local_iso(reminder.due_ms, _zone(view, by_folder.get(reminder.folder)))),
    )


def _name_of(by_folder: Mapping[str, Group], folder: str) -> str:
    """Return the name of a group, or its folder if the group is gone."""
    return by_folder[folder].name if folder in by_folder else folder


def _zone(view: View, group: Group | None) -> ZoneInfo:
    """Return the time zone in which a group's times are read; the console's for a group that is gone."""
    return view.host.zone_of(group) if group else view.console.zone


def _is_later(view: View, entry: Scheduled) -> bool:
    """Return whether an entry comes next after the days that the page shows."""
    day = datetime.fromtimestamp((entry.next_ms or 0) / 1000, view.console.zone).date()
    return day > _today(view) + timedelta(days=DAYS)


def rhythm_text(view: View, schedule: Schedule) -> str:
    """Return how a schedule repeats, such as `every Monday at 09:00`; empty for one that comes once."""
    if schedule.kind is ScheduleKind.ONCE:
        return ""
    # Only the rhythm becomes text, so the first time may be any.
    first = datetime.fromtimestamp(0, view.console.zone)
    rhythm = times.Recurrence.of_schedule(schedule.kind.value, schedule.value, first=first)
    if rhythm is None:
        return view.t("coming.cron", value=schedule.value)
    return times.say(rhythm, times.Language(view.language))


def _schedule_text(view: View, task: ScheduledTask) -> str:
    """Return the schedule of a task as its form shows it, in a text that `when.schedule` can read."""
    if task.schedule.kind is ScheduleKind.ONCE:
        return _minute_text(task.schedule.value)
    # Only the rhythm becomes text, so the first time may be any.
    first = datetime.fromtimestamp(0, view.console.zone)
    rhythm = times.Recurrence.of_schedule(task.schedule.kind.value, task.schedule.value, first=first)
    return times.say(rhythm, times.Language(view.language)) if rhythm else task.schedule.value


def _minute_text(iso: str) -> str:
    """Return an ISO time without seconds and offset: `2026-11-28 08:00`."""
    return iso[:16].replace("T", " ")


async def _stored_reminder(tx: Tx, number: str) -> Notification:
    """Return the stored reminder with this number. Raises `UnknownReminder` if there is none."""
    reminder = await board_notifications.by_number(tx, int(number))
    if reminder is None or reminder.number is None:
        raise UnknownReminder(number)
    return reminder


async def _reminder(view: View, number: str) -> Scheduled:
    """Return the reminder with this number as the page lists it. Raises `UnknownReminder` without one."""
    async with view.host.reader.reading() as tx:
        by_folder = {str(group.folder): group for group in await groups.every(tx)}
        return _scheduled_reminder(view, await _stored_reminder(tx, number), by_folder)


PAGE = Page(
    name="coming",
    order=40,
    is_daily=True,
    shows={"/coming": show},
    changes={
        "/coming/new": add,
        "/coming/reminders/{id:number}/change": change_reminder,
        "/coming/reminders/{id:number}/cancel": cancel_reminder,
        "/coming/reminders/{id:number}/restore": restore_reminder,
        "/coming/tasks/{id}/change": change_task,
        "/coming/tasks/{id}/{action}": act_on_task,
    },
    live={"week": CHANGES, "tasks": CHANGES},
)
