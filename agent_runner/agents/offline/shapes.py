"""Find a time in a text, English or Korean; what has none of the known shapes is no time here.

A time is a run of atoms ("tomorrow", "at 9am"), each of which one rule reads. What no rule knows is
refused elsewhere, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from agent_runner.agents.offline import shapes_english, shapes_korean
from agent_runner.agents.offline.when import When

MAX_TIME_CHARS = 80
"""How far from the end of a text a time that ends it can begin."""

_ATOMS = (*shapes_english.ATOMS, *shapes_korean.ATOMS)
_GAP = re.compile(r"(?:[\s,]+|T(?=\d))?")
_EDGE = re.compile(r"\s|[,:;](?:\s|$)|[.!]?$")
_WORD_START = re.compile(r"(?:(?<=\s)|^)\S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A time in a text, from `start` up to `end`."""

    when: When
    start: int
    end: int


def leading(text: str) -> Found | None:
    """Read the longest time at the start of `text`, or None."""
    return max(_runs(text, 0), key=lambda found: found.end, default=None)


def trailing(text: str) -> Found | None:
    """Read the longest time that ends `text`, or None."""
    text = text.rstrip()
    for start in _WORD_START.finditer(text, max(0, len(text) - MAX_TIME_CHARS)):
        for found in _runs(text, start.start()):
            if found.end == len(text):
                return found
    return None


def _runs(text: str, start: int) -> Iterator[Found]:
    """Every run of atoms from `start` that ends where a word ends, shortest first."""
    when, place = When(), start
    while step := _next_atom(text, place, when):
        when, place = step.when, step.end
        if _EDGE.match(text, place):
            yield Found(when=when, start=start, end=place)
        gap = _GAP.match(text, place)
        place = gap.end() if gap else place


def _next_atom(text: str, place: int, so_far: When) -> Found | None:
    for atom in _ATOMS:
        match = atom.at(text, place)
        if match and (joined := so_far.joined(atom.make(match))):
            return Found(when=joined, start=place, end=match.end())
    return None
