"""Write a row of a dashboard: new, or changed if it is still the version that was read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from orchestrator.store.database import Tx


async def put(tx: Tx, table: str, row: Mapping[str, object], *, was: int | None) -> bool:
    """Write `row` by its column names; `was` is the version it had, None of a new one.

    False: it has another version by now, and nothing was written.
    """
    if was is None:
        await tx.execute(_insert(table, tuple(row)), row)
        return True
    cursor = await tx.execute(_update(table, tuple(row)), {**row, "was": was})
    return cursor.rowcount == 1


def read_json(text: str) -> Any:
    return {} if text == "{}" else [] if text == "[]" else json.loads(text)


@cache
def _insert(table: str, columns: tuple[str, ...]) -> str:
    places = ", ".join(f":{name}" for name in columns)
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})"  # noqa: S608 - our own names


@cache
def _update(table: str, columns: tuple[str, ...]) -> str:
    changed = ", ".join(f"{name} = :{name}" for name in columns if name not in ("group_folder", "id"))
    key = "group_folder = :group_folder AND id = :id AND version = :was"
    return f"UPDATE {table} SET {changed} WHERE {key}"  # noqa: S608 - our own names
