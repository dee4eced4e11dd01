"""What the commands do: serve, talk, look, administer."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from zoneinfo import ZoneInfo

from orchestrator.domain.errors import AndyError, BadRequest, NotRunning, SettingError
from orchestrator.domain.home import Home, home_directory

if TYPE_CHECKING:
    from orchestrator.cli.client import Client
    from orchestrator.domain.settings import Settings
    from orchestrator.domain.values import Group
    from orchestrator.groups.registration import Registration
    from orchestrator.scheduler.scheduled_task_service import ScheduleReader
    from orchestrator.store.database import Tx

T = TypeVar("T")


def say_aside(text: str) -> None:
    """Tell a person something beside the output."""
    print(text, file=sys.stderr, flush=True)


def home_of(given: Path | None) -> Home:
    return Home(home_directory(given))


def settings_of(home: Home, **overrides: Any) -> Settings:
    """What the owner has set. Imported late: most commands need none of it, and reading it is slow to load.

    Raises:
        SettingError: a setting is unknown or has a bad value.
    """
    from orchestrator.domain import settings as config

    return config.load(home.root, **overrides)


async def status(given: Path | None) -> dict[str, Any]:
    from orchestrator.cli.client import Client

    async with Client.of(home_of(given)) as client:
        return await client.status()


async def read(given: Path | None, query: Callable[[Tx], Awaitable[T]]) -> T:
    """Look into the store of a home, whether Andy runs or not."""
    return await read_home(home_of(given), query)


async def read_home(home: Home, query: Callable[[Tx], Awaitable[T]]) -> T:
    from orchestrator.store.database import Database

    database = await Database.open_readonly(home.database)
    try:
        async with database.reading() as tx:
            return await query(tx)
    finally:
        await database.close()


async def change(given: Path | None, act: Callable[[Tx, int], Awaitable[T]]) -> T:
    """Change the store of a home in one transaction; a running Andy sees it at its next look."""
    from orchestrator.base.clock import SystemClock
    from orchestrator.store.database import Database

    home = home_of(given)
    await asyncio.to_thread(home.make)
    database = await Database.open(home.database)
    try:
        async with database.transaction() as tx:
            return await act(tx, SystemClock().now_ms())
    finally:
        await database.close()


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


async def register(given: Path | None, wish: Registration) -> None:
    """Register a chat, through the running Andy where there is one."""
    from orchestrator.cli.client import Client

    home = home_of(given)
    try:
        async with Client.of(home) as client:
            await client.register(wish.model_dump())
    except NotRunning:
        await _register_here(home, wish)


async def _register_here(home: Home, wish: Registration) -> None:
    from orchestrator.groups import memory_templates, registration

    assistant = settings_of(home).assistant_name

    async def act(tx: Tx, now_ms: int) -> Group:
        await registration.ensure_main(tx, now_ms=now_ms)
        return await registration.register(tx, wish.to_group(now_ms))

    group = await change(home.root, act)
    await asyncio.to_thread(memory_templates.ensure_memory, home.root, group, assistant=assistant)


async def unregister(given: Path | None, folder: str) -> str:
    """Forget a group; tells what became of what it had."""
    from orchestrator.groups import registration

    async def ask(client: Client) -> str:
        return str((await client.unregister(folder))["text"])

    async def act(tx: Tx, now_ms: int) -> str:
        return (await registration.unregister(tx, folder, now_ms=now_ms)).explain()

    return await ask_or_change(given, ask, act)


def task_times(given: Path | None) -> ScheduleReader:
    """How the schedules of a home's tasks are read."""
    from orchestrator.dashboard.feature import read_time
    from orchestrator.groups import settings as group_config
    from orchestrator.scheduler.timing import schedule_reader

    return schedule_reader(partial(group_config.zone_of, default=zone_of(given)), read_time=read_time)


def zone_of(given: Path | None) -> ZoneInfo:
    """The zone of a home, in which times are told."""
    return settings_of(home_of(given)).zone


