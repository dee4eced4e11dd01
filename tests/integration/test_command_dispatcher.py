"""What containers ask of the host, on a real store."""

from __future__ import annotations

import asyncio
import json

import pytest

from agent_runner.wire.document import WireError
from orchestrator.base.event_bus import EventBus
from orchestrator.domain.values import Role
from orchestrator.groups import people, registration
from orchestrator.groups.roles import MAX_PEOPLE
from orchestrator.ipc.command_dispatcher import HANDLERS, CommandDispatcher
from orchestrator.scheduler.timing import schedule_reader
from orchestrator.scheduler.when import point_ms
from orchestrator.store.groups import groups
from tests.support.command_dispatchers import dashboards_of
from tests.support.store_harness import SEOUL, StoreHarness
from tests.support.until import DEADLINE_SECONDS

FAMILY, MAIN, STRANGER = "local:family", "local:main", "49123@s.whatsapp.net"


class Harness:
    """A dispatcher with three groups; `main` administers."""

    def __init__(self, store_harness: StoreHarness):
        self.harness = store_harness
        self.bus = EventBus(store_harness.clock)
        self.dispatcher = CommandDispatcher(
            store_harness.database,
            clock=store_harness.clock,
            read_time=point_ms,
            times=schedule_reader(lambda _: SEOUL),
            zone_of=lambda _: SEOUL,
            wakeups=store_harness.wakeups,
            bus=self.bus,
            dashboards=dashboards_of(store_harness, lambda _: SEOUL),
        )

    async def ask(self, asking, /, *, in_file="f.json", **fields):
        return await self.ask_bytes(asking, json.dumps(fields).encode(), name=in_file)

    async def ask_bytes(self, folder, body, name="f.json"):
        async with self.harness.database.reading() as tx:
            group = await groups.known(tx, folder)
        return await self.dispatcher.handle(group, name, body)

    async def folders(self):
        async with self.harness.database.reading() as tx:
            return {one.folder: one for one in await groups.every(tx)}

    async def outbox(self):
        return [(one.chat_jid, one.text) for one in await self.harness.outgoing()]


@pytest.fixture
async def harness(store_harness):
    await store_harness.add_group("main", is_main=True)
    await store_harness.add_group("family")
    await store_harness.add_group("work")
    return Harness(store_harness)


MESSAGE = {"type": "message", "text": "hello"}
REMIND = {"type": "set_reminder", "text": "pill", "at": "30m"}
TASK = {"type": "schedule_task", "prompt": "water", "schedule_type": "interval", "schedule_value": "1h"}
REGISTER = {"type": "register_group", "jid": "new@g.us", "name": "New", "folder": "new", "trigger": "@Andy"}


@pytest.mark.parametrize(
    ("command", "main_may", "others_may"),
    [
        (MESSAGE, True, True),
        ({**MESSAGE, "chatJid": FAMILY}, True, True),
        ({**MESSAGE, "chatJid": "local:work"}, True, False),
        ({**MESSAGE, "chatJid": STRANGER}, True, False),
        (REMIND, True, True),
        ({"type": "list_reminders"}, True, True),
        (REGISTER, True, False),
        ({"type": "change_group", "folder": "work", "requiresTrigger": False}, True, False),
        ({"type": "change_group", "folder": "main", "requiresTrigger": True}, False, False),
        ({"type": "unregister_group", "folder": "work"}, True, False),
        ({"type": "refresh_groups"}, True, False),
        ({"type": "choose_model", "model": "claude-opus-4-6"}, True, False),
        (TASK, True, True),
        ({**TASK, "targetFolder": "family"}, True, True),
        ({**TASK, "targetFolder": "work"}, True, False),
        ({"type": "list_tasks"}, True, True),
    ],
)
async def test_main_may_do_everything_and_others_what_is_theirs(harness, command, main_may, others_may):
    theirs = await harness.ask("family", **command, requestId="r1")
    mains = await harness.ask("main", **command, requestId="r1")

    assert (theirs.ok, mains.ok) == (others_may, main_may)
    assert others_may or theirs.code == "not_allowed"


