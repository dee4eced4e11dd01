"""`dashboard_tasks`: the tasks of a group's people."""

from __future__ import annotations

from orchestrator.domain.dashboard import BoardTask, BoardTaskStatus, Deadline
from orchestrator.domain.values import Folder
from orchestrator.store.board import dashboards
from orchestrator.store.database import Tx, returned
from orchestrator.store.row_mapper import Json, Part, RowMapper

_ORDER = "ORDER BY deadline_ms IS NULL, deadline_ms, id"
"""The SQL order: the next deadline first, then tasks without one, by id."""


_MAPPER = RowMapper(
    BoardTask,
    "dashboard_tasks",
    {
        "folder": "group_folder",
        "deadline": Part(
            Deadline,
            {"at_ms": "deadline_ms", "date": "deadline_date", "text": "deadline_text"},
            absent={"deadline_text": ""},
        ),
        "estimation": Json("estimation_json"),
        "tags": Json("tags_json"),
        "links": Json("links_json"),
        "recurring": Json("recurring_json"),
        "user_set": Json("user_set_json"),
        "extra": Json("extra_json"),
    },
)


async def put(tx: Tx, task: BoardTask, *, read_version: int | None) -> bool:
    """Insert or update a task; return False, and write nothing, if the caller's copy is stale.

    `read_version` is the version that the caller has read, or None for a new task. The copy is stale if the
    stored one has another version by now.
    """
    return await dashboards.put_row(tx, _MAPPER, _MAPPER.values(task), read_version=read_version)


async def get(tx: Tx, folder: Folder, task_id: str) -> BoardTask | None:
    """Return the task of a group with this id, also from its history; None if there is none."""
    return await _MAPPER.fetch_one(
        tx, "SELECT * FROM dashboard_tasks WHERE group_folder = ? AND id = ?", (folder, task_id)
    )


async def on_board(
    tx: Tx, folder: Folder, status: BoardTaskStatus | None = None, *, limit: int = -1
) -> list[BoardTask]:
    """Return the tasks of a group that are not archived in its history, the next deadline first.

    With a `status`, only tasks in it; a negative limit means all.
    """
    return await _MAPPER.fetch_all(
        tx,
        f"""
        SELECT * FROM dashboard_tasks
        WHERE group_folder = :folder AND archived_ms IS NULL AND (:status IS NULL OR status = :status)
        {_ORDER} LIMIT :limit
        """,  # noqa: S608 - a constant
        {"folder": folder, "status": status, "limit": limit},
    )


async def on_boards_of_all(tx: Tx, *, limit: int) -> list[BoardTask]:
    """Return at most `limit` tasks of all groups that are not archived, the next deadline first."""
    return await _MAPPER.fetch_all(
        tx,
        f"SELECT * FROM dashboard_tasks WHERE archived_ms IS NULL {_ORDER} LIMIT ?",  # noqa: S608 - a constant
        (limit,),
    )


async def due_between(tx: Tx, folder: Folder | None, from_ms: int, until_ms: int) -> list[BoardTask]:
    """Return the active tasks of the group `folder`, or of all groups if it is None, by deadline.

    Only tasks whose deadline is from `from_ms` up to but not including `until_ms`; for a deadline without a
    time of day, the start of its day counts.
    """
    return await _MAPPER.fetch_all(
        tx,
        """
        SELECT * FROM dashboard_tasks
        WHERE archived_ms IS NULL AND status = 'active' AND deadline_ms >= ? AND deadline_ms < ?
            AND (? IS NULL OR group_folder = ?)
        ORDER BY deadline_ms, group_folder, id
        """,
        (from_ms, until_ms, folder, folder),
    )


async def past_deadline(tx: Tx, *, now_ms: int, limit: int) -> list[BoardTask]:
    """Return at most `limit` active tasks of all groups whose deadline has come, the longest past first.

    A deadline without a time of day has come when its day has started.
    """
    return await _MAPPER.fetch_all(
        tx,
        """
        SELECT * FROM dashboard_tasks
        WHERE archived_ms IS NULL AND status = 'active' AND deadline_ms <= ?
        ORDER BY deadline_ms, group_folder, id LIMIT ?
        """,
        (now_ms, limit),
    )


async def history(tx: Tx, folder: Folder | None, *, limit: int = -1) -> list[BoardTask]:
    """Return the archived tasks of a group, or of all groups for None, the last archived first.

    A negative limit means all.
    """
    group_condition = "" if folder is None else "group_folder = :folder AND"
    return await _MAPPER.fetch_all(
        tx,
        f"""
        SELECT * FROM dashboard_tasks WHERE {group_condition} archived_ms IS NOT NULL
        ORDER BY archived_ms DESC, id LIMIT :limit
        """,  # noqa: S608 - constants
        {"folder": folder, "limit": limit},
    )


async def count(tx: Tx, folder: Folder, status: BoardTaskStatus | None = None) -> int:
    """Count the tasks of a group that are not archived; with a `status`, only tasks in it."""
    cursor = await tx.execute(
        """
        SELECT count(*) AS n FROM dashboard_tasks
        WHERE group_folder = :folder AND archived_ms IS NULL AND (:status IS NULL OR status = :status)
        """,
        {"folder": folder, "status": status},
    )
    return int((await returned(cursor))["n"])


async def days(tx: Tx, folder: Folder) -> list[str]:
    """Return the distinct dates (`YYYY-MM-DD`) of a group's deadlines that have no time of day."""
    rows = await tx.execute_fetchall(
        "SELECT DISTINCT deadline_date AS day FROM dashboard_tasks"
        " WHERE group_folder = ? AND deadline_date IS NOT NULL",
        (folder,),
    )
    return [row["day"] for row in rows]


async def move_day(tx: Tx, folder: Folder, day: str, *, at_ms: int, version: int) -> int:
    """Set the moment of all whole-day deadlines on `day`, after the start of that day has changed.

    It changes with the group's time zone. `day` is the date (`YYYY-MM-DD`), `at_ms` its new start (epoch ms).
    The changed tasks get `version`; return how many there are.
    """
    cursor = await tx.execute(
        """
        UPDATE dashboard_tasks SET deadline_ms = :at, version = :version
        WHERE group_folder = :folder AND deadline_date = :day AND deadline_ms <> :at
        """,
        {"at": at_ms, "version": version, "folder": folder, "day": day},
    )
    return cursor.rowcount


async def ids_like(tx: Tx, folder: Folder, prefix: str) -> list[str]:
    """Return at most ten ids of a group's tasks that begin with `prefix`."""
    rows = await tx.execute_fetchall(
        """
        SELECT id FROM dashboard_tasks
        WHERE group_folder = ? AND substr(id, 1, length(?)) = ? ORDER BY id LIMIT 10
        """,
        (folder, prefix, prefix),
    )
    return [row["id"] for row in rows]
