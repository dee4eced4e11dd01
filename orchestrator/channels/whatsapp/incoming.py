"""From a bridge's message to the host's: own ones left out, files fetched, words found for them.

A message with a file is handed in at once; its file is fetched beside it, and completes it.
"""

from __future__ import annotations

import asyncio
import mimetypes
import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import structlog

from orchestrator.channels.context import ChannelContext
from orchestrator.channels.whatsapp.bridge_process import BridgeProcess
from orchestrator.channels.whatsapp.neonize_database import NeonizeDatabase
from orchestrator.channels.whatsapp.protocol import (
    BridgeMessage,
    DownloadRequest,
    MediaReference,
    QuotedMessage,
    Read,
)
from orchestrator.domain.errors import ChannelDown, ChannelRefused
from orchestrator.domain.values import ChatJid, Group, Inbound, MessageId, Quote
from orchestrator.groups import attachments
from orchestrator.store import groups, messages
from orchestrator.store.database import Tx

log = structlog.get_logger(__name__)

FETCH_SECONDS = 30.0
"""How long a file may take, and a second more for each MB of it."""
FETCH_PAUSE_SECONDS = 5.0
MAX_FETCHES = 4
"""So many files are fetched at once."""
TO_COME = "not fetched yet"
ENDINGS = {"audio/ogg": ".ogg", "audio/mp4": ".m4a", "image/jpeg": ".jpg", "image/webp": ".webp"}
"""What the system's own table does not know, or knows differently on each system."""


class Incoming:
    """Makes an `Inbound` of what was heard; None where the host need not know."""

    def __init__(self, context: ChannelContext, ledger: NeonizeDatabase) -> None:
        self._context = context
        self._ledger = ledger
        self._fetches = asyncio.Semaphore(MAX_FETCHES)

    async def read(self, heard: BridgeMessage) -> Inbound | None:
        """Read a message without its file; `file_until_ms` tells whether there is one to fetch.

        Raises `ChannelDown` when the login's store cannot be read now.
        """
        if heard.is_from_me and await self._mark(heard.id) is not None:
            return None
        quote = await self._quote(heard.quote) if heard.quote is not None else None
        async with self._context.database.reading() as tx:
            group = await groups.by_jid(tx, ChatJid(heard.chat))
            known = await messages.find(tx, ChatJid(heard.chat), MessageId(heard.id))
            files = await _files_to_fetch(tx, heard, quote, limit=self._context.attachment_bytes)
        if group is None and heard.deletes:
            return None
        if known is not None:
            file_until_ms = known.file_until_ms  # no longer than was said before
        else:
            file_until_ms = self._file_until_ms(files) if group is not None else None
        return Inbound(
            chat_jid=ChatJid(heard.chat),
            id=MessageId(heard.id),
            sender=heard.sender,
            sender_name=heard.sender_name,
            text=heard.text,
            sent_ms=heard.sent_ms,
            is_from_me=heard.is_from_me,
            # A chat between two is called as the other one is.
            chat_name=None if heard.is_group or heard.is_from_me else heard.sender_name,
            channel="whatsapp",
            is_group=heard.is_group,
            quote=quote,
            is_call=heard.calls_me or self._answers_assistant(heard.quote),
            edits=MessageId(heard.edits) if heard.edits else None,
            deletes=MessageId(heard.deletes) if heard.deletes else None,
            ignored=heard.ignored,
            reaction=heard.reaction,
            is_unreadable=heard.is_unreadable,
            file=self._words_before(heard.media, is_to_come=file_until_ms is not None),
            file_until_ms=file_until_ms,
        )

    def _file_until_ms(self, files: Sequence[MediaReference]) -> int | None:
        """How long the turn of a message waits for its files; None when there is nothing to fetch."""
        if not files:
            return None
        seconds = FETCH_PAUSE_SECONDS + sum(fetch_seconds(one) for one in files)
        return self._context.clock.now_ms() + int(seconds * 1000)

    def _words_before(self, media: MediaReference | None, *, is_to_come: bool) -> str | None:
        """What stands for a file before it is there, or because it never will be."""
        if media is None:
            return None
        limit = self._context.attachment_bytes
        if media.size > limit:
            return f"[{media.kind}, {_size(media.size)}: too large to fetch, at most {_size(limit)}]"
        return f"[{media.kind}: {TO_COME}]" if is_to_come else f"[{media.kind}]"

    async def read_receipt(self, heard: BridgeMessage) -> Read | None:
        """Who writes to an account of the assistant's own sees that it was read.

        On a shared one that is for its owner to do: on their own phone it would be unread no more.
        """
        if not self._context.has_own_number or heard.is_from_me or heard.is_unreadable:
            return None
        async with self._context.database.reading() as tx:
            if await groups.by_jid(tx, ChatJid(heard.chat)) is None:
                return None
        return Read(chat=heard.chat, message=heard.id, author=heard.sender)

    def _answers_assistant(self, quoted: QuotedMessage | None) -> bool:
        """On an account of his own all that it said is the assistant's, also what an earlier login sent."""
        return quoted is not None and quoted.is_mine and self._context.has_own_number

    async def _mark(self, message_id: str) -> str | None:
        return await asyncio.to_thread(self._ledger.mark_of, message_id)

    async def _quote(self, quoted: QuotedMessage) -> Quote:
        """A quote of Andy's own words under the id by which the host knows them."""
        mark = await self._mark(quoted.id) if quoted.is_mine else None
        author = self._context.assistant if mark is not None else quoted.author
        file = self._words_before(quoted.media, is_to_come=False)
        text = messages.with_file(quoted.text, file)
        return Quote(message_id=MessageId(mark or quoted.id), sender=author, text=text)

    # Files

    async def completed(
        self, heard: BridgeMessage, inbound: Inbound, bridge: BridgeProcess
    ) -> Inbound | None:
        """Fetch the files of a message that was handed in; None when the bridge ends before that."""
        async with self._context.database.reading() as tx:
            group = await groups.by_jid(tx, inbound.chat_jid)
            files = await _files_to_fetch(tx, heard, inbound.quote, limit=self._context.attachment_bytes)
        words: dict[str, str] = {}
        for media in files:
            if group is None:
                break
            async with self._fetches:
                words[media.ref] = await self._fetch(heard, media, group, bridge)
        file, quote = inbound.file, inbound.quote
        if heard.media is not None:
            file = words.get(heard.media.ref) or self._words_before(heard.media, is_to_come=False)
        if quote is not None and heard.quote is not None and heard.quote.media is not None:
            shown = words.get(heard.quote.media.ref)
            quote = replace(quote, text=messages.with_file(heard.quote.text, shown)) if shown else quote
        # The next life gets the message again, and tries again.
        return replace(inbound, file=file, quote=quote, file_until_ms=None) if bridge.is_alive else None

    async def _fetch(
        self, heard: BridgeMessage, media: MediaReference, group: Group, bridge: BridgeProcess
    ) -> str:
        """Put the file into the group's folder; gives the words that stand for it in the text."""
        body = self._context.home / "data" / "whatsapp" / f"in-{secrets.token_hex(8)}"
        try:
            await asyncio.to_thread(lambda: body.parent.mkdir(mode=0o700, parents=True, exist_ok=True))
            await _download(bridge, media, body, limit=self._context.attachment_bytes)
            path = await asyncio.to_thread(
                attachments.keep, self._context.home, group.folder, file_name(heard, media), body
            )
        except (ChannelDown, ChannelRefused, TimeoutError, OSError) as error:
            log.warning("whatsapp.file_not_fetched", message=heard.id, reason=str(error))
            return f"[{media.kind}: it could not be fetched]"
        finally:
            await asyncio.to_thread(body.unlink, missing_ok=True)
        return words_of(media, path)


