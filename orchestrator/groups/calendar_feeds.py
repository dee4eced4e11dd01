"""Give out and revoke the addresses by which calendar programs read what is to come in a group."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from hashlib import sha256

from orchestrator.domain.errors import BadRequest
from orchestrator.store import audit, calendar_feeds, groups
from orchestrator.store.calendar_feeds import CalendarFeed
from orchestrator.store.database import Tx

PATH = "/calendar/"
"""Calendars are served below it, without the token: `/calendar/SECRET.ics`."""
MAX_FEEDS = 20
"""The most calendars of one group."""
MAX_NAME_CHARS = 60
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFeed:
    """A calendar that was just made, with the path of its address, which is not shown again."""

    feed: CalendarFeed
    path: str


async def add(tx: Tx, folder: str, *, name: str, now_ms: int) -> NewFeed:
    """Make an address for a group's calendar.

    Raises:
        UnknownGroup
        BadRequest: the name is too long, or the group has too many calendars.
    """
    group = await groups.known(tx, folder)
    name = " ".join(name.split())
    if len(name) > MAX_NAME_CHARS:
        raise BadRequest(f"The name of a calendar has at most {MAX_NAME_CHARS} characters.")
    if len(await calendar_feeds.every(tx, group.folder)) >= MAX_FEEDS:
        raise BadRequest(
            f"'{group.folder}' has {MAX_FEEDS} calendars: revoke one first, see 'andy calendar list'."
        )
    secret = secrets.token_urlsafe(SECRET_BYTES)
    feed = await calendar_feeds.add(tx, group.folder, name=name, secret_hash=hashed(secret), now_ms=now_ms)
    await _note(tx, "calendar.added", feed, now_ms=now_ms)
    return NewFeed(feed=feed, path=f"{PATH}{secret}.ics")


async def revoke(tx: Tx, feed_id: int, *, now_ms: int) -> CalendarFeed:
    """Make an address useless. Raises `UnknownCalendar`."""
    feed = await calendar_feeds.remove(tx, feed_id)
    await _note(tx, "calendar.revoked", feed, now_ms=now_ms)
    return feed


def hashed(secret: str) -> str:
    """Return what the store has of a secret."""
    return sha256(secret.encode()).hexdigest()


async def _note(tx: Tx, kind: str, feed: CalendarFeed, *, now_ms: int) -> None:
    detail = {"calendar": feed.id, "name": feed.name}
    await audit.append(tx, audit.AuditEvent(at_ms=now_ms, kind=kind, folder=feed.folder, detail=detail))
