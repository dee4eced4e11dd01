"""`dashboards`, `dashboard_views`, `dashboard_seen`: each dashboard, and how much of it each turn was shown.

Every change of a dashboard increments its revision, and each changed row gets that number as its version. A
turn may write only rows whose version it was shown, so nobody overwrites a change that they have not seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from orchestrator.domain.dashboard import Dashboard
from orchestrator.domain.values import Folder
from orchestrator.store.database import Tx, returned
from orchestrator.store.row_mapper import RowMapper

_MAPPER = RowMapper(
    Dashboard,
    "dashboards",
    {"folder": "group_folder"},
    # Nothing uses these columns; to remove them would take a migration.
    unread=("lease_owner", "lease_until_ms"),
)


async def get(tx: Tx, folder: Folder) -> Dashboard | None:
    """Return the dashboard of a group, or None if it has none."""
    return await _MAPPER.fetch_one(tx, "SELECT * FROM dashboards WHERE group_folder = ?", (folder,))


async def every(tx: Tx) -> list[Dashboard]:
    """Return all dashboards, in the order of their groups' folders."""
    return await _MAPPER.fetch_all(tx, "SELECT * FROM dashboards ORDER BY group_folder")


async def without_zone(tx: Tx) -> list[Dashboard]:
    """Return the dashboards whose deadlines are to be computed: new ones, and those changed by an undo."""
    return await _MAPPER.fetch_all(tx, "SELECT * FROM dashboards WHERE zone IS NULL ORDER BY group_folder")


async def revisions(tx: Tx) -> dict[Folder, int]:
    """Return the revision of each dashboard, which every change increments, keyed by the group's folder."""
    rows = await tx.execute_fetchall("SELECT group_folder, revision FROM dashboards ORDER BY group_folder")
    return {Folder(row["group_folder"]): row["revision"] for row in rows}


async def ensure(tx: Tx, folder: Folder, *, now_ms: int) -> Dashboard:
    """Return the dashboard of a group; it is created first if there is none."""
    # Two requests may create it at once; the second finds the row of the first.
    await tx.execute(
        "INSERT INTO dashboards (group_folder, created_ms) VALUES (?, ?) ON CONFLICT DO NOTHING",
        (folder, now_ms),
    )
    dashboard = await get(tx, folder)
    assert dashboard is not None
    return dashboard


async def advance(tx: Tx, folder: Folder) -> int:
    """Increment the revision of a dashboard and return it: changed rows get this number as their version."""
    cursor = await tx.execute(
        "UPDATE dashboards SET revision = revision + 1 WHERE group_folder = ? RETURNING revision", (folder,)
    )
    return int((await returned(cursor))["revision"])


async def due_for_rules(tx: Tx, now_ms: int) -> list[Dashboard]:
    """Return the dashboards over which the rules are due to run again, the longest due first.

    The rules are code that decides, without a model, what is to be notified, asked or moved.
    """
    return await _MAPPER.fetch_all(
        tx,
        "SELECT * FROM dashboards WHERE rules_next_ms <= ? ORDER BY rules_next_ms, group_folder",
        (now_ms,),
    )


async def note_rules(tx: Tx, folder: Folder, *, now_ms: int, next_ms: int) -> None:
    """Record that the rules, code that looks over a dashboard without a model, ran over it at `now_ms`.

    They are due again at `next_ms` (epoch ms).
    """
    await tx.execute(
        "UPDATE dashboards SET rules_last_ms = ?, rules_next_ms = ? WHERE group_folder = ?",
        (now_ms, next_ms, folder),
    )


async def wake_rules(tx: Tx, folder: Folder, *, now_ms: int) -> None:
    """Make the rules, code that looks over a dashboard without a model, due to run over it now.

    Otherwise they would run at the end of the interval.
    """
    # `min`, so that a dashboard that is due already is not postponed.
    await tx.execute(
        "UPDATE dashboards SET rules_next_ms = min(rules_next_ms, ?) WHERE group_folder = ?", (now_ms, folder)
    )


async def follow_clock(tx: Tx, *, now_ms: int, latest_ms: int) -> None:
    """Set the next run of the rules to now on each dashboard where it is later than `latest_ms` (epoch ms).

    The rules are code that looks over a dashboard without a model. No pass sets a time so late: it was set
    before the machine's clock was set back.
    """
    await tx.execute("UPDATE dashboards SET rules_next_ms = ? WHERE rules_next_ms > ?", (now_ms, latest_ms))


async def next_rules_ms(tx: Tx) -> int | None:
    """Return when the rules are due to run over any dashboard next (epoch ms); None without dashboards.

    The rules are code that looks over a dashboard without a model.
    """
    cursor = await tx.execute("SELECT min(rules_next_ms) AS at FROM dashboards")
    return (await returned(cursor))["at"]  # type: ignore[no-any-return]


