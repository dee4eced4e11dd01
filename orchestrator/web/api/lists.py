"""`/api`: whatever a person can see, as JSON: the rows of the reports, page by page.

Each answer is read by a connection of its own in a thread, all of it as it was at one moment: a long list
holds up neither the host nor its writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, TypeVar, get_type_hints
from zoneinfo import ZoneInfo

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from orchestrator.base.clock import Clock
from orchestrator.containers.logs import reading
from orchestrator.containers.swarm.nodes import NodeView
from orchestrator.context import person_memory
from orchestrator.context.context_manager import ContextManager
from orchestrator.context.person_memory import KnownPerson, KnownPersonView
from orchestrator.dashboard.services.reminders import ReminderService, ReminderView
from orchestrator.domain.values import Folder, RunId, TurnId
from orchestrator.home.directory import Home
from orchestrator.reports import (
    approvals,
    audit,
    context,
    costs,
    loop,
    message_timeline,
    messages,
    notices,
    turn_work,
)
from orchestrator.reports import groups as group_reports
from orchestrator.reports import notifications as notification_reports
from orchestrator.reports import search as search_reports
from orchestrator.reports import tasks as task_reports
from orchestrator.reports import upcoming as upcoming_reports
from orchestrator.reports.approvals import ApprovalView
from orchestrator.reports.audit import AuditVerdictView
from orchestrator.reports.context import ContextDocumentView
from orchestrator.reports.costs import BudgetView, UsageDocumentView
from orchestrator.reports.groups import ChatView, GroupView
from orchestrator.reports.loop import LoopView
from orchestrator.reports.message_timeline import TimelineDocumentView
from orchestrator.reports.messages import MessageView
from orchestrator.reports.notices import NoticeView
from orchestrator.reports.notifications import NotificationView
from orchestrator.reports.queues import OutboxView, RunView, TurnView, outbox_rows, run_rows, turn_rows
from orchestrator.reports.search import FoundView
from orchestrator.reports.since import since_ms
from orchestrator.reports.tasks import TaskDocumentView
from orchestrator.reports.turn_work import TurnDocumentView
from orchestrator.reports.upcoming import UpcomingView
from orchestrator.scheduler import scheduled_task_service
from orchestrator.scheduler.scheduled_task_service import TaskView
from orchestrator.store.audit import AuditView
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.groups.changes import GroupChangeView
from orchestrator.store.reader import read_once
from orchestrator.store.runs.commands import CommandView
from orchestrator.web.api.queries import (
    ApiQuery,
    AuditQuery,
    GroupPageQuery,
    LogsQuery,
    MessagesQuery,
    NoticesQuery,
    NotificationsQuery,
    OneGroupPageQuery,
    OverQuery,
    PageQuery,
    SearchQuery,
    UpcomingQuery,
    UsageQuery,
)
from orchestrator.web.api.schemas import RowPage, answer_schema
from orchestrator.web.bodies import parse_query, whole_number

MAX_PLACE = 100_000
"""The last index at which a page of a list that is no history may begin: all rows before it are read, too."""
Q = TypeVar("Q", bound=ApiQuery)
R = TypeVar("R")
T = TypeVar("T")


class LogDocumentView(TypedDict):
    """The last lines of a log; `run` is the container's run that wrote it, null for the host's log."""

    group: str | None
    run: str | None
    lines: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSource:
    """The sources that the rows of the lists are read from."""

    home: Home
    clock: Clock
    zone: ZoneInfo
    reminders: ReminderService
    context_of: Callable[[Folder], ContextManager]
    draft: Callable[[RunId | None, TurnId], Awaitable[str]]
    """Returns the text that the agent is writing in a running turn."""
    nodes: Callable[[], Awaitable[list[NodeView]]]

    async def read(self, query: Callable[[Tx], Awaitable[T]]) -> T:
        """Run `query` in a thread on the database as it is at one moment, and return its result."""
        return await asyncio.to_thread(read_once, self.home.database, query)

    def since_ms(self, text: str | None) -> int:
        """Return a past time such as `2h` (ago) or `2026-02-10` in epoch milliseconds; 0 for None.

        Raises `BadRequest` for another text.
        """
        return since_ms(text, now_ms=self.clock.now_ms(), zone=self.zone)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiResource:
    """One address of `/api`."""

    path: str
    summary: str
    query: type[ApiQuery]
    answer: type[BaseModel]
    read: Callable[[ApiSource, Request], Awaitable[object]]
    """Returns the answer to a request. Raises `BadRequest`."""


def list_routes(source: ApiSource) -> list[Route]:
    """Return the route of each resource of `/api`."""
    return [_route(source, resource) for resource in RESOURCES]


def _route(source: ApiSource, resource: ApiResource) -> Route:
    """Return the route that answers requests for a resource of `/api`."""

    async def answer(request: Request) -> Response:
        """Read the resource, and answer with it as JSON that clients must not store."""
        content = await resource.read(source, request)
        return JSONResponse(content, headers={"Cache-Control": "no-store"})

    return Route(resource.path, answer)


# Pages


def _newest_first_page(read_rows: Sequence[R], query: PageQuery, cursor_of: Callable[[R], int]) -> RowPage[R]:
    """Return a page of rows that were read newest first.

    The caller has read up to `query.limit + 1` rows. If there is one too many, it is left out, and there is a
    next page, which begins after the page's last row. `cursor_of` returns the number by which a client names
    a row.
    """
    rows = read_rows[: query.limit]
    return {"rows": rows, "next": cursor_of(rows[-1]) if len(read_rows) > query.limit else None}


def _oldest_first_page(read_rows: Sequence[R], query: PageQuery, cursor_of: Callable[[R], int]) -> RowPage[R]:
    """Return a page of the newest rows, which are in the order oldest first.

    The caller has read up to `query.limit + 1` rows. If there is one too many, the first one is left out, and
    there is a next page, with the rows before the page's first one. `cursor_of` returns the number by which a
    client names a row.
    """
    rows = read_rows[-query.limit :]
    return {"rows": rows, "next": cursor_of(rows[0]) if len(read_rows) > query.limit else None}


def _cut_page(rows: Sequence[R], query: PageQuery) -> RowPage[R]:
    """Return a page of a whole list; the cursor is the index of the row with which the page begins."""
    start = query.cursor or 0
    end = start + query.limit
    return {"rows": rows[start:end], "next": end if len(rows) > end else None}


def _rows_needed(query: PageQuery) -> int:
    """Return how many rows `_cut_page` needs for a page: all before it, its own, and one of the next.

    For a page that begins after `MAX_PLACE`, the number is too small, so that page lacks rows or is empty.
    """
    return min(query.cursor or 0, MAX_PLACE) + query.limit + 1


# The handlers of the resources: each returns its answer, whose type is the schema in OpenAPI. The third
# parameter has the values of the path.


async def _messages(source: ApiSource, query: MessagesQuery, _: Mapping[str, str]) -> RowPage[MessageView]:
    """Read a page of a group's messages: the newest, those before a cursor, or those after a number.

    The messages of a page are oldest first. With `query.after`, the client repeats its request with the last
    number, so there is no next page.
    """
    limit = query.limit + 1
    rows = await source.read(
        lambda tx: messages.rows(tx, query.group, limit=limit, before_seq=query.cursor, after_seq=query.after)
    )
    if query.after is None:
        return _oldest_first_page(rows, query, lambda row: row["seq"])
    return {"rows": rows[: query.limit], "next": None}


async def _message(source: ApiSource, _: ApiQuery, path: Mapping[str, str]) -> TimelineDocumentView:
    """Read the history of the message in the path, with the lines about it in the logs of its runs."""
    stored = await source.read(lambda tx: message_timeline.find(tx, path["group"], path["id"]))
    return await asyncio.to_thread(message_timeline.with_logs, stored, source.home.logs)


async def _turns(source: ApiSource, query: GroupPageQuery, _: Mapping[str, str]) -> RowPage[TurnView]:
    """Read a page of turns, the newest first."""
    limit = query.limit + 1
    rows = await source.read(lambda tx: turn_rows(tx, query.group, limit=limit, before_id=query.cursor))
    return _newest_first_page(rows, query, lambda row: row["id"])


async def _turn(source: ApiSource, _: ApiQuery, path: Mapping[str, str]) -> TurnDocumentView:
    """Read what the turn in the path has done, with the text that its agent is writing now.

    A path that is no number of a turn counts as 0, which no turn has.
    """
    number = whole_number(path["id"]) or 0
    document = await source.read(lambda tx: turn_work.find(tx, number))
    return {**document, "draft": await source.draft(document["run"], TurnId(number))}


async def _runs(source: ApiSource, query: GroupPageQuery, _: Mapping[str, str]) -> RowPage[RunView]:
    """Read a page of runs, the newest first."""
    limit = query.limit + 1  # one more shows whether another page follows
    rows = await source.read(lambda tx: run_rows(tx, query.group, limit=limit, before_number=query.cursor))
    return _newest_first_page(rows, query, lambda row: row["number"])


async def _commands(source: ApiSource, query: GroupPageQuery, _: Mapping[str, str]) -> RowPage[CommandView]:
    """Read a page of the commands that containers sent to the host, the newest first."""
    limit = query.limit + 1
    rows = await source.read(
        lambda tx: audit.command_rows(tx, query.group, limit=limit, before_number=query.cursor)
    )
    return _newest_first_page(rows, query, lambda row: row["number"])


async def _audit(source: ApiSource, query: AuditQuery, _: Mapping[str, str]) -> RowPage[AuditView]:
    """Read a page of the audit log, of all groups or one; with `query.refused`, only refusals.

    The rows of a page are oldest first, and the next page has the rows before them.
    """
    since_ms, limit = source.since_ms(query.since), query.limit + 1
    rows = await source.read(
        lambda tx: audit.rows(
            tx,
            query.group,
            since_ms=since_ms,
            limit=limit,
            before_id=query.cursor,
            only_refused=query.refused,
        )
    )
    return _oldest_first_page(rows, query, lambda row: row["id"])


async def _verdict(source: ApiSource, _: ApiQuery, __: Mapping[str, str]) -> AuditVerdictView:
    """Check the hashes of the audit log, each of which includes the one before, and return the result."""
    return await source.read(audit.verify)


async def _search(source: ApiSource, query: SearchQuery, _: Mapping[str, str]) -> RowPage[FoundView]:
    """Read a page of the messages that match a text, the newest first."""
    since_ms, limit = source.since_ms(query.since), query.limit + 1
    rows = await source.read(
        lambda tx: search_reports.rows(
            tx, query.text, folder=query.group, since_ms=since_ms, before_seq=query.cursor, limit=limit
        )
    )
    return _newest_first_page(rows, query, lambda row: row["seq"])


async def _approvals(source: ApiSource, query: GroupPageQuery, _: Mapping[str, str]) -> RowPage[ApprovalView]:
    """Read a page of requests for approval, the newest first."""
    limit, now_ms = query.limit + 1, source.clock.now_ms()
    rows = await source.read(
        lambda tx: approvals.rows(tx, query.group, limit=limit, now_ms=now_ms, before_id=query.cursor)
    )
    return _newest_first_page(rows, query, lambda row: row["id"])


async def _tasks(source: ApiSource, query: OverQuery, _: Mapping[str, str]) -> RowPage[TaskView]:
    """Read a page of the scheduled tasks; with `query.over`, also of those that have ended."""
    listed_tasks = await source.read(lambda tx: task_reports.every(tx, query.group, with_ended=query.over))
    return _cut_page([scheduled_task_service.to_row(task) for task in listed_tasks], query)


async def _task(source: ApiSource, _: ApiQuery, path: Mapping[str, str]) -> TaskDocumentView:
    """Read the scheduled task in the path, with its newest runs."""
    return await source.read(lambda tx: task_reports.get(tx, path["id"]))


async def _reminders(source: ApiSource, query: GroupPageQuery, _: Mapping[str, str]) -> RowPage[ReminderView]:
    """Read a page of the pending reminders."""
    return _cut_page(await source.read(lambda tx: source.reminders.list_views(tx, query.group)), query)


async def _notifications(
    source: ApiSource, query: NotificationsQuery, _: Mapping[str, str]
) -> RowPage[NotificationView]:
    """Read a page of the notifications of dashboards, of all groups or one."""
    rows = await source.read(
        lambda tx: notification_reports.rows(
            tx,
            query.group,
            status=query.status,
            task=query.task,
            limit=_rows_needed(query),
            zone=source.zone,
        )
    )
    return _cut_page(rows, query)


async def _outbox(source: ApiSource, query: PageQuery, _: Mapping[str, str]) -> RowPage[OutboxView]:
    """Read a page of the texts that wait to be sent, or could not be."""
    return _cut_page(await source.read(lambda tx: outbox_rows(tx, limit=_rows_needed(query))), query)


async def _notices(source: ApiSource, query: NoticesQuery, _: Mapping[str, str]) -> RowPage[NoticeView]:
    """Read a page of the notices for a group's agent; with `query.over`, also of those that have ended."""
    rows = await source.read(
        lambda tx: notices.every(tx, query.group, with_ended=query.over, limit=_rows_needed(query))
    )
    return _cut_page(rows, query)


