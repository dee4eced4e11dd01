"""The owner's list of senders at the door, on a real file and a real database."""

from __future__ import annotations

import json

import pytest

from orchestrator.domain.values import ChatJid
from orchestrator.groups import registration
from orchestrator.groups.owner import OwnerFile
from orchestrator.groups.registration import AlreadyRegistered
from orchestrator.inbound.intake import Intake
from orchestrator.inbound.senders import NOT_ALLOWED, SenderRules
from orchestrator.inbound.triggers import NO_TRIGGER
from tests.support.store_harness import a_message

JANE, MAX = {"sender": "local:jane"}, {"sender": "local:max", "sender_name": "Max"}


class Harness:
    def __init__(self, store_harness, path):
        self.store_harness = store_harness
        self.path = path
        self.intake = Intake(
            store_harness.database,
            clock=store_harness.clock,
            name="Andy",
            wakeups=store_harness.wakeups,
            bus=store_harness.bus,
            read_senders=OwnerFile(path, SenderRules).read,
        )

    def write(self, content):
        self.path.write_text(content if isinstance(content, str) else json.dumps(content))

    async def hear(self, text, **changes):
        return await self.intake.accept(a_message(text, **changes))

    async def said_in_main(self):
        rows = await self.store_harness.rows("SELECT text FROM outbox WHERE chat_jid = 'local:main'")
        return [row["text"] for row in rows]


@pytest.fixture
async def harness(store_harness, tmp_path):
    async with store_harness.database.transaction() as tx:
        await registration.ensure_main(tx, now_ms=1)
    await store_harness.add_group()
    return Harness(store_harness, tmp_path / "senders.json")


async def test_who_is_not_allowed_is_heard_and_wakes_nobody(harness):
    harness.write({"default": {"allow": ["local:jane"]}})
    denied = await harness.hear("@Andy open the door", **MAX)
    assert (denied.outcome, denied.reason) == ("ignored", NOT_ALLOWED)
    talk = await harness.hear("just talking", **MAX)
    assert talk.reason == NO_TRIGGER, "what asked for nothing was not denied anything"

    assert (await harness.hear("@Andy who said that?", **JANE)).outcome == "queued"
    _, _, order = await harness.store_harness.start_next()
    assert "open the door" in order.prompt
    assert [one.text for one in order.requests] == ["who said that?"]


async def test_what_is_dropped_is_not_stored(harness):
    harness.write({"chats": {"local:family": {"allow": ["local:jane"], "mode": "drop"}}})
    dropped = await harness.hear("@Andy spam", **MAX)
    assert (dropped.outcome, dropped.seq) == ("dropped", None)
    assert await harness.store_harness.messages() == []
    assert (await harness.hear("@Andy hi", **JANE)).outcome == "queued"
    assert (await harness.hear("@Andy mine", **MAX, is_from_me=True)).outcome == "queued"


@pytest.mark.parametrize(
    ("moves", "address"),
    [
        (["local:second"], "local:second"),
        (["local:second", "local:third"], "local:third"),
        (["local:second", "local:family"], "local:family"),
    ],
)
async def test_a_rule_still_counts_for_a_chat_whose_address_has_changed(harness, moves, address):
    harness.write({"chats": {"local:family": {"allow": ["local:jane"]}}})
    present = "local:family"
    for new in moves:
        async with harness.store_harness.database.transaction() as tx:
            await registration.move_chat(tx, ChatJid(present), ChatJid(new), now_ms=2)
        present = new
    chat = {"chat_jid": ChatJid(address)}
    assert (await harness.hear("@Andy open the door", **MAX, **chat)).reason == NOT_ALLOWED
    assert (await harness.hear("@Andy open the door", **JANE, **chat)).outcome == "queued"