async def _files_to_fetch(
    tx: Tx, heard: BridgeMessage, quote: Quote | None, *, limit: int
) -> list[MediaReference]:
    """The file of a message, and that of a message it quotes which the store does not have."""
    files = [heard.media]
    if quote is not None and heard.quote is not None:
        is_known = await messages.find(tx, ChatJid(heard.chat), quote.message_id) is not None
        files.append(None if is_known else heard.quote.media)
    return [one for one in files if one is not None and one.size <= limit]


def fetch_seconds(media: MediaReference) -> float:
    """How long a file may take in all. Pure."""
    return FETCH_SECONDS + media.size / 1_000_000


async def _download(bridge: BridgeProcess, media: MediaReference, body: Path, *, limit: int) -> None:
    """Try until it is there, is refused, or its time is over. Raises `TimeoutError` then."""
    seconds = fetch_seconds(media)
    async with asyncio.timeout(seconds):
        while True:
            try:
                await bridge.ask(
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


def words_of(media: MediaReference, path: str) -> str:
    """`[voice note attachments/20261122-0930-voice_note.ogg, 12 s]`. Pure."""
    seconds = f", {media.seconds} s" if media.seconds else ""
    return f"[{media.kind} {path}{seconds}]"


def file_name(heard: BridgeMessage, media: MediaReference) -> str:
    """When it was sent, what it was called or is, and an ending by its kind. Pure."""
    at = datetime.fromtimestamp(min(max(heard.sent_ms, 0), 4_000_000_000_000) / 1000, UTC)
    given = attachments.safe_name(media.name)
    if given:
        return f"{at:%Y%m%d-%H%M}-{given}"
    mime = media.mime.partition(";")[0].strip().lower()
    ending = ENDINGS.get(mime) or mimetypes.guess_extension(mime) or ""
    return f"{at:%Y%m%d-%H%M}-{media.kind.replace(' ', '_')}{ending}"


def _size(count: int) -> str:
    return f"{count / 1024 / 1024:.1f} MB"
