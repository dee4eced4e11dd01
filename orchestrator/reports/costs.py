"""Reports what was used of the model and of each budget, as rows for machines and lines for people."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Literal, NotRequired, TypedDict, TypeVar, cast, get_args
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_iso, local_midnight
from orchestrator.base.tables import counted, table
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.model_services import OF_DOTENV
from orchestrator.domain.values import Folder
from orchestrator.proxies.model import budget_sums
from orchestrator.proxies.model.token_usage import AS_OF
from orchestrator.store import audit as audit_store
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.money import budgets as budget_store
from orchestrator.store.money import usage as usage_store
from orchestrator.store.money.budgets import Period, Unit
from orchestrator.store.money.usage import Sums, UsagePart

By = Literal["day", "group", "task", "kind", "model", "service", "agent"]

_COLUMNS = {
    "group": "group_folder",
    "task": "task_id",
    "kind": "kind",
    "model": "model",
    "service": "service",
    "agent": "is_subagent",
}
_OTHERS: tuple[By, ...] = ("task", "service", "agent")
"""The ways to divide costs that the overview shows only on request."""
_AGENT_BY_IS_SUBAGENT = {0: "the agent itself", 1: "subagents"}
"""Maps the values of the column `is_subagent` to texts."""
_TEXTS_FOR_NULL = {"task": "no task", "kind": "outside a turn", "model": "unknown", "service": OF_DOTENV}
"""The texts for a value that is missing in the database, by the way in which costs are divided."""
_AMOUNT = re.compile(
    r"(?P<sign>\$?)(?P<number>\d[\d_]{0,20}(?:\.\d{1,9})?)(?P<unit>[kM]|usd|tokens|)", re.ASCII
)
_CENTS = re.compile(r"\A(\$?\d{1,15}),(\d{1,2})\Z", re.ASCII)
MAX_SHOWN = 40
"""Characters of a refused amount that its error repeats."""


NANO_USD = budget_sums.NANO
"""Billionths in a dollar."""
LEAST_NANO_USD = budget_sums.NANO // 100
"""The least budget of money, in billionths of a dollar: one cent, the least amount that is shown."""
LEAST_BARE_TOKENS = 10_000
"""The least number of tokens that is accepted without a unit: a person who writes 5 means dollars."""


class UsageCountsView(TypedDict):
    """Counts of answers and tokens; `cost_usd` is None where no price is known."""

    requests: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    unpriced: Annotated[int, "Answers of models without a known price."]
    assumed: Annotated[int, "Answers without a known price that count at the highest price of their family."]
    cut: Annotated[int, "Answers that broke off."]
    searches: Annotated[int, "Searches of the web."]
    cost_usd: float | None


class UsageView(UsageCountsView):
    """Counts for one value of the field that `by` names; the other fields of this kind are left out."""

    day: NotRequired[str]
    group: NotRequired[str]
    task: NotRequired[str]
    kind: NotRequired[str]
    model: NotRequired[str]
    agent: NotRequired[str]
    service: NotRequired[str]


class BudgetView(TypedDict):
    """A budget and how much of it is used; `amount` and `used` are tokens or dollars."""

    id: int
    group: str | None
    background: bool
    period: str
    unit: str
    amount: float
    used: float
    percent: int
    unpriced: int
    ends: str


class UsageDocumentView(TypedDict):
    """The usage of the model, summed up by the field that `by` names, and the used part of each budget."""

    by: str
    group: str | None
    rows: list[UsageView]
    total: UsageCountsView
    prices_as_of: str
    budgets: list[BudgetView]


class BadAmount(BadRequest):
    """The amount cannot be used."""

    code = "bad_amount"


class NoBudget(BadRequest):
    """There is no such budget."""

    def __init__(self, budget_id: int) -> None:
        self.number = budget_id
        super().__init__(f"There is no budget {budget_id}: see 'andy budget list'.")


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetAmount:
    """An amount of a budget: `value` tokens, or billionths of a dollar."""

    unit: Unit
    value: int


def parse_amount(text: str) -> BudgetAmount:
    """Return the amount of a budget that `200000`, `200k`, `2M`, `500tokens`, `5usd` or `$1.50` stands for.

    A number without a unit means tokens. `_` may divide its digits. A part of a token, or of a billionth of a
    dollar, is cut off.

    Raises:
        BadAmount: the text is no amount, or the amount is zero, less than a cent, or too large. Also for a
            small number without a unit: somebody who writes 5 means dollars.
    """
    match = _AMOUNT.fullmatch(text)
    text = text[:MAX_SHOWN]  # from here on only for the texts of errors
    is_money = match is not None and bool(match["sign"] or match["unit"] == "usd")
    # `$5k` and `$5tokens` are no amounts: a dollar sign goes with no unit but `usd`.
    if match is None or (match["sign"] and match["unit"] not in {"", "usd"}):
        raise BadAmount(f"'{text}' is no amount: write money as 5usd, tokens as 200000tokens.")
    factor = NANO_USD if is_money else {"k": 1000, "M": 1_000_000}.get(match["unit"], 1)
    # `Decimal`: as a float, an amount such as 2.01 would lose a billionth.
    value = int(Decimal(match["number"].replace("_", "")) * factor)
    if value == 0:
        raise BadAmount("A budget of nothing would stop every answer at once: set an amount, or none.")
    if is_money and value < LEAST_NANO_USD:
        raise BadAmount(f"'{text}' is less than one cent: set 0.01usd or more.")
    if not is_money and not match["unit"] and value < LEAST_BARE_TOKENS:
        raise BadAmount(f"'{text}' of what? Write money as {text}usd, tokens as {text}tokens.")
    # SQLite's integers end at 2**63.
    if value >= 2**62:
        raise BadAmount(f"'{text}' is more than can be counted.")
    return BudgetAmount(unit=Unit.USD if is_money else Unit.TOKENS, value=value)


def parse_amount_in(text: str, unit: Unit) -> BudgetAmount:
    """Return the amount of a text for which `unit` was chosen: `5`, `1.50` or `1,50` dollars, `2M` tokens.

    A text may also name the unit itself, which must then be the chosen one.

    Raises:
        BadAmount: the text is no amount, or names another unit; the amount is zero, too small or too large.
    """
    name, example = ("dollars", "5 or 1.50") if unit is Unit.USD else ("tokens", "200000, 200k or 2M")
    # Three digits after a comma may be thousands; one or two are cents.
    normalised = _CENTS.sub(r"\1.\2", text) if unit is Unit.USD else text
    # A text with a unit has it before or after the digits; `k` and `M` are units of tokens.
    has_no_unit = normalised[:1] != "$" and normalised[-1:].isdigit()
    suffix = "usd" if unit is Unit.USD else "tokens"
    with_unit = f"{normalised}{suffix}" if has_no_unit else normalised
    if _AMOUNT.fullmatch(with_unit) is None:
        raise BadAmount(f"'{text[:MAX_SHOWN]}' is not an amount of {name}: write a number such as {example}.")
    amount = parse_amount(with_unit)
    if amount.unit is not unit:
        raise BadAmount(f"'{text[:MAX_SHOWN]}' is not an amount of {name}: choose the other unit.")
    return amount


def parse_unit(text: str) -> Unit:
    """Return the unit of a budget that a program or a form names: `usd` or `tokens`. Raises `BadAmount`."""
    if text not in {*Unit}:
        raise BadAmount(f"'{text}' is no unit of a budget: choose usd or tokens.")
    return Unit(text)


def parse_period(text: str) -> Period:
    """Return the period of a budget that a program or a form names: `day` or `month`. Raises `BadAmount`."""
    if text not in {*Period}:
        raise BadAmount(f"'{text}' is no period of a budget: choose day or month.")
    return Period(text)


# Usage


async def usage(tx: Tx, folder: str | None, *, by: By, now_ms: int, zone: ZoneInfo) -> UsageDocumentView:
    """Return what was used of the model, one row for each value of `by`, and how much of each budget is used.

    `folder` is the group, None for all. Days are those of `zone`. Raises `UnknownGroup`.
    """
    known_folder = (await groups.known(tx, folder)).folder if folder is not None else None
    sums = await _by_day(tx, known_folder, zone) if by == "day" else await _by_column(tx, known_folder, by)
    total = sum(sums.values(), start=Sums())
    return {
        "by": by,
        "group": known_folder,
        "rows": [_usage_view(by, key, key_sums) for key, key_sums in sums.items()],
        "total": sums_row(total),
        "prices_as_of": AS_OF,  # the month in which the list prices were read
        "budgets": await budgets(tx, now_ms=now_ms, zone=zone, folder=known_folder),
    }


def _usage_view(by: By, key: str, sums: Sums) -> UsageView:
    """Return one row of usage: `key` as the value of the field `by`, such as `day`, and the counts."""
    return cast("UsageView", {by: key, **sums_row(sums)})


async def usage_today(tx: Tx, *, now_ms: int, zone: ZoneInfo) -> UsageView | None:
    """Return what all groups used of the model since midnight in `zone`; None where that is nothing."""
    today = local_midnight(now_ms, zone)
    start_ms = round(today.timestamp() * 1000)
    # `until_ms` is exclusive: one millisecond more includes the usage of this moment.
    (sums,) = await usage_store.summed_by_spans(tx, [start_ms], until_ms=now_ms + 1)
    return _usage_view("day", today.date().isoformat(), sums) if sums.requests else None


async def _by_day(tx: Tx, folder: Folder | None, zone: ZoneInfo) -> dict[str, Sums]:
    """Map each day of `zone` (`YYYY-MM-DD`) on which the model was used to what was used on it.

    `folder` is the group, None for all.
    """
    days: dict[str, Sums] = {}
    # Divided into days here, because SQLite knows no time zones.
    for at_ms, sums in (await usage_store.summed_by_time(tx, folder=folder)).items():
        day = datetime.fromtimestamp(at_ms / 1000, zone).date().isoformat()
        days[day] = days.get(day, Sums()) + sums
    return days


async def _by_column(tx: Tx, folder: Folder | None, by: By) -> dict[str, Sums]:
    """Map each value of the column that `by` names to what was used of the model under it.

    `folder` is the group, None for all. A value that is missing in the database is named in words. For
    `agent`, whose values are 0 and 1, the keys are "the agent itself" and "subagents".
    """
    sums_by_key = await usage_store.summed(tx, _COLUMNS[by], folder=folder)
    if by == "agent":
        return {_AGENT_BY_IS_SUBAGENT[key]: sums for key, sums in sums_by_key.items()}
    return {key if key is not None else _TEXTS_FOR_NULL[by]: sums for key, sums in sums_by_key.items()}


def sums_row(sums: Sums) -> UsageCountsView:
    """Return sums of usage as the API and `--json` show them.

    `assumed` counts requests with the price of another model, `cut` those whose answer broke off. `cost_usd`
    is None if there are requests, and the price of none is known.
    """
    is_unknown = sums.requests > 0 and sums.unpriced == sums.requests
    return {
        "requests": sums.requests,
        "input_tokens": sums.input_tokens,
        "output_tokens": sums.output_tokens,
        "cache_read_tokens": sums.cache_read_tokens,
        "cache_write_tokens": sums.cache_write_tokens,
        "searches": sums.searches,
        "unpriced": sums.unpriced,
        "assumed": sums.assumed,
        "cut": sums.cut,
        "cost_usd": None if is_unknown else sums.cost_nano_usd / NANO_USD,
    }


# The costs of a day, a week or a month, for the console

Span = Literal["day", "week", "month"]
K = TypeVar("K", bound=str | None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """The usage under one key: a day, a group, a model, a kind of turn."""

    key: str | None
    usd: float | None
    """None where no price is known."""
    tokens: int
    answers: int
    percent: float
    """The length of its bar: of the money of the dearest line, or of its tokens where nothing has a price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOverview:
    """The costs of a span, and of the other spans in one figure each."""

    figures: dict[Span, CostLine]
    total: UsageCountsView
    days: list[CostLine]
    """Each day of the span, the oldest first; days without use too."""
    groups: list[CostLine]
    models: list[CostLine]
    kinds: list[CostLine]
    others: list[CostLine]
    """The costs divided in the other way that was requested: by task, service, or agent and subagents."""


