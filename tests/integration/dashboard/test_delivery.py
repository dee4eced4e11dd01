"""Notifications at their time: the ledger, the outbox and a messenger whose answers are scripted."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from structlog.testing import capture_logs

from orchestrator.base.event_bus import EventBus
from orchestrator.dashboard.delivery.decision import MAX_ATTEMPTS
from orchestrator.dashboard.rules.slots import Hours
from orchestrator.domain.dashboard import Actor, BoardTaskStatus, NotificationType, Priority
from orchestrator.domain.errors import ChannelDown, ChannelRefused
from orchestrator.domain.protocols import Feature
from orchestrator.domain.values import ChatJid, Folder
from orchestrator.groups import registration
from orchestrator.outbound.delivery import GIVE_UP_PAUSES, STUCK_ATTEMPTS
from orchestrator.reports.event_history import recall_events
from orchestrator.store.board import deliveries as board_deliveries
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.conversation import outbox
from orchestrator.store.database import Database
from tests.support.dashboards import FOLDER, HOUR, MINUTE, a_notification, a_question, a_task, at
from tests.support.notification_harness import NotificationHarness
from tests.support.until import until

JID = "local:family"
REMINDER = {"type": NotificationType.REMINDER, "priority": Priority.MEDIUM, "created_by": Actor.MAIN_AGENT}


@pytest.fixture
async def harness(store_harness):
    await store_harness.add_group()
    found = NotificationHarness(store_harness)
    found.is_now("2026-02-09 08:30")
    await found.put(a_task(deadline="2026-02-10"))
    return found


async def test_at_01_a_notification_is_told_at_its_time_word_for_word(harness):
    await harness.put(a_notification(message="The *blog* is due ,,, 내일"))
    async with harness.delivering():
        await harness.look("2026-02-09 08:59:59")
        assert harness.channel.texts() == []
        await harness.look("2026-02-09 09:00:00")
        row = await harness.until_status("n_001", "delivered")
    assert harness.channel.texts() == ["The *blog* is due ,,, 내일"]
    assert (row.delivered_ms, row.late_ms, row.attempts) == (at("2026-02-09 09:00"), 0, 1)
    assert row.channel_msg_id == harness.channel.shown[0].message_id
    assert (row.claim_token, row.claim_until_ms) == (None, None)


@pytest.mark.parametrize("changed", ["notification", "task", "neither"])
async def test_a_notification_mentions_who_asked_for_it_or_else_for_its_task(harness, changed):
    store_harness = harness.harness
    harness.channel.features = frozenset({Feature.MENTIONS})
    await store_harness.hear("@Andy remind me", sender="local:bob", sender_name="Bob", is_group=True)
    turn = await store_harness.answer("I will.")
    async with store_harness.database.transaction() as tx:
        await tx.execute("DELETE FROM outbox")
        asked = turn.id if changed == "task" else None
        await tx.execute("UPDATE dashboard_tasks SET changed_turn = ?", (asked,))
    await harness.put(a_notification(changed_turn=turn.id if changed == "notification" else None))
    async with harness.delivering():
        await harness.look("2026-02-09 09:00")
        await harness.until_status("n_001", "delivered")

    (shown,) = harness.channel.shown
    assert shown.mentions == (None if changed == "neither" else "Bob")


async def test_the_next_look_is_when_the_next_is_due(harness):
    await harness.put(a_notification())
    assert await harness.look("2026-02-09 08:59:57") == 3
    assert await harness.look("2026-02-09 08:30") == 5, "others write into the ledger too"


async def test_at_22_what_was_missed_is_told_once_and_how_late_it_was(harness):
    await harness.put(a_notification())
    async with harness.delivering():
        await harness.look("2026-02-09 09:40")
        row = await harness.until_status("n_001", "delivered")
        await harness.look("2026-02-09 09:41")
        await harness.until_quiet()
    assert len(harness.channel.shown) == 1
    assert row.late_ms == 40 * MINUTE


async def test_at_23_what_is_far_too_late_is_told_of_in_one_line(harness):
    rows = [
        a_notification(
            f"n_{number}", due="2026-01-10 09:00", message=f"text {number}", task_id=None, **REMINDER
        )
        for number in range(5)
    ]
    await harness.put(*rows)
    async with harness.delivering():
        await harness.look("2026-02-09 08:30")
        await harness.until_quiet()
        await harness.look()
        await harness.until_quiet()
    assert harness.channel.texts() == ["⌛ Too late to be of use: “text 0”, “text 1”, “text 2” and 2 more."]
    assert (await harness.row("n_0")).status == "expired"


async def test_each_chat_of_a_group_reads_only_of_its_own_late_ones(harness):
    cousins = ChatJid("local:cousins")
    async with harness.harness.database.transaction() as tx:
        await registration.add_chat(tx, Folder(FOLDER), cousins, now_ms=0)
    late = {"due": "2026-01-10 09:00", "task_id": None, **REMINDER}
    await harness.put(
        a_notification("n_1", message="gift for Jane", chat_jid=cousins, **late),
        a_notification("n_2", message="rent", **late),
        a_notification("n_3", message="cake", chat_jid=cousins, **late),
    )

    await harness.look("2026-02-09 08:30")

    queued = {row.chat_jid: row.text for row in await harness.harness.outgoing()}
    assert queued == {
        JID: "⌛ Too late to be of use: “rent”.",
        cousins: "⌛ Too late to be of use: “gift for Jane”, “cake”.",
    }


async def test_a_line_about_late_ones_that_cannot_be_queued_holds_up_no_other(harness):
    await harness.put(
        a_notification("n_late", due="2026-01-10 09:00", task_id=None, **REMINDER),
        a_notification("n_now", due="2026-02-09 09:00", message="water", task_id=None, **REMINDER),
    )
    async with harness.harness.database.transaction() as tx:
        await tx.execute(
            "CREATE TRIGGER full BEFORE INSERT ON outbox WHEN NEW.text LIKE '⌛%'"
            " BEGIN SELECT raise(ABORT, 'full'); END"
        )
    async with harness.delivering():
        await harness.look("2026-02-09 09:00")
        await harness.until_status("n_now", "delivered")
    assert (await harness.row("n_late")).status == "expired"


@pytest.mark.parametrize(
    ("kind", "late", "status"),
    [
        (NotificationType.REMINDER, 12 * HOUR, "delivered"),
        (NotificationType.REMINDER, 12 * HOUR + 1, "expired"),
        (NotificationType.PROGRESS_CHECK, 24 * HOUR, "delivered"),
        (NotificationType.PROGRESS_CHECK, 24 * HOUR + 1, "expired"),
        (NotificationType.DEADLINE_ALERT, 38 * HOUR + 59 * MINUTE, "delivered"),
        (NotificationType.DEADLINE_ALERT, 39 * HOUR + 1, "expired"),
    ],
)
async def test_how_late_is_too_late_depends_on_what_it_is(harness, kind, late, status):
    await harness.put(a_notification(type=kind))
    async with harness.delivering():
        harness.is_now("2026-02-09 09:00")
        harness.harness.clock.pass_ms(late)
        await harness.look()
        await harness.until_status("n_001", status)


async def test_at_24_a_messenger_that_fails_twice_is_asked_a_third_time(harness):
    await harness.put(a_notification())
    harness.channel.will(JID, ChannelDown("down"), ChannelDown("down"))
    async with harness.delivering():
        await harness.look("2026-02-09 09:00:00")
        row = await harness.until_status("n_001", "pending")
        assert row.next_attempt_ms == at("2026-02-09 09:00:30")
        await harness.look("2026-02-09 09:00:29")
        await harness.until_quiet()
        assert len(harness.channel.attempts) == 1
        await harness.look("2026-02-09 09:00:30")
        row = await harness.until_status("n_001", "pending")
        assert row.next_attempt_ms == at("2026-02-09 09:01:30")
        await harness.look("2026-02-09 09:01:30")
        row = await harness.until_status("n_001", "delivered")
    assert (row.attempts, row.late_ms) == (3, 90_000)
    assert len(harness.channel.shown) == 1
    assert len({one.message_id for one in harness.channel.attempts}) == 1, "the idempotency key is kept"


@pytest.mark.parametrize(
    ("asked_seconds", "again"),
    [(300.0, "2026-02-09 09:05:00"), (5.0, "2026-02-09 09:00:30"), (10**9, "2026-02-09 10:00:00")],
)
async def test_a_pause_that_the_messenger_asks_for_is_kept_within_bounds(harness, asked_seconds, again):
    await harness.put(a_notification())
    harness.channel.will(JID, ChannelDown("too fast", pause_seconds=asked_seconds))
    async with harness.delivering():
        await harness.look("2026-02-09 09:00:00")
        row = await harness.until_status("n_001", "pending")
    assert row.next_attempt_ms == at(again)


@pytest.mark.parametrize("asked_seconds", [3_600.0, 0.0004])
async def test_pauses_that_the_messenger_asks_for_use_up_no_attempts(harness, asked_seconds):
    await harness.put(a_notification(message="Water the plants"))
    pauses = [ChannelDown("too fast", pause_seconds=asked_seconds) for _ in range(MAX_ATTEMPTS + 1)]
    harness.channel.will(JID, *[ChannelDown("down")] * (MAX_ATTEMPTS - 1), *pauses)
    times = ["09:00:00", "09:00:30", "09:01:30", "09:03:30", *(f"{hour:02}:08:30" for hour in range(9, 15))]
    async with harness.delivering():
        for number, time in enumerate(times, start=1):
            await harness.look(f"2026-02-09 {time}")
            await harness.until_status("n_001", "pending")
            assert len(harness.channel.attempts) == number
        assert harness.channel.texts() == []
        await harness.look("2026-02-09 15:08:30")
        row = await harness.until_status("n_001", "delivered")
    assert (row.attempts, harness.channel.texts()) == (MAX_ATTEMPTS, ["Water the plants"])


async def test_a_notification_fails_after_three_days_of_pauses_and_is_told_when_the_last_is_over(harness):
    await harness.put(a_notification(message="Water the plants"))
    pauses = [ChannelDown("too fast", pause_seconds=3_600.0) for _ in range(GIVE_UP_PAUSES)]
    harness.channel.will(JID, *pauses)
    clock = harness.harness.clock
    harness.is_now("2026-02-09 09:00")
    async with harness.delivering():
        # The clock jumps in the first pause: the time alone gives nothing up.
        for tries, passes_ms in enumerate([96 * HOUR, *[HOUR] * (GIVE_UP_PAUSES - 2)], start=1):
            await harness.look()
            await harness.until_status("n_001", "pending")
            assert len(harness.channel.attempts) == tries
            clock.pass_ms(passes_ms)
        await harness.look()
        row = await harness.until_status("n_001", "failed")
        await harness.until_quiet()
        assert len(harness.channel.attempts) == GIVE_UP_PAUSES
        clock.pass_ms(HOUR)
        harness.harness.wakeups.outbox.set()
        await until(lambda: harness.channel.shown, "the apology")
    assert row.error == "too fast"
    assert harness.channel.texts() == ["⚠️ This should have come earlier: Water the plants"]


@pytest.mark.parametrize("asked_seconds", [0.0, 3_600.0])
async def test_a_clock_that_was_ahead_while_an_attempt_failed_holds_up_no_notification(
    harness, asked_seconds
):
    await harness.put(a_notification(message="Water the plants"))
    harness.channel.will(JID, ChannelDown("down", pause_seconds=asked_seconds))
    async with harness.delivering():
        await harness.look("2026-02-09 12:00")
        await harness.until_status("n_001", "pending")
        assert len(harness.channel.attempts) == 1
        await harness.look("2026-02-09 09:00")
        await harness.until_status("n_001", "delivered")
    assert harness.channel.texts() == ["Water the plants"]


async def test_pauses_do_not_make_the_first_failure_after_them_hold_up_the_chat(harness):
    await harness.put(a_notification())
    harness.channel.connected_since_ms = at("2026-02-09 08:00")
    pauses = [ChannelDown("too fast", pause_seconds=3_600.0) for _ in range(STUCK_ATTEMPTS - 1)]
    harness.channel.will(JID, *pauses, ChannelDown("down"))
    async with harness.delivering():
        for hour in range(9, 9 + len(pauses)):
            await harness.look(f"2026-02-09 {hour:02}:00")
            await harness.until_status("n_001", "pending")
        async with harness.harness.database.transaction() as tx:
            # Not due yet, so that it waits behind the notification.
            await outbox.add(tx, chat_jid=JID, text="next", dedupe_key="k", now_ms=at("2026-02-09 14:00"))
        await harness.look("2026-02-09 13:00")
        await harness.until_quiet()
    row = await harness.row("n_001")
    assert (row.status, row.attempts, row.error) == ("pending", 1, "down")


async def test_a_pause_that_the_messenger_asks_for_holds_when_it_is_connected_again(harness):
    await harness.put(a_notification())
    harness.channel.will(JID, ChannelDown("too fast", pause_seconds=600.0))
    async with harness.delivering():
        await harness.look("2026-02-09 09:00:00")
        await harness.until_status("n_001", "pending")
        async with harness.harness.database.transaction() as tx:
            await board_deliveries.hurry(tx, ["local:%"], now_ms=at("2026-02-09 09:00:10"))
        await harness.look("2026-02-09 09:00:10")
        assert (await harness.row("n_001")).next_attempt_ms == at("2026-02-09 09:10:00")
        # As when somebody changes its time: it waits in the outbox, then.
        await harness.change("n_001", next_attempt_ms=None)
        await harness.look("2026-02-09 09:00:20")
        await harness.until_quiet()
        assert len(harness.channel.attempts) == 1
        await harness.look("2026-02-09 09:10:00")
        harness.harness.wakeups.outbox.set()
        await harness.until_status("n_001", "delivered")


async def test_what_was_cancelled_while_it_waited_for_another_try_and_put_back_is_told(harness):
    await harness.put(a_notification())
    await harness.put(a_notification("n_002", due="2026-02-09 09:00:30", task_id=None, **REMINDER))
    harness.channel.will(JID, ChannelDown("down"))
    async with harness.delivering():
        await harness.look("2026-02-09 09:00:00")
        await harness.until_status("n_001", "pending")
        await harness.change("n_001", status="cancelled")
        await harness.look("2026-02-09 09:00:30")
        await harness.until_status("n_002", "delivered")
        # As an undo puts the row back.
        await harness.change("n_001", status="pending")
        await harness.look("2026-02-09 09:10:00")
        await harness.until_status("n_001", "delivered")
    assert len(harness.channel.shown) == 2


async def test_what_met_a_messenger_that_was_starting_is_sent_once_it_is_connected(harness):
    await harness.put(a_notification())
    harness.channel.will(JID, ChannelDown("starting"))
    async with harness.delivering():
        await harness.look("2026-02-09 09:00:00")
        await harness.until_status("n_001", "pending")
        async with harness.harness.database.transaction() as tx:
            await board_deliveries.hurry(tx, ["other:%"], now_ms=at("2026-02-09 09:00:01"))
        await harness.look("2026-02-09 09:00:01")
        await harness.until_quiet()
        assert len(harness.channel.attempts) == 1, "another messenger is connected"
        async with harness.harness.database.transaction() as tx:
            await board_deliveries.hurry(tx, ["other:%", "local:%"], now_ms=at("2026-02-09 09:00:02"))
        await harness.look("2026-02-09 09:00:02")
        row = await harness.until_status("n_001", "delivered")
    assert (row.attempts, row.late_ms) == (2, 2_000)


async def test_nothing_of_a_long_one_that_failed_and_was_cancelled_is_sent(harness):
    harness.channel.max_text_chars = 12
    await harness.put(a_notification(message="One two.\n\nThree four.\n\nFive."))
    harness.channel.will(JID, ChannelDown("down"))
    async with harness.delivering():
        await harness.look("2026-02-09 09:00:00")
        await harness.until_status("n_001", "pending")
        await harness.change("n_001", status="cancelled", cancelled_ms=1)
        await harness.look("2026-02-09 09:00:30")
        await harness.until_quiet()
    assert harness.channel.texts() == []


async def test_a_long_one_that_failed_is_sent_again_in_the_order_of_its_parts(harness):
    harness.channel.max_text_chars = 12
    await harness.put(a_notification(message="One two.\n\nThree four.\n\nFive."))
    harness.channel.will(JID, ChannelDown("down"), ChannelDown("down"))
    async with harness.delivering():
        for time in ("09:00:00", "09:00:30", "09:01:30"):
            await harness.look(f"2026-02-09 {time}")
            await harness.until_quiet()
        await harness.until_status("n_001", "delivered")
        await harness.until_quiet()
    assert harness.channel.texts() == ["One two.", "Three four.", "Five."]


async def test_the_other_parts_of_a_long_one_whose_notification_was_cancelled_are_skipped(harness):
    """A host died while it sent the first part."""
    harness.channel.max_text_chars = 12
    await harness.put(a_notification(message="One two.\n\nThree four."))
    harness.channel.will(JID, asyncio.Event())

    async def a_host():
        async with harness.delivering():
            await harness.look("2026-02-09 09:00:00")
            await asyncio.Event().wait()

    host = asyncio.create_task(a_host(), name="host")
    await until(lambda: bool(harness.channel.attempts), "the first part is being sent")
    host.cancel()
    await asyncio.wait([host])
    await harness.change("n_001", status="cancelled", cancelled_ms=1)
    async with harness.delivering():
        await harness.until_quiet()
    assert harness.channel.texts() == []
    states = await harness.harness.rows("SELECT state FROM outbox ORDER BY id")
    assert [row["state"] for row in states] == ["skipped", "skipped"]

    # As an undo puts the row back.
    await harness.change("n_001", status="pending")
    async with harness.delivering():
        await harness.look("2026-02-09 09:10:00")
        await harness.until_status("n_001", "delivered")
        await harness.until_quiet()
    assert harness.channel.texts()[-1] == "Three four."


@asynccontextmanager
async def given_up(harness, message="Water the plants"):
    """Have the messenger be down until a notification is tried no more; deliver on in the block."""
    await harness.put(a_notification(message=message))
    harness.channel.will(JID, *[ChannelDown("down")] * MAX_ATTEMPTS)
    async with harness.delivering():
        for time in ("09:00:00", "09:00:30", "09:01:30", "09:03:30", "09:08:30"):
            await harness.look(f"2026-02-09 {time}")
            await harness.until_quiet()
        yield


async def test_what_cannot_be_sent_fails_in_the_end_and_is_told_when_it_can_be(harness):
    async with given_up(harness):
        row = await harness.until_status("n_001", "failed")
        await harness.until_quiet()
    assert row.attempts == MAX_ATTEMPTS
    assert harness.channel.texts() == ["⚠️ This should have come earlier: Water the plants"]


async def test_a_long_one_that_is_given_up_comes_once_with_the_apology(harness):
    harness.channel.max_text_chars = 12
    async with given_up(harness, "One two.\n\nThree four."):
        await harness.until_status("n_001", "failed")
        await harness.until_quiet()
    assert harness.channel.texts()[-1] == "Three four."
    assert harness.channel.texts().count("Three four.") == 1


async def test_a_reminder_that_another_message_brings_late_is_not_also_said_to_be_lost(harness):
    async with given_up(harness):
        await harness.until_status("n_001", "failed")
    async with harness.harness.database.reading() as tx:
        lost = await tx.execute_fetchall(
            "SELECT event_type FROM cross_session_notifications WHERE event_type = 'host.reply.undelivered'"
        )
    assert [*lost] == []


async def test_what_a_messenger_refuses_fails_at_once(harness):
    await harness.put(a_notification())
    harness.channel.will(JID, ChannelRefused("never"))
    async with harness.delivering():
        await harness.look("2026-02-09 09:00")
        row = await harness.until_status("n_001", "failed")
    assert row.error == "never"


async def test_a_text_changed_between_two_attempts_is_told_as_it_is_then(harness):
    await harness.put(a_notification(message="old"))
    harness.channel.will(JID, ChannelDown("down"))
    async with harness.delivering():
        await harness.look("2026-02-09 09:00:00")
        await harness.until_status("n_001", "pending")
        await harness.change("n_001", message="new")
        await harness.look("2026-02-09 09:00:30")
        await harness.until_status("n_001", "delivered")
    assert harness.channel.texts() == ["new"]


async def test_at_26_two_dispatchers_on_one_ledger_send_each_once(harness, database_path):
    rows = [
        a_notification(f"n_{number:03}", task_id=None, message=f"text {number:03}") for number in range(50)
    ]
    await harness.put(*rows)
    other = await Database.open(database_path)
    harness.is_now("2026-02-09 09:00")
    async with harness.delivering():
        await asyncio.gather(*(one.send_due() for one in [harness.dispatcher, harness.another(other)] * 3))
        await harness.until_quiet()
    await other.close()
    assert sorted(harness.channel.texts()) == sorted(row.message for row in rows)
    assert len(harness.channel.attempts) == len(rows)


async def test_at_27_what_is_cancelled_after_the_claim_is_not_sent(harness):
    await harness.put(a_notification())
    await harness.look("2026-02-09 09:00")
    assert (await harness.row("n_001")).status == "sending"
    await harness.change("n_001", status="cancelled", cancelled_ms=1)
    async with harness.delivering():
        await harness.until_quiet()
    assert harness.channel.attempts == []
    assert (await harness.row("n_001")).status == "cancelled"


async def test_what_is_removed_after_the_claim_is_not_sent(harness):
    """As by an undo, or by an import in the place of the whole dashboard."""
    await harness.put(a_notification())
    await harness.put(a_notification("n_002", due="2026-02-09 09:00:10", task_id=None, **REMINDER))
    harness.channel.will(JID, ChannelDown("down"))
    async with harness.delivering():
        await harness.look("2026-02-09 09:00:00")
        await harness.until_status("n_001", "pending")
    await harness.look("2026-02-09 09:00:10")
    assert (await harness.row("n_002")).status == "sending"
    async with harness.harness.database.transaction() as tx:
        await tx.execute("DELETE FROM notifications")
    await harness.put(a_notification("n_003", due="2026-02-09 09:01:00", task_id=None, **REMINDER))
    async with harness.delivering():
        await harness.look("2026-02-09 09:01:00")
        await harness.until_status("n_003", "delivered")
    states = await harness.harness.rows("SELECT state FROM outbox ORDER BY id")
    assert [row["state"] for row in states] == ["skipped", "skipped", "sent"]
    assert len(harness.channel.shown) == 1


async def test_at_25_what_was_sent_and_not_marked_goes_out_under_the_same_id(harness):
    """As after a death between the messenger's answer and the mark."""
    await harness.put(a_notification())
    await harness.look("2026-02-09 09:00")
    async with harness.harness.database.transaction() as tx:
        await tx.execute("UPDATE outbox SET state = 'sending', attempts = 1")
    (waiting,) = await harness.harness.outgoing()
    harness.channel.shown.append(_shown(waiting))
    with capture_logs() as logs:
        async with harness.delivering():
            harness.harness.wakeups.outbox.set()
            await harness.until_status("n_001", "delivered")
    assert len(harness.channel.shown) == 1, "the messenger knows the id"
    (told,) = [one for one in logs if one["event"] == "notification.maybe_duplicate"]
    assert told["notification"] == "n_001"