async def test_a_rule_counts_for_a_chat_that_was_moved_before_it_was_registered_or_while_it_was_not(harness):
    first, second, third = (ChatJid(f"x:{number}") for number in range(3))
    harness.write({"chats": {first: {"allow": ["local:jane"]}}})
    await harness.hear("hello", chat_jid=first, channel="telegram")
    async with harness.store_harness.database.transaction() as tx:
        await registration.move_chat(tx, first, second, now_ms=2)
    await harness.store_harness.add_group("kin", jid=second)
    assert (await harness.hear("@Andy open the door", **MAX, chat_jid=second)).reason == NOT_ALLOWED
    async with harness.store_harness.database.transaction() as tx:
        await registration.unregister(tx, "kin", now_ms=2)
        await registration.move_chat(tx, second, third, now_ms=2)
    await harness.store_harness.add_group("kin", jid=third)
    assert (await harness.hear("@Andy open the door", **MAX, chat_jid=third)).reason == NOT_ALLOWED


async def test_a_rule_counts_at_a_new_address_that_another_group_has(harness):
    harness.write({"chats": {"local:family": {"allow": ["local:jane"]}}})
    new = ChatJid("x:1")
    await harness.store_harness.add_group("other", jid=new)
    async with harness.store_harness.database.transaction() as tx:
        with pytest.raises(AlreadyRegistered):
            await registration.move_chat(tx, ChatJid("local:family"), new, now_ms=2)
    assert (await harness.hear("@Andy open the door", **MAX, chat_jid=new)).reason == NOT_ALLOWED


async def test_a_rule_for_the_present_address_replaces_one_for_a_former_address(harness):
    harness.write({"chats": {"local:family": {"allow": []}, "local:second": {"allow": ["local:max"]}}})
    async with harness.store_harness.database.transaction() as tx:
        await registration.move_chat(tx, ChatJid("local:family"), ChatJid("local:second"), now_ms=2)
    chat = {"chat_jid": ChatJid("local:second")}
    assert (await harness.hear("@Andy hi", **JANE, **chat)).reason == NOT_ALLOWED
    assert (await harness.hear("@Andy hi", **MAX, **chat)).outcome == "queued"


async def test_the_file_is_read_again_when_it_has_changed(harness):
    assert (await harness.hear("@Andy one", **MAX)).outcome == "queued"
    harness.write({"default": {"allow": []}})
    assert (await harness.hear("@Andy two", **MAX)).reason is None, "joins the queued turn as talk"
    await harness.store_harness.answer("done")
    assert (await harness.hear("@Andy three", **MAX)).reason == NOT_ALLOWED
    harness.path.unlink()
    assert (await harness.hear("@Andy four", **MAX)).outcome == "queued"


async def test_a_broken_file_shuts_the_door_to_all_but_the_owner_and_says_so_once(harness):
    harness.write('{"default": {"allow": "*"')
    for text in ("@Andy one", "@Andy two"):
        assert (await harness.hear(text, **JANE)).reason == NOT_ALLOWED
    assert (await harness.hear("@Andy mine", **JANE, is_from_me=True)).outcome == "queued"
    (told,) = await harness.said_in_main()
    assert "only you can ask" in told
    assert str(harness.path) in told

    harness.write('{"default": {"allow": "all of them"}}')
    await harness.hear("@Andy three", **JANE)
    assert "default.allow" in (await harness.said_in_main())[1]
    harness.write({})
    await harness.store_harness.answer("done")
    assert (await harness.hear("@Andy four", **JANE)).outcome == "queued"


async def test_a_file_that_cannot_be_read_is_no_missing_file(harness):
    harness.path.mkdir()
    assert (await harness.hear("@Andy one", **JANE)).reason == NOT_ALLOWED
    (told,) = await harness.said_in_main()
    assert "cannot be read" in told


async def test_a_turn_that_waits_takes_the_words_of_others_as_talk(harness):
    harness.write({"default": {"allow": ["local:jane"]}})
    await harness.hear("@Andy hi", **JANE)
    joined = await harness.hear("@Andy and open the door", **MAX)
    assert joined.outcome == "queued"
    _, _, order = await harness.store_harness.start_next()
    assert [one.text for one in order.requests] == ["hi"]
