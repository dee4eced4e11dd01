"""Read a whole dashboard as plain rows, for writing its files, over a connection of its own.

A dashboard may have tens of thousands of rows. Building frozen values of them all would take longer than the
rest.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from orchestrator.domain.values import Folder
from orchestrator.store.database import readonly_uri

_ERA_MS = 62_135_596_800_000
"""Milliseconds from year 1 to 1970: seconds are counted from year 1, or the
division would round up before 1970.
"""


class TaskRow(NamedTuple):
    id: str
    title: str
    raw_input: str
    deadline_date: str | None
    deadline_ms: int | None
    deadline_text: str
    estimation_json: str
    pct: int
    progress_note: str
    last_update_ms: int
    blocked_ms: int | None
    blocker_note: str | None
    status: str
    priority: str
    context: str
    tags_json: str
    links_json: str
    recurring_json: str | None
    reflection: str
    created_ms: int
    updated_ms: int
    completed_ms: int | None
    archived_ms: int | None
    user_set_json: str
    extra_json: str


class QuestionRow(NamedTuple):
    id: str
    question: str
    context: str
    priority: str
    type: str
    task_id: str | None
    asked_count: int
    last_asked_ms: int | None
    cooldown_h: int
    created_by: str
    created_ms: int
    answer: str | None
    answered_ms: int | None
    processed_ms: int | None
    options_json: str


class NotificationRow(NamedTuple):
    id: str
    message: str
    due_ms: int
    due_text: str | None
    type: str
    priority: str
    task_id: str | None
    question_id: str | None
    cause: str | None
    status: str
    context: str
    created_by: str
    created_ms: int
    delivered_ms: int | None
    cancelled_ms: int | None
    cancel_reason: str | None
    error: str | None


class InsightRow(NamedTuple):
    id: str
    category: str
    title: str
    content: str
    source: str
    tags_json: str
    links_json: str
    created_ms: int


Row = TypeVar("Row", TaskRow, QuestionRow, NotificationRow, InsightRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardRows:
    """All rows of a dashboard, each list ordered by its relevant second and then by id.

    `people` and `projects` are ordered by id alone.
    """

    revision: int
    tasks: list[TaskRow]
    """The tasks on the board."""
    history: list[TaskRow]
    """The archived tasks."""
    questions: list[QuestionRow]
    """Open and answered questions; one that was closed unanswered is not exported."""
    notifications: list[NotificationRow]
    insights: list[InsightRow]
    people: list[str]
    """The people, each as JSON text."""
    projects: list[str]


def read(path: Path, folder: Folder) -> DashboardRows | None:
    """Read all rows of a group's dashboard, as of one moment; return None for a group without one.

    Blocks, but holds no lock: others may write meanwhile.

    Raises:
        StoreError: there is no database at `path`, or a newer Andy wrote it.
        sqlite3.Error: it cannot be read.
    """
    with closing(sqlite3.connect(readonly_uri(path), uri=True, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        reader = _DashboardReader(connection, folder)
        revision = reader.revision()
        return None if revision is None else reader.rows(revision)


class _DashboardReader:
    """Reads the dashboard of one group over an open connection."""

    def __init__(self, connection: sqlite3.Connection, folder: Folder) -> None:
        self._connection = connection
        self._folder = folder

    def revision(self) -> int | None:
        """Return the dashboard's revision; None if the group has no dashboard."""
        row = self._connection.execute(
            "SELECT revision FROM dashboards WHERE group_folder = ?", (self._folder,)
        ).fetchone()
        return None if row is None else int(row[0])

    def rows(self, revision: int) -> DashboardRows:
        """Return the rows of the dashboard, with its present `revision`.

        Only questions that were closed without an answer are left out.
        """
        return DashboardRows(
            revision=revision,
            tasks=self._rows(TaskRow, "dashboard_tasks", "archived_ms IS NULL", by="created_ms"),
            history=self._rows(TaskRow, "dashboard_tasks", "archived_ms IS NOT NULL", by="archived_ms"),
            questions=self._rows(
                QuestionRow, "questions", "answered_ms IS NOT NULL OR closed_ms IS NULL", by="created_ms"
            ),
            notifications=self._rows(NotificationRow, "notifications", "TRUE", by="due_ms"),
            insights=self._rows(InsightRow, "insights", "TRUE", by="created_ms"),
            people=list(self._bodies("people")),
            projects=list(self._bodies("projects")),
        )

    def _rows(self, row_class: type[Row], table: str, condition: str, *, by: str) -> list[Row]:
        """Return the group's rows in `table` for which an SQL condition holds, as instances of `row_class`.

        They are ordered by the whole seconds of the column `by`, which is in milliseconds, and within a
        second by id.
        """
        # With `_ERA_MS`, the time is counted from the year 1 and never negative: the division of a negative
        # number, a time before 1970, would round up.
        rows = self._connection.execute(
            f"SELECT {', '.join(row_class._fields)} FROM {table}"  # noqa: S608 - our own names
            f" WHERE group_folder = ? AND ({condition})"
            f" ORDER BY ({by} + {_ERA_MS}) / 1000, id",
            (self._folder,),
        )
        return [row_class._make(row) for row in rows]

    def _bodies(self, table: str) -> Iterator[str]:
        """Return the JSON texts in the column `body_json` of a table, ordered by id."""
        rows = self._connection.execute(
            f"SELECT body_json FROM {table} WHERE group_folder = ? ORDER BY id",  # noqa: S608 - one of ours
            (self._folder,),
        )
        return (row[0] for row in rows)
