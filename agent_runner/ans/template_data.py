"""Define the values that templates of notices get: events with cleaned texts, and formatted texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_runner.ans.escaping import cleaned, visible
from agent_runner.ans.notification import NoticeEntry

MAX_CELL_CHARS = 200
"""Most characters of one value in a line or a table."""
PREFIXES: Mapping[str, str] = {"critical": "!critical:", "error": "!error:", "warning": "!warning:"}
"""The beginning of a text about events of a severity; other severities have none."""


class FormattedBatch(str):
    """Text whose values its format, such as TOON, has escaped already: `templating` prints it unchanged."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FormattedEntry:
    """An event as templates get it. `count` is the number of times that it happened."""

    type: str
    source: str
    severity: str
    timestamp: Any
    payload: Mapping[str, Any]
    count: int

    @classmethod
    def of(cls, entry: NoticeEntry) -> FormattedEntry:
        """Return an entry with texts that a model can read: no control characters."""
        event = entry.event
        return cls(
            type=event.type,
            source=visible(event.source),
            severity=event.severity.word,
            timestamp=event.timestamp,
            payload=cleaned(dict(event.payload)),
            count=entry.count,
        )
