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
    """Write a task; return False, and write nothing, if it has changed since version `read_version` was read.

    None means that it is new: see `dashboards.put_row`.
    """
    return await dashboards.put_row(tx, _MAPPER, _MAPPER.values(task), read_version=read_version)


async def get(tx: Tx, folder: Folder, task_id: str) -> BoardTask | None:
    return await _MAPPER.fetch_one(
        tx, "SELECT * FROM dashboard_tasks WHERE group_folder = ? AND id = ?", (folder, task_id)
    )


async def on_board(
    tx: Tx, folder: Folder, status: BoardTaskStatus | None = None, *, limit: int = -1
) -> list[BoardTask]:
    """Return the tasks that are not in the history, the next deadline first.

    Only those with `status`, unless it is None; a negative limit means all.
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
    """Return the tasks of all groups that are not in the history, the next deadline first."""
    return await _MAPPER.fetch_all(
        tx,
        f"SELECT * FROM dashboard_tasks WHERE archived_ms IS NULL {_ORDER} LIMIT ?",  # noqa: S608 - a constant
        (limit,),
    )


async def due_between(tx: Tx, folder: Folder | None, from_ms: int, until_ms: int) -> list[BoardTask]:
    """Return the active tasks of a group, or of all, by deadline.

    Only tasks whose deadline, or the start of its day, is from `from_ms` up to but not including `until_ms`.
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
    """Return the active tasks of all groups whose deadline has come, or whose deadline day has started.

    The longest past come first.
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


async def history(tx: Tx, folder: Folder, *, limit: int = -1) -> list[BoardTask]:
    """Return the tasks in the history, newest first; a negative limit means all."""
    return await _MAPPER.fetch_all(
        tx,
        """
        SELECT * FROM dashboard_tasks WHERE group_folder = ? AND archived_ms IS NOT NULL
        ORDER BY archived_ms DESC, id LIMIT ?
        """,
        (folder, limit),
    )


async def count(tx: Tx, folder: Folder, status: BoardTaskStatus | None = None) -> int:
    """Count the tasks on the board, of one status or all."""
    cursor = await tx.execute(
        """
        SELECT count(*) AS n FROM dashboard_tasks
        WHERE group_folder = :folder AND archived_ms IS NULL AND (:status IS NULL OR status = :status)
        """,
        {"folder": folder, "status": status},
    )
    return int((await returned(cursor))["n"])


async def days(tx: Tx, folder: Folder) -> list[str]:
    """Return all days that are deadlines of a group's tasks."""
    rows = await tx.execute_fetchall(
        "SELECT DISTINCT deadline_date AS day FROM dashboard_tasks"
        " WHERE group_folder = ? AND deadline_date IS NOT NULL",
        (folder,),
    )
    return [row["day"] for row in rows]


async def move_day(tx: Tx, folder: Folder, day: str, *, at_ms: int, version: int) -> int:
    """Set when a day starts, for tasks whose deadline is this day; return how many tasks that changes."""
    cursor = await tx.execute(
        """
        UPDATE dashboard_tasks SET deadline_ms = :at, version = :version
        WHERE group_folder = :folder AND deadline_date = :day AND deadline_ms <> :at
        """,
        {"at": at_ms, "version": version, "folder": folder, "day": day},
    )
    return cursor.rowcount


async def ids_like(tx: Tx, folder: Folder, prefix: str) -> list[str]:
    """Return at most ten ids that begin with `prefix`."""
    rows = await tx.execute_fetchall(
        """
        SELECT id FROM dashboard_tasks
        WHERE group_folder = ? AND substr(id, 1, length(?)) = ? ORDER BY id LIMIT 10
        """,
        (folder, prefix, prefix),
    )
    return [row["id"] for row in rows]
