"""Fetch the files of WhatsApp messages through the bridge.

`channels.attachments` stores them in the group.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from pathlib import Path

import structlog

from orchestrator.channels import attachments
from orchestrator.channels.attachments import FETCH_PAUSE_SECONDS, MAX_FETCHES, FetchedFile, fetch_seconds
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.whatsapp.bridge_process import BridgeProcess
from orchestrator.channels.whatsapp.protocol import BridgeMessage, DownloadRequest, MediaReference
from orchestrator.domain.errors import ChannelDown, ChannelRefused
from orchestrator.domain.values import ChatJid, Group, Quote
from orchestrator.store.conversation import messages
from orchestrator.store.database import Tx

log = structlog.get_logger(__name__)


class MediaDownloader:
    """Downloads the files of messages, a few at a time, and returns the text that represents each."""

    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._download_slots = asyncio.Semaphore(MAX_FETCHES)

    async def download_all(
        self, message: BridgeMessage, files: Sequence[MediaReference], group: Group, bridge: BridgeProcess
    ) -> dict[str, FetchedFile]:
        """Download the files of a message into the folder of its group, one after another.

        Return the text for each file by its `ref`, WhatsApp's reference to it; the text for a file that could
        not be fetched says so. `bridge` is the process that downloads.
        """
        fetched: dict[str, FetchedFile] = {}
        for media in files:
            fetched[media.ref] = await self._download_into_folder(message, media, group, bridge)
        return fetched

    def wait_seconds(self, files: Sequence[MediaReference]) -> float:
        """Return for how many seconds the agent's answer waits for the files of a message."""
        # One more pause between two attempts than the limits of the files include.
        return FETCH_PAUSE_SECONDS + sum(attachments.wait_seconds(self._context, file) for file in files)

    async def _download_into_folder(
        self, message: BridgeMessage, media: MediaReference, group: Group, bridge: BridgeProcess
    ) -> FetchedFile:
        """Download a file of a message into the group's folder, and return the text for it.

        The text says where the file is stored, or that it could not be fetched.
        """
        # The bridge writes to a folder of the host. It must not write to the group's folder, which a
        # container can change meanwhile.
        download_path = self._context.home / "data" / "whatsapp" / f"in-{secrets.token_hex(8)}"
        try:
            await asyncio.to_thread(
                lambda: download_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            )
            # The slot covers only the download and not the processing after it, because a voice note may wait
            # long for its transcription.
            async with self._download_slots:
                await _download(bridge, media, download_path, limit_bytes=self._context.attachment_bytes)
            return await attachments.store(
                self._context,
                media,
                group,
                download_path,
                chat=ChatJid(message.chat),
                sent_ms=message.sent_ms,
            )
        except (ChannelDown, ChannelRefused, TimeoutError, OSError) as error:
            log.warning("whatsapp.file_not_fetched", message=message.id, reason=str(error))
            return attachments.fetch_failed(media)
        finally:
            await asyncio.to_thread(download_path.unlink, missing_ok=True)


async def files_to_fetch(
    tx: Tx, message: BridgeMessage, quote: Quote | None, *, limit_bytes: int
) -> list[MediaReference]:
    """Return the files that are to be fetched for a message: its own, and that of the message that it quotes.

    The quoted message's file is left out if that message is stored, since it was fetched then. Files larger
    than `limit_bytes` are left out. `quote` is `message.quote` with the id under which the host stores it.
    """
    files = [message.media]
    if quote is not None and message.quote is not None:
        is_known = await messages.find(tx, ChatJid(message.chat), quote.message_id) is not None
        files.append(None if is_known else message.quote.media)
    return [media for media in files if media is not None and media.size <= limit_bytes]


async def _download(bridge: BridgeProcess, media: MediaReference, target: Path, *, limit_bytes: int) -> None:
    """Download a file to the path `target` through the bridge process; after a failure try again.

    `media` is the reference to the file, and `limit_bytes` the size of the largest file that is fetched.

    Raises:
        ChannelRefused: the file can never be fetched.
        ChannelDown: the bridge ended.
        TimeoutError: all attempts together took longer than `fetch_seconds` allows.
    """
    seconds = fetch_seconds(media)
    async with asyncio.timeout(seconds):
        while True:
            try:
                await bridge.request(
                    lambda number: DownloadRequest(
                        id=number, ref=media.ref, to=str(target), limit=limit_bytes, seconds=seconds
                    )
                )
            except ChannelDown:
                if not bridge.is_alive:
                    raise
                await asyncio.to_thread(target.unlink, missing_ok=True)
                await asyncio.sleep(FETCH_PAUSE_SECONDS)
            else:
                return
