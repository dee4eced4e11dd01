"""Show the typing sign in a chat from the start of a turn to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from orchestrator.base.event_bus import EventBus, until_next
from orchestrator.domain.protocols import Channel, Feature
from orchestrator.domain.values import ChatJid
from orchestrator.store import turns
from orchestrator.store.database import Database

log = structlog.get_logger(__name__)

REFRESH_SECONDS = 10.0
"""Seconds between two repeats: messengers hide the sign by themselves after 10 to 25 s."""
SWEEP_SECONDS = 60.0
CALL_SECONDS = 5.0
OF_TURNS = ("turn.*", "run.adopted")
"""The events after which a turn may have started or ended."""


class TypingSigns:
    """Shows the typing sign where a question is being answered; a turn that nobody asked for shows none."""

    def __init__(
        self, database: Database, *, channel_for: Callable[[ChatJid], Channel | None], bus: EventBus
    ) -> None:
        self._database = database
        self._channel_for = channel_for
        self._bus = bus
        self._shown: frozenset[ChatJid] = frozenset()

    async def run(self) -> None:
        """Follow the turns until cancelled, then hide every sign."""
        with self._bus.listening(*OF_TURNS) as events:
            try:
                while True:
                    await self._look()
                    seconds = REFRESH_SECONDS if self._shown else SWEEP_SECONDS
                    await until_next(events, at_most_seconds=seconds)
            finally:
                # A messenger may show a sign for ever if nobody hides it, and after this no host is left to
                # do so.
                await asyncio.shield(self._set(self._shown, is_typing=False))

    async def _look(self) -> None:
        answering = frozenset(await self._database.read(turns.answering_chats))
        over, self._shown = self._shown - answering, answering
        await self._set(over, is_typing=False)
        await self._set(answering, is_typing=True)

    async def _set(self, chats: Iterable[ChatJid], *, is_typing: bool) -> None:
        """Set all signs concurrently, so that one slow messenger does not delay the others."""
        async with asyncio.TaskGroup() as calls:
            for jid in chats:
                channel = self._channel_for(jid)
                if channel is not None and Feature.TYPING in channel.features:
                    calls.create_task(_show(channel, jid, is_typing=is_typing), name=f"typing:{jid}")


async def _show(channel: Channel, jid: ChatJid, *, is_typing: bool) -> None:
    try:
        async with asyncio.timeout(CALL_SECONDS):
            await channel.set_typing(jid, is_typing=is_typing)
    except Exception as error:  # noqa: BLE001 - a sign is no reason to stop: the next look shows it again
        log.warning("typing.failed", chat=jid, reason=type(error).__name__)
