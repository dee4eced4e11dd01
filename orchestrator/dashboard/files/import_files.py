"""Import a dashboard from files: all of it or nothing, and the error names every row that does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from pydantic_core import to_json

from orchestrator.dashboard.files.export import FILES
from orchestrator.dashboard.files.import_changes import ImportChange, differences, sentences
from orchestrator.dashboard.files.import_rows import Reader, UnfitRow
from orchestrator.dashboard.services.context import ServiceContext
from orchestrator.domain.dashboard import (
    BoardTask,
    Insight,
    Notification,
    NotificationStatus,
    Person,
    Project,
    Question,
    ToolRefused,
)
from orchestrator.domain.errors import ImportRefused
from orchestrator.domain.values import Folder
from orchestrator.store.board import dashboards
from orchestrator.store.board import deliveries as board_deliveries
from orchestrator.store.board import knowledge as board_knowledge
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.board import questions as board_questions
from orchestrator.store.board import tasks as board_tasks

MAX_FILE_BYTES = 256 * 1024 * 1024
_HISTORY = "knowledge/history.json"
"""The file of archived tasks and of projects."""
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
    """Lines about the rows that were left out, with the reason, and notifications that were sent already."""
    changes: list[ImportChange] = field(default_factory=list)
    """The values that the import changed, because the files' own could not be used as they were."""

    def change_lines(self) -> list[str]:
        """Return the changes that the import made to values: a line for each kind, with the rows' ids.

        Changes to rows that were left out afterwards do not count.
        """
        imported = {
            (type(row), row.id)
            for rows in (self.tasks, self.questions, self.notifications, self.insights)
            for row in rows
        }
        return sentences(change for change in self.changes if (change.row_class, change.id) in imported)

    def counts(self) -> dict[str, int]:
        """Return the number of rows of each kind, by the name of its field."""
        return {
            "tasks": len(self.tasks),
            "questions": len(self.questions),
            "notifications": len(self.notifications),
            "insights": len(self.insights),
            "people": len(self.people),
            "projects": len(self.projects),
        }


