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

    kind: type
    id: str
    what: str


def differences(row: Mapping[str, Any], made: Any) -> list[ImportChange]:
    """Return how an imported row differs from its file; people and projects are stored unchanged."""
    match made:
        case BoardTask():
            texts = [*_of_task(row, made)]
        case Question():
            texts = [*_of_question(row, made)]
        case Notification():
            texts = [*_of_notification(row, made)]
        case Insight():
            texts = [*_retyped(row, "category", made.category)]
        case _:
            return []
    texts += _cleaned(row, made)
    if not row.get("created_at") and not (isinstance(made, BoardTask) and made.archived_ms is not None):
        texts.append("created_at was missing: the time of the import")
    return [ImportChange(type(made), made.id, text) for text in texts]


def sentences(changes: Iterable[ImportChange]) -> list[str]:
    """Return a line for each kind of change: `type completion_check: progress_check (n_1 and 40 more)`."""
    ids: dict[str, list[str]] = {}
    for change in changes:
        ids.setdefault(change.what, []).append(change.id)
    return [f"{text} ({_named(rows)})" for text, rows in ids.items()]


def _named(ids: list[str]) -> str:
    more = f" and {len(ids) - MAX_NAMED} more" if len(ids) > MAX_NAMED else ""
    return ", ".join(ids[:MAX_NAMED]) + more


def _of_task(row: Mapping[str, Any], made: BoardTask) -> Iterator[str]:
    progress = row.get("progress") or {}
    if row.get("status") == "archived":
        yield "status archived: completed, and in the history"
    if made.status is BoardTaskStatus.COMPLETED and progress.get("percentage", 100) != 100:
        yield "percentage of a completed task: 100"
    if progress.get("blocked") and made.blocked_ms is None:
        yield "blocked: a completed task is not"
    elif progress.get("blocker_note") and made.blocker_note is None:
        yield "blocker_note: left out where nothing blocks"
    if row.get("completed_at") and made.completed_ms is None:
        yield "completed_at: left out of a task that is not completed"
    if made.completed_ms is not None and not row.get("completed_at"):
        yield "completed_at was missing: the last change of the task"
    if row.get("deadline_text") and not row.get("deadline"):
        yield "deadline_text without a deadline: left out"


def _of_question(row: Mapping[str, Any], made: Question) -> Iterator[str]:
    if row.get("answer") and made.answer is None:
        yield "answer: left out of a question that is not answered"
    if made.answered_ms is not None and not row.get("answered_at"):
        yield "answered_at was missing: when the question was made"


def _of_notification(row: Mapping[str, Any], made: Notification) -> Iterator[str]:
    yield from _retyped(row, "type", made.type)
    yield from _retyped(row, "status", made.status)
    if row.get("cron_job_id") not in (None, "", cron_job_id(made.id)):
        yield "cron_job_id: left out, for a notification needs no job"
    if made.delivered_ms is not None and not row.get("delivered_at"):
        yield "delivered_at was missing: when it was due"


def _retyped(row: Mapping[str, Any], name: str, made: str) -> Iterator[str]:
    original = row.get(name)
    if original not in (None, "") and original != str(made):
        yield f"{name} {original}: {made}"


def _cleaned(row: Mapping[str, Any], made: Any) -> Iterator[str]:
    for name in _TEXTS[type(made)]:
        original = row.get(name)
        if original and original != getattr(made, name):
            yield f"{name}: space around it or its line ends"
