"""Messages on their way in, on a real database."""

from __future__ import annotations

import asyncio

import pytest

from agent_runner.wire.order import TurnOrder
from orchestrator.domain.errors import TextEmpty, TextTooLong
from orchestrator.domain.values import ChatJid, MessageId, Quote, TurnState, person_of
from orchestrator.inbound.intake import MAX_TEXT_CHARS
from orchestrator.inbound.triggers import NO_TRIGGER
from orchestrator.store.conversation import chats, outbox
from orchestrator.store.runs import runs, turns
from tests.support.store_harness import StoreHarness, a_message
from tests.support.until import DEADLINE_SECONDS

JANE = ChatJid("local:family")


@pytest.fixture
async def family(store_harness: StoreHarness) -> StoreHarness:
    await store_harness.add_group()
    return store_harness


async def test_a_request_is_stored_with_its_queued_turn(family):
    accepted = await family.hear("@Andy hello")

    assert accepted.outcome == "queued"
    (turn,) = await family.queued()
    assert (turn.id, turn.first_seq, turn.last_seq) == (accepted.turn_id, accepted.seq, accepted.seq)
    (message,) = await family.messages()
    assert (message.turn_id, message.ignored_reason) == (turn.id, None)


async def test_other_talk_is_stored_with_the_reason_why_nobody_answers(family):
    accepted = await family.hear("lunch?")

    assert (accepted.outcome, accepted.reason) == ("ignored", NO_TRIGGER)
    (message,) = await family.messages()
    assert (message.turn_id, message.ignored_reason) == (None, NO_TRIGGER)
    assert await family.queued() == []


async def test_messages_of_unregistered_chats_are_not_stored_but_the_chat_is(family):
    accepted = await family.hear("@Andy hi", "stranger", chat_name="Strangers", is_group=True)

    assert (accepted.outcome, accepted.seq) == ("unregistered", None)
    assert await family.messages("stranger") == []
    async with family.database.reading() as tx:
        known = {chat.jid: chat for chat in await chats.every(tx)}
    assert known[ChatJid("local:stranger")].name == "Strangers"


async def test_the_place_in_a_channels_stream_is_stored_with_the_message_or_not_at_all(family):
    async def place() -> str | None:
        async with family.database.reading() as tx:
            return await chats.cursor(tx, "pigeon")

    await family.intake.receive(a_message("hello", channel="pigeon"), cursor="s1")
    await family.intake.receive(a_message("to nobody", "stranger", channel="pigeon"), cursor="s2")
    assert await place() == "s2"
    with pytest.raises(TextEmpty):
        await family.intake.receive(a_message(" ", channel="pigeon"), cursor="s3")
    assert await place() == "s2"


async def test_two_messages_of_one_millisecond_are_two_in_the_order_they_came(family):
    await family.hear("first", sent_ms=1_780_000_000_000)
    await family.hear("@Andy second", sent_ms=1_780_000_000_000)

    assert [one.text for one in await family.messages()] == ["first", "@Andy second"]
    _, _, order = await family.start_next()
    assert order.prompt.index("first") < order.prompt.index("@Andy second")


async def test_a_message_that_comes_late_is_in_the_next_prompt_whatever_its_time(family):
    await family.hear("@Andy now")
    await family.answer("done")
    await family.hear("late", sent_ms=5)
    await family.hear("@Andy and?")

    _, _, order = await family.start_next()

    assert "late" in order.prompt


async def test_the_same_message_twice_is_one_row_and_one_turn(family):
    message = a_message("@Andy once")
    first = await family.intake.accept(message)
    again = await family.intake.accept(message)

    assert again.outcome == "duplicate"
    assert (again.seq, again.turn_id) == (first.seq, first.turn_id)
    assert len(await family.messages()) == 1
    assert len(await family.queued()) == 1


async def test_the_same_message_again_after_its_answer_asks_nothing(family):
    message = a_message("@Andy once")
    await family.intake.accept(message)
    await family.answer("done")

    assert (await family.intake.accept(message)).outcome == "duplicate"
    assert await family.queued() == []


async def test_one_id_in_two_chats_is_two_messages(family):
    await family.add_group("work")
    await family.hear("@Andy a", id=MessageId("X"))
    accepted = await family.hear("@Andy b", "work", id=MessageId("X"))

    assert accepted.outcome == "queued"


async def test_a_queued_turn_takes_in_what_comes_after_it(family):
    first = await family.hear("@Andy book a table")
    talk = await family.hear("for six")
    more = await family.hear("@Andy at eight")

    assert first.turn_id == talk.turn_id == more.turn_id
    (turn,) = await family.queued()
    assert (turn.first_seq, turn.last_seq) == (first.seq, more.seq)
    _, _, order = await family.start_next()
    assert [one.text for one in order.requests] == ["book a table", "at eight"]
    assert "for six" in order.prompt


