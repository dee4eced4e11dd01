"""`audit`: actions, refusals and connections, each row hashed with the one before. Rows are only added."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from dataclasses import dataclass, field
from typing import Any, TypedDict

from orchestrator.domain.values import Folder, RunId, TurnId
from orchestrator.store.database import Tx, returned

FIRST_HASH = "0" * 64
"""The hash that the first row of the audit names as that of the row before."""
TRIGGERS = frozenset({"audit_is_not_changed", "audit_is_not_deleted"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """An action to be audited: ids, sizes and reasons, never a request's body or the text of a chat."""

    at_ms: int
    kind: str
    folder: Folder | None = None
    """The group that it is about; this and the next two are None if it is about none."""
    run_id: RunId | None = None
    turn_id: TurnId | None = None
    detail: dict[str, Any] = field(default_factory=dict)


class AuditView(TypedDict):
    """A row of the audit; the fields of `detail` depend on `kind`."""

    id: int
    at_ms: int
    kind: str
    group: Folder | None
    run: RunId | None
    turn: TurnId | None
    detail: dict[str, object]
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainVerdict:
    """The result of checking the whole chain. `fault` is None when nothing is wrong."""

    rows: int
    """The number of sound rows, which is the id of the last of them: ids have no gaps."""
    head: str
    """The hash of the newest row. A copy stored elsewhere later proves that the rows up to it are unchanged.
    """
    fault: str | None = None


async def registered_folders(tx: Tx) -> list[Folder]:
    """Return the folders of all groups that were ever registered, including groups removed since."""
    rows = await tx.execute_fetchall(
        "SELECT DISTINCT group_folder FROM audit WHERE kind = 'group.registered'"
    )
    # Rows of this kind have a folder, although the column may be NULL in other kinds.
    return [Folder(row["group_folder"]) for row in rows if row["group_folder"]]


