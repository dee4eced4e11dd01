"""Import a dashboard from files: all of it or nothing, and the error names every row that does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from orchestrator.dashboard.files.export import FILES
from orchestrator.dashboard.files.import_changes import ImportChange, differences, sentences
from orchestrator.dashboard.files.import_rows import Reader, UnfitRow
from orchestrator.dashboard.services.context import ServiceContext
from orchestrator.domain.dashboard import (
    BoardTask,
    Insight,
    Notification,
    Person,
    Project,
    Question,
    ToolRefused,
)
from orchestrator.domain.errors import ImportRefused
from orchestrator.domain.values import Folder
from orchestrator.store.board import dashboards
from orchestrator.store.board import knowledge as board_knowledge
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.board import questions as board_questions
from orchestrator.store.board import tasks as board_tasks

MAX_FILE_BYTES = 256 * 1024 * 1024
Row = TypeVar("Row")
Named = TypeVar("Named", BoardTask, Question, Notification, Insight, Person, Project)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRows:
    """The rows that were read and that fit."""

    tasks: list[BoardTask] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    notifications: list[Notification] = field(default_factory=list)
    insights: list[Insight] = field(default_factory=list)
    people: list[Person] = field(default_factory=list)
    projects: list[Project] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """The rows that were left out, each with the reason."""
    changes: list[ImportChange] = field(default_factory=list)
    """The values that the import changed, because the files' own could not be used as they were."""

    def normalised(self) -> list[str]:
        """Return a line for each change that was made to imported rows."""
        imported = {
            (type(row), row.id)
            for rows in (self.tasks, self.questions, self.notifications, self.insights)
            for row in rows
        }
        return sentences(row for row in self.changes if (row.kind, row.id) in imported)

    def counts(self) -> dict[str, int]:
        return {
            "tasks": len(self.tasks),
            "questions": len(self.questions),
            "notifications": len(self.notifications),
            "insights": len(self.insights),
            "people": len(self.people),
            "projects": len(self.projects),
        }


def read(directory: Path) -> dict[str, Any]:
    """Read the files in a directory; missing files count as empty. Blocks.

    Raises:
        ImportRefused: no file exists, or one is not JSON; the text names the line and the column.
    """
    documents: dict[str, Any] = {}
    problems: list[str] = []
    for name in FILES:
        path = directory / name
        if not path.is_file():
            continue
        try:
            documents[name] = _document(path)
        except json.JSONDecodeError as error:
            problems.append(f"{name}: line {error.lineno} column {error.colno}: {error.msg}")
        except (OSError, ValueError, RecursionError) as error:
            problems.append(f"{name}: {error}")
    if not documents and not problems:
        problems.append(
            f"There is none of {', '.join(FILES)} in {directory}."
            if directory.is_dir()
            else f"There is no directory {directory}: give the one that holds the files."
        )
    if problems:
        raise ImportRefused(problems)
    return documents


def rows_of(documents: Mapping[str, Any], folder: Folder, *, zone: ZoneInfo, now_ms: int) -> ImportRows:
    """Convert documents to rows; times without an offset are read in `zone`.

    Raises:
        ImportRefused: rows do not fit; each is named with its file, place and field.
    """
    reading = _Reading(documents)
    task_reader = Reader(folder=folder, zone=zone, now_ms=now_ms)
    # Ids are unique among rows of one kind; tasks and the history share one reader.
    question_reader, notification_reader, insight_reader, person_reader, project_reader = (
        replace(task_reader, ids=set()) for _ in range(5)
    )
    tasks = reading.rows("tasks.json", "tasks", task_reader.task)
    tasks += reading.rows("knowledge/history.json", "completed_tasks", task_reader.completed)
    rows = ImportRows(
        tasks=tasks,
        questions=reading.rows("questions.json", "questions", question_reader.question),
        notifications=reading.rows("notifications.json", "notifications", notification_reader.notification),
        insights=reading.rows("knowledge/insights.json", "insights", insight_reader.insight),
        people=[
            Person(folder=folder, id=row_id, body=body)
            for row_id, body in reading.rows("knowledge/people.json", "people", person_reader.named)
        ],
        projects=[
            Project(folder=folder, id=row_id, body=body)
            for row_id, body in reading.rows("knowledge/history.json", "projects", project_reader.named)
        ],
    )
    rows.changes.extend(reading.changes)
    reading.problems += _twice_to_come(rows.notifications)
    if reading.problems:
        raise ImportRefused(reading.problems)
    return _without_repeated(rows)


