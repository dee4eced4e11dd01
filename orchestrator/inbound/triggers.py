"""Does this message ask Andy for something? Pure."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from orchestrator.models import Group

CONVERSATION_MS = 60_000
NO_TRIGGER = "no trigger"
EMPTY = "empty text"

# What Korean speakers hang on a name they call: "@Andy야", "@앤디님".
_VOCATIVE = r"(?:(?:님아|이?야|아|님|씨)(?=[\s,.!?:]|$))?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What of the running conversation lets a reply do without the trigger."""

    is_container_alive: bool = False
    last_answer_ms: int | None = None
    quotes_andy: bool = False


def ignored_reason(
    text: str, group: Group, *, name: str, conversation: Conversation, now_ms: int
) -> str | None:
    """None when the message is a request, else why it is not."""
    if not text.strip():
        return EMPTY
    if group.is_main or not group.requires_trigger:
        return None
    if is_called(text, group, name=name) or _goes_on(conversation, now_ms):
        return None
    return NO_TRIGGER


def is_called(text: str, group: Group, *, name: str) -> bool:
    """Whether the text starts with `@name` or the group's own trigger."""
    return _pattern(group, name).match(_composed(text)) is not None


def without_trigger(text: str, group: Group, *, name: str) -> str:
    """The text less the trigger it starts with and what joins the two."""
    return _pattern(group, name).sub("", _composed(text), count=1).lstrip(" \t\n,:").strip()


def _goes_on(conversation: Conversation, now_ms: int) -> bool:
    return (
        conversation.quotes_andy
        and conversation.is_container_alive
        and conversation.last_answer_ms is not None
        and now_ms - conversation.last_answer_ms <= CONVERSATION_MS
    )


def _composed(text: str) -> str:
    """Some devices send Hangul in single letters, which compare as other text."""
    return unicodedata.normalize("NFC", text.strip())


def _pattern(group: Group, name: str) -> re.Pattern[str]:
    calls = [f"@{name}", *([group.trigger] if group.trigger else [])]
    either = "|".join(re.escape(_composed(call)) for call in sorted(calls, key=len, reverse=True))
    # Not \b: it knows Hangul as letters, and "@Andy야" is a call.
    return re.compile(rf"^(?:{either})(?![A-Za-z0-9_]){_VOCATIVE}", re.IGNORECASE)
