"""Judge whether a message asks the assistant for something, and whether it is a session command. Pure.

`/compact` and `/clear` are session commands: people say them to the conversation itself.
"""

from __future__ import annotations

import re
import unicodedata

from orchestrator.domain.values import Group, Inbound, SessionCommand

NO_TRIGGER = "no trigger"
EMPTY = "empty text"
CALL_WORDS = 3
"""Among so many words at its start a voice note names whom it calls."""
ONLY_OWNER = "only the owner may use this here"

_COMMANDS = {f"/{command.value}": command for command in SessionCommand}

# What Korean speakers hang on a name they call: "@Andy야", "@앤디님".
_VOCATIVE = r"(?:(?:님아|이?야|아|님|씨)(?=[\s,.!?:]|$))?"
# Not \b: it knows Hangul as letters, and "@Andy야" is a call. An address ("ask@andy.example") is none.
_BEFORE = r"(?<![^\W_])(?<!\.)"
_AFTER = r"(?![A-Za-z0-9_])"


def ignored_reason(text: str, group: Group, *, name: str, is_addressed: bool = False) -> str | None:
    """Return why a message asks for nothing, or None when it is a request.

    `is_addressed`: the messenger says that it is for the assistant, by a mention of its account or as a reply
    to a message of its own.
    """
    if not text.strip():
        return EMPTY
    if group.is_main or not group.requires_trigger:
        return None
    return None if is_addressed or is_called(text, group, name=name) else NO_TRIGGER


def is_called(text: str, group: Group, *, name: str) -> bool:
    """Return whether `@name` or the group's own trigger is anywhere in the text, as a word of its own."""
    call = f"{_BEFORE}{_either(group, name)}{_AFTER}"
    return re.search(call, _composed(text), re.IGNORECASE) is not None


def is_called_aloud(spoken: str, group: Group, *, name: str) -> bool:
    """Return whether a voice note begins with the name: nobody says "at", and some say "hey" first."""
    calls = {_composed(call).removeprefix("@") for call in (name, group.trigger or "")}
    names = "|".join(re.escape(call) for call in calls if call)
    start = " ".join(_composed(spoken).split()[:CALL_WORDS])
    return re.search(f"{_BEFORE}(?:{names}){_VOCATIVE}{_AFTER}", start, re.IGNORECASE) is not None


def without_trigger(text: str, group: Group, *, name: str) -> str:
    """Return the text without the trigger it starts with; one in the middle of the text stays."""
    return _at_start(group, name).sub("", _composed(text), count=1).lstrip(" \t\n,:").strip()


def session_command(text: str, group: Group, *, name: str) -> SessionCommand | None:
    """Return the command that a message is, whole and exact, with or without the trigger before it."""
    has_trigger = is_called(text, group, name=name)
    return _COMMANDS.get(without_trigger(text, group, name=name) if has_trigger else text.strip())


def why_command_refused(message: Inbound, group: Group) -> str | None:
    """Return why the sender may give no session command, or None: anyone may in main, the owner elsewhere."""
    return None if group.is_main or message.is_from_me else ONLY_OWNER


def _composed(text: str) -> str:
    # Some devices send Hangul in single letters, which compare as other text.
    return unicodedata.normalize("NFC", text.strip())


def _either(group: Group, name: str) -> str:
    calls = [_composed(call) for call in (f"@{name}", group.trigger or "")]
    longest_first = sorted(filter(None, calls), key=len, reverse=True)
    return f"(?:{'|'.join(re.escape(call) for call in longest_first)})"


def _at_start(group: Group, name: str) -> re.Pattern[str]:
    return re.compile(rf"^{_either(group, name)}{_AFTER}{_VOCATIVE}", re.IGNORECASE)
