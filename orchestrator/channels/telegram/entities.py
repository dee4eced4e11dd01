"""Turn Markdown into a plain text and the places of its marks, as Telegram wants them. Pure.

Places are sent instead of a marked text: nothing that an agent writes can then be refused as badly marked.
Telegram counts in UTF-16 units.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
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
LINKED = ("http://", "https://", "mailto:", "tg://")


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark from `offset` on, `length` long, in UTF-16 units; `url` of a link, `language` of code."""

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
    """For each list that is open the number of its next item; None of one with bullets."""

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
    """Return the text without its marks, and where they were; blank lines in a row become one."""
    writer = _Writer()
    for token in _markdown().parse(markdown):
        _block(writer, token)
    text = writer.text.rstrip("\n")
    size = units(text)
    kept = [Mark(m.kind, m.offset, min(m.length, size - m.offset), m.url, m.language) for m in writer.marks]
    return text, tuple(sorted((m for m in kept if m.length > 0), key=lambda m: (m.offset, -m.length)))


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
