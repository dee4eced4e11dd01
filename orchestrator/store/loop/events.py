"""`events`: the events of loops, each written in the transaction that caused it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.store.database import Tx, returned
from orchestrator.store.row_mapper import Json, RowMapper

MAX_EVENTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEvent:
    """A committed event: ids and numbers, never the text of a message."""

    seq: int
    at_ms: int
    group: str | None
    kind: str
    data: Mapping[str, Any]


_MAPPER = RowMapper(RecordedEvent, "events", {"group": "group_folder", "data": Json("data_json")})


async def append(tx: Tx, kind: str, /, *, group: str | None, now_ms: int, **data: Any) -> None:
    """Add an event of a loop, for people and programs that watch; `kind` is `trigger:…` or `action:…`.

    `data` has ids and numbers, never the text of a message; values that are None are left out.
    """
    fields = {name: value for name, value in data.items() if value is not None}
    await tx.execute(
        "INSERT INTO events (at_ms, group_folder, kind, data_json) VALUES (?, ?, ?, ?)",
        (now_ms, group, kind, json.dumps(fields, ensure_ascii=False)),
    )


async def last_seq(tx: Tx) -> int:
    """Return the number of the newest event of any loop; 0 before the first."""
    cursor = await tx.execute("SELECT coalesce(max(seq), 0) AS seq FROM events")
    return int((await returned(cursor))["seq"])


async def after(tx: Tx, seq: int, *, limit: int = 1_000) -> list[RecordedEvent]:
    """Return at most `limit` events with a number above `seq`, oldest first."""
    return await _MAPPER.fetch_all(
        tx, "SELECT * FROM events WHERE seq > ? ORDER BY seq LIMIT ?", (seq, limit)
    )


async def newest(tx: Tx, *, group: str | None = None, limit: int) -> list[RecordedEvent]:
    """Return the newest `limit` events, oldest first, of one group or of all if it is None."""
    rows = await tx.execute_fetchall(
        """
        SELECT * FROM events WHERE :group IS NULL OR group_folder = :group ORDER BY seq DESC LIMIT :limit
        """,
        {"group": group, "limit": limit},
    )
    return _MAPPER.read_all(rows)[::-1]


async def prune(tx: Tx) -> None:
    """Delete all but the newest `MAX_EVENTS` events."""
    await tx.execute("DELETE FROM events WHERE seq <= (SELECT max(seq) FROM events) - ?", (MAX_EVENTS,))
