"""Costs: what the model cost today, this week and this month, of what, and what it may cost."""

from __future__ import annotations

from typing import Any, get_args

from starlette.responses import Response

from orchestrator.base.terminal_escaping import all_visible
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Folder, Group
from orchestrator.proxies.model.token_usage import AS_OF
from orchestrator.reports import audit as reports_audit
from orchestrator.reports import costs
from orchestrator.store import audit
from orchestrator.store.audit import AuditView
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.money import budgets as budget_store
from orchestrator.store.money.budgets import Budget, Period, Unit
from orchestrator.web.console.form_tokens import SentForm, typed
from orchestrator.web.console.page import Page, View

REFUSED_DAYS = 30
DAY_MS = 86_400_000
REFUSALS = 20
BUDGET_FIELDS = ("amount", "unit", "period", "whose", "background")
SPANS: tuple[costs.Span, ...] = get_args(costs.Span)
EXTRA_COLUMNS: tuple[costs.By, ...] = ("task", "service", "agent")


class BudgetExists(BadRequest):
    """There is a budget for this already: change that one."""

    code = "budget_exists"
    http_status = 409


async def show(view: View) -> Response:
    """Show the costs of the model in a span of time, and the budgets."""
    return await _show(view)


async def set_budget(view: View, form: SentForm) -> Response:
    """Set the new budget in a form; a refused form is shown again with the reason.

    A budget that would stop its group at once is set only once the person has confirmed it.
    """
    whose, is_background = form.text("whose") or None, form.is_set("background")
    try:
        amount = costs.parse_amount_in(form.text("amount"), costs.parse_unit(form.text("unit")))
        period = costs.parse_period(form.text("period"))
        async with view.host.database.transaction() as tx:
            folder = (await groups.known(tx, whose)).folder if whose is not None else None
            budget = Budget(
                id=0,
                folder=folder,
                is_background=is_background,
                period=period,
                unit=amount.unit,
                amount=amount.value,
            )
            must_confirm = await _must_be_confirmed(view, tx, budget, form)
            if not must_confirm:
                # In the transaction that sets it: of two forms that are sent at once, one is refused.
                await _check_new(tx, budget)
                await costs.set_budget(
                    tx,
                    amount,
                    period=period,
                    folder=folder,
                    is_background=is_background,
                    now_ms=view.now_ms,
                )
    except BadRequest as error:
        view.error = view.why(error)
        return await _show(view, form=form)
    if must_confirm:
        return await _show(view, form=form, stops=folder or view.t("base.all_groups"))
    return view.done("/costs", view.t(".set", amount=amount_text(view, amount.unit, amount.value)))


async def change_budget(view: View, form: SentForm) -> Response:
    """Change the amount of the budget that the address names; a refused form is shown again with the reason.

    An amount that would stop the group at once is set only once the person has confirmed it. Raises
    `ChangedSince` if somebody else has changed the amount meanwhile.
    """
    number = int(view.path_param("id"))
    try:
        async with view.host.database.transaction() as tx:
            budget = await costs.budget(tx, number)
            amount = costs.parse_amount_in(form.text("amount"), budget.unit)
            form.check_unchanged({"amount": costs.in_unit(budget.unit, budget.amount)})
            changed = Budget(**{**_fields(budget), "amount": amount.value})
            must_confirm = await _must_be_confirmed(view, tx, changed, form)
            if not must_confirm:
                await costs.change_budget(tx, budget, amount, now_ms=view.now_ms)
    except costs.BadAmount as error:
        view.error = view.why(error)
        return await _show(view, form=form, changing=number)
    if must_confirm:
        return await _show(view, form=form, changing=number, stops=budget.folder or view.t("base.all_groups"))
    return view.done("/costs", view.t(".set", amount=amount_text(view, amount.unit, amount.value)))


def _fields(budget: Budget) -> dict[str, Any]:
    """Return the values of a budget, keyed by the names of its fields."""
    return {name: getattr(budget, name) for name in Budget.__slots__}


async def _must_be_confirmed(view: View, tx: Tx, budget: Budget, form: SentForm) -> bool:
    """Return whether a budget needs to be confirmed, because it is used up already and would stop its group.

    False if the form has confirmed it with `sure`.
    """
    return form.text("sure") != "yes" and await costs.is_spent_already(
        tx, budget, now_ms=view.now_ms, zone=view.console.zone
    )


async def _check_new(tx: Tx, budget: Budget) -> None:
    """Raise `BudgetExists` if the same group, kind of work and period have a budget already.

    Budgets in tokens and in dollars are not distinguished.
    """

    def scope(limit: Budget) -> tuple[Folder | None, bool, Period]:
        """Return what a budget limits: its group (None for all), its kind of work and its period."""
        return limit.folder, limit.is_background, limit.period

    if any(scope(other) == scope(budget) for other in await budget_store.every(tx)):
        raise BudgetExists


async def remove_budget(view: View, _: SentForm) -> Response:
    """Remove the budget that the address names."""
    await view.host.database.write(
        lambda tx: costs.remove_budget(tx, int(view.path_param("id")), now_ms=view.now_ms)
    )
    return view.done("/costs", view.t(".removed"))


