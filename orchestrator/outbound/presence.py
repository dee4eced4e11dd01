"""Show in a chat that Andy is at work: the typing sign, and in groups a reaction under the question."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial

import structlog

from orchestrator.base.event_bus import EventBus, until_next
from orchestrator.domain.errors import ChannelError
from orchestrator.domain.protocols import Channel, Feature
from orchestrator.domain.values import ChatJid, Message, TurnId, TurnState
from orchestrator.store.conversation import messages
from orchestrator.store.database import Database, Tx
from orchestrator.store.runs import turns

log = structlog.get_logger(__name__)

REFRESH_SECONDS = 10.0
"""Seconds between two repeats: messengers hide the sign by themselves after 10 to 25 s."""
SWEEP_SECONDS = 60.0
CALL_SECONDS = 5.0
"""Seconds that a messenger may take to set a sign. A typing sign is tried again at the next look."""
TURN_EVENTS = ("turn.*", "run.adopted")
"""The events after which a turn may have started or ended."""
SEEN = "👀"


def presence_loops(
    database: Database, *, channel_for: Callable[[ChatJid], Channel | None], bus: EventBus
) -> dict[str, Callable[[], Awaitable[None]]]:
    """Return the loops that show in a chat that Andy is at work, by their names.

    `channel_for` returns the channel of a chat; None if it is not set up.
    """
    return {
        "typing": TypingSigns(database, channel_for=channel_for, bus=bus).run,
        "reactions": Reactions(database, channel_for=channel_for, bus=bus).run,
    }


class TypingSigns:
    """Shows the typing sign where a question is being answered; a turn that nobody asked for shows none."""

    def __init__(
        self, database: Database, *, channel_for: Callable[[ChatJid], Channel | None], bus: EventBus
    ) -> None:
        """`channel_for` returns the channel of a chat; None if it is not set up."""
        self._database = database
        self._channel_for = channel_for
        self._bus = bus
        self._shown: frozenset[ChatJid] = frozenset()

    async def run(self) -> None:
        """Show the typing sign in each chat that is being answered, until cancelled; then hide every sign."""
        with self._bus.listening(*TURN_EVENTS) as events:
            try:
                while True:
                    await self._update_signs()
                    seconds = REFRESH_SECONDS if self._shown else SWEEP_SECONDS
                    await until_next(events, at_most_seconds=seconds)
            finally:
                # A messenger may show a sign until somebody hides it, and after this task no other one does.
                await asyncio.shield(self._set(self._shown, is_typing=False))

    async def _update_signs(self) -> None:
        """Show the typing sign in all chats that are being answered, and hide it in those that no longer are.

        Where it is shown already it is shown again, because messengers hide it after some seconds.
        """
        answering = frozenset(await self._database.read(turns.answering_chats))
        no_longer, self._shown = self._shown - answering, answering
        await self._set(no_longer, is_typing=False)
        await self._set(answering, is_typing=True)

    async def _set(self, chats: Iterable[ChatJid], *, is_typing: bool) -> None:
        """Show or hide the typing signs of chats, where the messenger has one.

        All at once, so that one slow messenger does not delay the others.
        """
        async with asyncio.TaskGroup() as calls:
            for jid in chats:
                channel = self._channel_for(jid)
                if channel is not None and Feature.TYPING in channel.features:
                    calls.create_task(
                        _set_typing_sign(channel, jid, is_typing=is_typing), name=f"typing:{jid}"
                    )


async def _set_typing_sign(channel: Channel, jid: ChatJid, *, is_typing: bool) -> None:
    """Show or hide the typing sign in a chat. Never raises: a failure is logged."""
    try:
        async with asyncio.timeout(CALL_SECONDS):
            await channel.set_typing(jid, is_typing=is_typing)
    except Exception as error:  # noqa: BLE001 - a sign is no reason to stop: the next update shows it again
        log.warning("typing.failed", chat=jid, reason=type(error).__name__)


class Reactions:
    """Puts a reaction on a question in a group when its turn starts, and removes it when the turn fails."""

    def __init__(
        self, database: Database, *, channel_for: Callable[[ChatJid], Channel | None], bus: EventBus
    ) -> None:
        """`channel_for` returns the channel of a chat; None if it is not set up."""
        self._database = database
        self._channel_for = channel_for
        self._bus = bus
        self._shown: dict[TurnId, Message] = {}
        """For each unfinished turn, the message with the turn's reaction."""

    async def run(self) -> None:
        """Show and remove reactions as turns start and fail, until cancelled.

        An event about a turn only triggers a new look at the database.
        """
        with self._bus.listening(*TURN_EVENTS) as events:
            # An earlier host has already put a reaction on the questions of turns that were tried before.
            self._shown = await self._database.read(
                lambda tx: messages.questions_in_groups(tx, only_running=False)
            )
            while True:
                await self._update_reactions()
                await until_next(events, at_most_seconds=SWEEP_SECONDS)

    async def _update_reactions(self) -> None:
        """Put a reaction on the questions whose turns have started, and remove it where a turn has failed.

        A turn is a question to the agent. The reaction stays where a turn was answered.
        """
        running, ended = await self._database.read(partial(_running_and_ended, shown=frozenset(self._shown)))
        failed = [self._shown[turn_id] for turn_id, state in ended.items() if state is TurnState.FAILED]
        started = [message for turn_id, message in running.items() if turn_id not in self._shown]
        self._shown = {
            turn_id: message
            for turn_id, message in (self._shown | dict(running)).items()
            if turn_id not in ended
        }
        await self._react(dict.fromkeys(failed, "") | dict.fromkeys(started, SEEN))

    async def _react(self, emoji_by_message: Mapping[Message, str]) -> None:
        """Put its emoji on each message as a reaction, or remove the reaction if the emoji is empty.

        Messengers without reactions are left out, and a call that fails is not repeated. All calls run at
        once, so that one slow messenger does not delay the others.
        """
        async with asyncio.TaskGroup() as calls:
            for message, emoji in emoji_by_message.items():
                channel = self._channel_for(message.chat_jid)
                if channel is not None and Feature.REACTIONS in channel.features:
                    calls.create_task(_put_reaction(channel, message, emoji), name=f"react:{message.id}")


async def _running_and_ended(
    tx: Tx, *, shown: frozenset[TurnId]
) -> tuple[dict[TurnId, Message], dict[TurnId, TurnState]]:
    """Return the last question of each running turn in a group chat, and the states of turns that have ended.

    Both are keyed by turn. `shown` are the turns whose question has a reaction: of others, no end is
    returned.
    """
    running = await messages.questions_in_groups(tx, only_running=True)
    ended = {
        turn_id: turn.state
        for turn_id in shown - running.keys()
        if (turn := await turns.get(tx, turn_id)) is not None and turn.ended_ms is not None
    }
    return running, ended


async def _put_reaction(channel: Channel, message: Message, emoji: str) -> None:
    """Put a reaction on a message, or remove it with an empty `emoji`. Never raises: a failure is logged."""
    try:
        async with asyncio.timeout(CALL_SECONDS):
            await channel.react(message, emoji)
    except (ChannelError, TimeoutError) as error:
        log.debug("reaction.failed", message=message.id, reason=str(error))
    except Exception as error:  # noqa: BLE001 - a reaction is no reason to stop
        log.warning("reaction.failed", message=message.id, reason=type(error).__name__)
