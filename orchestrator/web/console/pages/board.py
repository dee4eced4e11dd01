"""Board: the tasks and questions of all groups; of one group also its notifications and its history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit
from zoneinfo import ZoneInfo

from starlette.responses import Response

from orchestrator.base.clock import local_iso
from orchestrator.dashboard.views import board, notification_log
from orchestrator.domain.dashboard import (
    BoardTask,
    Deadline,
    Notification,
    NotificationStatus,
    Priority,
    Question,
)
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Group
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.board import questions as board_questions
from orchestrator.store.board import tasks as board_tasks
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.web.bodies import whole_number
from orchestrator.web.console.form_tokens import FormForged, SentForm, typed
from orchestrator.web.console.page import Page, View

DAY_MS = 86_400_000
DELIVERED_DAYS = 30
MAX_DELIVERED = 50
HISTORY_STEP = 30
MAX_ROWS = 500
"""Tasks, and open questions, of all groups that are shown at once."""
ENDINGS = ("complete", "drop")
"""Actions that end a task, and can be taken back at once."""
EDITABLE = ("title", "deadline", "priority", "progress")
NEAR_DAYS = 7
"""The most days before a deadline at which the page says "in 3 days" beside its date."""
OVER = tuple(status for status in NotificationStatus if not status.is_open)
TASK_ACTIONS: Mapping[str, Mapping[str, Any]] = {
    "complete": {"status": "completed"},
    "reopen": {"status": "active"},
    "park": {"status": "someday"},
    "drop": {"status": "cancelled"},
    "block": {"blocked": True},
    "unblock": {"blocked": False},
}
"""The effect of each button on a task, as arguments of the tool `update_task`."""
CHANGES = ("dashboard.*", "command.dashboard", "notification.*", "worker.*", "turn.answered")


class NoTaskAction(BadRequest):
    """A task can be completed, reopened, parked, dropped, blocked and unblocked."""

    code = "no_task_action"
    http_status = 404


class NoNotification(BadRequest):
    """There is no such notification on this board."""

    code = "no_notification"
    http_status = 404


async def show(view: View) -> Response:
    """Show the dashboard of the group that the query names, or those of all groups."""
    return await _show(view, view.query("group"))


async def show_notification(view: View) -> Response:
    """Show one notification of a dashboard with its history. Raises `NoNotification`."""
    async with view.host.reader.reading() as tx:
        group = await groups.known(tx, view.path_param("folder"))
        notification = await board_notifications.get(tx, group.folder, view.path_param("id"))
        if notification is None:
            raise NoNotification
        recorded = await board_notifications.history_of(tx, group.folder, notification.id)
    return view.render(
        "board_notification.html",
        group=group.folder,
        zone=view.host.zone_of(group),
        one=notification,
        entries=notification_log.with_creation(notification, recorded),
        says=view.console.catalogue.has,
    )


async def add_task(view: View, form: SentForm) -> Response:
    """Add the task in a form to the dashboard of the group that the form names."""
    priority = Priority.HIGH if form.is_set("important") else Priority.MEDIUM
    arguments = {"title": form.text("title"), "deadline": form.text("deadline"), "priority": priority.value}
    folder = form.text("whose")
    return await _call_tool(view, form, folder, "create_task", arguments, done_key=".added")


async def edit_task(view: View, form: SentForm) -> Response:
    """Change those of a task's title, deadline, priority and progress that differ in the form."""
    async with view.host.reader.reading() as tx:
        group = await groups.known(tx, view.path_param("folder"))
        task = await board_tasks.get(tx, group.folder, view.path_param("id"))
    zone = view.host.zone_of(group)
    # Of a task that is gone, every field counts as changed: the tool then refuses the change with the reason.
    present = {} if task is None else editable(task, zone)
    changed = {name: form.text(name) for name in EDITABLE if form.text(name) != present.get(name)}
    if not changed:
        return view.done(_board_path(view, group.folder), view.t(".same"))
    return await _change(
        view, form, "update_task", {"task_id": view.path_param("id"), **changed}, done_key=".did_edit"
    )


