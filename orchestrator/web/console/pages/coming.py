"""Coming: a week of reminders, tasks, notifications and wakes, to make, move, pause and cancel."""

from __future__ import annotations

from starlette.responses import Response

from orchestrator.domain.errors import AndyError, BadRequest
from orchestrator.reports import tasks, upcoming
from orchestrator.reports.upcoming import UpcomingView
from orchestrator.store import groups
from orchestrator.web.api.reminders import NewReminder
from orchestrator.web.console.forms import SentForm, typed
from orchestrator.web.console.page import Page, View

TASK_ACTIONS = ("pause", "resume", "run", "cancel")
CHANGES = ("reminder.*", "task.*", "notification.*", "cycle.*", "turn.*", "loop.*")


class NoSuchAction(BadRequest):
    """A task can be paused, resumed, run now or cancelled."""

    code = "no_such_action"


async def show(view: View) -> Response:
    return await _show(view)


async def add_reminder(view: View, form: SentForm) -> Response:
    """Set a reminder; one that cannot be read is shown again with the reason."""
    try:
        wish = NewReminder(group=form.text("whose"), text=form.text("text"), at=form.text("at") or " ")
        row = await view.api.reminders.add(wish)
    except (AndyError, ValueError) as error:
        why = str(error) if isinstance(error, AndyError) else view.t(".incomplete")
        return await _show(view, error=why, form=form)
    return view.done("/coming", view.t(".added", number=row["id"]))


async def move_reminder(view: View, form: SentForm) -> Response:
    await view.api.reminders.move(view.given("id"), form.text("at"))
    return view.done("/coming", view.t(".moved"))


async def cancel_reminder(view: View, _: SentForm) -> Response:
    await view.api.reminders.cancel(view.given("id"))
    return view.done("/coming", view.t(".cancelled"))


async def act_on_task(view: View, _: SentForm) -> Response:
    """Pause, resume, run or cancel a scheduled task."""
    if view.given("action") not in TASK_ACTIONS:
        raise NoSuchAction
    await view.api.tasks.act(view.given("id"), view.given("action"))
    return view.done("/coming", view.t(f".task_{view.given('action')}"))


async def _show(view: View, *, error: str = "", form: SentForm | None = None) -> Response:
    folder, zone = view.query("group") or None, view.console.zone
    given = typed(form, "text", "at", "whose")
    async with view.web.host.reader.reading() as tx:
        found = await upcoming.week(tx, folder, now_ms=view.now_ms, zone=zone)
        scheduled = await tasks.every(tx, folder, with_over=True)
        every = await groups.every(tx)
    return view.render(
        "coming.html",
        status=422 if error else 200,
        days=_by_day(found),
        most_times=upcoming.MAX_TIMES_A_DAY,
        scheduled=[one for one in scheduled if one.status in ("active", "paused")],
        group=folder or "",
        choices=view.choices(every),
        folders=view.choices(every, first=""),
        error=error,
        given=given,
        whose=given["whose"] or folder or "",
    )


def _by_day(rows: list[UpcomingView]) -> dict[str, list[UpcomingView]]:
    """Return the rows under their days, in the order in which they come. Pure."""
    days: dict[str, list[UpcomingView]] = {}
    for row in rows:
        days.setdefault(row["date"], []).append(row)
    return days


PAGE = Page(
    name="coming",
    order=40,
    is_daily=True,
    shows={"/coming": show},
    changes={
        "/coming/reminders": add_reminder,
        "/coming/reminders/{id:number}/move": move_reminder,
        "/coming/reminders/{id:number}/cancel": cancel_reminder,
        "/coming/tasks/{id}/{action}": act_on_task,
    },
    live={"week": CHANGES, "tasks": CHANGES},
)
