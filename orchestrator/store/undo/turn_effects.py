"""`turn_effects`: each row that a turn's commands changed, before and after, for undoing the turn.

SQLite records the changes: temporary triggers on the tables of `TRACKED` write the row before and after a
change into `turn_effects`, in the transaction of the change, while `recording` names the turn. No service
that changes a row has to do anything, and cascading changes are recorded like any other. The triggers belong
to the host's connection; they are created from the present schema when a turn sends its first command.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from orchestrator.domain.values import Folder, TurnId
from orchestrator.store.conversation.outbox import OF_OWNER
from orchestrator.store.database import Tx
from orchestrator.store.row_mapper import Json, RowMapper

DAY_MS = 24 * 3_600_000
UNDO_MS = 7 * DAY_MS
"""Milliseconds for which a turn can be undone."""
FILE = "file"
"""Table name of an effect on a file of the group's folder; its key is the path."""
UNKNOWN_FILES = "unknown_files"
"""Table name of an effect on an unknown set of files; its key is the reason."""
OUT_OF_REACH = "out_of_reach"
"""Table name of a change that an undo cannot reverse; its key is a kind and an id."""
PROVISIONAL = TurnId(0)
"""Turn id of changes whose turn has no number yet."""
_BOARD = frozenset({"version", "changed_turn"})
"""Columns that each change of a dashboard's row sets."""
_PLANNED = frozenset({"timezone", "next_run"})
"""Columns of a scheduled task that are recomputed when the group's time zone changes."""
_OF_RULES = frozenset({"archived_ms", "updated_ms"})
"""Columns of a completed task of a dashboard that change when the rules move it to the history."""
_SCHEDULE = ("schedule_type", "schedule_value", "next_run")
"""Columns of a scheduled task that a change of its schedule changes."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedTable:
    """A table whose changes are recorded."""

    name: str
    key: tuple[str, ...] = ("id",)
    title: str | None = None
    """The column that people know a row by; None for rows that only belong to others and are not listed."""
    host_columns: frozenset[str] = frozenset()
    """Columns that the host itself changes.

    A change of these alone does not count as a later change, and an undo leaves them as they are.
    """
    is_sending: bool = False
    """Whether only added rows are recorded: messages and runs, which an undo stops but does not delete."""
    condition: str = "1"
    """A condition in SQL on `{row}`, the row that is changed."""


_OF_GROUP = ("group_folder", "id")
TRACKED = (
    TrackedTable(
        name="notifications",
        key=_OF_GROUP,
        title="message",
        host_columns=_BOARD | {"next_attempt_ms", "error"},
    ),
    TrackedTable(name="notification_history"),
    TrackedTable(name="dashboard_tasks", key=_OF_GROUP, title="title", host_columns=_BOARD),
    TrackedTable(
        name="questions",
        key=_OF_GROUP,
        title="question",
        host_columns=_BOARD | {"asked_count", "last_asked_ms", "processed_ms"},
    ),
    TrackedTable(name="insights", key=_OF_GROUP, title="title"),
    TrackedTable(name="memory_notes", title="text"),
    TrackedTable(name="people", key=_OF_GROUP, title="id"),
    TrackedTable(name="projects", key=_OF_GROUP, title="id"),
    TrackedTable(
        name="scheduled_tasks",
        title="prompt",
        host_columns=frozenset({"last_run", "last_result", "failures"}),
    ),
    TrackedTable(
        name="cross_session_notifications",
        title="payload_json",
        host_columns=frozenset(
            {
                *(
                    "turns_remaining",
                    "counted_turn",
                    "session_id",
                    "claim_turn",
                    "claim_attempt",
                    "claimed_ms",
                ),
                *("state", "deliveries", "delivered_ms", "told_session", "formatted_content"),
            }
        ),
        # The host adds its facts without a request, and the next of a kind replaces the last.
        condition="{row}.agent <> 'host'",
    ),
    TrackedTable(name="registered_groups", key=("jid",), title="name"),
    TrackedTable(name="group_chats", key=("jid",), title="jid"),
    TrackedTable(name="group_changes"),
    TrackedTable(name="model_choices", key=("work", "place"), title="model"),
    TrackedTable(
        name="loop_state",
        key=("group_folder",),
        title="group_folder",
        host_columns=frozenset(
            {
                *("lease_owner", "lease_until_ms", "last_start_ms", "last_end_ms", "now_streak"),
                *("noop_streak", "next_wake_ms", "wake_set_by", "wake_reason", "trace_json"),
                *("auto_interval_ms", "held_reason"),
            }
        ),
    ),
    TrackedTable(
        name="polls",
        title="question",
        host_columns=frozenset(
            {"is_text", "channel_ref", "chat_jid", "ended_ms", "closed_ms", "begun", "end_turn"}
        ),
    ),
    # A warning of the host to the owner is not an action of the turn that caused it.
    TrackedTable(
        name="outbox",
        title="text",
        is_sending=True,
        condition=f"substr({{row}}.dedupe_key, 1, {len(OF_OWNER)}) <> '{OF_OWNER}'",
    ),
    TrackedTable(name="turns", title="task_id", is_sending=True),
)
BY_NAME = {table.name: table for table in TRACKED}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowEffect:
    """The change of a row or file by a turn."""

    turn_id: TurnId
    table: str
    row_key: str
    """The values of the primary key, or the path, as a JSON array."""
    before: Row | None
    """The row before the turn, by columns; None if it was added."""
    after: Row | None
    """The row after the turn; None if it was removed."""

    @property
    def key(self) -> tuple[Any, ...]:
        """The values of the row's primary key, or the path of the file as the only value."""
        return tuple(json.loads(self.row_key))


