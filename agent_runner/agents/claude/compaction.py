"""Store a readable copy of a conversation before Claude's CLI compacts it, which means: summarises it.

The CLI itself writes the summary, when the window is nearly full or when `sdk_client.compact` asks for it.
The hooks in `restore` inform the host of it and put the plan and decisions before the summary.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

MAX_MESSAGE_CHARS = 2000
"""Most characters of one message in the copy; a longer one is cut."""
MAX_SLUG_CHARS = 50
"""Most characters of the part of the file name that is made of the summary."""
MAX_SUMMARY_CHARS = 200
"""Most characters of the summary, which is the title of the copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptMessage:
    """One message of a transcript."""

    is_assistant: bool
    text: str


def archive(transcript: Path, conversations: Path, *, assistant: str, now: datetime) -> Path | None:
    """Write a readable copy of a transcript into the folder `conversations`, and return its path.

    The file is `{YYYY-MM-DD}-{slug}.md`; an existing one is never overwritten. `assistant` is the name of the
    assistant in it, `now` the time for its name. None if the transcript has no message.

    Raises:
        OSError: the transcript cannot be read, or the copy cannot be written.
    """
    messages = list(read_transcript(transcript))
    if not messages:
        return None
    summary = _summary(transcript)
    slug = _slug(summary) or f"conversation-{now:%H%M}"
    conversations.mkdir(parents=True, exist_ok=True)
    text = render(messages, title=summary or "Conversation", assistant=assistant, now=now)
    return _write_new(conversations, f"{now:%Y-%m-%d}-{slug}", text)


def read_transcript(transcript: Path) -> Iterator[TranscriptMessage]:
    """Yield the texts of people and assistant in a transcript of the CLI, in order.

    A transcript has a JSON object on each line; other lines are skipped, and messages of another form.
    """
    with transcript.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            entry = _entry(line)
            # Messages marked as `isMeta` are the CLI's own, which nobody wrote.
            if entry.get("type") in ("user", "assistant") and not entry.get("isMeta"):
                message = entry.get("message")
                if isinstance(message, dict) and (text := _text(message.get("content"))):
                    yield TranscriptMessage(is_assistant=entry["type"] == "assistant", text=text)


def render(messages: list[TranscriptMessage], *, title: str, assistant: str, now: datetime) -> str:
    """Return messages as Markdown under a title, each cut at `MAX_MESSAGE_CHARS`.

    `assistant` is the name for the assistant's messages; `now` is the time of archiving.
    """
    parts = [f"# {title}", f"Archived: {now:%Y-%m-%d %H:%M %Z}".rstrip(), "---"]
    for message in messages:
        text = message.text[:MAX_MESSAGE_CHARS] + ("…" if len(message.text) > MAX_MESSAGE_CHARS else "")
        parts.append(f"**{assistant if message.is_assistant else 'User'}**: {text}")
    return "\n\n".join(parts) + "\n"


def _entry(line: str) -> dict[str, Any]:
    """Return the JSON object in a line of a transcript; an empty one for any other line."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}


def _text(content: Any) -> str:
    """Return the text in the content of a message, which is a text or a list of blocks; empty if none."""
    if isinstance(content, str):
        return content.strip()
    blocks = content if isinstance(content, list) else []
    texts = [
        str(block.get("text", ""))
        for block in blocks
        if isinstance(block, dict) and block.get("type") == "text"
    ]
    return "\n".join(texts).strip()


def _summary(transcript: Path) -> str:
    """Return the summary of a transcript's session from the CLI's index of sessions; empty if it has none."""
    try:
        index = json.loads((transcript.parent / "sessions-index.json").read_text(encoding="utf-8"))
        entries = index["entries"] if isinstance(index, dict) else index
        summaries = [entry["summary"] for entry in entries if entry.get("sessionId") == transcript.stem]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ""
    return " ".join(str(summaries[0]).split())[:MAX_SUMMARY_CHARS] if summaries else ""


def _slug(summary: str) -> str:
    """Return a summary as a part of a file name: ASCII letters and digits, joined by `-`; it may be empty."""
    return re.sub(r"[^a-z0-9]+", "-", summary.lower()).strip("-")[:MAX_SLUG_CHARS].strip("-")


def _write_new(directory: Path, name: str, text: str) -> Path:
    """Write a new file `{name}.md` and return its path; the name gets a number if it exists already."""
    number = 1
    while True:
        path = directory / (f"{name}.md" if number == 1 else f"{name}-{number}.md")
        try:
            with path.open("x", encoding="utf-8", errors="replace") as file:
                file.write(text)
        except FileExistsError:
            number += 1
        else:
            return path
