"""`worker_cycles` and `question_lists`: what upkeep did, and under which numbers people were asked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.domain.values import Folder
from orchestrator.store.database import Tx, returned


async def begin(
    tx: Tx,
    folder: Folder,
    kind: str,
    *,
    trigger: Mapping[str, Any],
    turn_id: int | None = None,
    now_ms: int,
) -> int:
    """Write a cycle that begins (`rules` or `llm`) and return its number."""
    cursor = await tx.execute(
        """
        INSERT INTO worker_cycles (group_folder, kind, trigger_json, turn_id, started_ms)
        VALUES (?, ?, ?, ?, ?) RETURNING id
        """,
        (folder, kind, json.dumps(dict(trigger), ensure_ascii=False), turn_id, now_ms),
    )
    return int((await returned(cursor))["id"])


async def end(
    tx: Tx,
    cycle_id: int,
    outcome: str,
    *,
    detail: Mapping[str, Any],
    error: str | None = None,
    now_ms: int,
) -> None:
    await tx.execute(
        "UPDATE worker_cycles SET ended_ms = ?, outcome = ?, detail_json = ?, error = ? WHERE id = ?",
        (now_ms, outcome, json.dumps(dict(detail), ensure_ascii=False), error, cycle_id),
    )


async def newest(tx: Tx, folder: Folder, *, limit: int) -> list[dict[str, Any]]:
    """The cycles of a group by column name, the newest first."""
    rows = await tx.execute_fetchall(
        "SELECT * FROM worker_cycles WHERE group_folder = ? ORDER BY id DESC LIMIT ?", (folder, limit)
    )
    return [dict(row) for row in rows]


async def note_list(tx: Tx, folder: Folder, ids: Sequence[str], *, now_ms: int) -> None:
    """People were told these questions as 1, 2, …"""
    await tx.execute(
        "INSERT INTO question_lists (group_folder, ids_json, told_ms) VALUES (?, ?, ?)",
        (folder, json.dumps(list(ids)), now_ms),
    )


async def listed(tx: Tx, folder: Folder, *, since_ms: int) -> tuple[str, ...]:
    """The question ids of the newest list, if it was told since then and is unused; else none."""
    cursor = await tx.execute(
        """
        SELECT ids_json, told_ms, used_ms FROM question_lists
        WHERE group_folder = ? ORDER BY id DESC LIMIT 1
        """,
        (folder,),
    )
    row = await cursor.fetchone()
    if row is None or row["used_ms"] is not None or row["told_ms"] < since_ms:
        return ()
    return tuple(json.loads(row["ids_json"]))


async def use_list(tx: Tx, folder: Folder, *, now_ms: int) -> None:
    await tx.execute(
        "UPDATE question_lists SET used_ms = ? WHERE group_folder = ? AND used_ms IS NULL", (now_ms, folder)
    )
