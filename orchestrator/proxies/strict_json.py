"""Parse a container's JSON so that no other parser can understand it differently, within limits. Pure.

The limits are checked first: otherwise a hostile container could make the host parse for nothing.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from typing import Any

from agent_runner.wire.unicode_forms import MAX_MARKS, has_long_run, normalized

# Measured on a busy machine: half a million objects, which fit into one body, kept the parser busy for 5.6 s.
MAX_PARTS = 100_000
"""Values and names that a document may have: about 0.1 s of work. A million tokens of text have fewer."""
MAX_NAME_CHARS = 256
"""Characters of a name that is folded and compared."""
MAX_NUMBER_CHARS = 4_000
"""Characters that all long numbers of a document have together, at most."""
_LONG_NUMBER = 20
"""Characters above which a number is longer than any clock, price or id needs."""
# Possessive quantifiers: no text can make this pattern go back and try again.
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NUMBER = re.compile(rb"[0-9][0-9.eE+-]*")
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
"""The categories of Unicode whose characters are invisible."""

_TOO_MANY_PARTS = f"its JSON has more than {MAX_PARTS:,} parts"
_TOO_DEEP = "its JSON is nested too deeply"


class NotStrictJson(ValueError):
    """The text is ambiguous or no JSON, or has more parts than are read. Agents read the message."""


def parse(body: bytes, *, folds_names: bool = False) -> Any:
    """Parse JSON in UTF-8, and return the document.

    With `folds_names`, these are refused as well: two names in an object that some parsers take for the same,
    by case or by form; names that are too long to compare; and texts that are no Unicode.

    Raises:
        NotStrictJson: the body is no JSON, has a name twice in an object or a number that JSON does not know
            such as `NaN`, or exceeds the limits.
    """
    _check_bounds(body)
    document = _load(body, folds_names=folds_names)
    if folds_names and _ESCAPED_SURROGATE.search(body):
        _check_unicode(document)
    return document


def _check_bounds(body: bytes) -> None:
    """Raise `NotStrictJson` if a body has too many values or digits, without parsing it.

    Only the digits of long numbers count. Each count stops at its limit, so memory stays small.
    """
    # Strings are replaced first: a long text may have more commas than a document may have parts. Each part
    # is then a string, or follows a comma or a bracket.
    skeleton, strings = _STRINGS.subn(b'"', body, count=MAX_PARTS + 1)
    if strings + sum(map(skeleton.count, (b",", b"{", b"["))) > MAX_PARTS:
        raise NotStrictJson(_TOO_MANY_PARTS)
    long_digits = 0
    for number_count, number in enumerate(_NUMBER.finditer(skeleton), start=1):
        length = number.end() - number.start()
        long_digits += length if length > _LONG_NUMBER else 0
        if long_digits > MAX_NUMBER_CHARS:
            raise NotStrictJson(f"its numbers have more than {MAX_NUMBER_CHARS:,} digits")
        # Only in a text that is no JSON, such as `1 1 1`, are there more numbers than parts.
        if number_count > MAX_PARTS:
            raise NotStrictJson(_TOO_MANY_PARTS)


def _check_unicode(document: Any) -> None:
    """Raise `NotStrictJson` if a text in a document has half a surrogate pair, and so is no Unicode.

    No server can read such a text, and the host's database cannot store it.
    """
    try:
        json.dumps(document, ensure_ascii=False).encode("utf-8")
    except RecursionError as error:
        raise NotStrictJson(_TOO_DEEP) from error
    except UnicodeEncodeError as error:
        raise NotStrictJson("a text in it is no Unicode: half of a surrogate pair stands alone") from error


def _load(body: bytes, *, folds_names: bool) -> Any:
    """Return the parsed document. Raises `NotStrictJson` if it is no JSON, or ambiguous.

    With `folds_names`, names that some parsers take for the same are ambiguous.
    """
    try:
        return json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_object_hook(folds_names=folds_names),
            parse_constant=_refuse_constant,
        )
    except NotStrictJson:  # from the hook; it is a `ValueError`, too, but with a more exact text
        raise
    except (ValueError, RecursionError) as error:
        raise NotStrictJson("its body is no JSON that has one meaning") from error


def to_ascii_json(document: object) -> bytes:
    """Return `document` as ASCII JSON, which reads the same in every charset.

    Raises:
        NotStrictJson: a number in it is too large for JSON, or it is nested too deeply.
    """
    try:
        return json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")
    except RecursionError as error:
        raise NotStrictJson(_TOO_DEEP) from error
    except ValueError as error:
        raise NotStrictJson("one of its numbers is too great") from error


def fold_name(name: str) -> str:
    """Return a name without differences of case, form and invisible characters, for comparison."""
    # Also after `casefold`, which may return a text that is not in the normal form.
    text = normalized("NFKC", normalized("NFKC", name).casefold())
    return "".join(character for character in text if unicodedata.category(character) not in _INVISIBLE)


def _object_hook(*, folds_names: bool) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """Return the function by which the parser makes an object from its names and values.

    It refuses a name that is there twice. With `folds_names`, it also refuses names that some parsers take
    for the same, or that are too long to compare.
    """

    def to_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Return the object with the names and values in `pairs`.

        Raises `ValueError` for an ambiguous name; `NotStrictJson` is a kind of it.
        """
        members = dict(pairs)
        # For a repeated name, another parser could take the other value.
        if len(members) != len(pairs):
            raise ValueError("a name is there twice")
        if folds_names and any(len(name) > MAX_NAME_CHARS for name in members):
            raise NotStrictJson(f"a name in it has more than {MAX_NAME_CHARS} characters")
        # `fold_name` does not normalise long runs of combining marks, so two equal names could be missed.
        if folds_names and any(has_long_run(name) for name in members):
            raise NotStrictJson(f"a name in it has more than {MAX_MARKS} combining marks in a row")
        if folds_names and len({fold_name(name) for name in members}) != len(members):
            # Go's and .NET's parsers match member names whatever their case.
            raise ValueError("two names are the same to some readers")
        return members

    return to_object


def _refuse_constant(name: str) -> Any:
    """Raise `ValueError` for `NaN` and `Infinity`, which Python's parser accepts but JSON does not know."""
    raise ValueError(f"{name} is no number of JSON")
