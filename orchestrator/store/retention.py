"""Find and delete the rows of each table that ended long ago and that nothing refers to any more.

Never deleted are: the audit, whose chain has no gaps; insights, people, projects; budgets, groups, sessions.
Tables with a limit of their own are not here either: events, wakes, notices, checkpoints.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.store.database import Tx, readonly_uri

ROWID, OVER_MS = "_rowid", "_over_ms"
"""Names of two values that are read with each row besides its columns: its rowid, and when it ended."""
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """The SQL that decides which rows of a table may be removed."""

    table: str
    time: str
    """SQL: when a row ended, in epoch milliseconds."""
    is_over: str
    """SQL: whether nothing refers to a row, and nothing remains to be done with it."""
    more: str = ""
    """SQL: a comma and one more column for the archive, or nothing.

    The column has the rows that the database deletes together with this one.
    """
    removed_with_it: tuple[str, ...] = ()
    """Tables whose rows only describe one of `turns`, by their `turn_id`: they are deleted with it, not
    archived.
    """


# SQL conditions on a row: whether its task or its question is open, whether a notification about it is still
# to be sent (by the column `{1}`), and whether an open question is about the task.
_OPEN_TASK = """EXISTS (SELECT 1 FROM dashboard_tasks AS t WHERE t.group_folder = {0}.group_folder
    AND t.id = {0}.task_id AND t.status IN ('active', 'someday'))"""
_OPEN_QUESTION = """EXISTS (SELECT 1 FROM questions AS q WHERE q.group_folder = notifications.group_folder
    AND q.id = notifications.question_id AND q.answered_ms IS NULL AND q.closed_ms IS NULL)"""
_TO_COME_OF = """EXISTS (SELECT 1 FROM notifications AS n WHERE n.group_folder = {0}.group_folder
    AND n.{1} = {0}.id AND n.status IN ('pending', 'sending'))"""
_ASKED_OF_TASK = """EXISTS (SELECT 1 FROM questions AS q WHERE q.group_folder = dashboard_tasks.group_folder
    AND q.task_id = dashboard_tasks.id AND q.answered_ms IS NULL AND q.closed_ms IS NULL)"""
# Whether a later notification has the same subject, type, cause and status.
_LATER_ALIKE = """EXISTS (SELECT 1 FROM notifications AS n WHERE n.group_folder = notifications.group_folder
    AND n.task_id IS notifications.task_id AND n.question_id IS notifications.question_id
    AND n.type = notifications.type AND n.cause IS notifications.cause AND n.status = notifications.status
    AND (n.due_ms, n.id) > (notifications.due_ms, notifications.id))"""

_HISTORY = """, (SELECT json_group_array(json_object('at_ms', at_ms, 'what', what, 'by_whom', by_whom,
        'turn_id', turn_id, 'detail', json(detail_json)))
    FROM (SELECT * FROM notification_history AS h WHERE h.group_folder = notifications.group_folder
          AND h.notification_id = notifications.id ORDER BY h.id)) AS history_json"""

_VOTES = """, (SELECT json_group_array(json_object('voter', voter, 'voter_name', voter_name,
        'chosen', json(chosen_json), 'voted_ms', voted_ms))
    FROM (SELECT * FROM poll_votes AS v WHERE v.poll_id = polls.id ORDER BY v.voted_ms)) AS votes_json"""

POLICIES = (
    RetentionPolicy(
        table="notifications",
        time="coalesce(delivered_ms, cancelled_ms, due_ms)",
        # The rules look up the last notification about an open task or question, to avoid a repetition;
        # earlier ones of the same kind may go.
        is_over="status NOT IN ('pending', 'sending') AND (NOT ("
        + _OPEN_TASK.format("notifications")
        + f" OR {_OPEN_QUESTION}) OR {_LATER_ALIKE})",
        more=_HISTORY,
    ),
    RetentionPolicy(
        table="questions",
        time="coalesce(answered_ms, closed_ms)",
        is_over="(answered_ms IS NOT NULL OR closed_ms IS NOT NULL) AND NOT "
        + _OPEN_TASK.format("questions")
        + " AND NOT "
        + _TO_COME_OF.format("questions", "question_id"),
    ),
    RetentionPolicy(
        table="dashboard_tasks",
        time="archived_ms",
        is_over="archived_ms IS NOT NULL AND NOT "
        + _TO_COME_OF.format("dashboard_tasks", "task_id")
        + f" AND NOT {_ASKED_OF_TASK}",
    ),
    # Of these lists, and of cycles and runs, the newest of each group stays, however old it is.
    RetentionPolicy(
        table="question_lists",
        time="told_ms",
        is_over="id < (SELECT max(id) FROM question_lists AS l"
        " WHERE l.group_folder = question_lists.group_folder)",
    ),
    RetentionPolicy(
        table="cycles",
        time="ended_ms",
        is_over="ended_ms IS NOT NULL"
        " AND id < (SELECT max(id) FROM cycles AS c WHERE c.group_folder = cycles.group_folder)",
    ),
    # A request is answered once: its answer outlives by far the container that may send it again.
    RetentionPolicy(table="commands", time="at_ms", is_over="TRUE"),
    RetentionPolicy(table="usage", time="at_ms", is_over="TRUE"),
    RetentionPolicy(
        table="messages",
        time="received_ms",
        # A prompt may go back to unanswered messages: the newest of a chat stay, however old they are.
        is_over="seq < (SELECT m.seq FROM messages AS m WHERE m.chat_jid = messages.chat_jid"
        " ORDER BY m.seq DESC LIMIT 1 OFFSET 500)"
        " AND (turn_id IS NULL OR EXISTS (SELECT 1 FROM turns WHERE id = turn_id AND ended_ms IS NOT NULL))",
    ),
    RetentionPolicy(
        table="polls",
        time="coalesce(ended_ms, created_ms)",
        # A late vote answers a poll as long as the poll is in the chat's history.
        is_over="(ended_ms IS NOT NULL OR ends_ms IS NULL)"
        " AND NOT EXISTS (SELECT 1 FROM messages AS m WHERE m.id = polls.message_id)",
        more=_VOTES,
    ),
    # Messages that failed for good stay: the owner may send them again.
    RetentionPolicy(
        table="outbox",
        time="coalesce(sent_ms, created_ms)",
        is_over="state IN ('sent', 'skipped')"
        " AND NOT EXISTS (SELECT 1 FROM outbox AS o WHERE o.part_of = outbox.id)"
        # The skipped parts of such a message, too: they are sent again with it.
        " AND NOT (state = 'skipped' AND EXISTS (SELECT 1 FROM outbox AS o"
        " WHERE o.state IN ('dead', 'unknown') AND (o.id = outbox.part_of OR o.part_of = outbox.part_of)))",
    ),
    RetentionPolicy(table="task_run_logs", time="run_at", is_over="status <> 'running'"),
    RetentionPolicy(
        table="scheduled_tasks",
        time="status_at",
        is_over="status IN ('completed', 'cancelled')"
        " AND NOT EXISTS (SELECT 1 FROM task_run_logs AS l WHERE l.task_id = scheduled_tasks.id)"
        " AND NOT EXISTS (SELECT 1 FROM turns AS t WHERE t.task_id = scheduled_tasks.id"
        " AND t.state IN ('queued', 'running'))",
    ),
    # Permanent approvals stay. A permanent refusal stays, too: its end is far in the future.
    RetentionPolicy(table="approvals", time="expires_ms", is_over="state <> 'always'"),
    RetentionPolicy(table="access_requests", time="decided_ms", is_over="state IN ('registered', 'ignored')"),
    RetentionPolicy(
        table="tool_calls",
        time="started_ms",
        is_over="EXISTS (SELECT 1 FROM turns AS t WHERE t.id = turn_id AND t.ended_ms IS NOT NULL)",
    ),
    RetentionPolicy(
        table="turns",
        time="ended_ms",
        # A message refers to its turn as long as it exists; a command separates earlier from later messages.
        is_over="ended_ms IS NOT NULL AND command IS NULL"
        " AND NOT EXISTS (SELECT 1 FROM messages AS m WHERE m.turn_id = turns.id)"
        " AND NOT EXISTS (SELECT 1 FROM outbox AS o WHERE o.turn_id = turns.id)"
        " AND NOT EXISTS (SELECT 1 FROM task_run_logs AS l WHERE l.turn_id = turns.id)"
        " AND NOT EXISTS (SELECT 1 FROM checkpoints AS c WHERE c.turn_id = turns.id)"
        " AND NOT EXISTS (SELECT 1 FROM worker_cycles AS w WHERE w.turn_id = turns.id)"
        " AND NOT EXISTS (SELECT 1 FROM cycles AS c WHERE c.turn_id = turns.id)",
        removed_with_it=("dashboard_seen", "dashboard_views", "turn_stops", "turn_outages", "tool_calls"),
    ),
    RetentionPolicy(
        table="runs",
        time="ended_ms",
        is_over="ended_ms IS NOT NULL AND NOT EXISTS (SELECT 1 FROM turns AS t WHERE t.run_id = runs.id)"
        " AND NOT EXISTS (SELECT 1 FROM answered_sessions AS s WHERE s.run_id = runs.id)"
        " AND started_ms < (SELECT max(started_ms) FROM runs AS r WHERE r.group_folder = runs.group_folder)",
    ),
)
"""The policies in the order in which they are applied: rows that refer to others come first."""


def has_removable_rows(database: Path, before_ms: Mapping[RetentionPolicy, int]) -> bool:
    """Return whether any table has a row that may be removed. Blocks.

    `before_ms` maps the policy of each table to a time: rows that ended before it may be removed (epoch ms).
    One connection is used for all tables: opening one costs more than the queries, and mostly there is no
    such row.

    Raises:
        StoreError: there is no database, or a newer Andy wrote it.
        sqlite3.Error: it cannot be read.
    """
    with closing(sqlite3.connect(readonly_uri(database), uri=True)) as connection:
        return any(
            connection.execute(
                f"SELECT 1 FROM {policy.table} WHERE {policy.time} < ? AND {policy.is_over} LIMIT 1",  # noqa: S608 - constants
                (ms,),
            ).fetchone()
            for policy, ms in before_ms.items()
        )


def removable_rows(database: Path, policy: RetentionPolicy, *, before_ms: int, limit: int) -> Rows:
    """Return at most `limit` rows of a table that ended before `before_ms` and may be removed. Blocks.

    `policy` names the table, and has the SQL that says when a row has ended and may be removed. The rows come
    in the order in which they were stored. Each is a dict by column name, with its rowid as `ROWID`, its end
    in epoch ms as `OVER_MS`, and the column that `policy.more` adds for the archive, if it adds one.

    Raises:
        StoreError: there is no database, or a newer Andy wrote it.
        sqlite3.Error: it cannot be read.
    """
    with closing(sqlite3.connect(readonly_uri(database), uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        rows = connection.execute(
            f"""
            SELECT rowid AS {ROWID}, {policy.time} AS {OVER_MS}, *{policy.more} FROM {policy.table}
            WHERE {policy.time} < ? AND {policy.is_over} ORDER BY rowid LIMIT ?
            """,  # noqa: S608 - constants
            (before_ms, limit),
        )
        return [dict(row) for row in rows]


async def remove(tx: Tx, policy: RetentionPolicy, rows: Rows) -> int:
    """Delete the `rows` that have not changed since `removable_rows` read them; return how many were deleted.

    A row that may no longer be removed stays, too. Rows of other tables that only describe deleted rows are
    deleted with them.
    """
    by_id = {row[ROWID]: row for row in rows}
    # The same columns as in `removable_rows`, with the one of `policy.more`, so that the rows can be
    # compared.
    present_rows = await tx.execute_fetchall(
        f"""
        SELECT rowid AS {ROWID}, {policy.time} AS {OVER_MS}, *{policy.more} FROM {policy.table}
        WHERE rowid IN (SELECT value FROM json_each(?)) AND {policy.is_over}
        """,  # noqa: S608 - constants
        (json.dumps(sorted(by_id)),),
    )
    # The archive has no copy of the present state of a row that has changed since it was read: the row stays,
    # and the next pass archives it.
    unchanged_ids_json = json.dumps([row[ROWID] for row in present_rows if dict(row) == by_id[row[ROWID]]])
    # Only the policy of `turns` has `removed_with_it`, and the rowid of a turn is its id.
    for table in policy.removed_with_it:
        await tx.execute(
            f"DELETE FROM {table} WHERE turn_id IN (SELECT value FROM json_each(?))",  # noqa: S608 - ours
            (unchanged_ids_json,),
        )
    cursor = await tx.execute(
        f"DELETE FROM {policy.table} WHERE rowid IN (SELECT value FROM json_each(?))",  # noqa: S608 - ours
        (unchanged_ids_json,),
    )
    return cursor.rowcount