async def _usage(source: ApiSource, query: UsageQuery, _: Mapping[str, str]) -> UsageDocumentView:
    """Read how much of the model was used, summed up by what `query.by` names, such as days."""
    now_ms = source.clock.now_ms()
    return await source.read(
        lambda tx: costs.usage(tx, query.group, by=query.by, now_ms=now_ms, zone=source.zone)
    )


async def _budgets(source: ApiSource, query: PageQuery, _: Mapping[str, str]) -> RowPage[BudgetView]:
    """Read a page of the budgets, each with the part that is used."""
    now_ms = source.clock.now_ms()
    return _cut_page(await source.read(lambda tx: costs.budgets(tx, now_ms=now_ms, zone=source.zone)), query)


async def _groups(source: ApiSource, query: PageQuery, _: Mapping[str, str]) -> RowPage[GroupView]:
    """Read a page of the registered groups."""
    return _cut_page(await source.read(group_reports.group_rows), query)


async def _changes(
    source: ApiSource, query: OneGroupPageQuery, _: Mapping[str, str]
) -> RowPage[GroupChangeView]:
    """Read a page of the owner's changes of a group's settings and memory."""
    return _cut_page(await source.read(lambda tx: group_reports.change_rows(tx, query.group)), query)


async def _chats(source: ApiSource, query: PageQuery, _: Mapping[str, str]) -> RowPage[ChatView]:
    """Read a page of all known chats, with and without a group."""
    return _cut_page(await source.read(group_reports.chat_rows), query)


