"""Jinja2 as notices use it: nothing undefined, nothing unquoted, nothing of Python within reach.

Imported when the first notice is formatted, for it costs a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import StrictUndefined, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agent_runner.ans.accumulator import REPEATED
from agent_runner.ans.clean import one_line
from agent_runner.ans.formatter import MAX_CELL_CHARS, PREFIXES, Finished, Shown


class _Environment(ImmutableSandboxedEnvironment):
    def getattr(self, obj: Any, attribute: str) -> Any:
        """A field of a payload comes before a method of its dictionary."""
        if isinstance(obj, Mapping):
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)


def environment() -> _Environment:
    """Make an environment with the filters that templates of notices may use."""
    made = _Environment(
        autoescape=False,  # it writes for a model, and `_quoted` sees to every value
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_quoted,
    )
    made.globals["toon_encode"] = toon_encode
    made.filters |= {
        "toon_encode": toon_encode,
        "format_time": format_time,
        "severity_prefix": severity_prefix,
        "table": table,
        "repeated": repeated,
    }
    return made


def _quoted(value: Any) -> Any:
    """Keep what a template puts out in its line."""
    if isinstance(value, Undefined | Finished):
        return value
    return one_line(value if isinstance(value, str) else str(value))


def toon_encode(value: Any) -> Finished:
    """Write a value as TOON, which quotes what would break a line or a row."""
    import toon_format

    return Finished(toon_format.encode(value))


def table(events: Sequence[Shown], name: str, *fields: str) -> Finished:
    """Write a row an event: `name[2]{a,b}:`, with how often where one came more than once.

    Raises:
        KeyError: an event lacks a field.
    """
    rows = [{field: _cell(event.payload[field]) for field in fields} for event in events]
    if any(event.count > 1 for event in events):
        rows = [row | {"times": event.count} for row, event in zip(rows, events, strict=True)]
    return toon_encode({name: rows})


def _cell(value: Any) -> str | int | float | bool | None:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else str(toon_encode(value))
    return text if len(text) <= MAX_CELL_CHARS else f"{text[: MAX_CELL_CHARS - 1]}…"


def format_time(value: datetime) -> str:
    return value.strftime("%H:%M:%S")


def severity_prefix(value: str) -> str:
    """`!critical:`, `!error:`, `!warning:`, or nothing."""
    return PREFIXES.get(value, "")


def repeated(count: int, verb: str = "") -> str:
    """Say how often, where it was more than once: ` (2×)`, ` failed 3 times` with a verb."""
    if verb and count >= REPEATED:
        return f" {verb} {count} times"
    return f" ({count}×)" if count > 1 else ""
