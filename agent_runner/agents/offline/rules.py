"""A pattern and what to make of its match."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

Made_co = TypeVar("Made_co", covariant=True)
Made = TypeVar("Made")

_FLAGS = re.IGNORECASE | re.DOTALL


@dataclass(frozen=True, slots=True)
class Rule(Generic[Made_co]):
    """Compiled when it is first tried, and kept by `re`: a start pays only for what it needs."""

    pattern: str
    make: Callable[[re.Match[str]], Made_co]

    def at(self, text: str, place: int) -> re.Match[str] | None:
        """Match from `place` on, ASCII alone beside Hangul: no foreign digits, no letters alike."""
        return re.compile(self.pattern, _FLAGS | re.ASCII).match(text, place)

    def whole(self, text: str) -> re.Match[str] | None:
        return re.fullmatch(self.pattern, text, _FLAGS)


def first(rules: Iterable[Rule[Made]], text: str) -> Made | None:
    """What the first rule that knows the whole text makes of it; None when none does."""
    for rule in rules:
        match = rule.whole(text)
        if match and (made := rule.make(match)) is not None:
            return made
    return None