def read(directory: Path) -> dict[str, Any]:
    """Read the files of a dashboard in a directory, and return their parsed JSON by file name. Blocks.

    Missing files are left out.

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
    """Convert the parsed files of a dashboard to rows of the group's dashboard.

    `documents` are as `read` returns them. Times without an offset are read in `zone`. `now_ms` is the time
    of the import, which is used where a time of creation is missing.

    Raises:
        ImportRefused: rows do not fit; each is named with its file, place and field.
    """
    document_reader = _DocumentReader(documents)
    task_reader = Reader(folder=folder, zone=zone, now_ms=now_ms)
    # Ids are unique among rows of one kind; tasks and the history share one reader.
    question_reader, notification_reader, insight_reader, person_reader, project_reader = (
        replace(task_reader, used_ids=set()) for _ in range(5)
    )
    tasks = document_reader.rows("tasks.json", "tasks", task_reader.task)
    tasks += document_reader.rows(_HISTORY, "completed_tasks", task_reader.completed)
    rows = ImportRows(
        tasks=tasks,
        questions=document_reader.rows("questions.json", "questions", question_reader.question),
        notifications=document_reader.rows(
            "notifications.json", "notifications", notification_reader.notification
        ),
        insights=document_reader.rows("knowledge/insights.json", "insights", insight_reader.insight),
        people=[
            Person(folder=folder, id=row_id, body=body)
            for row_id, body in document_reader.rows(
                "knowledge/people.json", "people", person_reader.id_and_entry
            )
        ],
        projects=[
            Project(folder=folder, id=row_id, body=body)
            for row_id, body in document_reader.rows(_HISTORY, "projects", project_reader.id_and_entry)
        ],
    )
    rows.changes.extend(document_reader.changes)
    document_reader.problems += _repeated_causes(rows.notifications)
    if document_reader.problems:
        raise ImportRefused(document_reader.problems)
    return _without_repeated_insights(rows)


async def write_rows(ctx: ServiceContext, rows: ImportRows, *, replaces: bool = False) -> ImportRows:
    """Write imported rows to a dashboard, and return those that were written.

    With `replaces` its present rows are deleted first. Otherwise a row that is on the dashboard already is
    left out, since the dashboard is newer than the files. A notification that was sent already is written as
    delivered. The `notes` of the result name what was left out, and these notifications. Tasks, questions and
    notifications get the dashboard's new version.
    """
    if replaces:
        await dashboards.clear(ctx.tx, ctx.folder)
    else:
        rows = await _only_new(ctx, rows)
        if not any(rows.counts().values()):
            return rows
    rows = await _not_sent_again(ctx, rows)
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


class _DocumentReader:
    """Converts the documents row by row, and collects the problems and changes."""

    def __init__(self, documents: Mapping[str, Any]) -> None:
        """`documents` has the parsed JSON of each file by its name, as `read` returns it."""
        self._documents = documents
        self.problems: list[str] = []
        self.changes: list[ImportChange] = []

    def rows(self, name: str, key: str, convert: Callable[[Mapping[str, Any]], Row]) -> list[Row]:
        """Return the entries of the list `key` in the file `name` as rows.

        `convert` makes a row of an entry, and raises `UnfitRow` or `ToolRefused` if it does not fit. Such an
        entry is left out, and added to `problems`. Values that were changed are added to `changes`.
        """
        rows: list[Row] = []
        for number, entry in enumerate(self._entries(name, key), 1):
            try:
                row = convert(_object(entry))
                self.changes += differences(entry, row, is_history=name == _HISTORY)
                rows.append(row)
            except (UnfitRow, ToolRefused) as error:
                self.problems.append(f"{name}: {key}[{number}]: {error}")
        return rows

    def _entries(self, name: str, key: str) -> list[Any]:
        """Return the list `key` in the file `name`; a file that is a list itself counts as that list.

        Empty if the file or the list is missing. Anything but a list is added to `problems`.
        """
        document = self._documents.get(name)
        if isinstance(document, dict):
            document = document.get(key)
        if document is None:
            return []
        if not isinstance(document, list):
            self.problems.append(f"{name}: {key}: is no list")
            return []
        return document


def _object(entry: Any) -> dict[str, Any]:
    """Return an entry of a file, which has to be an object.

    Raises `UnfitRow` if it is none, or has a value that the database or an export refuses: a number such as
    `NaN`, half of a surrogate pair, or too many objects in each other.
    """
    if not isinstance(entry, dict):
        raise UnfitRow("is no object")
    try:
        json.dumps(entry, ensure_ascii=False, allow_nan=False).encode()
        to_json([[[entry]]])  # a little deeper than an export writes it
    except (ValueError, RecursionError) as error:
        raise UnfitRow(f"has a value that cannot be stored: {str(error)[:200]}") from error
    return entry


def _document(path: Path) -> Any:
    """Return the parsed JSON of a file.

    Raises:
        ValueError: the file is too large, or no JSON.
        OSError: it cannot be read.
    """
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(f"is larger than {MAX_FILE_BYTES // 1024**2} MiB")
    # Some editors put a byte order mark before the text.
    return json.loads(path.read_text(encoding="utf-8-sig"))


def _repeated_causes(notifications: list[Notification]) -> list[str]:
    """Return a problem for each open notification that repeats an earlier one of the list.

    That is one about the same task and question, with the same cause: the rule that made it. The database
    allows only one of them.
    """
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


def _without_repeated_insights(rows: ImportRows) -> ImportRows:
    """Return imported rows without insights that say the same as an earlier one; a note names each."""
    unique: dict[str, Insight] = {}
    notes = list(rows.notes)
    for insight in rows.insights:
        if insight.content_hash in unique:
            notes.append(f"{insight.id}: says the same as {unique[insight.content_hash].id}")
        else:
            unique[insight.content_hash] = insight
    return replace(rows, insights=list(unique.values()), notes=notes)


async def _only_new(ctx: ServiceContext, rows: ImportRows) -> ImportRows:
    """Return those of the imported rows that the dashboard lacks.

    The others are left out. One note counts those whose id the dashboard has; a note for each names those
    that the dashboard has under another id.
    """
    stored_ids = {table: await dashboards.ids_in(ctx.tx, ctx.folder, table) for table in dashboards.TABLES}
    new = replace(
        rows,
        tasks=_not_stored(rows.tasks, stored_ids["dashboard_tasks"]),
        questions=_not_stored(rows.questions, stored_ids["questions"]),
        notifications=_not_stored(rows.notifications, stored_ids["notifications"]),
        insights=_not_stored(rows.insights, stored_ids["insights"]),
        people=_not_stored(rows.people, stored_ids["people"]),
        projects=_not_stored(rows.projects, stored_ids["projects"]),
    )
    stored_count = sum(rows.counts().values()) - sum(new.counts().values())
    notes = list(rows.notes)
    if stored_count:
        notes.append(
            f"{stored_count} rows are on the dashboard already and stay as they are there:"
            " give --replace to put the files in the place of all that is there."
        )
    return await _without_duplicates(ctx, replace(new, notes=notes))


def _not_stored(rows: Sequence[Named], stored_ids: set[str]) -> list[Named]:
    """Return the rows whose id is not one of `stored_ids`, the ids of the dashboard's rows of their kind."""
    return [row for row in rows if row.id not in stored_ids]


