"""Texts of chats as HTML: everything is escaped, but for a few marks of messengers, which are rendered.

A person in a chat may be hostile. So no mark makes the browser send a request, a link shows its target, and
characters that change the direction of writing are written out: they could make an address look like another.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from markupsafe import Markup, escape

from orchestrator.base.terminal_escaping import all_visible

MAX_CHARS = 4_000
"""Characters of a text that a page shows; the whole text is on a page of its own."""
MAX_LINK_CHARS = 500

_DIRECTION_MARK = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""A character that changes the direction of writing."""
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""A control character, but no tab and no line break."""
_FENCE = re.compile(r"```(?:\w*\n)?(.*?)```", re.DOTALL)
_MARK = re.compile(
    r"`(?P<code>[^`\n]+)`"
    rf"|(?P<link>https?://[^\s<>\"'`]{{1,{MAX_LINK_CHARS}}})"
    r"|(?<![\w*])\*\*(?P<strong>[^\s*](?:[^*\n]*[^\s*])?)\*\*(?![\w*])"
    r"|(?<![\w*])\*(?P<bold>[^\s*](?:[^*\n]*[^\s*])?)\*(?![\w*])"
    r"|(?<![\w_])_(?P<italic>[^\s_](?:[^_\n]*[^\s_])?)_(?![\w_])"
)
"""One mark within a line: `code`, a link, **bold** or *bold*, or _italic_."""
_ITEM = re.compile(r"[ \t]*[-*•][ \t]+(?P<text>.*)")
_PUNCTUATION_AFTER_LINK = ".,;:!?)]}»”’"
_CELL = re.compile(r"<(tr|td|th)\b([^>]*)>")
"""The beginning of a row or a cell of a table, such as `<td class="number">`."""


def rich(text: str, *, limit: int = MAX_CHARS) -> Markup:
    """Return a chat's text as HTML: escaped, with its marks for bold, code and so on rendered. Pure.

    The text is cut after `limit` characters.
    """
    shown = text[:limit]
    parts: list[Markup] = []
    # A fence is three backquotes before and after some code. `split` by a pattern with one group returns the
    # texts outside of fences, and the code inside of them, alternately.
    for index, part in enumerate(_FENCE.split(shown)):
        is_fenced = index % 2 == 1
        if is_fenced:
            parts.append(Markup("<pre><code>{}</code></pre>").format(plain(part.strip("\n"))))
        elif part.strip():
            parts.append(_paragraphs(part))
    return Markup("").join(parts)


def plain(text: str) -> Markup:
    """Return a text as HTML without any marks: escaped, and with its hidden characters made visible. Pure.

    Control characters become `�`. Those that change the direction of writing are shown by their codes.
    """
    safe = _CONTROL.sub("\ufffd", text)
    if not _DIRECTION_MARK.search(safe):
        return escape(safe)
    parts: list[Markup] = []
    end = 0
    for hidden in _DIRECTION_MARK.finditer(safe):
        parts += (escape(safe[end : hidden.start()]), _visible_code(hidden[0]))
        end = hidden.end()
    return Markup("").join([*parts, escape(safe[end:])])


def written_out(text: str) -> Markup:
    """Return the text of an agent's request as escaped HTML, with hidden characters written out. Pure."""
    return escape(all_visible(text))


def labelled(rows: Markup, columns: Sequence[str]) -> Markup:
    """Return the rows of a table with each cell's column heading in its `data-label`. Pure.

    Screens that are too narrow for columns show it. `rows` is the output of a template: texts in it are
    escaped, so every tag in it is the template's own.
    """
    column = 0  # the index of the next cell in its row

    def label(tag_match: re.Match[str]) -> str:
        """Return a tag of the table: a cell that has a heading gets it as `data-label`."""
        nonlocal column
        tag, attributes = tag_match.groups()
        if tag == "tr":
            column = 0
            return tag_match[0]
        heading = columns[column] if column < len(columns) and "colspan" not in attributes else ""
        column += 1
        # A `th` counts as a column, too, but is a heading itself.
        if not heading or tag != "td":
            return tag_match[0]
        return f'<{tag}{attributes} data-label="{escape(heading)}">'

    return Markup(_CELL.sub(label, rows))  # noqa: S704 - `rows` is HTML, headings are escaped


