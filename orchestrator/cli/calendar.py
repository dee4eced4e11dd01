"""`andy calendar`: the addresses by which calendar programs read what is to come in a group."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from orchestrator.cli.options import HomeOption, JsonOption, read, show

if TYPE_CHECKING:
    from orchestrator.groups.calendar_feeds import NewFeed
    from orchestrator.store.calendar_feeds import CalendarFeed

calendar_app = App(name="calendar")


@calendar_app.command
def add(
    group: Annotated[str, Parameter(help="The folder of the group.")],
    /,
    *,
    name: Annotated[str, Parameter(help="The device or person that it is for.")] = "",
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Make an address that calendar programs subscribe to: reminders, scheduled tasks and deadlines.

    Whoever has the address can read them, and nothing else. It is shown only now. Works with Andy down.

    Example: `andy calendar add family --name "my phone"`
    """
    from orchestrator.cli import terminal

    made = asyncio.run(terminal.change(home, partial(_add, group, name)))
    origin = _origin(home)
    row = _row(made.feed) | {"address": f"{origin}{made.path}"}
    show(row, partial(_made_lines, is_public=origin.startswith("https:")), as_json=as_json)


@calendar_app.command(name="list")
def list_calendars(
    group: Annotated[str | None, Parameter(help="The folder of the group; without it, all groups.")] = None,
    /,
    *,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List the addresses that were given out, without their secrets. Works with Andy down.

    Example: `andy calendar list family`
    """
    from orchestrator.cli import terminal

    read(home, partial(_rows, group), partial(_lines, zone=terminal.zone_of(home)), as_json=as_json)


@calendar_app.command
def revoke(
    calendar: Annotated[int, Parameter(help="Its id in 'andy calendar list'.")],
    /,
    *,
    home: HomeOption = None,
) -> None:
    """Make an address useless, at once. Works with Andy down.

    Example: `andy calendar revoke 3`
    """
    from orchestrator.cli import terminal

    feed = asyncio.run(terminal.change(home, partial(_revoke, calendar)))
    print(f"Calendar {feed.id} of '{feed.folder}' is revoked: its address opens nothing any more.")


async def _add(group: str, name: str, tx: Any, now_ms: int) -> NewFeed:
    from orchestrator.groups import calendar_feeds

    return await calendar_feeds.add(tx, group, name=name, now_ms=now_ms)


async def _revoke(feed_id: int, tx: Any, now_ms: int) -> CalendarFeed:
    from orchestrator.groups import calendar_feeds

    return await calendar_feeds.revoke(tx, feed_id, now_ms=now_ms)


async def _rows(group: str | None, tx: Any) -> list[dict[str, Any]]:
    from orchestrator.store import calendar_feeds, groups

    folder = None if group is None else (await groups.known(tx, group)).folder
    return [_row(one) for one in await calendar_feeds.every(tx, folder)]


def _row(feed: CalendarFeed) -> dict[str, Any]:
    return {
        "id": feed.id,
        "group": feed.folder,
        "name": feed.name,
        "since_ms": feed.created_ms,
        "fetched_ms": feed.fetched_ms,
    }


def _origin(home: Path | None) -> str:
    """Return the server's address: that of the reverse proxy, of the running Andy, or of the settings."""
    from orchestrator.cli import terminal

    found = terminal.home_of(home)
    settings = terminal.settings_of(found)
    if settings.andy_web_origin:
        return settings.andy_web_origin
    try:
        return found.address_file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return f"http://127.0.0.1:{settings.andy_port}"


def _made_lines(row: dict[str, Any], *, is_public: bool) -> list[str]:
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


def _lines(rows: list[dict[str, Any]], *, zone: Any) -> list[str]:
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
