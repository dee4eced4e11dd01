"""Gives commands their home, its settings, and access to its store.

Reading commands answer in a tenth of a second, so modules that only some need are imported inside functions.
"""

from __future__ import annotations

import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from orchestrator.base.clock import SystemClock
from orchestrator.cli.exit_codes import UsageError
from orchestrator.domain.errors import BadTime
from orchestrator.home import lock as home_lock
from orchestrator.home import setting_sources
from orchestrator.home.directory import Home, home_directory

if TYPE_CHECKING:
    from orchestrator.channels.description import ChannelDescription
    from orchestrator.domain.values import ChatJid
    from orchestrator.home.settings import Settings
    from orchestrator.scheduler.scheduled_task_service import ScheduleReader
    from orchestrator.store.database import Database, Tx

T = TypeVar("T")
CONNECT_SECONDS = 1.0
"""Seconds to wait for a connection to the port of a running Andy."""


def say_aside(text: str) -> None:
    """Print a line for a person on stderr, apart from the command's output; nothing if it cannot be written.

    The terminal may be gone, which must end neither the host nor the work of a command.
    """
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def home_of(home_option: Path | None) -> Home:
    """Return the home of the option `--home`; without it, that of ANDY_HOME, else the default home."""
    return Home(home_directory(home_option))


def settings_of(home: Home, **overrides: Any) -> Settings:
    """Return the settings of a home; `overrides` come from the command line.

    Raises:
        SettingError: a setting is unknown or has a bad value.
    """
    from orchestrator.home import settings as config

    return config.load(home.root, **overrides)


def settings_to_show(home: Home) -> Settings:
    """Return the settings of a home, for a command that only shows what they say.

    If a file of settings is invalid, stderr says so, and those of the environment alone are returned.
    """
    from orchestrator.domain.errors import SettingError

    try:
        return settings_of(home)
    except SettingError as error:
        say_aside(f"andy: The settings are left out of this: {error}")
        return settings_of_environment()


def settings_of_environment() -> Settings:
    """Return the settings of the environment alone; the defaults if those are invalid."""
    import os

    from orchestrator.domain.errors import SettingError
    from orchestrator.home import settings as config

    try:
        # `/dev/null` is no folder, so no file of settings is found in it.
        return config.load(Path(os.devnull))
    except SettingError:
        return config.Settings()


def has_gateway(home_option: Path | None) -> bool:
    """Return whether the model service of `.env` is a gateway, whose models may have any names.

    `home_option` is the option `--home`.
    """
    import os

    from orchestrator.proxies.model.credentials import CredentialSource

    return CredentialSource(home_of(home_option).root, os.environ).has_gateway()


def zone_of(home_option: Path | None) -> ZoneInfo:
    """Return the time zone in which a command prints times: that of the running Andy, else of the settings.

    `home_option` is the option `--home`. Raises `SettingError`.
    """
    home = home_of(home_option)
    # Only the zone is read: most commands need no other setting, and to validate all takes longer.
    return running_zone(home) or setting_sources.zone(home.root)


def running_zone(home: Home) -> ZoneInfo | None:
    """Return the time zone with which Andy was started; None if he does not run."""
    try:
        zone = ZoneInfo(home.zone_file.read_text(encoding="utf-8"))
        address = urlsplit(home.address_file.read_text(encoding="utf-8"))
        # Both files stay after Andy was killed, so his port is tried.
        with socket.create_connection((address.hostname, address.port), timeout=CONNECT_SECONDS):
            return zone
    except (OSError, ValueError, ZoneInfoNotFoundError):
        return None


def is_running(home: Home) -> bool:
    """Return whether Andy runs on a home and answers."""
    return running_zone(home) is not None


@dataclass(frozen=True, slots=True)
class LocalNow:
    """The present time and the time zone for output."""

    now_ms: int
    zone: ZoneInfo


def web_origin(home_option: Path | None) -> str:
    """Return the address of Andy's web server, without a path.

    The address is the one that the owner has set for a reverse proxy, else that of the running Andy, else the
    one that the next start gets by the settings. Raises `AndyFileDamaged` if Andy's file with his address is
    damaged.
    """
    from orchestrator.cli.client import read_address

    home = home_of(home_option)
    settings = settings_of(home)
    if settings.andy_web_origin:
        return settings.andy_web_origin
    try:
        return read_address(home)
    except OSError:
        return f"http://127.0.0.1:{settings.andy_port}"


def moment(home_option: Path | None) -> LocalNow:
    """Return the present time, and the time zone in which a command prints times. Raises `SettingError`."""
    return LocalNow(SystemClock().now_ms(), zone_of(home_option))


def since_ms(text: str | None, at: LocalNow) -> int:
    """Return the time that the option `--since` names, in epoch milliseconds; 0 for None, the beginning.

    A duration such as `2h` is counted back from `at`. Raises `UsageError` if it cannot be read.
    """
    from orchestrator.reports import since

    try:
        return since.since_ms(text, now_ms=at.now_ms, zone=at.zone)
    except BadTime as error:
        raise UsageError(str(error)) from error


