"""What the agent says. The sentences are rows of `phrases.toml`, English and Korean side by side."""

from __future__ import annotations

import tomllib
from datetime import datetime
from functools import cache
from pathlib import Path

from agent_runner.wire.times import Language

_DAYS_EN = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS_EN = (
    *("January", "February", "March", "April", "May", "June", "July", "August", "September"),
    *("October", "November", "December"),
)


@cache
def phrases() -> dict[str, list[str]]:
    """Return every sentence by its name: the English one, then the Korean one. Reads the file once."""
    return tomllib.loads(Path(__file__).with_name("phrases.toml").read_text(encoding="utf-8"))


def say(form: str, language: Language, /, **blanks: object) -> str:
    """Return the sentence of that name with its blanks filled."""
    return phrases()[form][1 if language is Language.KOREAN else 0].format(**blanks)


def long_day(at: datetime, language: Language) -> str:
    """Return a day in full: `Sunday, 22 November 2026`, `2026년 11월 22일 일요일`."""
    if language is Language.KOREAN:
        return f"{at.year}년 {at.month}월 {at.day}일 {'월화수목금토일'[at.weekday()]}요일"
    return f"{_DAYS_EN[at.weekday()]}, {at.day} {_MONTHS_EN[at.month - 1]} {at.year}"