async def test_a_message_that_joins_after_the_lanes_looked_is_still_in_the_prompt(family):
    await family.hear("@Andy book a table")
    (seen_by_lanes,) = await family.queued()
    await family.hear("at eight")

    order = await family.give(seen_by_lanes, await family.begin_run())

    assert "at eight" in order.prompt


async def test_a_request_during_a_turn_waits_as_the_next_one(family):
    running = (await family.hear("@Andy one")).turn_id
    await family.start_next()

    accepted = await family.hear("@Andy two")

    assert accepted.turn_id not in (None, running)
    assert [turn.id for turn in await family.queued()] == [accepted.turn_id]


async def test_untriggered_talk_is_context_of_the_next_triggered_turn(family):
    await family.hear("we meet at the lake")
    await family.hear("@Andy where do we meet?")

    _, _, order = await family.start_next()

    assert "we meet at the lake" in order.prompt
    assert [one.text for one in order.requests] == ["where do we meet?"]


async def test_talk_during_a_turn_is_context_of_the_next(family):
    await family.hear("@Andy one")
    _, run, _ = await family.start_next()
    talk = await family.hear("by the way, the lake")
    assert talk.outcome == "ignored"
    await family.lose(run)
    await family.answer("done")
    await family.hear("@Andy two")

    _, _, order = await family.start_next()

    assert "by the way, the lake" in order.prompt


async def test_the_newest_two_hundred_messages_are_the_context(family):
    for number in range(205):
        await family.hear(f"talk-{number:03}.")
    await family.hear("@Andy summarise")

    _, _, order = await family.start_next()

    assert order.prompt.count("<message ") == 200
    assert "talk-005." not in order.prompt
    assert "talk-006." in order.prompt


async def test_what_was_answered_is_not_told_again(family):
    await family.hear("@Andy one")
    await family.answer("done")
    await family.hear("@Andy two")

    _, _, order = await family.start_next()

    assert "@Andy one" not in order.prompt
    assert "two" in order.prompt


async def test_own_answers_are_not_in_the_next_prompt_but_reminders_are(family):
    await family.hear("@Andy one")
    await family.answer("my own answer")
    async with family.database.transaction() as tx:
        await outbox.add(tx, chat_jid=JANE, text="take the pill", dedupe_key="reminder:1", now_ms=1)
    assert await family.deliver_all() == ["my own answer", "take the pill"]
    await family.hear("@Andy two")

    _, _, order = await family.start_next()

    assert "my own answer" not in order.prompt
    assert "take the pill" in order.prompt


async def test_the_echo_of_an_own_message_is_no_request(family):
    await family.add_group("main", is_main=True, requires_trigger=False)
    await family.hear("hello", "main")
    await family.answer("my answer", folder="main")
    (outgoing,) = await family.outgoing()

    echo = await family.hear("my answer", "main", id=outgoing.message_id, is_from_me=True)
    await family.deliver_all()

    assert echo.outcome == "duplicate"
    assert await family.queued("main") == []
    assert [one.is_bot_message for one in await family.messages("main")] == [False, True]


@pytest.mark.parametrize("pause_ms", [0, 60_001, 30 * 24 * 3_600_000])
async def test_a_reply_to_any_message_of_andys_needs_no_trigger_however_late(family, pause_ms):
    await family.hear("@Andy hi")
    await family.answer("which day?", "and where?")
    await family.deliver_all()
    said = (await family.messages())[-2]
    (run,) = await family.rows("SELECT id FROM runs")
    async with family.database.transaction() as tx:
        await runs.end(tx, run["id"], kind="closed", detail="", now_ms=2)
    family.clock.pass_ms(pause_ms)

    quote = Quote(message_id=said.id, sender="Andy", text=said.text)
    assert (await family.hear("monday", quote=quote)).outcome == "queued"


async def test_a_reply_to_a_message_that_is_just_leaving_needs_no_trigger(family):
    await family.hear("@Andy hi")
    await family.answer("which day?")
    (outgoing,) = await family.outgoing()

    quote = Quote(message_id=outgoing.message_id, sender="Andy", text="which day?")
    assert (await family.hear("monday", quote=quote)).outcome == "queued"


async def test_a_mention_of_andys_account_needs_no_trigger(family):
    assert (await family.hear("what do you think", is_call=True)).outcome == "queued"


async def test_a_reply_to_somebody_else_needs_the_trigger(family):
    await family.hear("@Andy hi")
    other = await family.hear("I am here", id=MessageId("OTHER"))
    await family.answer("which day?")
    await family.deliver_all()
    quote = Quote(message_id=MessageId("OTHER"), sender="Jane", text="I am here")

    assert other.seq
    assert (await family.hear("me too", quote=quote)).outcome == "ignored"


