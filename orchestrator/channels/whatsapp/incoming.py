"""From a bridge's message to the host's: own ones left out, files fetched, words found for them."""

from __future__ import annotations

import asyncio
import mimetypes
import secrets
from datetime import UTC, datetime
from pathlib import Path

import structlog

from orchestrator import attachments
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.whatsapp.ledger import Ledger
from orchestrator.channels.whatsapp.process import Bridge
from orchestrator.channels.whatsapp.protocol import Download, Heard, Media, Quoted
from orchestrator.errors import ChannelDown, ChannelRefused
from orchestrator.models import ChatJid, Group, Inbound, MessageId, Quote
from orchestrator.store import groups, messages

log = structlog.get_logger(__name__)

FETCH_SECONDS = 120.0
FETCH_TRIES = 3
FETCH_PAUSE_SECONDS = 5.0
ENDINGS = {"audio/ogg": ".ogg", "audio/mp4": ".m4a", "image/jpeg": ".jpg", "image/webp": ".webp"}
"""What the system's own table does not know, or knows differently on each system."""


class Incoming:
    """Makes an `Inbound` of what was heard; None where the host need not know."""

    def __init__(self, context: ChannelContext, ledger: Ledger) -> None:
        self._context = context
        self._ledger = ledger

    async def read(self, heard: Heard, bridge: Bridge) -> Inbound | None:
        """Raises `ChannelDown` when the login's store cannot be read now."""
        if heard.is_from_me and await self._mark(heard.id) is not None:
            return None
        async with self._context.database.reading() as tx:
            group = await groups.by_jid(tx, ChatJid(heard.chat))
            is_known = await messages.find(tx, ChatJid(heard.chat), MessageId(heard.id)) is not None
        if group is None and heard.deletes:
            return None
        text = heard.text
        if heard.media is not None:
            fetches = group is not None and not is_known
            told = await self._fetch(heard, heard.media, group, bridge) if fetches and group else None
            text = "\n".join(part for part in (text, told or f"[{heard.media.kind}]") if part)
        return Inbound(
            chat_jid=ChatJid(heard.chat),
            id=MessageId(heard.id),
            sender=heard.sender,
            sender_name=heard.sender_name,
            text=text,
            sent_ms=heard.sent_ms,
            is_from_me=heard.is_from_me,
            # A chat between two is called as the other one is.
            chat_name=None if heard.is_group or heard.is_from_me else heard.sender_name,
            channel="whatsapp",
            is_group=heard.is_group,
            quote=await self._quote(heard.quote) if heard.quote is not None else None,
            edits=MessageId(heard.edits) if heard.edits else None,
            deletes=MessageId(heard.deletes) if heard.deletes else None,
            ignored=heard.ignored,
        )

    async def _mark(self, message_id: str) -> str | None:
        return await asyncio.to_thread(self._ledger.mark_of, message_id)

    async def _quote(self, quoted: Quoted) -> Quote:
        """A quote of Andy's own words under the id by which the host knows them."""
        mark = await self._mark(quoted.id) if quoted.is_mine else None
        author = self._context.assistant if mark is not None else quoted.author
        return Quote(message_id=MessageId(mark or quoted.id), sender=author, text=quoted.text)

    # Files

    async def _fetch(self, heard: Heard, media: Media, group: Group, bridge: Bridge) -> str:
        """Put the file into the group's folder; gives the words that stand for it in the text."""
        limit = self._context.attachment_bytes
        if media.size > limit:
            return f"[{media.kind}, {_size(media.size)}: too large to fetch, at most {_size(limit)}]"
        body = self._context.home / "data" / "whatsapp" / f"in-{secrets.token_hex(8)}"
        try:
            await asyncio.to_thread(lambda: body.parent.mkdir(mode=0o700, parents=True, exist_ok=True))
            await _download(bridge, media, body, limit)
            path = await asyncio.to_thread(
                attachments.keep, self._context.home, group.folder, file_name(heard, media), body
            )
        except (ChannelDown, ChannelRefused, TimeoutError, OSError) as error:
            log.warning("whatsapp.file_not_fetched", message=heard.id, reason=str(error))
            return f"[{media.kind}: it could not be fetched]"
        finally:
            await asyncio.to_thread(body.unlink, missing_ok=True)
        return words_of(media, path)


async def _download(bridge: Bridge, media: Media, body: Path, limit: int) -> None:
    for last in (*([False] * (FETCH_TRIES - 1)), True):
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                await bridge.ask(lambda number: Download(id=number, ref=media.ref, to=str(body), limit=limit))
        except ChannelDown:
            if last:
                raise
            await asyncio.to_thread(body.unlink, missing_ok=True)
            await asyncio.sleep(FETCH_PAUSE_SECONDS)
        else:
            return


def words_of(media: Media, path: str) -> str:
    """`[voice note attachments/20261122-0930-voice_note.ogg, 12 s]`. Pure."""
    seconds = f", {media.seconds} s" if media.seconds else ""
    return f"[{media.kind} {path}{seconds}]"


def file_name(heard: Heard, media: Media) -> str:
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
