"""Requests that are read when whoever wrote them has died, or waits for the answer no more."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent_runner.wire.files import unique_name, write_whole
from agent_runner.wire.frames import Ack, Result, TurnEnd
from agent_runner.wire.mailbox import (
    CancelReminder,
    Command,
    NotifySelf,
    Reply,
    ScheduleTask,
    SendMessage,
    SetReminder,
    UseDashboard,
)
from orchestrator.domain.values import Run, Turn
from orchestrator.inbound.intake import build_intake
from orchestrator.ipc import late_answers
from orchestrator.ipc.mailbox_worker import MailboxWorker
from orchestrator.ipc.watcher import MailboxWatcher
from orchestrator.queue.stop_requests import StopRequests
from tests.support.dashboard_harness import FOLDER, DashboardHarness
from tests.support.host_contexts import host_context
from tests.support.reminders import notifier
from tests.support.store_harness import StoreHarness
from tests.support.until import until

SECOND_MS = 1_000


@dataclass(frozen=True, slots=True)
class Outage:
    """A group whose requests lie in its directories until a host reads them."""

    home: DashboardHarness
    root: Path

    @property
    def harness(self) -> StoreHarness:
        return self.home.harness

    async def asked_in_a_turn(self) -> tuple[Turn, Run]:
        await self.harness.hear("@Andy do it")
        turn, run, _ = await self.harness.start_next(FOLDER)
        await self.harness.take(run, Ack(n=1, turn=turn.id))
        return turn, run

    def leave(self, command: Command, turn: Turn, *, request_id: str) -> None:
        """Write a request as a runner does, which nobody reads yet."""
        self._reply_path(request_id).unlink(missing_ok=True)
        asked_ms = self.home.clock.now_ms()
        known = {"request_id": request_id, "turn": turn.id, "asked_ms": asked_ms}
        folder = "messages" if isinstance(command, SendMessage) else "tasks"
        body = command.model_copy(update=known).to_json()
        write_whole(self.root / FOLDER / folder / unique_name(), body)

    async def reply(self, request_id: str) -> Reply:
        """Have a host read what was left, and return what it answers."""
        path = self._reply_path(request_id)
        async with self._host_reads():
            await until(path.exists, f"{request_id} is answered")
        return Reply.parse(path.read_text())

    def _reply_path(self, request_id: str) -> Path:
        return self.root / FOLDER / "replies" / f"{request_id}.json"

    @asynccontextmanager
    async def _host_reads(self) -> AsyncIterator[None]:
        async with MailboxWatcher(self.root) as watcher:
            post = MailboxWorker(
                self.root,
                database=self.harness.database,
                dispatcher=self.home.dispatcher,
                watcher=watcher,
                owner_uids=lambda: frozenset({os.getuid()}),
            )
            reading = asyncio.create_task(post.run(), name="post")
            try:
                yield
            finally:
                reading.cancel()
                await asyncio.wait([reading])

    async def told(self) -> list[str]:
        return [one.text for one in await self.harness.outgoing()]

    async def send_reminders(self) -> None:
        await notifier(self.harness).send_due()


@pytest.fixture
async def outage(store_harness: StoreHarness, tmp_path: Path) -> Outage:
    await store_harness.add_group(FOLDER)
    for name in ("messages", "tasks", "input", "replies"):
        (tmp_path / "ipc" / FOLDER / name).mkdir(parents=True)
    home = DashboardHarness(store_harness)
    return Outage(home, tmp_path / "ipc")


def a_task() -> UseDashboard:
    return UseDashboard(tool="create_task", arguments={"title": "Buy milk"})


async def test_what_a_dead_agent_asked_is_done_once_for_its_turn_that_is_tried_again(outage: Outage) -> None:
    turn, run = await outage.asked_in_a_turn()
    outage.leave(a_task(), turn, request_id="t1-r0")
    await outage.harness.lose(run)

    done = await outage.reply("t1-r0")
    assert (done.ok, done.code) == (True, "ok"), done.text

    again, _, _ = await outage.harness.start_next(FOLDER)
    assert again.id == turn.id
    outage.leave(a_task(), again, request_id="t1-r0")
    assert await outage.reply("t1-r0") == done
    assert [row["title"] for row in await outage.harness.rows("SELECT title FROM dashboard_tasks")] == [
        "Buy milk"
    ]


async def test_a_note_of_a_dead_agent_is_given_to_the_next_attempt_at_its_turn(outage: Outage) -> None:
    turn, run = await outage.asked_in_a_turn()
    note = NotifySelf(message="the shop shuts at six", deliver_at="immediate", persist_cross_session=True)
    outage.leave(note, turn, request_id="t1-r0")
    await outage.harness.lose(run)

    assert (await outage.reply("t1-r0")).ok
    (kept,) = await outage.harness.rows("SELECT made_turn, claim_turn FROM cross_session_notifications")
    assert kept == {"made_turn": turn.id, "claim_turn": None}


async def test_what_a_dead_agent_said_is_not_said_again_by_the_next_attempt(outage: Outage) -> None:
    turn, run = await outage.asked_in_a_turn()
    outage.leave(SendMessage(text="On it."), turn, request_id="of-the-first")
    await outage.harness.lose(run)
    assert (await outage.reply("of-the-first")).ok

    again, _, _ = await outage.harness.start_next(FOLDER)
    outage.leave(SendMessage(text="On it."), again, request_id="of-the-second")
    assert (await outage.reply("of-the-second")).code == "said_before"
    assert await outage.told() == ["On it."]


async def test_another_groups_turn_is_claimed_in_vain(outage: Outage) -> None:
    await outage.harness.add_group("work")
    await outage.harness.hear("@Andy do it", "work")
    theirs, run, _ = await outage.harness.start_next("work")
    outage.leave(a_task(), theirs, request_id="r0")
    assert (await outage.reply("r0")).code == "NO_TURN"
    await outage.harness.lose(run)
    outage.leave(a_task(), theirs, request_id="r1")
    assert (await outage.reply("r1")).code == "NO_TURN"


async def test_who_only_read_of_no_answer_is_told_what_was_done_then(outage: Outage) -> None:
    turn, run = await outage.asked_in_a_turn()
    outage.leave(a_task(), turn, request_id="r0")
    outage.home.clock.pass_ms(15 * SECOND_MS)
    await outage.harness.take(run, Result(n=2, turn=turn.id, result="The host did not answer in 10 s."))
    await outage.harness.take(run, TurnEnd(n=3, turn=turn.id))

    done = await outage.reply("r0")
    assert done.ok, done.text
    assert await outage.told() == [
        "The host did not answer in 10 s.",
        f"✅ Done after all, for I was away when it was asked: {done.text}",
    ]


async def test_what_comes_of_it_is_told_once_where_the_turn_is_tried_again(outage: Outage) -> None:
    turn, run = await outage.asked_in_a_turn()
    outage.leave(a_task(), turn, request_id="r0")
    outage.home.clock.pass_ms(15 * SECOND_MS)
    await outage.harness.lose(run)
    assert (await outage.reply("r0")).ok
    assert await outage.told() == [], "the next attempt gets this answer and tells it"


async def test_what_an_agent_only_reads_or_notes_is_not_told(outage: Outage) -> None:
    turn, _ = await outage.asked_in_a_turn()
    outage.leave(UseDashboard(tool="list_notifications"), turn, request_id="r0")
    outage.leave(NotifySelf(message="the shop shuts at six"), turn, request_id="r1")
    outage.home.clock.pass_ms(15 * SECOND_MS)
    assert [(await outage.reply(name)).ok for name in ("r1", "r0")] == [True, True]
    assert await outage.told() == []


async def test_who_says_that_all_was_asked_long_ago_fills_no_chat(
    outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_answers, "MAX_AN_HOUR", 3)
    turn, run = await outage.asked_in_a_turn()
    await outage.harness.take(run, TurnEnd(n=2, turn=turn.id))
    for number in range(6):
        outage.leave(CancelReminder(reminder_id=number + 1), turn, request_id=f"r{number}")
    outage.home.clock.pass_ms(15 * SECOND_MS)
    for number in range(6):
        assert (await outage.reply(f"r{number}")).code == "unknown_reminder"
    first, *_, last = told = await outage.told()
    assert len(told) == 4
    assert first.startswith("⚠️ Not done")
    assert last == late_answers.MORE

    outage.home.clock.pass_ms(3_600 * SECOND_MS)
    outage.leave(CancelReminder(reminder_id=7), turn, request_id="r7")
    outage.home.clock.pass_ms(15 * SECOND_MS)
    assert not (await outage.reply("r7")).ok
    assert len(await outage.told()) == 5


async def test_a_span_counts_from_when_it_was_asked(outage: Outage) -> None:
    turn, _ = await outage.asked_in_a_turn()
    asked_ms = outage.home.clock.now_ms()
    outage.leave(SetReminder(text="pill", at="10m"), turn, request_id="r0")
    outage.leave(
        ScheduleTask(prompt="water", schedule_type="once", schedule_value="20m"), turn, request_id="r1"
    )
    outage.home.clock.pass_ms(60 * SECOND_MS)

    assert [(await outage.reply(name)).ok for name in ("r0", "r1")] == [True, True]
    assert (await outage.harness.rows("SELECT next_run FROM scheduled_tasks")) == [
        {"next_run": asked_ms + 1_200 * SECOND_MS}
    ]
    (reminder,) = await outage.harness.rows("SELECT due_ms FROM notifications")
    assert reminder["due_ms"] == asked_ms + 600 * SECOND_MS


async def test_a_reminder_knows_who_asked_for_it(outage: Outage) -> None:
    turn, _ = await outage.asked_in_a_turn()
    outage.leave(SetReminder(text="pill", at="10m"), turn, request_id="r0")

    assert (await outage.reply("r0")).ok
    assert await outage.harness.rows("SELECT asked_by FROM notifications") == [{"asked_by": "local:jane"}]


@pytest.mark.parametrize("at", ["10s", "2026-02-09T08:30:10"])
async def test_a_reminder_whose_time_passed_in_the_outage_is_sent_at_once_as_late(
    outage: Outage, at: str
) -> None:
    turn, _ = await outage.asked_in_a_turn()
    outage.leave(SetReminder(text="⏰ pill", at=at), turn, request_id="r0")
    outage.home.clock.pass_ms(30 * SECOND_MS)

    set_late = await outage.reply("r0")
    assert (set_late.ok, set_late.code) == (True, "sent_late")
    await outage.send_reminders()
    await outage.send_reminders()
    assert await outage.told() == ["⏰ pill (late)"]


async def test_a_reminder_that_was_past_when_it_was_asked_is_refused_and_that_is_told(outage: Outage) -> None:
    turn, _ = await outage.asked_in_a_turn()
    outage.leave(SetReminder(text="pill", at="2026-02-09T08:00"), turn, request_id="r0")
    outage.home.clock.pass_ms(30 * SECOND_MS)

    refused = await outage.reply("r0")
    assert refused.code == "bad_time"
    assert await outage.told() == [f"⚠️ Not done, for I was away when it was asked: {refused.text}"]


async def test_a_reminder_that_waited_out_an_outage_says_so(outage: Outage) -> None:
    turn, _ = await outage.asked_in_a_turn()
    outage.leave(SetReminder(text="pill", at="10m"), turn, request_id="r0")
    assert (await outage.reply("r0")).ok
    outage.home.clock.pass_ms(3_600 * SECOND_MS)
    await outage.send_reminders()
    assert await outage.told() == ["pill (late)"]


async def test_a_request_from_the_future_is_asked_now(outage: Outage) -> None:
    turn, _ = await outage.asked_in_a_turn()
    outage.home.clock.pass_ms(3_600 * SECOND_MS)
    outage.leave(SetReminder(text="pill", at="10m"), turn, request_id="r0")
    outage.home.clock.pass_ms(-3_600 * SECOND_MS)
    now_ms = outage.home.clock.now_ms()
    assert (await outage.reply("r0")).ok
    assert await outage.harness.rows("SELECT due_ms FROM notifications") == [
        {"due_ms": now_ms + 600 * SECOND_MS}
    ]


@pytest.mark.parametrize(
    "command",
    [
        SendMessage(text="still here"),
        SetReminder(text="pill", at="30m"),
        ScheduleTask(prompt="water", schedule_type="interval", schedule_value="1h"),
    ],
    ids=lambda command: command.type,
)
async def test_what_was_asked_in_a_turn_that_is_stopped_in_its_chat_is_not_done(
    outage: Outage, command: Command
) -> None:
    turn, _ = await outage.asked_in_a_turn()
    outage.leave(command, turn, request_id="r1")
    host = host_context(outage.harness)
    stops = StopRequests(host, stop_run=lambda *_: None)
    outage.harness.intake = build_intake(host, at_once=nothing_at_once, stop=stops.answer)
    await outage.harness.hear("@Andy stop")
    reply = await outage.reply("r1")
    assert (reply.ok, reply.code) == (False, "not_allowed")
    assert [one.text for one in await outage.harness.outgoing()] == [
        "Stopped. As far as I know I had changed nothing."
    ]


async def nothing_at_once(*_: object, **__: object) -> None:
    """Answer nothing without an agent."""
