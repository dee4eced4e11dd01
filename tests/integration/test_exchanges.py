"""What the store tells of a conversation: turn by turn, and in the words in which it is kept."""

from __future__ import annotations

import pytest

from orchestrator.context.message_mapping import (
    AUTO_QUESTION,
    SCHEDULED_QUESTION,
    answer_text,
    is_conversation,
    question_text,
)
from orchestrator.domain.values import SessionCommand, TurnState
from orchestrator.store.conversation import exchanges, outbox
from orchestrator.store.conversation.exchanges import TurnExchange
from orchestrator.store.groups import groups
from orchestrator.store.runs import turns


@pytest.fixture
async def harness(store_harness):
    await store_harness.add_group()
    return store_harness


async def told(harness, mark: int = 0, limit: int = 100) -> list[TurnExchange]:
    async with harness.database.reading() as tx:
        return await exchanges.after(tx, "family", mark, limit=limit)


async def words_of(harness, exchange: TurnExchange) -> str:
    async with harness.database.reading() as tx:
        group = await groups.known(tx, "family")
    return question_text(exchange, group, name="Andy")


async def change(harness, sql: str, *values: object) -> None:
    async with harness.database.transaction() as tx:
        await tx.execute(sql, values)


async def test_an_exchange_is_what_was_asked_and_all_that_was_said(harness):
    await harness.hear("@Andy how long to Busan?")
    await harness.hear("no trigger, no question")
    await harness.hear("@Andy by train, please")
    turn = await harness.answer("Let me look.", "<internal>hm</internal>Two hours.", "SILENT")
    await harness.deliver_all()
    (one,) = await told(harness)
    assert (one.turn, one.state, one.is_settled) == (turn.id, TurnState.ANSWERED, True)
    assert await words_of(harness, one) == "Jane: how long to Busan?\nJane: by train, please"
    assert answer_text(one) == "Let me look.\n\nTwo hours."


async def test_what_runs_has_its_question_and_what_only_waits_is_not_there_yet(harness):
    await harness.hear("@Andy hello")
    assert await told(harness) == []
    await harness.start_next()
    (one,) = await told(harness)
    assert (one.state, one.said, one.is_settled) == (TurnState.RUNNING, (), False)


async def test_what_is_held_back_is_not_said_and_a_turn_that_is_tried_again_goes_on(harness):
    await harness.hear("@Andy hello")
    turn, run, _ = await harness.start_next()
    async with harness.database.transaction() as tx:
        held = {"state": outbox.OutboxState.HELD, "turn_id": turn.id, "now_ms": 0}
        await outbox.add(tx, chat_jid=turn.chat_jid, text="half", dedupe_key="frame:x:1", **held)
    assert (await told(harness))[0].said == ()
    await harness.lose(run)
    (one,) = await told(harness)
    assert (one.state, one.said) == (TurnState.QUEUED, ())


async def test_what_the_host_says_of_a_turn_is_no_part_of_it(harness):
    await harness.hear("@Andy hello")
    _, run, _ = await harness.start_next()
    await harness.lose(run, is_retryable=False)
    (one,) = await told(harness)
    assert one.state is TurnState.FAILED
    assert await harness.outgoing(), "the chat is told that it failed"
    assert one.said == ()


async def test_a_long_answer_in_parts_is_one_answer_in_order(harness):
    await harness.hear("@Andy tell me all")
    await harness.answer("first. second.", "third.")
    async with harness.database.transaction() as tx:
        (whole, *_) = await outbox.heads(tx)
        await outbox.split(tx, whole, ["first.", "second."])
    assert (await told(harness))[0].said == ("first.", "second.", "third.")


@pytest.mark.parametrize(
    "mark",
    [
        "UPDATE turns SET kind = 'worker'",
        "UPDATE turns SET is_isolated = 1",
        "UPDATE turns SET command = 'compact'",
        "UPDATE turns SET run_id = NULL",
    ],
)
async def test_what_is_no_part_of_the_conversation_is_left_out(harness, mark):
    await harness.hear("@Andy hello")
    await harness.answer("hi")
    await change(harness, mark)
    assert await told(harness) == []


async def test_a_cleared_conversation_is_told_in_its_place(harness):
    await harness.hear("@Andy one")
    await harness.answer("1")
    async with harness.database.transaction() as tx:
        group = await groups.known(tx, "family")
        clearing = await turns.add_command(tx, group.folder, group.jid, SessionCommand.CLEAR, now_ms=0)
        assert len(await exchanges.after(tx, group.folder, 0, limit=9)) == 1, "it is not cleared yet"
        await turns.settle(tx, clearing, TurnState.ANSWERED, reason="cleared", now_ms=0)
    await harness.hear("@Andy two")
    await harness.answer("2")
    assert [one.command for one in await told(harness)] == [None, SessionCommand.CLEAR, None]


async def test_a_task_and_a_free_cycle_say_that_nobody_asked(harness):
    await harness.hear("@Andy hello")
    await harness.answer("hi")
    await change(harness, "UPDATE turns SET kind = 'task', prompt = 'Water the plants?'")
    (task,) = await told(harness)
    assert await words_of(harness, task) == f"{SCHEDULED_QUESTION} Water the plants?"
    await change(harness, "UPDATE turns SET kind = 'auto'")
    (cycle,) = await told(harness)
    assert await words_of(harness, cycle) == AUTO_QUESTION
    assert is_conversation(cycle)
    await change(harness, "UPDATE outbox SET text = '<internal>nothing</internal>'")
    assert not is_conversation((await told(harness))[0])


async def test_only_the_newest_after_the_mark_are_told_oldest_first(harness):
    ids = []
    for number in range(4):
        await harness.hear(f"@Andy {number}")
        ids.append((await harness.answer("ok")).id)
    assert [one.turn for one in await told(harness, mark=ids[0], limit=2)] == ids[2:]


async def test_the_oldest_open_turn_bounds_what_is_settled(harness):
    async def oldest() -> int | None:
        async with harness.database.reading() as tx:
            return await exchanges.oldest_open(tx, "family")

    assert await oldest() is None
    await harness.hear("@Andy hello")
    turn, _, _ = await harness.start_next()
    await harness.hear("@Andy and this")
    assert await oldest() == turn.id