def editable(task: BoardTask, zone: ZoneInfo) -> dict[str, str]:
    """Return the fields of a task that its form can change, as the form shows them, by name. Pure.

    The deadline is shown in `zone`, the time zone of the group.
    """
    return {
        "title": task.title,
        "deadline": deadline_text(task.deadline, zone),
        "priority": task.priority.value,
        "progress": str(task.pct),
    }


def deadline_text(deadline: Deadline | None, zone: ZoneInfo) -> str:
    """Return a deadline in `zone` as a form takes it: `2026-12-24`, or `2026-12-24 18:00`. Pure.

    Empty for None.
    """
    if deadline is None:
        return ""
    return deadline.date or local_iso(deadline.at_ms, zone)[:16].replace("T", " ")


async def change_task(view: View, form: SentForm) -> Response:
    """Complete, reopen, park, drop, block or unblock a task, or move it to the history, as the address says.

    Raises `NoTaskAction` for any other action.
    """
    folder, task_id, action = view.path_param("folder"), view.path_param("id"), view.path_param("action")
    task = {"task_id": task_id}
    if action == "archive":
        return await _change(view, form, "move_to_history", task, done_key=".did_archive")
    if action not in TASK_ACTIONS:
        raise NoTaskAction
    arguments = {**task, **TASK_ACTIONS[action]}
    if action == "block":
        arguments["blocker_note"] = form.text("note")
    undo = ""
    if action in ENDINGS:
        undo = f"/board/{folder}/tasks/{task_id}/undo"
    if action == "complete":
        # A completion overwrites the progress, so the form that undoes it has the present one.
        async with view.host.reader.reading() as tx:
            row = await board_tasks.get(tx, (await groups.known(tx, folder)).folder, task_id)
        undo += f"?progress={row.pct}" if row is not None else ""
    return await _change(view, form, "update_task", arguments, done_key=f".did_{action}", undo=undo)


async def reopen_task(view: View, form: SentForm) -> Response:
    """Reopen a task that was just completed or dropped, whatever version the page showed.

    It gets the progress that the query names, if it names one: a completed task had it before.
    """
    arguments = {"task_id": view.path_param("id"), **TASK_ACTIONS["reopen"]}
    if (progress := whole_number(view.query("progress"))) is not None:
        arguments["progress"] = progress
    return await _call_tool(
        view, form, view.path_param("folder"), "update_task", arguments, done_key=".did_reopen"
    )


async def answer(view: View, form: SentForm) -> Response:
    """Answer a question with the text of the form.

    An answer that leaves no doubt changes the question's task at once.
    """
    arguments = {"question_id": view.path_param("id"), "answer": form.text("answer")}
    return await _change(view, form, "answer_question", arguments, done_key=".did_answer")


async def remove_question(view: View, form: SentForm) -> Response:
    """Close a question of a dashboard without an answer."""
    arguments = {"question_id": view.path_param("id")}
    return await _change(view, form, "remove_question", arguments, done_key=".did_remove_question")


async def cancel_notification(view: View, form: SentForm) -> Response:
    """Cancel a pending notification of a dashboard."""
    arguments = {"notification_id": view.path_param("id")}
    return await _change(view, form, "cancel_notification", arguments, done_key=".did_cancel")


async def _change(
    view: View, form: SentForm, tool: str, arguments: Mapping[str, Any], *, done_key: str, undo: str = ""
) -> Response:
    """Change a row of a dashboard by a tool, if the row still has the version that the page showed.

    `tool` is the name of the tool, `done_key` the key of the text about the change, `undo` the address of a
    form that reverses it.

    Raises:
        FormForged: the form does not say which version the page showed.
        ChangedSince: the row has another version; the person is shown both states.
    """
    shown = form.shown_state()
    version = whole_number(shown.get("_version", ""))
    if version is None:
        raise FormForged
    return await _call_tool(
        view, form, view.path_param("folder"), tool, arguments, done_key=done_key, version=version, undo=undo
    )


