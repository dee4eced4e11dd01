"""The door's waiting, on a real database."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from orchestrator.channels.local.channel import new_message
from orchestrator.domain.values import Group, Inbound
from orchestrator.web.api.chat import id_by_key
from orchestrator.web.chat_service import ChatService, KeyReused, MessageStatus
from tests.support.store_harness import StoreHarness
from tests.support.until import DEADLINE_SECONDS

WAIT_SECONDS = DEADLINE_SECONDS


class CountedLooks:
    """The database, and how often it was looked into."""

    def __init__(self, store_harness: StoreHarness) -> None:
        self.looks = 0
        self.hopeless: set[str] = set()
        self._database = store_harness.database

    async def read(self, query):
        self.looks += 1
        return await self._database.read(query)

    async def write(self, work):
        self.looks += 1
        return await self._database.write(work)


@pytest.fixture
async def family(store_harness: StoreHarness) -> StoreHarness:
    await store_harness.add_group()
    return store_harness


@pytest.fixture
def looks(store_harness: StoreHarness) -> CountedLooks:
    return CountedLooks(store_harness)


@pytest.fixture
def door(store_harness: StoreHarness, looks: CountedLooks) -> ChatService:
    return ChatService(
        looks,  # type: ignore[arg-type]
        intake=store_harness.intake,
        is_hopeless=lambda outcome: outcome in looks.hopeless,
        clock=store_harness.clock,
        bus=store_harness.bus,
    )


async def ask(
    door: ChatService, text: str, *, wait_seconds: float = WAIT_SECONDS, key: str | None = None
) -> MessageStatus:
    def message(group: Group, now_ms: int) -> Inbound:
        made = new_message(group.jid, text, sender="jane", now_ms=now_ms)
        return made if key is None else replace(made, id=id_by_key(group.jid, key))

    return await door.say(message, "family", wait_seconds=wait_seconds)


async def waiting(family: StoreHarness) -> None:
    """Wait until the message is stored, and who sent it has read all events since."""

    def is_waiting() -> bool:
        is_stored = any(event.kind == "message.queued" for event in family.bus.ring)
        return is_stored and all(events.empty() for events in family.bus._listeners)

    async with asyncio.timeout(WAIT_SECONDS):
        while not is_waiting():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_who_waits_gets_the_reply_of_the_turn(family, door):
    asking = asyncio.create_task(ask(door, "@Andy hi"), name="ask")
    await waiting(family)
    turn = await family.answer("Hello Jane.")
    family.bus.publish("turn.answered", group="family", turn=turn.id)
    await family.deliver_all()
    family.bus.publish("message.sent", group="family", turn=turn.id)

    place = await asking

    assert (place.outcome, place.replies) == ("answered", ("Hello Jane.",))


async def test_who_waits_does_not_look_again_for_what_happens_to_others(family, door, looks):
    asking = asyncio.create_task(ask(door, "@Andy hi"), name="ask")
    await waiting(family)
    before = looks.looks
    for number in range(100):
        family.bus.publish("turn.answered", group="work", turn=1000 + number)
        family.bus.publish("turn.acknowledged", group="family", turn=1000 + number)
    await waiting(family)

    assert looks.looks == before
    await family.answer()
    family.bus.publish("turn.answered", group="family", turn=1)
    assert (await asking).outcome == "answered"


async def test_who_waits_is_sent_away_when_the_host_ends_before_the_reply(family, door, looks):
    asking = asyncio.create_task(ask(door, "@Andy hi"), name="ask")
    await waiting(family)
    looks.hopeless.add("queued")
    family.bus.publish("host.stopping")

    place = await asking

    assert (place.outcome, place.is_settled) == ("queued", False)


async def test_who_does_not_wait_is_told_the_place_at_once(family, door, looks):
    place = await ask(door, "@Andy hi", wait_seconds=0)

    assert (place.outcome, place.place, place.is_settled) == ("queued", 1, False)
    assert looks.looks == 1, "all of it in the transaction that stores the message"


async def test_a_wait_that_ends_tells_where_the_message_is(family, door):
    place = await ask(door, "@Andy hi", wait_seconds=0.01)

    assert (place.outcome, place.is_settled) == ("queued", False)


async def test_a_message_that_is_sent_again_with_its_key_is_taken_once(family, door):
    first = await ask(door, "@Andy hi", wait_seconds=0, key="k1")
    asking = asyncio.create_task(ask(door, "@Andy hi", key="k1"), name="again")
    turn = await family.answer("Hello Jane.")
    await family.deliver_all()
    family.bus.publish("message.sent", group="family", turn=turn.id)
    again = await asking
    assert (again.id, again.outcome, again.replies) == (first.id, "answered", ("Hello Jane.",))
    late = await ask(door, "@Andy hi", key="k1")
    assert (late.id, late.replies) == (first.id, again.replies)
    assert len(await family.rows("SELECT 1 FROM messages WHERE content = '@Andy hi'")) == 1
    assert (await ask(door, "@Andy hi", wait_seconds=0, key="k2")).id != first.id


async def test_a_key_is_not_for_two_texts(family, door):
    await ask(door, "@Andy hi", wait_seconds=0, key="k1")
    with pytest.raises(KeyReused):
        await ask(door, "@Andy bye", wait_seconds=0, key="k1")
    assert len(await family.rows("SELECT 1 FROM messages")) == 1


async def test_messages_that_wait_for_one_answer_are_told_apart(family, door):
    places = [await ask(door, f"@Andy {number}", wait_seconds=0) for number in range(3)]
    assert [(one.place, one.joined) for one in places] == [(1, 0), (1, 1), (1, 2)]
    assert [one.to_json_dict().get("joined") for one in places] == [None, 1, 2]


async def test_a_message_can_be_waited_for_later(family, door):
    asked = await ask(door, "@Andy hi", wait_seconds=0)
    finding = asyncio.create_task(door.find(asked.id, wait_seconds=WAIT_SECONDS), name="find")
    turn = await family.answer("Hello Jane.")
    await family.deliver_all()
    family.bus.publish("message.sent", group="family", turn=turn.id)
    assert (await finding).replies == ("Hello Jane.",)
