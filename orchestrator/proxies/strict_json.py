"""Read JSON of a container so that no other reader can understand it otherwise, within bounds. Pure.

The bounds stand before the work: parsing is what a hostile container makes the host do for nothing.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from typing import Any

MAX_PARTS = 100_000
"""Values and names that a document may have: about 0.1 s of work. A million tokens of text have fewer."""
MAX_NUMBER_CHARS = 4_000
"""Digits of all numbers that are longer than any a clock, a price or an id needs."""
_LONG_NUMBER = 20
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NUMBER = re.compile(rb"[0-9][0-9.eE+-]*")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})


class NotStrictJson(ValueError):
    """The text is no JSON that has one meaning, or has more parts than are read. Agents read its words."""


def parse(body: bytes, *, folds_names: bool = False) -> Any:
    """Return the document in `body`, which is UTF-8.

    `folds_names`: whether names that some readers take for the same, by case or by form, are refused beside
    each other.

    Raises:
        NotStrictJson: it is no JSON, has a name twice, a number without a value, or is beyond the bounds.
    """
    # What stands in strings costs nothing: a conversation has more commas than any document has parts.
    skeleton = _STRINGS.sub(b'"', body)
    if skeleton.count(b'"') + skeleton.count(b",") + skeleton.count(b"{") + skeleton.count(b"[") > MAX_PARTS:
        raise NotStrictJson(f"its JSON has more than {MAX_PARTS:,} parts")
    numbers = [len(number) for number in _NUMBER.findall(skeleton)]
    if sum(length for length in numbers if length > _LONG_NUMBER) > MAX_NUMBER_CHARS:
        raise NotStrictJson(f"its numbers have more than {MAX_NUMBER_CHARS:,} digits")
    try:
        return json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_unambiguous(folds_names=folds_names),
            parse_constant=_refuse_constant,
        )
    except (ValueError, RecursionError) as error:
        raise NotStrictJson("its body is no JSON that has one meaning") from error


def written(document: object) -> bytes:
    """Return `document` as JSON of ASCII alone, which reads the same in every charset.

    Raises:
        NotStrictJson: a number in it is greater than any that JSON has.
    """
    try:
        return json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")
    except ValueError as error:
        raise NotStrictJson("one of its numbers is too great") from error


def folded(name: str) -> str:
    """Return what is left of a name where case, form and invisible characters do not count."""
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return "".join(character for character in text if unicodedata.category(character) not in _INVISIBLE)


def _unambiguous(*, folds_names: bool) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    def take(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        # Of a name that is there twice, another reader could take the other value.
        if len(found) != len(pairs):
            raise ValueError("a name is there twice")
        if folds_names and len({folded(name) for name in found}) != len(found):
            # Go's and .NET's readers find a member whatever the case of its name.
            raise ValueError("two names are the same to some readers")
        return found

    return take


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