async def _upcoming(source: ApiSource, query: UpcomingQuery, _: Mapping[str, str]) -> RowPage[UpcomingView]:
    """Read a page of what will happen in the next `query.days` days, such as reminders and tasks."""
    now_ms = source.clock.now_ms()
    rows = await source.read(
        lambda tx: upcoming_reports.week(tx, query.group, now_ms=now_ms, zone=source.zone, days=query.days)
    )
    return _cut_page(rows, query)


async def _loops(source: ApiSource, query: PageQuery, _: Mapping[str, str]) -> RowPage[LoopView]:
    """Read a page of the groups' loops: whether each agent wakes by itself, and when."""
    now_ms = source.clock.now_ms()
    return _cut_page(await source.read(lambda tx: loop.every(tx, now_ms=now_ms)), query)


async def _nodes(source: ApiSource, query: PageQuery, _: Mapping[str, str]) -> RowPage[NodeView]:
    """Read a page of the machines of the swarm."""
    return _cut_page(await source.nodes(), query)


async def _logs(source: ApiSource, query: LogsQuery, _: Mapping[str, str]) -> LogDocumentView:
    """Read the last lines of the host's log or, if the query has a group, of the log of one of its runs."""

    def read_lines() -> LogDocumentView:
        """Return the last lines of the log that the query names. Blocks."""
        if query.group is None:
            last_lines, _ = reading.last_lines(source.home.host_log, query.lines)
            return {"group": None, "run": None, "lines": last_lines}
        log_file = reading.run_log(source.home.logs, query.group, query.run)
        last_lines, _ = reading.last_lines(log_file.path, query.lines)
        return {"group": query.group, "run": log_file.run, "lines": last_lines}

    return await asyncio.to_thread(read_lines)