async def _call_tool(
    view: View,
    form: SentForm,
    folder: str,
    tool: str,
    arguments: Mapping[str, Any],
    *,
    done_key: str,
    version: int | None = None,
    undo: str = "",
) -> Response:
    """Call a tool of a group's dashboard, and redirect to the dashboard; a refusal is shown there instead.

    `done_key` is the key of the text about the change, `undo` the address of a form that reverses it.
    `version` is the version that the row must still have; None for any.

    Raises:
        ChangedSince: the row has another version; the person is shown both states.
    """
    result = await view.api.dashboards.use(folder, tool, arguments, expect_version=version)
    # The tool says only that the row has changed. It is read again, so that the person sees both states.
    if result["code"] == "STALE":
        async with view.host.reader.reading() as tx:
            group = await groups.known(tx, folder)
            row = await board.row(tx, group.folder, view.path_param("id"))
        if row is not None:
            # Raises `ChangedSince`, with both states.
            form.check_unchanged(shown_row(view, row, view.host.zone_of(group)))
    if not result["ok"]:
        view.error = refusal(view, tool, result["code"])
        return await _show(view, folder if came_from_group(view) else "", form=form)
    group = await view.host.reader.read(lambda tx: groups.known(tx, folder))
    return view.done(
        _board_path(view, folder), _done_text(view, group, tool, done_key, result["data"]), undo=undo
    )


def _done_text(view: View, group: Group, tool: str, done_key: str, data: Mapping[str, Any]) -> str:
    """Return the text that tells a person that a change was made.

    `tool` is the tool that made it, `done_key` the key of its text, `data` the tool's result. The text also
    says what a person may not expect: that a deadline is past, or who reads an answer.
    """
    if tool == "answer_question":
        # An answer that changed a task at once has an effect. Any other is read by the model when it looks at
        # the board next or, without a model, by nobody.
        has_model = view.services.containers.orders.agent(group) == "claude"
        return view.t(f".did_answer_{data.get('effect') or ('model' if has_model else 'noted')}")
    # A deadline that is over is accepted, so the text has to mention it: it may be a slip.
    deadline = data.get("deadline") if tool in ("create_task", "update_task") else None
    if (
        done_key in (".added", ".did_edit")
        and deadline
        and _is_over(view, deadline, view.host.zone_of(group))
    ):
        return f"{view.t(done_key)} {view.t('.deadline_over')}"
    return view.t(done_key)


def _is_over(view: View, deadline: str, zone: ZoneInfo) -> bool:
    """Return whether a deadline has passed.

    `deadline` is a date such as `2026-12-24`, or an ISO time with its offset.
    """
    now = datetime.fromtimestamp(view.now_ms / 1000, zone)
    # A day without a time is over only when the day itself is.
    if len(deadline) == len("2026-12-24"):
        return date.fromisoformat(deadline) < now.date()
    return datetime.fromisoformat(deadline) <= now


def came_from_group(view: View) -> bool:
    """Return whether the form of this request was on the dashboard of one group."""
    # An empty parameter stands for all groups: the list of groups above the board sends it.
    return any(parse_qs(urlsplit(view.here).query).get("group", []))


def _board_path(view: View, folder: str) -> str:
    """Return the path of the page that this request's form was on: one group's dashboard, or all."""
    return f"/board?group={folder}" if came_from_group(view) else "/board"


def refusal(view: View, tool: str, code: str) -> str:
    """Return the text, in the page's language, that says why a tool has refused a change with this code."""
    for key in (f"board.refused_{tool}_{code}", f"board.refused_{code}"):
        if view.console.catalogue.has(key):
            return view.t(key)
    return view.t("board.refused")


def shown_row(view: View, row: BoardTask | Question | Notification, zone: ZoneInfo) -> dict[str, object]:
    """Return the state of a row of a dashboard that a form about it shows, with its times in `zone`.

    The keys are the labels of the texts that people see, and `_version` for the row's version.
    """
    match row:
        case BoardTask():
            state = "blocked" if row.is_blocked and not row.status.is_terminal else row.status.value
            shown = {
                view.t("board.what"): row.title,
                view.t("board.priority"): view.t(f"board.priority_{row.priority.value}"),
                view.t("board.status"): view.t(f"board.state_{state}"),
                view.t("board.progress"): f"{row.pct} %",
                view.t("board.deadline"): _deadline_text(view, row.deadline, zone) if row.deadline else "",
                view.t("board.what_it_waits_for"): row.blocker_note or "",
            }
        case Question():
            shown = {view.t("board.question"): row.question, view.t("board.your_answer"): row.answer or ""}
        case Notification():
            shown = {
                view.t("board.message"): row.message,
                view.t("board.when"): _moment_text(view, row.due_ms, zone),
                view.t("board.status"): view.t(f"board.status_{row.status.value}"),
            }
    # Compared, but never shown to a person: `ChangedSince.shown` leaves out names that begin with `_`.
    return {**shown, "_version": row.version}


