"""A group may have chats in several messengers: one agent, and each answer goes where it was asked."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agent_runner.wire.frames import Ack, Result, TurnEnd
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import ChatJid, TurnState
from orchestrator.groups import registration
from orchestrator.groups.registration import AlreadyRegistered
from orchestrator.store import database as databases
from orchestrator.store import groups, sessions
from orchestrator.store.database import Database, migrations

HOME, PHONE = ChatJid("local:family"), ChatJid("telegram:7")


async def add_chat(store_harness, jid=PHONE, folder="family", **changes):
    async with store_harness.database.transaction() as tx:
        return await registration.add_chat(tx, folder, jid, now_ms=store_harness.clock.now_ms(), **changes)


async def remove_chat(store_harness, jid=PHONE, folder="family"):
    async with store_harness.database.transaction() as tx:
        return await registration.remove_chat(tx, folder, jid, now_ms=store_harness.clock.now_ms())


@pytest.fixture
async def family(store_harness):
    """A group whose second chat is in another messenger."""
    await store_harness.add_group("family")
    await add_chat(store_harness)
    return store_harness


async def on_phone(family, text, **changes):
    return await family.hear(text, chat_jid=PHONE, channel="telegram", chat_name="Family", **changes)


async def test_a_group_has_a_chat_in_each_messenger_and_each_chat_one_group(family):
    async with family.database.reading() as tx:
        group = await groups.known(tx, "family")
        assert (group.jid, group.chats) == (HOME, (HOME, PHONE))
        assert await groups.by_jid(tx, PHONE) == group
    assert (await add_chat(family)).chats == (HOME, PHONE), "to add it again changes nothing"
    await family.add_group("work")
    with pytest.raises(AlreadyRegistered, match="'family'"):
        await add_chat(family, folder="work")
    with pytest.raises(AlreadyRegistered, match="andy groups add-chat family"):
        await family.add_group("other", jid=PHONE)
    with pytest.raises(BadRequest, match="no address"):
        await add_chat(family, "two words")


async def test_the_owner_says_which_chat_is_told_what_nobody_asked(family):
    assert (await add_chat(family, is_notify_chat=True)).chats == (PHONE, HOME)
    assert (await add_chat(family, HOME, is_notify_chat=True)).chats == (HOME, PHONE)


async def test_an_answer_goes_where_it_was_asked(family):
    await family.hear("@Andy one")
    await family.answer("to the first")
    await on_phone(family, "@Andy two")
    await family.answer("to the second")
    assert [(one.chat_jid, one.text) for one in await family.outgoing()] == [
        (HOME, "to the first"),
        (PHONE, "to the second"),
    ]


async def test_what_is_said_in_one_chat_is_known_in_the_other_and_told_once(family):
    await family.hear("dinner is at seven", sent_ms=1_780_000_000_000)
    await on_phone(family, "@Andy when?", sender_name="B", sent_ms=1_780_000_060_000)
    turn, run, order = await family.start_next()
    assert order.prompt.splitlines()[1:] == [
        "<messages>",
        '<message sender="Jane" time="2026-05-29T05:26:40+09:00" chat="Family">dinner is at seven</message>',
        '<message sender="B" time="2026-05-29T05:27:40+09:00" chat="Family (telegram)">@Andy when?</message>',
        "</messages>",
    ]
    assert order.prompt.splitlines()[0].endswith(' chat="Family (telegram)"/>')
    for frame in (Ack(n=1, turn=turn.id), TurnEnd(n=2, turn=turn.id)):
        await family.take(run, frame)
    await family.hear("@Andy thanks")
    *_, order = await family.start_next()
    assert "dinner" not in order.prompt


async def test_a_group_with_one_chat_is_told_of_no_chats(store_harness):
    await store_harness.add_group("family")
    await store_harness.hear("@Andy hi")
    *_, order = await store_harness.start_next()
    assert "chat=" not in order.prompt


async def test_what_another_chat_waits_for_is_asked_in_its_own_turn_alone(family):
    await on_phone(family, "before")
    asked = await on_phone(family, "@Andy what is two and two?")
    await on_phone(family, "beside it")
    await family.hear("@Andy hello")
    first, second = await family.queued()
    assert first.id == asked.turn_id

    run = await family.begin_run()
    order = await family.give(second, run)
    assert "before" in order.prompt
    assert "two and two" not in order.prompt
    assert "beside it" not in order.prompt
    for frame in (Ack(n=1, turn=second.id), TurnEnd(n=2, turn=second.id)):
        await family.take(run, frame)

    # The cursor is past its messages by now, and it is asked all the same.
    order = await family.give(first, run)
    assert "two and two" in order.prompt
    assert "beside it" in order.prompt
    assert "before" not in order.prompt
    assert [one.text for one in order.requests] == ["what is two and two?"]


async def test_a_host_that_dies_between_two_chats_doubles_nothing(family):
    await on_phone(family, "@Andy one")
    turn, run, _ = await family.start_next()
    await family.take(run, Ack(n=1, turn=turn.id))
    await family.take(run, Result(n=2, turn=turn.id, result="half an answer"))
    await family.hear("@Andy two")
    await family.lose(run)

    # Meanwhile the other chat is answered, and the first is asked again as it was.
    first, second = await family.queued()
    run = await family.begin_run()
    await family.give(second, run)
    frames = [
        Ack(n=1, turn=second.id),
        Result(n=2, turn=second.id, result="two!"),
        TurnEnd(n=3, turn=second.id),
    ]
    for frame in [*frames, *frames]:
        await family.take(run, frame)
    order = await family.give(first, run)
    assert "@Andy one" in order.prompt
    for frame in (
        Ack(n=4, turn=first.id),
        Result(n=5, turn=first.id, result="one!"),
        TurnEnd(n=6, turn=first.id),
    ):
        await family.take(run, frame)
    assert [(one.chat_jid, one.text) for one in await family.outgoing()] == [(HOME, "two!"), (PHONE, "one!")]


async def test_clearing_the_conversation_in_one_chat_is_behind_what_was_asked_in_the_other(family):
    asked = await on_phone(family, "@Andy one")
    cleared = await family.hear("/clear", is_from_me=True)
    later = await on_phone(family, "@Andy two")
    turns = {turn.id: turn for turn in await family.queued()}
    assert asked.turn_id != later.turn_id, "nothing joins past a command"
    assert turns[later.turn_id].after_command == cleared.turn_id


async def test_a_chat_that_is_taken_off_is_told_and_the_group_goes_on(family):
    asked = await on_phone(family, "@Andy one")
    await add_chat(family, is_notify_chat=True)
    gone = await remove_chat(family)
    assert gone.group.chats == (HOME,)
    assert "local:family" in gone.explain()
    assert (await family.turn(asked.turn_id)).state is TurnState.FAILED
    (told,) = await family.outgoing()
    assert told.chat_jid == PHONE
    assert registration.GONE in told.text
    assert (await on_phone(family, "@Andy two")).outcome == "unregistered"
    with pytest.raises(BadRequest, match="andy groups remove family"):
        await remove_chat(family, HOME)
    with pytest.raises(BadRequest, match="no chat of 'family'"):
        await remove_chat(family)


async def test_what_runs_for_a_chat_that_is_taken_off_is_not_tried_again(family):
    await on_phone(family, "@Andy one")
    turn, run, _ = await family.start_next()
    await remove_chat(family)
    await family.lose(run)
    assert (await family.turn(turn.id)).state is TurnState.FAILED
    assert await family.queued() == []


async def test_all_chats_of_a_group_go_with_it(family):
    async with family.database.transaction() as tx:
        await registration.unregister(tx, "family", now_ms=1)
    assert (await on_phone(family, "@Andy hi")).outcome == "unregistered"
    await family.add_group("other", jid=PHONE)


async def test_main_moves_to_a_chat_that_it_has_and_keeps_the_others(store_harness):
    async with store_harness.database.transaction() as tx:
        await registration.ensure_main(tx, now_ms=1)
    await add_chat(store_harness, folder="main")
    await add_chat(store_harness, "matrix:!1", folder="main")
    async with store_harness.database.transaction() as tx:
        moved = await registration.move_main(tx, PHONE, now_ms=2)
        assert moved.chats == (PHONE, "matrix:!1")


BEFORE = int(next(Path(databases.__file__).parent.glob("migrations/*_group_chats.sql")).name[:4]) - 1


async def test_a_home_of_one_chat_a_group_goes_on_as_it_was(database_path):
    database_path.parent.mkdir()
    with closing(sqlite3.connect(database_path)) as old, old:
        for script in migrations()[:BEFORE]:
            old.executescript(script)
        old.execute(f"PRAGMA user_version = {BEFORE}")
        old.execute("INSERT INTO chats (jid, name) VALUES ('local:family', 'Family'), ('1@g.us', 'Work')")
        old.execute(
            "INSERT INTO registered_groups (jid, name, folder, added_ms)"
            " VALUES ('local:family', 'Family', 'family', 5), ('1@g.us', 'Work', 'work', 6)"
        )
        old.execute("INSERT INTO router_state VALUES ('cursor:family', '12')")
    opened = await Database.open(database_path)
    try:
        async with opened.reading() as tx:
            kept = [(one.folder, one.chats) for one in await groups.every(tx)]
            assert kept == [("family", (HOME,)), ("work", ("1@g.us",))]
            assert await groups.by_jid(tx, HOME) == (await groups.every(tx))[0]
            assert await sessions.cursor_of(tx, kept[0][0]) == 12
    finally:
        await opened.close()