async def _context(source: ApiSource, _: ApiQuery, path: Mapping[str, str]) -> ContextDocumentView:
    """Read what a group's agent remembers, with its snapshots and its notes on people."""
    group = await source.read(lambda tx: groups.known(tx, path["group"]))
    stored_notes = await source.read(lambda tx: person_memory.notes_of(tx, group.folder))

    def read_files() -> ContextDocumentView:
        """Return the memory in the group's files, with the notes from the store. Blocks."""
        manager = source.context_of(group.folder)
        shown = context.show(group.folder, context.read(manager, now_ms=source.clock.now_ms()))
        notes = [note.to_row() for note in stored_notes]
        return {**shown, "snapshots": context.snapshot_rows(manager.snapshots()), "notes": notes}

    return await asyncio.to_thread(read_files)


async def _known_person(source: ApiSource, _: ApiQuery, path: Mapping[str, str]) -> KnownPersonView:
    """Read what the group in the path remembers of a person, who is named there by address or name."""

    async def read_person(tx: Tx) -> KnownPerson:
        """Return what is stored about the person. Raises `UnknownGroup` for an unknown group."""
        return await person_memory.known_of(tx, await groups.known(tx, path["group"]), path["who"])

    return (await source.read(read_person)).to_row()


def _resource(
    name: str, summary: str, read: Callable[[ApiSource, Q, Mapping[str, str]], Awaitable[object]]
) -> ApiResource:
    """Return the resource `/api/NAME`, which is described in OpenAPI by `summary` and answered by `read`.

    `read` takes the source of the rows, the parsed query, and the values in the path. The annotations of
    `read` say what type the query and the answer have.
    """
    # The hints are in the order of the signature: the source, the query, the path and the answer.
    _, query, _, answer = get_type_hints(read).values()

    async def answer_to(source: ApiSource, request: Request) -> object:
        """Parse the query of a request, and return what `read` answers to it. Raises `BadQuery`."""
        return await read(source, parse_query(request.query_params, query), request.path_params)

    return ApiResource(
        path=f"/api/{name}",
        summary=summary,
        query=query,
        answer=answer_schema(answer),
        read=answer_to,
    )


