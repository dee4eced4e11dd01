"""Convert Markdown, which agents write, to WhatsApp's formatting. Pure.

WhatsApp knows `*bold*`, `_italic_`, `~struck~`, `` `code` ``, fenced code, `-` and `1.` lists and `>` quotes.
It knows no headings, links with a text, tables or horizontal rules.
"""

from __future__ import annotations

import re

OWN_LINE = ("```", "- ", "> ", "* ", "1. ")
"""Beginnings of a text whose formatting works only at the start of a line."""
MAX_GROWTH = 5
"""Characters by which a text may grow in conversion: a missing end of a code block is added."""

_FENCE = re.compile(r"^```[^\n`]*\n(.*?)(?:^```[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_KEPT = re.compile(
    r"(?<!`)(?P<code>`{1,2})(?!`)(?P<inner>[^`\n]+?)(?P=code)(?!`)|(?P<url>https?://[^\s<>()]+(?:\([^\s()]*\))?)"
)
_LINK = re.compile(
    r"!?\[([^\[\]\n]*)\]\((?:<([^<>\n]+)>|([^()\s]*(?:\([^()\s]*\)[^()\s]*)*))(?:\s+\"[^\"\n]*\")?\)"
)
_ESCAPED = re.compile(r"\\([\\*_~`\[\]()#>+.!|{}-])")
_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(.*?)[ \t]*#*[ \t]*$")
_BULLET = re.compile(r"^([ \t]*)[*+-][ \t]+(?:\[([ xX])\][ \t]+)?")
_RULE = re.compile(r"^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$")
_TABLE_RULE = re.compile(r"^[ \t]*\|?(?:[ \t]*:?-{2,}:?[ \t]*\|)+(?:[ \t]*:?-{2,}:?[ \t]*)?$")
_TABLE_ROW = re.compile(r"^[ \t]*\|(.+)\|[ \t]*$")
_BOTH = re.compile(r"(?<![\w*])\*\*\*(?=\S)(.+?)(?<=\S)\*\*\*(?![\w*])")
_STRONG = re.compile(r"\*\*(?=\S)(.+?)(?<=\S)\*\*|(?<!\w)__(?=\S)(.+?)(?<=\S)__(?!\w)")
_EMPHASIS = re.compile(r"(?<![\w*])\*(?=[^\s*])([^*\n]+?)(?<=[^\s*])\*(?![\w*])")
_STRUCK = re.compile(r"~~(?=\S)(.+?)(?<=\S)~~")
# Placeholders for protected spans and for bold while the rest is converted. They are private-use characters,
# and `to_whatsapp` removes them from its input.
_OPEN, _CLOSE, _BOLD = "\ue000", "\ue001", "\ue002"
_STOOD_IN = re.compile(rf"{_OPEN}(\d+){_CLOSE}")


def to_whatsapp(text: str) -> str:
    """Convert Markdown to WhatsApp's formatting; text in WhatsApp's formatting stays unchanged."""
    text = re.sub(f"[{_OPEN}{_CLOSE}{_BOLD}]", "", text)
    parts: list[str] = []
    end = 0
    # `*word*` is italic in Markdown and bold in WhatsApp. It is read as Markdown only if the text also has
    # bold in Markdown's form (`**word**`).
    is_markdown = _STRONG.search(_KEPT.sub("", text)) is not None
    for fence in _FENCE.finditer(text):
        parts += [_prose(text[end : fence.start()], is_markdown=is_markdown), _code_block(fence[1])]
        end = fence.end()
    parts.append(_prose(text[end:], is_markdown=is_markdown))
    return "".join(parts).strip("\n")


def _code_block(code: str) -> str:
    return f"```\n{code.rstrip()}\n```"


def _prose(text: str, *, is_markdown: bool) -> str:
    protected: list[str] = []

    def keep(shown: str) -> str:
        protected.append(shown)
        return f"{_OPEN}{len(protected) - 1}{_CLOSE}"

    text = _LINK.sub(lambda found: _link(found, keep), _hidden(text, keep))
    text = _ESCAPED.sub(lambda found: keep(found[1]), text)
    lines = [_line(line) for line in text.split("\n") if not _TABLE_RULE.match(line)]
    text = _marks("\n".join(lines), is_markdown=is_markdown)
    while _STOOD_IN.search(text):
        text = _STOOD_IN.sub(lambda found: protected[int(found[1])], text)
    return text


def _hidden(text: str, keep: object) -> str:
    assert callable(keep)
    spans = _LINK.finditer(text)
    links = [span.span() for span in spans]

    def hide(found: re.Match[str]) -> str:
        is_of_link = found["url"] and any(start <= found.start() < end for start, end in links)
        return found[0] if is_of_link else str(keep(found[0]))

    return _KEPT.sub(hide, text)


def _link(found: re.Match[str], keep: object) -> str:
    assert callable(keep)
    label, address = found[1].strip(), (found[2] or found[3] or "").removeprefix("mailto:")
    if not address or label == address:
        return label or ""
    return f"{label} ({keep(address)})" if label else str(keep(address))


def _line(line: str) -> str:
    if _RULE.match(line):
        return "———"
    heading = _HEADING.match(line)
    if heading is not None:
        bare = _STRONG.sub(lambda found: found[1] or found[2], heading[1])
        return f"{_BOLD}{bare}{_BOLD}" if bare else ""
    row = _TABLE_ROW.match(line)
    if row is not None:
        cells = [cell.strip() for cell in row[1].split("|")]
        shown = " | ".join(cells)
        return shown if len(shown) <= len(line) else "|".join(cells)
    return _BULLET.sub(_bullet, line)


def _bullet(found: re.Match[str]) -> str:
    box = {None: "", " ": "☐ "}.get(found[2], "☑ ")
    return f"{found[1]}- {box}"


def _marks(text: str, *, is_markdown: bool) -> str:
    text = _BOTH.sub(rf"{_BOLD}_\1_{_BOLD}", text)
    text = _STRONG.sub(lambda found: f"{_BOLD}{found[1] or found[2]}{_BOLD}", text)
    if is_markdown:
        text = _EMPHASIS.sub(r"_\1_", text)
    return _STRUCK.sub(r"~\1~", text).replace(_BOLD, "*")


def with_prefix(text: str, prefix: str, *, is_caption: bool) -> str:
    """Return the text with `prefix`, the assistant's name, before it; an empty caption stays empty."""
    if not prefix or (is_caption and not text):
        return text
    gap = "\n" if text.startswith(OWN_LINE) else " "
    return f"{prefix.rstrip()}{gap}{text}"


def with_mention(text: str, name: str, user: str) -> str:
    """Return the text with `@` and the person's number, which WhatsApp shows as a mention.

    It replaces the first occurrence of the name, or is put before the text if the name does not occur.
    """
    named = rf"(?<!\w)@?{re.escape(name)}(?![A-Za-z0-9_])"
    mentioned = re.sub(named, f"@{user}", text, count=1) if name else text
    return mentioned if mentioned != text else f"@{user} {text}"
