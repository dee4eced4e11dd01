"""Measure and cut texts by their script: 400 Korean characters count as much as 700 Latin ones. Pure."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

WIDE_WEIGHT, NARROW_WEIGHT = 7, 4
MAX_SUMMARY_WEIGHT = 2_800
"""The largest weight of a summary: 400 wide characters, or 700 others."""
ELLIPSIS = "…"
MAX_GRAPHEME = 64
"""Code points of a grapheme beyond which it may be cut: no real one is longer, only an attack."""

_WIDE = r"[\p{Hangul}\p{Han}\p{Hiragana}\p{Katakana}\u3000-\u303f\uff66-\uff9f]"
_GRAPHEME = r"\X"
# A full stop at the end or before a blank, as in "Yes. No": not the one in "3.5".
_SENTENCE_END = re.compile(r"[.!?…。！？](?=\s|$)|\n")


@cache
def _compiled(pattern: str) -> Any:
    """Return a pattern compiled by the library `regex`.

    The library is loaded at the first use: that takes 8 ms, which would delay each start.
    """
    import regex

    return regex.compile(pattern)


def weight(text: str) -> int:
    """Return the weight of a text: 7 for each Hangul, Han or Kana character, 4 for any other.

    So 400 Korean characters weigh as much as 700 Latin ones, which is `MAX_SUMMARY_WEIGHT`, the limit of a
    summary.
    """
    wide = len(_compiled(_WIDE).findall(text))
    return wide * WIDE_WEIGHT + (len(text) - wide) * NARROW_WEIGHT


def prefix(text: str, max_chars: int) -> str:
    """Return at most `max_chars` characters from the start of a text.

    No grapheme, such as a letter with its accents, is cut, unless it is longer than `MAX_GRAPHEME`.
    """
    if len(text) <= max_chars:
        return text
    end = 0
    for grapheme in _compiled(_GRAPHEME).finditer(text[: max_chars + MAX_GRAPHEME]):
        if grapheme.end() > max_chars:
            break
        end = grapheme.end()
    # A grapheme longer than any real one is cut all the same, or little or nothing of the text would remain.
    return text[: end if max_chars - end < MAX_GRAPHEME else max_chars]


def suffix(text: str, max_chars: int) -> str:
    """Return at most `max_chars` characters from the end of a text.

    No grapheme, such as a letter with its accents, is cut, unless it is longer than `MAX_GRAPHEME`.
    """
    if len(text) <= max_chars:
        return text
    start = len(text) - max(max_chars, 0)
    before = max(start - MAX_GRAPHEME, 0)
    # `before` may be in the middle of a grapheme; 64 code points later the boundaries are right again.
    for grapheme in _compiled(_GRAPHEME).finditer(text[before:]):
        if before + grapheme.start() >= start:
            return text[before + grapheme.start() :]
    # No grapheme begins in the last `max_chars`: the last one is longer than that, and is cut.
    return text[start:]


def cut_to_weight(text: str, limit: int = MAX_SUMMARY_WEIGHT) -> str:
    """Return `text`, without surrounding blanks, cut to a weight of at most `limit`, ellipsis included.

    A text that fits is not cut. Others are cut at the end of a sentence or else of a word, if there is one in
    the last third of what fits. The result is empty if not even the ellipsis fits. See `weight`.
    """
    text = text.strip()
    if weight(text) <= limit:
        return text
    room = limit - weight(ELLIPSIS)
    if room < 0:
        return ""
    cut = prefix(text, _fitting_length(text, room))
    ends = [match.end() for match in _SENTENCE_END.finditer(cut)]
    if ends and ends[-1] >= len(cut) * 2 // 3:
        cut = cut[: ends[-1]]
    elif (blank := cut.rfind(" ")) >= len(cut) * 2 // 3:
        cut = cut[:blank]
    return f"{cut.rstrip()}{ELLIPSIS}"


def shortened(text: str, max_chars: int) -> str:
    """Return a text without surrounding blanks, cut to `max_chars` characters, ellipsis included."""
    text = text.strip()
    return text if len(text) <= max_chars else f"{prefix(text, max_chars - 1).rstrip()}{ELLIPSIS}"


def _fitting_length(text: str, room: int) -> int:
    """Return how many characters from the start of a text weigh at most `room` (see `weight`)."""
    # A binary search between the smallest number, if all characters are wide, and the largest, if all are
    # narrow.
    low, high = room // WIDE_WEIGHT, min(room // NARROW_WEIGHT, len(text))
    while low < high:
        middle = (low + high + 1) // 2
        if weight(text[:middle]) <= room:
            low = middle
        else:
            high = middle - 1
    return min(low, len(text))
