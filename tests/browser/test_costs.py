"""What the model cost, and what it may cost, is seen and set in the browser."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.signed_in import Visit, assert_accessible
from tests.processes.andy import AndyProcess


def test_a_budget_is_set_seen_and_removed(visitor: Visit, andy: AndyProcess) -> None:
    visitor.allowed.append("422")
    page = visitor.page
    page.goto(f"{andy.address}/console/costs")
    expect(page.get_by_text("The model was not asked this week.")).to_be_visible()
    page.locator("summary", has_text="New budget").click()
    page.get_by_label("Amount").fill("a lot")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("'a lot' is not an amount of dollars")).to_be_visible()

    page.get_by_label("Amount").fill("5")
    page.get_by_role("button", name="Save").click()

    expect(page.get_by_text("The budget is set: ")).to_be_visible()
    expect(page.get_by_text("$0.00 of $5.00")).to_be_visible()
    assert_accessible(page)
    assert len(andy.listed("budget", "list")) == 1

    page.locator("summary", has_text="Remove").click()
    page.get_by_role("button", name="Remove").click()
    expect(page.get_by_text("There is no budget")).to_be_visible()
    assert andy.listed("budget", "list") == []


USED = """
    INSERT INTO usage (at_ms, group_folder, run_id, input_tokens, output_tokens, cache_read_tokens,
                       cache_write_tokens, is_whole)
    VALUES (?, 'main', 'run-1', 900, 100, 0, 0, 1)
"""
"""An answer of the model, charged to main."""


def budget_form(page: Page) -> Locator:
    if not page.get_by_label("Unit").is_visible():
        page.locator("summary", has_text="New budget").click()
    return page.locator("form[action$='/costs/budgets']")


@pytest.mark.parametrize(
    ("amount", "said"), [("0", "stop every answer"), ("200k", "not an amount of dollars")]
)
def test_an_amount_that_is_nothing_or_of_another_unit_is_refused(
    visitor: Visit, andy: AndyProcess, amount: str, said: str
) -> None:
    visitor.allowed.append("422")
    page = visitor.page
    page.goto(f"{andy.address}/console/costs")
    budget_form(page).get_by_label("Amount").fill(amount)
    budget_form(page).get_by_role("button", name="Save").click()
    expect(page.get_by_text(said)).to_be_visible()
    expect(budget_form(page).get_by_label("Amount")).to_have_value(amount)
    assert andy.listed("budget", "list") == []


def test_a_budget_that_is_spent_already_is_set_after_a_second_word_and_raised_where_it_stands(
    visitor: Visit, andy: AndyProcess
) -> None:
    visitor.allowed.append("422")
    page = visitor.page
    with closing(sqlite3.connect(andy.home / "store" / "messages.db", isolation_level=None)) as store:
        store.execute(USED, (int(time.time() * 1000),))
    page.goto(f"{andy.address}/console/costs")
    form = budget_form(page)
    form.get_by_label("Unit").select_option("tokens")
    form.get_by_label("Amount").fill("5")
    form.get_by_label("Whose").select_option("main")
    form.get_by_role("button", name="Save").click()
    expect(page.get_by_text("at once: more than that is used already")).to_be_visible()
    expect(form.get_by_label("Unit")).to_have_value("tokens")
    assert andy.listed("budget", "list") == []
    assert_accessible(page)

    page.get_by_role("button", name="Set it all the same").click()
    (budget,) = andy.listed("budget", "list")
    assert (budget["unit"], budget["amount"], budget["group"]) == ("tokens", 5, "main")
    expect(page.locator("meter.spent")).to_be_visible()

    page.get_by_label("Raise to, in tokens").fill("2M")
    assert_accessible(page)
    page.get_by_role("button", name="Raise").click()
    expect(page.get_by_text("The budget is set: 2,000,000 tokens.")).to_be_visible()
    (raised,) = andy.listed("budget", "list")
    assert (raised["id"], raised["amount"]) == (budget["id"], 2_000_000)
