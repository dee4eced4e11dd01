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
"""Most characters that combine to one visible character; only hostile texts have longer ones."""
LINK_SCHEMES = ("http://", "https://", "mailto:", "tg://")


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
    """The text and the marks that were written so far, and what is still open."""

    text: str = ""
    marks: list[Mark] = field(default_factory=list)
    opened: list[tuple[str, int, str | None]] = field(default_factory=list)
    """The marks that have no end yet, outermost first: kind, offset in UTF-16 units, target of a link."""
    lists: list[int | None] = field(default_factory=list)
    """The number of the next item of each open list; None for a list with bullets."""

    def mark(self, kind: str, begin: int, *, url: str | None = None, language: str | None = None) -> None:
        """Add a mark from the offset `begin` to the end of the text, unless that is empty.

        `url` is the target of a link, `language` that of a block of code.
        """
        length = utf16_units(self.text) - begin
        if length > 0:
            self.marks.append(Mark(kind, begin, length, url, language))

    def end_block(self) -> None:
        """End the last paragraph or other block of the text: in a list by a line break, else a blank line."""
        self.text = self.text.rstrip("\n") + ("\n" if self.lists else "\n\n")


def utf16_units(text: str) -> int:
    """Return the length of a text in UTF-16 units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def parse_markdown(markdown: str) -> tuple[str, tuple[Mark, ...]]:
    """Return the plain text of Markdown, and the positions of its marks in that text.

    A mark is bold, italic, a link and so on. The marks are sorted by their offsets, an outer one before those
    inside it.
    """
    writer = _Writer()
    for token in _markdown().parse(markdown):
        _write_block(writer, token)
    text = writer.text.rstrip("\n")
    length = utf16_units(text)
    marks = [
        Mark(mark.kind, mark.offset, min(mark.length, length - mark.offset), mark.url, mark.language)
        for mark in writer.marks
    ]
    # A mark of the line breaks that were cut off the end has no length left.
    visible_marks = (mark for mark in marks if mark.length > 0)
    return text, tuple(sorted(visible_marks, key=lambda mark: (mark.offset, -mark.length)))


def split_text(text: str, marks: Sequence[Mark], *, max_units: int) -> list[tuple[str, tuple[Mark, ...]]]:
    """Cut a text into pieces of at most `max_units` UTF-16 units and `MAX_MARKS` marks, for one message each.

    Return the text and the marks of each piece. The text is cut at white space if possible. A mark across a
    cut is in both pieces. A visible character, such as an emoji of several code points, is not cut.
    """
    characters = _visible_characters(text)
    unit_offsets = list(accumulate((utf16_units(character) for character in characters), initial=0))
    pieces, begin = [], 0
    while begin < len(characters):
        end = _piece_end(characters, unit_offsets, marks, begin, max_units)
        piece = "".join(characters[begin:end])
        is_whole_text = begin == 0 and end == len(characters)
        if not is_whole_text:  # a text that is sent uncut keeps its white space
            piece = piece.rstrip()
        if piece:
            pieces.append(
                (piece, _marks_within(marks, unit_offsets[begin], unit_offsets[begin] + utf16_units(piece)))
            )
        begin = end
        # White space at a cut is left out.
        while begin < len(characters) and characters[begin].isspace():
            begin += 1
    return pieces


def _visible_characters(text: str) -> list[str]:
    """Return a text as the list of the characters that people see; an emoji may have several code points.

    One of more than `MAX_CLUSTER_CHARS` code points is returned as its single code points.
    """
    import regex

    characters = []
    for cluster in regex.findall(r"\X", text):
        characters += [cluster] if len(cluster) <= MAX_CLUSTER_CHARS else list(cluster)
    return characters


def _piece_end(
    characters: Sequence[str], unit_offsets: Sequence[int], marks: Sequence[Mark], begin: int, max_units: int
) -> int:
    """Return the index of the visible character before which a piece of a text ends; it is after `begin`.

    Args:
        characters: the text, as the characters that people see.
        unit_offsets: the offset of each of them in UTF-16 units, and that of the end of the text.
        marks: the marks of the text, by their offsets.
        begin: the index of the first character of the piece.
        max_units: the greatest length of the piece in UTF-16 units.
    """
    mark_begins = [mark.offset for mark in marks if mark.offset + mark.length > unit_offsets[begin]]
    # The marks are in order: the first one too many ends the piece. Marks that are side by side have a unit
    # each, so only nested ones would end it sooner; they must not make a message of each character.
    marks_limit = mark_begins[MAX_MARKS] if len(mark_begins) > MAX_MARKS else unit_offsets[-1]
    marks_limit = max(marks_limit, unit_offsets[begin] + MAX_MARKS)
    end = begin + 1
    while (
        end < len(characters)
        and unit_offsets[end + 1] - unit_offsets[begin] <= max_units
        and unit_offsets[end + 1] <= marks_limit
    ):
        end += 1
    if end == len(characters):
        return end
    # The piece ends at a line break or else at other white space, if that leaves it more than a quarter of
    # its greatest length.
    possible_ends = range(end, begin + (end - begin) // 4, -1)
    line_break = next((index for index in possible_ends if characters[index] == "\n"), None)
    white_space = next((index for index in possible_ends if characters[index].isspace()), end)
    return line_break if line_break is not None else white_space


def _marks_within(marks: Sequence[Mark], begin: int, end: int) -> tuple[Mark, ...]:
    """Return the parts of marks between two offsets in UTF-16 units, relative to `begin`.

    Of more than `MAX_MARKS`, only the first are returned.
    """
    clipped = []
    for mark in marks:
        start, stop = max(mark.offset, begin), min(mark.offset + mark.length, end)
        if start < stop:
            clipped.append(replace(mark, offset=start - begin, length=stop - start))
    return tuple(clipped[:MAX_MARKS])


@cache
def _markdown() -> MarkdownIt:
    """Return the parser of Markdown, made once: its library loads slowly."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "linkify": False})
    # Without `reference`, which would leave out lines such as `[10:30]: Anna`.
    return parser.enable("strikethrough").disable("reference")


