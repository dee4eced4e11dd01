"""Sends what is due at its time: exact timers from the database, a sweep for what they missed."""

from __future__ import annotations

from orchestrator.clock import Clock
from orchestrator.hints import Hints
from orchestrator.models import ReminderState
from orchestrator.store import outbox, reminders
from orchestrator.store.database import Database

SWEEP_SECONDS = 60.0


class Scheduler:
    """Wakes at the next due time, or when a new one was set."""

    def __init__(self, database: Database, *, clock: Clock, hints: Hints) -> None:
        self._database = database
        self._clock = clock
        self._hints = hints

    async def run(self) -> None:
        while True:
            await self._hints.scheduler.wait(at_most_seconds=await self._fire_due())

    async def _fire_due(self) -> float:
        now_ms = self._clock.now_ms()
        async with self._database.transaction() as tx:
            due = await reminders.due(tx, now_ms)
            for reminder in due:
                await reminders.close(tx, reminder.id, ReminderState.SENT)
                await outbox.add(
                    tx,
                    chat_jid=reminder.chat_jid,
                    folder=reminder.folder,
                    text=reminder.text,
                    dedupe_key=f"reminder:{reminder.id}",
                    now_ms=now_ms,
                )
            next_ms = await reminders.next_due_ms(tx)
        if due:
            self._hints.outbox.give()
        if next_ms is None:
            return SWEEP_SECONDS
        return min(SWEEP_SECONDS, max(0.0, (next_ms - self._clock.now_ms()) / 1000))