_MAPPER = RowMapper(
    RowEffect,
    "turn_effects",
    {"table": "table_name", "before": Json("before"), "after": Json("after")},
    unread=("id", "at_ms"),
)


@asynccontextmanager
async def recording(tx: Tx, turn_id: TurnId, *, now_ms: int, with_sent: bool = False) -> AsyncIterator[None]:
    """Record the rows that the block changes as effects of a turn, so that the turn can be undone.

    In the tables of texts to send and of turns (`TrackedTable.is_sending`), only added rows are recorded.
    An undo sets `with_sent`, so that changed and deleted rows are recorded there, too.
    """
    await _make_triggers(tx)
    await tx.execute("INSERT INTO temp.recorded_turn VALUES (?, ?, ?)", (turn_id, now_ms, with_sent))
    try:
        yield
    finally:
        # After a rollback there is nothing to remove. If the transaction has also created the table, that is
        # gone, too: then the statement raises `OperationalError`.
        with suppress(sqlite3.OperationalError):
            await tx.execute("DELETE FROM temp.recorded_turn")


async def _make_triggers(tx: Tx) -> None:
    """Create the temporary table and the triggers that record changed rows, once for each connection."""
    rows = await tx.execute_fetchall("SELECT 1 FROM temp.sqlite_master WHERE name = 'recorded_turn'")
    if list(rows):
        return
    await tx.execute(
        "CREATE TEMP TABLE recorded_turn (turn_id INTEGER NOT NULL, at_ms INTEGER NOT NULL,"
        " with_sent INTEGER NOT NULL)"
    )
    for table in TRACKED:
        columns = [row["name"] for row in await tx.execute_fetchall(f"PRAGMA main.table_info({table.name})")]
        for statement in _triggers(table, columns):
            await tx.execute(statement)


