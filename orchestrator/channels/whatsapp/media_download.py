"""Fetch the files that messages carry, and put them into the folder of their group.

The text of a message names its file in square brackets: `[image attachments/20261122-0930-image.jpg]`. What a
voice note says stands on the line before: `🎤 please buy milk`.
"""

from __future__ import annotations

import asyncio
import mimetypes
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from orchestrator.channels.context import ChannelContext
from orchestrator.channels.voice.transcriber import SpokenText, language_of
from orchestrator.channels.whatsapp.bridge_process import BridgeProcess
from orchestrator.channels.whatsapp.protocol import BridgeMessage, DownloadRequest, MediaReference
from orchestrator.domain.errors import ChannelDown, ChannelRefused
from orchestrator.domain.values import ChatJid, Group, Quote
from orchestrator.groups import attachments
from orchestrator.store import messages
from orchestrator.store.database import Tx

log = structlog.get_logger(__name__)

FETCH_SECONDS = 30.0
"""How long a file may take, and a second more for each MB of it."""
FETCH_PAUSE_SECONDS = 5.0
"""How long to wait between two tries to fetch one file."""
MAX_FETCHES = 4
"""At most so many files are fetched at once; the bridge itself can hold a few more."""
VOICE_NOTE = "voice note"
LANGUAGE_MESSAGES = 50
"""The newest messages of a chat tell which language its voice notes are in."""
TO_COME = "not fetched yet"
ENDINGS = {"audio/ogg": ".ogg", "audio/mp4": ".m4a", "image/jpeg": ".jpg", "image/webp": ".webp"}
"""File name endings that the system's own table does not know, or knows differently on each system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedFile:
    """The words that stand for a file in its message, and what it says if it is a voice note."""

    words: str
    spoken: str = ""


class MediaDownloader:
    """Downloads the files of messages, a few at a time, and returns the words that stand for them."""

    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._slots = asyncio.Semaphore(MAX_FETCHES)

    async def download_all(
        self, message: BridgeMessage, files: Sequence[MediaReference], group: Group, bridge: BridgeProcess
    ) -> dict[str, FetchedFile]:
        """Download `files` one after another; return each by its `ref`, failed ones too."""
        fetched: dict[str, FetchedFile] = {}
        for media in files:
            async with self._slots:
                fetched[media.ref] = await self._download_into_folder(message, media, group, bridge)
        return fetched

    def wait_seconds(self, files: Sequence[MediaReference]) -> float:
        """Return for how many seconds a turn waits for the files of its message."""
        voice = self._context.voice
        listening = sum(
            voice.seconds_for(media.seconds) for media in files if voice and media.kind == VOICE_NOTE
        )
        return FETCH_PAUSE_SECONDS + sum(fetch_seconds(media) for media in files) + listening

    async def _download_into_folder(
        self, message: BridgeMessage, media: MediaReference, group: Group, bridge: BridgeProcess
    ) -> FetchedFile:
        # The bridge writes to a folder of the host's own: the group's folder is in a container's hands, and
        # `attachments.keep` is what follows no link that is planted there.
        body = self._context.home / "data" / "whatsapp" / f"in-{secrets.token_hex(8)}"
        try:
            await asyncio.to_thread(lambda: body.parent.mkdir(mode=0o700, parents=True, exist_ok=True))
            await _download(bridge, media, body, limit=self._context.attachment_bytes)
            transcript = await self._transcribe(media, group, body)
            path = await asyncio.to_thread(
                attachments.keep, self._context.home, group.folder, file_name(message, media), body
            )
        except (ChannelDown, ChannelRefused, TimeoutError, OSError) as error:
            log.warning("whatsapp.file_not_fetched", message=message.id, reason=str(error))
            return FetchedFile(words=f"[{media.kind}: it could not be fetched]")
        finally:
            await asyncio.to_thread(body.unlink, missing_ok=True)
        return FetchedFile(words=words_of(media, path, transcript), spoken=transcript.text)

    async def _transcribe(self, media: MediaReference, group: Group, body: Path) -> SpokenText:
        if self._context.voice is None or media.kind != VOICE_NOTE:
            return SpokenText()
        async with self._context.database.reading() as tx:
            newest = await messages.newest_texts(tx, group.jid, limit=LANGUAGE_MESSAGES)
        language = language_of(newest)
        return await self._context.voice.transcribe(body, seconds=media.seconds, language=language)


async def files_to_fetch(
    tx: Tx, message: BridgeMessage, quote: Quote | None, *, limit: int
) -> list[MediaReference]:
    """Return the file of a message, and that of a message it quotes which the store does not have.

    Files of more than `limit` bytes are left out.
    """
    files = [message.media]
    if quote is not None and message.quote is not None:
        is_known = await messages.find(tx, ChatJid(message.chat), quote.message_id) is not None
        files.append(None if is_known else message.quote.media)
    return [media for media in files if media is not None and media.size <= limit]


def fetch_seconds(media: MediaReference) -> float:
    """Return how many seconds a file may take, all tries together. Pure."""
    return FETCH_SECONDS + media.size / 1_000_000


async def _download(bridge: BridgeProcess, media: MediaReference, body: Path, *, limit: int) -> None:
    """Try until the file is at `body` or is refused. Raises `TimeoutError` when its time is over."""
    seconds = fetch_seconds(media)
    async with asyncio.timeout(seconds):
        while True:
            try:
                await bridge.request(
                    lambda number: DownloadRequest(
                        id=number, ref=media.ref, to=str(body), limit=limit, seconds=seconds
                    )
                )
            except ChannelDown:
                if not bridge.is_alive:
                    raise
                await asyncio.to_thread(body.unlink, missing_ok=True)
                await asyncio.sleep(FETCH_PAUSE_SECONDS)
            else:
                return


def placeholder_of(media: MediaReference | None, *, is_to_come: bool, limit: int) -> str | None:
    """Return the words for a file that is not there: not yet, or because it never will be. Pure."""
    if media is None:
        return None
    if media.size > limit:
        return f"[{media.kind}, {_size(media.size)}: too large to fetch, at most {_size(limit)}]"
    return f"[{media.kind}: {TO_COME}]" if is_to_come else f"[{media.kind}]"


def words_of(media: MediaReference, path: str, transcript: SpokenText | None = None) -> str:
    """Return the words for a file at `path`: `[voice note attachments/a.ogg, 12 s]`. Pure."""
    seconds = f", {media.seconds} s" if media.seconds else ""
    failure = f": {transcript.failure}" if transcript and transcript.failure else ""
    words = f"[{media.kind} {path}{seconds}{failure}]"
    return f"🎤 {transcript.text}\n{words}" if transcript and transcript.text else words


def file_name(message: BridgeMessage, media: MediaReference) -> str:
    """Return the name to keep a file under: when it was sent, then its own name or its kind. Pure."""
    # The phone chooses this time: a date that no calendar has must not keep its file away.
    at = datetime.fromtimestamp(min(max(message.sent_ms, 0), 4_000_000_000_000) / 1000, UTC)
    given = attachments.safe_name(media.name)
    if given:
        return f"{at:%Y%m%d-%H%M}-{given}"
    mime = media.mime.partition(";")[0].strip().lower()
    ending = ENDINGS.get(mime) or mimetypes.guess_extension(mime) or ""
    return f"{at:%Y%m%d-%H%M}-{media.kind.replace(' ', '_')}{ending}"


def _size(count: int) -> str:
    return f"{count / 1024 / 1024:.1f} MB"
