"""Judge whether a message asks the assistant for something, and whether it is a session command. Pure.

The session commands are `/compact` and `/clear`, which act on the conversation itself.
"""

from __future__ import annotations

import re

from agent_runner.wire.unicode_forms import composed
from orchestrator.domain.values import Group, Inbound, SessionCommand

NO_TRIGGER = "no trigger"
HOOK = "a hook that calls nobody"
EMPTY = "empty text"
CALL_WORDS = 3
"""Number of first words of a voice note among which a name counts as a call."""
ONLY_OWNER = "only the owner may use this here"

_COMMANDS = {f"/{command.value}": command for command in SessionCommand}

# Letters of scripts without spaces between words, and Hangul with its particles, may touch a call.
_JOINED = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3040-\u318f\u31f0-\u31ff\u3400-\u9fff"
    "\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
)
_SPACED = rf"[^\W_{_JOINED}]"
"""A letter or digit of a script that writes spaces between words."""
# The at sign, its full-width form from East Asian keyboards, and its small form.
_AT = "[@\uff20\ufe6b]"
# Endings that Korean speakers attach to a name they call: "@Andy야", "@앤디님".
_VOCATIVE = r"(?:(?:님아|이?야|아|님|씨)(?=[\s,.!?:]|$))?"
# \b cannot be used, since Hangul counts as letters for it. Before "@" there may be no part of an address
# (joe_@andy) or of a link (site.example/@andy), but the end of a sentence, as no address has a dot there;
# before a trigger without "@" there may be no letter of any script ("bot" in "robot").
_BEFORE_AT = rf"(?<!{_SPACED})(?<!{_SPACED}[-+_~])(?<![/=&%@])"
_BEFORE_WORD = r"(?<![^\W_])(?<!\.)"
# After it there may be no longer name (@andyx, @andy_, @andy-murray), address (@andy.example,
# @andy:matrix.example, @andy@social.example) or package (@andy/core).
_AFTER = rf"(?!{_SPACED}|[_\u0300-\u036f]|[-./@]{_SPACED}|:[A-Za-z0-9-]+\.[A-Za-z0-9])"
_CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)


def ignored_reason(text: str, group: Group, *, name: str, is_addressed: bool = False) -> str | None:
    """Return why a message does not ask the assistant for anything, or None when it does.

    In the main group, and in a group that requires no call, each message with a text asks for something.

    Args:
        text: the text of the message.
        group: the group of its chat.
        name: the assistant's name.
        is_addressed: whether the message mentions the assistant's account or replies to one of its messages.
    """
    if not text.strip():
        return EMPTY
    if group.is_main or not group.requires_trigger:
        return None
    return None if is_addressed or is_called(text, group, name=name) else NO_TRIGGER


def is_called(text: str, group: Group, *, name: str) -> bool:
    """Return whether a text calls the assistant: by `@name`, or by the word that the group has chosen.

    The call may be anywhere in the text, as a word of its own. One inside code (between backticks) or inside
    a link does not count.
    """
    # The text is split, because a pattern such as \S+://\S+ takes quadratic time on a long word: a minute for
    # 60,000 characters.
    words = " ".join(word for word in _CODE.sub(" ", _composed(text)).split() if "://" not in word)
    return re.search(f"{_any_call(group, name)}{_AFTER}", words, re.IGNORECASE) is not None


def is_stranger_calling(message: Inbound, *, name: str) -> bool:
    """Return whether a message of a chat without a group is for the assistant.

    It is if it begins with `@name`, if the messenger reports a mention, or if it was sent directly to an
    account that is the assistant's alone. A deletion never is, nor is a message without content, or one that
    asks for nothing whatever its text, such as a reaction.
    """
    text = message.text or message.file or ""
    if not text.strip() or message.ignored or message.is_unreadable or message.deletes is not None:
        return False
    call = f"^{_call(_composed(f'@{name}'))}{_AFTER}"
    is_at_start = re.search(call, _composed(message.text), re.IGNORECASE) is not None
    return is_at_start or message.is_call or message.is_direct


def is_called_aloud(spoken: str, group: Group, *, name: str) -> bool:
    """Return whether a voice note calls the assistant: among its first `CALL_WORDS` words, as in "hey Andy".

    `spoken` is the transcription of the voice note, `name` is the assistant's name; the word that the group
    has chosen for a call counts, too. An "@" before either is not needed, as nobody speaks it.
    """
    calls = {_composed(call).removeprefix("@") for call in (name, group.trigger or "")}
    names = "|".join(re.escape(call) for call in calls if call)
    start = " ".join(_composed(spoken).split()[:CALL_WORDS])
    return re.search(f"{_BEFORE_WORD}(?:{names}){_VOCATIVE}{_AFTER}", start, re.IGNORECASE) is not None


def without_trigger(text: str, group: Group, *, name: str) -> str:
    """Return the text without a call of the assistant at its start; a call in the middle stays.

    A call is `@name`, or the word that the group has chosen for that. The punctuation behind it goes, too.
    The text is returned stripped and in the composed form of Unicode.
    """
    return _at_start(group, name).sub("", _composed(text), count=1).lstrip(" \t\n,:").strip()


def session_command(text: str, group: Group, *, name: str) -> SessionCommand | None:
    """Return the session command, such as `/clear`, if the text is exactly one; otherwise return None.

    A call of the assistant may precede the command.
    """
    has_trigger = is_called(text, group, name=name)
    return _COMMANDS.get(without_trigger(text, group, name=name) if has_trigger else text.strip())


def _composed(text: str) -> str:
    """Return the text stripped, in the composed form of Unicode, so that equal letters compare as equal."""
    return composed(text.strip())


def _any_call(group: Group, name: str) -> str:
    """Return a regular expression for any call of the assistant: `@name`, or the group's own word."""
    calls = [_composed(call) for call in (f"@{name}", group.trigger or "")]
    longest_first = sorted(filter(None, calls), key=len, reverse=True)
    return f"(?:{'|'.join(_call(call) for call in longest_first)})"


def _call(word: str) -> str:
    """Return a regular expression for a word that calls the assistant, such as `@Andy`.

    The word is not found at the end of an address, a link or a longer word.
    """
    if word.startswith("@"):
        return f"{_BEFORE_AT}{_AT}{re.escape(word[1:])}"
    return f"{_BEFORE_WORD}{re.escape(word)}"


def _at_start(group: Group, name: str) -> re.Pattern[str]:
    """Return the compiled pattern of a call of the assistant at the start of a text.

    It includes an ending that Korean speakers attach to a name.
    """
    return re.compile(rf"^{_any_call(group, name)}{_AFTER}{_VOCATIVE}", re.IGNORECASE)
