"""Reminders: rows of the one ledger, seen and changed by everyone alike, sent once, also over a restart."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import asynccontextmanager, closing
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from agent_runner.wire.order import ECHO
from orchestrator.dashboard.services import reminders
from orchestrator.dashboard.views import board, summary
from orchestrator.domain.dashboard import Deadline
from orchestrator.domain.errors import ReminderRefused
from orchestrator.domain.values import ChatJid, Folder
from orchestrator.groups import registration
from orchestrator.reports import upcoming
from orchestrator.store import database as databases
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.database import Database, migrations
from orchestrator.store.groups import groups
from tests.support.dashboard_harness import FEB_9_0830, FEB_9_1200, HOUR_MS, DashboardHarness, alert, blog
from tests.support.reminders import notifier, put_reminder
from tests.support.store_harness import SEOUL, StoreHarness
from tests.support.until import DEADLINE_SECONDS, until
from tests.support.worker_harness import WorkerHarness

MINUTE = 60_000
DAY_MS = 24 * HOUR_MS
FAMILY = Folder("family")


@asynccontextmanager
async def dispatching(harness):
    async with asyncio.TaskGroup() as tasks:
        loop = tasks.create_task(notifier(harness).run(), name="notifications")
        try:
            yield
        finally:
            loop.cancel()


async def remind(harness, text, *, in_ms, folder=FAMILY):
    async with harness.database.transaction() as tx:
        group = await groups.known(tx, folder)
        now_ms = harness.clock.now_ms()
        return await put_reminder(tx, group, text=text, due_ms=now_ms + in_ms, now_ms=now_ms)


async def one(harness, number):
    async with harness.database.reading() as tx:
        return await board_notifications.by_number(tx, number)


async def sent(harness):
    return [each.text for each in await harness.outgoing()]


@pytest.fixture
async def family(store_harness):
    await store_harness.add_group()
    return store_harness


@pytest.fixture
async def home(family):
    return DashboardHarness(family)


async def test_a_due_reminder_is_queued_for_its_chat_word_for_word(family):
    number = await remind(family, "Take the <pill> & smile", in_ms=0)

    await notifier(family).send_due()

    (outgoing,) = await family.outgoing()
    assert (outgoing.chat_jid, outgoing.folder, outgoing.text) == (
        "local:family", "family", "Take the <pill> & smile",
    )  # fmt: skip
    assert (await one(family, number)).status == "sending"
    async with asyncio.timeout(DEADLINE_SECONDS):
        await family.wakeups.outbox.wait(at_most_seconds=None)


async def test_it_is_queued_once_however_often_the_loop_looks(family):
    await remind(family, "pill", in_ms=0)
    for _ in range(3):
        await notifier(family).send_due()
        family.clock.pass_ms(MINUTE)

    assert await sent(family) == ["pill"]


async def test_it_is_not_sent_before_its_time(family):
    await remind(family, "pill", in_ms=MINUTE)
    family.clock.pass_ms(MINUTE - 1)
    await notifier(family).send_due()
    assert await sent(family) == []

    family.clock.pass_ms(1)
    await notifier(family).send_due()
    assert await sent(family) == ["pill"]


async def test_an_earlier_reminder_wakes_the_loop(family):
    await remind(family, "late", in_ms=MINUTE * 60)
    async with dispatching(family):
        await remind(family, "now", in_ms=0)
        family.wakeups.notifications.set()

        async def holds():
            return await sent(family) == ["now"]

        await until(holds, "the earlier reminder")


@pytest.mark.parametrize("down_ms", [HOUR_MS, 3 * DAY_MS])
async def test_what_came_due_while_the_host_was_down_is_sent_once(database_path, clock, down_ms):
    first = StoreHarness(await Database.open(database_path), clock)
    await first.add_group()
    await remind(first, "pill", in_ms=MINUTE)
    await remind(first, "walk", in_ms=2 * MINUTE)
    await first.database.close()
    clock.pass_ms(down_ms)

    for _ in range(2):
        again = StoreHarness(await Database.open(database_path), clock)
        async with dispatching(again):

            async def holds(again=again):
                return await sent(again) == ["pill (late)", "walk (late)"]

            await until(holds, "both reminders")
        await again.database.close()


async def refuse_in_outbox(harness, condition):
    async with harness.database.transaction() as tx:
        await tx.execute(
            f"CREATE TRIGGER full BEFORE INSERT ON outbox WHEN {condition}"
            " BEGIN SELECT raise(ABORT, 'full'); END"
        )


async def test_a_reminder_that_cannot_be_queued_is_not_marked_as_sent(family):
    number = await remind(family, "pill", in_ms=0)
    await refuse_in_outbox(family, "TRUE")
    await notifier(family).send_due()

    assert (await one(family, number)).status == "pending"
    async with family.database.transaction() as tx:
        await tx.execute("DROP TRIGGER full")
    family.clock.pass_ms(MINUTE)
    await notifier(family).send_due()
    assert await sent(family) == ["pill"]


async def test_a_reminder_that_cannot_be_queued_holds_up_no_other_and_the_owner_learns_it_once(family):
    await family.add_group("main", is_main=True)
    pill = await remind(family, "pill", in_ms=-MINUTE)
    await remind(family, "water", in_ms=0)
    await refuse_in_outbox(family, "NEW.text LIKE 'pill%'")
    pauses = [await notifier(family).send_due()]
    assert "water" in await sent(family)
    family.clock.pass_ms(MINUTE)
    pauses.append(await notifier(family).send_due())

    (notice,) = [each for each in await family.outgoing() if each.text != "water"]
    assert (notice.chat_jid, notice.text) == (
        "local:main",
        (
            f"⚠️ I cannot send the notification {(await one(family, pill)).id} to 'family' (IntegrityError:"
            " full). I try again each minute, and everything else goes on. Fix: 'andy logs' has the details"
            " for a bug report; an upgrade may have the fix."
        ),
    )
    assert min(pauses) > 0, "it is not tried again and again without a pause"


async def test_reminders_of_all_groups_go_to_their_own_chats(family):
    await family.add_group("work")
    await remind(family, "home", in_ms=0)
    await remind(family, "office", in_ms=0, folder=Folder("work"))

    await notifier(family).send_due()

    assert sorted((each.chat_jid, each.text) for each in await family.outgoing()) == [
        ("local:family", "home"),
        ("local:work", "office"),
    ]


async def test_one_of_a_group_that_is_gone_is_sent_and_what_rules_made_is_not(home):
    await home.put(blog(), alert())
    await remind(home.harness, "pay the rent", in_ms=HOUR_MS)
    async with home.harness.database.transaction() as tx:
        await registration.unregister(tx, "family", now_ms=FEB_9_0830)
        rows = await home.service.reminders.list_views(tx, None)
    assert [row["text"] for row in rows] == ["pay the rent"]
    home.clock.pass_ms(DAY_MS)
    await notifier(home.harness).send_due()

    assert [each.text for each in await home.harness.outgoing()] == ["pay the rent (late)"]
    async with home.harness.database.reading() as tx:
        assert (await board_notifications.get(tx, FAMILY, "n_001")).cancel_reason == "Group gone"


async def test_one_that_repeats_is_listed_by_its_task_which_ends_it(home):
    set_again = {
        "type": "schedule_task",
        "prompt": f"{ECHO}⏰ Reminder: take out the bins",
        "schedule_type": "cron",
        "schedule_value": "0 9 * * 1",
    }
    await remind(home.harness, "pay the rent", in_ms=HOUR_MS)
    async with home.turn("chat"):
        made = await home.ask_raw(set_again)
        await home.ask_raw(set_again | {"prompt": "Look at the mail", "schedule_value": "5 9 * * 1"})
    async with home.harness.database.transaction() as tx:
        rows = await home.service.reminders.list_views(tx, None)
        with pytest.raises(ReminderRefused, match=f"andy tasks cancel {made.data['id']}"):
            await home.service.reminders.cancel(tx, made.data["id"], now_ms=home.clock.now_ms())
    assert [(row["id"], row["repeats"], row["text"]) for row in rows] == [
        (made.data["id"], "every Monday at 09:00", "⏰ Reminder: take out the bins"),
        (1, None, "pay the rent"),
    ]
    assert any("every Monday at 09:00" in line for line in reminders.lines(rows, reader_zone=ZoneInfo("UTC")))


async def test_one_that_repeats_and_is_paused_is_not_listed_as_coming(home):
    async with home.turn("chat"):
        made = await home.ask_raw(
            {
                "type": "schedule_task",
                "prompt": f"{ECHO}⏰ Reminder: take out the bins",
                "schedule_type": "cron",
                "schedule_value": "0 9 * * 1",
            }
        )
        await home.ask_raw({"type": "pause_task", "taskId": made.data["id"]})
    async with home.harness.database.transaction() as tx:
        (row,) = await home.service.reminders.list_views(tx, None)
    assert row["repeats"] == "every Monday at 09:00 (paused)"


async def test_whoever_sets_one_everyone_sees_it_and_by_the_same_number(home):
    """The owner, the agent without a model and the one with a model set one each."""
    service, now_ms = home.service.reminders, home.clock.now_ms()
    async with home.harness.database.transaction() as tx:
        await service.add(tx, "family", "by the owner", "in 1 hour", now_ms=now_ms)
    async with home.turn("chat"):
        set_offline = await home.ask_raw({"type": "set_reminder", "text": "by words", "at": "2h"})
        assert set_offline.data["id"] == 2
        assert (await home.ask("schedule_notification", message="by a model", scheduled_at="in 3 hours")).ok

        everyone = ["by the owner", "by words", "by a model"]
        listed = await home.ask_raw({"type": "list_reminders"})
        assert [(row["id"], row["text"]) for row in listed.data["reminders"]] == list(enumerate(everyone, 1))
        of_model = await home.ask("list_notifications")
        assert [row["message"] for row in of_model.data["notifications"]] == everyone
        assert (await home.ask_raw({"type": "cancel_reminder", "reminderId": 3})).ok
    async with home.harness.database.transaction() as tx:
        assert [row["text"] for row in await service.list_views(tx, "family")] == everyone[:2]
        seen = await board.active(tx, FAMILY)
        coming = await upcoming.rows(tx, "family", with_ended=False, zone=SEOUL)
        assert [(row["kind"], row["id"]) for row in coming] == [("reminder", "1"), ("reminder", "2")]
        await service.move(tx, "2", "in 30 minutes", now_ms=now_ms)
    shown = summary.render(seen, now_ms=now_ms, zone=SEOUL)
    assert all((text in shown) == (text != "by a model") for text in everyone)
    history = await home.chat("list_notifications", notification_id=moved_id(of_model, 1))
    assert [each["what"] for each in history.data["history"]] == ["created", "moved"]


def moved_id(listed, place):
    return listed.data["notifications"][place]["id"]


async def test_the_very_same_is_not_set_twice(home):
    for ok in (True, False):
        async with home.turn("chat"):
            reply = await home.ask_raw({"type": "set_reminder", "text": "pill", "at": "2h"})
        assert reply.ok is ok, reply.text
    assert reply.text.startswith("Reminder 1 says so already, at ")


async def _move_in_vain(home, id_):
    async with home.harness.database.transaction() as tx:
        await home.service.reminders.move(tx, id_, "in 5 hours", now_ms=home.clock.now_ms())
        raise RuntimeError("rolled back")


async def test_each_change_of_a_notification_is_an_event_once_it_is_committed(home):
    """Whoever makes it, also a process that cannot publish here: the dispatcher reads what is recorded."""
    await remind(home.harness, "of before", in_ms=HOUR_MS)
    dispatcher = notifier(home.harness)
    await dispatcher.send_due()
    bus = home.harness.bus
    made = await home.chat("schedule_notification", message="Water!", scheduled_at="in 2 hours")
    id_ = made.data["id"]
    with pytest.raises(RuntimeError, match="rolled back"):
        await _move_in_vain(home, id_)
    async with home.harness.database.transaction() as tx:
        await home.service.reminders.move(tx, id_, "in 3 hours", now_ms=home.clock.now_ms())
    await home.chat("update_notification", notification_id=id_, message="Water them!")
    await home.chat("cancel_notification", notification_id=id_, reason="rain")
    for _ in range(2):
        await dispatcher.send_due()

    events = [event for event in bus.ring if event.kind.startswith("notification.")]
    assert [(event.kind, event.detail, event.data, event.group) for event in events] == [
        ("notification.created", id_, {"by": "main_agent"}, "family"),
        ("notification.moved", id_, {"by": "user"}, "family"),
        ("notification.reworded", id_, {"by": "main_agent"}, "family"),
        ("notification.cancelled", id_, {"by": "main_agent"}, "family"),
    ]
    assert events[-1].reason == "rain"


ABOUT_THE_BLOG = {"type": "set_reminder", "text": "the blog is due", "taskId": "task_001"}


async def open_texts(harness):
    rows = await harness.rows("SELECT message FROM notifications WHERE status = 'pending' ORDER BY due_ms")
    return [row["message"] for row in rows]


async def remind_of_blog(home, when):
    async with home.turn("chat"):
        return await home.ask_raw(ABOUT_THE_BLOG | {"at": when})


@pytest.mark.parametrize("is_alert_first", [True, False], ids=["alert first", "reminder first"])
async def test_a_reminder_about_a_deadline_is_the_one_message_of_its_day(home, is_alert_first):
    rules = WorkerHarness(home.harness, use_llm=False)
    await home.put(blog())
    if is_alert_first:
        await rules.cycle("2026-02-09 08:30")
        assert await open_texts(home.harness) != []

    reply = await remind_of_blog(home, "2026-02-09T18:00")

    assert reply.ok, reply.text
    await rules.cycle("2026-02-09 08:30")
    assert await open_texts(home.harness) == ["the blog is due"]
    async with rules.delivering():
        await rules.look("2026-02-09 18:00")
        await rules.until_quiet()
    await rules.cycle("2026-02-09 18:30")
    assert await open_texts(home.harness) == []
    assert rules.channel.texts() == ["the blog is due"]


async def test_the_alert_comes_again_when_the_reminder_about_the_deadline_is_cancelled(home):
    rules = WorkerHarness(home.harness, use_llm=False)
    await home.put(blog())
    await rules.cycle("2026-02-09 08:30")
    of_rules = await open_texts(home.harness)
    number = (await remind_of_blog(home, "2026-02-09T18:00")).data["id"]
    async with home.turn("chat"):
        assert (await home.ask_raw({"type": "cancel_reminder", "reminderId": number})).ok

    await rules.cycle("2026-02-09 08:30")

    assert await open_texts(home.harness) == of_rules


async def test_a_reminder_two_days_before_a_deadline_leaves_the_alert_of_the_day_before(home):
    rules = WorkerHarness(home.harness, use_llm=False)
    await home.put(blog(deadline=Deadline(at_ms=FEB_9_0830 + 2 * DAY_MS, text="")))
    assert (await remind_of_blog(home, "2026-02-09T09:00")).ok
    await rules.cycle("2026-02-10 08:30")
    assert len(await open_texts(home.harness)) == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"status": "completed"}, "Task completed"),
        ({"deadline": "2026-02-20"}, "Deadline changed to 2026-02-20"),
        ({"deadline": ""}, "Deadline changed to none"),
    ],
)
async def test_a_reminder_about_a_deadline_ends_with_it(home, change, reason):
    await home.put(blog())
    number = (await remind_of_blog(home, "2026-02-09T18:00")).data["id"]
    await remind(home.harness, "pill", in_ms=HOUR_MS)

    assert (await home.chat("update_task", task_id="task_001", **change)).ok

    about = await one(home.harness, number)
    assert (about.status, about.cancel_reason) == ("cancelled", reason)
    assert await open_texts(home.harness) == ["pill"]


async def test_a_reminder_about_the_deadline_of_a_task_that_is_over_is_refused(home):
    await home.put(blog())
    assert (await home.chat("update_task", task_id="task_001", status="completed")).ok
    over = await remind_of_blog(home, "2026-02-09T18:00")
    assert (over.code, "task_001 is completed" in over.text) == ("reminder_refused", True)
    unknown = await home.ask_raw(ABOUT_THE_BLOG | {"taskId": "task_9", "at": "2h"})
    assert (unknown.code, "no task 'task_9'" in unknown.text) == ("reminder_refused", True)


async def test_one_that_was_sent_is_neither_cancelled_nor_moved(home):
    number = await remind(home.harness, "pill", in_ms=0)
    async with home.harness.database.transaction() as tx:
        await tx.execute("UPDATE notifications SET status = 'delivered', delivered_ms = due_ms")
    row = await one(home.harness, number)
    assert (await home.chat("cancel_notification", notification_id=row.id)).code == "ALREADY_DELIVERED"
    async with home.turn("chat"):
        reply = await home.ask_raw({"type": "cancel_reminder", "reminderId": number})
    assert (reply.code, reply.text) == ("not_pending", f"Reminder {number} is sent already.")


async def test_nothing_is_said_of_another_groups(home):
    await home.harness.add_group("work")
    number = await remind(home.harness, "secret", in_ms=HOUR_MS, folder=Folder("work"))
    row = await one(home.harness, number)
    for tool, more in (
        ("list_notifications", {}),
        ("update_notification", {"message": "x"}),
        ("cancel_notification", {}),
    ):
        reply = await home.chat(tool, notification_id=row.id, **more)
        assert (reply.code, "secret" in reply.text) == ("NOT_FOUND", False)
    assert "secret" not in (await home.chat("list_notifications")).text


# Homes of earlier versions

BEFORE = int(next(Path(databases.__file__).parent.glob("migrations/*_one_ledger.sql")).name[:4]) - 1
OLD_REMINDER = (
    "INSERT INTO reminders (group_folder, chat_jid, text, due_ms, state, created_ms)"
    " VALUES (?, ?, ?, ?, ?, 1)"
)
OLD_OUTGOING = (
    "INSERT INTO outbox (group_folder, chat_jid, text, dedupe_key, message_id, state, next_attempt_ms,"
    " created_ms, sent_ms) VALUES ('family', 'local:family', ?, ?, ?, ?, 1, 1, ?)"
)


def an_old_home(path, version):
    """A home of an earlier version, with reminders in every state; the 4th was handed over, not sent."""
    path.parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(path)) as old:
        for script in migrations()[:version]:
            old.executescript(script)
        old.execute(f"PRAGMA user_version = {version}")
        old.execute("INSERT INTO chats (jid, name) VALUES ('local:family', 'Family'), ('local:gone', 'Gone')")
        old.execute(
            "INSERT INTO registered_groups (jid, name, folder, added_ms)"
            " VALUES ('local:family', 'Family', 'family', 1)"
        )
        for text, state in [("pill", "pending"), ("walk", "cancelled"), ("tea", "sent"), ("bath", "sent")]:
            old.execute(OLD_REMINDER, ("family", "local:family", text, FEB_9_1200, state))
        old.execute(OLD_REMINDER, ("gone", "local:gone", "rent", FEB_9_1200, "pending"))
        old.execute(OLD_OUTGOING, ("tea", "reminder:3", "m3", "sent", FEB_9_1200 + 5))
        old.execute(OLD_OUTGOING, ("bath", "reminder:4", "m4", "pending", None))
        if version >= 6:
            old.execute("INSERT INTO dashboards (group_folder, revision, created_ms) VALUES ('family', 7, 1)")
            old.execute(
                "INSERT INTO notifications (group_folder, id, message, due_ms, type, priority, status,"
                " created_by, created_ms, version)"
                " VALUES ('family', 'n_1', 'by a model', ?, 'reminder', 'medium', 'pending', 'main_agent',"
                " 1, 7)",
                (FEB_9_1200,),
            )
        old.commit()


@pytest.mark.parametrize("version", range(1, BEFORE + 1))
async def test_the_reminders_of_an_earlier_version_are_taken_over(database_path, clock, version):
    an_old_home(database_path, version)
    clock.wall_ms = FEB_9_0830

    harness = StoreHarness(await Database.open(database_path), clock)
    try:
        async with harness.database.reading() as tx:
            coming = await board_notifications.reminders(tx)
            assert list(await tx.execute_fetchall("PRAGMA foreign_key_check")) == []
        found = {each.number: (each.message, each.status.value) for each in [
            await one(harness, number) for number in range(1, 6)
        ]}  # fmt: skip
        assert found == {
            1: ("pill", "pending"),
            2: ("walk", "cancelled"),
            3: ("tea", "delivered"),
            4: ("bath", "sending"),
            5: ("rent", "pending"),
        }
        assert (await one(harness, 1)).id == "reminder_1"
        by_model = [6] if version >= 6 else []
        assert sorted(each.number for each in coming) == [1, 4, 5, *by_model]

        clock.wall_ms = FEB_9_1200
        for _ in range(2):
            await notifier(harness).send_due()
        told = sorted((str(each.chat_jid), each.text) for each in await harness.outgoing())
        family = ChatJid("local:family")
        assert told == sorted(
            [(family, "bath"), (family, "pill"), ("local:gone", "rent")]
            + [(family, "by a model")] * len(by_model)
        )
        await remind(harness, "new", in_ms=HOUR_MS)
        assert (await one(harness, 6 + len(by_model))).message == "new"
    finally:
        await harness.database.close()
