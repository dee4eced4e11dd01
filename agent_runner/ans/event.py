"""Define an event: one thing that happened in a run, before a notice is made of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, Self
from uuid import uuid4

from agent_runner.wire.notices import MAX_NOTICE_CHARS, Severity

_TYPE = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+")
_PATTERN = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*\.\*")
MAX_TYPE_CHARS = 100
"""Most characters of an event's type."""
MAX_FIELDS = 40
"""Most fields of a payload, and of each object in it."""
MAX_ITEMS = 50
"""Most items of a list in a payload."""
MAX_DEPTH = 4
"""Levels of objects and lists in a payload; deeper ones become text."""
MAX_NAME_CHARS = 100
"""Most characters of a field's name."""


class EventLevel(IntEnum):
    """The severity of an event. Levels can be compared, for filters with a least severity."""

    DEBUG = 0
    INFO = 1
    WARNING = 2
    ERROR = 3
    CRITICAL = 4

    @classmethod
    def of(cls, word: str) -> EventLevel:
        """Return the level of `debug`, `info`, `warning`, `error` or `critical`.

        Raises:
            ValueError: it is none of them.
        """
        try:
            return cls[word.upper()]
        except KeyError:
            raise ValueError(f"'{word}' is no severity: {', '.join(level.word for level in cls)}") from None

    @property
    def word(self) -> Severity:
        """The name of the level, as in `of`."""
        return _WORDS[self]


_WORDS: Mapping[EventLevel, Severity] = {
    EventLevel.DEBUG: "debug",
    EventLevel.INFO: "info",
    EventLevel.WARNING: "warning",
    EventLevel.ERROR: "error",
    EventLevel.CRITICAL: "critical",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDraft:
    """A finding, before it becomes an event with a time and an id."""

    type: str
    severity: Severity
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeEvent:
    """One thing that happened in a run.

    `type` is lower case with dots, `source` the component that the event comes from, `timestamp` aware and in
    UTC, `payload` plain JSON. Events with the same `dedupe_key` count as repetitions; by default the key is
    type and source.
    """

    type: str
    source: str
    severity: EventLevel = EventLevel.INFO
    payload: Mapping[str, Any] = field(default_factory=dict)
    timestamp: datetime = field(default_factory=lambda: datetime.now(UTC))
    id: str = field(default_factory=lambda: str(uuid4()))
    dedupe_key: str = ""

    def __post_init__(self) -> None:
        """Check the event, limit the size of its payload, put its time in UTC, and set a missing dedupe key.

        Raises:
            ValueError: the type is no dotted lower-case name, or the timestamp has no time zone.
        """
        if len(self.type) > MAX_TYPE_CHARS or not _TYPE.fullmatch(self.type):
            raise ValueError(
                f"'{self.type[:MAX_TYPE_CHARS]}' is no event type: lower case, parts joined by '.'"
            )
        if self.timestamp.tzinfo is None:
            raise ValueError("an event's timestamp needs a time zone")
        object.__setattr__(self, "payload", bounded(self.payload))
        object.__setattr__(self, "timestamp", self.timestamp.astimezone(UTC))
        if not self.dedupe_key:
            object.__setattr__(self, "dedupe_key", f"{self.type}:{self.source}")

    @property
    def at_ms(self) -> int:
        """The time in milliseconds since the epoch."""
        return int(self.timestamp.timestamp() * 1000)

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain JSON, from which `from_dict` makes an equal event.

        Both are for programs that record the events of a run; Andy only passes them on in memory.
        """
        return {
            "id": self.id,
            "type": self.type,
            "source": self.source,
            "severity": self.severity.word,
            "timestamp": self.timestamp.isoformat(),
            "payload": dict(self.payload),
            "dedupe_key": self.dedupe_key,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return the event that `to_dict` wrote.

        Raises:
            ValueError: a field is missing or has a value that no event has.
        """
        try:
            return cls(
                id=str(fields["id"]),
                type=str(fields["type"]),
                source=str(fields["source"]),
                severity=EventLevel.of(str(fields["severity"])),
                timestamp=datetime.fromisoformat(str(fields["timestamp"])),
                payload=dict(fields["payload"]),
                dedupe_key=str(fields.get("dedupe_key") or ""),
            )
        # A time at the edge of the calendar may be beyond it in UTC.
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"this is no event: {error}") from error


def is_pattern(text: str) -> bool:
    """Return whether `text` is an event type such as `tool.failed`, or `prefix.*` for all below a prefix."""
    return bool(_TYPE.fullmatch(text) or _PATTERN.fullmatch(text))


def matches(pattern: str, event_type: str) -> bool:
    """Return whether a pattern names this type: `tool.*` is all below `tool` at any depth, but not `tool`."""
    if pattern.endswith(".*"):
        return event_type.startswith(pattern[:-1])
    return event_type == pattern


def bounded(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return `payload` as plain JSON of limited size.

    Long texts and collections are cut; values that are nested too deep, or are no JSON, become text.
    """
    return {_text(name, MAX_NAME_CHARS): _plain(value, 1) for name, value in _fields(payload)}


def _fields(values: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    """Return the fields of an object, at most `MAX_FIELDS`."""
    return list(values.items())[:MAX_FIELDS]


def _plain(value: Any, depth: int) -> Any:
    """Return a value as plain JSON of limited size; `depth` is the level that it is on, from 1.

    Objects and lists on level `MAX_DEPTH` become text, as do values that are no JSON. Lists, objects and
    texts that are too long are cut.
    """
    match value:
        case None | bool():
            return value
        case int() | float():
            # Larger numbers become text, because other programs cannot read them. So does NaN, which is no
            # JSON: no comparison with it is true.
            return value if abs(value) < 2**63 else str(value)[:MAX_NAME_CHARS]
        case str():
            return _text(value, MAX_NOTICE_CHARS)
        case Mapping() if depth < MAX_DEPTH:
            return {_text(name, MAX_NAME_CHARS): _plain(inner, depth + 1) for name, inner in _fields(value)}
        case list() | tuple() | set() | frozenset() if depth < MAX_DEPTH:
            return [_plain(inner, depth + 1) for inner in list(value)[:MAX_ITEMS]]
        case _:
            return _text(value, MAX_NOTICE_CHARS)


def _text(value: Any, limit: int) -> str:
    """Return a value as text of at most `limit` characters; a longer one is cut and ends in "…".

    Halves of surrogate pairs, which UTF-8 cannot encode, become `?`.
    """
    text = str(value)
    cut = text if len(text) <= limit else f"{text[: limit - 1]}…"
    return cut.encode("utf-8", "replace").decode("utf-8")
