"""Escape text so that one line stays one line, and a tag in it does not count as a tag."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

_BREAKS = re.compile("\r\n|[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]")
_TAG = re.compile(r"<(?=\W{0,8}[^\W\d])")
"""Matches a `<` that a letter follows, perhaps after a few other characters such as `/`."""
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co"})
"""Unicode's categories of characters that are not shown: control, format, surrogate, private use."""
_JOINERS = frozenset("\u200c\u200d")
"""Invisible joining characters that some scripts and emoji need, so they are not removed."""


def visible(text: str) -> str:
    """Return the text without characters that are not shown, such as control characters (`_UNSEEN`).

    Tabs and joiners stay, and every kind of line break becomes a newline.
    """
    lines = _BREAKS.sub("\n", text)
    return "".join(
        letter for letter in lines if letter in "\n\t" or letter in _JOINERS or not _is_unseen(letter)
    )


def _is_unseen(character: str) -> bool:
    """Return whether a character is of a category that is not shown."""
    return unicodedata.category(character) in _UNSEEN


def one_line(text: str) -> str:
    """Return the text as `visible` cleans it, with newlines and tabs written as a backslash and a letter."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def without_tags(text: str) -> str:
    """Return the text with `‹` for `<` wherever a tag could begin.

    Notices are put between two tags for the model: no text in them may open or close these.
    """
    return _TAG.sub("‹", text)


def cleaned(value: Any) -> Any:
    """Return a JSON value with `visible` applied to every text in it."""
    match value:
        case str():
            return visible(value)
        case dict():
            return {visible(str(name)): cleaned(inner) for name, inner in value.items()}
        case list():
            return [cleaned(inner) for inner in value]
        case _:
            return value
