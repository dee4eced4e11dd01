"""The outbox and a messenger whose answers are scripted."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import asynccontextmanager

import pytest

from agent_runner.wire.frames import Ack, Result, TurnEnd
from orchestrator.base.announcements import Announcement
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeup
from orchestrator.domain.errors import ChannelDown, ChannelRefused, OutcomeUnknown, SendRateFull
from orchestrator.domain.protocols import Feature
from orchestrator.domain.values import Attachment, ChatJid, Folder, MessageId, OutboxState
from orchestrator.outbound import delivery as delivery_module
from orchestrator.outbound.delivery import GIVE_UP_MS, backoff_ms
from orchestrator.reports import queues
from orchestrator.store.board import deliveries
from orchestrator.store.conversation import chats, messages, outbox
from tests.doubles.channel import ScriptedChannel
from tests.support.delivering import delivering
from tests.support.reminders import notifier, put_reminder
from tests.support.until import until

HOUR_MS = 3_600_000
HOME, WORK, FOREIGN = ChatJid("x:home"), ChatJid("x:work"), ChatJid("foreign:chat")


class Office:
    """An outbox with its delivery, and the messenger behind it."""

    def __init__(self, database, clock):
        self.database, self.clock = database, clock
        self.channel = ScriptedChannel()
        self.wakeup = Wakeup()
        self.bus = EventBus(clock)
        self.numbers = iter(range(1, 1_000))
        self.resends = ()

    async def post(self, text, jid=HOME, *, state=OutboxState.PENDING, attachment=None):
        number = next(self.numbers)
        async with self.database.transaction() as tx:
            await chats.upsert(tx, jid, name=None, channel=None, is_group=False, at_ms=None)
            await outbox.add(
                tx,
                chat_jid=jid,
                text=text,
                dedupe_key=f"k{number}",
                folder=Folder("family"),
                state=state,
                attachment=attachment,
                now_ms=self.clock.now_ms(),
            )
        self.wakeup.set()
        return number

    async def row(self, number):
        async with self.database.reading() as tx:
            rows = await tx.execute_fetchall("SELECT * FROM outbox WHERE id = ?", (number,))
        return dict(next(iter(rows)))

    async def is_in(self, number, *states):
        return (await self.row(number))["state"] in states

    async def is_over(self):
        async with self.database.reading() as tx:
            return await outbox.unsent(tx, limit=1) == []

    async def is_over_but_unknown(self):
        async with self.database.reading() as tx:
            return all(one.state is OutboxState.UNKNOWN for one in await outbox.unsent(tx, limit=9))

    async def is_over_but_given_up(self):
        async with self.database.reading() as tx:
            return all(one.state is OutboxState.DEAD for one in await outbox.unsent(tx, limit=9))

    async def settled(self, *numbers):
        ends = ("sent", "unknown", "dead", "skipped")
        for number in numbers:
            await until(lambda number=number: self.is_in(number, *ends), f"end of {number}")

    async def tried(self, number, attempts):
        async def holds():
            row = await self.row(number)
            return row["attempts"] >= attempts and row["state"] != "sending"

        await until(holds, f"attempt {attempts} of {number}")

    async def failed(self, number, error):
        async def holds():
            row = await self.row(number)
            return (row["state"], row["error"]) == ("pending", error)

        await until(holds, f"{number} has failed: {error}")

    @asynccontextmanager
    async def open(self):
        async with delivering(
            self.database,
            self.channel,
            clock=self.clock,
            wakeup=self.wakeup,
            bus=self.bus,
            resends=self.resends,
        ) as delivery:
            yield delivery

    def pass_ms(self, milliseconds):
        self.clock.pass_ms(milliseconds)
        self.wakeup.set()


@pytest.fixture
def office(database, clock):
    return Office(database, clock)


async def test_what_waits_is_sent_and_stored_as_andys_own(office):
    number = await office.post("hello")
    async with office.open():
        await office.settled(number)

    row = await office.row(number)
    assert (row["state"], row["attempts"], row["sent_ms"]) == ("sent", 1, office.clock.now_ms())
    async with office.database.reading() as tx:
        (own,) = await messages.newest(tx, HOME, limit=9)
    assert (own.text, own.id, own.is_bot_message) == ("hello", row["message_id"], True)


async def test_what_was_sent_while_the_store_failed_counts_as_sent(office, monkeypatch):
    monkeypatch.setattr(delivery_module, "RECORD_PAUSE_SECONDS", 0.0)
    finish, failures = outbox.finish, iter([sqlite3.OperationalError("database or disk is full")] * 3)

    async def finish_or_fail(*arguments, **options):
        if (error := next(failures, None)) is not None:
            raise error
        await finish(*arguments, **options)

    monkeypatch.setattr(outbox, "finish", finish_or_fail)
    office.channel.features = frozenset()
    async with office.open():
        number = await office.post("hello")
        await office.settled(number)
    assert (await office.row(number))["state"] == "sent"
    assert office.channel.texts() == ["hello"]


async def test_what_was_not_sent_while_the_store_failed_is_sent_later(office, monkeypatch):
    monkeypatch.setattr(delivery_module, "RECORD_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(delivery_module, "FIRST_BACKOFF_MS", 0)
    try_later, failures = outbox.try_later, iter([sqlite3.OperationalError("database or disk is full")] * 3)

    async def try_later_or_fail(*arguments, **options):
        if (error := next(failures, None)) is not None:
            raise error
        await try_later(*arguments, **options)

    monkeypatch.setattr(outbox, "try_later", try_later_or_fail)
    office.channel.features = frozenset()
    office.channel.will(HOME, ChannelDown("down"))
    async with office.open():
        number = await office.post("hello")
        await office.settled(number)
    assert (await office.row(number))["state"] == "sent"


async def test_the_messengers_own_id_of_a_message_is_stored_beside_ours(office):
    number = await office.post("hello")
    ours = (await office.row(number))["message_id"]
    office.channel.channel_ids[ours] = "$event"
    async with office.open():
        await office.settled(number)

    async with office.database.reading() as tx:
        assert await messages.own_by_channel_id(tx, HOME, MessageId("$event")) == ours
        assert await messages.own_by_channel_id(tx, WORK, MessageId("$event")) is None


async def test_a_file_that_the_messenger_does_not_take_is_refused_before_it_is_sent(office, tmp_path):
    office.channel.max_file_bytes = 3
    sent = {}
    for name, body in (("small", b"123"), ("large", b"1234")):
        (tmp_path / name).write_bytes(body)
        file = Attachment(path=tmp_path / name, name=f"{name}.pdf", mime="application/pdf")
        sent[name] = await office.post(name, attachment=file)
    async with office.open():
        await office.settled(*sent.values())

    texts = office.channel.texts()
    assert texts[0] == "small"
    assert "large" not in texts, "only the notice of it may follow, as soon as it is sent"
    row = await office.row(sent["large"])
    assert row["state"] == "dead"
    assert row["error"].startswith("large.pdf has ")


async def test_what_may_have_arrived_is_not_sent_again_by_a_channel_that_would_show_it_twice(office):
    lost, cut = await office.post("lost"), await office.post("cut", WORK)
    office.channel.features = frozenset()
    office.channel.will(HOME, OutcomeUnknown())
    async with office.database.transaction() as tx:
        await outbox.begin_attempt(tx, cut)
    async with office.open():
        await office.settled(lost, cut)

    assert office.channel.texts() == []
    for number in (lost, cut):
        row = await office.row(number)
        assert (row["state"], row["error"]) == ("unknown", str(OutcomeUnknown()))


@pytest.mark.parametrize("error", [TimeoutError(), ValueError("a library broke")])
async def test_a_channel_that_shows_repeats_is_asked_again_after_no_error_that_may_come_too_late(
    office, error
):
    number = await office.post("hello")
    office.channel.features = frozenset()
    office.channel.will(HOME, error)
    async with office.open():
        await office.settled(number)

    row = await office.row(number)
    assert row["state"] == "unknown"
    assert row["error"].startswith(f"{OutcomeUnknown()} The channel ")


async def test_what_may_have_arrived_is_sent_again_where_the_owner_wants_that(office):
    lost, cut = await office.post("lost"), await office.post("cut", WORK)
    office.channel.features = frozenset()
    office.resends = {office.channel.name}
    office.channel.will(HOME, OutcomeUnknown())
    async with office.database.transaction() as tx:
        await outbox.begin_attempt(tx, cut)
    async with office.open():
        await office.tried(lost, 1)
        office.pass_ms(backoff_ms(1))
        await office.settled(lost, cut)

    assert sorted(office.channel.texts()) == ["cut", "lost"]


async def test_the_owner_has_sent_again_what_may_have_arrived_and_nothing_else(office):
    lost, sent = await office.post("lost"), await office.post("sent", WORK)
    office.channel.features = frozenset()
    office.channel.will(HOME, OutcomeUnknown())
    async with office.open():
        await office.settled(lost, sent)
        async with office.database.transaction() as tx:
            (row,) = await queues.outbox_rows(tx, limit=9)
            assert (row["id"], row["state"]) == (lost, "unknown")
            assert "andy outbox retry" in queues.outbox_lines([row])[-1]
            assert not await outbox.revive(tx, sent, now_ms=office.clock.now_ms())
            assert await outbox.revive(tx, lost, now_ms=office.clock.now_ms())
        office.wakeup.set()
        await until(lambda: office.is_in(lost, "sent"), "sent at last")

    assert sorted(office.channel.texts()) == ["lost", "sent"]


async def test_an_interrupted_send_is_repeated_by_a_channel_that_shows_an_id_once(office):
    number = await office.post("cut")
    async with office.database.transaction() as tx:
        await outbox.begin_attempt(tx, number)
    async with office.open():
        await office.settled(number)

    assert office.channel.texts() == ["cut"]


async def test_a_new_message_wakes_the_delivery(office):
    async with office.open():
        await asyncio.sleep(0)
        await office.settled(await office.post("hello"))

    assert office.channel.texts() == ["hello"]


async def test_a_chat_keeps_its_order_while_its_first_message_is_in_trouble(office):
    office.channel.will(HOME, ChannelDown(), ChannelDown())
    first, second = await office.post("first"), await office.post("second")
    async with office.open():
        await office.tried(first, 1)
        assert (await office.row(second))["attempts"] == 0
        office.pass_ms(5_000)
        await office.tried(first, 2)
        office.pass_ms(10_000)
        await office.settled(first, second)

    assert office.channel.texts() == ["first", "second"]


async def test_one_chats_trouble_does_not_hold_another(office):
    stuck = asyncio.Event()
    office.channel.will(HOME, stuck)
    home = await office.post("home")
    work = [await office.post(f"work {n}", WORK) for n in range(3)]
    async with office.open():
        await office.settled(*work)
        assert office.channel.texts() == ["work 0", "work 1", "work 2"]
        stuck.set()
        await office.settled(home)


async def test_the_next_attempt_waits_for_its_time(office):
    office.channel.will(HOME, ChannelDown("no line"))
    number = await office.post("hello")
    async with office.open():
        await office.tried(number, 1)
        row = await office.row(number)
        assert (row["state"], row["error"]) == ("pending", "no line")
        assert row["next_attempt_ms"] == office.clock.now_ms() + 5_000
        office.pass_ms(4_999)
        marker = await office.post("marker", WORK)
        await office.settled(marker)
        assert (await office.row(number))["attempts"] == 1
        office.pass_ms(1)
        await office.settled(number)

    assert (await office.row(number))["attempts"] == 2


def test_the_pauses_double_up_to_an_hour():
    assert [backoff_ms(n) // 1000 for n in (1, 2, 3, 4, 9, 10, 11, 500)] == [
        5, 10, 20, 40, 1280, 2560, 3600, 3600,
    ]  # fmt: skip


async def test_after_a_day_of_trouble_a_message_is_dead_and_the_next_one_goes(office):
    office.channel.will(HOME, *[ChannelDown("no line")] * 60)
    number = await office.post("old news")
    events = []
    async with office.open():
        with office.bus.listening() as queue:
            for attempt in range(1, 60):
                await office.tried(number, attempt)
                if await office.is_in(number, "dead"):
                    break
                office.pass_ms(backoff_ms(attempt))
            while not queue.empty():
                events.append(queue.get_nowait().kind)
        office.channel.scripts[HOME].clear()
        late = await office.post("news")
        await office.settled(late)

    row = await office.row(number)
    assert (row["state"], row["error"]) == ("dead", "no line")
    assert GIVE_UP_MS < office.clock.now_ms() - row["created_ms"] <= GIVE_UP_MS + 3_600_000
    assert office.channel.texts() == ["news"]
    assert "message.dead" in events


async def fail_until(office, number, *, hours):
    """Have the first message of a chat fail for so long; return when it has ended or the time is over."""
    begin_ms = office.clock.now_ms()
    for attempt in range(1, 60):
        # One failure at a time: when this message is given up, none is left for the one behind it.
        office.channel.will(HOME, ChannelDown("no luck"))
        office.wakeup.set()
        await office.tried(number, attempt)
        if (
            await office.is_in(number, "unknown", "dead")
            or office.clock.now_ms() - begin_ms > hours * HOUR_MS
        ):
            break
        office.clock.pass_ms(backoff_ms(attempt))


async def test_a_message_that_fails_for_an_hour_on_a_line_that_works_lets_those_behind_it_go(office):
    office.channel.connected_since_ms = office.clock.now_ms()
    first, second = await office.post("secret words"), await office.post("second")
    async with office.open():
        await fail_until(office, first, hours=20)
        await until(office.is_over_but_unknown, "all else is sent")

    row = await office.row(first)
    assert (row["state"], row["error"]) == ("unknown", "no luck")
    assert office.clock.now_ms() - row["created_ms"] < 3 * HOUR_MS
    assert office.channel.texts() == [
        "second", "⚠️ I do not know whether an answer has arrived: no luck",
    ]  # fmt: skip
    assert (await office.row(second))["attempts"] == 1


@pytest.mark.parametrize("trouble", ["nothing waits behind it", "the line", "a line that comes and goes"])
async def test_a_message_that_fails_with_its_line_or_holds_up_nobody_is_tried_for_a_day(office, trouble):
    number = await office.post("patient")
    if trouble != "the line":
        office.channel.connected_since_ms = office.clock.now_ms()
    if trouble == "a line that comes and goes":
        office.channel.connected_since_ms += 20 * HOUR_MS
    if trouble != "nothing waits behind it":
        await office.post("behind")
    async with office.open():
        await fail_until(office, number, hours=10)
        assert await office.is_in(number, "pending")


async def test_a_file_may_take_longer_to_leave_than_a_text(office, tmp_path, monkeypatch):
    monkeypatch.setattr(delivery_module, "SEND_SECONDS", 0.01)
    monkeypatch.setattr(delivery_module, "FILE_BYTES_PER_SECOND", 0.001)
    (tmp_path / "film").write_bytes(b"film")
    film = Attachment(path=tmp_path / "film", name="film.mp4", mime="video/mp4")
    sent = asyncio.Event()
    office.channel.will(HOME, sent)
    office.channel.will(WORK, asyncio.Event())
    number, text = await office.post("", attachment=film), await office.post("text", WORK)
    async with office.open():
        await office.tried(text, 1)
        assert "did not answer" in (await office.row(text))["error"]
        sent.set()
        await office.settled(number)


async def test_a_file_that_is_no_longer_there_is_never_said_to_have_perhaps_arrived(office, tmp_path):
    gone = Attachment(path=tmp_path / "film", name="film.mp4", mime="video/mp4")
    number = await office.post("", attachment=gone)
    async with office.open():
        await office.settled(number)
    row = await office.row(number)
    assert (row["state"], row["error"]) == ("dead", "film.mp4 is no longer there.")
    # The chat is told of it by a text, which may be sent already.
    assert row["message_id"] not in [one.message_id for one in office.channel.attempts]


async def test_a_dead_message_revived_is_tried_again(office):
    office.channel.will(HOME, ChannelRefused("blocked"))
    number = await office.post("hello")
    announced: list[Announcement] = []
    office.database.announce = announced.append
    async with office.open():
        await office.settled(number)
        async with office.database.transaction() as tx:
            assert await outbox.revive(tx, number, now_ms=office.clock.now_ms())
            assert not await outbox.revive(tx, number, now_ms=office.clock.now_ms())
        office.wakeup.set()
        await until(lambda: office.is_in(number, "sent"), "revived and sent")
    assert [(one.kind, one.group) for one in announced] == [("outbox.changed", "family")]


async def test_what_a_channel_refuses_is_dead_at_once(office):
    office.channel.will(HOME, ChannelRefused("no such chat"))
    first, second = await office.post("first"), await office.post("second")
    async with office.open():
        await office.settled(first, second)

    row = await office.row(first)
    assert (row["state"], row["error"], row["attempts"]) == ("dead", "no such chat", 1)
    assert office.channel.texts() == ["second"]


async def test_a_channel_that_breaks_is_asked_again_later_not_at_once(office):
    office.channel.will(HOME, ValueError("bug"))
    number = await office.post("hello")
    async with office.open():
        await office.tried(number, 1)
        row = await office.row(number)
        assert row["next_attempt_ms"] == office.clock.now_ms() + 5_000
        office.pass_ms(5_000)
        await office.settled(number)

    assert office.channel.texts() == ["hello"]


@pytest.mark.parametrize(
    ("asked", "waits_ms"),
    [
        (90.0, 90_000),
        (0.01, 200),
        (10**9, 3_600_000),
        (10**400, 3_600_000),
        (1e308, 3_600_000),
        (float("inf"), 3_600_000),
        # What is no length of time asks for no pause: the usual one follows.
        (-5.0, 5_000),
        (float("-inf"), 5_000),
        (float("nan"), 5_000),
        ("abc", 5_000),
        (None, 5_000),
    ],
)
async def test_a_messenger_that_asks_for_a_pause_is_left_alone_as_long_within_bounds(office, asked, waits_ms):
    office.channel.will(HOME, ChannelDown("too fast", pause_seconds=asked))
    number = await office.post("hello")
    async with office.open():
        await office.failed(number, "too fast")
        row = await office.row(number)
        assert row["next_attempt_ms"] == office.clock.now_ms() + waits_ms


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (ChannelDown("too fast", pause_seconds=0.0001), 0),
        (ChannelDown("too fast", pause_seconds=1.0), 0),
        (ChannelDown("moved", pause_seconds=0.2, moved_to=HOME), 14),
    ],
)
async def test_a_messenger_that_asks_for_a_moment_without_end_is_asked_less_and_less_often(
    office, error, attempts
):
    office.channel.will(HOME, *[error] * 14)
    number = await office.post("hello")
    waits_ms = []
    async with office.open():
        for attempt in range(1, 15):
            await until(lambda attempt=attempt: len(office.channel.attempts) == attempt, f"try {attempt}")
            await office.failed(number, str(error))
            row = await office.row(number)
            waits_ms.append(row["next_attempt_ms"] - office.clock.now_ms())
            office.pass_ms(waits_ms[-1])
        assert row["attempts"] == attempts
        await office.settled(number)
    least_ms = max(200, int(error.pause_seconds * 1000))
    assert waits_ms == [max(least_ms, min(200 * 2**n, 300_000)) for n in range(14)]
    assert office.channel.texts() == ["hello"]


async def test_a_pause_for_the_own_send_rate_does_not_grow(office):
    office.channel.will(HOME, *[SendRateFull("Messages go first.", pause_seconds=10.0)] * 9)
    number = await office.post("hello")
    async with office.open():
        for attempt in range(1, 10):
            await until(lambda attempt=attempt: len(office.channel.attempts) == attempt, f"try {attempt}")
            await office.failed(number, "Messages go first.")
            assert (await office.row(number))["next_attempt_ms"] - office.clock.now_ms() == 10_000
            office.pass_ms(10_000)
        await office.settled(number)


async def test_a_pause_that_was_asked_for_holds_across_a_reconnection_and_a_restart(office):
    office.channel.will(HOME, ChannelDown("no line"), ChannelDown("too fast", pause_seconds=600.0))
    office.channel.will(WORK, ChannelDown("no line"))
    number, other = await office.post("hello"), await office.post("work", WORK)

    async def connects():
        async with office.database.transaction() as tx:
            await deliveries.hurry(tx, ["x:%"], now_ms=office.clock.now_ms())
        office.wakeup.set()

    async with office.open():
        await office.failed(number, "no line")
        await office.failed(other, "no line")
        await connects()
        await office.settled(other)
        await office.failed(number, "too fast")
        until_ms = office.clock.now_ms() + 600_000
        office.clock.pass_ms(10_000)
        await connects()
        await office.settled(await office.post("marker", WORK))
        assert (await office.row(number))["next_attempt_ms"] == until_ms
    office.clock.pass_ms(10_000)
    await connects()
    async with office.open():
        await office.settled(await office.post("another marker", WORK))
        assert (await office.row(number))["next_attempt_ms"] == until_ms
        office.pass_ms(580_000)
        await office.settled(number)
    assert office.channel.texts() == ["work", "marker", "another marker", "hello"]


@pytest.mark.parametrize(("hours", "state"), [(30, "sent"), (72, "sent"), (73, "dead")])
async def test_a_message_whose_messenger_asks_for_pause_after_pause_is_given_up_after_three_days(
    office, hours, state
):
    office.channel.will(HOME, *[ChannelDown("too fast", pause_seconds=3_600.0) for _ in range(hours + 1)])
    number, behind = await office.post("hello"), await office.post("behind")
    async with office.open():
        for attempt in range(1, hours + 2):
            await until(lambda attempt=attempt: len(office.channel.attempts) == attempt, f"try {attempt}")
            if attempt == hours + 1 and state == "dead":
                break
            await office.failed(number, "too fast")
            office.pass_ms(HOUR_MS)
        await office.settled(number)
        await office.settled(behind)
        await until(office.is_over_but_given_up, "all is sent")
    row = await office.row(number)
    assert (row["state"], row["attempts"]) == (state, 1)
    notice = "⚠️ I could not send an answer: too fast"
    assert office.channel.texts() == (["hello", "behind"] if state == "sent" else ["behind", notice])


@pytest.mark.parametrize("earlier_pauses", [0, 1])
async def test_a_message_is_not_given_up_for_its_age_alone_when_its_messenger_asks_for_a_pause(
    office, earlier_pauses
):
    office.channel.will(HOME, *[ChannelDown("too fast", pause_seconds=60.0)] * (earlier_pauses + 1))
    number = await office.post("hello")
    if not earlier_pauses:
        office.clock.pass_ms(100 * HOUR_MS)
    async with office.open():
        await office.failed(number, "too fast")
        if earlier_pauses:
            # The machine was suspended, or its clock is wrong.
            office.pass_ms(100 * HOUR_MS)
            await until(lambda: len(office.channel.attempts) == 2, "the second try")
            await office.failed(number, "too fast")
        office.pass_ms(60_000)
        await office.settled(number)
    assert office.channel.texts() == ["hello"]


async def test_a_pause_of_an_hour_holds_when_the_clock_is_set_back_a_little(office):
    office.channel.will(HOME, ChannelDown("too fast", pause_seconds=3_600.0))
    number = await office.post("hello")
    async with office.open():
        await office.failed(number, "too fast")
        office.pass_ms(-2_000)
        await office.settled(await office.post("marker", WORK))
        assert len(office.channel.attempts) == 2
        office.pass_ms(HOUR_MS + 2_000)
        await office.settled(number)


async def test_a_channel_that_does_not_answer_is_asked_again_later(office, monkeypatch):
    monkeypatch.setattr(delivery_module, "SEND_SECONDS", 0.01)
    office.channel.will(HOME, asyncio.Event())
    number = await office.post("hello")
    async with office.open():
        await office.tried(number, 1)
        assert "did not answer" in (await office.row(number))["error"]


async def test_a_chat_no_channel_owns_waits_for_one(office):
    number = await office.post("hello", FOREIGN)
    async with office.open():
        await office.tried(number, 1)

    row = await office.row(number)
    assert row["state"] == "pending"
    assert "No channel" in row["error"]


async def test_a_crash_between_send_and_mark_sends_again_under_the_same_id(office):
    number = await office.post("hello")
    async with office.database.transaction() as tx:
        await outbox.begin_attempt(tx, number)
        row = (await outbox.heads(tx))[0]
    await office.channel.send(row.chat_jid, row.text, row.message_id)

    async with office.open():
        await office.settled(number)

    assert office.channel.texts() == ["hello"]
    assert [one.message_id for one in office.channel.attempts] == [row.message_id] * 2
    async with office.database.reading() as tx:
        assert len(await messages.newest(tx, HOME, limit=9)) == 1


async def test_a_delivery_cancelled_in_mid_send_is_taken_up_by_the_next(office):
    office.channel.will(HOME, asyncio.Event())
    number = await office.post("hello")

    async def a_host():
        async with office.open():
            await asyncio.Event().wait()

    host = asyncio.create_task(a_host(), name="host")
    await until(lambda: office.channel.attempts, "a send under way")
    host.cancel()
    await asyncio.wait([host])
    assert await office.is_in(number, "sending")

    async with office.open():
        await office.settled(number)

    assert office.channel.texts() == ["hello"]


async def test_what_was_not_meant_for_people_is_skipped(office):
    number = await office.post("<internal>note to self</internal>")
    async with office.open():
        await office.settled(number)

    row = await office.row(number)
    assert (row["state"], row["attempts"]) == ("skipped", 0)
    assert office.channel.attempts == []
    async with office.database.reading() as tx:
        assert await messages.newest(tx, HOME, limit=9) == []


async def test_what_is_sent_and_stored_is_without_the_internal_parts(office):
    number = await office.post("<internal>hm</internal>hello")
    async with office.open():
        await office.settled(number)

    async with office.database.reading() as tx:
        (own,) = await messages.newest(tx, HOME, limit=9)
    assert office.channel.texts() == [own.text] == ["hello"]


async def test_a_held_message_stays_and_holds_nobody(office):
    held = await office.post("draft", state=OutboxState.HELD)
    later = await office.post("said meanwhile")
    async with office.open():
        await office.settled(later)

    assert await office.is_in(held, "held")


async def test_one_dedupe_key_is_one_message(database, clock):
    async with database.transaction() as tx:
        await chats.upsert(tx, HOME, name=None, channel=None, is_group=False, at_ms=None)
        added = [await outbox.add(tx, chat_jid=HOME, text=text, dedupe_key="same", now_ms=1) for text in "ab"]

        assert added == [True, False]
        assert [one.text for one in await outbox.unsent(tx, limit=9)] == ["a"]


async def test_a_long_text_leaves_in_parts_before_what_waits_behind_it(office):
    office.channel.max_text_chars = 12
    first = await office.post("<internal>hm</internal>One two.\n\nThree four.\n\nFive.")
    second = await office.post("After.")
    async with office.open():
        await office.settled(first, second)
        await until(lambda: len(office.channel.shown) == 4, "all parts")

    assert office.channel.texts() == ["One two.", "Three four.", "Five.", "After."]
    assert len({one.message_id for one in office.channel.shown}) == 4
    async with office.database.reading() as tx:
        stored = await messages.newest(tx, HOME, limit=9)
    assert [one.text for one in stored] == office.channel.texts()


async def test_a_part_of_a_long_text_looks_for_its_earlier_ones_in_an_index(database):
    plan = []

    class Explaining:
        """The transaction, which also explains how SQLite runs each query."""

        async def execute(self, sql, parameters):
            plan.extend(await tx.execute_fetchall(f"EXPLAIN QUERY PLAN {sql}", parameters))
            return await tx.execute(sql, parameters)

    async with database.reading() as tx:
        await outbox.is_rest_of_unsent(Explaining(), 1)
    assert plan
    assert [row["detail"] for row in plan if row["detail"].startswith("SCAN")] == []


@pytest.mark.parametrize("sent", [[], ["One two."]])
async def test_the_rest_of_a_long_text_is_sent_only_after_the_part_that_was_refused(office, sent):
    office.channel.max_text_chars = 12
    through = asyncio.Event()
    through.set()
    office.channel.will(HOME, *(through for _ in sent), ChannelRefused("blocked"))
    number = await office.post("One two.\n\nThree four.\n\nFive.")
    after = await office.post("After.")
    async with office.open():
        await office.settled(after)
        assert office.channel.texts() == [*sent, "After."]
        async with office.database.reading() as tx:
            (refused,) = await outbox.given_up(tx, limit=9)

        async with office.database.transaction() as tx:
            assert await outbox.revive(tx, refused.id, now_ms=office.clock.now_ms())
        office.wakeup.set()
        await until(office.is_over, "all is sent")
    texts = ["One two.", "Three four.", "Five."]
    assert office.channel.texts() == [*sent, "After.", *texts[len(sent) :]]
    assert (refused.id == number) == (not sent)


async def test_a_crash_between_parts_neither_loses_nor_doubles_one(office):
    office.channel.max_text_chars = 12
    hanging = asyncio.Event()
    office.channel.will(HOME, ChannelDown("no line"), hanging, hanging)
    await office.post("One two.\n\nThree four.\n\nFive.")
    await office.post("After.")

    async def a_host():
        async with office.open():
            await asyncio.Event().wait()

    host = asyncio.create_task(a_host(), name="host")
    await until(lambda: len(office.channel.attempts) == 1, "the first part, refused")
    office.pass_ms(5_000)
    office.wakeup.set()
    await until(lambda: len(office.channel.attempts) == 2, "the first part under way")
    host.cancel()
    await asyncio.wait([host])

    hanging.set()
    async with office.open():
        await until(lambda: len(office.channel.shown) == 4, "all parts")
    assert office.channel.texts() == ["One two.", "Three four.", "Five.", "After."]
    assert len({one.message_id for one in office.channel.attempts}) == 4


async def test_the_parts_of_a_turn_are_told_in_their_order(office):
    office.channel.max_text_chars = 12
    await office.post("One two.\n\nThree four.")
    async with office.open():
        await until(lambda: len(office.channel.shown) == 2, "both parts")
        await until(office.is_over, "both are marked as sent")
    async with office.database.reading() as tx:
        rows = await tx.execute_fetchall("SELECT part, dedupe_key FROM outbox ORDER BY id")
        assert await outbox.unsent(tx, limit=9) == []
    assert [(row["part"], row["dedupe_key"]) for row in rows] == [(0, "k1"), (1, "k1#1")]


# What a message answers, and whom it is for


class Answering:
    """A group with its agent's answers and a messenger that can show what they belong to."""

    def __init__(self, store_harness, *features):
        self.store_harness = store_harness
        self.channel = ScriptedChannel(features=frozenset(features))

    async def shown(self, count):
        async with self.store_harness.delivering(self.channel):
            await until(lambda: len(self.channel.shown) >= count, "shown")
        return self.channel.shown