async def overview(
    tx: Tx, folder: str | None, *, span: Span, other: By | None = None, now_ms: int, zone: ZoneInfo
) -> CostOverview:
    """Return what the model cost today, this week or this month (`span`).

    The result also has one figure for each of the three spans. The costs of `span` are divided by day, from
    the oldest, and by group, model and kind of turn, from the dearest. `other` is one more way to divide
    them, for `others` of the result: "task", "service" or "agent" (the agent itself and subagents). For None
    or another way, `others` is one line without a key, for all costs, or empty if there are none. `folder` is
    the group, None for all. Days are those of `zone`; a week begins on Monday. Raises `UnknownGroup`.
    """
    known_folder = (await groups.known(tx, folder)).folder if folder is not None else None
    today = local_midnight(now_ms, zone)
    starts = {"day": today, "week": today - timedelta(days=today.weekday()), "month": today.replace(day=1)}
    first_day = min(starts.values())
    # The days are counted on the calendar of `zone`, and only then is the start of each turned into a moment:
    # a day on which the clocks change has 23 or 25 hours.
    days = [first_day + timedelta(days=number) for number in range((today - first_day).days + 1)]
    starts_ms = [round(day.timestamp() * 1000) for day in days]
    # `until_ms` is exclusive: one millisecond more includes the usage of this moment.
    until_ms = now_ms + 1
    sums = await usage_store.summed_by_spans(tx, starts_ms, until_ms=until_ms, folder=known_folder)
    by_day = dict(zip(days, sums, strict=True))
    parts = await usage_store.parts(
        tx,
        since_ms=round(starts[span].timestamp() * 1000),
        until_ms=until_ms,
        folder=known_folder,
        other=_COLUMNS[other] if other in _OTHERS else None,
    )
    in_span = {day.date().isoformat(): day_sums for day, day_sums in by_day.items() if day >= starts[span]}
    sums_by_span = {
        name: sum((day_sums for day, day_sums in by_day.items() if day >= start), start=Sums())
        for name, start in starts.items()
    }
    return CostOverview(
        # The keys of `sums_by_span` are those of `Span`, in its order, which `cost_lines` preserves.
        figures=dict(zip(get_args(Span), cost_lines(sums_by_span), strict=True)),
        total=sums_row(sums_by_span[span]),
        days=cost_lines(in_span),
        groups=_dearest(parts, lambda part: part.group),
        models=_dearest(parts, lambda part: part.model),
        kinds=_dearest(parts, lambda part: part.kind),
        others=_dearest(parts, lambda part: None if part.other is None else str(part.other)),
    )


