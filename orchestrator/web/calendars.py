"""Calendars of groups, for programs that know the secret address: `GET /calendar/SECRET.ics`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.domain.errors import StoreError
from orchestrator.domain.values import Group
from orchestrator.groups import secret_addresses
from orchestrator.reports import calendar_feed
from orchestrator.store.access import secret_addresses as addresses
from orchestrator.store.access.secret_addresses import AddressKind, SecretAddress, UnknownAddress
from orchestrator.store.database import Database, Tx
from orchestrator.store.groups import groups
from orchestrator.web.api.lists import ApiSource

log = structlog.get_logger(__name__)

RECORD_PAUSE_MS = 60_000
"""The least milliseconds between two recorded fetches of a calendar."""
AT_ONCE = 2
"""The number of calendars that are made at a time; further requests wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarService:
    """Returns calendars to clients that know their secret."""

    database: Database
    source: ApiSource
    zone_of: Callable[[Group], ZoneInfo]
    """Returns the time zone of a group."""
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    """One of the `AT_ONCE` slots is held while a calendar is made."""

    async def read(self, secret: str) -> bytes:
        """Return a group's calendar as an iCalendar text; `secret` is the secret part of its address.

        The fetch is recorded, at most once a minute, unless the store cannot be written. Raises
        `UnknownAddress` if no calendar has this secret.
        """
        now_ms = self.source.clock.now_ms()

        async def read_feed(tx: Tx) -> tuple[SecretAddress, bytes]:
            """Return the stored address with this secret, and the calendar as an iCalendar text.

            Raises `UnknownAddress` if there is none, or its group is gone.
            """
            feed = await addresses.by_secret(tx, AddressKind.CALENDAR, secret_addresses.hashed(secret))
            group = await groups.by_folder(tx, feed.folder) if feed else None
            if feed is None or group is None:
                # One error for all cases: it does not tell whether a secret was ever valid.
                raise UnknownAddress(
                    AddressKind.CALENDAR,
                    "There is no such calendar: its address was revoked, or is incomplete.",
                )
            return feed, await calendar_feed.read(tx, group, now_ms=now_ms, zone=self.zone_of(group))

        async with self._slots:
            feed, body = await self.source.read(read_feed)
        # `abs`, because the last use is in the future after the clock was set back.
        if feed.used_ms is None or abs(now_ms - feed.used_ms) >= RECORD_PAUSE_MS:
            try:
                await self.database.write(lambda tx: addresses.note_use(tx, feed.id, now_ms=now_ms))
            except StoreError as error:  # on a full disk, the calendar can still be read
                log.warning("calendar.use_not_recorded", calendar=feed.id, reason=str(error))
        return body


def calendar_routes(service: CalendarService) -> list[Route]:
    """Return the route by which calendar programs fetch a calendar."""

    async def get(request: Request) -> Response:
        """Answer with the calendar that belongs to the secret in the path."""
        body = await service.read(request.path_params["secret"])
        headers = {
            "Cache-Control": "no-store",
            "Content-Disposition": 'inline; filename="andy.ics"',
            "X-Content-Type-Options": "nosniff",
        }
        return Response(body, media_type="text/calendar; charset=utf-8", headers=headers)

    return [Route(secret_addresses.CALENDARS + "{secret}.ics", get)]
