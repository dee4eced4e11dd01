"""`worker_cycles`: the passes of the dashboards' background worker, and the turns of its model.

These are no cycles of an agent's loop.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.domain.values import Folder, Group, TurnId, TurnState
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
    """Record that a pass of the dashboard worker over a group's dashboard begins, and return its number.

    `kind` is `rules`, or `llm` for a pass of a model, whose turn is `turn_id`. `trigger` says why the pass
    begins, for people who inspect the record; for a model it also has the `digest` of the dashboard that it
    is shown.
    """
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
    pass_id: int,
    outcome: str,
    *,
    detail: Mapping[str, Any],
    error: str | None = None,
    now_ms: int,
) -> None:
    """Record how a pass of the dashboard worker ended.

    `outcome` is `action`, `noop` or `error`, the last with the text `error`; `detail` is the report, stored
    as JSON.
    """
    await tx.execute(
        "UPDATE worker_cycles SET ended_ms = ?, outcome = ?, detail_json = ?, error = ? WHERE id = ?",
        (now_ms, outcome, json.dumps(dict(detail), ensure_ascii=False), error, pass_id),
    )


async def newest(tx: Tx, folder: Folder, *, limit: int) -> list[dict[str, Any]]:
    """Return at most `limit` of a group's newest worker passes, newest first, each as its columns by name."""
    rows = await tx.execute_fetchall(
        "SELECT * FROM worker_cycles WHERE group_folder = ? ORDER BY id DESC LIMIT ?", (folder, limit)
    )
    return [dict(row) for row in rows]


_TABLES_WITH_CHANGED_TURN = ("dashboard_tasks", "questions", "notifications")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedPass:
    """A pass of a model whose turn has ended, while the end of the pass itself is not recorded yet."""

    pass_id: int
    folder: Folder
    turn_id: int
    state: TurnState
    reason: str | None
    digest: str
    """The digest of the board that the model was shown."""


async def add_turn(tx: Tx, group: Group, *, now_ms: int) -> TurnId:
    """Queue a turn in which a model updates the dashboard of a group, in a container of its own; return its
    id.
    """
    cursor = await tx.execute(
        """
        INSERT INTO turns (group_folder, chat_jid, kind, is_isolated, state, queued_ms, not_before_ms)
        VALUES (?, ?, 'worker', 1, 'queued', ?, ?) RETURNING id
        """,
        (group.folder, group.jid, now_ms, now_ms),
    )
    return TurnId((await returned(cursor))["id"])


async def open_model_turn(tx: Tx, folder: Folder) -> int | None:
    """Return the turn of a model's pass over a dashboard whose end is not recorded; None if there is none.

    The turn is queued or running, or has ended a moment ago.
    """
    cursor = await tx.execute(
        """
        SELECT turn_id FROM worker_cycles
        WHERE group_folder = ? AND kind = 'llm' AND ended_ms IS NULL ORDER BY id DESC LIMIT 1
        """,
        (folder,),
    )
    row = await cursor.fetchone()
    return row["turn_id"] if row else None


async def ended_model_passes(tx: Tx) -> list[EndedPass]:
    """Return the models' passes whose turn has ended but which are not recorded as ended, oldest first."""
    rows = await tx.execute_fetchall(
        """
        SELECT c.id, c.group_folder, c.turn_id, c.trigger_json, t.state, t.reason
        FROM worker_cycles c JOIN turns t ON t.id = c.turn_id
        WHERE c.kind = 'llm' AND c.ended_ms IS NULL AND t.state IN ('answered', 'failed') ORDER BY c.id
        """
    )
    return [
        EndedPass(
            pass_id=row["id"],
            folder=Folder(row["group_folder"]),
            turn_id=row["turn_id"],
            state=TurnState(row["state"]),
            reason=row["reason"],
            digest=json.loads(row["trigger_json"]).get("digest", ""),
        )
        for row in rows
    ]


async def changed_by(tx: Tx, turn_id: int) -> int:
    """Count the tasks, questions and notifications whose last change was made by this turn."""
    cursors = [
        await tx.execute(f"SELECT count(*) AS n FROM {table} WHERE changed_turn = ?", (turn_id,))  # noqa: S608
        for table in _TABLES_WITH_CHANGED_TURN
    ]
    return sum([(await returned(cursor))["n"] for cursor in cursors])


async def was_changed_by_others(tx: Tx, turn_id: int, folder: Folder) -> bool:
    """Return whether a task was changed by anybody but this turn since the turn was shown the dashboard.

    False for a turn that was never shown the dashboard.
    """
    cursor = await tx.execute(
        """
        SELECT 1 FROM dashboard_tasks t JOIN dashboard_views v ON v.turn_id = :turn
        WHERE t.group_folder = :folder AND t.version > v.revision AND t.changed_turn IS NOT :turn LIMIT 1
        """,
        {"turn": turn_id, "folder": folder},
    )
    return await cursor.fetchone() is not None


async def shown_answers(tx: Tx, turn_id: int) -> list[str]:
    """Return the ids of the answered questions whose present answers a turn was shown."""
    # `dashboard_views` records that a turn was shown the whole dashboard, which has no answered questions; it
    # is joined only for the group. `dashboard_seen` has the rows that the turn was shown beside it. A change
    # since raises a question's version. If another made it, the answer may have been replaced: then the
    # question is left out, so that the next turn is shown it.
    rows = await tx.execute_fetchall(
        """
        SELECT s.row_id FROM dashboard_seen s JOIN dashboard_views v ON v.turn_id = s.turn_id
        JOIN questions q ON q.group_folder = v.group_folder AND q.id = s.row_id
        WHERE s.turn_id = :turn AND q.answered_ms IS NOT NULL
            AND (q.version <= s.version OR q.changed_turn = :turn)
        """,
        {"turn": turn_id},
    )
    return [row["row_id"] for row in rows]


async def forget_passes(tx: Tx, folder: Folder, *, before_ms: int) -> int:
    """Delete the passes of the worker over a group's dashboard that have ended and began before `before_ms`.

    Return how many were deleted.
    """
    cursor = await tx.execute(
        "DELETE FROM worker_cycles WHERE group_folder = ? AND ended_ms IS NOT NULL AND started_ms < ?",
        (folder, before_ms),
    )
    return cursor.rowcount