async def test_a_change_of_a_group_whose_roles_are_refused_changes_nothing(harness):
    crowd = {"people": {f"local:p{number}": "guest" for number in range(MAX_PEOPLE)}}
    await harness.harness.add_group("crowd", name="Crowd", container_config=crowd)
    change = {"type": "change_group", "folder": "crowd", "name": "Choir"}

    refused = await harness.ask("main", **change, people={"*": "guest"}, requestId="r1")

    assert (refused.ok, (await harness.folders())["crowd"].name) == (False, "Crowd")
    assert await harness.harness.rows("SELECT * FROM group_changes") == []
    assert (await harness.ask("main", **change, requestId="r2")).ok
    assert (await harness.folders())["crowd"].name == "Choir"


async def test_main_chooses_any_model_of_a_gateway_and_elsewhere_those_of_known_services(
    harness, monkeypatch
):
    choice = {"type": "choose_model", "model": "glm-4.6"}
    refused = await harness.ask("main", **choice, requestId="r1")
    monkeypatch.setattr(harness.dispatcher, "_has_gateway", lambda: True)
    chosen = await harness.ask("main", **choice, requestId="r2")

    assert (refused.ok, chosen.ok) == (False, True)
    assert refused.text.endswith("A model of that name at the service of .env is anthropic/glm-4.6.")


@pytest.mark.parametrize(
    "command",
    [{**MESSAGE, "chatJid": "local:work"}, REGISTER, {"type": "unregister_group", "folder": "work"}],
)
async def test_a_refusal_changes_nothing_and_is_on_record(harness, command):
    before = await harness.folders()

    reply = await harness.ask("family", **command, requestId="r1")

    assert not reply.ok
    assert await harness.folders() == before
    assert await harness.outbox() == []
    (row,) = await harness.harness.rows("SELECT * FROM commands")
    assert (row["group_folder"], row["type"], row["ok"], row["code"]) == (
        "family", command["type"], 0, "not_allowed",
    )  # fmt: skip
    assert harness.bus.ring[-1].detail == "not_allowed"


async def test_a_chat_that_a_group_lost_since_its_batch_was_begun_is_not_its_chat(harness):
    database = harness.harness.database
    async with database.transaction() as tx:
        before = await registration.add_chat(tx, "family", "local:second", now_ms=1)
        await registration.remove_chat(tx, "family", "local:second", now_ms=2)
    copied = []
    harness.dispatcher._copy_file = lambda folder, path: copied.append(path)

    for number, command in enumerate(({**MESSAGE}, {"type": "send_file", "path": "a.txt"})):
        body = json.dumps({**command, "chatJid": "local:second", "requestId": f"r{number}"}).encode()
        assert (await harness.dispatcher.handle(before, "f.json", body)).code == "not_allowed"

    assert await harness.outbox() == []
    assert copied == []


async def test_a_right_that_was_withdrawn_since_the_batch_was_begun_is_none(harness):
    await harness.harness.hear("@Andy remind me")
    turn, _, _ = await harness.harness.start_next()
    async with harness.harness.database.transaction() as tx:
        before = await groups.known(tx, "family")
        await people.set_rule(tx, "family", Role.MEMBER, "schedule", value=False, by="test", now_ms=1)

    body = json.dumps({**REMIND, "turn": turn.id, "requestId": "r1"}).encode()
    reply = await harness.dispatcher.handle(before, "f.json", body)

    assert reply.code == "not_allowed"
    assert not (await harness.ask("family", type="list_reminders", requestId="r2")).data["reminders"]


async def test_a_group_that_was_unregistered_since_the_batch_was_begun_does_nothing(harness):
    async with harness.harness.database.transaction() as tx:
        before = await groups.known(tx, "family")
        await registration.unregister(tx, "family", now_ms=1)

    for number, command in enumerate((MESSAGE, {"type": "send_file", "path": "a.txt"}, REMIND)):
        body = json.dumps({**command, "requestId": f"r{number}"}).encode()
        assert (await harness.dispatcher.handle(before, "f.json", body)).code == "not_allowed"

    assert await harness.outbox() == []


async def test_no_field_of_a_request_says_who_asks(harness):
    claims = {"groupFolder": "main", "isMain": True, "group": "main", "folder": "main"}

    reply = await harness.ask("family", **MESSAGE, chatJid="local:work", **claims)

    assert reply.code == "not_allowed"


