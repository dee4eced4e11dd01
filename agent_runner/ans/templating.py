"""Set up Jinja2 for notices: undefined names fail, values are escaped, and Python's objects are out of reach.

This is imported when the first notice is formatted, because the import takes a tenth of a second.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import StrictUndefined, TemplateError, Undefined, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agent_runner.ans.accumulator import REPEATED
from agent_runner.ans.escaping import one_line
from agent_runner.ans.template_data import MAX_CELL_CHARS, PREFIXES, FormattedBatch, FormattedEntry

ALLOWED_FILTERS = frozenset(
    {"count", "d", "default", "first", "float", "int", "last", "length", "lower", "round", "sort", "sum"}
    | {"title", "trim", "truncate", "unique", "upper"}
)
"""Filters of Jinja2 that cannot turn a short text into a long one."""
_ALLOWED_NODES = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.Const,
    nodes.Name,
    nodes.Getattr,
    nodes.Getitem,
    nodes.Slice,
    nodes.If,
    nodes.For,
    nodes.CondExpr,
    nodes.Filter,
    nodes.Keyword,
    nodes.Test,
    nodes.Compare,
    nodes.Operand,
    nodes.And,
    nodes.Or,
    nodes.Not,
    nodes.Concat,
    nodes.List,
    nodes.Tuple,
)
"""Types of nodes that a group's template may have: no arithmetic, no assignments and no calls."""


class BadTemplate(ValueError):
    """A group's template cannot be used; the text gives the reason in one line."""


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox that gives templates the fields of payloads, but no methods."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return the value of `obj.attribute` in a template.

        For a mapping it is the value under that key: its methods, such as `items`, cannot be reached. Without
        that key it is undefined, and Jinja2 raises when the template prints it.
        """
        if isinstance(obj, Mapping):
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)


def environment() -> _Environment:
    """Return an environment with the filters that templates of notices may use."""
    sandbox = _Environment(
        autoescape=False,  # it writes for a model, and `_escaped` escapes every value
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_escaped,
    )
    sandbox.globals = {"toon_encode": toon_encode}
    filters = {name: filter_ for name, filter_ in sandbox.filters.items() if name in ALLOWED_FILTERS}
    sandbox.filters = filters | {
        "toon_encode": toon_encode,
        "format_time": format_time,
        "severity_prefix": severity_prefix,
        "table": table,
        "repeated": repeated,
        "seldom": seldom,
    }
    return sandbox


def check(source: str) -> None:
    """Check that a group's template can only put values into lines, so that it renders quickly.

    Jinja2's sandbox alone would let a template run for hours.

    Raises:
        BadTemplate: it is no template, is nested too deep, or has a node, filter or nested loop that is not
            allowed.
    """
    sandbox = environment()
    try:
        parsed = sandbox.parse(source)
        all_nodes = list(parsed.find_all(nodes.Node))
    except (TemplateError, ValueError) as error:  # `ValueError` for a number with too many digits
        raise BadTemplate(f"line {getattr(error, 'lineno', 1)}: {error}") from error
    except RecursionError as error:
        raise BadTemplate("line 1: it is nested too deep") from error
    for node in all_nodes:
        if not isinstance(node, _ALLOWED_NODES) and not _calls_toon_encode(node):
            raise BadTemplate(f"line {node.lineno}: {type(node).__name__} is not for templates of a group")
    for used in parsed.find_all(nodes.Filter):
        if used.name not in sandbox.filters:
            raise BadTemplate(f"line {used.lineno}: there is no filter '{used.name}'")
    for loop in parsed.find_all(nodes.For):
        # `find_all` searches inside the loop and does not return the loop itself.
        if loop.recursive or any(True for _ in loop.find_all(nodes.For)):
            raise BadTemplate(f"line {loop.lineno}: a loop in a loop is not for templates of a group")


def _calls_toon_encode(node: nodes.Node) -> bool:
    """Return whether a node calls `toon_encode`, the only function that a template may call."""
    return isinstance(node, nodes.Call) and getattr(node.node, "name", "") == "toon_encode"


def _escaped(value: Any) -> Any:
    """Return a value that a template prints, as text on one line: line breaks become `\\n`, tabs `\\t`.

    Nothing is put in quotation marks; a mapping or list is written as JSON. A `FormattedBatch`, whose own
    format has escaped its values, stays as it is, and may have several lines. An undefined name stays, too,
    so that Jinja2 raises when it prints it.
    """
    if isinstance(value, Undefined | FormattedBatch):
        return value
    if isinstance(value, Mapping | list):
        return one_line(json.dumps(value, ensure_ascii=False, default=str))
    return one_line(str(value))


def toon_encode(value: Any) -> FormattedBatch:
    """Return a value as text in the TOON format, of the type that is printed without further escaping.

    The format itself quotes characters that would break a line or a row.
    """
    import toon_format

    return FormattedBatch(toon_format.encode(value))


def table(events: Sequence[FormattedEntry], name: str, *fields: str) -> FormattedBatch:
    """Return a table with a row for each event, under a head such as `name[2]{a,b}:`.

    A row has the named `fields` of the event's payload. If an event happened more than once, a column
    `times` has the counts.

    Raises:
        KeyError: an event lacks a field.
    """
    rows = [{field: _cell(event.payload[field]) for field in fields} for event in events]
    if any(event.count > 1 for event in events):
        rows = [row | {"times": event.count} for row, event in zip(rows, events, strict=True)]
    return toon_encode({name: rows})


def _cell(value: Any) -> str | int | float | bool | None:
    """Return a value for a cell of a table: numbers, booleans and None unchanged, any other value as text.

    The text has at most `MAX_CELL_CHARS` characters.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else str(toon_encode(value))
    return text if len(text) <= MAX_CELL_CHARS else f"{text[: MAX_CELL_CHARS - 1]}…"


def format_time(value: datetime) -> str:
    """Return the time of day of a moment as `09:30:05`."""
    return value.strftime("%H:%M:%S")


def severity_prefix(value: str) -> str:
    """Return `!critical:`, `!error:` or `!warning:` for these severities, else an empty text."""
    return PREFIXES.get(value, "")


def repeated(count: int, verb: str = "") -> str:
    """Return words for a count, to be put after an event's name; empty for a count of 1.

    They are ` (2×)`, or with a verb and a count of at least `REPEATED`, ` failed 3 times:`.
    """
    if verb and count >= REPEATED:
        return f" {verb} {count} times:"
    return f" ({count}×)" if count > 1 else ""


def seldom(events: Sequence[FormattedEntry]) -> list[FormattedEntry]:
    """Return the events that happened fewer than `REPEATED` times, which share a table."""
    return [event for event in events if event.count < REPEATED]
