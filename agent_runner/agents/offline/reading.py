"""Read a request: which language, and what is wished. Pure."""

from __future__ import annotations

import re
import unicodedata

from agent_runner.agents.offline.intents import Intent, Language, Plain, Wish

MAX_CHARS = 2000
"""Longer requests are for a model: patterns read short ones."""

_STARTS_KOREAN = re.compile(r"[^A-Za-z]*?[가-힣]")
_HANGUL = re.compile(r"[가-힣ㄱ-ㆎ]")
_SAME = str.maketrans("’‘ʼ\u00a0\u3000０１２３４５６７８９：，", "'''  0123456789:,")
"""What keyboards send for the same sign."""


def read(text: str) -> Intent:
    """Tell what `text` wishes; what no pattern knows is `NEEDS_MODEL`. Never raises."""
    text = plain(text).translate(_SAME).strip()
    has_hangul = _HANGUL.search(text) is not None
    if len(text) <= MAX_CHARS:
        if not _STARTS_KOREAN.match(text) and (wish := _english(text)):
            return Intent(wish=wish, language=Language.ENGLISH)
        if has_hangul and (wish := _korean(text)):
            return Intent(wish=wish, language=Language.KOREAN)
    return Intent(wish=Plain.NEEDS_MODEL, language=Language.KOREAN if has_hangul else Language.ENGLISH)


# Either language is imported when somebody speaks it.
def _english(text: str) -> Wish | None:
    from agent_runner.agents.offline import english

    return english.read(text)


def _korean(text: str) -> Wish | None:
    from agent_runner.agents.offline import korean

    return korean.read(text)


def plain(text: str) -> str:
    """Compose what some keyboards send in pieces; what UTF-8 cannot carry becomes `?`."""
    return unicodedata.normalize("NFC", text.encode("utf-8", "replace").decode())