async def test_a_message_is_queued_for_the_groups_own_chat_and_wakes_the_delivery(harness):
    reply = await harness.ask("family", **MESSAGE)

    assert reply.ok
    assert await harness.outbox() == [(FAMILY, "hello")]
    async with asyncio.timeout(DEADLINE_SECONDS):
        await harness.harness.wakeups.outbox.wait(at_most_seconds=None)


async def test_a_request_that_comes_again_gets_its_answer_again_and_does_nothing(harness):
    first = await harness.ask("family", **REMIND, requestId="r1")
    harness.harness.clock.pass_ms(60_000)
    again = await harness.ask("family", **REMIND, requestId="r1", in_file="other.json")

    assert again == first
    assert len(await harness.harness.rows("SELECT * FROM notifications")) == 1


async def test_two_groups_may_use_the_same_request_id(harness):
    assert (await harness.ask("family", **REMIND, requestId="r1")).ok
    reply = await harness.ask("work", **REMIND, requestId="r1")

    assert reply.data["id"] == 2


async def test_a_file_without_an_id_is_known_by_its_name_and_content(harness):
    first = await harness.ask("family", **MESSAGE, in_file="한글 & co.json")
    again = await harness.ask("family", **MESSAGE, in_file="한글 & co.json")

    assert first == again
    assert len(await harness.outbox()) == 1


async def test_a_name_used_again_for_other_words_is_another_request(harness):
    await harness.ask("family", type="message", text="one", in_file="note.json")
    await harness.ask("family", type="message", text="two", in_file="note.json")
    await harness.ask("family", type="message", text="two", in_file="notę.json")

    assert [text for _, text in await harness.outbox()] == ["one", "two", "two"]


async def test_a_turn_says_the_same_sentence_once_however_often_it_is_tried(harness):
    await harness.harness.hear("@Andy hi")
    _, run, _ = await harness.harness.start_next()
    first = await harness.ask("family", **MESSAGE, requestId="r1")
    await harness.harness.lose(run)
    await harness.harness.start_next()
    again = await harness.ask("family", **MESSAGE, requestId="r2")
    other = await harness.ask("family", type="message", text="bye", requestId="r3")

    assert (first.code, again.code, other.code) == ("ok", "said_before", "ok")
    assert [text for _, text in await harness.outbox()] == ["hello", "bye"]


async def test_what_a_turn_said_before_it_was_lost_stays_said(harness):
    await harness.harness.hear("@Andy hi")
    _, run, _ = await harness.harness.start_next()
    await harness.ask("family", **MESSAGE)
    await harness.harness.lose(run)

    assert [text for _, text in await harness.outbox()] == ["hello"]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"5", b"\xff\xfe", b"[" * 100_000,
        b"{}",
        b'{"type": "rm_rf"}',
        b'{"type": ["message"], "text": "x"}',
        b'{"type": "message"}',
        b'{"type": "message", "text": ""}',
        b'{"type": "message", "text": 5}',
        b'{"type": "message", "text": "\\ud83d"}',
        b'{"type": "message", "text": "x", "v": 2}',
        b'{"type": "message", "text": "x", "requestId": "../../etc"}',
        b'{"type": "message", "text": "x", "requestId": ""}',
        b'{"type": "cancel_reminder", "reminderId": "one"}',
        b'{"type": "cancel_reminder", "reminderId": 123456789012345678901234567890}',
        b'{"type": "set_reminder", "text": "x"}',
        b'{"type": "message", "text": "' + b"x" * 100_001 + b'"}',
    ],
)  # fmt: skip
async def test_what_is_not_understood_does_nothing_and_is_refused_in_one_line(harness, body):
    with pytest.raises(WireError) as caught:
        await harness.ask_bytes("family", body)

    assert "\n" not in str(caught.value)
    assert await harness.harness.rows("SELECT * FROM commands") == []


async def test_fields_of_a_later_minor_version_are_passed_over(harness):
    assert (await harness.ask("family", **MESSAGE, colour="red", sender="somebody")).ok


