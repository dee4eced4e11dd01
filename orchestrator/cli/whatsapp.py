"""`andy whatsapp`: pair through the running Andy or in this process, and show the connection's state."""

from __future__ import annotations

import asyncio
import io
import logging
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, cast
from zoneinfo import ZoneInfo

import structlog
from cyclopts import App, Parameter

from orchestrator.base.terminal_escaping import raw_stream, visible
from orchestrator.cli.client import Client
from orchestrator.cli.options import HomeOption, JsonOption, show
from orchestrator.cli.terminal import home_of, zone_of
from orchestrator.domain.errors import AndyError, NotRunning
from orchestrator.home.directory import Home

if TYPE_CHECKING:
    from orchestrator.web.api.pairing import PairingView

whatsapp_app = App(name="whatsapp")


class NotPaired(AndyError):
    """Nothing was paired."""


@whatsapp_app.command
def pair(
    *,
    phone: Annotated[
        str | None,
        Parameter(help="Show a code to type in on the phone with this number, +49 170 …, not a QR code."),
    ] = None,
    anew: Annotated[
        bool, Parameter(negative="", help="Move an existing login aside first; only with Andy down.")
    ] = False,
    home: HomeOption = None,
) -> int:
    """Pair with a phone: shows a QR code until it is scanned or has expired. Works with Andy up or down.

    Example: `andy whatsapp pair --phone "+49 170 1234567"`
    """
    return asyncio.run(pair_phone(home, phone=phone or "", moves_login_aside=anew))