def _write_block(writer: _Writer, token: Token) -> None:
    """Write a token of the Markdown parser to `writer`: a block, its beginning or end, or the text in it.

    Blocks are paragraphs, headings, lists, quotes, code and horizontal lines. Any other token writes nothing.
    """
    # A type such as `bullet_list_open`: the kind `bullet_list`, and the side `open` or `close`.
    kind, _, side = token.type.rpartition("_")
    if token.type == "inline":
        for child in token.children or ():
            _write_inline(writer, child)
    elif token.type in {"fence", "code_block"}:
        begin, words = utf16_units(writer.text), token.info.split()
        # Several words behind the fence are no language, but code.
        first_line = f"{token.info.strip()}\n" if len(words) > 1 else ""
        writer.text += f"{first_line}{token.content}".rstrip("\n")
        writer.mark("pre", begin, language=words[0] if len(words) == 1 else None)
        writer.end_block()
    elif token.type == "hr":
        writer.text += "———"
        writer.end_block()
    elif kind in {"bullet_list", "ordered_list"}:
        _begin_or_end_list(writer, token, is_open=side == "open", is_ordered=kind == "ordered_list")
    elif token.type == "list_item_open":
        number = writer.lists[-1]  # that of this item in the innermost list; None for bullets
        indentation = "  " * (len(writer.lists) - 1)
        writer.text += indentation + ("• " if number is None else f"{number}. ")
        writer.lists[-1] = None if number is None else number + 1
    elif kind in MARKS:
        _begin_or_end_mark(writer, MARKS[kind], is_open=side == "open")
        if side == "close" and kind == "heading":
            writer.end_block()
    elif token.type == "paragraph_close":
        writer.end_block()


def _begin_or_end_list(writer: _Writer, token: Token, *, is_open: bool, is_ordered: bool) -> None:
    """Begin the list of a token (`is_open`), or end the innermost list."""
    # For each open list, `writer.lists` has the number of its next item; None for a list with bullets.
    if is_open:
        writer.lists.append(int(token.attrs.get("start", 1)) if is_ordered else None)
    else:
        writer.lists.pop()
        writer.end_block()


def _write_inline(writer: _Writer, token: Token) -> None:
    """Write a token inside a block to `writer`: text, code, a picture, or a mark's beginning or end."""
    kind, _, side = token.type.rpartition("_")
    if token.type in {"softbreak", "hardbreak"}:
        writer.text += "\n"
    elif token.type == "code_inline":
        begin = utf16_units(writer.text)
        writer.text += token.content
        writer.mark("code", begin)
    elif token.type == "image":
        writer.text += f"{token.content} ({token.attrs.get('src', '')})"
    elif kind == "link":
        target = str(token.attrs.get("href") or "")
        _begin_or_end_mark(writer, "text_link", is_open=side == "open", url=target)
    elif kind in MARKS:
        _begin_or_end_mark(writer, MARKS[kind], is_open=side == "open")
    else:
        writer.text += token.content


def _begin_or_end_mark(writer: _Writer, kind: str, *, is_open: bool, url: str | None = None) -> None:
    """Begin a mark of a kind (`is_open`), or end the innermost mark.

    `url` is the target of a link that begins; None for other kinds. At the end of a link that Telegram cannot
    open, its target is written as text instead of a mark; nothing is written if the target is empty.
    """
    if is_open:
        writer.opened.append((kind, utf16_units(writer.text), url))
        return
    if writer.opened:
        opened_kind, begin, target = writer.opened.pop()
        if target is None or target.startswith(LINK_SCHEMES):
            writer.mark(opened_kind, begin, url=target)
        elif target:
            writer.text += f" ({target})"