async def put(ctx: ServiceContext, rows: ImportRows, *, replaces: bool = False) -> ImportRows:
    """Write the rows beside what is there, or in its place if `replaces`; return those that were written.

    A row whose id is on the dashboard already is left out: the dashboard is newer than any file of it.
    """
    if replaces:
        await dashboards.clear(ctx.tx, ctx.folder)
    else:
        rows = await _new_ones(ctx, rows)
        if not any(rows.counts().values()):
            return rows
    version = await ctx.version()
    for task in rows.tasks:
        await board_tasks.put(ctx.tx, replace(task, version=version), read_version=None)
    for question in rows.questions:
        await board_questions.put(ctx.tx, replace(question, version=version), read_version=None)
    for notification in rows.notifications:
        await board_notifications.put(ctx.tx, replace(notification, version=version), read_version=None)
    for insight in rows.insights:
        await board_knowledge.add_insight(ctx.tx, insight)
    for person in rows.people:
        await board_knowledge.put_person(ctx.tx, person)
    for project in rows.projects:
        await board_knowledge.put_project(ctx.tx, project)
    return rows


class _Reading:
    """Converts the documents row by row, and collects the problems and changes."""

    def __init__(self, documents: Mapping[str, Any]) -> None:
        self._documents = documents
        self.problems: list[str] = []
        self.changes: list[ImportChange] = []

    def rows(self, name: str, key: str, make: Callable[[Mapping[str, Any]], Row]) -> list[Row]:
        return [made for made in self._each(name, key, make) if made is not None]

    def _each(self, name: str, key: str, make: Callable[[Mapping[str, Any]], Row]) -> Iterator[Row | None]:
        for number, row in enumerate(self._listed(name, key), 1):
            try:
                made = make(_object(row))
                self.changes += differences(row, made)
                yield made
            except (UnfitRow, ToolRefused) as error:
                self.problems.append(f"{name}: {key}[{number}]: {error}")

    def _listed(self, name: str, key: str) -> list[Any]:
        document = self._documents.get(name)
        if isinstance(document, dict):
            document = document.get(key)
        if document is None:
            return []
        if not isinstance(document, list):
            self.problems.append(f"{name}: {key}: is no list")
            return []
        return document


def _object(row: Any) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise UnfitRow("is no object")
    return row


def _document(path: Path) -> Any:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(f"is larger than {MAX_FILE_BYTES // 1024**2} MiB")
    # Some editors put a byte order mark before the text.
    return json.loads(path.read_text(encoding="utf-8-sig"))


def _twice_to_come(notifications: list[Notification]) -> list[str]:
    """Return a problem for each second open notification of the same task or question with the same cause."""
    keys: set[tuple[str | None, str | None, str]] = set()
    problems = []
    for row in notifications:
        if row.cause is None or not row.status.is_open:
            continue
        key = (row.task_id, row.question_id, row.cause)
        if key in keys:
            problems.append(f"notifications.json: {row.id}: another one to come has its cause, {row.cause}")
        keys.add(key)
    return problems


def _without_repeated(rows: ImportRows) -> ImportRows:
    """Leave out insights whose text another insight in the files has already."""
    unique: dict[str, Insight] = {}
    notes = list(rows.notes)
    for insight in rows.insights:
        if insight.content_hash in unique:
            notes.append(f"{insight.id}: says the same as {unique[insight.content_hash].id}")
        else:
            unique[insight.content_hash] = insight
    return replace(rows, insights=list(unique.values()), notes=notes)


async def _new_ones(ctx: ServiceContext, rows: ImportRows) -> ImportRows:
    """Return the rows that the dashboard lacks; a note counts the others."""
    known = {table: await dashboards.ids_in(ctx.tx, ctx.folder, table) for table in dashboards.TABLES}
    new = replace(
        rows,
        tasks=_unknown(rows.tasks, known["dashboard_tasks"]),
        questions=_unknown(rows.questions, known["questions"]),
        notifications=_unknown(rows.notifications, known["notifications"]),
        insights=_unknown(rows.insights, known["insights"]),
        people=_unknown(rows.people, known["people"]),
        projects=_unknown(rows.projects, known["projects"]),
    )
    present = sum(rows.counts().values()) - sum(new.counts().values())
    notes = list(rows.notes)
    if present:
        notes.append(
            f"{present} rows are on the dashboard already and stay as they are there:"
            " give --replace to put the files in the place of all that is there."
        )
    return await _without_doubles(ctx, replace(new, notes=notes))


def _unknown(rows: Sequence[Named], known: set[str]) -> list[Named]:
    return [row for row in rows if row.id not in known]


async def _without_doubles(ctx: ServiceContext, rows: ImportRows) -> ImportRows:
    """Leave out notifications and insights that the dashboard has under another id: the store allows one."""
    to_come = {
        (one.task_id, one.question_id, one.cause): one.id
        for one in await board_notifications.to_come(ctx.tx, ctx.folder)
    }
    notifications, insights, notes = [], [], []
    for row in rows.notifications:
        twin = to_come.get((row.task_id, row.question_id, row.cause))
        if twin is None or row.cause is None or not row.status.is_open:
            notifications.append(row)
        else:
            notes.append(f"{row.id}: {twin} is to come for the same cause, {row.cause}")
    for one in rows.insights:
        same = await board_knowledge.insight_of(ctx.tx, ctx.folder, one.content_hash)
        if same is None:
            insights.append(one)
        else:
            notes.append(f"{one.id}: says the same as {same.id}")
    return replace(rows, notifications=notifications, insights=insights, notes=notes + rows.notes)
