"""Gives commands the home that is meant, its settings, and access to its store.

Reading commands answer in a tenth of a second, so what only some commands need is imported inside functions.
"""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from orchestrator.base.clock import SystemClock
from orchestrator.cli.exit_codes import UsageError
from orchestrator.domain import setting_sources
from orchestrator.domain.errors import AndyError, BadTime, NotRunning
from orchestrator.domain.home import Home, home_directory

if TYPE_CHECKING:
    from orchestrator.cli.client import Client
    from orchestrator.domain.settings import Settings
    from orchestrator.scheduler.scheduled_task_service import ScheduleReader
    from orchestrator.store.database import Database, Tx

T = TypeVar("T")
CONNECT_SECONDS = 1.0


def say_aside(text: str) -> None:
    """Print for a person on stderr, beside the output."""
    print(text, file=sys.stderr, flush=True)


def home_of(given: Path | None) -> Home:
    """Return the home that `--home` names; without it, the one of ANDY_HOME or of this directory."""
    return Home(home_directory(given))


def settings_of(home: Home, **overrides: Any) -> Settings:
    """Return all that the owner has set; `overrides` come from the command line.

    Raises:
        SettingError: a setting is unknown or has a bad value.
    """
    from orchestrator.domain import settings as config

    return config.load(home.root, **overrides)


def zone_of(given: Path | None) -> ZoneInfo:
    """Return the zone in which times are shown: that of the running Andy, else of the settings.

    Raises `SettingError`.
    """
    home = home_of(given)
    return running_zone(home) or setting_sources.zone(home.root)


def running_zone(home: Home) -> ZoneInfo | None:
    """Return the time zone with which Andy runs, whatever the files say since; None where he does not run."""
    try:
        zone = ZoneInfo(home.zone_file.read_text(encoding="utf-8"))
        address = urlsplit(home.address_file.read_text(encoding="utf-8"))
        # Both files outlive an Andy who was killed, so his port is tried.
        with socket.create_connection((address.hostname, address.port), timeout=CONNECT_SECONDS):
            return zone
    except (OSError, ValueError, ZoneInfoNotFoundError):
        return None


@dataclass(frozen=True, slots=True)
class LocalNow:
    """Now, and the owner's zone."""

    now_ms: int
    zone: ZoneInfo


def web_origin(given: Path | None) -> str:
    """Return the server's address: that of the reverse proxy, of the running Andy, or of the settings."""
    home = home_of(given)
    settings = settings_of(home)
    if settings.andy_web_origin:
        return settings.andy_web_origin
    try:
        return home.address_file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return f"http://127.0.0.1:{settings.andy_port}"


def moment(given: Path | None) -> LocalNow:
    """Return now, in the time zone of a home. Raises `SettingError`."""
    return LocalNow(SystemClock().now_ms(), zone_of(given))


def since_ms(text: str | None, at: LocalNow) -> int:
    """Read the option `--since`; return epoch milliseconds, 0 for the beginning. Raises `UsageError`."""
    from orchestrator.reports import since

    try:
        return since.since_ms(text, now_ms=at.now_ms, zone=at.zone)
    except BadTime as error:
        raise UsageError(str(error)) from error


def read(given: Path | None, query: Callable[[Tx], Awaitable[T]]) -> T:
    """Return what `query` finds in the store of a home, whether Andy runs or not. Raises `StoreError`."""
    from orchestrator.store.reader import read_once

    return read_once(home_of(given).database, query)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end in an event loop of its own, which only then is loaded."""
    import asyncio

    return asyncio.run(work)


async def change(
    given: Path | None, act: Callable[[Tx, int], Awaitable[T]], *, makes_home: bool = False
) -> T:
    """Change the store of a home in one transaction; a running Andy sees it at its next look.

    `act` gets the transaction and the time in epoch milliseconds. Raises `StoreError` like `opened`.
    """
    async with opened(given, makes_home=makes_home) as database, database.transaction() as tx:
        return await act(tx, SystemClock().now_ms())


@asynccontextmanager
async def opened(given: Path | None, *, makes_home: bool = False) -> AsyncIterator[Database]:
    """Give the store of a home to change.

    Raises `StoreError` where none is, for a mistyped `--home` is no wish for a new one, unless `makes_home`.
    """
    from orchestrator.store.database import Database, refuse_missing

    home = home_of(given)
    if not makes_home:
        refuse_missing(home.database)
    home.make()
    database = await Database.open(home.database)
    try:
        with unlogged():
            yield database
    finally:
        await database.close()


async def tell_configured(given: Path | None, folder: str) -> None:
    """Have a running Andy look at once at what was set for a group."""
    from orchestrator.cli.client import Client

    with suppress(AndyError):  # a hint: it is stored, and whoever runs looks by itself twice a minute
        async with Client.of(home_of(given)) as client:
            await client.tell_configured(folder)


@contextmanager
def unlogged() -> Iterator[None]:
    """Keep what services say for the host's log, but for errors, out of what a command prints."""
    import structlog

    was = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        yield
    finally:
        structlog.configure(**was)


async def ask_or_change(
    given: Path | None,
    ask: Callable[[Client], Awaitable[T]],
    act: Callable[[Tx, int], Awaitable[T]],
) -> T:
    """Have the running Andy do it, or change the store where none runs."""
    from orchestrator.cli.client import Client

    try:
        async with Client.of(home_of(given)) as client:
            return await ask(client)
    except NotRunning:
        return await change(given, act)


def task_times(given: Path | None) -> ScheduleReader:
    """Return what reads the schedules of a home's tasks."""
    from orchestrator.dashboard.feature import read_time
    from orchestrator.groups import settings as group_config
    from orchestrator.scheduler.timing import schedule_reader

    return schedule_reader(partial(group_config.zone_of, default=zone_of(given)), read_time=read_time)