async def configure(given: Path | None, folder: str, changes: dict[str, Any]) -> None:
    """Change a group's configuration; a running Andy ends its containers, and the next ones have it."""
    from orchestrator.cli.client import Client
    from orchestrator.groups import registration

    await change(given, lambda tx, now_ms: registration.configure(tx, folder, changes, now_ms=now_ms))
    with suppress(AndyError):  # a hint: it is stored, and whoever runs looks by itself twice a minute
        async with Client.of(home_of(given)) as client:
            await client.tell_configured(folder)


async def retry(given: Path | None, number: int) -> None:
    from orchestrator.store import outbox

    if not await change(given, lambda tx, now_ms: outbox.revive(tx, number, now_ms=now_ms)):
        raise BadRequest(f"Message {number} is not dead: see 'andy outbox list'.")


async def follow_message(given: Path | None, group: str, message_id: str) -> dict[str, Any]:
    """All that befell one message, by the store and the logs, whether Andy runs or not."""
    from orchestrator.reports import message_timeline

    found = await read(given, lambda tx: message_timeline.find(tx, group, message_id))
    return await asyncio.to_thread(message_timeline.with_logs, found, home_of(given).logs)


async def events(
    given: Path | None, *, group: str | None, recent: int, follows: bool
) -> AsyncIterator[dict[str, Any]]:
    """What happened lately on a running Andy, and what happens from now on. Raises `NotRunning`."""
    from orchestrator.cli.client import Client

    async with Client.of(home_of(given)) as client:
        async for event in client.events(group=group, recent=recent, follows=follows):
            if event:
                yield event


@dataclass(frozen=True, slots=True)
class LocalNow:
    """Now, and the owner's zone."""

    now_ms: int
    zone: ZoneInfo


def moment(given: Path | None) -> LocalNow:
    from orchestrator.base.clock import SystemClock

    return LocalNow(SystemClock().now_ms(), zone_of(given))


async def set_budget(
    given: Path | None,
    amount: str,
    *,
    per: str,
    group: str | None,
    is_background: bool,
) -> None:
    from orchestrator.reports import costs
    from orchestrator.store.budgets import Period

    parsed = costs.parse_amount(amount)

    async def act(tx: Tx, now_ms: int) -> None:
        await costs.set_budget(
            tx, parsed, period=Period(per), folder=group, is_background=is_background, now_ms=now_ms
        )

    await change(given, act)


def back_up(given: Path | None, target: Path, *, with_env: bool, force: bool) -> list[str]:
    """Back a home up, telling how far it is when it takes long; gives what to tell. Blocks.

    `-` is the standard output, which has nothing else in it.
    """
    from orchestrator.backup import make as backup
    from orchestrator.base.clock import SystemClock

    home, clock = home_of(given), SystemClock()
    if str(target) != "-":
        made = backup.back_up(home, target, with_env=with_env, replaces=force, clock=clock, say=say_aside)
        return backup.summary_lines(made)
    if sys.stdout.isatty():
        raise BadRequest("A backup is no text for a terminal: put '> FILE' after 'andy backup -'.")
    # A file of its own: what a broken pipe did not take, Python would try to write again at its end.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    made = backup.stream(home, out, with_env=with_env, clock=clock, say=say_aside)
    for line in backup.summary_lines(made):
        say_aside(line)
    return []


def restore(given: Path | None, source: Path, *, force: bool) -> list[str]:
    """Put a backup in a home's place; gives what to tell. Blocks."""
    from orchestrator.backup import restore as restoring
    from orchestrator.base.clock import SystemClock

    done = restoring.restore(home_of(given), source, force=force, clock=SystemClock(), say=say_aside)
    try:
        zone = zone_of(given)
    except SettingError:  # in the settings that were restored: the next start names it
        zone = None
    return restoring.summary_lines(done, zone=zone)
