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
from orchestrator.domain.home import Home
from orchestrator.domain.values import Folder, RunId, TurnId
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
from orchestrator.web.bodies import parse_query

MAX_PLACE = 100_000
"""The last row at which a page of a list that is no history may begin: each page makes all rows before it."""
Q = TypeVar("Q", bound=ApiQuery)
R = TypeVar("R")
T = TypeVar("T")


class LogDocumentView(TypedDict):
    """The last lines of a log; `run` is the one whose log it is, null for the host's own."""

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

    async def look(self, query: Callable[[Tx], Awaitable[T]]) -> T:
        return await asyncio.to_thread(read_once, self.home.database, query)

    def since_ms(self, text: str | None) -> int:
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
    return [_route(source, resource) for resource in RESOURCES]


def _route(source: ApiSource, resource: ApiResource) -> Route:
    async def answer(request: Request) -> Response:
        found = await resource.read(source, request)
        return JSONResponse(found, headers={"Cache-Control": "no-store"})

    return Route(resource.path, answer)


# Pages


def _older(found: Sequence[R], asked: PageQuery, number: Callable[[R], int]) -> RowPage[R]:
    """Return a page that begins with its newest row. One more row was read than fits, if there is one."""
    rows = found[: asked.limit]
    return {"rows": rows, "next": number(rows[-1]) if len(found) > asked.limit else None}


def _older_at_front(found: Sequence[R], asked: PageQuery, number: Callable[[R], int]) -> RowPage[R]:
    """Return a page that ends with its newest row. One older row more than fits was read, if there is one."""
    rows = found[-asked.limit :]
    return {"rows": rows, "next": number(rows[0]) if len(found) > asked.limit else None}


def _part(found: Sequence[R], asked: PageQuery) -> RowPage[R]:
    """Return a page of a list that is no history: it is cut out by the places of its rows."""
    end = (asked.cursor or 0) + asked.limit
    return {"rows": found[asked.cursor or 0 : end], "next": end if len(found) > end else None}


def _reach(asked: PageQuery) -> int:
    """Return how many rows of a list that is no history must be made to cut the page out of them."""
    return min(asked.cursor or 0, MAX_PLACE) + asked.limit + 1


# What is read


async def _messages(source: ApiSource, asked: MessagesQuery, _: Mapping[str, str]) -> RowPage[MessageView]:
    more = asked.limit + 1
    found = await source.look(
        lambda tx: messages.rows(tx, asked.group, limit=more, before=asked.cursor, after=asked.after)
    )
    if asked.after is None:
        return _older_at_front(found, asked, lambda row: row["seq"])
    return {"rows": found[: asked.limit], "next": None}


async def _message(source: ApiSource, _: ApiQuery, path: Mapping[str, str]) -> TimelineDocumentView:
    found = await source.look(lambda tx: message_timeline.find(tx, path["group"], path["id"]))
    return await asyncio.to_thread(message_timeline.with_logs, found, source.home.logs)


async def _turns(source: ApiSource, asked: GroupPageQuery, _: Mapping[str, str]) -> RowPage[TurnView]:
    more = asked.limit + 1
    found = await source.look(lambda tx: turn_rows(tx, asked.group, limit=more, before=asked.cursor))
    return _older(found, asked, lambda row: row["id"])


async def _turn(source: ApiSource, _: ApiQuery, path: Mapping[str, str]) -> TurnDocumentView:
    text = path["id"]
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0
    found = await source.look(lambda tx: turn_work.find(tx, number))
    return {**found, "draft": await source.draft(found["run"], TurnId(number))}


async def _runs(source: ApiSource, asked: GroupPageQuery, _: Mapping[str, str]) -> RowPage[RunView]:
    more = asked.limit + 1
    found = await source.look(lambda tx: run_rows(tx, asked.group, limit=more, before=asked.cursor))
    return _older(found, asked, lambda row: row["number"])


async def _commands(source: ApiSource, asked: GroupPageQuery, _: Mapping[str, str]) -> RowPage[CommandView]:
    more = asked.limit + 1
    found = await source.look(lambda tx: audit.command_rows(tx, asked.group, limit=more, before=asked.cursor))
    return _older(found, asked, lambda row: row["number"])


async def _audit(source: ApiSource, asked: AuditQuery, _: Mapping[str, str]) -> RowPage[AuditView]:
    begin, more = source.since_ms(asked.since), asked.limit + 1
    found = await source.look(
        lambda tx: audit.rows(
            tx, asked.group, since=begin, limit=more, before=asked.cursor, only_refused=asked.refused
        )
    )
    return _older_at_front(found, asked, lambda row: row["id"])