@pytest.fixture
async def answering(store_harness):
    await store_harness.add_group()
    return Answering(store_harness, Feature.QUOTES, Feature.MENTIONS)


async def test_an_answer_quotes_its_question_when_others_wrote_between_and_only_once(answering):
    family = answering.store_harness
    await family.hear("@Andy where?", id=MessageId("Q1"))
    turn, run, _ = await family.start_next()
    await family.hear("I like cake", sender_name="Bob")
    for frame in [Ack(n=1, turn=turn.id), Result(n=2, turn=turn.id, result="At the lake."),
                  Result(n=3, turn=turn.id, result="At noon."), TurnEnd(n=4, turn=turn.id)]:  # fmt: skip
        await family.take(run, frame)

    shown = await answering.shown(2)

    assert [(one.text, one.quotes) for one in shown] == [("At the lake.", "Q1"), ("At noon.", None)]


@pytest.mark.parametrize(("features", "thread"), [((Feature.THREADS,), "T1"), ((), None)])
async def test_an_answer_goes_into_the_thread_of_its_question_where_there_are_threads(
    store_harness, features, thread
):
    await store_harness.add_group()
    await store_harness.hear("hello", thread="T0")
    await store_harness.hear("@Andy where?", thread="T1")
    await store_harness.answer("At the lake.")

    (shown,) = await Answering(store_harness, *features).shown(1)

    assert (shown.text, shown.thread) == ("At the lake.", thread)