async def test_that_a_message_could_not_be_read_is_told_once_an_hour_and_it_may_still_come(family):
    for number in range(3):
        told = await family.hear("", id=MessageId(f"U{number}"), is_unreadable=True)
    assert (told.outcome, told.seq) == ("dropped", None)

    (said,) = await family.outgoing()
    assert said.text == "⚠️ I could not read what Jane wrote. If it was for me, please send it again."
    assert (await family.hear("", "stranger", is_unreadable=True)).outcome == "unregistered"
    assert (await family.hear("@Andy hi", id=MessageId("U1"))).outcome == "queued"
    await family.hear("", id=MessageId("U1"), is_unreadable=True)
    family.clock.pass_ms(3_600_000)
    await family.hear("", id=MessageId("U9"), is_unreadable=True)
    assert len(await family.outgoing()) == 2


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
async def test_an_empty_message_is_refused_and_nothing_stored(family, text):
    with pytest.raises(TextEmpty):
        await family.hear(text)

    assert await family.messages() == []


async def test_a_text_beyond_the_limit_is_refused_and_says_so(family):
    with pytest.raises(TextTooLong, match="65,537"):
        await family.hear("x" * (MAX_TEXT_CHARS + 1))

    assert (await family.hear("x" * MAX_TEXT_CHARS)).outcome == "ignored"


async def test_half_an_emoji_does_not_keep_a_message_out(family):
    quote = Quote(message_id=MessageId("Q"), sender="\ud83d", text="cut \ud83d")
    accepted = await family.hear("@Andy \ud83d hello", sender_name="Jane \ud83d", quote=quote)

    assert accepted.outcome == "queued"
    _, _, order = await family.start_next()
    assert "@Andy ? hello" in order.prompt
    assert order.to_json()


@pytest.mark.parametrize("sent_ms", [-1, 10**18, 9_999_999_999_999])
async def test_an_impossible_time_becomes_now_and_breaks_no_prompt(family, sent_ms):
    await family.hear("@Andy hello", sent_ms=sent_ms)

    _, _, order = await family.start_next()

    assert "@Andy hello" in order.prompt
    assert (await family.messages())[0].sent_ms == family.clock.now_ms()


async def test_a_nul_in_a_text_reaches_the_store_and_not_the_prompt(family):
    await family.hear("@Andy a\x00b")

    _, _, order = await family.start_next()

    assert "\x00" not in order.prompt
    assert (await family.messages())[0].text == "@Andy a\x00b"


async def test_a_queued_message_wakes_the_lanes_and_is_told(family):
    with family.bus.listening() as events:
        accepted = await family.hear("@Andy hi", id=MessageId("M"))

    event = events.get_nowait()
    assert (event.kind, event.message, event.turn) == ("message.queued", "M", accepted.turn_id)
    assert event.group == "family"
    async with asyncio.timeout(DEADLINE_SECONDS):
        await family.wakeups.lanes.wait(at_most_seconds=None)


async def test_a_turn_that_failed_leaves_its_messages_as_context_of_the_next(family):
    await family.hear("@Andy one")
    _, run, _ = await family.start_next()
    await family.lose(run, is_retryable=False)
    await family.hear("@Andy two")

    turn, _, order = await family.start_next()

    assert turn.state is TurnState.QUEUED
    assert "one" in order.prompt
    assert [request.text for request in order.requests] == ["two"]


async def test_a_task_turn_carries_its_own_prompt(family):
    async with family.database.transaction() as tx:
        await tx.execute(
            "INSERT INTO turns (group_folder, chat_jid, kind, prompt, state, queued_ms, not_before_ms)"
            " VALUES ('family', ?, 'task', 'water the plants', 'queued', 1, 1)",
            (JANE,),
        )
        (turn,) = await turns.unsettled(tx)

    order = await family.give(turn, await family.begin_run())

    assert (order.kind, order.prompt) == ("task", "water the plants")


async def test_an_order_says_who_asks_whether_it_is_the_owner_and_what_is_replied_to(family):
    """The agent without a model lets only who was asked, or the owner, answer with yes."""
    quote = Quote(message_id=MessageId("Q"), sender="Andy", text="⏰ Reminder: cook")
    await family.hear("@Andy one", quote=quote)
    await family.hear("@Andy two", sender="local:tom", sender_name="Jane")
    await family.hear("@Andy three", sender="local:owner", is_from_me=True)
    _, _, order = await family.start_next()

    one, two, three = TurnOrder.parse(order.to_json()).requests
    assert (one.quoted, two.quoted) == ("⏰ Reminder: cook", "")
    assert (one.person, two.person) == (person_of("local:jane"), person_of("local:tom"))
    assert one.person != two.person, "they only share a name"
    assert [request.is_owner for request in (one, two, three)] == [False, False, True]
    assert "local:" not in one.person
