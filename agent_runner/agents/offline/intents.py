"""The requests that the agent understands, and its replies: `intents.toml`, English beside Korean."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from agent_runner.wire.order import ECHO
from agent_runner.wire.times import Language
from agent_runner.wire.unicode_forms import normalized

Half = TypeVar("Half")
FLAGS = re.IGNORECASE | re.DOTALL
"""The flags of all patterns but those of `ENDINGS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """One thing that somebody asks for: the name of its intent and the words that fill its slots."""

    intent: str
    language: Language
    slots: Mapping[str, str] = field(default_factory=dict)
    """The words by the names of the slots, which the head of `intents.toml` describes."""

    def slot(self, name: str) -> str:
        """Return the words of a slot; empty if it has none."""
        return self.slots.get(name, "")

    def having(self, **slots: str) -> ParsedRequest:
        """Return the same request with other words in some slots."""
        return ParsedRequest(intent=self.intent, language=self.language, slots={**self.slots, **slots})

    def of(self, intent: str, **slots: str) -> ParsedRequest:
        """Return a request of another intent in the same language; slots without words are left out."""
        filled = {name: words for name, words in slots.items() if words}
        return ParsedRequest(intent=intent, language=self.language, slots=filled)


def _expand(pattern: str, words: Mapping[str, str]) -> str:
    """Return a pattern without its line breaks, each `{name}` in it replaced by that part from `words`.

    Parts may contain other parts. A count such as `{1,2}` stays as it is.
    """
    joined = pattern.replace("\n", "")
    return re.sub(r"\{([a-z_]+)\}", lambda name: _expand(words[name[1]], words), joined)


_DATA: dict[str, Any] = tomllib.loads(Path(__file__).with_name("intents.toml").read_text(encoding="utf-8"))
_WORDS: dict[str, str] = _DATA["words"] | {
    "echo": re.escape(ECHO.strip()),
    "goods_ko": "|".join(_DATA["goods_ko"].split()),
}
ROWS: dict[str, dict[str, Any]] = _DATA["intent"]
"""The intents by name, in the order in which they are tried; `intents.toml` describes the fields of a row."""
PATTERNS = {name: re.compile(_expand(pattern, _WORDS), FLAGS) for name, pattern in _DATA["patterns"].items()}
"""Patterns by name: for the places where a message is cut, and the words around a request."""
ENDINGS = {
    kind: [
        (re.compile(normalized("NFD", _expand(pattern, _WORDS)), re.DOTALL), ending)
        for pattern, ending in rules
    ]
    for kind, rules in _DATA["endings"].items()
}
"""Rules for Korean endings by kind: a pattern over decomposed text, and its replacement."""
SAME_TIMES = [(re.compile(_expand(pattern, _WORDS), FLAGS), time) for pattern, time in _DATA["same_times"]]
"""Patterns for words for a time that `wire/times` does not read, each with words that it reads."""
CONTENT: list[str] = _DATA["content_slots"]
"""Slots with a person's own words, such as a title, in which spelling is never corrected."""
GOODS: frozenset[str] = frozenset(_DATA["goods_en"].split())
"""Everyday things that people buy, in the singular."""
MISSPELT: dict[str, str] = _DATA["misspelt"]
"""Map frequent misspellings to the words that they stand for."""
ANSWERS: dict[str, list[str]] = _DATA["answers"] | {
    name: row["answer"] for name, row in _DATA["intent"].items() if "answer" in row
}
"""Every sentence by its name, English and Korean; the answer of an intent has the intent's name."""


@cache
def patterns_of(name: str, language: Language) -> tuple[re.Pattern[str], ...]:
    """Return the compiled patterns of an intent in one language; a request has to match one of them."""
    written = ROWS[name][language.value]
    patterns = [written] if isinstance(written, str) else written  # a row may have one pattern or a list
    return tuple(re.compile(_expand(pattern, _WORDS), FLAGS) for pattern in patterns)


def say(form: str, language: Language, /, **blanks: object) -> str:
    """Return the sentence named `form` in `ANSWERS`, its placeholders filled with `blanks`."""
    return in_language(ANSWERS[form], language).format(**blanks)


def in_language(pair: Sequence[Half], language: Language) -> Half:
    """Return the first of a pair (English), or for Korean the second."""
    return pair[1 if language is Language.KOREAN else 0]


def filled(fields: Mapping[str, Any], slots: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a row by name; placeholders in texts are filled with slots, other values stay."""
    return {
        name: value.format(**slots) if isinstance(value, str) else value for name, value in fields.items()
    }