def _deadline_text(view: View, deadline: Deadline, zone: ZoneInfo) -> str:
    """Return a deadline in `zone` as people read it: `Tue 24 Nov`, or `Tue 24 Nov 18:00`."""
    if deadline.date is None:
        return _moment_text(view, deadline.at_ms, zone)
    return view.date(
        date.fromisoformat(deadline.date), datetime.fromtimestamp(view.now_ms / 1000, zone).date()
    )


def _moment_text(view: View, at_ms: int, zone: ZoneInfo) -> str:
    """Return a time in `zone` as people read it: `Tue 24 Nov 18:00`, with its year unless it is the present.

    The date stands there even for today: the text is compared with the one that a page showed, maybe on an
    earlier day.
    """
    moment = datetime.fromtimestamp(at_ms / 1000, zone)
    today = datetime.fromtimestamp(view.now_ms / 1000, zone).date()
    return f"{view.date(moment.date(), today)} {moment:%H:%M}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Boards:
    """The boards that the page shows: of one group, or of all."""

    group: Group | None
    tasks: list[BoardTask]
    questions: list[Question]
    archived: list[BoardTask]
    notifications: list[Notification]
    is_cut: bool = False
    """Whether there are more tasks than these."""


async def _show(view: View, folder: str, *, form: SentForm | None = None) -> Response:
    """Show the dashboard of the group `folder`, or those of all groups if it is empty.

    `form` is a form that was refused, with its typed values; `view.error` has the reason. The query's
    `history` says how many tasks of the history are shown, at least `HISTORY_STEP`.
    """
    history_rows = max(HISTORY_STEP, view.number("history"))
    async with view.host.reader.reading() as tx:
        all_groups = await groups.every(tx)
        if folder:
            boards = await _board_of(
                tx, await groups.known(tx, folder), history_rows=history_rows, now_ms=view.now_ms
            )
        else:
            boards = await _boards_of_all(tx)
    zones = {group.folder: view.host.zone_of(group) for group in all_groups}
    names = dict(view.choices(all_groups, first=""))
    titles = {(task.folder, task.id): task.title for task in (*boards.tasks, *boards.archived)}
    query = f"?group={boards.group.folder}&history={history_rows}" if boards.group else ""
    return view.render(
        "board.html",
        here=view.url(f"/board{query}"),
        group=boards.group.folder if boards.group else "",
        choices=view.choices(all_groups),
        whose=view.choices(all_groups, first=""),
        names=names,
        zones=zones,
        tasks=_by_state(boards.tasks),
        is_cut=boards.is_cut,
        titles=titles,
        questions=boards.questions,
        delivered=boards.notifications,  # the template's name for all of them, also those to come
        archived=boards.archived[:history_rows],
        older=view.url(f"/board?group={folder}&history={history_rows + HISTORY_STEP}#part-history")
        if len(boards.archived) > history_rows
        else "",
        given=typed(form if view.refused("/board/tasks") else None, "title", "deadline", "whose"),
        # The id of the task or question whose form was refused: it is shown again with the typed values.
        typed_at=view.request.path_params.get("id", "") if form else "",
        form=form,
        seen_of=lambda row: shown_row(view, row, zones.get(row.folder, view.console.zone)),
        editable=lambda task: editable(task, zones.get(task.folder, view.console.zone)),
        due=lambda task: due(view, task, zones.get(task.folder, view.console.zone)),
    )