async def test_an_answer_to_the_last_message_quotes_nothing(answering):
    family = answering.store_harness
    await family.hear("I like cake")
    await family.hear("@Andy where?")
    await family.answer("At the lake.")

    (shown,) = await answering.shown(1)

    assert shown.quotes is None


@pytest.mark.parametrize(("features", "is_group", "mentions"), [
    ((Feature.MENTIONS,), True, "Jane"), ((Feature.MENTIONS,), False, None), ((), True, None),
])  # fmt: skip
async def test_a_reminder_mentions_who_asked_for_it_in_a_group_where_that_can_be_shown(
    store_harness, features, is_group, mentions
):
    group = await store_harness.add_group()
    await store_harness.hear("hello")
    async with store_harness.database.transaction() as tx:
        await tx.execute("UPDATE chats SET is_group = ?", (is_group,))
        now_ms = store_harness.clock.now_ms()
        await put_reminder(
            tx, group, text="take the bread out", due_ms=now_ms, now_ms=now_ms, asked_by="local:jane"
        )
    await notifier(store_harness).send_due()

    (shown,) = await Answering(store_harness, *features).shown(1)

    assert (shown.text, shown.mentions) == ("take the bread out", mentions)


async def test_a_channel_without_the_features_is_asked_for_none(store_harness):
    await store_harness.add_group()
    await store_harness.hear("@Andy where?")
    turn, run, _ = await store_harness.start_next()
    await store_harness.hear("I like cake")
    for frame in [Ack(n=1, turn=turn.id), Result(n=2, turn=turn.id, result="x"), TurnEnd(n=3, turn=turn.id)]:
        await store_harness.take(run, frame)

    (shown,) = await Answering(store_harness).shown(1)

    assert (shown.text, shown.quotes, shown.mentions) == ("x", None, None)
