"""`andy calendar`: addresses for calendar programs, and the calendars that groups follow."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from cyclopts import App, Parameter

from orchestrator.cli.options import HomeOption, JsonOption, read, show

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from orchestrator.groups.secret_addresses import NewAddress
    from orchestrator.store.access.secret_addresses import SecretAddress
    from orchestrator.store.database import Tx
    from orchestrator.store.schedule.followed_calendars import FollowedCalendar

calendar_app = App(name="calendar")


class CalendarAddressView(TypedDict):
    """An address from which calendar programs read, as `--json` prints it, without its secret.

    Times are epoch milliseconds.
    """

    id: int
    group: str
    name: str
    """The device or person that it is for; may be empty."""
    since_ms: int
    fetched_ms: int | None
    """The time when a program last read it; None if none has."""


class NewCalendarAddressView(CalendarAddressView):
    """An address that was made just now, with the secret in it."""

    address: str


class FollowedCalendarView(TypedDict):
    """A calendar that a group follows, as `--json` prints it."""

    group: str
    name: str
    server: str
    """The host name in the calendar's address, or the name of the line in `.env` that has the address."""
    notice_minutes: int | None
    """Minutes before an event at which the chat gets a message; None for no message."""
    read_ms: int | None
    """The time of the last successful reading, in epoch milliseconds; None if there was none."""
    problem: str | None
    """The reason why the last reading failed; None if it succeeded."""


