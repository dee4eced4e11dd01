"""Reads and changes a home's dashboards for the command line with the host's services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar
from zoneinfo import ZoneInfo

from orchestrator.backup import archive
from orchestrator.base.clock import SystemClock
from orchestrator.base.event_bus import EventBus
from orchestrator.cli import terminal
from orchestrator.cli.client import Client
from orchestrator.dashboard.feature import DashboardFeature, WorkerQueued
from orchestrator.dashboard.files import export
from orchestrator.dashboard.views import notification_log as history_view
from orchestrator.dashboard.views import serializers
from orchestrator.dashboard.views.board import snapshot
from orchestrator.dashboard.worker import rules_pass
from orchestrator.domain.dashboard import Actor, Caller
from orchestrator.domain.errors import BadRequest, NoDashboard
from orchestrator.domain.values import Folder, Group
from orchestrator.groups import settings as group_config
from orchestrator.groups.host_context import HostContext
from orchestrator.home import settings as config
from orchestrator.reports import notifications as notification_reports
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.board import questions as board_questions
from orchestrator.store.board import tasks as board_tasks
from orchestrator.store.board import worker_cycles
from orchestrator.store.database import Database, Tx
from orchestrator.store.groups import groups

T = TypeVar("T")
MAIN = "main"


class _BoardRow(Protocol):
    """A row of a dashboard."""

    @property
    def folder(self) -> Folder:
        """The group of the dashboard."""


R = TypeVar("R", bound=_BoardRow)


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


def tasks(home: Path | None, folder: str | None) -> list[dict[str, Any]]:
    """Return the tasks on the dashboard of a group, or of all groups for None, the next deadline first."""
    return _rows(
        home,
        folder,
        lambda tx, folder: (
            board_tasks.on_board(tx, folder) if folder else board_tasks.on_boards_of_all(tx, limit=-1)
        ),
        serializers.task,
    )


def history(home: Path | None, folder: str | None, *, limit: int) -> list[dict[str, Any]]:
    """Return at most `limit` tasks in the history of a group, or of all groups for None, the newest first."""
    return _rows(
        home, folder, lambda tx, folder: board_tasks.history(tx, folder, limit=limit), serializers.task
    )


def questions(home: Path | None, folder: str | None) -> list[dict[str, Any]]:
    """Return the open questions on the dashboard of a group, or of all groups for None, the oldest first."""
    return _rows(
        home,
        folder,
        lambda tx, folder: (
            board_questions.unanswered(tx, folder)
            if folder
            else board_questions.unanswered_of_all(tx, limit=-1)
        ),
        serializers.question,
    )


def notifications(
    home: Path | None, folder: str | None, *, status: str | None, task: str | None, limit: int
) -> list[notification_reports.NotificationView]:
    """Return at most `limit` notifications of a group, or of all groups for None, by due time.

    If `status` is not None, only those with it are returned; if `task` is not None, only those of the task
    with this id.
    """
    zone = config.load(terminal.home_of(home).root).zone
    return terminal.read(
        home,
        lambda tx: notification_reports.rows(tx, folder, status=status, task=task, limit=limit, zone=zone),
    )


def _rows(
    home: Path | None,
    folder: str | None,
    read: Callable[[Tx, Folder | None], Awaitable[Sequence[R]]],
    to_data: Callable[[R, ZoneInfo], Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return rows of the dashboard of the group `folder`, or of all dashboards for None, as data.

    `read` reads the rows; `to_data` converts each with the time zone of its group. Rows of groups that were
    removed are left out, because no command could find them.

    Raises:
        UnknownGroup: there is no such group.
    """
    zone = config.load(terminal.home_of(home).root).zone

    async def query(tx: Tx) -> list[dict[str, Any]]:
        """Return the rows of groups that still exist, as data with the group and its time zone."""
        zones = {group.folder: group_config.zone_of(group, default=zone) for group in await groups.every(tx)}
        known_folder = None if folder is None else (await groups.known(tx, folder)).folder
        rows = [(row, zones[row.folder]) for row in await read(tx, known_folder) if row.folder in zones]
        return [
            {"group": row.folder, "timezone": row_zone.key, **to_data(row, row_zone)}
            for row, row_zone in rows
        ]

    return terminal.read(home, query)


async def cycles(tx: Tx, group_zone: GroupZone, *, limit: int) -> list[dict[str, Any]]:
    """Return at most `limit` passes (cycles) of the worker of a group's dashboard, the newest first."""
    return await worker_cycles.newest(tx, group_zone.group.folder, limit=limit)


