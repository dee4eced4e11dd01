"""Write a group's data as Markdown that a person can read, whatever its members wrote. Pure.

Texts of chats are shown literally: Markdown and HTML in them is escaped, and invisible characters are written
out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

from orchestrator.base.terminal_escaping import visible

MAX_QUOTE_CHARS = 300
# Characters that Markdown gives a meaning anywhere in a line; an underscore only at an end of a word.
_MARKDOWN_MARKS = re.compile(r"[\\`*\[\]|~$]|(?<!\w)_|_(?!\w)")
_MARKS_AT_LINE_START = re.compile(r"^([^\S\n]*+(?:\d+(?=[.)]))?)([#+=.)-])", re.MULTILINE)
"""Marks at the start of a line, where they would begin a heading, a list or a rule."""
# Of HTML, which Markdown may contain.
_HTML_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_ATTACHMENTS = re.compile(r"attachments/([\w.,()+-]+)")
LATEST_MS = 253_402_214_400_000
"""The last day of the year 9999 in UTC, in epoch ms: Python has no later times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedMessage:
    """A message with the fields that the export shows."""

    at_ms: int
    sender: str
    text: str
    chat: str = ""
    """The name of the chat, for a group that has several."""
    quoted_sender: str = ""
    quoted: str = ""
    file_words: str = ""
    """The part of the text that names its file."""
    sent_file: str = ""
    """The name of the file that Andy sent with it."""


def escaped(text: str) -> str:
    """Return a text in which marks of Markdown and HTML are escaped, so that readers see them.

    Line breaks stay.
    """
    shown = _MARKDOWN_MARKS.sub(lambda match: f"\\{match[0]}", visible(text.replace("\r\n", "\n")))
    # `1. milk` becomes `1\. milk`, which is no list.
    shown = _MARKS_AT_LINE_START.sub(r"\1\\\2", shown)
    return re.sub("[&<>]", lambda match: _HTML_ESCAPES[match[0]], shown)


def line(text: str) -> str:
    """Return a text on one line in which marks of Markdown and HTML are escaped, so that readers see them."""
    return escaped(" ".join(text.split()))


def paragraphs(text: str) -> str:
    """Return an escaped text whose line breaks remain when the Markdown is rendered as HTML."""
    lines = [shown.strip() for shown in escaped(text).strip().split("\n")]
    # A backslash at the end of a line breaks it there; an empty line does so by itself.
    return "".join(
        shown + ("\\\n" if shown and following else "\n")
        for shown, following in zip(lines, [*lines[1:], ""], strict=True)
    )


def local(at_ms: int, zone: ZoneInfo) -> datetime:
    """Return a time in epoch ms as a time in `zone`.

    A time before 1970 becomes the beginning of 1970, and one after `LATEST_MS` becomes `LATEST_MS`.
    """
    return datetime.fromtimestamp(min(max(at_ms, 0), LATEST_MS) / 1000, zone)


def month_of(at: datetime) -> str:
    """Return the month of a time: `2026-11`."""
    return f"{at:%Y-%m}"


def month_heading(name: str, at: datetime) -> str:
    """Return the heading of a month's page, with the name of the group."""
    return f"# {line(name)}, {month_of(at)}\n"


def day_heading(at: datetime) -> str:
    """Return the heading of a day in a month's page."""
    return f"\n## {at:%A, %Y-%m-%d}\n"


def message(exported: ExportedMessage, at: datetime, files: Mapping[str, str]) -> str:
    """Return a message as Markdown, with its sender, its time, its quote and links to its files.

    `at` is the message's time in the zone that is shown. `files` maps the names of attachments to their paths
    in the export; those that it lacks are not linked. The quote is cut to `MAX_QUOTE_CHARS`.
    """
    where = f" in {line(exported.chat)}" if exported.chat else ""
    parts = [f"\n**{line(exported.sender)}**{where}, {at:%H:%M}\n"]
    if exported.quoted:
        parts.append("> " + line(f"{exported.quoted_sender}: {exported.quoted}"[:MAX_QUOTE_CHARS]) + "\n")
    parts.append(paragraphs(exported.text))
    # `file_words` names files as `attachments/a.pdf`. A comma after a name is found as a part of it.
    linked = [
        path for name in _ATTACHMENTS.findall(exported.file_words) if (path := files.get(name.rstrip(",")))
    ]
    parts += [link(f"../{path}", path.rpartition("/")[2]) + "\n" for path in linked]
    if exported.sent_file:
        parts.append(f"File: {line(exported.sent_file)}\n")
    return "\n".join(part for part in parts if part.strip())


def link(path: str, name: str) -> str:
    """Return a link in Markdown to the file at `path`, relative to the page; `name` is the text shown."""
    return f"[{line(name)}]({quote(path)})"


def entries(title: str, rows: Sequence[Mapping[str, Any]], *, heading: str, nothing: str) -> str:
    """Return a page of Markdown with a section for each row; `title` is the heading of the page.

    The row's field `heading` becomes the title of its section, and its other fields follow with their names;
    empty ones are skipped. Without rows the page has the sentence `nothing`.
    """
    parts = [f"# {line(title)}\n"]
    for row in rows:
        parts.append(f"\n## {line(str(row[heading])[:MAX_QUOTE_CHARS])}\n\n")
        parts += [
            f"- {line(name.replace('_', ' '))}: {line(str(value))}\n"
            for name, value in row.items()
            if name != heading and value not in (None, "", [], {}, ())
        ]
    return "".join(parts) if rows else f"{parts[0]}\n{nothing}\n"