async def hasten_rules(tx: Tx) -> None:
    """Let the rules run over each dashboard as early as a deadline may need a notification.

    The rules are code that looks over a dashboard without a model, and adds notifications. A deadline with a
    time of day may need one a day before, two hours before, and at its time; a deadline of a whole day may
    need one a day before its start, at its start, and 25 hours after its start: by then the day is over, also
    where the clocks changed. A run that is due earlier is not changed.
    """
    # `due` has the times at which a notification may be needed, as milliseconds after the deadline (before
    # it if negative: 24 h and 2 h; after it 25 h), and for which kind of deadline: with a time of day
    # (TRUE), of a whole day (FALSE), whose time is the start of the day, or both (NULL). The bounds on the
    # deadline keep the join to tasks near enough to matter: 25 h back, 24 h ahead.
    await tx.execute(
        """
        UPDATE dashboards SET rules_next_ms = near.at FROM (
            SELECT d.group_folder, min(t.deadline_ms + due.ms) AS at
            FROM dashboards d
            JOIN dashboard_tasks t ON t.group_folder = d.group_folder AND t.archived_ms IS NULL
                AND t.status IN ('active', 'someday')
                AND t.deadline_ms BETWEEN d.rules_last_ms - 90000000 AND d.rules_next_ms + 86400000
            JOIN (SELECT -86400000 AS ms, NULL AS is_timed UNION ALL SELECT 0, NULL
                  UNION ALL SELECT -7200000, TRUE UNION ALL SELECT 90000000, FALSE) AS due
                ON due.is_timed IS NULL OR due.is_timed = (t.deadline_date IS NULL)
            WHERE t.deadline_ms + due.ms > d.rules_last_ms AND t.deadline_ms + due.ms < d.rules_next_ms
            GROUP BY d.group_folder
        ) AS near WHERE near.group_folder = dashboards.group_folder
        """
    )


async def note_zone(tx: Tx, folder: Folder, zone: str | None) -> None:
    """Store the time zone in which the deadlines of a dashboard were last computed, such as `Asia/Seoul`.

    With None, the dashboard worker computes them again at its next pass.
    """
    await tx.execute("UPDATE dashboards SET zone = ? WHERE group_folder = ?", (zone, folder))


async def note_worker(tx: Tx, folder: Folder, *, now_ms: int, revision: int, digest: str) -> None:
    """Record that a model was shown the dashboard now, at this `revision`.

    `digest` has hashes of what it was shown, by which a later pass sees whether anything has changed.
    """
    await tx.execute(
        """
        UPDATE dashboards SET worker_last_ms = ?, worker_revision = ?, worker_digest = ?
        WHERE group_folder = ?
        """,
        (now_ms, revision, digest, folder),
    )


TABLES = ("dashboard_tasks", "questions", "notifications", "insights", "people", "projects")
"""The tables with the content of a dashboard."""


async def ids_in(tx: Tx, folder: Folder, table: str) -> set[str]:
    """Return the ids of a group's rows in one of `TABLES`."""
    assert table in TABLES
    # A table's name cannot be a parameter in SQL, hence the check above.
    rows = await tx.execute_fetchall(
        f"SELECT id FROM {table} WHERE group_folder = ?",  # noqa: S608 - one of ours
        (folder,),
    )
    return {row["id"] for row in rows}


async def clear(tx: Tx, folder: Folder) -> None:
    """Delete all tasks, questions, notifications and knowledge on a dashboard; the dashboard itself stays."""
    for table in TABLES:
        await tx.execute(
            f"DELETE FROM {table} WHERE group_folder = ?",  # noqa: S608 - one of ours
            (folder,),
        )


async def put_row(
    tx: Tx, mapper: RowMapper[Any], row: Mapping[str, object], *, read_version: int | None
) -> bool:
    """Insert or update a row of a dashboard; return False, and write nothing, if the caller's copy is stale.

    `row` has a value for each column. `read_version` is the version that the caller has read, or None to
    insert a new row. The copy is stale if the stored row has another version by now.
    """
    if read_version is None:
        await tx.execute(mapper.insert_sql(row), row)
        return True
    # The version is in the WHERE clause, so no write can happen between the check and the update.
    cursor = await tx.execute(_update(mapper.table, tuple(row)), {**row, "read_version": read_version})
    return cursor.rowcount == 1


@cache
def _update(table: str, columns: tuple[str, ...]) -> str:
    """Return the SQL that updates all `columns` of one row but its key, if it still has `:read_version`."""
    assignments = ", ".join(f"{name} = :{name}" for name in columns if name not in ("group_folder", "id"))
    condition = "group_folder = :group_folder AND id = :id AND version = :read_version"
    return f"UPDATE {table} SET {assignments} WHERE {condition}"  # noqa: S608 - our own names


async def note_view(tx: Tx, turn_id: int, folder: Folder, revision: int) -> None:
    """Record that a turn is shown the whole dashboard at `revision`, and forget what it was shown before."""
    await tx.execute(
        """
        INSERT INTO dashboard_views (turn_id, group_folder, revision) VALUES (?, ?, ?)
        ON CONFLICT (turn_id) DO UPDATE SET revision = excluded.revision
        """,
        (turn_id, folder, revision),
    )
    await tx.execute("DELETE FROM dashboard_seen WHERE turn_id = ?", (turn_id,))


async def advance_view(tx: Tx, turn_id: int, revision: int) -> None:
    """Record that a turn is shown the whole dashboard again, at `revision`.

    Nothing changes if it was shown a later revision, or never the whole dashboard.
    """
    await tx.execute(
        "UPDATE dashboard_views SET revision = max(revision, ?) WHERE turn_id = ?", (revision, turn_id)
    )


async def note_seen(tx: Tx, turn_id: int, row_id: str, version: int) -> None:
    """Record that a turn is shown this version of one row, after it was shown the whole dashboard."""
    await tx.execute(
        """
        INSERT INTO dashboard_seen (turn_id, row_id, version) VALUES (?, ?, ?)
        ON CONFLICT (turn_id, row_id) DO UPDATE SET version = excluded.version
        """,
        (turn_id, row_id, version),
    )


async def has_seen(tx: Tx, turn_id: int, row_id: str, version: int) -> bool:
    """Return whether a turn was shown this version of a row, or a later one.

    It was shown the rows of the whole dashboard up to a revision, and single rows after that. A turn that was
    never shown the dashboard counts as knowing every version.
    """
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
