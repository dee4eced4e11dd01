"""Board: the tasks and questions of all groups; of one group also its notifications and its history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
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
from orchestrator.web.console.forms import FormForged, SentForm, typed
from orchestrator.web.console.page import Page, View

DAY_MS = 86_400_000
TOLD_DAYS = 30
MAX_DELIVERED = 50
HISTORY_STEP = 30
MOST = 500
"""Tasks, and open questions, of all groups that are shown at once."""
ENDINGS = ("complete", "drop")
"""Actions that end a task, and can be taken back at once."""
EDITABLE = ("title", "deadline", "priority", "progress")
NEAR_DAYS = 7
"""The most days before a deadline at which the page says "in 3 days" beside its date."""
OVER = tuple(one for one in NotificationStatus if not one.is_open)
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
    return await _show(view, view.query("group"))


async def show_notification(view: View) -> Response:
    """Show one notification with its history."""
    async with view.host.reader.reading() as tx:
        group = await groups.known(tx, view.given("folder"))
        one = await board_notifications.get(tx, group.folder, view.given("id"))
        if one is None:
            raise NoNotification
        recorded = await board_notifications.history_of(tx, group.folder, one.id)
    return view.render(
        "board_notification.html",
        group=group.folder,
        zone=view.host.zone_of(group),
        one=one,
        entries=notification_log.with_creation(one, recorded),
        says=view.console.catalogue.has,
    )


async def add_task(view: View, form: SentForm) -> Response:
    """Add a task to the board of the group that the form names."""
    priority = Priority.HIGH if form.is_set("important") else Priority.MEDIUM
    given = {"title": form.text("title"), "deadline": form.text("deadline"), "priority": priority.value}
    folder = form.text("whose")
    return await _use(view, form, folder, "create_task", given, done=".added")


async def edit_task(view: View, form: SentForm) -> Response:
    """Change those of a task's title, deadline, priority and progress that the form has different."""
    async with view.host.reader.reading() as tx:
        group = await groups.known(tx, view.given("folder"))
        task = await board_tasks.get(tx, group.folder, view.given("id"))
    zone = view.host.zone_of(group)
    now = {} if task is None else editable(task, zone)
    given = {name: form.text(name) for name in EDITABLE if form.text(name) != now.get(name)}
    if not given:
        return view.done(_back(view, group.folder), view.t(".same"))
    return await _change(view, form, "update_task", {"task_id": view.given("id"), **given}, done=".did_edit")


def editable(task: BoardTask, zone: ZoneInfo) -> dict[str, str]:
    """Return the fields of a task that can be changed in place, as their form shows them. Pure."""
    return {
        "title": task.title,
        "deadline": deadline_text(task.deadline, zone),
        "priority": task.priority.value,
        "progress": str(task.pct),
    }


def deadline_text(deadline: Deadline | None, zone: ZoneInfo) -> str:
    """Return a deadline as a form takes it: `2026-12-24`, or with a time of day. Pure."""
    if deadline is None:
        return ""
    return deadline.date or local_iso(deadline.at_ms, zone)[:16].replace("T", " ")


async def change_task(view: View, form: SentForm) -> Response:
    """Complete, reopen, park, drop, block or unblock a task, or move it to the history."""
    action, task = view.given("action"), {"task_id": view.given("id")}
    if action == "archive":
        return await _change(view, form, "move_to_history", task, done=".did_archive")
    if action not in TASK_ACTIONS:
        raise NoTaskAction
    given = {**task, **TASK_ACTIONS[action]}
    if action == "block":
        given["blocker_note"] = form.text("note")
    undo = f"/board/{view.given('folder')}/tasks/{view.given('id')}/undo" if action in ENDINGS else ""
    return await _change(view, form, "update_task", given, done=f".did_{action}", undo=undo)


async def take_up_again(view: View, form: SentForm) -> Response:
    """Reopen a task that was just completed or dropped, by the button beside the text that says so."""
    given = {"task_id": view.given("id"), **TASK_ACTIONS["reopen"]}
    return await _use(view, form, view.given("folder"), "update_task", given, done=".did_reopen")


async def answer(view: View, form: SentForm) -> Response:
    """Answer a question; an answer that leaves no doubt changes its task at once."""
    given = {"question_id": view.given("id"), "answer": form.text("answer")}
    return await _change(view, form, "answer_question", given, done=".did_answer")


async def remove_question(view: View, form: SentForm) -> Response:
    given = {"question_id": view.given("id")}
    return await _change(view, form, "remove_question", given, done=".did_remove_question")


async def cancel_notification(view: View, form: SentForm) -> Response:
    given = {"notification_id": view.given("id")}
    return await _change(view, form, "cancel_notification", given, done=".did_cancel")


async def _change(
    view: View, form: SentForm, tool: str, arguments: Mapping[str, Any], *, done: str, undo: str = ""
) -> Response:
    """Change a row of the board, if it is still of the version that the page showed.

    `undo` is the address of a form that takes it back.

    Raises:
        ChangedSince: it is not; the person is shown both.
    """
    seen = form.seen()
    version = seen.get("_version", "")
    if not (version.isascii() and version.isdigit() and len(version) < 16):
        raise FormForged
    return await _use(
        view, form, view.given("folder"), tool, arguments, done=done, version=int(version), undo=undo
    )