def read(home_option: Path | None, query: Callable[[Tx], Awaitable[T]]) -> T:
    """Return the result of a query that only reads a home's database, whether Andy runs or not.

    Raises `StoreError`.
    """
    from orchestrator.store.reader import read_once

    # Without an event loop: commands that only read do not load asyncio.
    return read_once(home_of(home_option).database, query)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new event loop, and return its result."""
    # Imported here, since commands that only read do without it.
    import asyncio

    return asyncio.run(work)


def typed(read: Callable[[], T]) -> T:
    """Return what `read` gets from a person, such as by `input`. Blocks the event loop, if one runs.

    Ctrl-C raises `KeyboardInterrupt` at once. asyncio would only cancel its task, which does not end a read;
    and a thread that reads could not be ended at all.
    """
    previous_handler = signal.getsignal(signal.SIGINT)
    if previous_handler is signal.SIG_IGN:  # a shell sets this for a command that runs in the background
        return read()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return read()
    finally:
        signal.signal(signal.SIGINT, previous_handler)


async def change(
    home_option: Path | None,
    act: Callable[[Tx, int], Awaitable[T]],
    *,
    makes_home: bool = False,
    has_lock: bool = False,
) -> T:
    """Change the database of a home in one transaction, and return the result of `act`.

    `act` gets the transaction and the time in epoch milliseconds. A running Andy notices the change at once.
    `has_lock` says that the command has locked the home itself, so that Andy does not run. Raises
    `StoreError` if the home has no database, unless `makes_home` lets it be created.
    """
    async with (
        open_store(home_option, makes_home=makes_home, has_lock=has_lock) as database,
        database.transaction() as tx,
    ):
        return await act(tx, SystemClock().now_ms())


@asynccontextmanager
async def open_store(
    home_option: Path | None, *, makes_home: bool = False, has_lock: bool = False
) -> AsyncIterator[Database]:
    """Yield the database of a home, open for changes. At the end, a running Andy is notified of the changes.

    `has_lock` says that the command has locked the home itself.

    Raises:
        StoreError: the home has no database and `makes_home` is false: a mistyped `--home` must not create a
            home. Or the database has to be migrated, and an older Andy runs.
        BackupError: a restore of the home has not ended.
    """
    import asyncio

    from orchestrator.base.announcements import Announcement, leave_for_host
    from orchestrator.store.database import Database, refuse_missing

    home = home_of(home_option)
    if not makes_home:
        refuse_missing(home.database)
    # Also for a home that exists: one that cannot be written is refused here, with what to do.
    home.make()
    if home.restore_file.exists():
        from orchestrator.backup.swap import refuse_moves

        refuse_moves(home)
    announced: list[Announcement] = []
    alone: AbstractContextManager[None] = nullcontext() if has_lock else _migrating_alone(home)
    with alone:
        database = await Database.open(home.database, announce=announced.append)
    try:
        with without_service_logs():
            yield database
    finally:
        try:
            await database.close()
        finally:
            # Also after an error: an earlier transaction of the command may have committed.
            await asyncio.to_thread(leave_for_host, home.announcements, announced)


@contextmanager
def _migrating_alone(home: Home) -> Iterator[None]:
    """Hold the lock of a home while the block opens its database, if that has to be migrated.

    Raises:
        StoreError: Andy runs: he was started before an upgrade, and does not know the new tables.
    """
    from orchestrator.domain.errors import HomeError, StoreError
    from orchestrator.store.database import migration_ahead

    if migration_ahead(home.database) is None:
        yield
        return
    try:
        lock = home_lock.acquire(home)
    except HomeError as error:
        raise StoreError(
            f"The Andy that runs on {home.root} is older than this command, which would change his database:"
            " start him anew, then repeat the command."
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def without_service_logs() -> Iterator[None]:
    """Suppress the log lines of services, except errors, in the output of a command."""
    import structlog

    previous_config = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        yield
    finally:
        structlog.configure(**previous_config)


def channel_of(home_option: Path | None) -> Callable[[ChatJid], ChannelDescription | None]:
    """Return a function that finds the messenger of a chat's address among those that are switched on.

    Raises `SettingError`.
    """
    from orchestrator.channels import discovery

    switched_on = discovery.switched_on(settings_of(home_of(home_option)).channels)
    return lambda jid: next((channel for channel in switched_on if channel.owns(jid)), None)


def task_times(home_option: Path | None) -> ScheduleReader:
    """Return the reader of the times that people write for scheduled tasks, with the home's time zone."""
    from orchestrator.dashboard.feature import read_time
    from orchestrator.groups import settings as group_config
    from orchestrator.scheduler.timing import schedule_reader

    return schedule_reader(partial(group_config.zone_of, default=zone_of(home_option)), read_time=read_time)