def cost_lines(sums_by_key: Mapping[K, Sums]) -> list[CostLine]:
    """Return a line for each of the sums of usage, in their order. Pure.

    A line's percentage is its part of the largest line: of its cost, or of its tokens if nothing has a price.
    """
    money = {key: key_sums.cost_nano_usd for key, key_sums in sums_by_key.items()}
    measure = (
        money if any(money.values()) else {key: key_sums.tokens for key, key_sums in sums_by_key.items()}
    )
    largest = max(measure.values(), default=0) or 1  # not zero, by which nothing can be divided
    return [
        CostLine(
            key=key,
            usd=sums_row(key_sums)["cost_usd"],
            tokens=key_sums.tokens,
            answers=key_sums.requests,
            percent=round(100 * measure[key] / largest, 1),
        )
        for key, key_sums in sums_by_key.items()
    ]


def _dearest(parts: list[UsagePart], key_of: Callable[[UsagePart], str | None]) -> list[CostLine]:
    """Add up the parts of usage that have the same key, and return a line for each key, the dearest first.

    Where nothing has a price, the one with most tokens comes first. `key_of` returns the key of a part, such
    as its model; None if it has none.
    """
    sums_by_key: dict[str | None, Sums] = {}
    for part in parts:
        sums_by_key[key_of(part)] = sums_by_key.get(key_of(part), Sums()) + part.sums
    return sorted(cost_lines(sums_by_key), key=lambda line: (-line.percent, -line.tokens, line.key or ""))