@whatsapp_app.command
def status(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Show the paired account, the state of its connection, and the last error. Works with Andy down.

    Example: `andy whatsapp status`
    """
    from orchestrator.channels.whatsapp.description import CHANNEL
    from orchestrator.cli.channels import connection_status

    lines = partial(status_lines, zone=zone_of(home))
    show(asyncio.run(connection_status(home_of(home), CHANNEL)), lines, as_json=as_json)


async def pair_phone(home: Path | None, *, phone: str, moves_login_aside: bool) -> int:
    """Show codes until a phone has scanned or entered one; return 0.

    `phone` is the number of a phone that enters a code of letters; empty shows a QR code. With
    `moves_login_aside` the files of an earlier login are renamed first. Raises `NotPaired` with the reason if
    no phone pairs.
    """
    # A line of the log in between would break the picture: each new code is drawn over the earlier one.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    root = home_of(home)
    screen = Screen(raw_stream(sys.stdout), zone_of(home))
    is_up = await _is_running(root)
    pairing_states = _pairing_states(root, phone=phone, moves_login_aside=moves_login_aside, is_up=is_up)
    async with aclosing(pairing_states) as states:
        async for progress in states:
            screen.show(progress)
            if progress["state"] in ("expired", "failed"):
                raise NotPaired(progress["text"])
    return 0


def _pairing_states(
    home: Home, *, phone: str, moves_login_aside: bool, is_up: bool
) -> AsyncGenerator[PairingView]:
    """Return a generator of the states of a pairing, made by the running Andy or by this process.

    `is_up` says that Andy runs. `phone` is the number of a phone that enters a code; empty for a QR code.
    With `moves_login_aside` the files of an earlier login are renamed first; while Andy runs, `NotPaired` is
    raised instead.
    """
    if not is_up:
        return _pair_in_process(home, phone=phone, moves_login_aside=moves_login_aside)
    if moves_login_aside:
        raise NotPaired("Andy is running: stop it before its WhatsApp login is put aside.")
    return _pair_in_host(home, phone=phone)


async def _is_running(home: Home) -> bool:
    """Return whether an Andy runs on the home and answers."""
    try:
        async with Client.of(home) as client:
            await client.status()
    except NotRunning:
        return False
    return True


async def _pair_in_host(home: Home, *, phone: str) -> AsyncGenerator[PairingView]:
    """Yield each state of a pairing that the running Andy makes, until it succeeds, expires or fails.

    `phone` is the number of a phone that enters a code; empty for a QR code. Raises `NotPaired` if Andy ends
    before.
    """
    async with Client.of(home) as client, aclosing(client.events()) as events:
        async for event in events:
            if not event:  # the first one is empty: from here on no event is missed
                yield await client.ask_to_pair(phone)
            elif event.get("kind") == "channel.pairing":
                progress = await client.pairing()
                yield progress
                if progress["state"] in ("paired", "expired", "failed"):
                    return
    raise NotPaired("Andy has ended, and the code with him: start him with 'andy up', then pair again.")


async def _pair_in_process(home: Home, *, phone: str, moves_login_aside: bool) -> AsyncGenerator[PairingView]:
    """Yield each state of a pairing that this process makes, until it succeeds, expires or fails.

    `phone` is the number of a phone that enters a code; empty for a QR code. With `moves_login_aside` the
    files of an earlier login are renamed first. The home is created if it is missing. The result is stored
    for `andy whatsapp status`.
    """
    from orchestrator.base.clock import SystemClock
    from orchestrator.channels import status as condition
    from orchestrator.channels.whatsapp.pairing import Pairing

    clock = SystemClock()
    await asyncio.to_thread(home.make)
    store = home.root / "store" / "whatsapp.db"
    if moves_login_aside:
        await asyncio.to_thread(_move_login_aside, store)
    changes: asyncio.Queue[PairingView | None] = asyncio.Queue()
    pairing = Pairing(
        store,
        clock=clock,
        on_change=lambda progress: changes.put_nowait(cast("PairingView", progress.model_dump())),
    )
    await pairing.request_code(phone)
    task = asyncio.create_task(pairing.run(), name="pairing")
    # Ends the loop below also when the pairing breaks off without a last state.
    task.add_done_callback(lambda _: changes.put_nowait(None))
    try:
        while (progress := await changes.get()) is not None:
            if progress["state"] in ("paired", "expired", "failed"):
                failure = progress["text"] if progress["state"] != "paired" else ""
                channel_status = await asyncio.to_thread(condition.read, _status_path(home))
                channel_status = channel_status.after_pairing(failure=failure, now_ms=clock.now_ms())
                await asyncio.to_thread(condition.write, _status_path(home), channel_status)
            yield progress
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _status_path(home: Home) -> Path:
    """Return the path of the file in which the state of the WhatsApp connection is stored."""
    return home.data / "whatsapp" / "condition.json"


def _move_login_aside(store: Path) -> None:
    """Rename the files of a WhatsApp login, so that another phone can be paired. Blocks.

    They are the database `store` and SQLite's own files beside it; their new names end with the time. Raises
    `NotPaired` if another process has the login open.
    """
    from filelock import FileLock, Timeout

    now = datetime.now(UTC)
    try:
        # The bridge process holds this lock while it has the login open.
        with FileLock(store.with_suffix(".lock"), timeout=0):
            # The database, its write-ahead log and the log's index, but no file that was renamed earlier.
            for path in (store, *store.parent.glob(f"{store.name}-*")):
                if path.exists() and ".before-" not in path.name:
                    path.rename(path.with_name(f"{path.name}.before-{now:%Y%m%d-%H%M%S}"))
    except Timeout as error:
        raise NotPaired("Another process has the WhatsApp login open: end it first.") from error


class Screen:
    """Prints the states of a pairing; on a terminal each code replaces the one before."""

    def __init__(self, out: TextIO, zone: ZoneInfo) -> None:
        """States are written to `out`, with times in `zone`."""
        self._out = out
        self._zone = zone
        self._rows = 0
        """The number of terminal rows of the last printed state, which the next one replaces."""
        self._last = ""
        """The text of the last printed state."""

    def show(self, progress: PairingView) -> None:
        """Print a state of a pairing, unless it is the last printed one, or a failure.

        On a terminal it replaces the last printed state.
        """
        if progress["state"] in ("expired", "failed"):
            return  # reported as an error
        text = visible(progress_text(progress, self._zone))
        if text == self._last:
            return
        if self._rows and self._out.isatty():
            # Move the cursor up to the first of these rows, and erase everything below.
            self._out.write(f"\x1b[{self._rows}A\x1b[J")
        # A line that is longer than the terminal is wide takes several rows.
        columns = max(1, shutil.get_terminal_size().columns)
        self._last, self._rows = text, sum(max(1, -(-len(line) // columns)) for line in text.split("\n"))
        self._out.write(f"{text}\n")
        self._out.flush()


def progress_text(progress: PairingView, zone: ZoneInfo) -> str:
    """Return the text of one state of a pairing for a terminal, with the code to scan or to enter. Pure."""
    if progress["state"] != "showing":
        return str(progress["text"])
    expires_at = datetime.fromtimestamp(progress["until_ms"] / 1000, zone)
    code = f"    {progress['letters']}\n" if progress["letters"] else qr_text(progress["qr"])
    next_code = "" if progress["letters"] else "; a new one follows"
    return f"{progress['text']}\n\n{code}\nIt holds until {expires_at:%H:%M:%S}{next_code}. Ctrl-C ends."


def qr_text(content: str) -> str:
    """Return the QR code of a text as lines of characters, each of which shows two squares."""
    import segno

    out = io.StringIO()
    segno.make(content, error="l", micro=False, boost_error=False).terminal(out, compact=True, border=2)
    return out.getvalue().rstrip("\n")


def status_lines(report: dict[str, Any], *, zone: ZoneInfo) -> list[str]:
    """Return the state of the WhatsApp connection as text, one fact a line, with times in `zone`. Pure."""
    return [
        f"account            {report['account'] or 'none: pair one with andy whatsapp pair'}",
        f"state              {_state_text(report)}",
        *([f"to do              {report['advice']}"] if report["advice"] else []),
        f"connected since    {_time_text(report['connected_since_ms'], zone)}",
        f"last receipt       {_time_text(report['last_receipt_ms'], zone)}",
        f"last message in    {_time_text(report['last_message_ms'], zone)}",
        f"last disconnect    {_with_reason(report['last_disconnect_ms'], report['last_disconnect'], zone)}",
        f"last error         {report['last_error'] or '—'}",
        *(
            [f"last pairing       {_with_reason(report['last_pairing_ms'], report['last_pairing'], zone)}"]
            if report["last_pairing"]
            else []
        ),
        *([f"next try           {_time_text(report['next_try_ms'], zone)}"] if report["next_try_ms"] else []),
    ]


def _state_text(report: dict[str, Any]) -> str:
    """Return the state of the WhatsApp connection as text, with a note if Andy does not run."""
    words = str(report["state"]).replace("_", " ")
    return words if report["is_running"] else f"{words} (Andy is not running)"


def _time_text(at_ms: int | None, zone: ZoneInfo) -> str:
    """Return a time in epoch milliseconds as local time; a dash for none."""
    if at_ms is None:
        return "—"
    return f"{datetime.fromtimestamp(at_ms / 1000, zone):%Y-%m-%d %H:%M:%S}"


def _with_reason(at_ms: int | None, reason: str, zone: ZoneInfo) -> str:
    """Return the time of an event with its reason; a dash if it never happened."""
    time_text = _time_text(at_ms, zone)
    return f"{time_text}: {reason}" if at_ms and reason else time_text
