"""A home with the WhatsApp channel and its real bridge process, which talks to a test's phone.

A test module has to call `pytest.importorskip` on `tests.support.whatsapp_library` before it imports this.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from neonize.proto.waE2E import WAWebProtobufsE2E_pb2 as e2e

from orchestrator.base.clock import SystemClock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.voice.transcriber import VoiceTranscriber
from orchestrator.channels.whatsapp.channel import WhatsAppChannel
from orchestrator.channels.whatsapp.send_rate import SendRate
from orchestrator.domain.values import ChatJid, Inbound, MessageId
from orchestrator.inbound.intake import Intake
from orchestrator.store.database import Database
from tests.doubles import whatsapp_events as wa
from tests.support.until import until

FAMILY = ChatJid(f"{wa.FAMILY}@g.us")
FAST = SendRate(chat_gap_ms=0, burst=1_000, every_ms=0)


class WhatsAppHome:
    """A home with WhatsApp."""

    def __init__(
        self,
        home: Path,
        database: Database,
        *,
        has_own_number: bool,
        voice: VoiceTranscriber | None = None,
        **more: Any,
    ) -> None:
        clock = SystemClock()
        self.typed_in: list[ChatJid] = []
        """The chats in which somebody typed."""
        self.home, self.database = home, database
        self.bus, self.wakeups = EventBus(clock), Wakeups()
        self.intake = Intake(database, clock=clock, name="Andy", wakeups=self.wakeups, bus=self.bus)
        context = ChannelContext(
            home=home,
            database=database,
            clock=clock,
            bus=self.bus,
            assistant="Andy",
            has_own_number=has_own_number,
            attachment_bytes=1_000,
            wake_outbox=self.wakeups.outbox.set,
            on_typing=self.typed_in.append,
            voice=voice,
        )
        self.channel = WhatsAppChannel(context, **{"rate": FAST, "chance": lambda: 0.0, **more})

    @property
    def state(self) -> str:
        return str(self.channel.status()["state"])

    async def until_state(self, state: str) -> None:
        await until(lambda: self.state == state, f"{state}, not {self.channel.status()}")

    async def rows(self, sql: str, *values: object) -> list[dict[str, Any]]:
        async with self.database.reading() as tx:
            return [dict(row) for row in await tx.execute_fetchall(sql, values)]

    async def texts(self) -> list[str]:
        return [row["content"] for row in await self.rows("SELECT content FROM messages ORDER BY seq")]


@asynccontextmanager
async def living(harness: WhatsAppHome) -> AsyncIterator[WhatsAppHome]:
    async with asyncio.TaskGroup() as tasks:
        loop = tasks.create_task(harness.channel.run(harness.intake.receive))
        try:
            yield harness
        finally:
            loop.cancel()


def a_photo(caption: str = "", key: bytes = b"k") -> e2e.ImageMessage:
    return e2e.ImageMessage(
        mediaKey=key, directPath="/v", mimetype="image/jpeg", fileLength=7, caption=caption
    )


def a_whole(message_id: str, *, file: str) -> Inbound:
    """A message again, with its file."""
    return Inbound(
        chat_jid=FAMILY,
        id=MessageId(message_id),
        sender=f"{wa.JANE}@s.whatsapp.net",
        sender_name="Jane",
        text="the cat",
        sent_ms=1,
        file=file,
    )


async def has_messages(harness: WhatsAppHome, count: int) -> bool:
    return len(await harness.texts()) >= count


async def has_files(harness: WhatsAppHome, count: int) -> bool:
    rows = await harness.rows("SELECT file_until_ms FROM messages")
    return len(rows) >= count and all(row["file_until_ms"] is None for row in rows)


async def has_file(harness: WhatsAppHome, message_id: str) -> bool:
    return bool(
        await harness.rows("SELECT 1 FROM messages WHERE id = ? AND file_until_ms IS NULL", message_id)
    )


async def has_text(harness: WhatsAppHome, text: str) -> bool:
    return text in await harness.texts()


async def knows_chat(harness: WhatsAppHome, jid: str) -> bool:
    return bool(await harness.rows("SELECT 1 FROM chats WHERE jid = ?", jid))