async def _not_sent_again(ctx: ServiceContext, rows: ImportRows) -> ImportRows:
    """Return imported rows in which notifications that Andy has sent already have the status DELIVERED.

    A notification counts as sent if a message for it was sent at its due time or later. A note names each. If
    its message still waits in the outbox, the row refers to that message, which is held until the
    notification is due.
    """
    notifications, notes = [], list(rows.notes)
    for row in rows.notifications:
        sent_ms = await board_deliveries.sent_ms(ctx.tx, row) if row.status.is_open else None
        if sent_ms is None or sent_ms < row.due_ms:
            waiting_row = await board_deliveries.with_waiting_message(ctx.tx, row)
            # The outbox skips a message whose notification is not yet being sent (status SENDING): without
            # the hold, the notification would end unsent.
            await board_deliveries.hold_claimed(ctx.tx, waiting_row)
            notifications.append(waiting_row)
            continue
        notifications.append(replace(row, status=NotificationStatus.DELIVERED, delivered_ms=sent_ms))
        notes.append(f"{row.id}: was sent already")
    return replace(rows, notifications=notifications, notes=notes)


async def _without_duplicates(ctx: ServiceContext, rows: ImportRows) -> ImportRows:
    """Return imported rows without the notifications and insights that the dashboard has under another id.

    Rows with an id of the dashboard must have been left out before. An open notification is left out if one
    of the same rule about the same task and question is open on the dashboard, and an insight if the
    dashboard has its text: the database allows only one of them. A note names each row that is left out.
    """
    id_by_cause = {
        (pending.task_id, pending.question_id, pending.cause): pending.id
        for pending in await board_notifications.to_come(ctx.tx, ctx.folder)
    }
    notifications, insights, notes = [], [], []
    for row in rows.notifications:
        same_notification_id = id_by_cause.get((row.task_id, row.question_id, row.cause))
        if same_notification_id is None or row.cause is None or not row.status.is_open:
            notifications.append(row)
        else:
            notes.append(f"{row.id}: {same_notification_id} is to come for the same cause, {row.cause}")
    for insight in rows.insights:
        stored = await board_knowledge.insight_of(ctx.tx, ctx.folder, insight.content_hash)
        if stored is None:
            insights.append(insight)
        else:
            notes.append(f"{insight.id}: says the same as {stored.id}")
    return replace(rows, notifications=notifications, insights=insights, notes=notes + rows.notes)
