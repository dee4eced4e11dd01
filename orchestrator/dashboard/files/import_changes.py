"""List the values that an import changed, because the files' own values could not be used. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from orchestrator.dashboard.files.export_rows import cron_job_id
from orchestrator.domain.dashboard import BoardTask, BoardTaskStatus, Insight, Notification, Question

MAX_NAMED = 3
_TEXTS: Mapping[type, tuple[str, ...]] = {
    BoardTask: ("title", "context", "reflection"),
    Question: ("question", "context"),
    Notification: ("message", "context"),
    Insight: ("title", "content", "source"),
}


class ImportChange(NamedTuple):
    """One imported row and a text that says how it differs from its file."""

    row_class: type
    """The class of the row: `BoardTask`, `Question`, `Notification` or `Insight`."""
    id: str
    text: str


def differences(row: Mapping[str, Any], imported: Any, *, is_history: bool) -> list[ImportChange]:
    """Return how an imported row differs from `row`, its entry in the file.

    `imported` is a task, question, notification or insight. For anything else, such as a person or project,
    the list is empty, as these are stored unchanged. `is_history` is whether the file is the one of archived
    tasks, `history.json`.
    """
    match imported:
        case BoardTask():
            texts = [*_task_changes(row, imported)]
        case Question():
            texts = [*_question_changes(row, imported)]
        case Notification():
            texts = [*_notification_changes(row, imported)]
        case Insight():
            texts = [*_value_change(row, "category", imported.category)]
        case _:
            return []
    texts += _text_changes(row, imported)
    # Entries of the history have no such time: it is computed for them.
    if not row.get("created_at") and not is_history:
        texts.append("created_at was missing: the time of the import")
    return [ImportChange(type(imported), imported.id, text) for text in texts]


def sentences(changes: Iterable[ImportChange]) -> list[str]:
    """Return a line for each kind of change to imported rows, with the ids of the rows.

    For example `type completion_check: progress_check (n_1 and 40 more)`.
    """
    ids: dict[str, list[str]] = {}
    for change in changes:
        ids.setdefault(change.text, []).append(change.id)
    return [f"{text} ({_first_ids(rows)})" for text, rows in ids.items()]


def _first_ids(ids: list[str]) -> str:
    """Return ids as a text, the first `MAX_NAMED` of them: `n_1, n_2, n_3 and 40 more`."""
    others = f" and {len(ids) - MAX_NAMED} more" if len(ids) > MAX_NAMED else ""
    return ", ".join(ids[:MAX_NAMED]) + others


def _task_changes(row: Mapping[str, Any], task: BoardTask) -> Iterator[str]:
    """Yield a text for each value of `row`, a task's entry in a file, that the import changed or left out.

    A text names the field and what became of its value. For a missing time, it says which other time was
    stored instead.
    """
    progress = row.get("progress") or {}
    if row.get("status") == "archived":
        yield "status archived: completed, and in the history"
    if task.status is BoardTaskStatus.COMPLETED and progress.get("percentage", 100) != 100:
        yield "percentage of a completed task: 100"
    # Only for a completed task is this value left out.
    if progress.get("blocked") and task.blocked_ms is None:
        yield "blocked: a completed task is not"
    elif progress.get("blocker_note") and task.blocker_note is None:
        yield "blocker_note: left out where nothing blocks"
    if row.get("completed_at") and task.completed_ms is None:
        yield "completed_at: left out of a task that is not completed"
    if task.completed_ms is not None and not row.get("completed_at"):
        yield "completed_at was missing: the last change of the task"
    if row.get("deadline_text") and not row.get("deadline"):
        yield "deadline_text without a deadline: left out"


def _question_changes(row: Mapping[str, Any], question: Question) -> Iterator[str]:
    """Yield a text for each value of `row`, a question's entry in a file, that the import changed or left
    out.

    The text about a missing time says which other time was stored instead.
    """
    if row.get("answer") and question.answer is None:
        yield "answer: left out of a question that is not answered"
    if question.answered_ms is not None and not row.get("answered_at"):
        yield "answered_at was missing: when the question was made"


def _notification_changes(row: Mapping[str, Any], notification: Notification) -> Iterator[str]:
    """Yield a text for each value of `row`, a notification's entry in a file, that the import changed.

    The text about a missing time says which other time was stored instead: the one when it was due.
    """
    yield from _value_change(row, "type", notification.type)
    yield from _value_change(row, "status", notification.status)
    if row.get("cron_job_id") not in (None, "", cron_job_id(notification.id)):
        yield "cron_job_id: left out, for a notification needs no job"
    if notification.delivered_ms is not None and not row.get("delivered_at"):
        yield "delivered_at was missing: when it was due"


def _value_change(row: Mapping[str, Any], name: str, imported: str) -> Iterator[str]:
    """Yield a text if the field `name` of `row`, an entry in a file, has another value than was imported.

    A missing value is no difference.
    """
    original = row.get(name)
    if original not in (None, "") and original != str(imported):
        yield f"{name} {original}: {imported}"


def _text_changes(row: Mapping[str, Any], imported: Any) -> Iterator[str]:
    """Yield a text for each text field of `row`, an entry in a file, that was imported in another form.

    Only space around a text and its line ends are changed by an import.
    """
    for name in _TEXTS[type(imported)]:
        original = row.get(name)
        if original and original != getattr(imported, name):
            yield f"{name}: space around it or its line ends"
