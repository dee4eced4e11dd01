"""Read the rows of compatibility files, older shapes too. Pure: errors name the row and the field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from orchestrator.dashboard.files.export_rows import DAY_MS
from orchestrator.dashboard.services import questions
from orchestrator.dashboard.services.knowledge import content_hash
from orchestrator.dashboard.words import texts, when
from orchestrator.domain.dashboard import (
    MAX_TITLE_CHARS,
    Actor,
    BoardTask,
    BoardTaskStatus,
    Category,
    Deadline,
    Insight,
    Notification,
    NotificationStatus,
    NotificationType,
    Priority,
    Question,
    QuestionType,
    ToolRefused,
)
from orchestrator.domain.values import Folder

Kind = TypeVar("Kind")
OLD_TYPES = {"completion_check": NotificationType.PROGRESS_CHECK}
"""Types that other versions had."""
OLD_CATEGORIES = {"general": Category.LIFE}
_FIRST_MS = round(datetime(2, 1, 1, tzinfo=UTC).timestamp() * 1000)
_LAST_MS = round(datetime(9999, 1, 1, tzinfo=UTC).timestamp() * 1000)
"""The times (epoch ms) that are taken: without the calendar's first and last year, which have no local times
in some zones. Programs write such times for none at all.
"""


class UnfitRow(ValueError):
    """A row has a value that cannot be used; the text names the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Converts entries of the files, parsed JSON objects, to rows of one group.

    Each method takes an entry and raises `UnfitRow` if it does not fit.
    """

    folder: Folder
    zone: ZoneInfo
    """The group's zone, in which local times are read."""
    now_ms: int
    """The time of the import (epoch ms), which is used where a time of creation is missing."""
    used_ids: set[str] = field(default_factory=set)
    """The ids that were read: each may be there only once."""

    # A row of each kind

    def task(self, row: Mapping[str, Any]) -> BoardTask:
        """Return an entry of `tasks.json` as a task. Raises `UnfitRow` if a value cannot be used.

        A completed task is at 100 % and not blocked, whatever the entry says; an archived one is completed.
        A missing time of creation is the time of the import; other missing times are taken from the entry's
        other times. The object `x` of the entry has further values, as an export writes them.
        """
        progress, extra = _object(row, "progress"), _object(row, "x")
        status = self._status(row)
        created_ms = self._time(row, "created_at") or self.now_ms
        updated_ms = self._time(row, "updated_at") or created_ms
        is_completed = status is BoardTaskStatus.COMPLETED
        is_blocked = bool(progress.get("blocked")) and not is_completed
        last_update_ms = self._time(progress, "last_update") or updated_ms
        return BoardTask(
            folder=self.folder,
            id=self._id(row),
            title=_required_line(row, "title", limit=MAX_TITLE_CHARS),
            raw_input=_text(row, "title" if row.get("raw_input") is None else "raw_input"),
            deadline=self._deadline(row),
            estimation=_object(row, "estimation"),
            pct=100 if is_completed else _number(progress, "percentage", 0, maximum=100),
            progress_note=_text(progress, "note"),
            last_update_ms=last_update_ms,
            blocked_ms=(self._time(extra, "blocked_at") or last_update_ms) if is_blocked else None,
            blocker_note=(_text(progress, "blocker_note") or None) if is_blocked else None,
            status=status,
            priority=_member_of(row, "priority", Priority, Priority.MEDIUM),
            context=_text(row, "context"),
            tags=texts.tags(_list(row, "tags")),
            links=_object(row, "links"),
            recurring=_object(row, "recurring") or None,
            reflection=_text(row, "reflection"),
            created_ms=created_ms,
            updated_ms=updated_ms,
            completed_ms=(self._time(row, "completed_at") or updated_ms) if is_completed else None,
            archived_ms=updated_ms if row.get("status") == "archived" else None,
            user_set=self._times_set_by_person(extra),
            # Without two values that are fields of the task; with two that some files have outside of `x`.
            extra={name: value for name, value in extra.items() if name not in ("blocked_at", "user_set")}
            | {name: row[name] for name in ("gcal_event_id", "gcal_sync_hash") if row.get(name)},
        )

    def completed(self, row: Mapping[str, Any]) -> BoardTask:
        """Return an entry of the history's completed tasks as a task. Raises `UnfitRow`.

        It is completed, or cancelled if the entry says so. A missing time of creation is computed from
        `duration_days`. The object `x` of the entry has further values, as an export writes them.
        """
        extra = _object(row, "x")
        archived_ms = self._time(row, "moved_at") or self._time(row, "completed_at") or self.now_ms
        # An entry with a time of completion is completed, whatever status its `x` has.
        is_cancelled = (
            row.get("completed_at") in (None, "") and extra.get("status") == BoardTaskStatus.CANCELLED.value
        )
        completed_ms = None if is_cancelled else self._time(row, "completed_at") or archived_ms
        ended_ms = completed_ms or archived_ms
        days = _number(row, "duration_days", 0, maximum=36_500)
        created_ms = self._time(extra, "created_at") or _in_calendar(
            "duration_days", ended_ms - days * DAY_MS
        )
        title = _required_line(row, "title", limit=MAX_TITLE_CHARS)
        return BoardTask(
            folder=self.folder,
            id=self._id(row),
            title=title,
            raw_input=title,
            deadline=self._deadline(extra),
            pct=100 if not is_cancelled else _number(extra, "percentage", 0, maximum=100),
            progress_note=_text(row, "progress_note"),
            last_update_ms=ended_ms,
            status=BoardTaskStatus.CANCELLED if is_cancelled else BoardTaskStatus.COMPLETED,
            priority=_member_of(extra, "priority", Priority, Priority.MEDIUM),
            context=_text(extra, "context"),
            tags=texts.tags(_list(extra, "tags")),
            links=_object(row, "links"),
            reflection=_text(extra, "reflection") or _text(row, "reflection"),
            created_ms=created_ms,
            updated_ms=archived_ms,
            completed_ms=completed_ms,
            archived_ms=archived_ms,
        )

    def question(self, row: Mapping[str, Any]) -> Question:
        """Return an entry of `questions.json` as a question.

        Raises `UnfitRow` if a value cannot be used, and `ToolRefused` if the options cannot.
        """
        extra = _object(row, "x")
        created_ms = self._time(row, "created_at") or self.now_ms
        is_answered = bool(row.get("answered"))
        return Question(
            folder=self.folder,
            id=self._id(row),
            question=_required_text(row, "question"),
            context=_text(row, "context"),
            priority=_member_of(row, "priority", Priority, Priority.MEDIUM),
            type=_member_of(row, "type", QuestionType, QuestionType.INFO_GATHER),
            task_id=_text(row, "related_task_id") or None,
            asked_count=_number(row, "asked_count", 0, maximum=1_000_000),
            last_asked_ms=self._time(row, "last_asked_at"),
            cooldown_h=_number(row, "cooldown_hours", 24, maximum=8_760),
            created_by=_member_of(extra, "created_by", Actor, Actor.WORKER),
            created_ms=created_ms,
            answer=_text(row, "answer") if is_answered else None,
            answered_ms=(self._time(row, "answered_at") or created_ms) if is_answered else None,
            processed_ms=self._time(extra, "processed_at"),
            options=questions.checked_options(_list(extra, "options")),
        )

    def notification(self, row: Mapping[str, Any]) -> Notification:
        """Return an entry of `notifications.json` as a notification.

        One with the status `sending` becomes pending. Raises `UnfitRow` if a value cannot be used.
        """
        extra = _object(row, "x")
        due_ms = self._time(row, "scheduled_at")
        if due_ms is None:
            raise UnfitRow("scheduled_at: is missing")
        status = _member_of(row, "status", NotificationStatus, NotificationStatus.PENDING)
        created_ms = self._time(row, "created_at") or self.now_ms
        is_delivered = status is NotificationStatus.DELIVERED
        is_cancelled = status is NotificationStatus.CANCELLED
        return Notification(
            folder=self.folder,
            id=self._id(row),
            message=_required_text(row, "message"),
            due_ms=due_ms,
            due_text=_text(row, "scheduled_at_text") or None,
            type=_member_of(row, "type", NotificationType, NotificationType.REMINDER, old=OLD_TYPES),
            priority=_member_of(row, "priority", Priority, Priority.MEDIUM),
            task_id=_text(row, "related_task_id") or None,
            question_id=_text(row, "related_question_id") or None,
            cause=_text(extra, "cause") or None,
            status=NotificationStatus.PENDING if status is NotificationStatus.SENDING else status,
            context=_text(row, "context"),
            created_by=_member_of(row, "created_by", Actor, Actor.WORKER),
            created_ms=created_ms,
            delivered_ms=(self._time(row, "delivered_at") or due_ms) if is_delivered else None,
            cancelled_ms=self._time(row, "cancelled_at") if is_cancelled else None,
            cancel_reason=_text(extra, "cancel_reason") or None,
        )

    def insight(self, row: Mapping[str, Any]) -> Insight:
        """Return an entry of `knowledge/insights.json` as an insight; a missing title is taken from its text.

        Raises `UnfitRow` if a value cannot be used.
        """
        content = _required_text(row, "content")
        return Insight(
            folder=self.folder,
            id=self._id(row),
            category=_member_of(row, "category", Category, Category.LEARNING, old=OLD_CATEGORIES),
            title=_required_line(row, "title") if row.get("title") else " ".join(content.split())[:50],
            content=content,
            source=_text(row, "source"),
            tags=texts.tags(_list(row, "tags")),
            links=_object(row, "links"),
            created_ms=self._time(row, "created_at") or self.now_ms,
            content_hash=content_hash(content),
        )

    def id_and_entry(self, row: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the id of a person's or project's entry, and the unchanged entry. Raises `UnfitRow`."""
        return self._id(row), dict(row)

    # Its parts

    def _id(self, row: Mapping[str, Any]) -> str:
        """Return the id of an entry, and record it as used.

        Raises `UnfitRow` if it is missing, longer than 100 characters, not printable, or used by an earlier
        entry.
        """
        value = row.get("id")
        if not isinstance(value, str) or not value.strip() or len(value) > 100 or not value.isprintable():
            raise UnfitRow("id: is missing, or no name")
        if value in self.used_ids:
            raise UnfitRow(f"id: {value} is there twice")
        self.used_ids.add(value)
        return value

    def _status(self, row: Mapping[str, Any]) -> BoardTaskStatus:
        """Return the status of a task's entry; `archived`, which older files have, counts as completed.

        Active if it is missing. Raises `UnfitRow` if it is unknown.
        """
        return _member_of(
            row,
            "status",
            BoardTaskStatus,
            BoardTaskStatus.ACTIVE,
            old={"archived": BoardTaskStatus.COMPLETED},
        )

    def _deadline(self, row: Mapping[str, Any]) -> Deadline | None:
        """Return the deadline of a task's entry, a day or a time; None if it is empty. Raises `UnfitRow`."""
        value, text = row.get("deadline"), _text(row, "deadline_text")
        if value in (None, ""):
            return None
        # A day alone, such as 2026-02-10, has ten characters.
        if isinstance(value, str) and len(value) == 10:
            try:
                deadline = when.day_deadline(date.fromisoformat(value), self.zone, text=text)
            except ValueError as error:
                raise UnfitRow(f"deadline: {error}") from error
            _in_calendar("deadline", deadline.at_ms)
            return deadline
        at_ms = self._time(row, "deadline")
        return None if at_ms is None else Deadline(at_ms=at_ms, text=text)

    def _time(self, row: Mapping[str, Any], name: str) -> int | None:
        """Return the ISO time in the field `name` in epoch ms; one without an offset is in the group's zone.

        None if it is empty or missing. Raises `UnfitRow` if it is no such time.
        """
        value = row.get(name)
        if value in (None, ""):
            return None
        try:
            at = datetime.fromisoformat(str(value))
            at_ms = when.local_ms(at, self.zone) if at.tzinfo is None else round(at.timestamp() * 1000)
        except (ValueError, OverflowError, OSError) as error:
            raise UnfitRow(f"{name}: '{str(value)[:40]}' is no ISO time") from error
        return _in_calendar(name, at_ms)

    def _times_set_by_person(self, extra: Mapping[str, Any]) -> dict[str, int]:
        """Map the fields of a task that a person has set to the time at which they did (epoch ms).

        `extra` is the part of the task's entry that only Andy reads. Raises `UnfitRow`.
        """
        stored = _object(extra, "user_set")
        times = {name: self._time(stored, name) for name in stored}
        return {name: at_ms for name, at_ms in times.items() if at_ms is not None}


def _in_calendar(name: str, at_ms: int) -> int:
    """Return `at_ms` as it is. Raise `UnfitRow` with the field's name if some time zone could not show it."""
    if not _FIRST_MS <= at_ms < _LAST_MS:
        raise UnfitRow(f"{name}: is before the year 2 or after 9998")
    return at_ms


# The functions below return the value of the field `name`, and raise `UnfitRow` if it has another type.


def _object(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a field that is an object; empty if it is missing. Raises `UnfitRow`."""
    value = row.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UnfitRow(f"{name}: is no object")
    return value


def _list(row: Mapping[str, Any], name: str) -> list[str]:
    """Return a field that is a list of texts; empty if it is missing. Raises `UnfitRow`."""
    value = row.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UnfitRow(f"{name}: is no list of texts")
    return value


def _text(row: Mapping[str, Any], name: str, *, limit: int = texts.MAX_TEXT) -> str:
    """Return the text field `name`, empty if it is missing.

    Raises `UnfitRow` if it is no text or too long.
    """
    return _checked_text(row, name, lambda value: texts.text(name, value, limit=limit))


def _required_line(row: Mapping[str, Any], name: str, *, limit: int = texts.MAX_LINE) -> str:
    """Return the text field `name` on one line. Raises `UnfitRow` if it is missing, empty or too long."""
    return _checked_text(row, name, lambda value: texts.line(name, value, limit=limit, is_needed=True))


def _required_text(row: Mapping[str, Any], name: str) -> str:
    """Return the text field `name`. Raises `UnfitRow` if it is missing, empty or too long."""
    return _checked_text(row, name, lambda value: texts.text(name, value, is_needed=True))


def _checked_text(row: Mapping[str, Any], name: str, check: Callable[[str], str]) -> str:
    """Return the text field `name` in the form that `check` returns; a missing field counts as empty.

    Raises `UnfitRow` if it is no text, or `check` raises `ToolRefused`.
    """
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise UnfitRow(f"{name}: is no text")
    try:
        return check(value or "")
    except ToolRefused as error:
        raise UnfitRow(str(error)) from error


def _number(row: Mapping[str, Any], name: str, default: int, *, maximum: int) -> int:
    """Return a field that is a number from 0 to `maximum`; `default` if it is missing. Raises `UnfitRow`."""
    value = row.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= maximum:
        raise UnfitRow(f"{name}: '{str(value)[:40]}' is no number from 0 to {maximum}")
    return value


def _member_of(
    row: Mapping[str, Any],
    name: str,
    enum: Callable[[str], Kind],
    default: Kind,
    *,
    old: Mapping[str, Kind] | None = None,
) -> Kind:
    """Return the value of the field `name` as a member of `enum`; `default` if it is missing.

    `old` maps values of older files to members. Raises `UnfitRow` if the value is unknown.
    """
    value = row.get(name)
    if value in (None, ""):
        return default
    if not isinstance(value, str):
        raise UnfitRow(f"{name}: is no text")
    if old and value in old:
        return old[value]
    try:
        return enum(value)
    except ValueError as error:
        raise UnfitRow(f"{name}: '{str(value)[:40]}' is unknown") from error
