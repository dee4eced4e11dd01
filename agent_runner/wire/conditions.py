"""Parse the condition that a notice waits for: one of four forms, or a few joined. None is evaluated."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

FORMS = (
    "context_above_threshold(0.7)",
    "tool_completed(Bash)",
    "message_count_above(50)",
    "token_usage_above(0.8)",
)
"""One example of each form; there are no others."""
MAX_PARTS = 4
"""Most conditions that are combined."""
TOGETHER = f"up to {MAX_PARTS} of them in all(…, …) or any(…, …)"
MAX_COUNT = 10_000
"""The highest number of messages that a condition may wait for."""
MAX_SHOWN_CHARS = 60
"""Most characters of a wrong text in the message about it."""
TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_FORM = re.compile(r"([a-z_]+)\(([^()\n]*)\)")
_SEVERAL = re.compile(r"(all|any)\(([^\n]*)\)")
_SHARE = re.compile(r"[0-9]?(?:\.[0-9]{1,9})?")
_COUNT = re.compile(r"[0-9]{1,5}")


class BadCondition(ValueError):
    """The text is no condition; the message names the accepted forms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextAbove:
    """The conversation fills at least `share` of the model's window."""

    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCompleted:
    """A call of this tool has just ended."""

    tool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesAbove:
    """There have been at least `count` messages."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensAbove:
    """At least `share` of the tokens that may be used are used."""

    share: float


Predicate = ContextAbove | ToolCompleted | MessagesAbove | TokensAbove


@dataclass(frozen=True, slots=True, kw_only=True)
class Several:
    """Conditions that must all, or any, be true at once."""

    needs: Literal["all", "any"]
    parts: tuple[Predicate, ...]


Condition = Predicate | Several


def parse_condition(text: str) -> Condition:
    """Return the condition in a text: one of the `FORMS`, or a few of them in `all(…, …)` or `any(…, …)`.

    Raises:
        BadCondition: the text has another form, or too many parts.
    """
    several = _SEVERAL.fullmatch(text.strip(" "))
    if several is None:
        return _predicate(text)
    parts = several[2].split(",")
    if len(parts) > MAX_PARTS:
        raise BadCondition(f"{several[1]} takes up to {MAX_PARTS} conditions, not {len(parts)}.")
    needs: Literal["all", "any"] = "all" if several[1] == "all" else "any"
    return Several(needs=needs, parts=tuple(_predicate(part) for part in parts))


def _predicate(text: str) -> Predicate:
    """Return the single condition in a text of the form `name(argument)`.

    Raises `BadCondition` for an unknown name, a wrong argument or another form.
    """
    match = _FORM.fullmatch(text.strip(" "))
    if match is None:
        raise BadCondition(f"'{_shown(text)}' is no condition: use one of {', '.join(FORMS)}, or {TOGETHER}.")
    name, argument = match[1], match[2].strip(" ")
    match name:
        case "context_above_threshold":
            return ContextAbove(share=_share(name, argument))
        case "token_usage_above":
            return TokensAbove(share=_share(name, argument))
        case "message_count_above":
            return MessagesAbove(count=_count(name, argument))
        case "tool_completed":
            return ToolCompleted(tool=_tool(name, argument))
        case _:
            raise BadCondition(f"There is no condition '{_shown(name)}': use one of {', '.join(FORMS)}.")


def _share(name: str, argument: str) -> float:
    """Return the argument of the condition `name` as a number above 0 and up to 1. Raises `BadCondition`."""
    if not argument or not _SHARE.fullmatch(argument) or not 0 < float(argument) <= 1:
        raise BadCondition(
            f"{name} takes a number above 0 and up to 1, such as 0.7, not '{_shown(argument)}'."
        )
    return float(argument)


def _count(name: str, argument: str) -> int:
    """Return the argument of the condition `name` as a number up to `MAX_COUNT`. Raises `BadCondition`."""
    if not _COUNT.fullmatch(argument) or not 1 <= int(argument) <= MAX_COUNT:
        raise BadCondition(f"{name} takes a whole number from 1 to {MAX_COUNT}, not '{_shown(argument)}'.")
    return int(argument)


def _tool(name: str, argument: str) -> str:
    """Return the argument of the condition `name` if it is the name of a tool. Raises `BadCondition`."""
    if not TOOL_NAME.fullmatch(argument):
        raise BadCondition(
            f"{name} takes the name of a tool, without quotes, such as Bash, not '{_shown(argument)}'."
        )
    return argument


def _shown(text: str) -> str:
    """Return a text on one line of at most `MAX_SHOWN_CHARS` characters, for a message about it."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_SHOWN_CHARS else f"{line[: MAX_SHOWN_CHARS - 1]}…"
