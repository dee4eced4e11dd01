"""Send a message to a group's chat before each event of the calendars that it follows."""

from __future__ import annotations

import asyncio
from datetime import datetime
from zoneinfo import ZoneInfo

from orchestrator.calendars import service
from orchestrator.groups.host_context import HostContext
from orchestrator.store.conversation import outbox
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.schedule import followed_calendars
from orchestrator.store.schedule.followed_calendars import FollowedEvent

SWEEP_SECONDS = 60.0
"""Most seconds between two looks for messages that are due."""
MAX_NOTICES_A_DAY = 10
"""Most messages about one event or series in 24 hours: an invitation may repeat every second."""
MAX_CALENDAR_NOTICES_A_DAY = 50
"""Most messages about events of one calendar in 24 hours, but for one that says that others are left out."""
DAY_MS = 24 * 60 * 60_000


class EventNotices:
    """The loop that queues a message before each event, as long before as its calendar says."""

    def __init__(self, host: HostContext) -> None:
        """`host` gives the database, the clock and the zones of groups."""
        self._host = host

    async def run(self) -> None:
        """Send the messages before events when they are due, until cancelled.

        It also looks for due messages whenever a calendar was read.
        """
        with self._host.bus.listening() as host_events:
            while True:
                seconds = await self.queue_due()
                try:
                    async with asyncio.timeout(seconds):
                        while (await host_events.get()).kind != "calendar.read":
                            continue
                except TimeoutError:
                    continue

    async def queue_due(self) -> float:
        """Queue the messages before events that are due, each once.

        Return in how many seconds to look for due messages again.
        """
        now_ms = self._host.clock.now_ms()
        async with self._host.reader.reading() as tx:
            due_events = await followed_calendars.to_announce(tx, now_ms=now_ms)
            next_ms = await followed_calendars.next_notice_ms(tx, now_ms=now_ms)
        if due_events:
            async with self._host.database.transaction() as tx:
                for followed in due_events:
                    await self._queue(tx, followed, now_ms=now_ms)
            self._host.wakeups.outbox.set()
        if next_ms is None:
            return SWEEP_SECONDS
        # At least 50 ms, so that a clock that is a little early does not make the loop spin.
        return min(SWEEP_SECONDS, max(0.05, (next_ms - now_ms) / 1000))

    async def _queue(self, tx: Tx, followed: FollowedEvent, *, now_ms: int) -> None:
        """Queue the message before an event, unless it was queued before for the same start of the event.

        Do nothing if the group is gone, or got `MAX_NOTICES_A_DAY` messages about the series. After
        `MAX_CALENDAR_NOTICES_A_DAY` messages about the calendar, one more says that others are left out. As
        long as the event has not begun, this is called again.
        """
        group = await groups.by_folder(tx, followed.calendar.folder)
        if group is None:
            return
        # By its name: a calendar that is followed again, such as with another password, gets a new id. The
        # start is part of the key, because an event that was moved is announced again.
        name = f"{followed.calendar.folder}:{followed.calendar.name}:"
        calendar = f"calendar:{name}"
        series = f"{calendar}{followed.event.id}:"
        key = f"{series}{followed.event.start_ms}"
        # Older versions had the calendar's id in the key: what they announced is not announced again.
        old_key = f"calendar:{followed.calendar.id}:{followed.event.id}:{followed.event.start_ms}"
        if await outbox.by_key(tx, old_key) is not None or await outbox.by_key(tx, key) is not None:
            return
        # The text about the limit has a prefix of its own, or it would take the place of an event.
        limit = f"calendar-limit:{name}"
        in_series, in_calendar, about_limit = [
            await outbox.count_with_key(tx, group.folder, prefix, since_ms=now_ms - DAY_MS, now_ms=now_ms)
            for prefix in (series, calendar, limit)
        ]
        if in_series >= MAX_NOTICES_A_DAY:
            return
        text = _text(followed, self._host.zone_of(group), now_ms=now_ms)
        if in_calendar >= MAX_CALENDAR_NOTICES_A_DAY:
            if about_limit:
                return
            text = (
                f"📅 I announce at most {MAX_CALENDAR_NOTICES_A_DAY} events of '{followed.calendar.name}'"
                " in 24 hours, and leave out the others."
            )
            key = f"{limit}{now_ms}"
        await outbox.add(
            tx,
            chat_jid=group.jid,
            folder=group.folder,
            text=text,
            dedupe_key=key,
            now_ms=now_ms,
        )


def _text(followed: FollowedEvent, zone: ZoneInfo, *, now_ms: int) -> str:
    """Return the message before an event, which begins at a time of day: `📅 14:00 Dentist (work)`.

    It has the day as well if the event is not today in `zone`.
    """
    start = datetime.fromtimestamp(followed.event.start_ms / 1000, zone)
    is_today = start.date() == datetime.fromtimestamp(now_ms / 1000, zone).date()
    return f"📅 {start:%H:%M} {service.words(followed)}" if is_today else f"📅 {service.line(followed, zone)}"