def usage_lines(document: UsageDocumentView) -> list[str]:
    """Return the usage as a table for people, with notes about the costs, and the budgets below it."""
    if not document["rows"]:
        return ["The model was not asked yet.", *_budget_block(document["budgets"])]
    columns = (document["by"], "answers", "in", "out", "cache read", "cache written", "cost")
    # A row has its key under the name that `by` has, such as `day`.
    rows = [_usage_row(str(dict(row)[document["by"]]), row) for row in document["rows"]]
    lines = table(columns, [*rows, _usage_row("all", document["total"])])
    return [*lines, *_notes(document), *_budget_block(document["budgets"])]


def _usage_row(key: str, row: UsageCountsView) -> tuple[str, ...]:
    """Return the cells of one line of the table of usage; `key` is the first of them."""
    return (
        key,
        f"{row['requests']:,}",
        f"{row['input_tokens']:,}",
        f"{row['output_tokens']:,}",
        f"{row['cache_read_tokens']:,}",
        f"{row['cache_write_tokens']:,}",
        _cost(row),
    )


def _cost(row: UsageCountsView) -> str:
    """Return the cost of a row of usage in dollars as people read it, such as `$1.2000 + unknown`.

    `unknown` stands for answers of models without a known price.
    """
    if row["cost_usd"] is None:
        return "unknown"
    return f"${row['cost_usd']:,.4f}" + (" + unknown" if row["unpriced"] else "")


