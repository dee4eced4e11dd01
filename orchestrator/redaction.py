"""Take secrets out of text before it is kept: the one way to do it.

Pure, and linear in the length of the text: every pattern starts at a fixed word and looks ahead a bounded
way, or runs over one class of characters. Redacting twice is redacting once.
"""

from __future__ import annotations

import re
from typing import Any

GONE = "[redacted]"

_KEYS = (
    r"\bsk-[A-Za-z0-9_-]{8,}",  # Anthropic, OpenAI and those that do as they do
    r"\b[sr]k_(?:live|test)_[A-Za-z0-9]{8,}",
    r"\bgh[pousr]_[A-Za-z0-9]{16,}",
    r"\bgithub_pat_[A-Za-z0-9_]{16,}",
    r"\bglpat-[A-Za-z0-9_-]{16,}",
    r"\bxox[a-z]-[A-Za-z0-9-]{8,}",
    r"\bxapp-[A-Za-z0-9-]{8,}",
    r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}",
    r"\bAIza[A-Za-z0-9_-]{30,}",
    r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)?",  # JSON Web Tokens
)
_NAMES = (
    r"password|passwd|passphrase|pwd|secret|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|(?:access|refresh|auth|id|bearer|session)?[_-]?token|비밀번호|패스워드|암호"
)
_KEY = re.compile("|".join(_KEYS))
_PEM_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{1,60}-----")
_PEM_END = re.compile(r"-----END [A-Z0-9 ]{1,60}-----")
_BEARER = re.compile(r"(?i)\b(bearer|basic)([ \t]{1,4})(?=[A-Za-z0-9._~+/=-]*[0-9])[A-Za-z0-9._~+/=-]{8,}")
_HEADER = re.compile(r"(?i)\b((?:proxy-)?authorization|x-api-key)(\"?[ \t]{0,4}[:=][ \t]{0,4}\"?)[^\r\n\"']+")
_QUOTED = re.compile(rf"""(?i)({_NAMES})(["']?\s{{0,4}}[:=]\s{{0,4}})("[^"\r\n]+"|'[^'\r\n]+')""")
_BARE = re.compile(rf"""(?i)({_NAMES})(["']?\s{{0,4}}[:=]\s{{0,4}})([^\s"',;&<>]+)""")
_USERINFO = re.compile(r"(://[^\s/:@]{0,200}:)[^\s/@]{1,200}(?=@)")


def redact(text: str) -> str:
    """Return `text` with every secret of a known shape replaced by `[redacted]`."""
    text = _without_pem(text)
    text = _HEADER.sub(rf"\1\2{GONE}", text)
    text = _BEARER.sub(rf"\1\2{GONE}", text)
    text = _KEY.sub(GONE, text)
    text = _USERINFO.sub(rf"\1{GONE}", text)
    text = _QUOTED.sub(lambda found: f"{found[1]}{found[2]}{found[3][0]}{GONE}{found[3][0]}", text)
    return _BARE.sub(rf"\1\2{GONE}", text)


def redacted(value: Any) -> Any:
    """Return a JSON value in which every string, of keys too, is redacted."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {redact(key): redacted(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(one) for one in value]
    return value


def _without_pem(text: str) -> str:
    """Blocks between their marks; one that has no end goes to the end of the text."""
    kept: list[str] = []
    at = 0
    while begin := _PEM_BEGIN.search(text, at):
        kept += [text[at : begin.start()], GONE]
        end = _PEM_END.search(text, begin.end())
        at = end.end() if end else len(text)
    return "".join((*kept, text[at:]))
