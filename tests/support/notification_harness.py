"""A host without containers that sends notifications to a scripted messenger.

The parts between the dashboard and the messenger are real.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from orchestrator.dashboard.delivery.due_notifications import NotificationDispatcher
from orchestrator.dashboard.delivery.outcomes import DeliveryOutcomes
from orchestrator.dashboard.rules.slots import Hours
from orchestrator.domain.dashboard import BoardTask, Notification, Question
from orchestrator.outbound.delivery import Delivery, DeliveryHooks
from orchestrator.store.board import dashboards
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.board import questions as board_questions
from orchestrator.store.board import tasks as board_tasks
from orchestrator.store.database import Database
from tests.doubles.channel import ScriptedChannel
from tests.support.dashboards import FOLDER, SEOUL, at
from tests.support.store_harness import StoreHarness
from tests.support.until import until


@dataclass
class NotificationHarness:
    """Time passes when a test says so."""

    harness: StoreHarness
    channel: ScriptedChannel = field(default_factory=ScriptedChannel)
    daily_limit: int = 10

    def __post_init__(self) -> None:
        self.hours = Hours(zone=SEOUL)
        self.dispatcher = self.another(self.harness.database)

    def another(self, database: Database) -> NotificationDispatcher:
        harness = self.harness
        return NotificationDispatcher(
            database,
            clock=harness.clock,
            wakeups=harness.wakeups,
            bus=harness.bus,
            hours_of=lambda _: self.hours,
            daily_limit=self.daily_limit,
        )

    def origin(self) -> DeliveryHooks:
        outcomes = DeliveryOutcomes(wakeup=self.harness.wakeups.notifications)
        return DeliveryHooks(
            why_not=outcomes.why_not,
            note_sent=outcomes.note_sent,
            note_failed=outcomes.note_failed,
            note_given_up=outcomes.note_given_up,
        )

    def delivering(self) -> AbstractAsyncContextManager[Delivery]:
        """The messenger's side, while the block runs."""
        return self.harness.delivering(self.channel, self.origin())

    # What happens

    def is_now(self, text: str) -> None:
        """Set the clock to a time of Seoul."""
        self.harness.clock.pass_ms(at(text) - self.harness.clock.now_ms())

    async def look(self, text: str | None = None) -> float:
        """Let the dispatcher look, at a time of Seoul if one is given."""
        if text is not None:
            self.is_now(text)
        return await self.dispatcher.send_due()

    async def put(self, *rows: BoardTask | Question | Notification) -> None:
        """Write rows as they are."""
        async with self.harness.database.transaction() as tx:
            await dashboards.ensure(tx, FOLDER, now_ms=0)
            for row in rows:
                match row:
                    case BoardTask():
                        await board_tasks.put(tx, row, read_version=None)
                    case Question():
                        await board_questions.put(tx, row, read_version=None)
                    case Notification():
                        await board_notifications.put(tx, row, read_version=None)

    async def change(self, id_: str, **changes: Any) -> None:
        async with self.harness.database.transaction() as tx:
            for name, value in changes.items():
                await tx.execute(f"UPDATE notifications SET {name} = ? WHERE id = ?", (value, id_))

    # What is there then

    async def row(self, id_: str) -> Notification:
        async with self.harness.database.reading() as tx:
            found = await board_notifications.get(tx, FOLDER, id_)
        assert found is not None
        return found

    async def until_status(self, id_: str, status: str) -> Notification:
        async def holds() -> bool:
            return (await self.row(id_)).status.value == status

        await until(holds, f"{id_} {status}")
        return await self.row(id_)

    async def until_quiet(self) -> None:
        """Wait until nothing is on its way."""

        async def holds() -> bool:
            return not await self.harness.rows(
                "SELECT 1 FROM outbox WHERE state IN ('pending', 'sending') AND next_attempt_ms <= ?",
                self.harness.clock.now_ms(),
            )

        await until(holds, "nothing is on its way")