async def append(tx: Tx, event: AuditEvent) -> None:
    """Add one row at the end of the audit, with a hash over its content and the hash of the row before.

    The first row has `FIRST_HASH` in place of the hash of a row before. Call it in a transaction that writes:
    two concurrent writers would give two rows the same predecessor.
    """
    row = await returned(
        await tx.execute(
            """
            SELECT coalesce(max(id), 0) + 1 AS id,
                   coalesce((SELECT hash FROM audit ORDER BY id DESC LIMIT 1), ?) AS previous
            FROM audit
            """,
            (FIRST_HASH,),
        )
    )
    detail = json.dumps(event.detail, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    content = (row["id"], event.at_ms, event.kind, event.folder, event.run_id, event.turn_id, detail)
    await tx.execute(
        """
        INSERT INTO audit (id, at_ms, kind, group_folder, run_id, turn_id, detail, previous_hash, hash)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
        """,
        (*content, row["previous"], row_hash(row["previous"], content)),
    )


def row_hash(previous: str, content: tuple[Any, ...]) -> str:
    """Return the hash of an audit row: the SHA-256, in hex, of `previous` and `content`.

    `previous` is the hash of the row before, `content` has the values of the row's own columns.
    """
    canonical = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(f"{previous}\n{canonical}".encode()).hexdigest()


async def newest(
    tx: Tx,
    *,
    limit: int,
    folder: Folder | None = None,
    since_ms: int = 0,
    before_id: int | None = None,
    only_refused: bool = False,
) -> list[AuditView]:
    """Return at most `limit` of the newest audit rows, oldest first.

    They are of the group `folder` (None: of all groups), not older than `since_ms`, and have an id below
    `before_id` unless it is None. With `only_refused`, only rows that record a refused action.
    """
    # `1 << 62` is above every id: without `before_id`, no row is left out. A refusal has a kind such as
    # `egress.refused`, or `"ok": false` in its detail.
    rows = await tx.execute_fetchall(
        """
        SELECT * FROM audit WHERE at_ms >= :since AND (:folder IS NULL OR group_folder = :folder)
            AND id < coalesce(:before, 1 << 62)
            AND (NOT :refused OR kind LIKE '%.refused' OR json_extract(detail, '$.ok') = 0)
        ORDER BY id DESC LIMIT :limit
        """,
        {"since": since_ms, "folder": folder, "before": before_id, "refused": only_refused, "limit": limit},
    )
    return [_view(row) for row in reversed(list(rows))]


async def of_turn(tx: Tx, turn_id: TurnId, *, since_ms: int) -> list[AuditView]:
    """Return the audit rows of one turn, oldest first. `since_ms` is the time when the turn was queued."""
    # The time has an index and the turn has none: this reads only the rows since the turn was queued.
    rows = await tx.execute_fetchall(
        "SELECT * FROM audit WHERE turn_id = ? AND at_ms >= ? ORDER BY id", (turn_id, since_ms)
    )
    return [_view(row) for row in rows]


def _view(row: sqlite3.Row) -> AuditView:
    """Return a row of the audit table as a dictionary for display, with its detail parsed from JSON."""
    return {
        "id": row["id"],
        "at_ms": row["at_ms"],
        "kind": row["kind"],
        "group": row["group_folder"],
        "run": row["run_id"],
        "turn": row["turn_id"],
        "detail": json.loads(row["detail"]),
        "hash": row["hash"],
    }


async def verify(tx: Tx, *, after: ChainVerdict | None = None) -> ChainVerdict:
    """Check the hash chain of the audit for a row that was changed, removed, or cut off at the end.

    The triggers that forbid such changes must also be there. `after` is the verdict of an earlier check. If
    that check found no fault and the last row that it read is unchanged, only later rows are read: a change
    of an older row since then is not found. Otherwise all rows are read. The verdict says how many rows are
    sound, and what is wrong with the first one that is not, or with the triggers.
    """
    head, number = FIRST_HASH, 0
    if after is not None and after.fault is None and await _has_head_of(tx, after):
        head, number = after.head, after.rows
    async with tx.execute("SELECT * FROM audit WHERE id > ? ORDER BY id", (number,)) as cursor:
        async for row in cursor:
            fault = _fault(row, number + 1, head)
            if fault is not None:
                return ChainVerdict(rows=number, head=head, fault=fault)
            head, number = row["hash"], row["id"]
    return ChainVerdict(rows=number, head=head, fault=await _fault_of_table(tx, number))


async def _has_head_of(tx: Tx, verdict: ChainVerdict) -> bool:
    """Return whether the row that was the newest at an earlier check is still there with the same hash."""
    # Ids have no gaps, so the number of checked rows is the id of the newest one.
    rows = await tx.execute_fetchall(
        "SELECT 1 FROM audit WHERE id = ? AND hash = ?", (verdict.rows, verdict.head)
    )
    return bool(list(rows))


def _fault(row: sqlite3.Row, expected: int, previous: str) -> str | None:
    """Return the text that says what is wrong with an audit row, or None if it is sound.

    It should have the id `expected`, and follow the row with the hash `previous`.
    """
    if row["id"] != expected:
        return f"row {expected} is missing"
    if row["previous_hash"] != previous:
        return f"row {expected} does not follow the row before it"
    content = tuple(
        row[name] for name in ("id", "at_ms", "kind", "group_folder", "run_id", "turn_id", "detail")
    )
    return None if row_hash(previous, content) == row["hash"] else f"row {expected} was changed"


async def _fault_of_table(tx: Tx, last: int) -> str | None:
    """Return the text that says that rows at the end of the audit, or one of its triggers, were deleted.

    `last` is the id of the last row that is there. The triggers (`TRIGGERS`) forbid to change and to delete
    rows. None if nothing was deleted.
    """
    # SQLite remembers the highest id that it ever assigned in a table, even after that row was deleted.
    cursor = await tx.execute("SELECT max(seq) AS last FROM sqlite_sequence WHERE name = 'audit'")
    highest_ever = (await returned(cursor))["last"] or 0
    if highest_ever > last:
        return f"row {last + 1} is missing"
    rows = await tx.execute_fetchall("SELECT name FROM sqlite_master WHERE type = 'trigger'")
    missing = TRIGGERS - {row["name"] for row in rows}
    return f"the guard '{min(missing)}' was removed" if missing else None
