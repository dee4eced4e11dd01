"""Put a sign under a question in a group while the assistant works on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import structlog

from orchestrator.base.event_bus import EventBus, until_next
from orchestrator.domain.errors import ChannelError
from orchestrator.domain.protocols import Channel, Feature
from orchestrator.domain.values import ChatJid, Message, TurnId, TurnState
from orchestrator.outbound.typing import CALL_SECONDS, OF_TURNS, SWEEP_SECONDS, TypingSigns
from orchestrator.store import messages, turns
from orchestrator.store.database import Database, Tx

log = structlog.get_logger(__name__)

SEEN = "👀"


class Reactions:
    """Shows a sign when a turn starts in a group, and takes it away when the turn fails."""

    def __init__(
        self, database: Database, *, channel_for: Callable[[ChatJid], Channel | None], bus: EventBus
    ) -> None:
        self._database = database
        self._channel_for = channel_for
        self._bus = bus
        self._shown: dict[TurnId, Message] = {}
        """The message that bears the sign, of each turn that has not ended."""

    async def run(self) -> None:
        """Follow the turns until cancelled; events about turns only say when to look."""
        with self._bus.listening(*OF_TURNS) as events:
            # An earlier host put a sign under what was tried before; no second one is put there.
            self._shown = await self._database.read(lambda tx: messages.asked_in_groups(tx, is_running=False))
            while True:
                await self._look()
                await until_next(events, at_most_seconds=SWEEP_SECONDS)

    async def _look(self) -> None:
        running, ended = await self._database.read(partial(_running_and_ended, shown=frozenset(self._shown)))
        failed = [self._shown[one] for one, state in ended.items() if state is TurnState.FAILED]
        begun = [message for turn_id, message in running.items() if turn_id not in self._shown]
        self._shown = {one: at for one, at in (self._shown | dict(running)).items() if one not in ended}
        await self._react(dict.fromkeys(failed, "") | dict.fromkeys(begun, SEEN))

    async def _react(self, signs: Mapping[Message, str]) -> None:
        """All at once, so that one slow messenger holds no other up for long."""
        async with asyncio.TaskGroup() as calls:
            for message, sign in signs.items():
                channel = self._channel_for(message.chat_jid)
                if channel is not None and Feature.REACTIONS in channel.features:
                    calls.create_task(_put(channel, message, sign), name=f"react:{message.id}")


def sign_loops(
    database: Database, *, channel_for: Callable[[ChatJid], Channel | None], bus: EventBus
) -> dict[str, Callable[[], Awaitable[None]]]:
    """The loops that show in a chat what is going on there."""
    return {
        "typing": TypingSigns(database, channel_for=channel_for, bus=bus).run,
        "reactions": Reactions(database, channel_for=channel_for, bus=bus).run,
    }


async def _running_and_ended(
    tx: Tx, *, shown: frozenset[TurnId]
) -> tuple[dict[TurnId, Message], dict[TurnId, TurnState]]:
    """Return the questions that are worked on, and the states of those turns of `shown` that have ended."""
    running = await messages.asked_in_groups(tx, is_running=True)
    ended = {
        turn_id: turn.state
        for turn_id in shown - running.keys()
        if (turn := await turns.get(tx, turn_id)) is not None and turn.ended_ms is not None
    }
    return running, ended


async def _put(channel: Channel, message: Message, sign: str) -> None:
    try:
        async with asyncio.timeout(CALL_SECONDS):
            await channel.react(message, sign)
    except (ChannelError, TimeoutError) as error:
        log.debug("reaction.failed", message=message.id, reason=str(error))
    except Exception as error:  # noqa: BLE001 - a sign is no reason to stop
        log.warning("reaction.failed", message=message.id, reason=type(error).__name__)
