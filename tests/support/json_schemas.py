"""Make Hypothesis strategies from published JSON schemas.

They give valid documents, documents with unknown members, as of a newer version, and nearly valid ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

SCHEMAS = Path(__file__).parents[1] / "schemas"
DEPTH = 3
"""Levels at which optional members are drawn; below them objects have their required ones alone."""
TEXT = st.text(max_size=20) | st.sampled_from(["", "a", "@andy:x", "\u202egpj.exe", "x" * 300])
NUMBER = st.integers(-(2**53), 2**53) | st.sampled_from([0, 1, -1])
JUNK = st.recursive(
    st.none() | st.booleans() | NUMBER | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=5,
)
_MISSING = object()


def examples(quick: int) -> int:
    """Return how many examples a test of this kind tries: few, but for the profile `soak`."""
    default = int(settings.default.max_examples)
    return default if default > 100 else quick


def load(name: str) -> dict[str, Any]:
    """Return the definitions of a file of tests/schemas/, by name."""
    found: dict[str, Any] = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))["$defs"]
    return found


def valid(schema: dict[str, Any], definitions: dict[str, Any], depth: int = DEPTH) -> st.SearchStrategy[Any]:
    """Return a strategy for what a schema admits. It knows the words that the locked schemas use."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return st.deferred(lambda: valid(definitions[name], definitions, depth - 1))
    if "allOf" in schema:
        rest = {name: value for name, value in schema.items() if name != "allOf"}
        merged: dict[str, Any] = {}
        for one in (*schema["allOf"], rest):
            merged = _merged(merged, one if "allOf" not in one else _whole(one))
        return valid(merged, definitions, depth)
    for word in ("anyOf", "oneOf"):
        if word in schema:
            choices = schema[word]
            if depth <= 0:
                # A schema that holds itself ends at its simplest form.
                choices = sorted(choices, key=lambda one: "$ref" in one)[:1]
            return st.one_of([valid(one, definitions, depth) for one in choices])
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema.get("type", "object" if "properties" in schema else None)
    if isinstance(kind, list):
        return st.one_of([valid({**schema, "type": one}, definitions, depth) for one in kind])
    return _SIMPLE.get(kind, _anything)(schema, definitions, depth)


def _whole(schema: dict[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for one in (*schema["allOf"], {name: value for name, value in schema.items() if name != "allOf"}):
        merged = _merged(merged, _whole(one) if "allOf" in one else one)
    return merged


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return both as one schema: members of objects together, the second's word where both have one."""
    merged = {**first, **second}
    if "properties" in first and "properties" in second:
        both = {**first["properties"], **second["properties"]}
        for name in first["properties"].keys() & second["properties"].keys():
            both[name] = _merged(_plain(first["properties"][name]), _plain(second["properties"][name]))
        merged["properties"] = both
    merged["required"] = sorted({*first.get("required", ()), *second.get("required", ())})
    return merged


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    return _whole(schema) if "allOf" in schema else schema


def _string(schema: dict[str, Any], _: dict[str, Any], __: int) -> st.SearchStrategy[Any]:
    if "pattern" in schema:
        return st.from_regex(schema["pattern"])
    return TEXT.filter(lambda text: schema.get("minLength", 0) <= len(text) <= schema.get("maxLength", 300))


def _integer(schema: dict[str, Any], _: dict[str, Any], __: int) -> st.SearchStrategy[Any]:
    low, high = schema.get("minimum", -(2**53)), schema.get("maximum", 2**53)
    return st.integers(int(low), int(high)) | st.just(int(max(low, min(1, high))))


def _number(_: dict[str, Any], __: dict[str, Any], ___: int) -> st.SearchStrategy[Any]:
    return st.floats(allow_nan=False, allow_infinity=False) | NUMBER


def _array(schema: dict[str, Any], definitions: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
    least = schema.get("minItems", 0)
    inner = valid(schema.get("items", {}), definitions, depth - 1)
    return st.lists(inner, min_size=least, max_size=max(least, 2 if depth > 0 else 0))


def _object(schema: dict[str, Any], definitions: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
    required, optional = {}, {}
    for name, one in schema.get("properties", {}).items():
        is_required = name in schema.get("required", ())
        if is_required or depth > 0:
            made = st.deferred(lambda one=one: valid(one, definitions, depth - 1))
            (required if is_required else optional)[name] = made
    known = st.fixed_dictionaries(required, optional=optional)
    more = schema.get("additionalProperties", False)
    if not more or depth <= 0:
        return known
    values = JUNK if more is True else valid(more, definitions, depth - 1)
    return st.builds(lambda others, own: {**others, **own}, st.dictionaries(TEXT, values, max_size=2), known)


def _anything(_: dict[str, Any], __: dict[str, Any], ___: int) -> st.SearchStrategy[Any]:
    return JUNK


_SIMPLE: dict[Any, Callable[..., st.SearchStrategy[Any]]] = {
    "string": _string,
    "integer": _integer,
    "number": _number,
    "array": _array,
    "object": _object,
    "boolean": lambda *_: st.booleans(),
    "null": lambda *_: st.none(),
}


@st.composite
def changed(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> Any:
    """Draw a value with one or two changes: a member of another type, gone, or one that nobody knows yet."""
    value = json.loads(json.dumps(draw(values)))
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.sampled_from(_places(value)))
        value = _with(value, place, draw(st.just(_MISSING) | JUNK | TEXT))
    return value


def any_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for what is valid, with newer members, or nearly valid."""
    return values | changed(values)


def _places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to each member of a value, and to one more of each object."""
    if isinstance(value, dict):
        inner = [way for name, one in value.items() for way in _places(one, (*here, name))]
        return [*inner, (*here, "newer")]
    if isinstance(value, list):
        return [here, *(way for number, one in enumerate(value) for way in _places(one, (*here, number)))]
    return [here]


def _with(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return None if new is _MISSING else new
    head, *rest = place
    if isinstance(value, dict):
        found = _with(value.get(head), tuple(rest), new) if rest else new
        others = {name: one for name, one in value.items() if name != head}
        return others if found is _MISSING else {**others, head: found}
    found = _with(value[head], tuple(rest), new) if rest else (None if new is _MISSING else new)
    return [found if number == head else one for number, one in enumerate(value)]
