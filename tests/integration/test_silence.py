"""SILENT as an answer: nothing is sent, and the question is answered."""

from __future__ import annotations

import pytest

from agent_runner.wire.frames import Ack, Result, TurnEnd
from orchestrator.domain.silence import is_silence
from orchestrator.domain.values import OutboxState, TurnState
from orchestrator.store.conversation import outbox
from tests.doubles.channel import ScriptedChannel
from tests.support.until import until


@pytest.mark.parametrize(
    ("text", "is_silent"),
    [
        ("SILENT", True),
        ("  SILENT\n", True),
        ("**SILENT**", True),
        ("`SILENT`.", True),
        ('"SILENT"', True),
        ("Silent", False),
        ("SILENT night", False),
        ("It is SILENT here.", False),
        ("", False),
    ],
)
def test_the_word_is_silence_when_it_is_all_there_is(text, is_silent):
    assert is_silence(text) is is_silent


@pytest.mark.parametrize("text", ["SILENT", " **SILENT** "])
async def test_at_04_a_silent_answer_sends_nothing_and_answers(store_harness, text):
    await store_harness.add_group()
    await store_harness.hear("@Andy blog 80%")
    turn = await store_harness.answer(text)
    settled = await store_harness.turn(turn.id)
    assert (settled.state, settled.reason) == (TurnState.ANSWERED, "nothing to say")
    assert await store_harness.outgoing() == []


async def test_what_is_said_besides_the_word_is_sent_without_it(store_harness):
    await store_harness.add_group()
    await store_harness.hear("@Andy blog 80%")
    turn, run, _ = await store_harness.start_next()
    frames = [
        Ack(n=1, turn=turn.id),
        Result(n=2, turn=turn.id, result="Well done!"),
        Result(n=3, turn=turn.id, result="SILENT"),
        TurnEnd(n=4, turn=turn.id),
    ]
    for frame in frames:
        await store_harness.take(run, frame)
    assert [one.text for one in await store_harness.outgoing()] == ["Well done!"]


async def test_silence_behind_what_nobody_sees_is_silence_too(store_harness):
    await store_harness.add_group()
    await store_harness.hear("@Andy blog 80%")
    await store_harness.answer("<internal>noted</internal>SILENT")
    channel = ScriptedChannel()
    async with store_harness.delivering(channel):

        async def is_settled() -> bool:
            async with store_harness.database.reading() as tx:
                return (await outbox.counts(tx)).get(OutboxState.SKIPPED.value, 0) == 1

        await until(is_settled, "it is skipped")
    assert channel.attempts == []
