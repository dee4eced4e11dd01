"""Validate a notice of an agent to itself, by the same rules in the container and on the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from agent_runner.wire.conditions import TOOL_NAME, BadCondition, parse_condition
from agent_runner.wire.mailbox import NotifySelf
from agent_runner.wire.notices import (
    MAX_HOURS,
    MAX_NOTICE_CHARS,
    MAX_TURNS,
    Category,
    DeliverAt,
    InjectAt,
    Priority,
    Severity,
)

MAX_DEDUPE_CHARS = 200
"""Most characters of the key by which notices replace each other."""
INJECT_AT: dict[DeliverAt, InjectAt] = {
    "immediate": "immediate",
    "next_turn": "turn_start",
    "after_n_turns": "turn_start",
    "after_tool": "after_tool",
    "on_condition": "immediate",
}
"""The point of a turn at which it is shown; with a condition, after that is found true."""
IN_THIS_TURN: tuple[DeliverAt, ...] = ("immediate", "after_tool", "on_condition")
"""Moments at which a notice can still be shown in the turn that makes it."""

NoteCode = Literal["missing_message", "message_too_long", "bad_enum", "bad_condition", "bad_value"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteRefusal:
    """The refusal of a notice; `text` names what would be accepted."""

    code: NoteCode
    text: str


def refusal_of(note: NotifySelf) -> NoteRefusal | None:
    """Return the refusal for the first thing that is wrong with a notice; None if nothing is wrong."""
    return _message_refusal(note) or _word_refusal(note) or _timing_refusal(note) or _limit_refusal(note)


def severity_of(priority: Priority) -> Severity:
    """Return the severity of the event for a notice of this priority."""
    match priority:
        case "low":
            return "debug"
        case "normal":
            return "info"
        case "high":
            return "warning"
        case "critical":
            return "error"


def event_type_of(category: Category) -> str:
    """Return the type of the event for a notice of this category."""
    return "agent.self.remind" if category == "reminder" else "agent.self.notify"


def _message_refusal(note: NotifySelf) -> NoteRefusal | None:
    """Return the refusal of a note whose message is empty or too long; None if it is neither."""
    message = note.message.strip()
    if not message:
        return NoteRefusal(code="missing_message", text="message: say what you want to be told.")
    if len(message) > MAX_NOTICE_CHARS:
        return NoteRefusal(
            code="message_too_long",
            text=f"message: at most {MAX_NOTICE_CHARS:,} characters, not {len(message):,}. Put the rest into "
            "a file and name it.",
        )
    return None


def _word_refusal(note: NotifySelf) -> NoteRefusal | None:
    """Return the refusal of the first field whose value is none of its accepted words; None if all are."""
    for field, value, allowed in (
        ("priority", note.priority, get_args(Priority)),
        ("category", note.category, get_args(Category)),
        ("deliver_at", note.deliver_at, get_args(DeliverAt)),
    ):
        if value not in allowed:
            text = f"{field}: one of {', '.join(allowed)}, not '{_shown(value)}'."
            return NoteRefusal(code="bad_enum", text=text)
    return None


def _timing_refusal(note: NotifySelf) -> NoteRefusal | None:
    """Return the refusal of a note whose time of delivery and its argument do not fit; None if they do."""
    for field, value, moment in (
        ("turns", note.turns, "after_n_turns"),
        ("tool_name", note.tool_name, "after_tool"),
        ("condition", note.condition, "on_condition"),
    ):
        if value is not None and note.deliver_at != moment:
            return _bad_value(f"{field}: only with deliver_at {moment}, not with {note.deliver_at}.")
    match note.deliver_at:
        case "after_n_turns" if note.turns is None or not 1 <= note.turns <= MAX_TURNS:
            return _bad_value(f"turns: from 1 to {MAX_TURNS}, {_instead(note.turns)}.")
        case "after_tool" if note.tool_name is not None and not TOOL_NAME.fullmatch(note.tool_name):
            return _bad_value(
                f"tool_name: the name of a tool, such as Bash, {_instead(note.tool_name)};"
                " leave it out for any."
            )
        case "on_condition":
            return _condition_refusal(note.condition or "")
    return None


def _condition_refusal(text: str) -> NoteRefusal | None:
    """Return the refusal of a condition that is not valid; None if it is."""
    try:
        parse_condition(text)
    except BadCondition as error:
        return NoteRefusal(code="bad_condition", text=f"condition: {error}")
    return None


def _limit_refusal(note: NotifySelf) -> NoteRefusal | None:
    """Return the refusal of a note whose hours or dedupe key are out of bounds; None if they are not."""
    hours = note.expires_in_hours
    if hours is not None and not 0 <= hours <= MAX_HOURS:
        return _bad_value(f"expires_in_hours: from 0, which is never, to {MAX_HOURS}, not {hours}.")
    if note.dedupe_key is not None and not 1 <= len(note.dedupe_key) <= MAX_DEDUPE_CHARS:
        return _bad_value(f"dedupe_key: from 1 to {MAX_DEDUPE_CHARS} characters, not {len(note.dedupe_key)}.")
    return None


def _bad_value(text: str) -> NoteRefusal:
    """Return the refusal of a field's value, with the text that says what would be accepted."""
    return NoteRefusal(code="bad_value", text=text)


def _instead(value: object) -> str:
    """Return the end of a sentence that says which wrong value was sent, or that there is none (None)."""
    return "and it is missing" if value is None else f"not '{_shown(str(value))}'"


def _shown(text: str) -> str:
    """Return a value on one line of at most 60 characters, for the text of a refusal."""
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:59]}…"