PRICE_HINT = "Set a price in ANDY_PRICES; it counts for what is asked from then on."


def _notes(document: UsageDocumentView) -> list[str]:
    """Return an empty line, and the lines that say how far the costs are known."""
    total = document["total"]
    notes = [f"Costs are estimates: ANDY_PRICES, else list prices of {document['prices_as_of']}."]
    if total["unpriced"]:
        answers = counted(total["unpriced"], "answer")
        notes.append(f"Left out, for the price of their model is not known: {answers}.")
    if total["assumed"]:
        answers = counted(total["assumed"], "answer")
        notes.append(
            f"Counted as the dearest of their family, for their model is not on the list: {answers}."
        )
    if total["unpriced"] or total["assumed"]:
        notes.append(PRICE_HINT)
    if total["searches"]:
        notes.append(f"The web was searched {counted(total['searches'], 'time')}: part of the cost.")
    if total["cut"]:
        notes.append(f"Broken off, and counted with what had come: {counted(total['cut'], 'answer')}.")
    return ["", *notes]


# Budgets


async def budgets(tx: Tx, *, now_ms: int, zone: ZoneInfo, folder: Folder | None = None) -> list[BudgetView]:
    """Return the budgets with how much of each is used, as the API and `--json` show them.

    With `folder`, only those that apply to that group. Days and months are those of `zone`.
    """
    # A budget without a folder applies to all groups together.
    applicable_budgets = [
        budget for budget in await budget_store.every(tx) if folder is None or budget.folder in (None, folder)
    ]
    return [
        {
            "id": standing.budget.id,
            "group": standing.budget.folder,
            "background": standing.budget.is_background,
            "period": standing.budget.period.value,
            "unit": standing.budget.unit.value,
            "amount": in_unit(standing.budget.unit, standing.budget.amount),
            "used": in_unit(standing.budget.unit, standing.used),
            "percent": standing.percent,
            "unpriced": standing.unpriced,
            "ends": local_iso(standing.span.end_ms, zone),
        }
        for standing in await budget_sums.all_standings(tx, applicable_budgets, now_ms=now_ms, zone=zone)
    ]


def in_unit(unit: Unit, value: int) -> float:
    """Return a stored amount of a budget, in tokens or billionths of a dollar, as tokens or dollars."""
    return value if unit is Unit.TOKENS else value / NANO_USD


def budget_lines(rows: list[BudgetView]) -> list[str]:
    """Return the budgets as a table for people."""
    if not rows:
        return ["There are no budgets: set one with 'andy budget set 5usd --per day'."]
    columns = ("id", "whose", "for", "limit", "used", "", "until")
    return table(columns, [_budget_row(row) for row in rows])


