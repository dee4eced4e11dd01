"""Wiring of the queue: the dispatcher, and the check that turns can be answered at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.containers.feature import ContainersFeature
from orchestrator.groups.host_context import HostContext
from orchestrator.queue.availability import Availability
from orchestrator.queue.dispatcher import Containers, Dispatcher
from orchestrator.queue.warm_starts import WarmStarts


class QueueFeature:
    """The queue of one host, built after its pool of containers."""

    def __init__(self, host: HostContext, containers: ContainersFeature) -> None:
        """Build the parts of the queue; `loops` runs them."""
        pool = containers.pool
        self._availability = Availability(
            host.database,
            clock=host.clock,
            wakeups=host.wakeups,
            bus=host.bus,
            refusal=containers.orders.refusal,
        )
        self._dispatcher = Dispatcher(
            host.database,
            Containers(live=pool.live, start=pool.start, hand_over=pool.hand_over, close=pool.close),
            cap=containers.cap,
            # The setting limits two things: the containers that are started ahead, and those that may still
            # end beyond the cap, so that others need not wait for that.
            overlap=host.settings.andy_foresight,
            clock=host.clock,
            wakeups=host.wakeups,
            turn_away=self._availability.turn_away,
        )
        self._warm_starts = WarmStarts(
            host,
            pool,
            cap=containers.cap,
            refusal=containers.orders.refusal_ahead,
            is_taking_work=lambda: self.is_taking_work,
        )
        self._has_foresight = host.settings.andy_foresight > 0

    @property
    def is_taking_work(self) -> bool:
        """Whether queued turns are still started."""
        return self._dispatcher.is_taking_work

    def stop_taking_work(self) -> None:
        """Start no queued turn from now on, because the host is shutting down."""
        self._dispatcher.is_taking_work = False

    def loops(self) -> dict[str, Callable[[], Any]]:
        """Return the loops that have to run, by their names."""
        warm_starts = {"warm-starts": self._warm_starts.run} if self._has_foresight else {}
        return {"availability": self._availability.run, "dispatcher": self._dispatcher.run, **warm_starts}