def host_notes(subject: str) -> list[str]:
    """Return a host name with its encoded letters decoded, and the scripts of its letters beyond ASCII. Pure.

    Empty for a name without encoded parts. A name may look like a known one with other letters:
    `xn--80ak6aa92e.com` is shown as аррӏе.com. A port after the name is left out.
    """
    host = subject.rpartition(":")[0] or subject
    if "xn--" not in host.lower():
        return []
    labels = [_decoded(label) for label in host.lower().split(".")]
    scripts = sorted({_script(letter) for label in labels for letter in label if not letter.isascii()})
    return [".".join(labels), *scripts]


def _decoded(label: str) -> str:
    """Return one part of a host name with its `xn--` encoding decoded.

    It is unchanged if it is not encoded, or the encoding is wrong.
    """
    try:
        # The encoding begins after the four characters `xn--`.
        return label[4:].encode("ascii").decode("punycode") if label.startswith("xn--") else label
    except (UnicodeError, ValueError, OverflowError):
        return label


def _script(character: str) -> str:
    """Return the script of a letter, such as `Cyrillic`: the first word of its Unicode name. Pure."""
    # Such as `CYRILLIC SMALL LETTER A`, or `CJK UNIFIED IDEOGRAPH-6F22`.
    return unicodedata.name(character, "UNKNOWN").split()[0].split("-")[0].title()


def _visible_code(character: str) -> Markup:
    """Return the HTML that shows a hidden character by its code, such as `U+202E`."""
    code = f"U+{ord(character):04X}"
    return Markup('<span class="turning" title="{0}"><span class="unseen">{0}</span></span>').format(code)


def is_cut(text: str, *, limit: int = MAX_CHARS) -> bool:
    """Return whether a text is longer than the `limit` after which `rich` cuts it."""
    return len(text) > limit


def _paragraphs(text: str) -> Markup:
    """Return lines of text as HTML paragraphs; lines that begin as list items become a list."""
    blocks: list[Markup] = []
    lines: list[Markup] = []
    items: list[Markup] = []

    def end_block() -> None:
        """Add the collected lines as a paragraph, or the collected items as a list, and clear both."""
        if lines:
            blocks.append(Markup("<p>{}</p>").format(Markup("<br>").join(lines)))
        if items:
            rows = Markup("").join(Markup("<li>{}</li>").format(item) for item in items)
            blocks.append(Markup("<ul>{}</ul>").format(rows))
        lines.clear()
        items.clear()

    for line in text.strip("\n").split("\n"):
        item = _ITEM.fullmatch(line)
        # An empty line ends a block, and so does a line of the other kind.
        if not line.strip() or (item and lines) or (not item and items):
            end_block()
        if item:
            items.append(_inline_html(item["text"]))
        elif line.strip():
            lines.append(_inline_html(line))
    end_block()
    return Markup("").join(blocks)


def _inline_html(text: str) -> Markup:
    """Return one line of text as HTML, with its marks (bold, italic, code, links) rendered."""
    parts: list[Markup] = []
    end = 0
    for match in _MARK.finditer(text):
        parts.append(plain(text[end : match.start()]))
        parts.append(_mark_html(match))
        end = match.end()
    return Markup("").join([*parts, plain(text[end:])])


def _mark_html(match: re.Match[str]) -> Markup:
    """Return one mark that `_MARK` has found as HTML: code, a link, bold or italic text."""
    if match["code"] is not None:
        return Markup("<code>{}</code>").format(plain(match["code"]))
    if match["link"] is not None:
        return _link_html(match["link"])
    bold = match["strong"] or match["bold"]
    if bold:
        return Markup("<strong>{}</strong>").format(plain(bold))
    return Markup("<em>{}</em>").format(plain(match["italic"]))


def _link_html(address: str) -> Markup:
    """Return a web address as an HTML link that shows its whole target.

    An address with hidden characters, or with a user name before the host, stays text. Punctuation after the
    address is no part of it.
    """
    target = address.rstrip(_PUNCTUATION_AFTER_LINK)
    punctuation = plain(address[len(target) :])
    # The part before an "@" is a user name, and may look like a host: https://bank.example@evil.example.
    host = target.split("/")[2]  # of `https://HOST/PATH`
    if _DIRECTION_MARK.search(target) or "@" in host:
        return plain(target) + punctuation
    link = Markup('<a href="{0}" rel="noreferrer noopener nofollow" target="_blank">{0}</a>')
    return link.format(target) + punctuation
