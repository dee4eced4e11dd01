"""What the upkeep of dashboards asks of the store: its cycles, its turns, and what they changed."""

from __future__ import annotations

import json
from dataclasses import dataclass

from orchestrator.domain.values import Folder, Group, TurnId, TurnState
from orchestrator.store.database import Tx, returned

_CHANGING = ("dashboard_tasks", "questions", "notifications")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedCycle:
    """A model's cycle whose turn is settled, and which is not written down as ended yet."""

    cycle_id: int
    folder: Folder
    turn_id: int
    state: TurnState
    reason: str | None
    digest: str
    """What it was asked about, as `judging` says it."""


async def next_ms(tx: Tx) -> int | None:
    """When the rules look at a dashboard next."""
    cursor = await tx.execute("SELECT min(rules_next_ms) AS at FROM dashboards")
    return (await returned(cursor))["at"]  # type: ignore[no-any-return]


async def hasten(tx: Tx) -> None:
    """Have the rules look at the minute at which a deadline calls for something new, once.

    That is a day before it and at its time; of a moment also two hours before. A day is over 23 to 25 hours
    after it began, and what is said of that is said in the morning after.
    """
    await tx.execute(
        """
        UPDATE dashboards SET rules_next_ms = near.at FROM (
            SELECT d.group_folder, min(t.deadline_ms + lead.ms) AS at
            FROM dashboards d
            JOIN dashboard_tasks t ON t.group_folder = d.group_folder AND t.archived_ms IS NULL
                AND t.status IN ('active', 'someday')
                AND t.deadline_ms BETWEEN d.rules_last_ms - 90000000 AND d.rules_next_ms + 86400000
            JOIN (SELECT -86400000 AS ms, NULL AS is_timed UNION ALL SELECT 0, NULL
                  UNION ALL SELECT -7200000, TRUE UNION ALL SELECT 90000000, FALSE) AS lead
                ON lead.is_timed IS NULL OR lead.is_timed = (t.deadline_date IS NULL)
            WHERE t.deadline_ms + lead.ms > d.rules_last_ms AND t.deadline_ms + lead.ms < d.rules_next_ms
            GROUP BY d.group_folder
        ) AS near WHERE near.group_folder = dashboards.group_folder
        """
    )


async def add_turn(tx: Tx, group: Group, *, now_ms: int) -> TurnId:
    """Queue a turn that keeps a dashboard up, in a container of its own."""
    cursor = await tx.execute(
        """
        INSERT INTO turns (group_folder, chat_jid, kind, is_isolated, state, queued_ms, not_before_ms)
        VALUES (?, ?, 'worker', 1, 'queued', ?, ?) RETURNING id
        """,
        (group.folder, group.jid, now_ms, now_ms),
    )
    return TurnId((await returned(cursor))["id"])


async def open_model_cycle(tx: Tx, folder: Folder) -> int | None:
    """The turn of a model that looks at a dashboard, or is about to."""
    cursor = await tx.execute(
        """
        SELECT turn_id FROM worker_cycles
        WHERE group_folder = ? AND kind = 'llm' AND ended_ms IS NULL ORDER BY id DESC LIMIT 1
        """,
        (folder,),
    )
    row = await cursor.fetchone()
    return row["turn_id"] if row else None


async def ended_model_cycles(tx: Tx) -> list[EndedCycle]:
    """Those whose turn is settled, the oldest first."""
    rows = await tx.execute_fetchall(
        """
        SELECT c.id, c.group_folder, c.turn_id, c.trigger_json, t.state, t.reason
        FROM worker_cycles c JOIN turns t ON t.id = c.turn_id
        WHERE c.kind = 'llm' AND c.ended_ms IS NULL AND t.state IN ('answered', 'failed') ORDER BY c.id
        """
    )
    return [
        EndedCycle(
            cycle_id=row["id"],
            folder=Folder(row["group_folder"]),
            turn_id=row["turn_id"],
            state=TurnState(row["state"]),
            reason=row["reason"],
            digest=json.loads(row["trigger_json"]).get("digest", ""),
        )
        for row in rows
    ]


async def changed_by(tx: Tx, turn_id: int) -> int:
    """How many rows a turn was the last to change."""
    counts = [
        await tx.execute(f"SELECT count(*) AS n FROM {table} WHERE changed_turn = ?", (turn_id,))  # noqa: S608
        for table in _CHANGING
    ]
    return sum([(await returned(cursor))["n"] for cursor in counts])


async def was_changed_beside(tx: Tx, turn_id: int, folder: Folder) -> bool:
    """Whether somebody else changed a task since the turn was shown the dashboard."""
    cursor = await tx.execute(
        """
        SELECT 1 FROM dashboard_tasks t JOIN dashboard_views v ON v.turn_id = :turn
        WHERE t.group_folder = :folder AND t.version > v.revision AND t.changed_turn IS NOT :turn LIMIT 1
        """,
        {"turn": turn_id, "folder": folder},
    )
    return await cursor.fetchone() is not None


async def shown_answers(tx: Tx, turn_id: int) -> list[str]:
    """The answered questions that a turn was shown."""
    rows = await tx.execute_fetchall(
        """
        SELECT s.row_id FROM dashboard_seen s JOIN dashboard_views v ON v.turn_id = s.turn_id
        JOIN questions q ON q.group_folder = v.group_folder AND q.id = s.row_id
        WHERE s.turn_id = ? AND q.answered_ms IS NOT NULL
        """,
        (turn_id,),
    )
    return [row["row_id"] for row in rows]


async def forget_cycles(tx: Tx, folder: Folder, *, before_ms: int) -> int:
    """Forget a group's ended cycles of long ago; tells how many."""
    cursor = await tx.execute(
        "DELETE FROM worker_cycles WHERE group_folder = ? AND ended_ms IS NOT NULL AND started_ms < ?",
        (folder, before_ms),
    )
    return cursor.rowcount
