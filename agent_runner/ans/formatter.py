"""Write batches of notices as text for a model, with a template or without one; the text is never empty."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from agent_runner.ans.escaping import one_line, without_tags
from agent_runner.ans.event import EventLevel
from agent_runner.ans.notification import NoticeBatch
from agent_runner.ans.template_data import MAX_CELL_CHARS, PREFIXES, FormattedEntry

if TYPE_CHECKING:
    from jinja2 import Template

logger = logging.getLogger(__name__)

_BLANKS = " \t\n"
"""Whitespace that is stripped from a template's output. Other kinds, such as a non-breaking space, belong to
the text.
"""
MAX_LINE_CHARS = 2_400
"""Most characters of a line: enough for the longest message and the start of its line."""
MAX_ROWS_WITHOUT_TEMPLATE = 10
"""Most types that the text about several events lists without a template."""
FIELDS_WITHOUT_TEMPLATE = 5
"""Most fields of a payload in the text about one event without a template."""

Source = Callable[[NoticeBatch], str | None]
"""A function that returns the text of a batch's template, or None if there is none."""


class Formatter:
    """Formats batches of notices with Jinja2 templates; without one if it is missing or fails.

    `text` may run in a thread.
    """

    def __init__(self, source: Source) -> None:
        """`source` returns the text of a batch's template, or None if there is none."""
        self._source = source
        self._compiled: dict[str, Template] = {}
        self._broken: set[str] = set()
        """The templates whose failure was logged."""
        self._environment: Any = None

    def renew(self) -> None:
        """Drop the compiled templates, because their files may have changed; log failures of them again."""
        self._compiled.clear()
        self._broken.clear()

    def text(self, batch: NoticeBatch) -> str:
        """Return the text of a batch of notices.

        No value in it can start a new line, or close the tag that `renderer` puts around all notices.
        """
        entries = [FormattedEntry.of(entry) for entry in batch.entries]
        text = self._from_template(batch, entries) or plain(entries)
        if batch.notice_id is not None:
            text = f"{text} (notice {batch.notice_id})"
        # Done last, because template and payload could both contain that closing tag.
        return without_tags(text)

    def _from_template(self, batch: NoticeBatch, entries: Sequence[FormattedEntry]) -> str:
        """Return the text that the batch's template makes; empty if there is none or it fails.

        `entries` are the batch's entries as templates get them.
        """
        source = self._source(batch)
        if source is None:
            return ""
        try:
            return _cut(self._template(source).render(_variables(batch, entries)).strip(_BLANKS))
        except Exception as error:  # noqa: BLE001  # the notice is delivered even if its template fails
            self._log_once(batch, error)
            return ""

    def _log_once(self, batch: NoticeBatch, error: Exception) -> None:
        """Log that a template fails, once until `renew`."""
        template = f"{batch.subscriber.output.template} of {batch.subscriber.id}"
        if template not in self._broken:
            self._broken.add(template)
            reason = one_line(str(error))
            logger.warning("template %s fails, so its notices take the plain form: %s", template, reason)

    def _template(self, source: str) -> Template:
        """Return the compiled template of the text `source`; each text is compiled once."""
        # Jinja2 is imported for the first delivery only: most turns have none, and should not wait for it.
        if source not in self._compiled:
            if self._environment is None:
                from agent_runner.ans.templating import environment

                self._environment = environment()
            self._compiled[source] = self._environment.from_string(source)
        return self._compiled[source]


def _variables(batch: NoticeBatch, entries: Sequence[FormattedEntry]) -> dict[str, Any]:
    """Return the variables that a template can use, by name; `entries` are the batch's entries."""
    return {
        "notification": batch,
        "event": entries[0],
        "events": entries,
        "count": sum(entry.count for entry in entries),
        "timestamp": entries[0].timestamp,
    }


def _cut(text: str) -> str:
    """Return a text with long lines cut at `MAX_LINE_CHARS`."""
    lines = (
        line if len(line) <= MAX_LINE_CHARS else f"{line[: MAX_LINE_CHARS - 1]}…" for line in text.split("\n")
    )
    return "\n".join(lines)


def plain(entries: Sequence[FormattedEntry]) -> str:
    """Return the text of entries without a template: the first fields of one event, or the types of several.

    It begins with the prefix for the most severe of them.
    """
    worst = max((EventLevel.of(entry.severity) for entry in entries), default=EventLevel.INFO).word
    beginning = f"{PREFIXES.get(worst, '')} system notification".strip()
    if len(entries) == 1:
        return _cut(f"{beginning}: {_one_event(entries[0])}")
    types = Counter[str]()
    for entry in entries:
        types[entry.type] += entry.count
    listed = ", ".join(
        f"{count_prefix(count)}{event_type}"
        for event_type, count in types.most_common(MAX_ROWS_WITHOUT_TEMPLATE)
    )
    unlisted_count = len(types) - MAX_ROWS_WITHOUT_TEMPLATE
    ending = f", ... and {unlisted_count} more" if unlisted_count > 0 else ""
    return _cut(f"{beginning}: {types.total()} events: {listed}{ending}")


def _one_event(event: FormattedEntry) -> str:
    """Return the text of an entry without a template: how often, type, source, first fields."""
    fields = list(event.payload.items())[:FIELDS_WITHOUT_TEMPLATE]
    listed = "".join(f"; {one_line(name)}: {cell(value)}" for name, value in fields)
    return f"{count_prefix(event.count)}{event.type} from {one_line(event.source)}{listed}"


def count_prefix(count: int) -> str:
    """Return `3× ` for a count above 1, else an empty text."""
    return f"{count}× " if count > 1 else ""


def cell(value: Any) -> str:
    """Return a value of a payload as one line of at most `MAX_CELL_CHARS` characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    line = one_line(text)
    return line if len(line) <= MAX_CELL_CHARS else f"{line[: MAX_CELL_CHARS - 1]}…"
