"""Store messages' files in the folder of their group, and name them in the message.

The text of a message names its file in square brackets: `[image attachments/20261122-0930-image.jpg]`. The
transcription of a voice note is on the line before: `🎤 please buy milk`.
"""

from __future__ import annotations

import asyncio
import mimetypes
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from orchestrator.channels.context import ChannelContext
from orchestrator.channels.voice.transcriber import SpokenText, language_of
from orchestrator.domain.values import ChatJid, Group
from orchestrator.groups import attachments
from orchestrator.store.conversation import messages

FETCH_SECONDS = 30.0
"""Seconds that fetching a file may take; each MB of the file adds one second."""
FETCH_PAUSE_SECONDS = 5.0
"""Seconds between two attempts to fetch the same file."""
MAX_FETCHES = 4
"""Most files that are fetched at once; files that came with their message do not wait for these."""
VOICE_NOTE = "voice note"
LANGUAGE_MESSAGES = 50
"""The number of newest messages of a chat from which the language of its voice notes is guessed."""
NOT_FETCHED_YET = "not fetched yet"
LATEST_SENT_MS = 4_000_000_000_000
"""The latest time in a file's name, in epoch milliseconds: in the year 2096."""
FILE_ENDINGS = {"audio/ogg": ".ogg", "audio/mp4": ".m4a", "image/jpeg": ".jpg", "image/webp": ".webp"}
"""File name endings that the system's own table does not know, or knows differently on each system."""


class FileFacts(Protocol):
    """The properties of a file that a messenger reports before the file is fetched."""

    @property
    def kind(self) -> str:
        """The kind in words: `image`, `document`, `voice note` …"""
        ...

    @property
    def mime(self) -> str:
        """The MIME type; empty when it is not known."""
        ...

    @property
    def name(self) -> str:
        """The file's own name; empty when it has none."""
        ...

    @property
    def size(self) -> int:
        """The file's size in bytes."""
        ...

    @property
    def seconds(self) -> int:
        """The playing time in seconds; 0 for files that are not played."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedFile:
    """The text that represents a file in its message, and the transcription of a voice note."""

    text: str
    spoken: str = ""


async def store(
    context: ChannelContext, file: FileFacts, group: Group, source: Path, *, chat: ChatJid, sent_ms: int
) -> FetchedFile:
    """Copy a fetched file into its group's folder, and transcribe it if it is a voice note.

    Return the text that represents the file in its message, and the transcription.

    Args:
        context: has the home, the database and the transcriber.
        file: the properties of the file.
        group: the group whose folder gets the copy.
        source: the fetched file, in a folder of the host's own. A container can change the group's folder:
            `groups.attachments.keep` follows no link that is planted there.
        chat: the chat of the message; its newest messages show in which language a voice note is spoken.
        sent_ms: when the message was sent, in epoch milliseconds; it becomes a part of the copy's name.

    Raises:
        OSError: the file cannot be copied; nothing is left half written.
    """
    transcript = await _transcribe(context, file, group, chat, source)
    path = await asyncio.to_thread(
        attachments.keep, context.home, group.folder, file_name(file, sent_ms=sent_ms), source
    )
    return FetchedFile(text=file_text(file, path, transcript), spoken=transcript.text)


async def _transcribe(
    context: ChannelContext, file: FileFacts, group: Group, chat: ChatJid, source: Path
) -> SpokenText:
    """Return the transcription of a voice note; an empty one for other files, or if transcribing is off.

    The language is guessed from the newest messages of `chat`. `source` is the file to transcribe.
    """
    if context.voice is None or file.kind != VOICE_NOTE:
        return SpokenText()
    newest = await context.database.read(lambda tx: messages.newest_texts(tx, chat, limit=LANGUAGE_MESSAGES))
    return await context.voice.transcribe(
        source, seconds=file.seconds, language=language_of(newest), group=group.folder
    )


def wait_seconds(context: ChannelContext, file: FileFacts) -> float:
    """Return for how many seconds at most the agent's answer waits for a file.

    That is the time for fetching the file and, for a voice note if transcribing is on, for transcribing it.
    Pure.
    """
    voice = context.voice
    transcribing_seconds = voice.seconds_for(file.seconds) if voice and file.kind == VOICE_NOTE else 0
    return fetch_seconds(file) + transcribing_seconds


def fetch_seconds(file: FileFacts) -> float:
    """Return how many seconds fetching a file may take, with all attempts: more for a larger file. Pure."""
    # One second more for each MB; `size` is in bytes.
    return FETCH_SECONDS + file.size / 1_000_000


def fetch_failed(file: FileFacts) -> FetchedFile:
    """Return the text for a file that could not be fetched. Pure."""
    return FetchedFile(text=f"[{file.kind}: it could not be fetched]")


def placeholder_of(file: FileFacts | None, *, will_be_fetched: bool, limit_bytes: int) -> str | None:
    """Return the text in a message in place of its file; None for a message without a file. Pure.

    The text says that the file is larger than `limit_bytes`, or is not fetched yet. If it will not be fetched
    for another reason, the text only names the file's kind.
    """
    if file is None:
        return None
    if file.size > limit_bytes:
        most = _megabytes(limit_bytes)
        return f"[{file.kind}, {_megabytes(file.size)}: too large to fetch, at most {most}]"
    return f"[{file.kind}: {NOT_FETCHED_YET}]" if will_be_fetched else f"[{file.kind}]"


def file_text(file: FileFacts, path: str, transcript: SpokenText | None = None) -> str:
    """Return the text for a file at `path`: `[voice note attachments/a.ogg, 12 s]`. Pure.

    `transcript` is the transcription of a voice note; None for other files. Its text is put on a line before;
    if transcribing failed, the reason is put inside the brackets.
    """
    seconds = f", {file.seconds} s" if file.seconds else ""
    failure = f": {transcript.failure}" if transcript and transcript.failure else ""
    text = f"[{file.kind} {path}{seconds}{failure}]"
    return f"🎤 {transcript.text}\n{text}" if transcript and transcript.text else text


def file_name(file: FileFacts, *, sent_ms: int) -> str:
    """Return the name to store a file under: when it was sent (UTC), then its own name or its kind. Pure."""
    # The sender's client sets this time, and may set one that `datetime` cannot represent. It is brought into
    # the possible range, so that the file is stored all the same.
    sent_at = datetime.fromtimestamp(min(max(sent_ms, 0), LATEST_SENT_MS) / 1000, UTC)
    own_name = attachments.safe_name(file.name)
    if own_name:
        return f"{sent_at:%Y%m%d-%H%M}-{own_name}"
    mime = file.mime.partition(";")[0].strip().lower()
    ending = FILE_ENDINGS.get(mime) or mimetypes.guess_extension(mime) or ""
    return f"{sent_at:%Y%m%d-%H%M}-{file.kind.replace(' ', '_')}{ending}"


def _megabytes(size: int) -> str:
    """Return a number of bytes in MB, with one decimal: `1.5 MB`."""
    return f"{size / 1024 / 1024:.1f} MB"
