"""Turn payloads into plain JSON of a bounded size, whatever they were made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_runner.wire.notices import MAX_NOTICE_CHARS

MAX_FIELDS = 40
MAX_ITEMS = 50
MAX_DEPTH = 4
MAX_NAME_CHARS = 100


def bounded(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return `payload` as plain JSON: long texts are cut, what is too deep or is no JSON becomes text."""
    return {_text(name, MAX_NAME_CHARS): _plain(value, 1) for name, value in _first(payload)}


def _first(values: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    return list(values.items())[:MAX_FIELDS]


def _plain(value: Any, depth: int) -> Any:
    match value:
        case None | bool():
            return value
        case int() | float():
            return value if abs(value) < 2**63 else str(value)[:MAX_NAME_CHARS]
        case str():
            return _text(value, MAX_NOTICE_CHARS)
        case Mapping() if depth < MAX_DEPTH:
            return {_text(name, MAX_NAME_CHARS): _plain(inner, depth + 1) for name, inner in _first(value)}
        case list() | tuple() | set() | frozenset() if depth < MAX_DEPTH:
            return [_plain(inner, depth + 1) for inner in list(value)[:MAX_ITEMS]]
        case _:
            return _text(value, MAX_NOTICE_CHARS)


def _text(value: Any, limit: int) -> str:
    """Return at most `limit` characters, without halves of surrogate pairs, which UTF-8 cannot encode."""
    text = str(value)
    cut = text if len(text) <= limit else f"{text[: limit - 1]}…"
    return cut.encode("utf-8", "replace").decode("utf-8")