async def test_a_group_that_main_registers_is_there_and_can_never_be_main(harness):
    reply = await harness.ask("main", **REGISTER, isMain=True, is_main=True, requiresTrigger=False)

    assert reply.data == {"folder": "new", "jid": "new@g.us"}
    new = (await harness.folders())["new"]
    assert (new.is_main, new.requires_trigger, new.trigger) == (False, False, "@Andy")
    assert new.added_ms == harness.harness.clock.now_ms()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"folder": "../up"}, "bad_folder"),
        ({"folder": "global"}, "bad_folder"),
        ({"folder": "FAMILY"}, "already_registered"),
        ({"folder": "main"}, "already_registered"),
        ({"jid": MAIN}, "already_registered"),
    ],
)
async def test_a_bad_registration_is_told_why_and_changes_nothing(harness, changes, code):
    before = await harness.folders()

    reply = await harness.ask("main", **{**REGISTER, **changes})

    assert (reply.ok, reply.code) == (False, code)
    assert await harness.folders() == before


async def test_main_cannot_be_unregistered_and_others_can(harness):
    refused = await harness.ask("main", type="unregister_group", folder="main", requestId="a")
    done = await harness.ask("main", type="unregister_group", folder="work", requestId="b")
    gone = await harness.ask("main", type="unregister_group", folder="work", requestId="c")

    assert (refused.ok, done.ok, gone.code) == (False, True, "unknown_group")
    assert set(await harness.folders()) == {"main", "family"}


async def test_main_sees_all_chats_and_which_are_registered(harness):
    await harness.harness.hear("hi", "stranger", chat_name="Strangers", is_group=True)

    reply = await harness.ask("main", type="refresh_groups")

    assert {one["jid"]: one["folder"] for one in reply.data["chats"]} == {
        MAIN: "main",
        FAMILY: "family",
        "local:work": "work",
        "local:stranger": None,
    }
    assert "Strangers (local:stranger): not registered" in reply.text


async def test_a_reminder_is_told_back_in_the_groups_time_and_wakes_who_sends_it(harness):
    reply = await harness.ask("family", **{**REMIND, "at": "2026-06-01T09:00"})

    assert reply.text == "Reminder 1 is set for Mon 2026-06-01 09:00 (Asia/Seoul)."
    assert reply.data["due"] == "2026-06-01T09:00:00+09:00"
    async with asyncio.timeout(DEADLINE_SECONDS):
        await harness.harness.wakeups.notifications.wait(at_most_seconds=None)


@pytest.mark.parametrize(
    "at", ["yesterday", "2020-01-01T00:00", "9999-12-31T23:59", "0001-01-01T00:00", "9999d"]
)
async def test_a_bad_time_is_refused_with_the_reason(harness, at):
    reply = await harness.ask("family", **{**REMIND, "at": at})

    assert (reply.ok, reply.code) == (False, "bad_time")
    assert await harness.harness.rows("SELECT * FROM notifications") == []


async def test_a_group_can_neither_see_nor_cancel_the_reminder_of_another(harness):
    await harness.ask("family", **REMIND)

    seen = await harness.ask("work", type="list_reminders")
    other = await harness.ask("work", type="cancel_reminder", reminderId=1)
    nobodys = await harness.ask("work", type="cancel_reminder", reminderId=99)

    assert seen.data == {"reminders": []}
    assert (other.ok, other.code) == (nobodys.ok, nobodys.code) == (False, "unknown_reminder")
    assert other.text == nobodys.text.replace("99", "1")
    assert (await harness.harness.rows("SELECT status FROM notifications")) == [{"status": "pending"}]


@pytest.mark.parametrize("folder", ["family", "main"])
async def test_a_group_and_main_can_cancel_its_reminder_once(harness, folder):
    await harness.ask("family", **REMIND)

    first = await harness.ask(folder, type="cancel_reminder", reminderId=1, requestId="a")
    again = await harness.ask(folder, type="cancel_reminder", reminderId=1, requestId="b")

    assert (first.ok, again.code) == (True, "not_pending")
    assert (await harness.ask("family", type="list_reminders")).text == "There are no reminders."


async def test_a_group_sees_its_reminders_in_their_order(harness):
    await harness.ask("family", **{**REMIND, "at": "2h", "text": "late"}, requestId="a")
    await harness.ask("family", **{**REMIND, "at": "1h", "text": "soon"}, requestId="b")

    reply = await harness.ask("family", type="list_reminders")

    assert [one["text"] for one in reply.data["reminders"]] == ["soon", "late"]


