"""Check incoming texts: each is stored unchanged but for outer space, or refused with the reason. Pure."""

from __future__ import annotations

import re

from orchestrator.domain.dashboard import ToolRefused

MAX_LINE = 200
MAX_TEXT = 10_000
MAX_MESSAGE = 4_000
MAX_TAGS = 50
MAX_TAG = 100

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def text(name: str, value: str, *, limit: int = MAX_TEXT, is_needed: bool = False) -> str:
    """Return a text without space around it. Emoji, direction marks and line breaks stay; CR LF becomes LF.

    `name` is the field's name, for the error. `is_needed`: the text must not be empty.

    Raises:
        ToolRefused: VALIDATION when it is too long, has control characters, or is needed and empty.
    """
    value = value.replace("\r\n", "\n").strip()
    if is_needed and not _is_visible(value):
        raise ToolRefused("VALIDATION", f"{name} is empty.")
    if len(value) > limit:
        raise ToolRefused("VALIDATION", f"{name} has {len(value):,} characters; at most {limit:,} are taken.")
    if control := _CONTROL.search(value):
        raise ToolRefused(
            "VALIDATION", f"{name} has the control character U+{ord(control[0]):04X}: leave it out."
        )
    return value


def line(name: str, value: str, *, limit: int = MAX_LINE, is_needed: bool = False) -> str:
    """Return a text on one line, without space around it.

    `name` is the field's name, for the error. `is_needed`: the text must not be empty.

    Raises:
        ToolRefused: VALIDATION when it is too long, has control characters, or is needed and empty.
    """
    # `split` takes some control characters for spaces, but `text` has to find and refuse them. So in a text
    # that may have some, only spaces, tabs and line breaks are joined.
    return text(
        name,
        " ".join(value.split()) if value.isprintable() else _one_line(value),
        limit=limit,
        is_needed=is_needed,
    )


def tags(values: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Return tags, each on one line and once.

    Raises:
        ToolRefused: VALIDATION when there are too many, or one is empty, too long or has control characters.
    """
    if len(values) > MAX_TAGS:
        raise ToolRefused("VALIDATION", f"There are {len(values)} tags; at most {MAX_TAGS} are taken.")
    return tuple(dict.fromkeys(line("tags", value, limit=MAX_TAG, is_needed=True) for value in values))


def _one_line(value: str) -> str:
    """Return a text with each run of spaces, tabs and line breaks replaced by one space."""
    return re.sub(r"[ \t\r\n]+", " ", value)


def _is_visible(value: str) -> bool:
    """Return whether a text has more than space and invisible marks."""
    return any(
        not letter.isspace() and letter not in "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
        for letter in value
    )
