"""Read the calendars that groups follow, periodically, and show their events to agents."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from orchestrator.base.backoff import doubled_pause
from orchestrator.calendars import client, service
from orchestrator.calendars.client import CalendarUnreadable
from orchestrator.calendars.event_notices import EventNotices
from orchestrator.domain.values import Group, Turn
from orchestrator.groups import owner
from orchestrator.groups.host_context import HostContext
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.schedule import followed_calendars
from orchestrator.store.schedule.followed_calendars import FollowedCalendar

Brief = Callable[[Tx, Turn, Group], Awaitable[str | None]]
"""Returns the part about its group that an agent reads with a message; None if there is nothing."""

log = structlog.get_logger(__name__)

READ_AGAIN_MS = 15 * 60_000
"""Milliseconds until a calendar is read again."""
TRY_AGAIN_MS = 60_000
"""Milliseconds until a calendar that could not be read is tried again; doubled after each further failure."""
SWEEP_SECONDS = 60.0
"""Most seconds between two looks for calendars that are due."""
# Each calendar is read in a process of its own, which may take up to 1 GiB of memory.
AT_ONCE = 4


class CalendarFeature:
    """The calendars of a host. `secret` reads a line of `.env`."""

    def __init__(self, host: HostContext, *, secret: Callable[[str], str | None]) -> None:
        """`secret` returns the value of a name in `.env`; None if there is none."""
        self._host = host
        self._secret = secret
        self._reading_slots = asyncio.Semaphore(AT_ONCE)
        self.event_notices = EventNotices(host)

    def loops(self) -> dict[str, Callable[[], Any]]:
        """Return the endless loops of the calendars, each by the name of its task."""
        return {"calendars": self._read_all, "calendar-notices": self.event_notices.run}

    def beside(self, board: Brief) -> Brief:
        """Return a function that adds the events of a group's calendars to the text that `board` returns.

        Agents read that text with a message.
        """

        async def brief(tx: Tx, turn: Turn, group: Group) -> str | None:
            """Return the group's board and then its events; None if it has neither."""
            zone, now_ms = self._host.zone_of(group), self._host.clock.now_ms()
            events = await service.brief(tx, group, zone=zone, now_ms=now_ms)
            return "\n\n".join(filter(None, (await board(tx, turn, group), events))) or None

        return brief

    async def _read_all(self) -> None:
        """Read the calendars that are due, periodically and after each change, until cancelled."""
        while True:
            await self.read_due()
            await self._host.wakeups.calendars.wait(at_most_seconds=SWEEP_SECONDS)

    async def read_due(self) -> None:
        """Read the calendars that are due concurrently, so that a slow one does not delay the others."""
        now_ms = self._host.clock.now_ms()
        async with self._host.reader.reading() as tx:
            due_calendars = [
                calendar for calendar in await followed_calendars.every(tx) if _is_due(calendar, now_ms)
            ]
        async with asyncio.TaskGroup() as tasks:
            for calendar in due_calendars:
                tasks.create_task(self._read(calendar), name=f"calendar:{calendar.id}")

    async def _read(self, calendar: FollowedCalendar) -> None:
        """Fetch a calendar and store its events, or count the failure. Skip it if its group is gone.

        After a success, `calendar.read` is published: `EventNotices` then looks for due messages.
        """
        group = await self._host.reader.read(lambda tx: groups.by_folder(tx, calendar.folder))
        if group is None:
            return
        now_ms = self._host.clock.now_ms()
        try:
            login = service.login_of(calendar, self._secret)
            async with self._reading_slots:
                events = await client.events(login, zone=self._host.zone_of(group), now_ms=now_ms)
        except CalendarUnreadable as error:
            await self._note_failure(calendar, str(error))
            return
        await self._host.database.write(
            lambda tx: followed_calendars.note_read(tx, calendar.id, events, now_ms=now_ms)
        )
        self._host.bus.publish("calendar.read", group=calendar.folder)

    async def _note_failure(self, calendar: FollowedCalendar, problem: str) -> None:
        """Count a failure, and notify the owner when a calendar has failed `REPORTED_AT` times in a row.

        Further failures notify nobody until the calendar could be read again.
        """
        now_ms = self._host.clock.now_ms()
        async with self._host.database.transaction() as tx:
            failures = await followed_calendars.note_failure(tx, calendar.id, problem, now_ms=now_ms)
            if failures == service.REPORTED_AT:
                text = (
                    f"⚠️ I cannot read the calendar '{calendar.name}' of {calendar.folder}. {problem}"
                    " I keep trying; 'andy calendar followed' shows how it stands."
                )
                await owner.notify_replacing_unsent(tx, text, about=f"calendar:{calendar.id}", now_ms=now_ms)
                self._host.wakeups.outbox.set()
        log.warning("calendar.unreadable", group=calendar.folder, calendar=calendar.name, reason=problem)


def _is_due(calendar: FollowedCalendar, now_ms: int) -> bool:
    """Return whether a calendar has to be read now.

    It is read every 15 minutes, and sooner after a failure. It is always due if it was never read, or if the
    clock was set back since it was read.
    """
    if calendar.looked_ms is None or calendar.looked_ms > now_ms:
        return True
    if calendar.failures:
        # One, two, four minutes and so on, and 15 after five failures.
        wait_ms = doubled_pause(TRY_AGAIN_MS, READ_AGAIN_MS, failures=calendar.failures)
    else:
        wait_ms = READ_AGAIN_MS
    return now_ms - calendar.looked_ms >= wait_ms
