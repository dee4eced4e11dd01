"""The table families, a function each where no other test stands behind it."""

from __future__ import annotations

import sqlite3

import pytest

from agent_runner.wire.mailbox import Reply
from orchestrator.domain.dashboard import NotificationStatus
from orchestrator.domain.errors import BadRequest, UnknownGroup
from orchestrator.domain.values import ChatJid, Folder, Seq, TurnState
from orchestrator.groups import registration
from orchestrator.groups.registration import AlreadyRegistered, FolderRefused
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.conversation import chats, messages, outbox
from orchestrator.store.groups import groups
from orchestrator.store.runs import commands, runs, sessions, turns
from tests.support.reminders import put_reminder
from tests.support.store_harness import a_group

FAMILY = Folder("family")


@pytest.fixture
async def family(store_harness):
    await store_harness.add_group()
    return store_harness


async def chat(tx, jid):
    return next(one for one in await chats.every(tx) if one.jid == jid)


async def test_a_chat_keeps_what_a_later_sight_does_not_tell(database):
    jid = ChatJid("1@g.us")
    async with database.transaction() as tx:
        await chats.upsert(tx, jid, name=None, channel=None, is_group=False, at_ms=None)
        assert (await chat(tx, jid)).name == jid
        await chats.upsert(tx, jid, name="Lake", channel="whatsapp", is_group=True, at_ms=50)
        await chats.upsert(tx, jid, name=None, channel=None, is_group=False, at_ms=20)

        seen = await chat(tx, jid)

    assert (seen.name, seen.channel, seen.is_group, seen.last_message_ms) == ("Lake", "whatsapp", True, 50)


async def test_chats_are_told_by_their_last_activity(database):
    async with database.transaction() as tx:
        for jid, at_ms in [("silent", None), ("old", 1), ("new", 9)]:
            await chats.upsert(tx, ChatJid(jid), name=None, channel=None, is_group=True, at_ms=at_ms)

        assert [one.jid for one in await chats.every(tx)] == ["new", "old", "silent"]


async def test_a_group_is_stored_as_it_was_given(database):
    group = a_group(trigger="!ask", requires_trigger=False, container_config={"agent": "offline"}, added_ms=7)
    async with database.transaction() as tx:
        await registration.register(tx, group)

        assert await groups.by_jid(tx, group.jid) == await groups.by_folder(tx, "FAMILY") == group


@pytest.mark.parametrize(
    "other",
    [{"jid": "local:other"}, {"folder": "other", "jid": "local:family"}, {"jid": "x", "folder": "FAMILY"}],
)
async def test_a_chat_and_a_folder_belong_to_one_group(family, other):
    with pytest.raises(AlreadyRegistered, match="family"):
        async with family.database.transaction() as tx:
            await registration.register(tx, a_group(**other))


async def test_a_refused_registration_renames_no_chat(family):
    async with family.database.transaction() as tx:
        with pytest.raises(AlreadyRegistered):
            await registration.register(tx, a_group(folder="other", jid=ChatJid("local:family"), name="Mine"))

        assert (await chat(tx, "local:family")).name == "Family"


async def test_a_bad_folder_is_refused_before_anything_is_stored(database):
    with pytest.raises(FolderRefused):
        async with database.transaction() as tx:
            await registration.register(tx, a_group(folder="../up", jid=ChatJid("local:up")))

    async with database.reading() as tx:
        assert await chats.every(tx) == []


async def test_there_is_one_main(database):
    async with database.transaction() as tx:
        await registration.ensure_main(tx, now_ms=1)
        await registration.ensure_main(tx, now_ms=2)
        assert [(one.folder, one.is_main, one.added_ms) for one in await groups.every(tx)] == [
            ("main", True, 1)
        ]

        with pytest.raises(AlreadyRegistered, match="main group already"):
            await registration.register(tx, a_group("second", is_main=True))


async def test_main_cannot_be_removed_and_others_can(family):
    async with family.database.transaction() as tx:
        await registration.register(tx, a_group("main", is_main=True))
        with pytest.raises(BadRequest, match="main group"):
            await registration.unregister(tx, "main", now_ms=1)
        assert (await registration.unregister(tx, "family", now_ms=1)).group.folder == "family"
        with pytest.raises(UnknownGroup, match="Registered: main"):
            await registration.unregister(tx, "family", now_ms=1)


async def test_a_group_may_come_back_after_it_was_removed(family):
    await family.hear("@Andy hi")
    async with family.database.transaction() as tx:
        await registration.unregister(tx, "family", now_ms=1)
    await family.add_group()

    assert [one.text for one in await family.messages()] == ["@Andy hi"]


