"""Convert Markdown, which agents write, to WhatsApp's formatting. Pure.

WhatsApp knows `*bold*`, `_italic_`, `~struck~`, `` `code` ``, fenced code, `-` and `1.` lists and `>` quotes.
It knows no headings, links with a text, tables or horizontal rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable

LINE_STARTS = ("```", "- ", "> ", "* ", "1. ")
"""Beginnings of a text whose formatting works only at the start of a line."""
MAX_GROWTH = 5
"""Characters by which a text may grow in conversion: a missing end of a code block is added."""

_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)(?:^```[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_PROTECTED_SPANS = re.compile(
    r"(?<!`)(?P<code>`{1,2})(?!`)(?P<inner>[^`\n]+?)(?P=code)(?!`)|(?P<url>https?://[^\s<>()]+(?:\([^\s()]*\))?)"
)
_LINK = re.compile(
    r"!?\[(?P<label>[^\[\]\n]*)\]"
    r"\((?:<(?P<in_angles>[^<>\n]+)>|(?P<plain>[^()\s]*(?:\([^()\s]*\)[^()\s]*)*))(?:\s+\"[^\"\n]*\")?\)"
)
_ESCAPED = re.compile(r"\\([\\*_~`\[\]()#>+.!|{}-])")
_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(.*)")
_BULLET = re.compile(r"^([ \t]*)[*+-][ \t]+(?:\[([ xX])\][ \t]+)?")
_RULE = re.compile(r"^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$")
# For a line without white space around it: many blanks before an optional part would take quadratic time.
_TABLE_RULE = re.compile(r"^\|?(?:[ \t]*:?-{2,}:?[ \t]*\|)+(?:[ \t]*:?-{2,}:?[ \t]*)?$")
_TABLE_ROW = re.compile(r"^[ \t]*\|(.+)\|[ \t]*$")
_BOTH = re.compile(r"(?<![\w*])\*\*\*(?=\S)(.+?)(?<=\S)\*\*\*(?![\w*])")
_STRONG = re.compile(r"\*\*(?=\S)(.+?)(?<=\S)\*\*|(?<!\w)__(?=\S)(.+?)(?<=\S)__(?!\w)")
_EMPHASIS = re.compile(r"(?<![\w*])\*(?=[^\s*])([^*\n]+?)(?<=[^\s*])\*(?![\w*])")
_STRUCK = re.compile(r"~~(?=\S)(.+?)(?<=\S)~~")
# Placeholders for protected spans and for bold while the rest is converted. They are private-use characters,
# and `to_whatsapp` removes them from its input.
_OPEN, _CLOSE, _BOLD = "\ue000", "\ue001", "\ue002"
_PLACEHOLDER = re.compile(rf"{_OPEN}(\d+){_CLOSE}")


def to_whatsapp(text: str) -> str:
    """Convert a text with Markdown to WhatsApp's formatting.

    A text that already has WhatsApp's formatting stays unchanged.
    """
    # The conversion marks placeholders and bold with these characters, so the text itself must have none.
    text = re.sub(f"[{_OPEN}{_CLOSE}{_BOLD}]", "", text)
    parts: list[str] = []
    converted_until = 0
    # `*word*` is italic in Markdown and bold in WhatsApp. It is read as Markdown only if the text also has
    # bold in Markdown's form (`**word**`).
    is_markdown = _STRONG.search(_PROTECTED_SPANS.sub("", text)) is not None
    for fence in _FENCE.finditer(text):
        prose = text[converted_until : fence.start()]
        parts += [_convert_prose(prose, is_markdown=is_markdown), _code_block(fence[1].strip(), fence[2])]
        converted_until = fence.end()
    parts.append(_convert_prose(text[converted_until:], is_markdown=is_markdown))
    return "".join(parts).strip("\n")


def _code_block(info: str, code: str) -> str:
    """Return code as a fenced block of WhatsApp.

    `info` are the words behind the fence: the code's language, which is left out, or several words of code.
    """
    return f"```{info if len(info.split()) > 1 else ''}\n{code.rstrip()}\n```"


def _convert_prose(text: str, *, is_markdown: bool) -> str:
    """Convert the Markdown in a text that has no fenced code to WhatsApp's formatting.

    `is_markdown` says whether `*word*` is italic, as in Markdown, and not bold.
    """
    protected: list[str] = []

    def protect(span: str) -> str:
        """Store a span that must not be converted, and return its placeholder."""
        protected.append(span)
        return f"{_OPEN}{len(protected) - 1}{_CLOSE}"

    text = _LINK.sub(lambda match: _convert_link(match, protect), _protect_spans(text, protect))
    # Of an escaped sign, such as `\*`, only the sign remains, which later conversions do not take for a mark.
    text = _ESCAPED.sub(lambda match: protect(match[1]), text)
    # The rule under the head of a table, such as `|---|---|`, is left out.
    lines = [_convert_line(line) for line in text.split("\n") if not _TABLE_RULE.match(line.strip(" \t"))]
    text = _convert_marks("\n".join(lines), is_markdown=is_markdown)
    # More than once: a protected span may contain the placeholder of another.
    while _PLACEHOLDER.search(text):
        text = _PLACEHOLDER.sub(lambda match: protected[int(match[1])], text)
    return text


def _protect_spans(text: str, protect: Callable[[str], str]) -> str:
    """Return a text with placeholders in place of code and web addresses, which must not be converted.

    `protect` stores such a part and returns its placeholder. The address of a link, `[label](address)`, is
    left in place, because `_convert_link` handles it.
    """
    link_spans = [link.span() for link in _LINK.finditer(text)]

    def hide(match: re.Match[str]) -> str:
        """Return a placeholder for a span, or the span itself if it is the address of a link."""
        is_inside_link = match["url"] and any(start <= match.start() < end for start, end in link_spans)
        return match[0] if is_inside_link else protect(match[0])

    return _PROTECTED_SPANS.sub(hide, text)


def _convert_link(match: re.Match[str], protect: Callable[[str], str]) -> str:
    """Return a Markdown link as text: `label (address)`, or one of the two if the other adds nothing.

    `match` is a match of `_LINK`. `protect` returns a placeholder for the address, so that later conversions
    do not take characters in it for formatting.
    """
    label = match["label"].strip()
    address = (match["in_angles"] or match["plain"] or "").removeprefix("mailto:")
    if not address:
        return label
    if label == address:
        return protect(address)
    return f"{label} ({protect(address)})" if label else protect(address)


def _convert_line(line: str) -> str:
    """Convert a line of Markdown: a heading, a rule, a row of a table or an item of a list.

    `# Title` becomes bold, `---` becomes `———`, `| a | b |` becomes `a | b`, and `* item` becomes `- item`.
    Any other line stays unchanged.
    """
    if _RULE.match(line):
        return "———"
    heading = _HEADING.match(line)
    if heading is not None:
        # Bold marks inside the heading are removed, since the heading as a whole becomes bold.
        heading_text = _STRONG.sub(lambda match: match[1] or match[2], _heading_text(heading[1]))
        return f"{_BOLD}{heading_text}{_BOLD}" if heading_text else ""
    row = _TABLE_ROW.match(line)
    if row is not None:
        cells = [cell.strip() for cell in row[1].split("|")]
        joined = " | ".join(cells)
        # The text must not grow: the longest message is cut before it is converted.
        return joined if len(joined) <= len(line) else "|".join(cells)
    return _BULLET.sub(_convert_bullet, line)


def _heading_text(text: str) -> str:
    """Return the text of a heading without white space around it, and without the signs that close it.

    In `Title ##` these are `##`. In `C#` the sign is part of the text, since no white space precedes it.
    """
    text = text.strip(" \t")
    without_signs = text.rstrip("#")
    is_closed = not without_signs or without_signs.endswith((" ", "\t"))
    return without_signs.rstrip(" \t") if is_closed else text


def _convert_bullet(match: re.Match[str]) -> str:
    """Return the beginning of an item of a list, `- `, with a box if the item is a task.

    `match` is a match of `_BULLET`: the indentation, and the sign between the brackets of a task.
    """
    # Between the brackets is a blank, or an `x` for a task that is done; None if there are no brackets.
    checkbox = {None: "", " ": "☐ "}.get(match[2], "☑ ")
    return f"{match[1]}- {checkbox}"


def _convert_marks(text: str, *, is_markdown: bool) -> str:
    """Convert the marks of bold, italic and struck text.

    `is_markdown` says whether `*word*` is italic, as in Markdown, and not bold.
    """
    # Bold text gets its `*` last: before, Markdown's italics are looked for by the same sign. `_BOTH` is
    # `***bold and italic***`.
    text = _BOTH.sub(rf"{_BOLD}_\1_{_BOLD}", text)
    text = _STRONG.sub(lambda match: f"{_BOLD}{match[1] or match[2]}{_BOLD}", text)
    if is_markdown:
        text = _EMPHASIS.sub(r"_\1_", text)
    return _STRUCK.sub(r"~\1~", text).replace(_BOLD, "*")


def with_prefix(text: str, prefix: str, *, is_caption: bool) -> str:
    """Return the text with `prefix`, the assistant's name, before it.

    An empty `prefix` changes nothing. An empty text stays empty if it is a caption (`is_caption`). A text
    that begins with formatting which works only at the start of a line, such as a list, begins on a line of
    its own.
    """
    if not prefix or (is_caption and not text):
        return text
    gap = "\n" if text.startswith(LINE_STARTS) else " "
    return f"{prefix.rstrip()}{gap}{text}"


def with_mention(text: str, name: str, user: str) -> str:
    """Return the text with `@` and a person's number in it, which WhatsApp shows as a mention.

    It replaces the first occurrence of the person's `name`, or is put before a text without the name. `user`
    is the number: the user part of the person's address.
    """
    # The name with or without `@`, not as a part of a longer word. Letters of other scripts may follow, as
    # Korean puts particles behind a name.
    name_pattern = rf"(?<!\w)@?{re.escape(name)}(?![A-Za-z0-9_])"
    replaced = re.sub(name_pattern, f"@{user}", text, count=1) if name else text
    return replaced if replaced != text else f"@{user} {text}"