async def _verdict(source: ApiSource, _: ApiQuery, __: Mapping[str, str]) -> AuditVerdictView:
    return await source.look(audit.verify)


async def _search(source: ApiSource, asked: SearchQuery, _: Mapping[str, str]) -> RowPage[FoundView]:
    begin, more = source.since_ms(asked.since), asked.limit + 1
    found = await source.look(
        lambda tx: search_reports.rows(
            tx, asked.text, folder=asked.group, since=begin, before=asked.cursor, limit=more
        )
    )
    return _older(found, asked, lambda row: row["seq"])


async def _approvals(source: ApiSource, asked: GroupPageQuery, _: Mapping[str, str]) -> RowPage[ApprovalView]:
    more, now_ms = asked.limit + 1, source.clock.now_ms()
    found = await source.look(
        lambda tx: approvals.rows(tx, asked.group, limit=more, now_ms=now_ms, before=asked.cursor)
    )
    return _older(found, asked, lambda row: row["id"])


async def _tasks(source: ApiSource, asked: OverQuery, _: Mapping[str, str]) -> RowPage[TaskView]:
    found = await source.look(lambda tx: task_reports.every(tx, asked.group, with_over=asked.over))
    return _part([scheduled_task_service.to_row(task) for task in found], asked)


async def _task(source: ApiSource, _: ApiQuery, path: Mapping[str, str]) -> TaskDocumentView:
    return await source.look(lambda tx: task_reports.one(tx, path["id"]))


async def _reminders(source: ApiSource, asked: GroupPageQuery, _: Mapping[str, str]) -> RowPage[ReminderView]:
    return _part(await source.look(lambda tx: source.reminders.list_views(tx, asked.group)), asked)


async def _notifications(
    source: ApiSource, asked: NotificationsQuery, _: Mapping[str, str]
) -> RowPage[NotificationView]:
    found = await source.look(
        lambda tx: notification_reports.rows(
            tx,
            asked.group,
            status=asked.status,
            task=asked.task,
            limit=_reach(asked),
            zone=source.zone,
        )
    )
    return _part(found, asked)


async def _outbox(source: ApiSource, asked: PageQuery, _: Mapping[str, str]) -> RowPage[OutboxView]:
    return _part(await source.look(lambda tx: outbox_rows(tx, limit=_reach(asked))), asked)


async def _notices(source: ApiSource, asked: NoticesQuery, _: Mapping[str, str]) -> RowPage[NoticeView]:
    found = await source.look(
        lambda tx: notices.every(tx, asked.group, with_over=asked.over, limit=_reach(asked))
    )
    return _part(found, asked)


async def _usage(source: ApiSource, asked: UsageQuery, _: Mapping[str, str]) -> UsageDocumentView:
    now_ms = source.clock.now_ms()
    return await source.look(
        lambda tx: costs.usage(tx, asked.group, by=asked.by, now_ms=now_ms, zone=source.zone)
    )


async def _budgets(source: ApiSource, asked: PageQuery, _: Mapping[str, str]) -> RowPage[BudgetView]:
    now_ms = source.clock.now_ms()
    return _part(await source.look(lambda tx: costs.budgets(tx, now_ms=now_ms, zone=source.zone)), asked)


async def _groups(source: ApiSource, asked: PageQuery, _: Mapping[str, str]) -> RowPage[GroupView]:
    return _part(await source.look(group_reports.group_rows), asked)


async def _changes(
    source: ApiSource, asked: OneGroupPageQuery, _: Mapping[str, str]
) -> RowPage[GroupChangeView]:
    return _part(await source.look(lambda tx: group_reports.change_rows(tx, asked.group)), asked)


async def _chats(source: ApiSource, asked: PageQuery, _: Mapping[str, str]) -> RowPage[ChatView]:
    return _part(await source.look(group_reports.chat_rows), asked)


async def _upcoming(source: ApiSource, asked: UpcomingQuery, _: Mapping[str, str]) -> RowPage[UpcomingView]:
    now_ms = source.clock.now_ms()
    found = await source.look(
        lambda tx: upcoming_reports.week(tx, asked.group, now_ms=now_ms, zone=source.zone, days=asked.days)
    )
    return _part(found, asked)


async def _loops(source: ApiSource, asked: PageQuery, _: Mapping[str, str]) -> RowPage[LoopView]:
    now_ms = source.clock.now_ms()
    return _part(await source.look(lambda tx: loop.every(tx, now_ms=now_ms)), asked)


async def _nodes(source: ApiSource, asked: PageQuery, _: Mapping[str, str]) -> RowPage[NodeView]:
    return _part(await source.nodes(), asked)


