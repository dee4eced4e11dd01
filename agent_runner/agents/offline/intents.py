"""What can be asked of the agent and what it answers: `intents.toml`, English and Korean side by side.

Rows are tried in the order of the file, on whole requests only. A named group is a slot; one that is named in
`TIMES` holds a time.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from agent_runner.wire.times import Language

TODO = "todo"
"""The list that is meant when none is named."""
ECHO = "Say this in the chat, word for word: "
"""What a task of the host's asks of any agent to have a sentence said again."""
TIMES = ("day", "clock", "when")
FLAGS = re.IGNORECASE | re.DOTALL


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """One thing that somebody asks for: the name of its intent and the words that fill its slots."""

    intent: str
    language: Language
    slots: Mapping[str, str] = field(default_factory=dict)

    def slot(self, name: str) -> str:
        """Return the words of a slot, empty where there are none."""
        return self.slots.get(name, "")

    def having(self, **slots: str) -> ParsedRequest:
        """Return the same request with other words in some slots."""
        return ParsedRequest(intent=self.intent, language=self.language, slots={**self.slots, **slots})

    def of(self, intent: str, **slots: str) -> ParsedRequest:
        """Return a request of another intent in the same language; slots without words are left out."""
        filled = {name: words for name, words in slots.items() if words}
        return ParsedRequest(intent=intent, language=self.language, slots=filled)


@dataclass(frozen=True, slots=True)
class Row:
    """One intent with the patterns over a whole request that mean it, in each language."""

    name: str
    patterns: Mapping[Language, tuple[str, ...]]


def _load() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("intents.toml").read_text(encoding="utf-8"))


def _expand(pattern: str, words: Mapping[str, str]) -> str:
    """Join the lines of a pattern and put the words in; `{1,2}` is no name and stays."""
    joined = pattern.replace("\n", "")
    return re.sub(r"\{([a-z_]+)\}", lambda name: _expand(words[name[1]], words), joined)


def _row(name: str, row: Mapping[str, Any], words: Mapping[str, str]) -> Row:
    written = {language: row[language.value] for language in Language}
    patterns = {
        language: tuple(_expand(each, words) for each in ([found] if isinstance(found, str) else found))
        for language, found in written.items()
    }
    return Row(name, patterns)


_DATA = _load()
_WORDS: dict[str, str] = _DATA["words"] | {"echo": re.escape(ECHO.strip())}
ROWS = tuple(_row(name, row, _WORDS) for name, row in _DATA["intent"].items())
PATTERNS = {name: re.compile(_expand(each, _WORDS), FLAGS) for name, each in _DATA["patterns"].items()}
"""How a message is cut and framed: what stands between, before and after the parts that matter."""
ANSWERS: dict[str, list[str]] = _DATA["answers"] | {
    name: row["answer"] for name, row in _DATA["intent"].items() if "answer" in row
}
"""Every sentence by its name: the English one, then the Korean one."""


def say(form: str, language: Language, /, **blanks: object) -> str:
    """Return the sentence of that name with its blanks filled."""
    return ANSWERS[form][1 if language is Language.KOREAN else 0].format(**blanks)


def long_day(at: datetime, language: Language) -> str:
    """Return a day in full: `Sunday, 22 November 2026`, `2026년 11월 22일 일요일`."""
    if language is Language.KOREAN:
        return f"{at.year}년 {at.month}월 {at.day}일 {'월화수목금토일'[at.weekday()]}요일"
    return f"{at:%A}, {at.day} {at:%B} {at.year}"  # English: no program here sets a locale
