"""Holds the objects that every feature of one host uses, as one argument instead of nine."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Self
from zoneinfo import ZoneInfo

from orchestrator.base.announcements import announce_in_host
from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeup, Wakeups
from orchestrator.domain.turn_signs import TurnSigns
from orchestrator.domain.values import Group, TurnKind
from orchestrator.groups import settings as group_config
from orchestrator.home.directory import Home
from orchestrator.home.settings import Settings
from orchestrator.store.database import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class HostContext:
    """One host on one home, with its settings, database, clock, events and wake-ups."""

    home: Home
    settings: Settings
    clock: Clock
    database: Database
    """The one connection that writes."""
    reader: Database
    """A second connection, for reads that must not wait for others' commits."""
    bus: EventBus
    wakeups: Wakeups = field(default_factory=Wakeups)
    signs: TurnSigns = field(default_factory=lambda: TurnSigns(Wakeup()))

    @classmethod
    async def open(
        cls, stack: AsyncExitStack, *, home: Home, settings: Settings, clock: Clock, bus: EventBus
    ) -> Self:
        """Open the database of a home, and return the context of its host; `stack` closes the database.

        Raises:
            StoreError: the database is of a newer version, or cannot be opened.
        """
        wakeups = Wakeups()
        database = await Database.open(home.database, announce=partial(announce_in_host, bus, wakeups))
        stack.push_async_callback(database.close)
        reader = await Database.open_readonly(home.database)
        stack.push_async_callback(reader.close)
        return cls(
            home=home,
            settings=settings,
            clock=clock,
            database=database,
            reader=reader,
            bus=bus,
            wakeups=wakeups,
            signs=TurnSigns(wakeups.foresight),
        )

    @property
    def attachment_bytes(self) -> int:
        """The largest file that is received or sent, in bytes; 0 allows none."""
        return self.settings.andy_attachment_mb * 1024 * 1024

    def zone_of(self, group: Group) -> ZoneInfo:
        """Return the time zone of a group: its own, else the host's."""
        return group_config.zone_of(group, default=self.settings.zone)

    def model_of(self, group: Group, kind: TurnKind | str) -> str | None:
        """Return the model that is set for a group's turns of a kind; None leaves the choice to the agent."""
        return group_config.model_of(group, kind, settings=self.settings)
