from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.values import Folder
from orchestrator.proxies.model.budget_sums import (
    BudgetAccount,
    BudgetPeriod,
    BudgetStanding,
    amount_in_words,
    concerns,
    span_of,
    stops,
    warning_of,
)
from orchestrator.store.money.budgets import Budget, Period, Unit

SEOUL, BERLIN = ZoneInfo("Asia/Seoul"), ZoneInfo("Europe/Berlin")


def ms(text: str, zone: ZoneInfo) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp() * 1000)


def budget(folder: str | None = None, **changes: object) -> Budget:
    fields: dict[str, object] = {
        "id": 1,
        "folder": folder,
        "is_background": False,
        "period": Period.DAY,
        "unit": Unit.TOKENS,
        "amount": 1000,
    }
    return Budget(**{**fields, **changes})  # type: ignore[arg-type]


def asker(folder: str, *, is_background: bool = False) -> BudgetAccount:
    return BudgetAccount(folder=Folder(folder), is_main=folder == "main", is_background=is_background)


def standing(used: int, **changes: object) -> BudgetStanding:
    day = span_of(Period.DAY, ms("2026-11-22T12:00", SEOUL), SEOUL)
    return BudgetStanding(budget=budget(**changes), span=day, used=used, unpriced=0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("period", "now", "zone", "start", "end"),
    [
        (Period.DAY, "2026-11-22T00:00", SEOUL, "2026-11-22", "2026-11-23"),
        (Period.DAY, "2026-11-22T23:59:59", SEOUL, "2026-11-22", "2026-11-23"),
        (Period.DAY, "2026-10-25T12:00", BERLIN, "2026-10-25", "2026-10-26"),
        (Period.DAY, "2026-03-29T12:00", BERLIN, "2026-03-29", "2026-03-30"),
        (Period.MONTH, "2026-12-31T23:00", BERLIN, "2026-12-01", "2027-01-01"),
        (Period.MONTH, "2026-02-01T00:00", BERLIN, "2026-02-01", "2026-03-01"),
    ],
)
def test_a_period_is_the_owners_day_or_month(
    period: Period, now: str, zone: ZoneInfo, start: str, end: str
) -> None:
    assert span_of(period, ms(now, zone), zone) == BudgetPeriod(
        start_ms=ms(start, zone), end_ms=ms(end, zone)
    )


@pytest.mark.parametrize(
    ("zone", "first", "period"),
    [
        ("Atlantic/Azores", "2026-10-25T00:00Z", Period.DAY),
        ("America/Havana", "2026-11-01T04:00Z", Period.DAY),
        ("America/Havana", "2026-11-01T04:00Z", Period.MONTH),
    ],
)
def test_a_day_whose_first_hour_comes_twice_begins_with_the_first_of_them(
    zone: str, first: str, period: Period
) -> None:
    first_ms = round(datetime.fromisoformat(first).timestamp() * 1000)
    starts = {
        span_of(period, first_ms + minutes * 60_000, ZoneInfo(zone)).start_ms for minutes in (0, 30, 90, 150)
    }
    assert starts == {first_ms}


def test_a_day_begins_at_its_first_millisecond_whichever_one_is_asked_about() -> None:
    noon = ms("2026-11-22T12:00", SEOUL)
    assert span_of(Period.DAY, noon + 123, SEOUL) == span_of(Period.DAY, noon, SEOUL)
    assert span_of(Period.DAY, noon, SEOUL).start_ms == ms("2026-11-22", SEOUL)


@given(st.integers(0, 4_000_000_000_000), st.sampled_from(Period), st.sampled_from([SEOUL, BERLIN]))
def test_every_moment_lies_in_its_period_and_periods_join(
    now_ms: int, period: Period, zone: ZoneInfo
) -> None:
    span = span_of(period, now_ms, zone)
    assert span.start_ms <= now_ms < span.end_ms
    assert span_of(period, span.end_ms, zone).start_ms == span.end_ms


@pytest.mark.parametrize(
    ("budget", "asker", "is_counted", "is_stopped"),
    [
        (budget("family"), asker("family"), True, True),
        (budget("family"), asker("work"), False, False),
        (budget("family"), asker("family", is_background=True), True, True),
        (budget(None), asker("family"), True, True),
        (budget(None), asker("main"), True, False),
        (budget(None), asker("main", is_background=True), True, True),
        (budget("main"), asker("main"), True, True),
        (budget(None, is_background=True), asker("family"), False, False),
        (budget(None, is_background=True), asker("family", is_background=True), True, True),
        (budget("family", is_background=True), asker("family"), False, False),
    ],
)
def test_who_is_counted_and_who_is_stopped(
    budget: Budget, asker: BudgetAccount, is_counted: bool, is_stopped: bool
) -> None:
    assert (concerns(budget, asker), stops(budget, asker)) == (is_counted, is_stopped)


def test_a_notice_comes_at_80_and_at_100_percent() -> None:
    assert warning_of(standing(799), SEOUL) is None
    assert warning_of(standing(800), SEOUL) == (
        "⚠️ 80 % of the budget of all groups for today is used (1,000 tokens)."
    )
    assert warning_of(standing(1000, folder="family"), SEOUL) == (
        "⚠️ The budget of family for today is spent (1,000 tokens). I ask the model no more until"
        " Mon 2026-11-23 00:00."
    )
    monthly = str(warning_of(standing(1000, is_background=True, period=Period.MONTH), SEOUL))
    assert "The budget of all groups for background work for this month is spent (1,000 tokens)." in monthly
    assert "Background work rests until" in monthly


def test_a_budget_of_nothing_is_spent_at_once() -> None:
    assert standing(0, amount=0).is_spent
    assert standing(0, amount=0).percent == 100


@pytest.mark.parametrize(
    ("unit", "amount", "text"),
    [
        (Unit.TOKENS, 1_234_567, "1,234,567 tokens"),
        (Unit.USD, 1_500_000_000, "$1.50"),
        (Unit.USD, 1_001_234_567, "$1.00"),
        (Unit.USD, 999_900_000, "$0.9999"),
        (Unit.USD, 50_000_000, "$0.05"),
        (Unit.USD, 1_234_567, "$0.0012"),
        (Unit.USD, 0, "$0.00"),
    ],
)
def test_amounts_are_told_in_words(unit: Unit, amount: int, text: str) -> None:
    assert amount_in_words(unit, amount) == text
