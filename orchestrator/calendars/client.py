"""Fetch a calendar by its address: an iCalendar file, or else a CalDAV collection."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from agent_runner.wire.processes import kill_and_wait
from orchestrator.calendars import reading
from orchestrator.domain.errors import AndyError
from orchestrator.store.schedule.followed_calendars import CalendarEvent

if TYPE_CHECKING:
    import httpx

DAYS = 60
"""Days from today on whose events are fetched."""
FETCH_SECONDS = 30.0
READ_SECONDS = 60.0
"""Seconds after which the process that reads a calendar is killed; its limit of processor time is lower."""
CPU_SECONDS = 20
"""Seconds of processor time that reading a calendar may take, some hundred times what a large one needs."""
MAX_BYTES = 8 * 1024 * 1024
"""Most bytes of a calendar."""
MAX_REDIRECTS = 3
QUERY = """<?xml version="1.0" encoding="utf-8"?>
<c:calendar-query xmlns:d="DAV:" xmlns:c="urn:ietf:params:xml:ns:caldav">
  <d:prop><c:calendar-data/></d:prop>
  <c:filter><c:comp-filter name="VCALENDAR"><c:comp-filter name="VEVENT">
    <c:time-range start="{start}" end="{end}"/>
  </c:comp-filter></c:comp-filter></c:filter>
</c:calendar-query>"""


class CalendarUnreadable(AndyError):
    """A calendar cannot be read; the text says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarLogin:
    """The address of a calendar, and the user and password for it."""

    address: str
    user: str | None = None
    password: str | None = None


async def events(login: CalendarLogin, *, zone: ZoneInfo, now_ms: int) -> list[CalendarEvent]:
    """Fetch a calendar and return its events of the next `DAYS` days, today included.

    `zone` says which day is today, and applies to times without a zone of their own.

    Raises:
        CalendarUnreadable: it cannot be fetched, or is no calendar; the text says why.
    """
    today = datetime.fromtimestamp(now_ms / 1000, zone).date()
    return await read(await fetch(login, first=today), zone=zone, first=today)


async def fetch(login: CalendarLogin, *, first: date) -> bytes:
    """Return the calendar as its server has it: iCalendar text, or the XML of CalDAV.

    From a CalDAV server, only the events of `DAYS` days from `first` on are requested.

    Raises:
        CalendarUnreadable: there is no answer, no calendar, or a too large one; the text says why, without
            the address.
    """
    import httpx

    auth = httpx.BasicAuth(login.user, login.password or "") if login.user else None
    try:
        async with (
            asyncio.timeout(FETCH_SECONDS),
            httpx.AsyncClient(auth=auth, follow_redirects=True, max_redirects=MAX_REDIRECTS) as client,
        ):
            # First the address is fetched as a file. If that is no calendar, CalDAV is tried, so the owner
            # need not know of which kind an address is.
            status, body = await _send(client, client.build_request("GET", login.address))
            if status == httpx.codes.OK and b"BEGIN:VCALENDAR" in body[:1024]:
                return body
            # After a refused login the query would only be refused as well.
            if status not in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
                status, body = await _send(client, _query(client, login.address, first))
    except (httpx.InvalidURL, ValueError) as error:
        # The text of such an error may quote a part of the address, which may be a secret.
        raise CalendarUnreadable("It cannot be reached: its address is no web address.") from error
    except (OSError, httpx.HTTPError) as error:  # a `TimeoutError` is an `OSError`
        reason = str(error) or f"no answer in {FETCH_SECONDS:g} s"
        raise CalendarUnreadable(f"It cannot be reached: {_without_address(reason, login)}.") from error
    if status == httpx.codes.MULTI_STATUS:  # the status of each answer to a CalDAV query
        return body
    raise CalendarUnreadable(_refusal_text(status))


def _query(client: httpx.AsyncClient, address: str, first: date) -> httpx.Request:
    """Return the CalDAV request for the events of `DAYS` days from `first` on."""
    # A day more on each side: the range is in UTC, but the days are those of the group's zone.
    start = datetime(first.year, first.month, first.day, tzinfo=UTC) - timedelta(days=1)
    stamps = {
        name: f"{at:%Y%m%dT%H%M%SZ}" for name, at in (("start", start), ("end", start + timedelta(DAYS + 2)))
    }
    headers = {"Depth": "1", "Content-Type": "application/xml; charset=utf-8"}
    return client.build_request("REPORT", address, content=QUERY.format(**stamps), headers=headers)


async def _send(client: httpx.AsyncClient, request: httpx.Request) -> tuple[int, bytes]:
    """Send a request, and return the HTTP status and the body of the answer.

    Raises:
        CalendarUnreadable: the body is larger than `MAX_BYTES`.
    """
    answer = await client.send(request, stream=True)
    try:
        # Read in pieces, so that a huge body is refused before all of it is in memory.
        chunks, size = [], 0
        async for chunk in answer.aiter_bytes():
            size += len(chunk)
            if size > MAX_BYTES:
                raise CalendarUnreadable(f"It is larger than {MAX_BYTES >> 20} MiB: follow a smaller one.")
            chunks.append(chunk)
        return answer.status_code, b"".join(chunks)
    finally:
        await answer.aclose()


def _refusal_text(status: int) -> str:
    """Return why a status of the server means that there is no calendar, with the fix."""
    if status in (401, 403):
        return f"Its server refuses the user or the password ({status}): check --user and --password-env."
    if status == 404:
        return "Its server knows no such calendar (404): copy its address anew."
    return f"It is no calendar (status {status}): give the address of one calendar, not of the account."


def _without_address(reason: str, login: CalendarLogin) -> str:
    """Return a text with the calendar's address, which may be a secret, replaced by its host name."""
    return reason.replace(login.address, urlsplit(login.address).hostname or "the address")


async def read(body: bytes, *, zone: ZoneInfo, first: date) -> list[CalendarEvent]:
    """Return the events of `DAYS` days from `first` on in a server's answer.

    Another process parses it, with limits of time and memory. `zone` applies to times without a zone.

    Raises:
        CalendarUnreadable: it is no calendar, or takes too long or too much memory to parse.
    """
    # Only the search path is passed from the host's environment, so the child has no secret.
    names = ("PATH", "PYTHONPATH", "PYTHONHOME", "LANG")
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        reading.__name__,
        zone.key,
        first.isoformat(),
        str(DAYS),
        str(CPU_SECONDS),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={name: os.environ[name] for name in names if name in os.environ},
        start_new_session=True,  # Ctrl+C in a terminal is for the host, which then ends the child itself
    )
    try:
        async with asyncio.timeout(READ_SECONDS):
            output, _ = await child.communicate(body)
    except TimeoutError as error:
        raise CalendarUnreadable("It takes too long to read: follow a smaller one.") from error
    finally:
        await kill_and_wait(child)
    if child.returncode != 0:
        raise CalendarUnreadable("It takes too much time or memory to read: follow a smaller one.")
    return _events(json.loads(output))


def _events(answer: dict[str, Any]) -> list[CalendarEvent]:
    """Return the events in the JSON that the reading process printed. Raises `CalendarUnreadable`."""
    if "refused" in answer:
        raise CalendarUnreadable(f"It is no calendar: {answer['refused']}.")
    return [CalendarEvent(**fields) for fields in answer["events"]]
