from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from orchestrator.domain.errors import BadTime, UnknownGroup
from orchestrator.domain.values import Folder, RunId, TurnId, TurnKind
from orchestrator.reports import costs
from orchestrator.reports.since import since_ms
from orchestrator.store.money import usage
from orchestrator.store.money.budgets import Period, Unit
from tests.support.store_harness import StoreHarness

SEOUL, KABUL, UTC = ZoneInfo("Asia/Seoul"), ZoneInfo("Asia/Kabul"), ZoneInfo("UTC")
NOON_MS = round(datetime(2026, 11, 22, 12, tzinfo=SEOUL).timestamp() * 1000)
HOUR_MS = 3_600_000


def an_entry(**changes: Any) -> usage.UsageEntry:
    fields: dict[str, Any] = {
        "at_ms": NOON_MS,
        "folder": Folder("family"),
        "run_id": RunId("r"),
        "turn_id": TurnId(1),
        "kind": TurnKind.CHAT,
        "task_id": None,
        "model": "claude-sonnet-4-5",
        "input_tokens": 10,
        "output_tokens": 20,
        "cache_read_tokens": 30,
        "cache_write_tokens": 40,
        "cost_nano_usd": 1_000_000,
        "is_whole": True,
    }
    return usage.UsageEntry(**{**fields, **changes})


async def used(store_harness: StoreHarness, *entries: usage.UsageEntry) -> None:
    await store_harness.add_group("main", is_main=True)
    await store_harness.add_group()
    async with store_harness.database.transaction() as tx:
        for entry in entries:
            await usage.add(tx, entry)


async def told(
    store_harness: StoreHarness, by: costs.By, group: str | None = None, zone: ZoneInfo = SEOUL
) -> dict[str, Any]:
    async with store_harness.database.reading() as tx:
        return await costs.usage(tx, group, by=by, now_ms=NOON_MS, zone=zone)


@pytest.mark.parametrize(
    ("zone", "days"),
    [
        (SEOUL, {"2026-11-22": 2, "2026-11-23": 1}),
        (UTC, {"2026-11-22": 3}),
        (KABUL, {"2026-11-22": 3}),
    ],
)
async def test_a_day_is_one_of_the_owners_zone(
    store_harness: StoreHarness, zone: ZoneInfo, days: dict[str, int]
) -> None:
    late = [an_entry(at_ms=NOON_MS + hours * HOUR_MS) for hours in (0, 11.9, 12)]
    await used(store_harness, *late)
    found = await told(store_harness, "day", zone=zone)
    assert {row["day"]: row["requests"] for row in found["rows"]} == days


async def test_usage_is_told_by_group_task_kind_and_model(store_harness: StoreHarness) -> None:
    await used(
        store_harness,
        an_entry(),
        an_entry(folder=Folder("main"), kind=TurnKind.TASK, task_id="t-1"),
        an_entry(kind=None, turn_id=None, model="glm", cost_nano_usd=None, is_whole=False, is_subagent=True),
    )
    by_agent = (await told(store_harness, "agent"))["rows"]
    assert [(row["agent"], row["requests"]) for row in by_agent] == [
        ("the agent itself", 2),
        ("subagents", 1),
    ]
    by_group = (await told(store_harness, "group"))["rows"]
    assert [(row["group"], row["requests"], row["cost_usd"]) for row in by_group] == [
        ("family", 2, 0.001),
        ("main", 1, 0.001),
    ]
    assert [row["task"] for row in (await told(store_harness, "task"))["rows"]] == ["no task", "t-1"]
    assert [row["kind"] for row in (await told(store_harness, "kind"))["rows"]] == [
        "outside a turn",
        "chat",
        "task",
    ]
    by_model = {row["model"]: row["cost_usd"] for row in (await told(store_harness, "model"))["rows"]}
    assert by_model == {"claude-sonnet-4-5": 0.002, "glm": None}


async def test_one_group_is_told_alone_and_the_total_adds_up(store_harness: StoreHarness) -> None:
    await used(store_harness, an_entry(), an_entry(), an_entry(folder=Folder("main")))
    found = await told(store_harness, "day", "family")
    assert found["total"]["requests"] == 2
    assert found["total"]["cache_write_tokens"] == 80
    with pytest.raises(UnknownGroup):
        await told(store_harness, "day", "nobody")


async def test_what_is_not_known_is_said(store_harness: StoreHarness) -> None:
    await used(store_harness, an_entry(), an_entry(cost_nano_usd=None, is_whole=False))
    text = "\n".join(costs.usage_lines(await told(store_harness, "group")))
    assert "$0.0010 + unknown" in text
    assert "Left out, for the price of their model is not known: 1 answer." in text
    assert "Broken off, and counted with what had come: 1 answer." in text


async def test_a_price_that_is_assumed_is_said(store_harness: StoreHarness) -> None:
    assumed = an_entry(model="claude-opus-9", is_assumed=True)
    await used(store_harness, an_entry(), assumed, an_entry(cost_nano_usd=None))
    text = "\n".join(costs.usage_lines(await told(store_harness, "group")))
    assert "$0.0020" in text
    assert "Counted as the dearest of their family, for their model is not on the list: 1 answer." in text
    assert text.count(costs.PRICE_HINT) == 1


BUDGET_ROWS = "SELECT kind FROM audit WHERE kind LIKE 'budget.%'"


