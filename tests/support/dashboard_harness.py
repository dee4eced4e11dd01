"""A host with a dashboard and without containers: a test plays the agent, the worker and the people."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from agent_runner.wire.mailbox import Reply
from orchestrator.dashboard.service import DashboardService
from orchestrator.dashboard.services.context import BoardLimits, ServiceContext
from orchestrator.dashboard.words import when
from orchestrator.domain.dashboard import (
    Actor,
    BoardTask,
    Caller,
    Deadline,
    Notification,
    NotificationType,
    Priority,
    Question,
    ToolResult,
)
from orchestrator.domain.values import ChatJid, Folder, Group, TurnId, TurnKind, TurnState
from orchestrator.ipc.command_context import ContextCommands
from orchestrator.ipc.command_dispatcher import CommandDispatcher
from orchestrator.notices.service import NoticeService as Notices
from orchestrator.scheduler.timing import schedule_reader
from orchestrator.scheduler.when import point_ms
from orchestrator.store.board import dashboards
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.board import questions as board_questions
from orchestrator.store.board import tasks as board_tasks
from orchestrator.store.groups import groups
from orchestrator.store.runs import turns
from tests.support.store_harness import SEOUL, StoreHarness

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
FEB_9_0830 = 1_770_593_400_000
FEB_9_0900 = 1_770_595_200_000
FEB_9_1200 = 1_770_606_000_000
FEB_9_1800 = 1_770_627_600_000
FEB_10_1000 = 1_770_685_200_000
FOLDER = Folder("family")
_NUMBERS = itertools.count(1)


def at(text: str) -> int:
    """A local time in Seoul as epoch ms."""
    return when.parse_datetime(text, now_ms=FEB_9_0830, zone=SEOUL).at_ms


class DashboardHarness:
    """One group with a dashboard, at Monday 2026-02-09 08:30 in Seoul."""

    def __init__(
        self,
        store_harness: StoreHarness,
        *,
        limits: BoardLimits | None = None,
        contexts: ContextCommands | None = None,
    ) -> None:
        self.harness = store_harness
        self.clock = store_harness.clock
        self.clock.wall_ms = FEB_9_0830
        self.can_deliver = True
        self.zone = SEOUL
        self.service = self.service_with(limits)
        self.dispatcher = CommandDispatcher(
            store_harness.database,
            clock=store_harness.clock,
            read_time=point_ms,
            times=schedule_reader(lambda _: self.zone),
            zone_of=lambda _: self.zone,
            wakeups=store_harness.wakeups,
            bus=store_harness.bus,
            dashboards=self.service,
            notices=Notices(clock=self.clock),
            contexts=contexts,
        )

    def service_with(self, limits: BoardLimits | None) -> DashboardService:
        return DashboardService(
            self.harness.database,
            clock=self.clock,
            zone_of=lambda _: self.zone,
            can_deliver=lambda _: self.can_deliver,
            limits=limits,
        )

    # What is on the board before

    async def put(self, *rows: BoardTask | Question | Notification) -> None:
        """Write rows as they are, as if they had been there before."""
        async with self.harness.database.transaction() as tx:
            for row in rows:
                await dashboards.ensure(tx, row.folder, now_ms=self.clock.now_ms())
                row = replace(row, version=await dashboards.advance(tx, row.folder))
                match row:
                    case BoardTask():
                        await board_tasks.put(tx, row, read_version=None)
                    case Question():
                        await board_questions.put(tx, row, read_version=None)
                    case Notification():
                        await board_notifications.put(tx, row, read_version=None)

    # Who acts

    async def call_tool(self, tool: str, /, **arguments: Any) -> ToolResult:
        """A person at a terminal."""
        return await self.service.call_tool(FOLDER, tool, arguments)

    async def ask(self, tool: str, /, *, request_id: str | None = None, **arguments: Any) -> Reply:
        """The agent whose turn runs, by a file in its mailbox."""
        body = {"type": "dashboard", "tool": tool, "arguments": arguments}
        return await self.ask_raw(body | ({"requestId": request_id} if request_id else {}))

    async def ask_raw(self, body: dict[str, Any]) -> Reply:
        async with self.harness.database.reading() as tx:
            group = await groups.known(tx, FOLDER)
        return await self.dispatcher.handle(group, f"{next(_NUMBERS)}.json", json.dumps(body).encode())

    async def chat(self, tool: str, /, **arguments: Any) -> Reply:
        """The agent in a chat turn of its own."""
        async with self.turn(TurnKind.CHAT):
            return await self.ask(tool, **arguments)

    async def worker(self, tool: str, /, **arguments: Any) -> Reply:
        """The worker in a turn of its own."""
        async with self.turn(TurnKind.WORKER):
            return await self.ask(tool, **arguments)

    @asynccontextmanager
    async def turn(self, kind: TurnKind) -> AsyncIterator[int]:
        """A running turn of the group, which has seen the dashboard as it stands."""
        turn_id = await self.begin(kind)
        try:
            yield turn_id
        finally:
            await self.pause(turn_id)

    async def begin(self, kind: TurnKind) -> int:
        run = await self.harness.begin_run()
        now_ms = self.clock.now_ms()
        async with self.harness.database.transaction() as tx:
            rows = await tx.execute_fetchall(
                """
                INSERT INTO turns (group_folder, chat_jid, kind, state, queued_ms, not_before_ms)
                VALUES (?, ?, ?, 'queued', ?, ?) RETURNING id
                """,
                (FOLDER, ChatJid("local:family"), kind, now_ms, now_ms),
            )
            turn_id = TurnId(next(iter(rows))["id"])
            await turns.start(tx, turn_id, run.id, now_ms=now_ms)
            dashboard = await dashboards.get(tx, FOLDER)
            await dashboards.note_view(tx, turn_id, FOLDER, dashboard.revision if dashboard else 0)
        return turn_id

    async def pause(self, turn_id: int) -> None:
        """The turn is not what runs any more."""
        await self._set_state(turn_id, TurnState.ANSWERED)

    async def resume(self, turn_id: int) -> None:
        await self._set_state(turn_id, TurnState.RUNNING)

    async def _set_state(self, turn_id: int, state: TurnState) -> None:
        ended_ms = self.clock.now_ms() if state is TurnState.ANSWERED else None
        async with self.harness.database.transaction() as tx:
            await tx.execute(
                "UPDATE turns SET state = ?, ended_ms = ? WHERE id = ?", (state, ended_ms, turn_id)
            )

    @asynccontextmanager
    async def working(self, actor: Actor = Actor.WORKER) -> AsyncIterator[ServiceContext]:
        """What services act with, in a transaction."""
        async with self.harness.database.transaction() as tx:
            group = await groups.known(tx, FOLDER)
            yield self.service.service_context(tx, group, Caller(actor=actor, now_ms=self.clock.now_ms()))

    # What is on the board now

    async def group(self) -> Group:
        async with self.harness.database.reading() as tx:
            return await groups.known(tx, FOLDER)

    async def task(self, task_id: str) -> BoardTask:
        async with self.harness.database.reading() as tx:
            found = await board_tasks.get(tx, FOLDER, task_id)
        assert found is not None
        return found

    async def question(self, question_id: str) -> Question:
        async with self.harness.database.reading() as tx:
            found = await board_questions.get(tx, FOLDER, question_id)
        assert found is not None
        return found

    async def notification(self, notification_id: str) -> Notification:
        async with self.harness.database.reading() as tx:
            found = await board_notifications.get(tx, FOLDER, notification_id)
        assert found is not None
        return found

    async def everything(self) -> list[list[dict[str, Any]]]:
        """All rows of the dashboard, to see that nothing changed."""
        tables = ("dashboards", "dashboard_tasks", "questions", "notifications", "insights")
        return [await self.harness.rows(f"SELECT * FROM {table} ORDER BY 1, 2") for table in tables]

    async def notifications(self) -> list[Notification]:
        async with self.harness.database.reading() as tx:
            return await board_notifications.listed(tx, FOLDER)


def blog(**changes: Any) -> BoardTask:
    """The document's task_001: the blog, until 2026-02-10."""
    given: dict[str, Any] = {
        "folder": FOLDER,
        "id": "task_001",
        "title": "Write blog post",
        "deadline": Deadline(at_ms=at("2026-02-10T00:00"), date="2026-02-10", text="2026-02-10"),
        "pct": 70,
        "last_update_ms": FEB_9_0830 - HOUR_MS,
        "created_ms": FEB_9_0830 - 5 * DAY_MS,
        "updated_ms": FEB_9_0830 - HOUR_MS,
    }
    return BoardTask(**{**given, **changes})


def alert(**changes: Any) -> Notification:
    """The document's n_001: the deadline alert of the blog, at 09:00."""
    given: dict[str, Any] = {
        "folder": FOLDER,
        "id": "n_001",
        "message": "Blog due tomorrow",
        "due_ms": FEB_9_0900,
        "type": NotificationType.DEADLINE_ALERT,
        "priority": Priority.HIGH,
        "task_id": "task_001",
        "created_ms": FEB_9_0830 - HOUR_MS,
    }
    return Notification(**{**given, **changes})


def a_question(**changes: Any) -> Question:
    """An open question about the blog."""
    given: dict[str, Any] = {
        "folder": FOLDER,
        "id": "q_001",
        "question": "How far is the blog?",
        "task_id": "task_001",
        "created_ms": FEB_9_0830 - HOUR_MS,
    }
    return Question(**{**given, **changes})
