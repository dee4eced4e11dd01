"""Normalise foreign texts in linear time, and recognise emoji. Nothing else calls `unicodedata.normalize`.

Normalising sorts each run of combining marks by insertion, which is quadratic: one message of 65,000 marks
would block the event loop for seconds. Unicode's Stream-Safe Text Format (UAX #15) limits a run to 30 marks,
because no language has longer ones.
"""

from __future__ import annotations

import re
from typing import Literal
from unicodedata import category, combining, normalize

MAX_MARKS = 30
"""Combining marks in one run up to which it is normalised; a longer run stays unchanged."""
_MAY_BE_MARKS = re.compile(rf"[\W\uff9e\uff9f]{{{MAX_MARKS + 1},}}")
"""Runs of what is no letter and no digit, as marks are. Two marks of Japanese half width count as letters."""

MAX_EMOJI_CHARS = 16
"""Code points of one emoji, at most: families and flags of parts of countries have about ten."""
_EMOJI_OUTSIDE_SO = frozenset("\u203c\u2049\u2139\u2194\u25fb\u25fc\u25fd\u25fe\u2934\u2935\u3030\u303d")
"""Emoji that are not in Unicode's category So, "other symbols", in which most emoji are."""
_EMOJI_PARTS = re.compile(
    "[\U0001f1e6-\U0001f1ff]{2}|[0-9#*]\ufe0f?\u20e3"
    "|(.)[\ufe0e\ufe0f]?[\U0001f3fb-\U0001f3ff]?[\U000e0020-\U000e007f]*"
    "(?:\u200d(.)[\ufe0e\ufe0f]?[\U0001f3fb-\U0001f3ff]?){0,4}"
)

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]


def composed(text: str) -> str:
    """Return a text in NFC, in which accented letters and Hangul syllables are one character each.

    Some devices send them in pieces, which would not match.
    """
    return normalized("NFC", text)


def normalized(form: Form, text: str) -> str:
    """Return `text` in a normalisation form, except for its runs of more than `MAX_MARKS` combining marks."""
    if text.isascii():
        return text
    parts, start = [], 0
    for match in _MAY_BE_MARKS.finditer(text):
        for run_start, end in _long_runs(text, match.start(), match.end()):
            parts += [normalize(form, text[start:run_start]), text[run_start:end]]
            start = end
    return "".join([*parts, normalize(form, text[start:])])


def is_emoji(text: str) -> bool:
    """Return whether a text is one emoji, which may have several characters: a flag, a family.

    Another single symbol, such as `°`, counts as one, too.
    """
    match = _EMOJI_PARTS.fullmatch(text) if len(text) <= MAX_EMOJI_CHARS else None
    if match is None:
        return False
    # Flags of countries and keycaps need no further check: the pattern names their characters, outside its
    # group 1.
    if match[1] is None:
        return True
    # U+200D, the zero-width joiner, makes one emoji of several, such as a family; a single one has no joiner.
    # Each has to be of the category So, or listed.
    return all(
        emoji and (category(emoji[0]) == "So" or emoji[0] in _EMOJI_OUTSIDE_SO)
        for emoji in text.split("\u200d")
    )


def has_long_run(text: str) -> bool:
    """Return whether `text` has a run of more than `MAX_MARKS` combining marks, which stays unchanged."""
    return any(_long_runs(text, match.start(), match.end()) for match in _MAY_BE_MARKS.finditer(text))


def is_mark(character: str) -> bool:
    """Return whether a character is, or decomposes into, a combining mark, which normalising sorts."""
    if character < "\u0300":  # the first combining mark
        return False
    return combining(character) != 0 or combining(normalize("NFKD", character)[0]) != 0


def _long_runs(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Return the first place and the place after the last of each run of more than `MAX_MARKS` marks.

    Only the part of `text` from `start` up to but not including `end` is looked at.
    """
    runs, run_start = [], start
    for place in range(start, end + 1):
        if place == end or not is_mark(text[place]):
            if place - run_start > MAX_MARKS:
                runs.append((run_start, place))
            run_start = place + 1
    return runs
