"""Reads and changes a home's dashboards for the command line with the host's services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from orchestrator.base.clock import SystemClock
from orchestrator.base.event_bus import EventBus
from orchestrator.cli import terminal
from orchestrator.cli.client import Client
from orchestrator.dashboard.feature import DashboardFeature, WorkerQueued
from orchestrator.dashboard.files import export
from orchestrator.dashboard.views import notification_log as history_view
from orchestrator.dashboard.views.board import snapshot
from orchestrator.dashboard.worker import cycle
from orchestrator.domain import settings as config
from orchestrator.domain.dashboard import Actor, BoardSnapshot, Caller, Notification
from orchestrator.domain.errors import BadRequest, NoDashboard
from orchestrator.domain.values import Group
from orchestrator.groups import settings as group_config
from orchestrator.groups.host_context import HostContext
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.board import questions as board_questions
from orchestrator.store.board import tasks as board_tasks
from orchestrator.store.board import worker_cycles
from orchestrator.store.board.notifications import HistoryEntry
from orchestrator.store.database import Database, Tx
from orchestrator.store.groups import groups

T = TypeVar("T")
MAIN = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupZone:
    """A group and its time zone."""

    group: Group
    zone: ZoneInfo


def query_group(home: Path | None, folder: str | None, query: Callable[[Tx, GroupZone], Awaitable[T]]) -> T:
    """Return the result of `query` for one group, the main group if `folder` is None.

    Raises:
        UnknownGroup: there is no such group.
    """
    zone = config.load(terminal.home_of(home).root).zone

    async def ask(tx: Tx) -> T:
        """Answer the query for the group, or for the main group if none is named."""
        group = await groups.known(tx, folder or MAIN)
        return await query(tx, GroupZone(group=group, zone=group_config.zone_of(group, default=zone)))

    return terminal.read(home, ask)


async def board_of(tx: Tx, place: GroupZone) -> BoardSnapshot | None:
    """Return the whole dashboard of a group; None if it has none."""
    return await snapshot(tx, place.group.folder)


async def history(tx: Tx, place: GroupZone, *, limit: int) -> list[Any]:
    """Return the tasks in the history of a dashboard, the newest first."""
    return await board_tasks.history(tx, place.group.folder, limit=limit)


async def cycles(tx: Tx, place: GroupZone, *, limit: int) -> list[dict[str, Any]]:
    """Return the newest cycles of a dashboard's worker, the newest first."""
    return await worker_cycles.newest(tx, place.group.folder, limit=limit)


async def itself(tx: Tx, place: GroupZone) -> GroupZone:
    """Return the group and its time zone: a query for `query_group` that reads nothing more."""
    del tx
    return place


@asynccontextmanager
async def opened(home: Path | None) -> AsyncIterator[tuple[Database, DashboardFeature]]:
    """Yield the store of a home and its dashboard services. Raises `StoreError` if the home has no store."""
    root = terminal.home_of(home)
    settings = config.load(root.root)
    channel_of = terminal.channel_of(home)
    clock = SystemClock()
    async with terminal.open_store(home) as database:
        host = HostContext(
            home=root, settings=settings, clock=clock, database=database, reader=database, bus=EventBus(clock)
        )
        # This process asks no model.
        yield (
            database,
            DashboardFeature(
                host,
                can_deliver=lambda group: channel_of(group.jid) is not None,
                has_model=lambda _: False,
            ),
        )


def answer(home: Path | None, folder: str | None, question: str, text: str) -> str:
    """Answer a question, named by its id or the beginning of it, and return a text about it.

    Raises:
        BadRequest: no question or several begin so, or the answer is refused.
    """

    async def act() -> str:
        """Answer the question whose id is or starts with `question`, as the tool of a turn does."""
        async with opened(home) as (database, boards):
            async with database.reading() as tx:
                group = await groups.known(tx, folder or MAIN)
                ids = await board_questions.ids_like(tx, group.folder, question)
            chosen = question if question in ids else _only_match(ids, question)
            arguments = {"question_id": chosen, "answer": text}
            result = await boards.service.call_tool(group.folder, "answer_question", arguments)
        if not result.ok:
            raise BadRequest(result.text)
        return result.text

    return asyncio.run(act())


