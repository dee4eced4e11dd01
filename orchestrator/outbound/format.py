"""Turn an agent's text into messages for people: without internal parts, in lengths that a channel takes.

Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from orchestrator.domain import schedule_tag

FENCE = "```"
FENCED_FROM = 64
"""Least limit for reopening a cut code fence; below it, the fence's lines would fill the part."""

MARKED_PARTS = 4
"""Lengths of a part in which the end of what a cut divides is looked for, since each cut begins anew."""

_PARAGRAPH = re.compile(r"\n(?:[ \t]*\n)+")
_LINE = re.compile(r"\n")
_SENTENCE = re.compile(r"(?<=[.!?…])\s+|(?<=[.!?…][\"')\]”’»])\s+|(?<=[。！？])\s*")
_WORD = re.compile(r"\s+")
_FENCE_RUN = re.compile(r"`{3,}")
_LANGUAGE = re.compile(r"[\w+#.-]{1,20}(?=\n)")
_MARK = re.compile(r"\\.|`+|\*{1,3}|_{1,3}|~~", re.DOTALL)
"""Matches unescaped marks that begin or end bold, italic, struck-out text or code."""
_TAG = re.compile(r"<(/?)internal(?![\w-])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Cut:
    """The end of one part and the start of the next; only white space is between them."""

    end: int
    next: int


def for_people(text: str) -> str:
    """Return an agent's text without the parts that people must not read.

    These are sections between `<internal>` and `</internal>`, also nested ones, and the tag by which an agent
    schedules its next wake-up. A section that is never closed hides the rest of the text.
    """
    shown = schedule_tag.strip(_outside_internal(text))
    # Removing one section may join the text around it into another tag: hide all that follows, as nobody
    # writes that by accident.
    forged = _TAG.search(shown)
    return (shown[: forged.start()] if forged else shown).strip()


def _outside_internal(text: str) -> str:
    """Return the text outside of sections between `<internal>` and `</internal>`, which may be nested.

    A section that is never closed hides the rest of the text; so does a tag without its `>`.
    """
    # One pass over the text, so that many tags take no more than linear time.
    shown: list[str] = []
    depth = read_to = 0
    for tag in _TAG.finditer(text):
        if tag.start() < read_to:
            continue  # it is inside of the tag before
        if depth == 0:
            shown.append(text[read_to : tag.start()])
        end = text.find(">", tag.end())
        if end < 0:
            return "".join(shown)  # the tag itself is not closed, and hides the rest
        read_to = end + 1
        is_closing, is_empty = bool(tag[1]), text[end - 1] == "/"  # `</internal>`, `<internal/>`
        if is_closing:
            depth = max(0, depth - 1)
        elif not is_empty:
            depth += 1
    if depth == 0:
        shown.append(text[read_to:])
    return "".join(shown)


def split(text: str, limit: int | None) -> tuple[str, ...]:
    """Cut a text into parts of at most `limit` characters (code points), and return the parts.

    If `limit` is None, the text is one part; a text of nothing but white space has none.
    A part ends with a paragraph where it can, else with a line, a sentence, a word, or at last between two
    visible characters. Only white space at the cuts is lost. A code fence, bold, italic, struck-out text or
    code that a cut divides is closed, and opened again in the next part.
    """
    parts: list[str] = []
    text = text.strip()
    # The marks at the start of the rest of the text, which open again what the last cut divided.
    opening = ""
    while limit is not None and len(text) > limit:
        cut = _cut(text, len(opening), limit)
        reopens, closes = _marks_divided_at(text, cut.end, limit) if limit >= FENCED_FROM else ("", "")
        if closes:
            # Cut earlier, so that there is room for the marks that close what is divided.
            room = len(closes)
            cut = _cut(text, len(opening), limit - room)
            reopens, closes = _marks_divided_at(text, cut.end, limit)
            # At the earlier place other marks may be open. If there is no room for theirs, none is closed.
            if len(closes) > room:
                reopens, closes = "", ""
        parts.append(text[: cut.end] + closes)
        opening = reopens
        text = opening + text[cut.next :].lstrip("\n")
    if text.removeprefix(opening).strip():
        parts.append(text)
    return tuple(parts)


def _cut(text: str, start: int, limit: int) -> _Cut:
    """Return the best place to cut a text, after the index `start` and not after the index `limit`.

    The end of a paragraph is better than that of a line, a sentence or a word. But a place that would leave
    more than three quarters of the part empty is not used.
    """
    least = start + max(1, (limit - start) // 4)
    # White space that begins at the limit is a place, too. That between paragraphs has two characters at
    # least, so the search goes on two characters beyond the limit.
    for kind in (_PARAGRAPH, _LINE, _SENTENCE, _WORD):
        places = [place for place in kind.finditer(text, least, limit + 2) if place.start() <= limit]
        if places:
            return _Cut(places[-1].start(), places[-1].end())
    # Rather between any two words than within one.
    words = [place for place in _WORD.finditer(text, start + 1, limit + 1) if place.start() <= limit]
    if words:
        return _Cut(words[-1].start(), words[-1].end())
    end = _between_characters(text, start, limit)
    return _Cut(end, end)


def _between_characters(text: str, start: int, limit: int) -> int:
    """Return the last index after `start` and up to `limit` at which a text may be cut between characters.

    A cut there divides neither a visible character nor a fence of code. If there is no such index, return
    `limit`.
    """
    # Imported when it is needed: few texts are cut within a word.
    import regex

    # Look a little further, at what may combine with the last character; nobody writes longer combinations.
    ends = [match.end() for match in regex.finditer(r"`{3,}|\X", text, pos=start, endpos=limit + 32)]
    return max((end for end in ends if end <= limit), default=limit)


def _marks_divided_at(text: str, end: int, limit: int) -> tuple[str, str]:
    """Return the marks to repeat after a cut at the index `end`, and those to write before the cut.

    A cut may divide a fence of code, or text that is bold, italic, struck out or code. The part before it
    then has to close this, and the part after it to open it again. `limit` is the most characters of a part.
    """
    if fence := _open_fence(text, end):
        return fence, f"\n{FENCE}"
    marks = _open_marks(text, end, end + MARKED_PARTS * limit)
    return "".join(marks), "".join(reversed(marks))


def _open_marks(text: str, end: int, stop: int) -> list[str]:
    """Return the opening marks of bold, italic, struck-out text or code that a cut at `end` divides.

    The outermost comes first. Only the paragraph around the cut is read, as no mark reaches beyond it, and
    nothing after the index `stop`.
    """
    before = list(_PARAGRAPH.finditer(text, 0, end))
    after = _PARAGRAPH.search(text, end, stop)
    start = before[-1].end() if before else 0
    stop = after.start() if after else min(stop, len(text))
    # The marks that are open at the place that is read, and those that the cut divides, with their indexes.
    opened: list[tuple[str, int]] = []
    # How often each mark is open: to search the list for each mark would take quadratic time.
    open_counts: Counter[str] = Counter()
    divided: list[tuple[int, str]] = []
    read_to = start
    for place in _MARK.finditer(text, start, stop):
        if place.start() >= end and (not opened or opened[0][1] >= end):
            break  # of what the cut may divide, nothing is open any more
        mark = place[0]
        if place.start() < read_to or mark.startswith("\\"):
            continue
        if mark.startswith("`"):
            closed = text.find(mark, place.end(), stop)
            read_to = closed + len(mark) if closed >= 0 else place.end()
            if place.end() <= end <= closed:
                divided.append((place.start(), mark))
        elif _can_close(text, place) and open_counts[mark]:
            # Marks that were opened later and are not closed are no marks.
            while (last := opened.pop())[0] != mark:
                open_counts[last[0]] -= 1
            open_counts[mark] -= 1
            if last[1] + len(mark) <= end <= place.start():
                divided.append((last[1], mark))
        elif _can_open(text, place):
            opened.append((mark, place.start()))
            open_counts[mark] += 1
    return [mark for _, mark in sorted(divided)]


def _can_open(text: str, mark: re.Match[str]) -> bool:
    """Return whether a mark such as `**` may begin bold or other text, at its place in `text`.

    Text has to follow it, and an underscore must not be inside a word.
    """
    before, after = text[max(mark.start() - 1, 0) : mark.start()], text[mark.end() : mark.end() + 1]
    return bool(after.strip()) and not (mark[0].startswith("_") and before.isalnum())


def _can_close(text: str, mark: re.Match[str]) -> bool:
    """Return whether a mark such as `**` may end bold or other text, at its place in `text`.

    Text has to precede it, and an underscore must not be inside a word.
    """
    before, after = text[max(mark.start() - 1, 0) : mark.start()], text[mark.end() : mark.end() + 1]
    return bool(before.strip()) and not (mark[0].startswith("_") and after.isalnum())


def _open_fence(text: str, end: int) -> str:
    """Return the line that opens again the fence of code which is open at `end`; empty if none is."""
    runs = list(_FENCE_RUN.finditer(text, 0, end))
    if len(runs) % 2 == 0:
        return ""  # each fence is closed
    language = _LANGUAGE.match(text, runs[-1].end())
    return f"{FENCE}{language[0] if language else ''}\n"
