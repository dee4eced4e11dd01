"""`budgets`: limits on the use of the model service, by group and by day or month."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from orchestrator.domain.values import Folder
from orchestrator.store.database import Tx, returned

ALL_GROUPS = "*"
"""The name that means all groups; no folder can have it."""


class Period(StrEnum):
    DAY = "day"
    MONTH = "month"


class Unit(StrEnum):
    TOKENS = "tokens"
    USD = "usd"
    """Counted in billionths of a dollar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A limit of `amount` of `unit` in each `period`; for all groups together when `folder` is None.

    With `is_background` it counts and limits only turns that nobody waits for: tasks, the worker, cycles of
    loops.
    """

    id: int
    folder: Folder | None
    is_background: bool
    period: Period
    unit: Unit
    amount: int


AS_JSON = """
    (SELECT json_group_array(json_object(
         'id', id, 'group_folder', group_folder, 'is_background', is_background, 'period', period,
         'unit', unit, 'amount', amount)) FROM budgets)
"""
"""All budgets as one JSON value, for a statement that runs at each request."""


def from_json(text: str) -> tuple[Budget, ...]:
    """Return the budgets from the JSON text that the SQL expression `AS_JSON` selects."""
    return tuple(_from_row(row) for row in json.loads(text))


async def put(
    tx: Tx,
    *,
    folder: Folder | None,
    is_background: bool,
    period: Period,
    unit: Unit,
    amount: int,
    now_ms: int,
) -> Budget:
    """Set a budget and return it; it replaces one with the same group, kind of work, period and unit.

    `folder` None means all groups together. `is_background` says that it counts and limits only turns that
    nobody waits for. `amount` is in `unit`; dollars are counted in billionths.
    """
    cursor = await tx.execute(
        """
        INSERT INTO budgets (group_folder, is_background, period, unit, amount, set_ms)
        VALUES (?, ?, ?, ?, ?, ?)
        ON CONFLICT (group_folder, is_background, period, unit)
        DO UPDATE SET amount = excluded.amount, set_ms = excluded.set_ms
        RETURNING *
        """,
        (folder or ALL_GROUPS, is_background, period, unit, amount, now_ms),
    )
    return _from_row(await returned(cursor))


async def get(tx: Tx, budget_id: int) -> Budget | None:
    """Return the budget with this id, or None."""
    rows = await tx.execute_fetchall("SELECT * FROM budgets WHERE id = ?", (budget_id,))
    return next((_from_row(row) for row in rows), None)


async def change(tx: Tx, budget_id: int, amount: int, *, now_ms: int) -> None:
    """Set another amount of a budget, in the budget's own unit."""
    await tx.execute("UPDATE budgets SET amount = ?, set_ms = ? WHERE id = ?", (amount, now_ms, budget_id))


async def remove(tx: Tx, budget_id: int) -> bool:
    """Delete a budget and return whether there was one."""
    cursor = await tx.execute("DELETE FROM budgets WHERE id = ?", (budget_id,))
    return cursor.rowcount == 1


async def every(tx: Tx) -> list[Budget]:
    """Return all budgets, ordered by group."""
    rows = await tx.execute_fetchall("SELECT * FROM budgets ORDER BY group_folder, is_background, id")
    return [_from_row(row) for row in rows]


def _from_row(row: sqlite3.Row | Mapping[str, Any]) -> Budget:
    """Return the budget that a row of the table stores, or one object of the JSON from `AS_JSON`."""
    folder = row["group_folder"]
    return Budget(
        id=row["id"],
        folder=None if folder == ALL_GROUPS else Folder(folder),
        is_background=bool(row["is_background"]),
        period=Period(row["period"]),
        unit=Unit(row["unit"]),
        amount=row["amount"],
    )