async def _use(
    view: View,
    form: SentForm,
    folder: str,
    tool: str,
    arguments: Mapping[str, Any],
    *,
    done: str,
    version: int | None = None,
    undo: str = "",
) -> Response:
    """Call a tool of the dashboard; what it refuses is shown on the board with the reason."""
    result = await view.api.dashboards.use(folder, tool, arguments, expect_version=version)
    # The tool says only that the row has changed. It is read again, so that the person sees both states.
    if result["code"] == "STALE":
        async with view.host.reader.reading() as tx:
            group = await groups.known(tx, folder)
            row = await board.row(tx, group.folder, view.given("id"))
        if row is not None:
            form.check_unchanged(seen_row(view, row, view.host.zone_of(group)))
    if not result["ok"]:
        view.error = refusal(view, tool, result["code"])
        return await _show(view, folder if came_from_group(view) else "", form=form)
    group = await view.host.reader.read(lambda tx: groups.known(tx, folder))
    return view.done(_back(view, folder), _done_text(view, group, tool, done, result["data"]), undo=undo)


def _done_text(view: View, group: Group, tool: str, done: str, data: Mapping[str, Any]) -> str:
    """Return the text about what was done, with whatever a person may not expect of it."""
    if tool == "answer_question":
        has_model = view.services.containers.orders.agent(group) == "claude"
        return view.t(f".did_answer_{data.get('effect') or ('model' if has_model else 'noted')}")
    # A deadline that is over is accepted, so the text has to mention it: it may be a slip.
    deadline = data.get("deadline") if tool in ("create_task", "update_task") else None
    if done in (".added", ".did_edit") and deadline and _is_over(view, deadline, view.host.zone_of(group)):
        return f"{view.t(done)} {view.t('.deadline_over')}"
    return view.t(done)


def _is_over(view: View, deadline: str, zone: ZoneInfo) -> bool:
    """Return whether a deadline is over, as a tool gives it: `2026-12-24`, or a moment with its offset."""
    now = datetime.fromtimestamp(view.now_ms / 1000, zone)
    # A day without a time is over only when the day itself is.
    if len(deadline) == len("2026-12-24"):
        return date.fromisoformat(deadline) < now.date()
    return datetime.fromisoformat(deadline) <= now


def came_from_group(view: View) -> bool:
    """Whether the form stood on the board of one group."""
    return "group=" in view.here


def _back(view: View, folder: str) -> str:
    """Return the path of the board that a form was on: that of its group, or of all groups."""
    return f"/board?group={folder}" if came_from_group(view) else "/board"


def refusal(view: View, tool: str, code: str) -> str:
    """Return why a tool did nothing, in the language of the page; never a code."""
    for key in (f"board.refused_{tool}_{code}", f"board.refused_{code}"):
        if view.console.catalogue.has(key):
            return view.t(key)
    return view.t("board.refused")


def seen_row(view: View, row: BoardTask | Question | Notification, zone: ZoneInfo) -> dict[str, object]:
    """Return the state that a form about a row was made from: what people see of it, and its version."""
    match row:
        case BoardTask():
            state = "blocked" if row.is_blocked and not row.status.is_terminal else row.status.value
            shown = {
                view.t("board.what"): row.title,
                view.t("board.priority"): view.t(f"board.priority_{row.priority.value}"),
                view.t("board.status"): view.t(f"board.state_{state}"),
                view.t("board.progress"): f"{row.pct} %",
                view.t("board.deadline"): _written_deadline(view, row.deadline, zone) if row.deadline else "",
                view.t("board.what_it_waits_for"): row.blocker_note or "",
            }
        case Question():
            shown = {view.t("board.question"): row.question, view.t("board.your_answer"): row.answer or ""}
        case Notification():
            shown = {
                view.t("board.message"): row.message,
                view.t("board.when"): _written_moment(view, row.due_ms, zone),
                view.t("board.status"): view.t(f"board.status_{row.status.value}"),
            }
    # Compared, but never shown to a person: `ChangedSince.shown` leaves out names that begin with `_`.
    return {**shown, "_version": row.version}


def _written_deadline(view: View, deadline: Deadline, zone: ZoneInfo) -> str:
    if deadline.date is None:
        return _written_moment(view, deadline.at_ms, zone)
    return view.date(
        date.fromisoformat(deadline.date), datetime.fromtimestamp(view.now_ms / 1000, zone).date()
    )


def _written_moment(view: View, at_ms: int, zone: ZoneInfo) -> str:
    """Return a moment with its date even today, for what is compared with what was there before."""
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


