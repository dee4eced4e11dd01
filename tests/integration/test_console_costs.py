"""The console page Costs: three spans, bars with values, and budgets that are changed where they stand."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from orchestrator.base.clock import SystemClock
from orchestrator.home.directory import Home
from orchestrator.store.database import Tx
from orchestrator.store.money import budgets
from orchestrator.store.money.budgets import Budget
from orchestrator.store.reader import read_once
from orchestrator.web.console.pages.costs import proposed_amount
from tests.support.console_browser import console_browser, send_form, write_beside

pytestmark = pytest.mark.asyncio(loop_scope="module")
USED = """
    INSERT INTO usage (at_ms, group_folder, run_id, kind, model, input_tokens, output_tokens,
                       cache_read_tokens, cache_write_tokens, cost_nano_usd, is_whole)
    VALUES (?, ?, 'R', ?, ?, 900, 100, 0, 0, ?, 1)
"""
LONG_AGO_MS = 40 * 86_400_000


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("costs") / "home"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def of_module(root: Path) -> AsyncIterator[httpx.AsyncClient]:
    """One host for all tests, on whose model `work` spent most, and most of that by a worker."""
    async with console_browser(root) as made:
        now_ms = SystemClock().now_ms()
        rows = [
            (now_ms, "work", "worker", "claude-dear", 7_006_000_000),
            (now_ms, "family", "chat", "claude-cheap", 4_000_000),
            (now_ms - LONG_AGO_MS, "work", "chat", "claude-old", 999_000_000_000),
        ]
        await write_beside(Home(root), USED, rows=rows)
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def browser(of_module: httpx.AsyncClient, root: Path) -> httpx.AsyncClient:
    """The browser, with no budget left of another test."""
    await write_beside(Home(root), "DELETE FROM budgets")
    return of_module


def stored(root: Path) -> list[Budget]:
    async def read(tx: Tx) -> list[Budget]:
        return await budgets.every(tx)

    return read_once(Home(root).database, read)


def part_of(page: httpx.Response, title: str) -> str:
    """Return the words of one list of bars."""
    found = re.search(rf"<h2>{title}</h2>(.*?)</section>", page.text, re.DOTALL)
    assert found, page.text[-3000:]
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", found[1])))


@pytest.mark.parametrize("span", ["day", "week", "month", "", "no such"])
async def test_what_a_span_cost_stands_by_group_model_and_kind_the_dearest_first(browser, span):
    page = await browser.get(f"/console/costs?span={span}")
    assert page.status_code == 200
    assert re.findall(r'<strong class="figure">([^<]+)', page.text) == ["$7.01"] * 3
    by_group = part_of(page, "By group").casefold()
    assert by_group.index("work") < by_group.index("family")
    assert "$7.01" in by_group
    assert "< $0.01" in by_group, "less than a cent is said so"
    assert "claude-dear" in part_of(page, "By model")
    assert "The board's worker" in part_of(page, "By kind of work")
    assert "claude-old" not in page.text


@pytest.mark.parametrize("by", ["task", "service", "agent"])
async def test_other_ways_to_tell_costs_apart_are_one_link_away(browser, by):
    page = await browser.get("/console/costs")
    assert f"by={by}" in page.text
    assert "$7.01" in part_of(await browser.get(f"/console/costs?by={by}"), f"by {by}[^<]*")


async def add(browser: httpx.AsyncClient, **fields: str) -> httpx.Response:
    given = {"amount": "50", "unit": "usd", "period": "day", "whose": "work"} | fields
    return await send_form(browser, "/costs/budgets", of="/costs", **given)


async def test_a_budget_that_is_raised_stays_that_budget(browser, root):
    await add(browser, amount="5", sure="yes")
    (before,) = stored(root)
    page = await browser.get("/console/costs")
    assert "Raise" in page.text
    assert 'value="10.00"' in page.text, "twice the amount is proposed"
    refused = await send_form(browser, f"/costs/budgets/{before.id}/change", of="/costs", amount="6")
    assert refused.status_code == 422
    assert "This stops Work at once" in unescape(refused.text)
    assert stored(root) == [before]

    await send_form(browser, f"/costs/budgets/{before.id}/change", of="/costs", amount="20")
    (after,) = stored(root)
    assert (after.id, after.amount, after.unit) == (before.id, 20_000_000_000, before.unit)
    assert "Raise" not in (await browser.get("/console/costs")).text


async def test_a_second_budget_for_the_same_is_refused_in_whatever_unit(browser, root):
    await add(browser)
    for unit, amount in (("usd", "60"), ("tokens", "9M")):
        page = await add(browser, unit=unit, amount=amount)
        assert page.status_code == 422
        assert "Change that one" in page.text
    assert len(stored(root)) == 1
    await add(browser, period="month")
    await add(browser, background="yes")
    assert len(stored(root)) == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"amount": "0"},
        {"amount": "0usd"},
        {"amount": "1" * 400},
        {"amount": "٥"},
        {"amount": "200k"},
        {"unit": "euro"},
        {"unit": ""},
        {"period": "year"},
        {"whose": "nobody"},
        {"amount": "-5"},
        {"amount": "1,000"},
    ],
)
async def test_what_is_no_budget_is_shown_again_with_what_was_typed(browser, root, fields):
    page = await add(browser, **fields)
    assert page.status_code == 422
    assert 'role="alert"' in page.text
    assert stored(root) == []


async def test_cents_may_stand_behind_a_comma_and_a_refusal_repeats_what_was_typed(browser, root):
    page = await add(browser, amount="five" + "!" * 200)
    assert "is not an amount of dollars: write a number such as 5 or 1.50." in unescape(page.text)
    assert "five" + "!" * 36 + "'" in unescape(page.text)
    assert "usd" not in unescape(page.text).partition('id="outcome"')[2].partition("</p>")[0]
    await add(browser, amount="50,50")
    (budget,) = stored(root)
    assert budget.amount == 50_500_000_000
    page = await send_form(browser, f"/costs/budgets/{budget.id}/change", of="/costs", amount="much")
    assert page.status_code == 422
    assert "New budget" in page.text, "the form of a new one stays"


async def test_of_two_who_change_a_budget_the_second_is_shown_both_states(browser, root):
    await add(browser)
    (budget,) = stored(root)
    page = await browser.get("/console/costs")
    seen = unescape(re.findall(r'name="_seen" value="([^"]+)"', page.text)[-1])
    path = f"/costs/budgets/{budget.id}/change"
    await send_form(browser, path, of="/costs", amount="60")
    refused = await send_form(browser, path, of="/costs", amount="70", _seen=seen)
    assert refused.status_code == 409
    assert stored(root)[0].amount == 60_000_000_000
    gone = await send_form(browser, "/costs/budgets/999/change", of="/costs", amount="70", _seen=seen)
    assert gone.status_code == 422


async def test_what_is_proposed_for_a_spent_budget_is_more_than_is_used():
    spent = {"amount": 5.0, "used": 21.0, "percent": 420, "unit": "usd"}
    assert proposed_amount(spent) == "40.00"
    assert proposed_amount({"amount": 1000, "used": 10, "percent": 1, "unit": "tokens"}) == "1000"