def _triggers(table: TrackedTable, columns: Sequence[str]) -> list[str]:
    """Return the SQL statements that create the triggers which record changes of a table. Pure.

    `columns` are the names of the table's columns. In a table of texts to send or of turns (`is_sending`),
    changed and deleted rows are recorded only while `with_sent` is set, see `recording`.
    """

    # In these functions, `row` is `OLD` or `NEW`: a trigger's name for the row before or after the change.
    def row_json(row: str) -> str:
        """Return the SQL expression for a row as a JSON object."""
        return "json_object(" + ", ".join(f"'{name}', {row}.\"{name}\"" for name in columns) + ")"

    def key(row: str) -> str:
        """Return the SQL expression for the key of a row as a JSON list."""
        return "json_array(" + ", ".join(f'{row}."{name}"' for name in table.key) + ")"

    def insert(key_sql: str, before: str, after: str, where: str = "1") -> str:
        """Return the SQL statement of a trigger that records a change; all arguments are SQL expressions.

        If the turn has changed the row before, the state before its first change stays recorded.
        """
        return f"""
            INSERT INTO turn_effects (turn_id, at_ms, table_name, row_key, before, after)
            SELECT turn_id, at_ms, '{table.name}', {key_sql}, {before}, {after} FROM recorded_turn
            WHERE {where} ON CONFLICT (turn_id, table_name, row_key) DO UPDATE SET after = excluded.after;
        """  # noqa: S608 - names are ours

    # `with_sent` is a column of `recorded_turn`, the table that names the turn while changes are recorded.
    is_same_key = f"{key('OLD')} = {key('NEW')}"
    # Conditions on which an added row is recorded (`if_new`), and any other change (`if_old`).
    if_new = table.condition.format(row="NEW")
    if_old = table.condition.format(row="OLD") + (" AND with_sent" if table.is_sending else "")
    bodies = {
        "INSERT": insert(key("NEW"), "NULL", row_json("NEW"), if_new),
        # A changed key counts as the end of the row with the old key, and as a new row with the new one.
        "UPDATE": insert(key("OLD"), row_json("OLD"), f"iif({is_same_key}, {row_json('NEW')}, NULL)", if_old)
        + insert(key("NEW"), "NULL", row_json("NEW"), f"{if_old} AND NOT {is_same_key}"),
        "DELETE": insert(key("OLD"), row_json("OLD"), "NULL", if_old),
    }
    return [
        f"CREATE TEMP TRIGGER recorded_{table.name}_{event} AFTER {event} ON main.{table.name}"
        f" BEGIN {body} END"
        for event, body in bodies.items()
    ]


async def assign_provisional(tx: Tx, turn_id: TurnId) -> None:
    """Assign the changes that were recorded before their turn was stored to that turn."""
    await tx.execute("UPDATE turn_effects SET turn_id = ? WHERE turn_id = ?", (turn_id, PROVISIONAL))


async def forget_provisional(tx: Tx) -> None:
    """Delete the recorded changes whose turn was never stored."""
    await tx.execute("DELETE FROM turn_effects WHERE turn_id = ?", (PROVISIONAL,))


async def add(tx: Tx, effect: RowEffect, *, now_ms: int) -> None:
    """Record a change that the database's triggers cannot see, such as that of a file.

    If the turn has changed the same row or file before, its state before that first change stays recorded.
    """
    await tx.execute(
        """
        INSERT INTO turn_effects (turn_id, at_ms, table_name, row_key, before, after)
        VALUES (?, ?, ?, ?, ?, ?)
        ON CONFLICT (turn_id, table_name, row_key) DO UPDATE SET after = excluded.after
        """,
        (
            effect.turn_id,
            now_ms,
            effect.table,
            effect.row_key,
            None if effect.before is None else json.dumps(effect.before),
            None if effect.after is None else json.dumps(effect.after),
        ),
    )


async def note_out_of_reach(tx: Tx, turn_id: TurnId, kind: str, own_id: str, *, now_ms: int) -> None:
    """Record that a turn made a change which an undo cannot reverse, so that the undo can report it.

    `kind` and `own_id` say which change.
    """
    # `after` is not None, as `before` is: `of_turn` would leave out a row that ended up as before.
    effect = RowEffect(
        turn_id=turn_id, table=OUT_OF_REACH, row_key=json.dumps([kind, own_id]), before=None, after={}
    )
    await add(tx, effect, now_ms=now_ms)


