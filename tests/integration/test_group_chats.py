"""A group may have chats in several messengers: one agent, and each answer goes where it was asked."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from agent_runner.wire.frames import Ack, Result, ToolStart, TurnEnd
from agent_runner.wire.mailbox import ScheduleTask, SearchHistory
from orchestrator.cli.groups import groups_app
from orchestrator.domain.dashboard import Actor, Notification, NotificationType, Priority
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Cause, ChatJid, Folder, TurnState
from orchestrator.groups import registration
from orchestrator.groups.registration import AlreadyRegistered
from orchestrator.ipc.handlers import history
from orchestrator.reports import groups as group_reports
from orchestrator.reports import message_timeline, messages, search
from orchestrator.scheduler import scheduled_task_service
from orchestrator.scheduler.scheduled_task_turns import queue_turn
from orchestrator.scheduler.timing import schedule_reader
from orchestrator.store import database as databases
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.conversation import outbox
from orchestrator.store.database import Database, migrations
from orchestrator.store.groups import groups
from orchestrator.store.runs import sessions, turns
from orchestrator.web.api.groups import GroupApi, group_routes
from orchestrator.web.app import web_app
from tests.support.reminders import notifier, put_reminder
from tests.support.store_harness import SEOUL

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
    with pytest.raises(AlreadyRegistered, match="registered as 'family': take it off first"):
        await family.add_group("other", jid=PHONE)
    with pytest.raises(BadRequest, match="no address"):
        await add_chat(family, "two words")


async def test_a_group_whose_settings_cannot_be_read_keeps_and_gets_its_chats(family):
    async with family.database.transaction() as tx:
        await groups.set_config(tx, Folder("family"), {"of a later version": 1}, now_ms=1)
    assert (await add_chat(family)).chats == (HOME, PHONE)
    moved = ChatJid("tg:-100777")
    async with family.database.transaction() as tx:
        await registration.move_chat(tx, ChatJid(PHONE), moved, now_ms=family.clock.now_ms())
        assert (await groups.known(tx, "family")).chats == (HOME, moved)


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


async def move(family):
    async with family.database.transaction() as tx:
        await registration.move_chat(tx, PHONE, HOME, now_ms=family.clock.now_ms())


async def test_what_waits_for_a_chat_without_a_group_moves_with_it(family):
    await on_phone(family, "@Andy one")
    await remove_chat(family)
    moved = ChatJid("x:moved")
    async with family.database.transaction() as tx:
        await registration.move_chat(tx, PHONE, moved, now_ms=family.clock.now_ms())
    assert [told.chat_jid for told in await family.outgoing()] == [moved]


@pytest.mark.parametrize("first", ["old", "new"])
async def test_questions_that_wait_at_both_addresses_of_a_chat_that_moves_become_one(family, first):
    if first == "old":
        await on_phone(family, "@Andy from the old address")
        await family.hear("@Andy from the new address")
    else:
        await family.hear("@Andy from the new address")
        await on_phone(family, "@Andy from the old address")
    await move(family)
    (waiting,) = await family.queued()
    assert waiting.chat_jid == HOME
    assert await family.rows("SELECT seq FROM messages WHERE turn_id = ?", waiting.id) == [
        {"seq": waiting.first_seq},
        {"seq": waiting.last_seq},
    ]
    _, _, order = await family.start_next()
    assert "from the old address" in order.prompt
    assert "from the new address" in order.prompt


async def test_questions_that_were_tried_become_one_with_what_their_attempts_said(family):
    await family.hear("@Andy one")
    await on_phone(family, "@Andy two")
    for turn in await family.queued():
        run = await family.begin_run()
        await family.give(turn, run)
        await family.take(run, Ack(n=1, turn=turn.id))
        await family.take(run, ToolStart(n=2, turn=turn.id, call="c1", tool="Read"))
        async with family.database.transaction() as tx:
            await outbox.add(
                tx,
                chat_jid=turn.chat_jid,
                folder=turn.folder,
                text="Let me look.",
                dedupe_key=f"said:{turn.id}",
                now_ms=family.clock.now_ms(),
                turn_id=turn.id,
            )
        await family.lose(run)
    await move(family)
    (waiting,) = await family.queued()
    for table in ("messages", "outbox", "tool_calls"):
        assert await family.rows(f"SELECT DISTINCT turn_id FROM {table}") == [{"turn_id": waiting.id}]
    assert len(await family.rows("SELECT id FROM tool_calls")) == 2


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


async def test_a_reminder_comes_where_it_was_asked_for_and_other_news_where_the_owner_says(family):
    family.clock.pass_ms(5 * 3_600_000)  # out of the quiet hours
    now_ms = family.clock.now_ms()
    async with family.database.transaction() as tx:
        group = await groups.known(tx, "family")
        for jid, text in ((PHONE, "pill"), (HOME, "walk")):
            await put_reminder(tx, replace(group, jid=jid), text=text, due_ms=now_ms, now_ms=now_ms)
        await board_notifications.put(tx, an_alert(now_ms), read_version=None)
    await add_chat(family, is_notify_chat=True)
    await notifier(family).send_due()
    assert {(one.text.split()[-1], one.chat_jid) for one in await family.outgoing()} == {
        ("pill", PHONE),
        ("walk", HOME),
        ("alert", PHONE),
    }


async def test_a_reminder_of_a_chat_that_was_taken_off_comes_to_the_group_all_the_same(family):
    now_ms = family.clock.now_ms()
    async with family.database.transaction() as tx:
        group = replace(await groups.known(tx, "family"), jid=PHONE)
        await put_reminder(tx, group, text="pill", due_ms=now_ms, now_ms=now_ms)
    await remove_chat(family)
    await notifier(family).send_due()
    assert [one.chat_jid for one in await family.outgoing()] == [HOME]


def an_alert(due_ms):
    return Notification(
        folder=Folder("family"),
        id="n_alert",
        message="an alert",
        due_ms=due_ms,
        type=NotificationType.PROGRESS_CHECK,
        priority=Priority.MEDIUM,
        created_by=Actor.WORKER,
        created_ms=1,
        version=1,
    )


async def test_a_task_is_answered_where_it_was_asked_for_while_that_is_a_chat_of_the_group(family):
    times = schedule_reader(lambda _: SEOUL)
    now_ms = family.clock.now_ms()
    request = ScheduleTask(prompt="water", schedule_type="interval", schedule_value="1h")

    async def queue(tx, task):
        group = await groups.known(tx, "family")
        turn = await queue_turn(tx, task, group, cause=Cause.SCHEDULE, due_ms=now_ms, now_ms=now_ms)
        found = await turns.get(tx, turn)
        assert found is not None
        return found

    async with family.database.transaction() as tx:
        group = await groups.known(tx, "family")
        task = await scheduled_task_service.create(tx, group, request, times, now_ms=now_ms, asked_in=PHONE)
        waiting = await queue(tx, task)
    assert waiting.chat_jid == PHONE
    await remove_chat(family)
    assert (await family.turn(waiting.id)).chat_jid == HOME, "what waits is answered in the chat that is left"
    async with family.database.transaction() as tx:
        assert (await queue(tx, task)).chat_jid == HOME


async def test_a_list_of_messages_has_all_chats_in_their_order_and_names_each(family):
    await family.hear("one")
    await on_phone(family, "two")
    await family.hear("three")
    await family.add_group("work")
    await family.hear("secret of work", "work")
    async with family.database.reading() as tx:
        rows = await messages.rows(tx, "family", limit=50)
        assert [(row["text"], row["chat"], row["chat_label"]) for row in rows] == [
            ("one", HOME, "Family"),
            ("two", PHONE, "Family (telegram)"),
            ("three", HOME, "Family"),
        ]
        assert [row["text"] for row in await messages.rows(tx, "family", limit=2)] == ["two", "three"]
        older = await messages.rows(tx, "family", limit=1, before_seq=rows[2]["seq"])
        assert [row["text"] for row in older] == ["two"]
        newer = await messages.rows(tx, "family", limit=1, after_seq=rows[0]["seq"])
        assert [row["text"] for row in newer] == ["two"]
        assert messages.lines(rows, zone=SEOUL)[1].endswith(
            "Jane in Family (telegram): two  [ignored: no trigger]"
        )
        way = await message_timeline.find(tx, "family", rows[1]["id"])
        assert (way["chat"], way["message"]["text"]) == (PHONE, "two")
        assert [row["chat_label"] for row in await messages.rows(tx, "work", limit=5)] == [None]
        (row, _) = await group_reports.group_rows(tx)
        assert row["chats"] == [HOME, PHONE]
        seen = {row["jid"]: row["group"] for row in await group_reports.chat_rows(tx)}
        assert seen == {HOME: "family", PHONE: "family", "local:work": "work"}


async def test_history_is_searched_in_all_chats_of_the_group_and_no_other(family):
    await family.hear("the dentist at nine")
    await on_phone(family, "another dentist at ten")
    await family.add_group("work")
    await family.hear("the dentist of work", "work")
    async with family.database.reading() as tx:
        found = await search.rows(tx, "dentist", folder="family", limit=9)
        group = await groups.known(tx, "family")
        told = await history.search(tx, group, SearchHistory(query="dentist", limit=9), zone=SEOUL)
    assert [row["text"] for row in found] == ["another dentist at ten", "the dentist at nine"]
    assert "ten" in told.text
    assert "nine" in told.text
    assert "work" not in told.text


async def test_a_chat_that_moves_to_another_group_leaves_what_was_said_in_it_behind(family):
    await on_phone(family, "the cake is upstairs")
    await remove_chat(family)
    await family.add_group("work")
    await add_chat(family, folder="work")
    await on_phone(family, "we meet at ten")
    await family.hear("@Andy hi", "work")
    *_, order = await family.start_next("work")
    async with family.database.reading() as tx:
        work = await groups.known(tx, "work")
        answer = await history.search(tx, work, SearchHistory(query="upstairs", limit=9), zone=SEOUL)
        listed = [row["text"] for row in await messages.rows(tx, "work", limit=9)]
        found = await search.rows(tx, "upstairs", folder=None, limit=9)

    assert "we meet at ten" in order.prompt
    assert "upstairs" not in order.prompt
    assert "upstairs" not in answer.text
    assert listed == ["we meet at ten", "@Andy hi"]
    assert [(row["text"], row["group"]) for row in found] == [("the cake is upstairs", "family")]


async def test_messages_of_an_older_home_belong_to_the_group_that_was_asked(database_path):
    before = (
        int(next(Path(databases.__file__).parent.glob("migrations/*_group_of_a_message.sql")).name[:4]) - 1
    )
    database_path.parent.mkdir()
    with closing(sqlite3.connect(database_path)) as old, old:
        for script in migrations()[:before]:
            old.executescript(script)
        old.execute(f"PRAGMA user_version = {before}")
        old.execute("INSERT INTO chats (jid, name) VALUES ('local:family', 'Family'), ('local:gone', 'Gone')")
        old.execute(
            "INSERT INTO registered_groups (jid, name, folder, added_ms)"
            " VALUES ('local:family', 'Family', 'family', 5)"
        )
        old.execute("INSERT INTO group_chats VALUES ('local:family', 'family', 5)")
        old.executemany(
            "INSERT INTO messages (chat_jid, id, sender, sender_name, content, sent_ms, received_ms,"
            " ignored_reason) VALUES (?, ?, 'jane', 'Jane', ?, 1, 1, 'no trigger')",
            [("local:family", "1", "here"), ("local:gone", "2", "elsewhere")],
        )
    opened = await Database.open(database_path)
    try:
        async with opened.reading() as tx:
            assert [row["text"] for row in await messages.rows(tx, "family", limit=9)] == ["here"]
            found = await search.rows(tx, "elsewhere", folder=None, limit=9)
            assert [row["group"] for row in found] == [None]
    finally:
        await opened.close()


async def test_chats_are_added_and_taken_off_over_http_with_an_answer_for_every_mistake(family):
    api = GroupApi(family.database, clock=family.clock, has_gateway=lambda: False)
    app = web_app(group_routes(api), token="secret", on_refusal=lambda _: None)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app),
        base_url="http://127.0.0.1",
        headers={"Authorization": "Bearer secret"},
    ) as http:
        wish = {"jid": "matrix:!1", "is_notify_chat": True}
        added = await http.post("/groups/family/chats", json=wish)
        assert (added.status_code, added.json()["chats"]) == (200, ["matrix:!1", HOME, PHONE])
        said = await http.post("/groups/family/say", json={"text": "hello", "chat": PHONE})
        assert said.status_code == 202
        assert [one.chat_jid for one in await family.outgoing()] == [PHONE]
        gone = await http.delete("/groups/family/chats", params={"jid": "matrix:!1"})
        assert (gone.status_code, gone.json()["chats"]) == (200, [HOME, PHONE])
        for wrong in (
            await http.post("/groups/family/chats", json={"jid": "two words"}),
            await http.post("/groups/family/chats", json={}),
            await http.post("/groups/family/say", json={"text": "hello", "chat": "matrix:!1"}),
            await http.delete("/groups/family/chats", params={"jid": "matrix:!1"}),
            await http.delete("/groups/family/chats"),
        ):
            assert wrong.status_code in (400, 422)
            assert wrong.json()["error"]
        assert (await http.post("/groups/nobody/chats", json={"jid": "x:1"})).status_code == 404


def test_the_command_line_gives_a_group_a_chat_with_andy_down(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ANDY_HOME", str(tmp_path))
    for arguments in (
        ["register", "family"],
        ["add-chat", "family", PHONE, "--notify"],
        ["list", "--json"],
        ["chats"],
        ["remove-chat", "family", PHONE],
    ):
        groups_app(arguments, exit_on_error=False, result_action="return_value")
    told = capsys.readouterr().out
    assert f"{PHONE}, {HOME}." in told
    assert f'"chats": ["{PHONE}", "{HOME}"]'.replace(" ", "") in told.replace(" ", "").replace("\n", "")
    assert "What comes by itself goes to local:family." in told
