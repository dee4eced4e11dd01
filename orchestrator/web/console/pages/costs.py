"""Costs: what was used of the model, what it cost about, and what it may cost."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, get_args

from starlette.responses import Response

from orchestrator.base.clock import local_iso
from orchestrator.domain.values import Folder
from orchestrator.reports import audit as reports_audit
from orchestrator.reports import costs
from orchestrator.store import audit, groups
from orchestrator.store.budgets import Budget
from orchestrator.store.database import Tx
from orchestrator.web.console.forms import SentForm, typed
from orchestrator.web.console.page import Page, View

DAYS = 30
DAY_MS = 86_400_000
REFUSALS = 20
BAR_HEIGHT = 100.0
BY: tuple[costs.By, ...] = get_args(costs.By)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A day in the chart. `x`, `y`, `width` and `height` are in a picture of 600 by 100."""

    day: str
    usd: float
    tokens: int
    x: float
    y: float
    width: float
    height: float


async def show(view: View) -> Response:
    return await _show(view)


async def set_budget(view: View, form: SentForm) -> Response:
    try:
        amount = costs.parse_amount_of(form.text("amount"), costs.parse_unit(form.text("unit")))
        period = costs.parse_period(form.text("period"))
    except costs.BadAmount as error:
        return await _show(view, error=str(error), form=form)
    whose, is_background = form.text("whose") or None, form.is_set("background")
    async with view.web.host.database.transaction() as tx:
        folder = (await groups.known(tx, whose)).folder if whose is not None else None
        budget = Budget(
            id=0,
            folder=folder,
            is_background=is_background,
            period=period,
            unit=amount.unit,
            amount=amount.value,
        )
        is_sure = form.text("sure") == "yes"
        stops = not is_sure and await costs.is_spent_already(
            tx, budget, now_ms=view.now_ms, zone=view.console.zone
        )
        if not stops:
            await costs.set_budget(
                tx,
                amount,
                period=period,
                folder=folder,
                is_background=is_background,
                now_ms=view.now_ms,
            )
    if stops:
        return await _show(view, form=form, stops=folder or view.t("base.all_groups"))
    return view.done("/costs", view.t(".set", amount=costs.amount_text(amount)))


async def remove_budget(view: View, _: SentForm) -> Response:
    async with view.web.host.database.transaction() as tx:
        await costs.remove_budget(tx, int(view.given("id")), now_ms=view.now_ms)
    return view.done("/costs", view.t(".removed"))


async def _show(view: View, *, form: SentForm | None = None, error: str = "", stops: str = "") -> Response:
    """Show the page; `stops` names the group that the budget of `form` would stop at once."""
    folder = view.query("group") or None
    by: costs.By = next((one for one in BY if one == view.query("by")), "group")
    now_ms, zone = view.now_ms, view.console.zone
    async with view.web.host.reader.reading() as tx:
        found = await costs.usage(tx, folder, by=by, now_ms=now_ms, zone=zone)
        by_day = await costs.usage(tx, folder, by="day", now_ms=now_ms, zone=zone)
        every = await groups.every(tx)
        refused = await _refusals(tx, folder, since_ms=now_ms - DAYS * DAY_MS)
    return view.render(
        "costs.html",
        status=422 if form else 200,
        error=error,
        stops=stops,
        typed=typed(form, "amount", "unit", "period", "whose", "background"),
        found=found,
        by=by,
        ways=[(one, view.t(f".by_{one}")) for one in BY],
        group=folder or "",
        choices=view.choices(every),
        bars=bars(by_day["rows"], until=date.fromisoformat(local_iso(now_ms, zone)[:10]), days=DAYS),
        refused=refused,
    )


async def _refusals(tx: Tx, folder: str | None, *, since_ms: int) -> list[dict[str, Any]]:
    """Return the newest requests to the model that a budget or a bound refused, newest first."""
    rows = await audit.newest(
        tx,
        limit=10 * REFUSALS,
        folder=Folder(folder) if folder else None,
        since_ms=since_ms,
        only_refused=True,
    )
    own = [row for row in rows[::-1] if row["kind"].startswith("model.")]
    return [{**row, "why": reports_audit.detail_text(row["detail"])} for row in own[:REFUSALS]]


def bars(rows: list[dict[str, Any]], *, until: date, days: int) -> list[Bar]:
    """Return one bar for each of the last `days` days, the newest last; days without use are flat. Pure.

    `rows` are those of `costs.usage` by day. Heights follow the money, or the tokens where no price is known.
    """
    known = {row["day"]: row for row in rows}
    shown = [(until - timedelta(days=days - 1 - number)).isoformat() for number in range(days)]
    picked = [known.get(day, {}) for day in shown]
    money = [float(row.get("cost_usd") or 0) for row in picked]
    tokens = [sum(int(count) for name, count in row.items() if name.endswith("_tokens")) for row in picked]
    measure = money if any(money) else [float(one) for one in tokens]
    most, step = max(measure, default=0.0) or 1.0, 600 / days
    return [
        Bar(
            day=day,
            usd=money[number],
            tokens=tokens[number],
            x=round(number * step + 2, 1),
            y=round(BAR_HEIGHT - measure[number] / most * BAR_HEIGHT, 1),
            width=round(step - 4, 1),
            height=round(measure[number] / most * BAR_HEIGHT, 1),
        )
        for number, day in enumerate(shown)
    ]


PAGE = Page(
    name="costs",
    order=70,
    shows={"/costs": show},
    changes={"/costs/budgets": set_budget, "/costs/budgets/{id:number}/remove": remove_budget},
    live={"used": ("turn.*", "run.ended"), "budgets": ("turn.*", "run.ended")},
)
