"""Board: what a group has to do, what it is asked, and what it is told when; by the dashboard's services."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

from starlette.responses import Response

from orchestrator.base.clock import local_iso
from orchestrator.dashboard.views import board, notification_log
from orchestrator.domain.dashboard import BoardTask, Notification, NotificationStatus, Question
from orchestrator.domain.errors import BadRequest
from orchestrator.store import dashboard_notifications, dashboard_tasks, groups
from orchestrator.web.console.forms import FormForged, SentForm, typed
from orchestrator.web.console.page import Page, View

DAY_MS = 86_400_000
TOLD_DAYS = 30
MAX_TOLD = 50
HISTORY_STEP = 30
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
    """Show one notification, and all that became of it."""
    async with view.web.host.reader.reading() as tx:
        group = await groups.known(tx, view.given("folder"))
        one = await dashboard_notifications.get(tx, group.folder, view.given("id"))
        if one is None:
            raise NoNotification
        recorded = await dashboard_notifications.history_of(tx, group.folder, one.id)
    return view.render(
        "board_notification.html",
        group=group.folder,
        zone=view.web.host.zone_of(group),
        one=one,
        entries=notification_log.whole(one, recorded),
        says=view.console.catalogue.has,
    )


async def add_task(view: View, form: SentForm) -> Response:
    given = {"title": form.text("title"), "deadline": form.text("deadline")}
    return await _use(view, form, "create_task", given, done=".added")


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
    return await _change(view, form, "update_task", given, done=f".did_{action}")


async def set_progress(view: View, form: SentForm) -> Response:
    given = {"task_id": view.given("id"), "progress": form.text("progress")}
    return await _change(view, form, "update_task", given, done=".did_progress")


async def answer(view: View, form: SentForm) -> Response:
    given = {"question_id": view.given("id"), "answer": form.text("answer")}
    return await _change(view, form, "answer_question", given, done=".did_answer")


async def remove_question(view: View, form: SentForm) -> Response:
    given = {"question_id": view.given("id")}
    return await _change(view, form, "remove_question", given, done=".did_remove_question")


async def cancel_notification(view: View, form: SentForm) -> Response:
    given = {"notification_id": view.given("id")}
    return await _change(view, form, "cancel_notification", given, done=".did_cancel")


async def _change(
    view: View, form: SentForm, tool: str, arguments: Mapping[str, Any], *, done: str
) -> Response:
    """Change a row of the board, if it is still of the version that the page showed.

    Raises:
        ChangedSince: it is not; the person is shown both.
    """
    seen = form.seen()
    version = seen.get("_version", "")
    if not (version.isascii() and version.isdigit() and len(version) < 16):
        raise FormForged
    return await _use(view, form, tool, arguments, done=done, version=int(version))


async def _use(
    view: View,
    form: SentForm,
    tool: str,
    arguments: Mapping[str, Any],
    *,
    done: str,
    version: int | None = None,
) -> Response:
    """Call a tool of the dashboard; what it refuses is shown on the board with the reason."""
    folder = view.given("folder")
    result = await view.api.dashboards.use(folder, tool, arguments, expect_version=version)
    if result["code"] == "STALE":
        async with view.web.host.reader.reading() as tx:
            group = await groups.known(tx, folder)
            row = await board.row(tx, group.folder, view.given("id"))
        if row is not None:
            form.check_unchanged(seen_row(view, row, view.web.host.zone_of(group)))
    if not result["ok"]:
        return await _show(view, folder, error=str(result["text"]), form=form)
    return view.done(f"/board?group={folder}", view.t(done))


def seen_row(view: View, row: BoardTask | Question | Notification, zone: ZoneInfo) -> dict[str, object]:
    """Return what a form about a row was made of: what people look at, and its version."""
    match row:
        case BoardTask():
            state = "blocked" if row.is_blocked and not row.status.is_terminal else row.status.value
            shown = {
                view.t("board.what"): row.title,
                view.t("board.status"): view.t(f"board.state_{state}"),
                view.t("board.progress"): f"{row.pct} %",
                view.t("board.deadline"): local_iso(row.deadline.at_ms, zone)[:16] if row.deadline else "",
                view.t("board.what_it_waits_for"): row.blocker_note or "",
            }
        case Question():
            shown = {view.t("board.question"): row.question, view.t("board.your_answer"): row.answer or ""}
        case Notification():
            shown = {
                view.t("board.message"): row.message,
                view.t("board.when"): local_iso(row.due_ms, zone)[:16],
                view.t("board.status"): view.t(f"board.status_{row.status.value}"),
            }
    return {**shown, "_version": row.version}


async def _show(view: View, wanted: str, *, error: str = "", form: SentForm | None = None) -> Response:
    many = max(HISTORY_STEP, view.number("history"))
    async with view.web.host.reader.reading() as tx:
        every = await groups.every(tx)
        group = await groups.known(tx, wanted or (every[0].folder if every else "main"))
        seen = await board.snapshot(tx, group.folder)
        archived = await dashboard_tasks.history(tx, group.folder, limit=many + 1)
        since_ms = view.now_ms - TOLD_DAYS * DAY_MS
        delivered = await dashboard_notifications.listed(tx, group.folder, statuses=OVER, from_ms=since_ms)
    zone = view.web.host.zone_of(group)
    return view.render(
        "board.html",
        status=422 if error else 200,
        error=error,
        here=view.url(f"/board?group={group.folder}&history={many}"),
        group=group.folder,
        choices=view.choices(every, first=""),
        zone=zone,
        tasks=_by_state(seen.tasks if seen else ()),
        titles={one.id: one.title for one in (*(seen.tasks if seen else ()), *archived)},
        questions=seen.questions if seen else (),
        delivered=[*(seen.notifications if seen else ()), *delivered[::-1][:MAX_TOLD]],
        archived=archived[:many],
        older=view.url(f"/board?group={group.folder}&history={many + HISTORY_STEP}#part-history")
        if len(archived) > many
        else "",
        given=typed(form, "title", "deadline"),
        seen_of=lambda row: seen_row(view, row, zone),
    )


def _by_state(tasks: tuple[BoardTask, ...]) -> dict[str, list[BoardTask]]:
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
        "/board/{folder}/tasks": add_task,
        "/board/{folder}/tasks/{id}/progress": set_progress,
        "/board/{folder}/tasks/{id}/{action}": change_task,
        "/board/{folder}/questions/{id}/answer": answer,
        "/board/{folder}/questions/{id}/remove": remove_question,
        "/board/{folder}/notifications/{id}/cancel": cancel_notification,
    },
    live={"questions": CHANGES, "tasks": CHANGES, "notifications": CHANGES, "history": CHANGES},
)