async def _show(view: View, *, form: SentForm | None = None, changing: int = 0, stops: str = "") -> Response:
    """Show the page. `form` is one that was refused, or has to be confirmed.

    It is about the budget with the number `changing`, or about a new one if that is 0. `stops` is the folder
    of the group that the budget would stop at once, or the words for all groups: then the budget has to be
    confirmed.
    """
    folder = view.query("group") or None
    span: costs.Span = next((known_span for known_span in SPANS if known_span == view.query("span")), "week")
    other = next((column for column in EXTRA_COLUMNS if column == view.query("by")), None)
    now_ms, zone = view.now_ms, view.console.zone
    async with view.host.reader.reading() as tx:
        overview = await costs.overview(tx, folder, span=span, other=other, now_ms=now_ms, zone=zone)
        known_folder = (await groups.known(tx, folder)).folder if folder else None
        budgets = await costs.budgets(tx, now_ms=now_ms, zone=zone, folder=known_folder)
        all_groups = await groups.every(tx)
        refused = await _refusals(tx, known_folder, since_ms=now_ms - REFUSED_DAYS * DAY_MS)
    return view.render(
        "costs.html",
        status=422 if form else 200,
        found=overview,
        span=span,
        spans=SPANS,
        other=other,
        others=EXTRA_COLUMNS,
        prices_as_of=AS_OF,
        budgets=sorted(budgets, key=lambda budget: -budget["percent"]),
        stops=all_visible(_name(all_groups, stops)[:60]) if stops else "",
        changing=changing,
        typed=typed(form, *BUDGET_FIELDS),
        new=typed(None if changing else form, *BUDGET_FIELDS),
        group=folder or "",
        choices=view.choices(all_groups),
        names={str(group.folder): group.name for group in all_groups},
        refused=refused,
        money=lambda usd: money_text(view, usd),
        limit=lambda budget, field: amount_text(view, Unit(budget["unit"]), budget[field], is_nano=False),
        raised=proposed_amount,
    )


def money_text(view: View, usd: float | None) -> str:
    """Return dollars as text: `$1.25`, `< $0.01`, or `$0.016` where a tenth of a cent matters.

    None becomes the word for an unknown amount.
    """
    if usd is None:
        return view.t(".unknown")
    if 0 < usd < 0.005:
        return "< $0.01"
    # Of an amount of a few cents a tenth of a cent matters: "$0.016 of $0.020".
    return f"${usd:,.3f}" if 0 < usd < 0.1 and round(usd, 2) != round(usd, 3) else f"${usd:,.2f}"


def amount_text(view: View, unit: Unit, value: float, *, is_nano: bool = True) -> str:
    """Return an amount of a budget as text: `$5.00`, `200,000 tokens`.

    With `is_nano`, an amount of money is in billionths of a dollar, else in dollars.
    """
    if unit is Unit.TOKENS:
        return view.t(".tokens", n=f"{value:,.0f}")
    return money_text(view, value / costs.NANO_USD if is_nano else value)


def proposed_amount(budget: costs.BudgetView) -> str:
    """Return the amount that the page proposes for a budget: doubled until it is more than is used. Pure.

    A budget that is not used up is proposed with its present amount.
    """
    amount = budget["amount"]
    if budget["percent"] >= 100:
        while amount <= budget["used"]:
            amount *= 2
    return f"{amount:.0f}" if budget["unit"] == Unit.TOKENS else f"{amount:.2f}"


def _name(all_groups: list[Group], folder: str) -> str:
    """Return the name of the group with this folder; the text itself if no group has it."""
    return next((group.name for group in all_groups if group.folder == folder), folder)


class RefusalLine(AuditView):
    """A refused request to the model, with its detail in one line."""

    why: str


async def _refusals(tx: Tx, folder: Folder | None, *, since_ms: int) -> list[RefusalLine]:
    """Return the newest requests to the model that a budget or another limit refused, newest first.

    They are of one group, or of all if `folder` is None. At most `REFUSALS` are returned, out of the newest
    `10 * REFUSALS` refusals of every kind.
    """
    # The audit cannot be asked for the refusals of the model alone, so more rows are read than are shown.
    rows = await audit.newest(
        tx,
        limit=10 * REFUSALS,
        folder=folder,
        since_ms=since_ms,
        only_refused=True,
    )
    newest_first = reversed(rows)  # `audit.newest` returns them oldest first
    of_model = [row for row in newest_first if row["kind"].startswith("model.")]
    return [{**row, "why": reports_audit.detail_text(row["detail"])} for row in of_model[:REFUSALS]]


PAGE = Page(
    name="costs",
    order=70,
    shows={"/costs": show},
    changes={
        "/costs/budgets": set_budget,
        "/costs/budgets/{id:number}/change": change_budget,
        "/costs/budgets/{id:number}/remove": remove_budget,
    },
    live=dict.fromkeys(("figures", "budgets", "used"), ("turn.*", "run.ended")),
)