def _shown(waiting):
    from tests.doubles.channel import Shown

    return Shown(waiting.chat_jid, waiting.text, waiting.message_id)


async def test_a_claim_of_what_still_waits_to_be_sent_is_kept(harness):
    await harness.put(a_notification())
    await harness.look("2026-02-09 09:00:00")
    await harness.look("2026-02-09 09:02:00")
    assert (await harness.row("n_001")).attempts == 1
    assert len(await harness.harness.outgoing()) == 1


async def test_what_speaks_of_something_that_is_over_is_not_told(harness):
    await harness.put(
        a_task("task_off", status=BoardTaskStatus.CANCELLED),
        a_question("q_done", answered_ms=1, answer="yes"),
        a_notification("n_1", task_id="task_off"),
        a_notification("n_2", task_id="task_gone"),
        a_notification("n_3", task_id=None, question_id="q_done"),
    )
    await harness.look("2026-02-09 09:00")
    rows = [await harness.row(id_) for id_ in ("n_1", "n_2", "n_3")]
    assert [(row.status.value, row.cancel_reason) for row in rows] == [
        ("cancelled", "Task cancelled"),
        ("cancelled", "Task gone"),
        ("cancelled", "Question closed"),
    ]
    assert await harness.harness.outgoing() == []


async def test_quiet_hours_hold_what_comes_by_itself_and_nothing_else(harness):
    by_itself = {"type": NotificationType.PROGRESS_CHECK, "priority": Priority.MEDIUM}
    await harness.put(
        a_notification("n_1", due="2026-02-09 23:30", message="by itself", **by_itself),
        a_notification("n_2", due="2026-02-09 23:30", message="urgent"),
        a_notification("n_3", due="2026-02-09 23:30", message="asked for", **REMINDER),
    )
    async with harness.delivering():
        await harness.look("2026-02-09 23:30")
        await harness.until_quiet()
        assert sorted(harness.channel.texts()) == ["asked for", "urgent"]
        assert (await harness.row("n_1")).due_ms == at("2026-02-10 08:00")
        await harness.look("2026-02-10 08:00")
        await harness.until_status("n_1", "delivered")