async def of_turn(tx: Tx, turn_id: TurnId) -> list[RowEffect]:
    """Return the changes that a turn made to rows and files, in order, one for each row or file.

    Those that ended up as before are left out.
    """
    effects = await _MAPPER.fetch_all(
        tx, "SELECT * FROM turn_effects WHERE turn_id = ? ORDER BY id", (turn_id,)
    )
    return [effect for effect in effects if effect.before != effect.after]


async def later_turns(tx: Tx, effect: RowEffect) -> list[TurnId]:
    """Return the turns after the effect's own that changed the same row or file, oldest first."""
    rows = await tx.execute_fetchall(
        "SELECT turn_id FROM turn_effects WHERE table_name = ? AND row_key = ? AND turn_id > ?"
        " ORDER BY turn_id",
        (effect.table, effect.row_key, effect.turn_id),
    )
    return [TurnId(row["turn_id"]) for row in rows]


async def current(tx: Tx, effect: RowEffect) -> Row | None:
    """Return the row that an effect is about as it is stored now, by column name; None if it is gone."""
    table = BY_NAME[effect.table]
    where = " AND ".join(f'"{name}" = ?' for name in table.key)
    rows = await tx.execute_fetchall(f"SELECT * FROM {table.name} WHERE {where}", effect.key)  # noqa: S608 - ours
    return next((dict(row) for row in rows), None)


def is_unchanged_since(effect: RowEffect, present: Row | None) -> bool:
    """Return whether the row that a turn changed is still as the turn left it. Pure.

    `present` is the row as it is stored now; None if it is gone. A row that the turn deleted is unchanged if
    it is still gone. Columns that only the host itself changes are not compared, nor columns that the host
    has recomputed because a time has passed or the group's time zone was changed.
    """
    if present is None or effect.after is None:
        return present is None and effect.after is None
    ignored = BY_NAME[effect.table].host_columns | _moved_by_host(effect, effect.after, present)
    return all(present.get(name) == value for name, value in effect.after.items() if name not in ignored)


def _moved_by_host(effect: RowEffect, after: Row, present: Row) -> frozenset[str]:
    """Return the columns in which two states of a row may differ though no person or agent changed it.

    An undo does not count such a difference as a later change. `after` is the row as the turn of the effect
    left it, `present` the row as it is stored now.
    """
    if effect.table == "dashboard_tasks":
        # The host moves the start of the deadline's day when the zone changes. A change by people shows in
        # `deadline_date`. The rules move a completed task to the history.
        zone_columns = frozenset({"deadline_ms"}) if after["deadline_date"] is not None else frozenset()
        return zone_columns | (_OF_RULES if after["status"] == "completed" else frozenset())
    if effect.table == "scheduled_tasks":
        # If the turn itself changed the schedule, no column is left out: an undo has to restore them all.
        if any((effect.before or after)[name] != after[name] for name in _SCHEDULE):
            return frozenset()
        if after["timezone"] != present["timezone"]:
            return _PLANNED
        # Otherwise only a run of the task moves `next_run`. For a task that the turn added, that counts as a
        # later change; one that existed before the turn goes on as it did.
        return frozenset() if effect.before is None else frozenset({"next_run"})
    return frozenset()


async def put_back(tx: Tx, effects: Sequence[RowEffect]) -> None:
    """Restore the rows of all these effects to their state before the turn that changed them.

    Columns that only the host changes, and that have changed since the turn, are left as they are.

    Raises:
        sqlite3.IntegrityError: a deleted row cannot be added, because another row has its key by now.
    """
    table_order = {table.name: index for index, table in enumerate(TRACKED)}
    ordered = sorted(effects, key=lambda effect: table_order[effect.table])
    states = [(effect, await current(tx, effect)) for effect in ordered]
    # Rows that refer to others come after them in `TRACKED`: they are deleted first and added last.
    for effect, present in reversed(states):
        if effect.before is None and present is not None:
            await _remove(tx, effect)
    for effect, present in states:
        if effect.before is not None and present is not None:
            await _update(tx, effect, present)
    for effect, present in states:
        if effect.before is not None and present is None:
            await _insert(tx, effect.table, effect.before)


