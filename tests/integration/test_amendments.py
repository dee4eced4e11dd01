"""Edits and deletions of messages, before and after an agent has read them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.domain.values import Inbound, MessageId, Quote, TurnState
from orchestrator.inbound import amendments
from orchestrator.inbound.triggers import NO_TRIGGER
from orchestrator.store.conversation import messages
from tests.support.store_harness import StoreHarness, a_message


@pytest.fixture
async def family(store_harness: StoreHarness) -> StoreHarness:
    await store_harness.add_group()
    return store_harness


def edited(original: Inbound, text: str, **changes: Any) -> Inbound:
    return a_message(text, edits=original.id, sender=changes.pop("sender", original.sender), **changes)


def deleted(original: Inbound, **changes: Any) -> Inbound:
    return a_message("", deletes=original.id, sender=changes.pop("sender", original.sender), **changes)


async def texts(family: StoreHarness) -> list[str]:
    return [one.text for one in await family.messages() if one.text]


# While the turn is queued


async def test_an_edit_of_a_queued_question_is_what_the_agent_reads(family):
    question = a_message("@Andy buy milk")
    await family.intake.accept(question)

    accepted = await family.intake.accept(edited(question, "@Andy buy bread"))

    assert accepted.outcome == "amended"
    _, _, order = await family.start_next()
    assert "bread" in order.prompt
    assert "milk" not in order.prompt
    assert [one.text for one in order.requests] == ["buy bread"]


async def test_a_deleted_question_withdraws_the_turn_that_nobody_else_asks_for(family):
    await family.hear("other talk")
    question = a_message("@Andy never mind")
    first = await family.intake.accept(question)
    await family.hear("talk that joined")

    accepted = await family.intake.accept(deleted(question))

    assert (accepted.outcome, accepted.turn_id) == ("amended", first.turn_id)
    assert await family.queued() == []
    turn = await family.turn(first.turn_id)
    assert (turn.state, turn.reason) == (TurnState.ANSWERED, amendments.WITHDRAWN)
    assert {one.ignored_reason for one in await family.messages()} == {
        NO_TRIGGER,
        amendments.DELETED,
        amendments.WITHDRAWN,
    }
    # The talk is still there for the next question; the deleted words are not.
    await family.hear("@Andy hello")
    _, _, order = await family.start_next()
    assert "talk that joined" in order.prompt
    assert "never mind" not in order.prompt


async def test_a_deleted_question_leaves_the_turn_to_who_else_asks(family):
    one, two = a_message("@Andy one"), a_message("@Andy two")
    await family.intake.accept(one)
    await family.intake.accept(two)

    await family.intake.accept(deleted(one))

    _, _, order = await family.start_next()
    assert "two" in order.prompt
    assert "one" not in order.prompt.replace("timezone", "")
    assert [request.text for request in order.requests] == ["two"]


async def test_a_question_that_is_edited_into_talk_withdraws_the_turn(family):
    question = a_message("@Andy tell the secret")
    first = await family.intake.accept(question)

    accepted = await family.intake.accept(edited(question, "not now"))

    assert accepted.outcome == "amended"
    assert await family.queued() == []
    assert (await family.turn(first.turn_id)).reason == amendments.WITHDRAWN
    await family.hear("@Andy hello")
    _, _, order = await family.start_next()
    assert "not now" in order.prompt, "it is talk like any other"
    assert "secret" not in order.prompt
    assert [request.text for request in order.requests] == ["hello"]


async def test_a_question_that_is_edited_into_talk_leaves_the_turn_to_who_else_asks(family):
    one = a_message("@Andy one")
    await family.intake.accept(one)
    await family.hear("@Andy two")

    await family.intake.accept(edited(one, "never mind"))

    _, _, order = await family.start_next()
    assert [request.text for request in order.requests] == ["two"]


async def test_a_reply_to_andy_that_is_edited_still_asks(family):
    await family.hear("@Andy hello")
    await family.answer("Which list?")
    (own,) = await family.outgoing()
    reply = a_message("shoping", quote=Quote(message_id=own.message_id, sender="andy", text="Which list?"))
    await family.intake.accept(reply)

    await family.intake.accept(edited(reply, "shopping"))

    _, _, order = await family.start_next()
    assert [request.text for request in order.requests] == ["shopping"]


async def test_talk_in_a_queued_turn_that_is_edited_into_a_question_asks(family):
    await family.hear("@Andy first")
    talk = a_message("second")
    await family.intake.accept(talk)

    await family.intake.accept(edited(talk, "@Andy second"))

    _, _, order = await family.start_next()
    assert [request.text for request in order.requests] == ["first", "second"]


# Talk that nobody has read


async def test_talk_that_nobody_has_read_is_replaced(family):
    talk = a_message("lunch at 12")
    await family.intake.accept(talk)

    await family.intake.accept(edited(talk, "lunch at 13"))

    assert await texts(family) == ["lunch at 13"]
    assert await family.queued() == []


async def test_talk_that_is_edited_into_a_question_is_asked(family):
    talk = a_message("@Any what's on?")
    await family.intake.accept(talk)

    accepted = await family.intake.accept(edited(talk, "@Andy what's on?"))

    assert accepted.outcome == "queued"
    assert await texts(family) == ["@Andy what's on?"]
    _, _, order = await family.start_next()
    assert [request.text for request in order.requests] == ["what's on?"]


async def test_a_question_that_was_talk_at_first_is_edited_again(family):
    talk = a_message("buy milk")
    await family.intake.accept(talk)
    await family.intake.accept(edited(talk, "@Andy buy milk"))

    await family.intake.accept(edited(talk, "@Andy buy bread"))

    assert await texts(family) == ["@Andy buy bread"]
    _, _, order = await family.start_next()
    assert [request.text for request in order.requests] == ["buy bread"]


async def test_a_question_that_was_talk_at_first_is_deleted(family):
    talk = a_message("my pin is tulip")
    await family.intake.accept(talk)
    await family.intake.accept(edited(talk, "@Andy my pin is tulip"))

    await family.intake.accept(deleted(talk))

    assert await texts(family) == []
    assert await family.queued() == []


async def test_talk_that_is_edited_into_a_question_twice_delivered_is_asked_once(family):
    talk = a_message("buy milk")
    await family.intake.accept(talk)
    edit = edited(talk, "@Andy buy milk")
    await family.intake.accept(edit)
    await family.answer("done")

    again = [(await family.intake.accept(one)).outcome for one in (talk, edit)]

    assert again == ["duplicate", "duplicate"]


async def test_talk_that_is_edited_into_a_question_still_gets_its_file(family):
    picture = a_message("look", file="[image: not fetched yet]", file_until_ms=9_999_999_999_999)
    await family.intake.accept(picture)
    await family.intake.accept(edited(picture, "@Andy what is this?"))

    await family.intake.accept(replace(picture, file="[image attachments/a.jpg]", file_until_ms=None))

    assert await texts(family) == ["@Andy what is this?\n[image attachments/a.jpg]"]


async def test_talk_that_is_edited_into_a_question_quotes_the_file_that_was_fetched_for_it(family):
    quote = Quote(message_id=MessageId("old"), sender="Bob", text="[image: not fetched yet]")
    fetched = replace(quote, text="[image attachments/a.jpg]")
    talk = a_message("look", quote=quote, file_until_ms=9_999_999_999_999)
    await family.intake.accept(talk)
    await family.intake.accept(replace(talk, quote=fetched, file_until_ms=None))
    change = edited(talk, "@Andy what is this?", quote=quote, file_until_ms=9_999_999_999_999)

    await family.intake.accept(change)
    await family.intake.accept(replace(change, quote=fetched, file_until_ms=None))

    _, _, order = await family.start_next()
    assert [request.quoted for request in order.requests] == ["[image attachments/a.jpg]"]


async def test_talk_that_is_edited_into_a_question_still_quotes_and_is_in_its_thread(family):
    plan = a_message("the party is on Friday", sender="local:bob")
    await family.intake.accept(plan)
    quote = Quote(message_id=plan.id, sender="Bob", text="the party is on Friday")
    talk = a_message("note that", quote=quote, thread="$thread")
    await family.intake.accept(talk)

    await family.intake.accept(edited(talk, "@Andy note that"))

    turn, _, order = await family.start_next()
    assert [request.quoted for request in order.requests] == ["the party is on Friday"]
    thread = await family.database.read(lambda tx: messages.thread_of(tx, turn.id, talk.chat_jid))
    assert thread == "$thread"


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_voice_note_that_was_deleted_before_its_words_came_asks_nothing(family, is_deleted):
    note = a_message("", file="[voice note: not fetched yet]", file_until_ms=9_999_999_999_999)
    await family.intake.accept(note)
    if is_deleted:
        await family.intake.accept(deleted(note))

    whole = a_message("", id=note.id, file="[voice note: Andy, buy milk]", spoken="Andy, buy milk")
    accepted = await family.intake.accept(whole)

    assert (accepted.turn_id is None) is is_deleted
    assert len(await family.queued()) == (not is_deleted)


async def test_talk_that_is_deleted_is_in_no_prompt(family):
    talk = a_message("a secret")
    await family.intake.accept(talk)
    await family.intake.accept(deleted(talk))
    await family.hear("@Andy hello")

    _, _, order = await family.start_next()
    assert "secret" not in order.prompt


# Once it was read


@pytest.mark.parametrize("has_ended", [False, True])
async def test_an_edit_of_a_question_that_was_read_is_a_note_and_asks_nothing(family, has_ended):
    question = a_message("@Andy buy milk")
    await family.intake.accept(question)
    if has_ended:
        await family.answer("done")
    else:
        await family.start_next()

    accepted = await family.intake.accept(edited(question, "@Andy buy bread"))

    assert (accepted.outcome, accepted.reason) == ("ignored", amendments.EDIT_OF_READ)
    assert await family.queued() == []
    assert await texts(family) == ["@Andy buy milk", "[edited] @Andy buy bread"]


async def test_the_next_question_brings_the_note_of_the_edit(family):
    question = a_message("@Andy buy milk")
    await family.intake.accept(question)
    await family.answer("done")
    await family.intake.accept(edited(question, "@Andy buy bread"))
    await family.hear("@Andy what was it?")

    _, _, order = await family.start_next()

    assert "[edited] @Andy buy bread" in order.prompt
    assert "buy milk</quoted_message>" in order.prompt
    assert [request.text for request in order.requests] == ["what was it?"]


async def test_talk_that_was_read_can_still_be_edited_into_a_question(family):
    talk = a_message("@Any what's on?")
    await family.intake.accept(talk)
    await family.hear("@Andy hello")
    await family.answer("hi")

    accepted = await family.intake.accept(edited(talk, "@Andy what's on?"))

    assert accepted.outcome == "queued"
    _, _, order = await family.start_next()
    assert [request.text for request in order.requests] == ["what's on?"]


@pytest.mark.parametrize("has_ended", [False, True])
async def test_talk_that_was_read_keeps_its_words_and_the_edit_stands_beside_them(family, has_ended):
    talk = a_message("lunch at 12")
    await family.intake.accept(talk)
    await family.hear("@Andy hello")
    if has_ended:
        await family.answer("hi")
    else:
        await family.start_next()

    accepted = await family.intake.accept(edited(talk, "lunch at 13"))

    assert (accepted.outcome, accepted.reason) == ("ignored", NO_TRIGGER)
    assert await texts(family) == ["lunch at 12", "@Andy hello", "lunch at 13"]


@pytest.mark.parametrize("has_ended", [False, True])
async def test_a_deletion_of_what_was_read_asks_nothing_and_its_words_leave_the_store(family, has_ended):
    question = a_message("@Andy my pin is tulip")
    await family.intake.accept(question)
    await family.hear("what?", quote=Quote(message_id=question.id, sender="Jane", text="my pin is tulip"))
    turn = await family.answer("ok") if has_ended else (await family.start_next())[0]

    accepted = await family.intake.accept(deleted(question))

    assert (accepted.outcome, accepted.turn_id) == ("amended", None)
    assert not [one for one in await family.messages() if "tulip" in f"{one.text} {one.quote}"]
    state = TurnState.ANSWERED if has_ended else TurnState.RUNNING
    assert (await family.turn(turn.id)).state is state
    assert await family.queued() == []


@pytest.mark.parametrize("was_asked", [False, True])
async def test_a_deletion_of_what_was_read_and_edited_takes_the_words_of_the_edit_too(family, was_asked):
    original = a_message("@Andy my pin is rose" if was_asked else "my pin is rose")
    await family.intake.accept(original)
    await family.hear("@Andy hello")
    await family.answer("hi")
    await family.intake.accept(edited(original, "my pin is tulip"))

    await family.intake.accept(deleted(original))

    assert not [one for one in await family.messages() if "pin" in f"{one.text} {one.quote}"]


async def test_a_deletion_takes_the_words_of_an_edit_whose_message_never_came(family):
    await family.intake.accept(a_message("@Andy my pin is tulip", edits=MessageId("never")))

    accepted = await family.intake.accept(a_message("", deletes=MessageId("never")))

    assert accepted.outcome == "amended"
    assert await texts(family) == []
    assert await family.queued() == []


# Who may


async def test_nobody_amends_what_somebody_else_wrote(family):
    question = a_message("@Andy buy milk")
    await family.intake.accept(question)

    for amendment in (
        edited(question, "@Andy buy a car", sender="local:bob"),
        deleted(question, sender="local:bob"),
    ):
        accepted = await family.intake.accept(amendment)
        assert (accepted.outcome, accepted.reason) == ("dropped", amendments.NOT_ITS_SENDER)

    assert await texts(family) == ["@Andy buy milk"]
    assert len(await family.queued()) == 1


async def test_who_gets_another_address_still_amends_what_they_wrote(family):
    one, two = a_message("@Andy buy milk", sender="1@lid"), a_message("my pin is tulip", sender="1@lid")
    await family.intake.accept(one)
    await family.intake.accept(two)

    for amendment in (
        edited(one, "@Andy buy bread", sender="49@s.whatsapp.net", sender_alias="1@lid"),
        deleted(two, sender="49@s.whatsapp.net", sender_alias="1@lid"),
    ):
        assert (await family.intake.accept(amendment)).outcome == "amended"

    assert await texts(family) == ["@Andy buy bread"]


async def test_an_edit_of_a_message_that_never_came_is_a_message(family):
    accepted = await family.intake.accept(a_message("@Andy hello", edits=MessageId("never")))

    assert accepted.outcome == "queued"


async def test_a_deletion_of_a_message_that_never_came_does_nothing(family):
    accepted = await family.intake.accept(a_message("", deletes=MessageId("never")))

    assert (accepted.outcome, accepted.reason) == ("dropped", amendments.UNKNOWN)


async def test_the_same_edit_twice_is_done_once(family):
    question = a_message("@Andy buy milk")
    await family.intake.accept(question)
    await family.answer("done")
    edit = edited(question, "@Andy buy bread")

    await family.intake.accept(edit)
    again = await family.intake.accept(edit)

    assert again.outcome == "duplicate"


# What asks for nothing by its nature


async def test_a_reaction_is_kept_with_its_reason_and_asks_nothing_even_in_main(store_harness):
    await store_harness.add_group("main", is_main=True, requires_trigger=False)

    accepted = await store_harness.hear("[reacted 👍]", "main", ignored="reaction")

    assert (accepted.outcome, accepted.reason) == ("ignored", "reaction")
    assert await store_harness.queued("main") == []


# By a moderator


async def test_who_moderates_a_chat_takes_back_what_others_ask_and_nobody_else_does(family):
    question = a_message("@Andy something nasty")
    first = await family.intake.accept(question)
    other = await family.intake.accept(deleted(question, sender="somebody@x"))
    assert (other.outcome, other.reason) == ("dropped", amendments.NOT_ITS_SENDER)

    accepted = await family.intake.accept(deleted(question, sender="admin@x", is_moderated=True))

    assert (accepted.outcome, accepted.turn_id) == ("amended", first.turn_id)
    assert await texts(family) == []
    assert await family.queued() == []
    assert {one.ignored_reason for one in await family.messages()} == {amendments.DELETED_BY_OTHERS}
