"""`dashboard_views` and `dashboard_seen`: which state of a dashboard a turn decides upon."""

from __future__ import annotations

from orchestrator.domain.values import Folder
from orchestrator.store.database import Tx


async def note_view(tx: Tx, turn_id: int, folder: Folder, revision: int) -> None:
    """A turn is shown the whole dashboard as of `revision`; what it was shown before counts no more."""
    await tx.execute(
        """
        INSERT INTO dashboard_views (turn_id, group_folder, revision) VALUES (?, ?, ?)
        ON CONFLICT (turn_id) DO UPDATE SET revision = excluded.revision
        """,
        (turn_id, folder, revision),
    )
    await tx.execute("DELETE FROM dashboard_seen WHERE turn_id = ?", (turn_id,))


async def advance_view(tx: Tx, turn_id: int, revision: int) -> None:
    """A turn is shown the whole dashboard again, as of a later `revision`."""
    await tx.execute(
        "UPDATE dashboard_views SET revision = max(revision, ?) WHERE turn_id = ?", (revision, turn_id)
    )


async def note_seen(tx: Tx, turn_id: int, row_id: str, version: int) -> None:
    """A turn is shown one row anew."""
    await tx.execute(
        """
        INSERT INTO dashboard_seen (turn_id, row_id, version) VALUES (?, ?, ?)
        ON CONFLICT (turn_id, row_id) DO UPDATE SET version = excluded.version
        """,
        (turn_id, row_id, version),
    )


async def knows(tx: Tx, turn_id: int, row_id: str, version: int) -> bool:
    """Whether what a turn decides upon holds for this version of a row. So it does for one shown none."""
    cursor = await tx.execute(
        """
        SELECT v.revision, s.version FROM dashboard_views v
        LEFT JOIN dashboard_seen s ON s.turn_id = v.turn_id AND s.row_id = ?
        WHERE v.turn_id = ?
        """,
        (row_id, turn_id),
    )
    row = await cursor.fetchone()
    return row is None or version <= max(row["revision"], row["version"] or 0)