async def _board_of(tx: Tx, group: Group, *, history_rows: int, now_ms: int) -> Boards:
    """Return the dashboard of one group, with its ended notifications of the last `DELIVERED_DAYS` days.

    Only the newest `MAX_DELIVERED` ended ones are returned, newest first, after the notifications to come.
    `history_rows` tasks of the history are read and one more, which shows that there are older ones.
    """
    snapshot = await board.snapshot(tx, group.folder)
    since_ms = now_ms - DELIVERED_DAYS * DAY_MS
    # By due time, so the newest ones are at the end.
    ended_notifications = await board_notifications.listed(tx, group.folder, statuses=OVER, from_ms=since_ms)
    newest_over = ended_notifications[::-1][:MAX_DELIVERED]
    return Boards(
        group=group,
        tasks=list(snapshot.tasks if snapshot else ()),
        questions=list(snapshot.questions if snapshot else ()),
        archived=await board_tasks.history(tx, group.folder, limit=history_rows + 1),
        notifications=[*(snapshot.notifications if snapshot else ()), *newest_over],
    )


async def _boards_of_all(tx: Tx) -> Boards:
    """Return the tasks and open questions of all groups, at most `MAX_ROWS` of each.

    One more task is read, which shows that there are more.
    """
    tasks = await board_tasks.on_boards_of_all(tx, limit=MAX_ROWS + 1)
    return Boards(
        group=None,
        tasks=tasks[:MAX_ROWS],
        questions=await board_questions.unanswered_of_all(tx, limit=MAX_ROWS),
        archived=[],
        notifications=[],
        is_cut=len(tasks) > MAX_ROWS,
    )


class DueText(NamedTuple):
    """The text that says when a task is due, and whether the task is late."""

    text: str
    is_late: bool


def due(view: View, task: BoardTask, zone: ZoneInfo) -> DueText:
    """Return when a task is due, as people in `zone` say it, and whether it is late.

    The text is such as `in 3 days, Tue 24 Nov`.
    """
    deadline = task.deadline
    if deadline is None:
        return DueText(view.t("board.no_deadline"), is_late=False)
    now = datetime.fromtimestamp(view.now_ms / 1000, zone)
    moment = datetime.fromtimestamp(deadline.at_ms / 1000, zone)
    day = date.fromisoformat(deadline.date) if deadline.date else moment.date()
    time = "" if deadline.date else f" {moment:%H:%M}"
    shown = f"{view.date(day, now.date())}{time}"
    days = (day - now.date()).days
    is_late = days < 0 or (deadline.date is None and moment <= now)
    if is_late and not task.status.is_terminal:
        late = view.t("board.days_late", n=-days) if days < 0 else view.t("board.late_today")
        return DueText(f"{late}, {shown}", is_late=True)
    # For a task that has ended, `days` may be negative: then no words are put before the date.
    if 0 <= days <= 1:
        return DueText(f"{view.t('base.tomorrow' if days else 'base.today')}, {shown}", is_late=False)
    near = f"{view.t('board.in_days', n=days)}, " if 0 < days <= NEAR_DAYS else ""
    return DueText(f"{near}{shown}", is_late=False)


def _by_state(tasks: Iterable[BoardTask]) -> dict[str, list[BoardTask]]:
    """Return tasks by their state, in the order in which the page shows the states. Pure.

    States without tasks are left out.
    """
    by_state: dict[str, list[BoardTask]] = {
        name: [] for name in ("active", "blocked", "someday", "completed", "cancelled")
    }
    for task in tasks:
        is_held_up = task.is_blocked and not task.status.is_terminal
        by_state["blocked" if is_held_up else task.status.value].append(task)
    return {name: rows for name, rows in by_state.items() if rows}


PAGE = Page(
    name="board",
    order=30,
    is_daily=True,
    shows={"/board": show, "/board/{folder}/notifications/{id}": show_notification},
    changes={
        "/board/tasks": add_task,
        "/board/{folder}/tasks/{id}/edit": edit_task,
        "/board/{folder}/tasks/{id}/undo": reopen_task,
        "/board/{folder}/tasks/{id}/{action}": change_task,
        "/board/{folder}/questions/{id}/answer": answer,
        "/board/{folder}/questions/{id}/remove": remove_question,
        "/board/{folder}/notifications/{id}/cancel": cancel_notification,
    },
    live={"questions": CHANGES, "tasks": CHANGES, "notifications": CHANGES, "history": CHANGES},
)