async def group_and_zone(tx: Tx, group_zone: GroupZone) -> GroupZone:
    """Return the known group and its time zone: the query for `query_group`, if only these are needed."""
    del tx
    return group_zone


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

    `question` is its id or the beginning of it; with None as `folder` it may be of any group.

    Raises:
        BadRequest: no question has such an id, several have, or the answer is refused.
    """

    async def act() -> str:
        """Answer the question whose id is or starts with `question`, as the tool of a turn does."""
        async with opened(home) as (database, boards):
            async with database.reading() as tx:
                group, chosen = await _find(tx, folder, question, "question", board_questions.ids_like)
            arguments = {"question_id": chosen, "answer": text}
            result = await boards.service.call_tool(group.folder, "answer_question", arguments)
        if not result.ok:
            raise BadRequest(result.text)
        return result.text

    return asyncio.run(act())


async def _find(
    tx: Tx,
    folder: str | None,
    prefix: str,
    kind: str,
    ids_like: Callable[[Tx, Folder, str], Awaitable[list[str]]],
) -> tuple[Group, str]:
    """Return the group and the id of the only row whose id is or begins with `prefix`.

    The row belongs to the group `folder`, or to any group for None. `ids_like` returns the ids of a group's
    rows that begin with a text.

    Raises:
        UnknownGroup: there is no such group.
        BadRequest: there is no such row, or there are several; its text names them by `kind`.
    """
    searched = await groups.every(tx) if folder is None else [await groups.known(tx, folder)]
    matches = [(group, row_id) for group in searched for row_id in await ids_like(tx, group.folder, prefix)]
    # A whole id means that row, even if other ids begin with it.
    matches = [(group, row_id) for group, row_id in matches if row_id == prefix] or matches
    # An empty prefix names no row, even if there is only one.
    if len(matches) == 1 and prefix:
        return matches[0]
    if not matches:
        raise BadRequest(f"There is no {kind} '{prefix}': see 'andy dashboard {kind}s'.")
    shown_matches = ", ".join(f"{row_id} of '{group.folder}'" for group, row_id in matches)
    raise BadRequest(f"'{prefix}' begins several: {shown_matches}. Name one and its group.")


def apply_rules(home: Path | None, folder: str | None, *, is_dry: bool) -> dict[str, Any]:
    """Apply the rules, which for example archive ended tasks, to a group's dashboard; return their report.

    With `is_dry` nothing is changed, and the report has under `would` what would be done. `folder` is None
    for the main group.

    Raises:
        UnknownGroup: there is no such group.
        NoDashboard: the group has no dashboard.
    """

    async def act() -> dict[str, Any]:
        """Apply the rules in one transaction and return their report; a dry run only plans the changes."""
        async with opened(home) as (database, boards), database.transaction() as tx:
            group = await groups.known(tx, folder or MAIN)
            dashboard = await snapshot(tx, group.folder)
            if dashboard is None:
                raise NoDashboard(group.folder)
            hours, now_ms = boards.hours_of(group), SystemClock().now_ms()
            if is_dry:
                report = await rules_pass.preview(tx, dashboard, hours, now_ms=now_ms)
                return {
                    **report.to_detail(),
                    "would": [rules_pass.describe_step(step) for step in report.plan.actions],
                }
            caller = Caller(actor=Actor.WORKER, now_ms=now_ms)
            report = await rules_pass.apply(
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
    """Write the files of a group's dashboard into a directory; return their names.

    Raises:
        NoDashboard: the group has no dashboard.
        BadRequest: the directory cannot be written.
    """
    group_zone = query_group(home, folder, group_and_zone)
    # Read by a connection of its own and as plain rows: that takes a third of the time, and keeps nobody from
    # writing meanwhile.
    exported = export.read(terminal.home_of(home).database, group_zone.group.folder, group_zone.zone)
    if exported is None:
        raise NoDashboard(group_zone.group.folder)
    try:
        export.write(directory, exported.contents)
    except OSError as error:
        writable = archive.writable_place(terminal.home_of(home), directory, error)
        fix = f"name one in {writable.parent}, such as {writable}" if writable else "name another"
        raise BadRequest(f"The directory {directory} cannot be written ({error}): {fix}.") from error
    return sorted(exported.contents)


def import_files(home: Path | None, folder: str | None, directory: Path, *, replaces: bool) -> dict[str, int]:
    """Import the JSON files of `directory` into a group's dashboard, all rows or none.

    Return the number of imported rows of each kind. With `replaces` the present rows are deleted first;
    otherwise only rows with new ids are added. What was changed or left out is printed on stderr. `folder` is
    None for the main group.

    Raises:
        ImportRefused: a row is not valid.
    """

    async def act() -> dict[str, int]:
        """Import the files, print what was changed or left out, and return the counts of rows."""
        async with opened(home) as (_, boards):
            rows = await boards.service.import_from(folder or MAIN, directory, replaces=replaces)
        for note in rows.notes:
            terminal.say_aside(note)
        for change in rows.change_lines():
            terminal.say_aside(f"Changed: {change}")
        return rows.counts()

    return asyncio.run(act())


def notification(home: Path | None, folder: str | None, prefix: str) -> dict[str, Any]:
    """Return a notification with its history, both as data and, under `lines`, as lines of text.

    `prefix` is its id or the beginning of it. The notification belongs to the group `folder`, or to any group
    for None.

    Raises:
        UnknownGroup: there is no such group.
        BadRequest: no notification has such an id, or several have.
    """
    default_zone = config.load(terminal.home_of(home).root).zone

    async def ask(tx: Tx) -> dict[str, Any]:
        """Find the notification, and return it with its history."""
        group, row_id = await _find(tx, folder, prefix, "notification", board_notifications.ids_like)
        zone = group_config.zone_of(group, default=default_zone)
        row = await board_notifications.get(tx, group.folder, row_id)
        assert row is not None
        recorded = await board_notifications.history_of(tx, group.folder, row.id)
        entries = history_view.with_creation(row, recorded)
        return {
            "group": group.folder,
            **serializers.notification(row, zone),
            "history": [history_view.data(entry, zone) for entry in entries],
            "lines": [history_view.line(entry, zone) for entry in entries],
        }

    return terminal.read(home, ask)