async def test_budgets_are_listed_with_what_is_used(store_harness: StoreHarness) -> None:
    await used(store_harness, an_entry(), an_entry(kind=TurnKind.TASK, cost_nano_usd=None))
    async with store_harness.database.transaction() as tx:
        for text, is_background in (("150tokens", False), ("1usd", False), ("1k", True)):
            await costs.set_budget(
                tx,
                costs.parse_amount(text),
                period=Period.DAY,
                folder="family",
                is_background=is_background,
                now_ms=NOON_MS,
            )
        rows = await costs.budgets(tx, now_ms=NOON_MS, zone=SEOUL)
    assert [(row["used"], row["percent"], row["unpriced"]) for row in rows] == [
        (200, 133, 0),
        (0.001, 0, 1),
        (100, 10, 0),
    ]
    assert {row["ends"] for row in rows} == {"2026-11-23T00:00:00+09:00"}
    lines = costs.budget_lines(rows)
    assert "SPENT" in lines[1]
    assert "$0.001 + 1 of unknown price" in lines[2].replace("$0.0010", "$0.001")
    assert [row["kind"] for row in await store_harness.rows(BUDGET_ROWS)] == ["budget.set"] * 3


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("200000", Unit.TOKENS, 200_000),
        ("200_000", Unit.TOKENS, 200_000),
        ("200k", Unit.TOKENS, 200_000),
        ("1.5M", Unit.TOKENS, 1_500_000),
        ("500tokens", Unit.TOKENS, 500),
        ("5usd", Unit.USD, 5_000_000_000),
        ("$1.50", Unit.USD, 1_500_000_000),
        ("0.01usd", Unit.USD, 10_000_000),
    ],
)
def test_amounts_are_read(text: str, unit: Unit, value: int) -> None:
    assert costs.parse_amount(text) == costs.BudgetAmount(unit=unit, value=value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "5eur",
        "$5k",
        "1.2.3",
        "k",
        "1e9",
        "٣",
        "9" * 20,
        "5 usd",
        "nan",
        "5",
        "9999",
        "0",
        "0usd",
        "0.0000001usd",
        "$0.009",
        "0tokens",
    ],
)
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(costs.BadAmount):
        costs.parse_amount(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("usd5", "'usd5' is no amount: write money as 5usd, tokens as 200000tokens."),
        ("5", "'5' of what? Write money as 5usd, tokens as 5tokens."),
    ],
)
def test_an_amount_is_refused_with_its_number_before_its_unit(text: str, told: str) -> None:
    with pytest.raises(costs.BadAmount) as refused:
        costs.parse_amount(text)
    assert str(refused.value) == told


def test_less_than_one_cent_is_refused_with_the_least_amount() -> None:
    with pytest.raises(costs.BadAmount, match=r"less than one cent: set 0\.01usd or more"):
        costs.parse_amount("0.0000001usd")


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        (None, 0),
        ("2h", NOON_MS - 2 * HOUR_MS),
        ("1d", NOON_MS - 24 * HOUR_MS),
        ("2026-11-22T11:00", NOON_MS - HOUR_MS),
        ("2026-11-22T11:00+00:00", NOON_MS + 8 * HOUR_MS),
        ("2026-11-22", NOON_MS - 12 * HOUR_MS),
    ],
)
def test_times_are_read(text: str | None, at_ms: int) -> None:
    assert since_ms(text, now_ms=NOON_MS, zone=SEOUL) == at_ms


@pytest.mark.parametrize("text", ["", "yesterday", "1x", "-1h", "2026-13-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(BadTime):
        since_ms(text, now_ms=NOON_MS, zone=SEOUL)


async def test_sums_beyond_what_the_database_adds_up_are_bounded_and_readable(
    store_harness: StoreHarness,
) -> None:
    absurd = 2**62  # a service may report anything, and many such answers together
    await used(
        store_harness,
        *(
            an_entry(
                cost_nano_usd=absurd,
                **dict.fromkeys(
                    ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"), absurd
                ),
            )
            for _ in range(3)
        ),
        an_entry(at_ms=NOON_MS - 2 * HOUR_MS, cost_nano_usd=2**53 - 1),
    )
    async with store_harness.database.reading() as tx:
        sums = await usage.spent(
            tx, folder=Folder("family"), since_ms=NOON_MS, until_ms=NOON_MS + 1, only_background=False
        )
        earlier = await usage.summed_by_spans(tx, [NOON_MS - 3 * HOUR_MS], until_ms=NOON_MS)
    assert sums.cost_nano_usd == sums.input_tokens == sums.output_tokens == 2**63 - 1
    assert earlier[0].cost_nano_usd == 2**53 - 1, "what a person may spend is exact"
    assert earlier[0].tokens == 100
    assert (await told(store_harness, "group"))["rows"]


async def test_usage_of_a_clock_that_was_ahead_counts_in_no_present_period(
    store_harness: StoreHarness,
) -> None:
    await used(store_harness, an_entry(), an_entry(at_ms=NOON_MS + 400 * 24 * HOUR_MS))
    async with store_harness.database.transaction() as tx:
        for period in Period:
            amount = costs.parse_amount("200tokens")
            await costs.set_budget(
                tx, amount, period=period, folder="family", is_background=False, now_ms=NOON_MS
            )
        rows = await costs.budgets(tx, now_ms=NOON_MS, zone=SEOUL)
        overview = await costs.overview(tx, None, span="month", now_ms=NOON_MS, zone=SEOUL)
    assert [row["used"] for row in rows] == [100, 100]
    assert [(line.key, line.tokens) for line in overview.groups] == [("family", 100)]
    assert overview.total["requests"] == 1