async def test_the_cursor_goes_forward_only_and_each_group_has_its_own(database):
    async with database.transaction() as tx:
        assert await sessions.cursor_of(tx, FAMILY) == 0
        for seq, now in [(5, 5), (3, 5), (10, 10), (9, 10)]:
            await sessions.move_cursor(tx, FAMILY, Seq(seq))
            assert await sessions.cursor_of(tx, FAMILY) == now
        assert await sessions.cursor_of(tx, Folder("work")) == 0


async def test_a_session_is_replaced_and_forgotten(database):
    async with database.transaction() as tx:
        assert await sessions.current(tx, FAMILY) is None
        await sessions.put_current(tx, FAMILY, "one", now_ms=1)
        await sessions.put_current(tx, FAMILY, "two", now_ms=2)
        assert await sessions.current(tx, FAMILY) == "two"
        await sessions.forget(tx, FAMILY, now_ms=3)
        assert await sessions.current(tx, FAMILY) is None


async def test_a_run_is_live_until_its_first_end_is_recorded(family):
    run = await family.begin_run()
    async with family.database.transaction() as tx:
        assert await runs.live(tx) == [run]
        await runs.end(tx, run.id, kind="crashed", detail="first", now_ms=5)
        await runs.end(tx, run.id, kind="closed", detail="second", now_ms=9)

        (ended,) = await runs.recent(tx, limit=9, folder=FAMILY)
        assert (ended.exit_kind, ended.exit_detail, ended.ended_ms) == ("crashed", "first", 5)
        assert await runs.live(tx) == []


async def test_frame_numbers_are_taken_once_and_upwards(family):
    run = await family.begin_run()
    async with family.database.transaction() as tx:
        taken = [await runs.advance_frame(tx, run.id, n) for n in (1, 1, 3, 2, 4)]

    assert taken == [True, False, True, False, True]


async def test_two_turns_of_a_group_cannot_run_at_once(family):
    await family.hear("@Andy one")
    await family.start_next()
    await family.hear("@Andy two")
    with pytest.raises(sqlite3.IntegrityError):
        await family.start_next()


async def test_a_settled_turn_stays_as_it_was_settled(family):
    await family.hear("@Andy hi")
    turn = await family.answer("hello")
    async with family.database.transaction() as tx:
        await turns.settle(tx, turn.id, TurnState.FAILED, reason="late", now_ms=1)
        assert (await turns.counts(tx)) == {"answered": 1}


async def test_what_a_turn_said_is_found_as_the_chat_saw_it(family):
    await family.hear("@Andy hi")
    turn = await family.answer("one", "two")
    async with family.database.reading() as tx:
        assert await messages.sent_in(tx, turn.id) == []
    await family.deliver_all()

    async with family.database.reading() as tx:
        assert [one.text for one in await messages.sent_in(tx, turn.id)] == ["one", "two"]
        assert [one.turn_id for one in await outbox.of_turn(tx, turn.id)] == [turn.id, turn.id]


async def test_storing_what_was_sent_again_changes_nothing(family):
    await family.hear("@Andy hi")
    turn = await family.answer("one")
    async with family.database.transaction() as tx:
        (sent,) = await outbox.of_turn(tx, turn.id)
        for text in ("one", "another"):
            await messages.add_own(tx, sent, text=text, name="Andy", now_ms=1)

    assert [one.text for one in await family.messages()] == ["@Andy hi", "one"]


async def test_an_answer_to_a_request_is_kept_for_its_group_alone(database):
    reply = Reply(request_id="r1", ok=False, code="no", text="한글", data={"a": [1]})
    async with database.transaction() as tx:
        await commands.record(tx, FAMILY, "message", reply, now_ms=1)

        assert await commands.answered(tx, FAMILY, "r1") == reply
        assert await commands.answered(tx, Folder("work"), "r1") is None


async def test_reminders_come_in_the_order_of_their_time(family):
    async with family.database.transaction() as tx:
        group = await groups.known(tx, FAMILY)
        late = await put_reminder(tx, group, text="late", due_ms=90, now_ms=1)
        soon = await put_reminder(tx, group, text="soon", due_ms=10, now_ms=1)
        over = NotificationStatus.DELIVERED
        await put_reminder(tx, group, text="gone", due_ms=5, now_ms=1, status=over)

        coming = await board_notifications.reminders(tx, FAMILY)
        assert [one.number for one in coming] == [soon, late] == [2, 1]
        assert [one.number for one in await board_notifications.due(tx, 10)] == [soon]
        assert await board_notifications.next_due_ms(tx, now_ms=5) == 10
        assert await board_notifications.reminders(tx, Folder("work")) == []
