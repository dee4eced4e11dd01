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
    """Return the result of `query` for the group `folder`, or for the main group if that is None.

    `query` gets a transaction, and the group with its time zone.

    Raises:
        UnknownGroup: there is no such group.
    """
    zone = config.load(terminal.home_of(home).root).zone

    async def ask(tx: Tx) -> T:
        """Find the group in the transaction, and return the result of the query for it."""
        group = await groups.known(tx, folder or MAIN)
        return await query(tx, GroupZone(group=group, zone=group_config.zone_of(group, default=zone)))

    return terminal.read(home, ask)


async def board_of(tx: Tx, place: GroupZone) -> BoardSnapshot | None:
    """Return the whole dashboard of a group; None if it has none."""
    return await snapshot(tx, place.group.folder)


async def history(tx: Tx, place: GroupZone, *, limit: int) -> list[Any]:
    """Return at most `limit` tasks in the history of a group's dashboard, the newest first."""
    return await board_tasks.history(tx, place.group.folder, limit=limit)


async def cycles(tx: Tx, place: GroupZone, *, limit: int) -> list[dict[str, Any]]:
    """Return the newest runs (cycles) of the worker of a group's dashboard, the newest first."""
    return await worker_cycles.newest(tx, place.group.folder, limit=limit)


async def itself(tx: Tx, place: GroupZone) -> GroupZone:
    """Return the group and its time zone: for `query_group`, if only these are needed."""
    del tx
    return place


@asynccontextmanager
async def opened(home: Path | None) -> AsyncIterator[tuple[Database, DashboardFeature]]:
    """Yield the database of a home, open for changes, and the services of its dashboards.

    Raises:
        StoreError: the home has no database.
    """
    root = terminal.home_of(home)
    settings = config.load(root.root)
    channel_of = terminal.channel_of(home)
    clock = SystemClock()
    async with terminal.open_store(home) as database:
        host = HostContext(
            home=root, settings=settings, clock=clock, database=database, reader=database, bus=EventBus(clock)
        )
        # This process has no model to ask: only a running Andy has.
        yield (
            database,
            DashboardFeature(
                host,
                can_deliver=lambda group: channel_of(group.jid) is not None,
                has_model=lambda _: False,
            ),
        )


def answer(home: Path | None, folder: str | None, question: str, text: str) -> str:
    """Answer an open question on a group's dashboard, and return a text about the result.

    `question` is its id or the beginning of it; `folder` is None for the main group.

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
    """Return the only one of `ids`, which all begin with `prefix`.

    Raises:
        BadRequest: there is none, or there are several; `kind` says in its text what the ids are of.
    """
    if len(ids) == 1 and prefix:
        return ids[0]
    if not ids:
        raise BadRequest(f"There is no {kind} '{prefix}': see 'andy dashboard {kind}s'.")
    raise BadRequest(f"'{prefix}' begins several: {', '.join(ids)}.")


def rules(home: Path | None, folder: str | None, *, is_dry: bool) -> dict[str, Any]:
    """Apply the rules to a group's dashboard, such as to archive ended tasks, and return their report.

    With `is_dry` nothing is changed, and the report has under `would` what would be done. `folder` is None
    for the main group.

    Raises:
        NoDashboard: the group has no dashboard.
    """

    async def act() -> dict[str, Any]:
        """Apply the rules in one transaction and return their report; a dry run applies none."""
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
    """Queue a turn in which a model looks at a group's dashboard; `folder` is None for the main group.

    Raises:
        NotRunning: Andy does not run.
    """

    async def act() -> WorkerQueued:
        """Request the turn from the running Andy, which answers before the turn starts."""
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
    """Import the JSON files of `directory` into a group's dashboard, all rows or none.

    Return the number of imported rows of each kind. `replaces` deletes the present rows first; otherwise only
    rows with new ids are added. Changes of the rows are printed on stderr.

    Raises:
        ImportRefused: a row does not fit.
    """

    async def act() -> dict[str, int]:
        """Import the files, print what was changed or left out, and return the counts of rows."""
        async with opened(home) as (_, boards):
            rows = await boards.service.import_from(folder or MAIN, directory, replaces=replaces)
        for note in rows.notes:
            terminal.say_aside(note)
        for change in rows.normalised():
            terminal.say_aside(f"Changed: {change}")
        return rows.counts()

    return asyncio.run(act())


async def notification(tx: Tx, place: GroupZone, prefix: str) -> tuple[Notification, list[HistoryEntry]]:
    """Return a notification of a group's dashboard, and its history with the newest entry last.

    `prefix` is its id or the beginning of it. Raises `BadRequest` if none or several begin so.
    """
    folder = place.group.folder
    ids = await board_notifications.ids_like(tx, folder, prefix)
    row = await board_notifications.get(
        tx, folder, prefix if prefix in ids else _only_match(ids, prefix, "notification")
    )
    assert row is not None
    recorded = await board_notifications.history_of(tx, folder, row.id)
    return row, history_view.with_creation(row, recorded)
