"""`dashboards`: one row a group that has one."""

from __future__ import annotations

import sqlite3

from orchestrator.domain.dashboard import Dashboard
from orchestrator.domain.values import Folder
from orchestrator.store.database import Tx, returned


async def get(tx: Tx, folder: Folder) -> Dashboard | None:
    cursor = await tx.execute("SELECT * FROM dashboards WHERE group_folder = ?", (folder,))
    row = await cursor.fetchone()
    return _from_row(row) if row else None


async def every(tx: Tx) -> list[Dashboard]:
    rows = await tx.execute_fetchall("SELECT * FROM dashboards ORDER BY group_folder")
    return [_from_row(row) for row in rows]


async def ensure(tx: Tx, folder: Folder, *, now_ms: int) -> Dashboard:
    """Return the group's dashboard; a new one if it has none."""
    await tx.execute(
        "INSERT INTO dashboards (group_folder, created_ms) VALUES (?, ?) ON CONFLICT DO NOTHING",
        (folder, now_ms),
    )
    found = await get(tx, folder)
    assert found is not None
    return found


async def advance(tx: Tx, folder: Folder) -> int:
    """Count one more change and return the count: the version of what is written next."""
    cursor = await tx.execute(
        "UPDATE dashboards SET revision = revision + 1 WHERE group_folder = ? RETURNING revision", (folder,)
    )
    return int((await returned(cursor))["revision"])


async def due_for_rules(tx: Tx, now_ms: int) -> list[Dashboard]:
    """Those that rules are to look at, the longest due first."""
    rows = await tx.execute_fetchall(
        "SELECT * FROM dashboards WHERE rules_next_ms <= ? ORDER BY rules_next_ms, group_folder", (now_ms,)
    )
    return [_from_row(row) for row in rows]


async def note_rules(tx: Tx, folder: Folder, *, now_ms: int, next_ms: int) -> None:
    await tx.execute(
        "UPDATE dashboards SET rules_last_ms = ?, rules_next_ms = ? WHERE group_folder = ?",
        (now_ms, next_ms, folder),
    )


async def wake_rules(tx: Tx, folder: Folder, *, now_ms: int) -> None:
    """Have the rules look now instead of at the next beat."""
    await tx.execute(
        "UPDATE dashboards SET rules_next_ms = min(rules_next_ms, ?) WHERE group_folder = ?", (now_ms, folder)
    )


async def note_zone(tx: Tx, folder: Folder, zone: str) -> None:
    await tx.execute("UPDATE dashboards SET zone = ? WHERE group_folder = ?", (zone, folder))


async def note_worker(tx: Tx, folder: Folder, *, now_ms: int, revision: int, digest: str) -> None:
    """Note what a model was shown last."""
    await tx.execute(
        """
        UPDATE dashboards SET worker_last_ms = ?, worker_revision = ?, worker_digest = ?
        WHERE group_folder = ?
        """,
        (now_ms, revision, digest, folder),
    )


async def lease(tx: Tx, folder: Folder, owner: str, *, now_ms: int, until_ms: int) -> bool:
    """Take or keep the upkeep of a dashboard; false while another has it."""
    cursor = await tx.execute(
        """
        UPDATE dashboards SET lease_owner = :owner, lease_until_ms = :until
        WHERE group_folder = :folder
          AND (lease_owner IS NULL OR lease_owner = :owner OR lease_until_ms <= :now)
        """,
        {"folder": folder, "owner": owner, "now": now_ms, "until": until_ms},
    )
    return cursor.rowcount == 1


async def release(tx: Tx, folder: Folder, owner: str) -> None:
    await tx.execute(
        """
        UPDATE dashboards SET lease_owner = NULL, lease_until_ms = NULL
        WHERE group_folder = ? AND lease_owner = ?
        """,
        (folder, owner),
    )


TABLES = ("dashboard_tasks", "questions", "notifications", "insights", "people", "projects")
"""What is on a dashboard."""


async def ids_in(tx: Tx, folder: Folder, table: str) -> set[str]:
    """The ids that a group has in one of `TABLES`."""
    assert table in TABLES
    rows = await tx.execute_fetchall(
        f"SELECT id FROM {table} WHERE group_folder = ?",  # noqa: S608 - one of ours
        (folder,),
    )
    return {row["id"] for row in rows}


async def clear(tx: Tx, folder: Folder) -> None:
    """Take all that is on a dashboard away."""
    for table in TABLES:
        await tx.execute(
            f"DELETE FROM {table} WHERE group_folder = ?",  # noqa: S608 - one of ours
            (folder,),
        )


def _from_row(row: sqlite3.Row) -> Dashboard:
    return Dashboard(
        folder=Folder(row["group_folder"]),
        revision=row["revision"],
        created_ms=row["created_ms"],
        rules_last_ms=row["rules_last_ms"],
        rules_next_ms=row["rules_next_ms"],
        zone=row["zone"],
        worker_last_ms=row["worker_last_ms"],
        worker_revision=row["worker_revision"],
        worker_digest=row["worker_digest"],
        lease_owner=row["lease_owner"],
        lease_until_ms=row["lease_until_ms"],
    )
