"""Write what a group has as Markdown that a person can read, whatever its members wrote. Pure.

Texts of chats are texts here as well: no mark of Markdown or HTML in them is obeyed, and what cannot be
seen is written out.
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
_MARKS = re.compile(r"[\\`*\[\]|~$]|(?<!\w)_|_(?!\w)")
_AT_START = re.compile(r"^(\s*(?:\d+(?=[.)]))?)([#+=.)-])", re.MULTILINE)
"""Marks that begin a heading, a list or a rule where a line begins with them."""
_TAGS = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_FILES = re.compile(r"attachments/([\w.,()+-]+)")
NOWHERE_MS = 253_402_214_400_000
"""The last day of the year 9999 in UTC: clocks of Python end there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedMessage:
    """A message as a reader sees it."""

    at_ms: int
    sender: str
    text: str
    chat: str = ""
    """The name of the chat, for a group that has several."""
    quoted_sender: str = ""
    quoted: str = ""
    file_words: str = ""
    """The words in its text that name its file."""
    sent_file: str = ""
    """The name of the file that Andy sent with it."""


def escaped(text: str) -> str:
    """Return a text that Markdown shows as it is. Line ends stay."""
    shown = _MARKS.sub(lambda found: f"\\{found[0]}", visible(text.replace("\r\n", "\n")))
    shown = _AT_START.sub(r"\1\\\2", shown)
    return re.sub("[&<>]", lambda found: _TAGS[found[0]], shown)


def line(text: str) -> str:
    """Return a text in one line that Markdown shows as it is."""
    return escaped(" ".join(text.split()))


def paragraphs(text: str) -> str:
    """Return a text with the line ends that it has, also where it is shown as HTML."""
    lines = [one.strip() for one in escaped(text).strip().split("\n")]
    return "".join(
        one + ("\\\n" if one and following else "\n")
        for one, following in zip(lines, [*lines[1:], ""], strict=True)
    )


def local(at_ms: int, zone: ZoneInfo) -> datetime:
    """Return a time by the clocks of a zone; one that no clock shows is the nearest that one does."""
    return datetime.fromtimestamp(min(max(at_ms, 0), NOWHERE_MS) / 1000, zone)


def month_of(at: datetime) -> str:
    """Return the month of a time: `2026-11`."""
    return f"{at:%Y-%m}"


def month_heading(name: str, at: datetime) -> str:
    """Return the beginning of the file of a month."""
    return f"# {line(name)}, {month_of(at)}\n"


def day_heading(at: datetime) -> str:
    """Return the heading of a day."""
    return f"\n## {at:%A, %Y-%m-%d}\n"


def message(one: ExportedMessage, at: datetime, files: Mapping[str, str]) -> str:
    """Return a message with who wrote it and when. `files` maps paths of a group to those of the export."""
    where = f" in {line(one.chat)}" if one.chat else ""
    parts = [f"\n**{line(one.sender)}**{where}, {at:%H:%M}\n"]
    if one.quoted:
        parts.append("> " + line(f"{one.quoted_sender}: {one.quoted}"[:MAX_QUOTE_CHARS]) + "\n")
    parts.append(paragraphs(one.text))
    linked = [path for name in _FILES.findall(one.file_words) if (path := files.get(name.rstrip(",")))]
    parts += [link(f"../{path}", path.rpartition("/")[2]) + "\n" for path in linked]
    if one.sent_file:
        parts.append(f"File: {line(one.sent_file)}\n")
    return "\n".join(part for part in parts if part.strip())


def link(path: str, name: str) -> str:
    """Return a link to a file of the export."""
    return f"[{line(name)}]({quote(path)})"


def entries(title: str, rows: Sequence[Mapping[str, Any]], *, heading: str, nothing: str) -> str:
    """Return rows as a list for people: the text of the field `heading`, then the others with their names."""
    parts = [f"# {line(title)}\n"]
    for row in rows:
        parts.append(f"\n## {line(str(row[heading])[:MAX_QUOTE_CHARS])}\n\n")
        parts += [
            f"- {line(name.replace('_', ' '))}: {line(str(value))}\n"
            for name, value in row.items()
            if name != heading and value not in (None, "", [], {}, ())
        ]
    return "".join(parts) if rows else f"{parts[0]}\n{nothing}\n"
