"""Measure what the reader of times makes of phrases whose moments are known, by corpus."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from agent_runner.wire import times
from agent_runner.wire.times import DateOnly, Duration, Instant

_DUCKLING = Path(__file__).with_name("duckling.toml")


class Outcome(StrEnum):
    """The result of reading one phrase."""

    RIGHT = "right"
    REFUSED = "refused"
    """It is refused, or asked about."""
    DECIDED = "decided"
    """It is read as another moment, for a reason that the corpus states."""
    WRONG = "wrong"


HEAD = ("corpus", "phrases", *Outcome, "good")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One phrase of a corpus, the moment that is expected, and what the reader returns."""

    phrase: str
    expected: str
    """An ISO moment, as long as it is exact; empty where nothing may be read."""
    reading: times.Reading
    outcome: Outcome


@cache
def duckling() -> dict[str, Any]:
    """Return the phrases and moments of Duckling's corpus, and the differences that are decided."""
    return tomllib.loads(_DUCKLING.read_text(encoding="utf-8"))


def cases(corpus: str) -> Iterator[Case]:
    """Read each phrase of a corpus: `en`, `ko`, or `refused`, whose phrases are no times."""
    data = duckling()
    now = datetime.fromisoformat(data["now"])
    moments = {"": data["refused"]} if corpus == "refused" else data["moments"][corpus]
    for expected, phrases in moments.items():
        for phrase in phrases:
            reading = times.read(phrase, now=now, zone=now.tzinfo or UTC)
            outcome = _outcome(reading, expected, is_decided=phrase in data["decided"])
            yield Case(phrase=phrase, expected=expected, reading=reading, outcome=outcome)


def counts(corpus: str) -> Counter[Outcome]:
    """Count the outcomes of a corpus."""
    return Counter(case.outcome for case in cases(corpus))


def rows() -> Iterator[tuple[str, ...]]:
    """Return of each corpus its name, its phrases, those of each outcome, and the share that is good."""
    names = {"en": "Duckling, English", "ko": "Duckling, Korean", "refused": "Duckling, no times"}
    for corpus, name in names.items():
        found = counts(corpus)
        good = found[Outcome.REFUSED] if corpus == "refused" else found[Outcome.RIGHT]
        figures = (str(found[one]) for one in Outcome)
        yield name, str(found.total()), *figures, f"{good / found.total():.0%}"


def table() -> str:
    """Return the figures of each corpus as lines of text."""
    lines = [HEAD, *rows()]
    return "\n".join(
        f"{name:<24}" + "".join(f"{figure:>9}" for figure in figures) for name, *figures in lines
    )


def _outcome(reading: times.Reading, expected: str, *, is_decided: bool) -> Outcome:
    match reading:
        case Instant(at=at) | Duration(at=at):
            read = at.isoformat()[: len("2013-02-12T04:30:00")]
        case DateOnly(day=day):
            read = day.isoformat()
        case times.TimeRefusal():
            return Outcome.REFUSED
        case _:
            read = "again and again"
    if expected and read.startswith(expected):
        return Outcome.RIGHT
    return Outcome.DECIDED if is_decided else Outcome.WRONG


if __name__ == "__main__":
    print(table())