RESOURCES = (
    _resource(
        "messages",
        "A group's messages with their outcomes, the oldest of the page first; `next` is an earlier page.",
        _messages,
    ),
    _resource(
        "messages/{group}/{id}",
        "The history of one message, by its number or its id: from its arrival to its reply.",
        _message,
    ),
    _resource("turns", "Turns, which are requests to agents, newest first.", _turns),
    _resource(
        "turns/{id}",
        "One turn: its agent's tool calls and, while the turn runs, the text that is being written.",
        _turn,
    ),
    _resource("runs", "Runs of containers, newest first.", _runs),
    _resource("tasks", "Scheduled tasks.", _tasks),
    _resource("tasks/{id}", "A scheduled task with its newest runs.", _task),
    _resource("reminders", "The pending reminders, the next one first.", _reminders),
    _resource(
        "notifications",
        "Notifications of dashboards, sent and pending, by due time.",
        _notifications,
    ),
    _resource(
        "outbox",
        "Messages that wait, may have been sent (`unknown`) or were given up (`dead`), oldest first.",
        _outbox,
    ),
    _resource(
        "usage",
        "The usage of the model in tokens and estimated dollars, and the used part of each budget.",
        _usage,
    ),
    _resource("budgets", "The budgets, with the used part of each.", _budgets),
    _resource("notices", "A group's notices for its agent.", _notices),
    _resource(
        "audit",
        "Rows of the audit: requests that left containers, and refusals. The oldest of the page is first; "
        "`next` is an earlier page.",
        _audit,
    ),
    _resource(
        "audit/verify",
        "The result of checking whether a row of the audit was changed or is missing.",
        _verdict,
    ),
    _resource(
        "approvals",
        "Requests of agents for the owner's approval, with the decisions, newest first.",
        _approvals,
    ),
    _resource(
        "commands",
        "Commands of containers to the host, newest first.",
        _commands,
    ),
    _resource("groups", "The registered groups.", _groups),
    _resource(
        "changes",
        "The owner's changes of a group's settings and memory, newest first.",
        _changes,
    ),
    _resource("chats", "All known chats, with and without a group.", _chats),
    _resource(
        "upcoming",
        "Tasks, notifications, reminders and wakes of the coming days, by due time.",
        _upcoming,
    ),
    _resource("nodes", "The machines of a swarm.", _nodes),
    _resource("loops", "The loop of each group.", _loops),
    _resource("search", "Messages that have the searched words, newest first.", _search),
    _resource("logs", "The last lines of the log of the host or of a container.", _logs),
    _resource(
        "context/{group}",
        "The stored context of a group's conversation, its snapshots, and the notes about people.",
        _context,
    ),
    _resource(
        "context/{group}/people/{who}",
        "Everything that is stored about one person of a group, who is named by address or name.",
        _known_person,
    ),
)