async def _show(view: View, wanted: str, *, form: SentForm | None = None) -> Response:
    many = max(HISTORY_STEP, view.number("history"))
    async with view.host.reader.reading() as tx:
        every = await groups.every(tx)
        if wanted:
            seen = await _board_of(tx, await groups.known(tx, wanted), many=many, now_ms=view.now_ms)
        else:
            seen = await _boards_of_all(tx)
    zones = {one.folder: view.host.zone_of(one) for one in every}
    names = dict(view.choices(every, first=""))
    titles = {(one.folder, one.id): one.title for one in (*seen.tasks, *seen.archived)}
    query = f"?group={seen.group.folder}&history={many}" if seen.group else ""
    return view.render(
        "board.html",
        here=view.url(f"/board{query}"),
        group=seen.group.folder if seen.group else "",
        choices=view.choices(every),
        whose=view.choices(every, first=""),
        names=names,
        zones=zones,
        tasks=_by_state(seen.tasks),
        is_cut=seen.is_cut,
        titles=titles,
        questions=seen.questions,
        delivered=seen.notifications,
        archived=seen.archived[:many],
        older=view.url(f"/board?group={wanted}&history={many + HISTORY_STEP}#part-history")
        if len(seen.archived) > many
        else "",
        given=typed(form if view.refused("/board/tasks") else None, "title", "deadline", "whose"),
        typed_at=view.request.path_params.get("id", "") if form else "",
        form=form,
        seen_of=lambda row: seen_row(view, row, zones.get(row.folder, view.console.zone)),
        editable=lambda task: editable(task, zones.get(task.folder, view.console.zone)),
        due=lambda task: due(view, task, zones.get(task.folder, view.console.zone)),
    )


async def _board_of(tx: Tx, group: Group, *, many: int, now_ms: int) -> Boards:
    """Return the whole board of one group, with `many` rows of its history, and one more if there is one."""
    seen = await board.snapshot(tx, group.folder)
    since_ms = now_ms - TOLD_DAYS * DAY_MS
    over = await board_notifications.listed(tx, group.folder, statuses=OVER, from_ms=since_ms)
    return Boards(
        group=group,
        tasks=list(seen.tasks if seen else ()),
        questions=list(seen.questions if seen else ()),
        archived=await board_tasks.history(tx, group.folder, limit=many + 1),
        # `over` is by due time: turned round, the newest ones are those that fit.
        notifications=[*(seen.notifications if seen else ()), *over[::-1][:MAX_DELIVERED]],
    )


async def _boards_of_all(tx: Tx) -> Boards:
    """Return the tasks and open questions of all groups, at most `MOST` of each."""
    tasks = await board_tasks.on_boards_of_all(tx, limit=MOST + 1)
    return Boards(
        group=None,
        tasks=tasks[:MOST],
        questions=await board_questions.unanswered_of_all(tx, limit=MOST),
        archived=[],
        notifications=[],
        is_cut=len(tasks) > MOST,
    )


def due(view: View, task: BoardTask, zone: ZoneInfo) -> tuple[str, bool]:
    """Return when a task is due, as people say it, and whether that is over."""
    deadline = task.deadline
    if deadline is None:
        return view.t("board.no_deadline"), False
    now = datetime.fromtimestamp(view.now_ms / 1000, zone)
    moment = datetime.fromtimestamp(deadline.at_ms / 1000, zone)
    day = date.fromisoformat(deadline.date) if deadline.date else moment.date()
    time = "" if deadline.date else f" {moment:%H:%M}"
    shown = f"{view.date(day, now.date())}{time}"
    days = (day - now.date()).days
    is_late = days < 0 or (deadline.date is None and moment <= now)
    if is_late and not task.status.is_terminal:
        late = view.t("board.days_late", n=-days) if days < 0 else view.t("board.late_today")
        return f"{late}, {shown}", True
    if 0 <= days <= 1:
        return f"{view.t('base.tomorrow' if days else 'base.today')}, {shown}", False
    near = f"{view.t('board.in_days', n=days)}, " if 0 < days <= NEAR_DAYS else ""
    return f"{near}{shown}", False


def _by_state(tasks: Iterable[BoardTask]) -> dict[str, list[BoardTask]]:
    """Return the tasks of each state, in the order in which people look at them. Pure."""
    found: dict[str, list[BoardTask]] = {
        name: [] for name in ("active", "blocked", "someday", "completed", "cancelled")
    }
    for one in tasks:
        found["blocked" if one.is_blocked and not one.status.is_terminal else one.status.value].append(one)
    return {name: rows for name, rows in found.items() if rows}


PAGE = Page(
    name="board",
    order=30,
    is_daily=True,
    shows={"/board": show, "/board/{folder}/notifications/{id}": show_notification},
    changes={
        "/board/tasks": add_task,
        "/board/{folder}/tasks/{id}/edit": edit_task,
        "/board/{folder}/tasks/{id}/undo": take_up_again,
        "/board/{folder}/tasks/{id}/{action}": change_task,
        "/board/{folder}/questions/{id}/answer": answer,
        "/board/{folder}/questions/{id}/remove": remove_question,
        "/board/{folder}/notifications/{id}/cancel": cancel_notification,
    },
    live={"questions": CHANGES, "tasks": CHANGES, "notifications": CHANGES, "history": CHANGES},
)
