"""Turn Markdown into a plain text and the positions of its marks, as Telegram takes them. Pure.

Positions are sent instead of a marked text, so that Telegram can refuse no text as badly marked. Telegram
counts in UTF-16 units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

MARKS = {
    "strong": "bold",
    "em": "italic",
    "s": "strikethrough",
    "heading": "bold",
    "blockquote": "blockquote",
}
MAX_MARKS = 100
"""Marks that Telegram shows of a message; it drops the rest."""
MAX_CLUSTER_CHARS = 32
"""Most characters that combine to one visible sign; nobody writes longer ones in good faith."""
LINKED = ("http://", "https://", "mailto:", "tg://")


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark at `offset`, `length` long, in UTF-16 units; `url` of a link, `language` of code."""

    kind: str
    offset: int
    length: int
    url: str | None = None
    language: str | None = None


@dataclass(slots=True)
class _Writer:
    text: str = ""
    marks: list[Mark] = field(default_factory=list)
    opened: list[tuple[str, int, str | None]] = field(default_factory=list)
    lists: list[int | None] = field(default_factory=list)
    """The number of the next item of each open list; None for a list with bullets."""

    def mark(self, kind: str, begin: int, *, url: str | None = None, language: str | None = None) -> None:
        length = units(self.text) - begin
        if length > 0:
            self.marks.append(Mark(kind, begin, length, url, language))

    def end_block(self) -> None:
        self.text = self.text.rstrip("\n") + ("\n" if self.lists else "\n\n")


def units(text: str) -> int:
    """Return the length of a text in UTF-16 units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def marked(markdown: str) -> tuple[str, tuple[Mark, ...]]:
    """Return the text without its marks, and their positions; blank lines in a row become one."""
    writer = _Writer()
    for token in _markdown().parse(markdown):
        _block(writer, token)
    text = writer.text.rstrip("\n")
    size = units(text)
    marks = [Mark(m.kind, m.offset, min(m.length, size - m.offset), m.url, m.language) for m in writer.marks]
    return text, tuple(sorted((m for m in marks if m.length > 0), key=lambda m: (m.offset, -m.length)))


def pieces(text: str, marks: Sequence[Mark], *, most_units: int) -> list[tuple[str, tuple[Mark, ...]]]:
    """Cut a text with its marks into messages that Telegram shows whole, at white space if possible.

    A divided mark is in both pieces, and no visible sign is divided.
    """
    signs = _signs(text)
    places = list(accumulate((units(sign) for sign in signs), initial=0))
    found, begin = [], 0
    while begin < len(signs):
        end = _end_of_piece(signs, places, marks, begin, most_units)
        piece = "".join(signs[begin:end])
        if end < len(signs) or begin:
            piece = piece.rstrip()
        if piece:
            found.append((piece, _clipped(marks, places[begin], places[begin] + units(piece))))
        begin = end
        while begin < len(signs) and signs[begin].isspace():
            begin += 1
    return found


def _signs(text: str) -> list[str]:
    """Return a text in pieces that may not be divided."""
    import regex

    found = []
    for cluster in regex.findall(r"\X", text):
        found += [cluster] if len(cluster) <= MAX_CLUSTER_CHARS else list(cluster)
    return found


def _end_of_piece(
    signs: Sequence[str], places: Sequence[int], marks: Sequence[Mark], begin: int, most_units: int
) -> int:
    """Return the index of the sign before which the piece that starts with `begin` ends."""
    begins = [mark.offset for mark in marks if mark.offset + mark.length > places[begin]]
    # The marks are in order: the first one too many ends the piece.
    least_units = begins[MAX_MARKS] if len(begins) > MAX_MARKS else places[-1]
    end = begin + 1
    while (
        end < len(signs) and places[end + 1] - places[begin] <= most_units and places[end + 1] <= least_units
    ):
        end += 1
    if end == len(signs):
        return end
    for kind in ("\n", None):
        for at in range(end, begin + (end - begin) // 4, -1):
            if signs[at] == kind or (kind is None and signs[at].isspace()):
                return at
    return end


def _clipped(marks: Sequence[Mark], begin: int, end: int) -> tuple[Mark, ...]:
    found = []
    for mark in marks:
        first, last = max(mark.offset, begin), min(mark.offset + mark.length, end)
        if first < last:
            found.append(replace(mark, offset=first - begin, length=last - first))
    return tuple(found[:MAX_MARKS])


@cache
def _markdown() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False, "linkify": False}).enable("strikethrough")


def _block(writer: _Writer, token: Token) -> None:
    kind, _, edge = token.type.rpartition("_")
    if token.type == "inline":
        for child in token.children or ():
            _inline(writer, child)
    elif token.type in {"fence", "code_block"}:
        begin = units(writer.text)
        writer.text += token.content.rstrip("\n")
        writer.mark("pre", begin, language=token.info.split()[0] if token.info.strip() else None)
        writer.end_block()
    elif token.type == "hr":
        writer.text += "———"
        writer.end_block()
    elif kind in {"bullet_list", "ordered_list"}:
        _list(writer, token, is_open=edge == "open", is_ordered=kind == "ordered_list")
    elif token.type == "list_item_open":
        number = writer.lists[-1]
        writer.text += "  " * (len(writer.lists) - 1) + ("• " if number is None else f"{number}. ")
        writer.lists[-1] = None if number is None else number + 1
    elif kind in MARKS:
        _edge(writer, MARKS[kind], is_open=edge == "open")
        if edge == "close" and kind == "heading":
            writer.end_block()
    elif token.type == "paragraph_close":
        writer.end_block()


def _list(writer: _Writer, token: Token, *, is_open: bool, is_ordered: bool) -> None:
    if is_open:
        writer.lists.append(int(token.attrs.get("start") or 1) if is_ordered else None)
    else:
        writer.lists.pop()
        writer.end_block()


def _inline(writer: _Writer, token: Token) -> None:
    kind, _, edge = token.type.rpartition("_")
    if token.type in {"softbreak", "hardbreak"}:
        writer.text += "\n"
    elif token.type == "code_inline":
        begin = units(writer.text)
        writer.text += token.content
        writer.mark("code", begin)
    elif token.type == "image":
        writer.text += f"{token.content} ({token.attrs.get('src', '')})"
    elif kind == "link":
        target = str(token.attrs.get("href") or "")
        _edge(writer, "text_link", is_open=edge == "open", url=target)
    elif kind in MARKS:
        _edge(writer, MARKS[kind], is_open=edge == "open")
    else:
        writer.text += token.content


def _edge(writer: _Writer, kind: str, *, is_open: bool, url: str | None = None) -> None:
    if is_open:
        writer.opened.append((kind, units(writer.text), url))
        return
    if writer.opened:
        opened, begin, target = writer.opened.pop()
        if target is None or target.startswith(LINKED):
            writer.mark(opened, begin, url=target)
        elif target:
            writer.text += f" ({target})"