@calendar_app.command
def add(
    group: Annotated[str, Parameter(help="A group, by its folder name: see 'andy groups list'.")],
    /,
    *,
    name: Annotated[str, Parameter(help="The device or person that it is for.")] = "",
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Make an address from which calendar programs read a group's reminders, tasks and deadlines.

    Whoever has the address can read them, and nothing else. It is shown only now. Works with Andy down.

    Example: `andy calendar add family --name "my phone"`
    """
    from orchestrator.cli import terminal

    # First, for its error: an address that was made and cannot be shown would be of no use to anybody.
    origin = terminal.web_origin(home)
    new_address = asyncio.run(terminal.change(home, partial(_add, group, name)))
    address = f"{origin}{new_address.path}"
    row: NewCalendarAddressView = {**_address_row(new_address.address), "address": address}
    show(row, partial(_new_address_lines, is_public=origin.startswith("https:")), as_json=as_json)


@calendar_app.command(name="list")
def list_calendars(
    group: Annotated[str | None, Parameter(help="A group, by its folder name. [all groups]")] = None,
    /,
    *,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List the addresses that calendar programs subscribe to, without their secrets. Works with Andy down.

    Example: `andy calendar list family`
    """
    from orchestrator.cli import terminal

    read(
        home,
        partial(_address_rows, group),
        partial(_address_lines, zone=terminal.zone_of(home)),
        as_json=as_json,
    )


@calendar_app.command
def revoke(
    calendar: Annotated[int, Parameter(help="The address, by its id in 'andy calendar list'.")],
    /,
    *,
    home: HomeOption = None,
) -> None:
    """Revoke an address at once: nobody can read it any more. Works with Andy down.

    Example: `andy calendar revoke 3`
    """
    from orchestrator.cli import terminal

    revoked = asyncio.run(terminal.change(home, partial(_revoke, calendar)))
    print(f"Calendar {revoked.id} of '{revoked.folder}' is revoked: its address opens nothing any more.")


@calendar_app.command
def follow(
    group: Annotated[str, Parameter(help="A group, by its folder name: see 'andy groups list'.")],
    address: Annotated[
        str, Parameter(help="The calendar's https:// address, or the NAME under which .env has it.")
    ],
    /,
    *,
    name: Annotated[str, Parameter(help="The calendar's name in the group.")] = "calendar",
    user: Annotated[str | None, Parameter(help="The user name at the calendar's server.")] = None,
    password_env: Annotated[
        str | None, Parameter(help="The name under which .env has the password, such as WORK_PASSWORD.")
    ] = None,
    notice: Annotated[
        int, Parameter(help="Minutes before an event at which the chat gets a message; 0: none.")
    ] = 30,
    home: HomeOption = None,
) -> None:
    """Show a calendar of yours to a group's agent, and send its chat a message before each event.

    The host reads the calendar every 15 minutes and never changes it. It is an iCalendar file or a CalDAV
    calendar; for Google Calendar, put its "secret address in iCal format" into .env.

    Example: `andy calendar follow family https://example.org/holidays.ics --name holidays --notice 0`

    Example: `andy calendar follow family https://dav.example.org/ada/ --user ada --password-env ADA_PASSWORD`
    """
    from orchestrator.base.tables import counted
    from orchestrator.cli import terminal

    terminal.say_aside("Reading the calendar …")
    count = asyncio.run(
        _follow(
            home,
            group,
            {
                "name": name,
                "address": address,
                "user": user,
                "password_env": password_env,
                "notice_minutes": notice or None,
            },
        )
    )
    print(f"'{group}' follows '{name}': {counted(count, 'event')} in the next 60 days.")


@calendar_app.command
def unfollow(
    group: Annotated[str, Parameter(help="A group, by its folder name: see 'andy groups list'.")],
    name: Annotated[str, Parameter(help="The calendar, by its name in 'andy calendar followed'.")],
    /,
    *,
    home: HomeOption = None,
) -> None:
    """Stop following a calendar in a group. Works with Andy down.

    Example: `andy calendar unfollow family holidays`
    """
    asyncio.run(_unfollow(home, group, name))
    print(f"'{group}' follows '{name}' no more.")


@calendar_app.command
def followed(
    group: Annotated[str | None, Parameter(help="A group, by its folder name. [all groups]")] = None,
    /,
    *,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List the calendars that groups follow, with the result of each one's last reading.

    Works with Andy down.

    Example: `andy calendar followed`
    """
    from orchestrator.cli import terminal

    read(
        home,
        partial(_followed_rows, group),
        partial(_followed_lines, zone=terminal.zone_of(home)),
        as_json=as_json,
    )


async def _follow(home: Path | None, group: str, fields: dict[str, Any]) -> int:
    """Let a group follow a calendar, if it can be read, and store its events; return their number.

    `fields` are the other arguments of `calendars.service.checked`: its name, address and login. Raises
    `CalendarUnreadable`, `CalendarRefused`, `UnknownGroup`.
    """
    import os

    from orchestrator.base.clock import SystemClock
    from orchestrator.calendars import client, service
    from orchestrator.cli import terminal
    from orchestrator.groups import settings
    from orchestrator.proxies.model.credentials import CredentialSource
    from orchestrator.store.groups import groups
    from orchestrator.store.schedule import followed_calendars

    zone, now_ms = terminal.zone_of(home), SystemClock().now_ms()
    # A function that returns the secret under a name of `.env`: the address and the password may be there.
    read_secret = CredentialSource(terminal.home_of(home).root, os.environ).value
    async with terminal.open_store(home) as database:
        async with database.transaction() as tx:
            zone = settings.zone_of(await groups.known(tx, group), default=zone)
            calendar = await service.checked(tx, group, **fields)
        # Read between the two transactions: a slow server must not keep a running Andy from writing.
        upcoming_events = await client.events(
            service.login_of(calendar, read_secret), zone=zone, now_ms=now_ms
        )
        async with database.transaction() as tx:
            stored = await service.follow(tx, calendar, now_ms=now_ms)
            await followed_calendars.note_read(tx, stored.id, upcoming_events, now_ms=now_ms)
    return len(upcoming_events)


async def _unfollow(home: Path | None, group: str, name: str) -> None:
    """Stop following the calendar `name` in a group, and delete its stored events."""
    from orchestrator.base.clock import SystemClock
    from orchestrator.calendars import service
    from orchestrator.cli import terminal

    async with terminal.open_store(home) as database, database.transaction() as tx:
        await service.unfollow(tx, group, name, now_ms=SystemClock().now_ms())


async def _followed_rows(group: str | None, tx: Tx) -> list[FollowedCalendarView]:
    """Return the calendars that a group follows, as rows for `--json`; those of all groups if it is None."""
    from orchestrator.store.groups import groups
    from orchestrator.store.schedule import followed_calendars

    folder = None if group is None else (await groups.known(tx, group)).folder
    return [_followed_row(calendar) for calendar in await followed_calendars.every(tx, folder)]


def _followed_row(calendar: FollowedCalendar) -> FollowedCalendarView:
    """Return a followed calendar as a row for `--json`."""
    from urllib.parse import urlsplit

    return {
        "group": calendar.folder,
        "name": calendar.name,
        # The path of an address may be a secret.
        "server": urlsplit(calendar.address).hostname or calendar.address,
        "notice_minutes": calendar.notice_minutes,
        "read_ms": calendar.read_ms,
        "problem": calendar.problem,
    }


def _followed_lines(rows: list[FollowedCalendarView], *, zone: ZoneInfo) -> list[str]:
    """Return the calendars that groups follow as the lines of a table, with times in `zone`."""
    from orchestrator.base.clock import local_minute
    from orchestrator.base.tables import table

    if not rows:
        return ["No group follows a calendar: see 'andy calendar follow --help'."]
    return table(
        ("group", "name", "server", "message before", "last read", "problem"),
        [
            (
                row["group"],
                row["name"],
                row["server"],
                f"{row['notice_minutes']} min" if row["notice_minutes"] else "none",
                "never" if row["read_ms"] is None else local_minute(row["read_ms"], zone),
                row["problem"] or "",
            )
            for row in rows
        ],
    )


async def _add(group: str, name: str, tx: Tx, now_ms: int) -> NewAddress:
    """Make and return a secret address at which calendar programs read a group's events.

    `name` is the device or person that the address is for. Raises `UnknownGroup`.
    """
    from orchestrator.groups import secret_addresses
    from orchestrator.store.access.secret_addresses import AddressKind

    return await secret_addresses.add(tx, AddressKind.CALENDAR, group, name=name, now_ms=now_ms)


async def _revoke(address_id: int, tx: Tx, now_ms: int) -> SecretAddress:
    """Make a secret address for calendar programs useless, and return the address."""
    from orchestrator.groups import secret_addresses
    from orchestrator.store.access.secret_addresses import AddressKind

    return await secret_addresses.revoke(tx, AddressKind.CALENDAR, address_id, now_ms=now_ms)


async def _address_rows(group: str | None, tx: Tx) -> list[CalendarAddressView]:
    """Return a group's addresses for calendar programs as rows for `--json`; None means all groups."""
    from orchestrator.store.access import secret_addresses
    from orchestrator.store.access.secret_addresses import AddressKind
    from orchestrator.store.groups import groups

    folder = None if group is None else (await groups.known(tx, group)).folder
    return [
        _address_row(address) for address in await secret_addresses.every(tx, AddressKind.CALENDAR, folder)
    ]


def _address_row(address: SecretAddress) -> CalendarAddressView:
    """Return an address for calendar programs as a row for `--json`, without its secret."""
    return {
        "id": address.id,
        "group": address.folder,
        "name": address.name,
        "since_ms": address.created_ms,
        "fetched_ms": address.used_ms,
    }


def _new_address_lines(row: NewCalendarAddressView, *, is_public: bool) -> list[str]:
    """Return the lines that explain a new address for calendar programs, with its secret.

    `is_public` says that other machines, such as a phone, can reach the address.
    """
    lines = [
        row["address"],
        "Subscribe to it in a calendar program.",
        f"Whoever has it can read what is to come in '{row['group']}', and nothing else.",
        f"It is shown only now. To make it useless: andy calendar revoke {row['id']}",
    ]
    if not is_public:
        lines.append(
            "It works on this machine alone: docs/calendar.md says how a phone or Google reaches it."
        )
    return lines


def _address_lines(rows: list[CalendarAddressView], *, zone: ZoneInfo) -> list[str]:
    """Return addresses for calendar programs as the lines of a table, with times in `zone`."""
    from orchestrator.base.clock import local_minute
    from orchestrator.base.tables import table

    if not rows:
        return ["No calendar was given out: see 'andy calendar add --help'."]
    return table(
        ("id", "group", "name", "since", "last fetched"),
        [
            (
                str(row["id"]),
                row["group"],
                row["name"] or "-",
                local_minute(row["since_ms"], zone),
                "never" if row["fetched_ms"] is None else local_minute(row["fetched_ms"], zone),
            )
            for row in rows
        ],
    )
