"""What the model cost, and what it may cost, is seen and set in the browser."""

from __future__ import annotations

from datetime import date

from playwright.sync_api import expect

from orchestrator.web.console.pages.costs import bars
from tests.browser.signed_in import Visit, assert_accessible
from tests.processes.andy import AndyProcess


def test_a_budget_is_set_seen_and_removed(visitor: Visit, andy: AndyProcess) -> None:
    visitor.allowed.append("422")
    page = visitor.page
    page.goto(f"{andy.address}/console/costs")
    expect(page.get_by_text("The model was not asked yet.")).to_be_visible()
    page.get_by_label("Amount").fill("a lot")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("'a lot' is no amount")).to_be_visible()

    page.get_by_label("Amount").fill("5usd")
    page.get_by_role("button", name="Save").click()

    expect(page.get_by_text("The budget is set: ")).to_be_visible()
    expect(page.get_by_role("cell", name="$5.00")).to_be_visible()
    assert_accessible(page)
    assert len(andy.listed("budget", "list")) == 1

    page.locator("summary", has_text="Remove").click()
    page.get_by_role("button", name="Remove").click()
    expect(page.get_by_text("There is no budget")).to_be_visible()
    assert andy.listed("budget", "list") == []


def test_the_highest_bar_fills_the_chart_and_a_day_without_use_is_flat() -> None:
    rows = [
        {"day": "2026-11-21", "cost_usd": 1.0, "input_tokens": 10},
        {"day": "2026-11-22", "cost_usd": 4.0, "input_tokens": 5},
    ]

    shown = bars(rows, until=date(2026, 11, 23), days=3)

    assert [(one.day, one.height, one.y) for one in shown] == [
        ("2026-11-21", 25.0, 75.0),
        ("2026-11-22", 100.0, 0.0),
        ("2026-11-23", 0.0, 100.0),
    ]