async def _insert(tx: Tx, table: str, row: Row) -> None:
    """Insert a row into a table; `row` maps column names to values."""
    names = ", ".join(f'"{name}"' for name in row)
    placeholders = ", ".join("?" for _ in row)
    await tx.execute(
        f"INSERT INTO {table} ({names}) VALUES ({placeholders})",  # noqa: S608 - names are columns
        tuple(row.values()),
    )


async def _remove(tx: Tx, effect: RowEffect) -> None:
    """Delete the row that a turn added; a scheduled task that has run is cancelled instead."""
    if effect.table == "scheduled_tasks" and await _has_run(tx, effect):
        # The runs of a task are history and refer to the task, so its row stays.
        await tx.execute(
            "UPDATE scheduled_tasks SET status = 'cancelled', next_run = NULL WHERE id = ?", effect.key
        )
        return
    where = " AND ".join(f'"{name}" = ?' for name in BY_NAME[effect.table].key)
    await tx.execute(f"DELETE FROM {effect.table} WHERE {where}", effect.key)  # noqa: S608 - ours


async def _has_run(tx: Tx, effect: RowEffect) -> bool:
    """Return whether the scheduled task that a turn added has a run, or a skipped one, on record."""
    rows = await tx.execute_fetchall("SELECT 1 FROM task_run_logs WHERE task_id = ? LIMIT 1", effect.key)
    return bool(list(rows))


async def _update(tx: Tx, effect: RowEffect, present: Row) -> None:
    """Set a changed row to its state before the turn; `present` is the row as it is stored now.

    Columns that only the host changes, and that have changed since the turn, are left as they are.
    """
    assert effect.before is not None
    table, after = BY_NAME[effect.table], effect.after or {}
    host_columns = table.host_columns
    if effect.table == "scheduled_tasks" and after:
        # If a run or another time zone has moved the due time since the turn, it stays as it is: the one
        # before the turn may be over, and the task would run at once.
        host_columns |= _moved_by_host(effect, after, present)
    values = {
        name: value
        for name, value in effect.before.items()
        if name not in host_columns or present.get(name) == after.get(name)
    }
    if not values:
        return
    changes = ", ".join(f'"{name}" = ?' for name in values)
    where = " AND ".join(f'"{name}" = ?' for name in table.key)
    await tx.execute(
        f"UPDATE {table.name} SET {changes} WHERE {where}",  # noqa: S608 - names are columns
        (*values.values(), *effect.key),
    )


async def forget(tx: Tx, folder: Folder) -> None:
    """Delete all recorded changes of a group's turns, so that none of them can be undone."""
    await tx.execute(
        "DELETE FROM turn_effects WHERE turn_id IN (SELECT id FROM turns WHERE group_folder = ?)", (folder,)
    )


async def expire(tx: Tx, *, now_ms: int) -> list[Folder]:
    """Delete recorded changes older than `UNDO_MS`, and undos of that age whose files are restored.

    Return the groups in whose turns the deleted changes were made.
    """
    rows = await tx.execute_fetchall(
        """
        SELECT DISTINCT t.group_folder AS folder FROM turn_effects AS e JOIN turns AS t ON t.id = e.turn_id
        WHERE e.at_ms < ?
        """,
        (now_ms - UNDO_MS,),
    )
    await tx.execute("DELETE FROM turn_effects WHERE at_ms < ?", (now_ms - UNDO_MS,))
    await tx.execute("DELETE FROM undos WHERE at_ms < ? AND has_files_due = 0", (now_ms - UNDO_MS,))
    return [Folder(row["folder"]) for row in rows]
