"""Reminders at their time: sent once, also over a restart."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from orchestrator.domain.values import Folder, ReminderState
from orchestrator.scheduler.loop import SWEEP_SECONDS, Scheduler
from orchestrator.store import groups, reminders
from orchestrator.store.database import Database
from tests.support.household import SEOUL, Household
from tests.support.until import until

MINUTE = 60_000


def a_scheduler(house):
    return Scheduler(
        house.database, clock=house.clock, wakeups=house.wakeups, bus=house.bus, zone_of=lambda _: SEOUL
    )


@asynccontextmanager
async def scheduling(house):
    async with asyncio.TaskGroup() as tasks:
        loop = tasks.create_task(a_scheduler(house).run(), name="scheduler")
        try:
            yield
        finally:
            loop.cancel()


async def remind(house, text, *, in_ms, folder="family"):
    async with house.database.transaction() as tx:
        group = await groups.known(tx, folder)
        now_ms = house.clock.now_ms()
        return await reminders.add(tx, group, text=text, due_ms=now_ms + in_ms, now_ms=now_ms)


async def sent(house):
    return [one.text for one in await house.outgoing()]


@pytest.fixture
async def family(household):
    await household.add_group()
    return household


async def test_a_due_reminder_is_queued_for_its_chat_word_for_word(family):
    number = await remind(family, "Take the <pill> & smile", in_ms=0)

    await a_scheduler(family).fire_due()

    (outgoing,) = await family.outgoing()
    assert (outgoing.chat_jid, outgoing.folder, outgoing.text) == (
        "local:family", "family", "Take the <pill> & smile",
    )  # fmt: skip
    async with family.database.reading() as tx:
        assert (await reminders.get(tx, number)).state is ReminderState.SENT
    async with asyncio.timeout(60):
        await family.wakeups.outbox.wait(at_most_seconds=None)


async def test_it_is_queued_once_however_often_the_loop_looks(family):
    await remind(family, "pill", in_ms=0)
    for _ in range(3):
        await a_scheduler(family).fire_due()

    assert await sent(family) == ["pill"]


async def test_it_is_not_sent_before_its_time(family):
    await remind(family, "pill", in_ms=MINUTE)
    family.clock.pass_ms(MINUTE - 1)
    await a_scheduler(family).fire_due()
    assert await sent(family) == []

    family.clock.pass_ms(1)
    await a_scheduler(family).fire_due()
    assert await sent(family) == ["pill"]


async def test_the_loop_sleeps_until_the_next_one_and_at_most_a_minute(family):
    scheduler = a_scheduler(family)
    assert await scheduler.fire_due() == SWEEP_SECONDS

    await remind(family, "later", in_ms=MINUTE * 60)
    assert await scheduler.fire_due() == SWEEP_SECONDS

    await remind(family, "soon", in_ms=2_500)
    assert await scheduler.fire_due() == 2.5


async def test_an_earlier_reminder_wakes_the_loop(family):
    await remind(family, "late", in_ms=MINUTE * 60)
    async with scheduling(family):
        await until(lambda: family.database, "the loop")
        await remind(family, "now", in_ms=0)
        family.wakeups.scheduler.set()

        async def holds():
            return await sent(family) == ["now"]

        await until(holds, "the earlier reminder")


async def test_what_came_due_while_the_host_was_down_is_sent_once(database_path, clock):
    first = Household(await Database.open(database_path), clock)
    await first.add_group()
    await remind(first, "pill", in_ms=MINUTE)
    await remind(first, "walk", in_ms=2 * MINUTE)
    await first.database.close()
    clock.pass_ms(MINUTE * 60)

    for _ in range(2):
        again = Household(await Database.open(database_path), clock)
        async with scheduling(again):

            async def holds(again=again):
                return await sent(again) == ["pill (late)", "walk (late)"]

            await until(holds, "both reminders")
        await again.database.close()


async def test_a_cancelled_reminder_is_not_sent(family):
    number = await remind(family, "pill", in_ms=MINUTE)
    async with family.database.transaction() as tx:
        await reminders.close(tx, number, ReminderState.CANCELLED)
    family.clock.pass_ms(MINUTE)
    await a_scheduler(family).fire_due()

    assert await sent(family) == []


async def test_a_reminder_that_cannot_be_queued_is_not_marked_as_sent(family):
    number = await remind(family, "pill", in_ms=0)
    async with family.database.transaction() as tx:
        await tx.execute("CREATE TRIGGER full BEFORE INSERT ON outbox BEGIN SELECT raise(ABORT, 'full'); END")
    with pytest.raises(Exception, match="full"):
        await a_scheduler(family).fire_due()

    async with family.database.transaction() as tx:
        assert (await reminders.get(tx, number)).state is ReminderState.PENDING
        await tx.execute("DROP TRIGGER full")
    await a_scheduler(family).fire_due()
    assert await sent(family) == ["pill"]


async def test_reminders_of_all_groups_go_to_their_own_chats(family):
    await family.add_group("work")
    await remind(family, "home", in_ms=0)
    await remind(family, "office", in_ms=0, folder=Folder("work"))

    await a_scheduler(family).fire_due()

    assert [(one.chat_jid, one.text) for one in await family.outgoing()] == [
        ("local:family", "home"),
        ("local:work", "office"),
    ]