async def test_a_day_has_room_for_so_many_that_come_by_themselves(harness):
    by_itself = {"type": NotificationType.PROGRESS_CHECK, "priority": Priority.MEDIUM, "task_id": None}
    await harness.put(*[a_notification(f"n_{number:02}", **by_itself) for number in range(12)])
    await harness.put(a_notification("n_asked", task_id=None, **REMINDER), a_notification("n_urgent"))
    async with harness.delivering():
        await harness.look("2026-02-09 09:00")
        await harness.until_quiet()
        assert len(harness.channel.shown) == 12
        late = [await harness.row("n_10"), await harness.row("n_11")]
        assert {row.due_ms for row in late} == {at("2026-02-10 09:00")}
        await harness.look("2026-02-10 09:00")
        await harness.until_quiet()
    assert len(harness.channel.shown) == 14


async def test_the_day_begins_anew_at_midnight_of_the_group(harness):
    """Seoul is nine hours ahead of the host: its midnight is 15:00 there."""
    harness.daily_limit = 1
    harness.dispatcher = harness.another(harness.harness.database)
    by_itself = {"type": NotificationType.PROGRESS_CHECK, "priority": Priority.MEDIUM, "task_id": None}
    await harness.put(
        a_notification("n_1", due="2026-02-09 22:00", **by_itself),
        a_notification("n_2", due="2026-02-09 22:30", **by_itself),
        a_notification("n_3", due="2026-02-10 00:30", **by_itself),
    )
    async with harness.delivering():
        for time in ("2026-02-09 22:00", "2026-02-09 22:30", "2026-02-10 00:30"):
            await harness.look(time)
            await harness.until_quiet()
        assert (await harness.row("n_2")).due_ms == at("2026-02-10 09:00"), "the day is full"
        assert (await harness.row("n_3")).due_ms == at("2026-02-10 08:00"), (
            "the night is quiet, the day is new"
        )
        await harness.look("2026-02-10 08:00")
        await harness.until_status("n_3", "delivered")
        await harness.look("2026-02-10 09:00")
        assert (await harness.row("n_2")).due_ms == at("2026-02-11 09:00"), "and full again"


