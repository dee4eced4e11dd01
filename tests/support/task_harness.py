"""A host with a scheduler and a dispatcher, without containers.

It takes scheduled tasks from the request to the end of a run.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import Any
from zoneinfo import ZoneInfo

from agent_runner.wire.frames import Ack, Result, TurnEnd
from agent_runner.wire.mailbox import Reply
from orchestrator.domain.values import Cause, Group, Run, ScheduledTask, TaskRun, Turn
from orchestrator.groups import settings
from orchestrator.ipc.command_dispatcher import CommandDispatcher
from orchestrator.scheduler.loop import Scheduler
from orchestrator.scheduler.timing import schedule_reader
from orchestrator.scheduler.when import point_ms
from orchestrator.store.groups import groups
from orchestrator.store.schedule import task_runs, tasks
from tests.support.command_dispatchers import dashboards_of
from tests.support.reminders import notifier
from tests.support.store_harness import StoreHarness

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


@dataclass
class TaskHarness:
    """What agents ask goes through the real dispatcher; time passes when a test says so."""

    harness: StoreHarness
    zone: ZoneInfo = field(default_factory=lambda: ZoneInfo("Asia/Seoul"))

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)
        harness = self.harness
        self.scheduler = Scheduler(
            harness.database,
            clock=harness.clock,
            wakeups=harness.wakeups,
            bus=harness.bus,
            zone_of=self._zone_of,
        )
        self.dispatcher = CommandDispatcher(
            harness.database,
            clock=harness.clock,
            read_time=point_ms,
            times=schedule_reader(self._zone_of),
            zone_of=self._zone_of,
            wakeups=harness.wakeups,
            bus=harness.bus,
            dashboards=dashboards_of(harness, self._zone_of),
        )

    def _zone_of(self, group: Group) -> ZoneInfo:
        return settings.zone_of(group, default=self.zone)

    # What agents ask

    async def ask(self, type_: str, *, by: str = "family", **fields: Any) -> Reply:
        request_id = fields.pop("requestId", None) or f"r{next(self._numbers)}"
        async with self.harness.database.reading() as tx:
            group = await groups.known(tx, by)
        body = json.dumps({"type": type_, "requestId": request_id, **fields})
        return await self.dispatcher.handle(group, "letter", body.encode())

    async def schedule(self, kind: str = "interval", value: str = "1h", **fields: Any) -> str:
        """Make a task and return its id."""
        asked = {"prompt": "echo news", "schedule_type": kind, "schedule_value": value, **fields}
        reply = await self.ask("schedule_task", **asked)
        assert reply.ok, reply.text
        return str(reply.data["id"])

    # What time and containers do

    async def after(self, milliseconds: int) -> list[Turn]:
        """Let time pass and the scheduler look; gives the group's queued turns."""
        self.harness.clock.pass_ms(milliseconds)
        await self.scheduler.fire_due()
        await notifier(self.harness).send_due()
        return await self.harness.queued()

    async def begin(self) -> tuple[Turn, Run]:
        """Start the group's oldest queued turn."""
        turn, run, _ = await self.harness.start_next()
        await self.harness.take(run, Ack(n=1, turn=turn.id))
        return turn, run

    async def answer(self, turn: Turn, run: Run, text: str = "news") -> None:
        if text:
            await self.harness.take(run, Result(n=2, turn=turn.id, result=text))
        await self.harness.take(run, TurnEnd(n=3, turn=turn.id))

    async def run_through(self, text: str = "news") -> None:
        await self.answer(*await self.begin(), text)

    async def fail_for_good(self) -> None:
        """Fail the group's oldest queued turn with an error that is not tried again."""
        _, run = await self.begin()
        await self.harness.lose(run, is_retryable=False)

    # What the store holds

    async def task(self, task_id: str) -> ScheduledTask:
        async with self.harness.database.reading() as tx:
            found = await tasks.get(tx, task_id)
        assert found is not None
        return found

    async def runs(self, task_id: str) -> list[TaskRun]:
        """Oldest first."""
        async with self.harness.database.reading() as tx:
            return (await task_runs.of_task(tx, task_id, limit=1000))[::-1]

    async def statuses(self, task_id: str) -> list[str]:
        return [run.status.value for run in await self.runs(task_id)]

    async def causes(self, task_id: str) -> list[Cause]:
        return [run.cause for run in await self.runs(task_id)]

    async def told(self) -> list[str]:
        """What waits to be sent that no turn has said."""
        return [one.text for one in await self.harness.outgoing() if one.turn_id is None]