async def test_there_is_a_handler_for_every_command_of_the_wire(harness):
    from typing import get_args

    from agent_runner.wire.mailbox import Command

    union, *_ = get_args(Command)
    names = [name for kind in get_args(union) for name in get_args(kind.model_fields["type"].annotation)]
    assert sorted(names) == sorted(HANDLERS)


PHONE = "telegram:7"


async def give_phone(harness, folder="family"):
    async with harness.harness.database.transaction() as tx:
        await registration.add_chat(tx, folder, PHONE, now_ms=1)


async def asked_on_phone(harness):
    """A turn that runs for the group's second chat."""
    await harness.harness.hear("@Andy hi", chat_jid=PHONE)
    turn, *_ = await harness.harness.start_next()
    return turn.id


async def test_what_an_agent_says_at_once_goes_to_the_chat_that_asks(harness):
    await give_phone(harness)
    turn = await asked_on_phone(harness)
    await harness.ask("family", **MESSAGE, turn=turn, requestId="r1")
    await harness.ask("family", **{**MESSAGE, "chatJid": FAMILY}, turn=turn, requestId="r2")
    assert await harness.outbox() == [(PHONE, "hello"), (FAMILY, "hello")]


async def test_what_an_agent_says_outside_of_any_turn_goes_to_the_notify_chat(harness):
    await give_phone(harness)
    await harness.ask("family", **MESSAGE, requestId="r1")
    assert await harness.outbox() == [(FAMILY, "hello")]


async def test_a_chat_that_is_taken_off_gets_nothing_more_from_its_agent(harness):
    await give_phone(harness)
    turn = await asked_on_phone(harness)
    async with harness.harness.database.transaction() as tx:
        await registration.remove_chat(tx, "family", PHONE, now_ms=1)
    reply = await harness.ask("family", **{**MESSAGE, "chatJid": PHONE}, turn=turn, requestId="r1")
    assert reply.code == "not_allowed"
    await harness.ask("family", **MESSAGE, turn=turn, requestId="r2")
    assert await harness.outbox() == [(FAMILY, "hello")]


async def test_a_task_and_a_reminder_come_where_they_were_asked_for(harness):
    await give_phone(harness)
    turn = await asked_on_phone(harness)
    assert (await harness.ask("family", **TASK, turn=turn, requestId="r1")).ok
    assert (await harness.ask("family", **REMIND, turn=turn, requestId="r2")).ok
    assert [row["chat_jid"] for row in await harness.harness.rows("SELECT * FROM scheduled_tasks")] == [PHONE]
    assert [row["chat_jid"] for row in await harness.harness.rows("SELECT * FROM notifications")] == [PHONE]


async def test_main_adds_a_chat_to_a_group_and_takes_it_off_but_gives_itself_none(harness):
    added = {**REGISTER, "jid": PHONE, "folder": "family", "isAdded": True}
    assert (await harness.ask("family", **added, requestId="r1")).code == "not_allowed"
    reply = await harness.ask("main", **added, requestId="r1")
    assert reply.data["chats"] == [FAMILY, PHONE]
    reply = await harness.ask("main", **{**added, "folder": "main", "jid": STRANGER}, requestId="r2")
    assert reply.code == "not_allowed"
    assert "andy groups add-chat main" in reply.text
    assert (await harness.folders())["main"].chats == (MAIN,)
    gone = {"type": "unregister_group", "folder": "family", "jid": PHONE}
    assert (await harness.ask("family", **gone, requestId="r3")).code == "not_allowed"
    assert (await harness.ask("main", **gone, requestId="r3")).ok
    assert (await harness.folders())["family"].chats == (FAMILY,)
    assert (await harness.ask("main", **gone, requestId="r4")).code == "bad_request"


async def test_a_request_that_was_written_before_a_turn_began_belongs_to_no_turn(harness):
    family, body = harness.harness, b'{"type": "message", "text": "left behind"}'
    old_ms = family.clock.now_ms()
    family.clock.pass_ms(1_000)
    await family.hear("@Andy me too")
    await family.start_next()
    async with family.database.reading() as tx:
        group = await groups.known(tx, "family")

    await harness.dispatcher.handle(group, "old.json", body, written_ms=old_ms)
    await harness.dispatcher.handle(group, "new.json", body, written_ms=family.clock.now_ms())

    rows = await family.rows("SELECT turn_id FROM outbox ORDER BY id")
    assert [row["turn_id"] is None for row in rows] == [True, False]
