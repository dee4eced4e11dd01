"""`andy open` and `andy sessions`: the console in a browser, and the browsers that are signed in."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from cyclopts import App, Parameter

from orchestrator.cli.exit_codes import UsageError
from orchestrator.cli.options import HomeOption, JsonOption, read

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from orchestrator.store.database import Tx

sessions_app = App(name="sessions")


class SessionView(TypedDict):
    """A browser that is signed in, as `--json` prints it. Times are epoch milliseconds."""

    id: str
    browser: str
    since_ms: int
    seen_ms: int


def open_console(
    *,
    browser: Annotated[
        bool, Parameter(name="--browser", negative="--no-browser", help="Open it, or only print its address.")
    ] = True,
    home: HomeOption = None,
) -> None:
    """Open the console in a browser, signed in. The code that does it works once, for 30 seconds.

    Example: `andy open --no-browser`
    """
    address = asyncio.run(_console_address(home))
    if browser and _open_in_browser(address):
        print("The console opens in your browser. If it does not, run 'andy open --no-browser'.")
        return
    if browser:
        print(
            "No browser was found here. Open this address within 30 seconds in one on this machine; from"
            f" another one, type there first: ssh -L {_port(address)}:127.0.0.1:{_port(address)} THIS-MACHINE"
        )
    print(address)


def _port(address: str) -> int:
    """Return the port in the console's address; 443, that of https, if it names none."""
    from urllib.parse import urlsplit

    return urlsplit(address).port or 443


def _open_in_browser(address: str) -> bool:
    """Open an address in a browser; return whether there is one."""
    import webbrowser

    try:
        return webbrowser.open(address)
    except webbrowser.Error:
        return False


async def _console_address(home: Path | None) -> str:
    """Return the console's address with a code that signs a browser in. Raises `NotRunning`."""
    from orchestrator.cli import terminal
    from orchestrator.cli.client import Client

    async with Client.of(terminal.home_of(home)) as client:
        return await client.console_address()


@sessions_app.command(name="list")
def list_sessions(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List the browsers that are signed in, the last used first. Works with Andy down.

    Example: `andy sessions list`
    """
    from orchestrator.cli import terminal

    read(home, _session_rows, partial(_session_lines, zone=terminal.zone_of(home)), as_json=as_json)


@sessions_app.command
def revoke(
    session: Annotated[str | None, Parameter(help="The browser, by its id in 'andy sessions list'.")] = None,
    /,
    *,
    every: Annotated[bool, Parameter(name="--all", negative="", help="Sign every browser out.")] = False,
    home: HomeOption = None,
) -> None:
    """Sign a browser out, or all of them. Works with Andy down.

    Example: `andy sessions revoke --all`
    """
    from orchestrator.cli import terminal

    if (session is None) != every:
        raise UsageError("Say which session, by its id in 'andy sessions list', or --all.")
    count = asyncio.run(terminal.change(home, partial(_revoke, session)))
    print(f"{count} signed out.")


async def _revoke(session: str | None, tx: Tx, now_ms: int) -> int:
    """Sign out the browser with the id `session`, or all browsers for None; return how many.

    The change is written to the audit log. Raises `UnknownSession`.
    """
    from orchestrator.store import audit
    from orchestrator.store.access import web_sessions

    count = 1
    if session is None:
        count = await web_sessions.remove_all(tx)
    else:
        await web_sessions.remove(tx, session)
    detail = {"session": session or "all", "count": count}
    await audit.append(tx, audit.AuditEvent(at_ms=now_ms, kind="web.session_revoked", detail=detail))
    return count


async def _session_rows(tx: Tx) -> list[SessionView]:
    """Return the browsers that are signed in as rows for `--json`."""
    from orchestrator.base.clock import SystemClock
    from orchestrator.store.access import web_sessions

    return [
        {
            "id": session.id,
            "browser": session.browser,
            "since_ms": session.created_ms,
            "seen_ms": session.seen_ms,
        }
        for session in await web_sessions.every(tx, now_ms=SystemClock().now_ms())
    ]


def _session_lines(rows: list[SessionView], *, zone: ZoneInfo) -> list[str]:
    """Return rows about signed-in browsers as the lines of a table for people, with times in `zone`."""
    from orchestrator.base.clock import local_second
    from orchestrator.base.tables import table

    if not rows:
        return ["Nobody is signed in: see 'andy open'."]
    return table(
        ("id", "browser", "since", "last used"),
        [
            (
                row["id"],
                row["browser"],
                local_second(row["since_ms"], zone),
                local_second(row["seen_ms"], zone),
            )
            for row in rows
        ],
    )