async def _logs(source: ApiSource, asked: LogsQuery, _: Mapping[str, str]) -> LogDocumentView:
    def lines() -> LogDocumentView:
        if asked.group is None:
            found, _ = reading.last_lines(source.home.host_log, asked.lines)
            return {"group": None, "run": None, "lines": found}
        run = reading.run_log(source.home.logs, asked.group, asked.run)
        found, _ = reading.last_lines(run.path, asked.lines)
        return {"group": asked.group, "run": run.run, "lines": found}

    return await asyncio.to_thread(lines)


async def _context(source: ApiSource, _: ApiQuery, path: Mapping[str, str]) -> ContextDocumentView:
    group = await source.look(lambda tx: groups.known(tx, path["group"]))
    noted = await source.look(lambda tx: person_memory.notes_of(tx, group.folder))

    def stored() -> ContextDocumentView:
        manager = source.context_of(group.folder)
        shown = context.show(
            group.folder,
            manager.load(now_ms=source.clock.now_ms()),
            context.bad_files(manager.files.path),
        )
        notes = [one.to_row() for one in noted]
        return {**shown, "snapshots": context.snapshot_rows(manager.snapshots()), "notes": notes}

    return await asyncio.to_thread(stored)


async def _known_person(source: ApiSource, _: ApiQuery, path: Mapping[str, str]) -> KnownPersonView:
    async def known(tx: Tx) -> KnownPerson:
        return await person_memory.known_of(tx, await groups.known(tx, path["group"]), path["who"])

    return (await source.look(known)).to_row()


def _resource(
    name: str, summary: str, read: Callable[[ApiSource, Q, Mapping[str, str]], Awaitable[object]]
) -> ApiResource:
    """Return the resource that `read` answers; its query and its answer are those of its annotations."""
    # The hints are in the order of the signature: the source, the query, the path and the answer.
    _, query, _, answer = get_type_hints(read).values()

    async def answer_to(source: ApiSource, request: Request) -> object:
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
        "A group's messages with what became of each, the oldest of the page first; `next` leads back.",
        _messages,
    ),
    _resource(
        "messages/{group}/{id}",
        "All that befell one message, by its number or its id: from its arrival to its reply.",
        _message,
    ),
    _resource("turns", "What agents were asked, newest first.", _turns),
    _resource(
        "turns/{id}",
        "One turn: what its agent did with its tools and, while it runs, the text that it writes.",
        _turn,
    ),
    _resource("runs", "Lives of containers, newest first.", _runs),
    _resource("tasks", "Scheduled tasks.", _tasks),
    _resource("tasks/{id}", "A scheduled task with its newest runs.", _task),
    _resource("reminders", "Reminders to come, the next first.", _reminders),
    _resource(
        "notifications",
        "Notifications of dashboards, told and to be told, by due time.",
        _notifications,
    ),
    _resource(
        "outbox",
        "What waits to be sent, may have been (`unknown`) or is dead, oldest first.",
        _outbox,
    ),
    _resource(
        "usage",
        "What was used of the model, what it cost, about, and how the budgets stand.",
        _usage,
    ),
    _resource("budgets", "How each budget stands.", _budgets),
    _resource("notices", "A group's notices for its agent.", _notices),
    _resource(
        "audit",
        "What was asked, refused and reached, the oldest of the page first; `next` leads back.",
        _audit,
    ),
    _resource(
        "audit/verify",
        "Whether each row of the audit is as it was written.",
        _verdict,
    ),
    _resource(
        "approvals",
        "What agents asked their owner to allow and what was decided, newest first.",
        _approvals,
    ),
    _resource(
        "commands",
        "What containers asked of the host, newest first.",
        _commands,
    ),
    _resource("groups", "The registered groups.", _groups),
    _resource(
        "changes",
        "What the owner changed of a group's settings and memory, newest first.",
        _changes,
    ),
    _resource("chats", "Every chat that was seen, registered or not.", _chats),
    _resource(
        "upcoming",
        "Tasks, notifications, reminders and wakes of the coming days, by due time.",
        _upcoming,
    ),
    _resource("nodes", "The machines of a swarm.", _nodes),
    _resource("loops", "The loop of each group.", _loops),
    _resource("search", "Messages by their words, newest first.", _search),
    _resource("logs", "The last lines of a log.", _logs),
    _resource(
        "context/{group}",
        "What is kept of a group's conversation, and its snapshots.",
        _context,
    ),
    _resource(
        "context/{group}/people/{who}",
        "All that is known of one person of a group, by address or name.",
        _known_person,
    ),
)
