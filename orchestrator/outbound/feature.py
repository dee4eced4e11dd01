"""Build the parts that send: delivery of the outbox, and the signs that Andy is at work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from orchestrator.channels.registry import Channels
from orchestrator.groups.host_context import HostContext
from orchestrator.outbound.delivery import Delivery, DeliveryHooks
from orchestrator.outbound.polls import PollEnds
from orchestrator.outbound.presence import presence_loops
from orchestrator.outbound.speech import SpokenReplies
from orchestrator.outbound.withdrawals import Withdrawals


class OutboundFeature:
    """The parts of one host that send to its channels."""

    def __init__(
        self, host: HostContext, channels: Channels, *, hooks: DeliveryHooks, tasks: asyncio.TaskGroup
    ) -> None:
        """Build the parts for the `channels` of a host; `loops` runs them.

        `hooks` are called around each message that is sent. `tasks` runs a task for each message.
        """
        self._delivery = Delivery(
            host.database,
            clock=host.clock,
            name=host.settings.assistant_name,
            channel_for=channels.owner,
            tasks=tasks,
            wakeup=host.wakeups.outbox,
            bus=host.bus,
            resends=host.settings.resends,
            hooks=hooks,
        )
        self._withdrawals = Withdrawals(
            host.database,
            clock=host.clock,
            channel_for=channels.owner,
            bus=host.bus,
            wakeup=host.wakeups.outbox,
        )
        self._poll_ends = PollEnds(
            host.database, clock=host.clock, channel_for=channels.owner, bus=host.bus, wakeups=host.wakeups
        )
        self._speech = SpokenReplies(host)
        self._presence_loops = presence_loops(host.database, channel_for=channels.owner, bus=host.bus)

    def loops(self) -> dict[str, Callable[[], Any]]:
        """Return the loops that have to run, by their names.

        The last two show in chats that Andy is at work, by typing signs and reactions.
        """
        return {
            "delivery": self._delivery.run,
            "withdrawals": self._withdrawals.run,
            "polls": self._poll_ends.run,
            "speech": self._speech.run,
            **self._presence_loops,
        }

    async def drain(self, *, seconds: float) -> None:
        """Wait until each message that is due is sent or has failed once, at most `seconds`."""
        await self._delivery.drain(seconds=seconds)
