"""Removes secrets from texts that are stored or shown.

It is called for what is stored of conversations (`context`), for the tool calls and texts of agents at work
(`containers`), for requests to the owner (`proxies.approvals`), for messages that a search finds, for the
audit, the settings and the log as people are shown them, and for the reasons of failed loops (`supervision`).
Messages are stored as they came. Log files, of the host and of runs, are not redacted, only their display in
the console.

`redact` recognises secrets by their shape, a `Redactor` also those whose values are known. The time is linear
in the length of the text: no pattern may start again inside text that another attempt has scanned in vain.
Redacting twice equals redacting once. Rather too much is removed than too little: any word after `password:`
is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

GONE = "[redacted]"
MOST_PASSES = 4
"""Most passes over a text: the neighbour of a removed secret may be a secret itself."""
SHORTEST = len("sk-12345678")
"""Characters of the shortest secret that is recognised by its shape alone."""
REMEMBERED, REMEMBERED_CHARS = 2_048, 120
"""The number of short texts, and their greatest length, whose result is cached. A document has a thousand
ids, names and times, and is written again with each new message.
"""

_KEYS = (
    # Anthropic, OpenAI and services with the same form; `sk-learn-basics` is no key.
    r"(?<![A-Za-z0-9])sk-(?:(?:ant|proj|svcacct|or)-|(?=[A-Za-z_-]{0,99}[0-9])|(?=[A-Za-z]{20}))[A-Za-z0-9_-]{8,}",
    r"(?<![A-Za-z0-9])[sr]k_(?:live|test)_[A-Za-z0-9]{8,}",
    r"(?<![A-Za-z0-9])gh[pousr]_[A-Za-z0-9]{16,}",
    r"(?<![A-Za-z0-9])github_pat_[A-Za-z0-9_]{16,}",
    r"(?<![A-Za-z0-9])glpat-[A-Za-z0-9_-]{16,}",
    r"(?<![A-Za-z0-9])xox[a-z]-[A-Za-z0-9-]{8,}",
    r"(?<![A-Za-z0-9])xapp-[A-Za-z0-9-]{8,}",
    r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{12,}",
    r"(?<![A-Za-z0-9])AIza[A-Za-z0-9_-]{30,}",
    # The token that a container has instead of a key, valid as long as its run.
    r"(?<![A-Za-z0-9])andy-[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])",
    # JSON Web Tokens; only at the start of a run of their characters.
    r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)?",
)
_KEY = re.compile("|".join(_KEYS))
_PEM_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{1,60}-----")
_PEM_END = re.compile(r"-----END [A-Z0-9 ]{1,60}-----")
_HEADER = re.compile(
    r"(?i)(?<![a-z0-9])((?:proxy-)?authorization|x-api-key|cookie(?=.{1,100}=))"
    r"(\\?[\"']?[ \t]{0,4}[:=][ \t]{0,4})[^\r\n]+"
)
_BEARER = re.compile(
    r"(?i)(?<![a-z0-9])(bearer|basic)([ \t]{1,4})"
    r"(?:(?=[A-Za-z._~+/=-]{0,199}[0-9])[A-Za-z0-9._~+/=-]{8,}|[A-Za-z0-9._~+/=-]{28,})"
)
_USERINFO = re.compile(r"(://[^\s/:@]{0,200}:)[^\s/@]{1,200}(?=@)")

_PASSWORDS = r"password|passwd|passphrase|passcode|pwd|비밀번호|패스워드|암호"
_SECRETS = r"secret|api[_-]?key|access[_-]?key|private[_-]?key|secret[_-]?key|credentials?|token"
# Keyboards for Korean, Japanese and Chinese also write the wide signs.
_EQUALS, _EQUALS_OR_COLON = (rf"\\?[\"']?\s{{0,4}}{sign}\s{{0,4}}\\?" for sign in ("[=＝]", "[:=：＝]"))
# A value that is itself such a name is no secret: the text after that name is.
_NO_NAME = rf"(?![\"']?[\w-]{{0,40}}(?:{_PASSWORDS}|{_SECRETS}){_EQUALS_OR_COLON})"
_QUOTED_VALUE = rf"{_NO_NAME}(\"[^\"\r\n]+\"|'[^'\r\n]+')"
_BARE_VALUE = rf"{_NO_NAME}(?![\"']\[redacted\])\S"
_QUOTED = re.compile(rf"(?i)((?:{_PASSWORDS}|{_SECRETS}){_EQUALS_OR_COLON}){_QUOTED_VALUE}")
_BARE = re.compile(
    rf"(?i)((?:{_PASSWORDS}){_EQUALS_OR_COLON}|(?:{_SECRETS}){_EQUALS}){_BARE_VALUE}\S*"
    # After a colon a short word is prose: `the secret: patience`.
    rf"|((?:{_SECRETS}){_EQUALS_OR_COLON}){_BARE_VALUE}\S{{11,}}"
)

# In plain words: `my password for the wifi is hunter2`, `비밀번호는 hunter2야`.
_OF_WHAT = r"(?:[ \t]{1,4}(?:for|of|to|on|at|in)(?:[ \t]{1,4}[^\s:：]{1,40}){1,5}?)?"
_IS = (
    r"(?:(?:['’]s|[ \t]{1,4}(?:is|are|was|were|to|will[ \t]be|has[ \t]been))"
    r"(?:[ \t]{1,4}(?:now|still|just|again|set[ \t]to))?[ \t]{0,4}(?::?[ \t]{1,4}|：[ \t]{0,4})"
    # After a wide colon, which has its own space, people leave none.
    r"|:[ \t]{1,4}|：[ \t]{0,4})"
)
# Statements about a password that do not reveal it.
_NO_VALUE = (
    r"(?!(?:a|an|the|my|your|our|his|her|their|its|this|that|it|they|what|which|where|who|how|when|if|and|or|"
    r"not|no|never|also|too|so|very|now|still|just|again|only|always|already|set|in|on|at|to|for|from|with|by|"
    r"wrong|incorrect|invalid|right|correct|ok|okay|fine|good|bad|weak|strong|short|long|empty|missing|needed|"
    r"required|expired|reset|changed|lost|forgotten|known|unknown|saved|stored|kept|safe|secret|hidden|same|"
    r"given|sent|shared|told|leaked|stolen|different|new|old|due|be|being|been|get|use|open|enter|log|do|make|work|working)(?![\w'-]))"
)
_VALUE = r"(?!\[redacted\])(?:\"[^\"\r\n]{1,200}\"|\S+)"
_IN_PROSE = re.compile(
    rf"(?i)(?<![a-z])((?:password|passwd|passcode|pwd)s?{_OF_WHAT}{_IS}){_NO_VALUE}{_VALUE}"
    # Several words, to the end of the sentence.
    rf"|(?<![a-z])(passphrase{_OF_WHAT}{_IS})(?!(?:not|never|too|the|a|in|on|now|still|wrong|stored|saved|kept|"
    r"required|needed|changed|\[redacted\]))[^\r\n.,;!?]+"
    rf"|(?<![a-z])(pin(?:[ -]?(?:code|number))?{_OF_WHAT}{_IS})(?=\D?\d{{3}}){_VALUE}"
    rf"|(?<![a-z])((?:secret|token|(?:api|access|private|secret)[ _-]?key){_OF_WHAT}{_IS})"
    rf"(?=[^\s\d]{{0,199}}\d)(?=\S{{8}}){_VALUE}"
    # Prose continues in Korean letters; a password does not begin with one.
    r"|((?:비밀번호|비번|패스워드|암호)(?:(?:은|는|이|가|을|를)[ \t]{0,4}|[ \t]{1,4}))"
    rf"(?=[!-~])(?![=:\[]){_VALUE}"
)
_PROSE_WORDS = ("pass", "pwd", "pin", "key", "secret", "token", "비밀번호", "비번", "패스워드", "암호")
_PASSWORD_WORDS = ("pass", "pwd", "비밀번호", "패스워드", "암호")
_SECRET_WORDS = ("secret", "api", "key", "credential", "token")


def redact(text: str) -> str:
    """Return `text` with every secret of a known shape replaced by `[redacted]`."""
    return _redact_short(text) if len(text) <= REMEMBERED_CHARS else _redact(text)


def _redact(text: str) -> str:
    """Return a text with its secrets replaced.

    Passes are repeated until one changes nothing, but `MOST_PASSES` times at most.
    """
    # A text that is too short for a key can only have a secret after a word such as `password:`.
    if len(text) < SHORTEST and not _has_any(
        text, ("=", ":", "＝", "：", "비번", "암호", "비밀번호", "패스워드")
    ):
        return text
    for _ in range(MOST_PASSES):
        before, text = text, _redact_pass(text)
        if text == before:
            break
    return text


_redact_short = lru_cache(REMEMBERED)(_redact)


def _redact_pass(text: str) -> str:
    """Return a text after one replacement of all patterns of secrets.

    The pattern of keys is always tried, any other only if one of its words is in the text: to search for
    words is much cheaper.
    """
    folded = text.casefold()
    if "-----begin" in folded:
        text = _without_pem(text)
    if _has_any(folded, ("authorization", "x-api-key", "cookie")):
        text = _HEADER.sub(rf"\1\2{GONE}", text)
    if _has_any(folded, ("bearer", "basic")):
        text = _BEARER.sub(rf"\1\2{GONE}", text)
    text = _KEY.sub(GONE, text)
    if "://" in text:
        text = _USERINFO.sub(rf"\1{GONE}", text)
    if _has_any(folded, _PASSWORD_WORDS + _SECRET_WORDS):
        # The groups are what comes before the secret, which stays; the quotation marks stay, too.
        text = _QUOTED.sub(lambda match: f"{match[1]}{match[2][0]}{GONE}{match[2][0]}", text)
        text = _BARE.sub(lambda match: f"{match[1] or match[2]}{GONE}", text)
    if _has_any(folded, _PROSE_WORDS):
        # Each alternative of the pattern has one group: the words before the secret.
        text = _IN_PROSE.sub(lambda match: f"{match[match.lastindex or 0]}{GONE}", text)
    return text


def _has_any(folded: str, words: tuple[str, ...]) -> bool:
    """Return whether a text in small letters has any of these words.

    If not, their pattern need not be tried: to try all patterns costs a hundred times as much.
    """
    return any(word in folded for word in words)


def nothing_known() -> tuple[str, ...]:
    """Return no known secrets: for a redactor that recognises secrets only by their shape."""
    return ()


@dataclass(frozen=True, slots=True)
class Redactor:
    """Removes secrets of a known shape, and every text that `known` returns, whatever it looks like."""

    known: Callable[[], Iterable[str]] = nothing_known
    """Returns all forms of the known secrets, the longest first; called for each text, in any thread."""

    def redact(self, text: str) -> str:
        """Return `text` with every secret replaced by `[redacted]`."""
        return _without(text, tuple(self.known()))

    def redacted(self, value: Any) -> Any:
        """Return a copy of a JSON value in which secrets are replaced in every string, keys included."""
        return _redacted(value, tuple(self.known()))


BY_SHAPE = Redactor()
"""A redactor without known values."""


def _without(text: str, known: tuple[str, ...]) -> str:
    """Return a text in which the `known` secrets, and what looks like a secret, are replaced.

    `known` has the longest secret first, and the shortest last.
    """
    if known and len(text) >= len(known[-1]):  # most strings of a document are ids, shorter than any secret
        for secret in known:
            text = text.replace(secret, GONE)
    return redact(text)


def _redacted(value: Any, known: tuple[str, ...]) -> Any:
    """Return a copy of a JSON value with secrets, also the `known` ones, replaced in texts at any depth."""
    if isinstance(value, str):
        return _without(value, known)
    if isinstance(value, dict):
        return {_without(key, known): _redacted(item, known) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(item, known) for item in value]
    return value


def _without_pem(text: str) -> str:
    """Return a text whose PEM blocks, such as private keys, are replaced.

    A block without its last line extends to the end of the text.
    """
    parts: list[str] = []
    at = 0
    while begin := _PEM_BEGIN.search(text, at):
        parts += [text[at : begin.start()], GONE]
        end = _PEM_END.search(text, begin.end())
        at = end.end() if end else len(text)
    return "".join((*parts, text[at:]))