async def test_what_was_sent_while_the_clock_was_ahead_is_none_of_this_day(harness):
    harness.daily_limit = 1
    harness.dispatcher = harness.another(harness.harness.database)
    by_itself = {"type": NotificationType.PROGRESS_CHECK, "priority": Priority.MEDIUM, "task_id": None}
    await harness.put(a_notification("n_1", due="2026-03-09 10:00", **by_itself))
    async with harness.delivering():
        await harness.look("2026-03-09 10:00")
        await harness.until_status("n_1", "delivered")
        await harness.put(a_notification("n_2", due="2026-02-09 10:00", **by_itself))
        await harness.look("2026-02-09 10:00")
        await harness.until_status("n_2", "delivered")


@pytest.mark.parametrize(
    ("zone", "now", "ends"),
    [
        ("America/New_York", "2026-03-08T01:30-05:00", "2026-03-08T08:00-04:00"),
        ("America/New_York", "2026-11-01T01:30-04:00", "2026-11-01T08:00-05:00"),
        ("Europe/Berlin", "2026-03-28T23:30+01:00", "2026-03-29T08:00+02:00"),
        ("Europe/Berlin", "2026-10-25T02:30+01:00", "2026-10-25T08:00+01:00"),
        ("Africa/Cairo", "2026-04-24T01:00+03:00", "2026-04-24T08:00+03:00"),
    ],
)
async def test_a_quiet_night_in_which_the_clocks_change_ends_at_eight_by_them(harness, zone, now, ends):
    harness.hours = Hours(zone=ZoneInfo(zone))
    by_itself = {"type": NotificationType.PROGRESS_CHECK, "priority": Priority.MEDIUM, "task_id": None}
    one = replace(a_notification("n_1", **by_itself), due_ms=ms(now))
    await harness.put(one)
    harness.harness.clock.pass_ms(ms(now) - harness.harness.clock.now_ms())
    await harness.look()
    assert (await harness.row("n_1")).due_ms == ms(ends)