def _only_match(ids: list[str], prefix: str, kind: str = "question") -> str:
    """Return the only id that begins with `prefix`. Raises `BadRequest` if there is none, or several."""
    if len(ids) == 1 and prefix:
        return ids[0]
    if not ids:
        raise BadRequest(f"There is no {kind} '{prefix}': see 'andy dashboard {kind}s'.")
    raise BadRequest(f"'{prefix}' begins several: {', '.join(ids)}.")


def rules(home: Path | None, folder: str | None, *, is_dry: bool) -> dict[str, Any]:
    """Run the rules over a dashboard and return their report; with `is_dry`, nothing is changed."""

    async def act() -> dict[str, Any]:
        """Check the board by its rules; a dry run only tells what the check would do."""
        async with opened(home) as (database, boards), database.transaction() as tx:
            group = await groups.known(tx, folder or MAIN)
            dashboard = await snapshot(tx, group.folder)
            if dashboard is None:
                raise NoDashboard(group.folder)
            hours, now_ms = boards.hours_of(group), SystemClock().now_ms()
            if is_dry:
                report = await cycle.preview(tx, dashboard, hours, now_ms=now_ms)
                return {
                    **report.to_detail(),
                    "would": [cycle.describe_step(step) for step in report.plan.actions],
                }
            caller = Caller(actor=Actor.WORKER, now_ms=now_ms)
            report = await cycle.apply(
                boards.service.service_context(tx, group, caller), dashboard, hours, why="by hand"
            )
            return report.to_detail()

    return asyncio.run(act())


def ask_model(home: Path | None, folder: str | None) -> WorkerQueued:
    """Queue a worker's turn now. Raises `NotRunning`."""

    async def act() -> WorkerQueued:
        """Have the running host queue a turn for the board; it returns before the turn starts."""
        async with Client.of(terminal.home_of(home)) as client:
            return await client.ask_worker(folder or MAIN)

    return asyncio.run(act())


def write_files(home: Path | None, folder: str | None, directory: Path) -> list[str]:
    """Write the files of a group's dashboard into a directory; return their names. Raises `NoDashboard`."""
    place = query_group(home, folder, itself)
    # By a connection of its own, as plain rows: a third of the time, and no transaction waits for it.
    exported = export.read(terminal.home_of(home).database, place.group.folder, place.zone)
    if exported is None:
        raise NoDashboard(place.group.folder)
    export.write(directory, exported.contents)
    return sorted(exported.contents)


def import_files(home: Path | None, folder: str | None, directory: Path, *, replaces: bool) -> dict[str, int]:
    """Import files, all or nothing, and return the number of rows of each kind. Raises `ImportRefused`."""

    async def act() -> dict[str, int]:
        """Import the files, print what was changed or left out, and count the rows of each table."""
        async with opened(home) as (_, boards):
            rows = await boards.service.import_from(folder or MAIN, directory, replaces=replaces)
        for note in rows.notes:
            terminal.say_aside(note)
        for change in rows.normalised():
            terminal.say_aside(f"Changed: {change}")
        return rows.counts()

    return asyncio.run(act())


async def notification(tx: Tx, place: GroupZone, prefix: str) -> tuple[Notification, list[HistoryEntry]]:
    """Return one notification, named by its id or the beginning of it, and its history."""
    folder = place.group.folder
    ids = await board_notifications.ids_like(tx, folder, prefix)
    row = await board_notifications.get(
        tx, folder, prefix if prefix in ids else _only_match(ids, prefix, "notification")
    )
    assert row is not None
    recorded = await board_notifications.history_of(tx, folder, row.id)
    return row, history_view.with_creation(row, recorded)