def _budget_row(row: BudgetView) -> tuple[str, ...]:
    """Return the cells of one line of the table of budgets."""
    state = "SPENT" if row["percent"] >= 100 else f"{row['percent']} %"
    unpriced = f" + {row['unpriced']} of unknown price" if row["unpriced"] else ""
    return (
        str(row["id"]),
        row["group"] or "all groups",
        f"{'background work' if row['background'] else 'everything'}, a {row['period']}",
        _amount(row["unit"], row["amount"]),
        _amount(row["unit"], row["used"]) + unpriced,
        state,
        f"{datetime.fromisoformat(row['ends']):%a %Y-%m-%d %H:%M}",
    )


def _amount(unit: str, value: float) -> str:
    """Return tokens or dollars as people read them: `200,000 tokens`, `$5.00`, `$0.1234`."""
    # Dollars have four decimals, or two where the last two are zero.
    return f"{value:,.0f} tokens" if unit == Unit.TOKENS else f"${value:,.4f}".removesuffix("00")


def _budget_block(rows: list[BudgetView]) -> list[str]:
    """Return the budgets under a heading, after an empty line; nothing where there are none."""
    return ["", "Budgets", *budget_lines(rows)] if rows else []


def amount_text(amount: BudgetAmount) -> str:
    """Return an amount as people read it: `$5.00` or `200,000 tokens`."""
    value = amount.value / NANO_USD if amount.unit == Unit.USD else amount.value
    return _amount(amount.unit, value)


def set_text(amount: BudgetAmount, *, period: Period, folder: str | None, is_background: bool) -> str:
    """Return the sentence that says which budget was set.

    `folder` is the group, None for all groups together. `is_background` says that the budget is only for work
    that nobody waits for.
    """
    target = f"'{folder}'" if folder is not None else "all groups together"
    purpose = ", for what nobody waits for" if is_background else ""
    return f"The budget is set: {amount_text(amount)} a {period} for {target}{purpose}."


async def is_spent_already(tx: Tx, budget: budget_store.Budget, *, now_ms: int, zone: ZoneInfo) -> bool:
    """Return whether a budget is used up already: at least its amount was used in its present period.

    Periods are those of `zone`.
    """
    (standing,) = await budget_sums.standings(tx, [budget], now_ms=now_ms, zone=zone)
    return standing.is_spent


async def set_budget(
    tx: Tx, amount: BudgetAmount, *, period: Period, folder: str | None, is_background: bool, now_ms: int
) -> None:
    """Set a budget in place of one for the same group, work, period and unit, and record it in the audit.

    `folder` is the group, None for all groups together. `is_background` says that the budget is only for work
    that nobody waits for. Raises `UnknownGroup`.
    """
    known_folder = (await groups.known(tx, folder)).folder if folder is not None else None
    budget = await budget_store.put(
        tx,
        folder=known_folder,
        is_background=is_background,
        period=period,
        unit=amount.unit,
        amount=amount.value,
        now_ms=now_ms,
    )
    await audit_store.append(
        tx,
        audit_store.AuditEvent(at_ms=now_ms, kind="budget.set", folder=known_folder, detail=asdict(budget)),
    )


async def budget(tx: Tx, budget_id: int) -> budget_store.Budget:
    """Return the budget with this id. Raises `NoBudget` if there is none."""
    stored = await budget_store.get(tx, budget_id)
    if stored is None:
        raise NoBudget(budget_id)
    return stored


async def change_budget(tx: Tx, existing: budget_store.Budget, amount: BudgetAmount, *, now_ms: int) -> None:
    """Change the amount of an existing budget, and nothing else of it, and record that in the audit."""
    await budget_store.change(tx, existing.id, amount.value, now_ms=now_ms)
    detail = asdict(replace(existing, amount=amount.value))
    await audit_store.append(
        tx, audit_store.AuditEvent(at_ms=now_ms, kind="budget.set", folder=existing.folder, detail=detail)
    )


async def remove_budget(tx: Tx, budget_id: int, *, now_ms: int) -> None:
    """Remove the budget with this id, and record that in the audit. Raises `NoBudget` if there is none."""
    if not await budget_store.remove(tx, budget_id):
        raise NoBudget(budget_id)
    await audit_store.append(
        tx, audit_store.AuditEvent(at_ms=now_ms, kind="budget.removed", detail={"id": budget_id})
    )