def ms(text):
    return round(datetime.fromisoformat(text).timestamp() * 1000)


async def test_what_was_told_is_a_message_that_the_agent_reads_next(harness):
    await harness.put(a_notification(message="Time to go"))
    async with harness.delivering():
        await harness.look("2026-02-09 09:00")
        await harness.until_status("n_001", "delivered")
    await harness.harness.hear("@Andy ok, I went")
    _, _, order = await harness.harness.start_next()
    assert "Time to go" in order.prompt


async def test_what_the_host_did_with_a_notification_is_recorded_and_recalled_after_a_restart(harness):
    harness.hours = Hours(zone=harness.hours.zone, quiet_start=23, quiet_end=8)
    await harness.put(
        a_notification(
            "n_night",
            due="2026-02-09 23:30",
            priority=Priority.MEDIUM,
            type=NotificationType.PROGRESS_CHECK,
            created_by=Actor.WORKER,
        ),
        a_notification("n_late", due="2026-01-10 09:00", task_id=None, **REMINDER),
    )
    async with harness.delivering():
        await harness.look("2026-02-09 23:30:00")
        await harness.until_quiet()
        harness.channel.will(JID, ChannelDown("down"))
        await harness.look("2026-02-10 08:00:00")
        await harness.until_quiet()
        await harness.look("2026-02-10 08:00:30")
        await harness.until_status("n_night", "delivered")
    async with harness.harness.database.reading() as tx:
        night = await board_notifications.history_of(tx, FOLDER, "n_night")
        late = await board_notifications.history_of(tx, FOLDER, "n_late")
        after_restart = EventBus(harness.harness.clock)
        after_restart.publish("host.started")
        await recall_events(tx, after_restart)
    assert [(one.what, one.by) for one in night] == [
        ("postponed", "host"),
        ("not sent", "host"),
        ("delivered", "host"),
    ]
    assert night[0].detail["reason"] == "quiet hours"
    assert night[1].detail == {"error": "down", "again_ms": at("2026-02-10 08:00:30")}
    assert [one.what for one in late] == ["expired"]
    assert [(event.kind, event.detail) for event in after_restart.ring] == [
        ("notification.expired", "n_late"),
        ("notification.postponed", "n_night"),
        ("notification.not_sent", "n_night"),
        ("notification.delivered", "n_night"),
        ("host.started", None),
    ]
