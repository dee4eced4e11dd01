"""What the owner does to single turns, on a real database."""

from __future__ import annotations

import pytest

from orchestrator.domain.errors import UnknownTurn
from orchestrator.domain.failures import STOPPED_BY_HAND, STOPPED_TEXT
from orchestrator.domain.values import RunId, TurnState
from orchestrator.queue.owner_actions import TurnActions, TurnIsOver, TurnNotRepeatable
from orchestrator.store import audit
from orchestrator.store.runs import turns
from tests.support.host_contexts import host_context
from tests.support.store_harness import StoreHarness


class StoppedRuns(list[tuple[RunId, str]]):
    async def stop(self, run_id: RunId, reason: str) -> None:
        self.append((run_id, reason))


@pytest.fixture
def stopped() -> StoppedRuns:
    return StoppedRuns()


@pytest.fixture
async def family(store_harness: StoreHarness) -> StoreHarness:
    await store_harness.add_group()
    return store_harness


@pytest.fixture
def actions(family: StoreHarness, stopped: StoppedRuns, tmp_path) -> TurnActions:
    return TurnActions(host_context(family, tmp_path), stop_run=stopped.stop)


async def state_of(harness: StoreHarness, turn_id: int) -> tuple[TurnState, str | None]:
    async with harness.database.reading() as tx:
        turn = await turns.get(tx, turn_id)  # type: ignore[arg-type]
    assert turn is not None
    return turn.state, turn.reason


async def test_a_turn_that_waits_is_failed_and_the_chat_is_told(family, actions, stopped):
    accepted = await family.hear("@Andy hi")
    await actions.stop(accepted.turn_id)
    assert await state_of(family, accepted.turn_id) == (TurnState.FAILED, STOPPED_BY_HAND)
    assert [one.text for one in await family.outgoing()] == [STOPPED_TEXT], "nothing tries it again"
    assert stopped == []
    assert "turn.failed" in [event.kind for event in family.bus.ring]
    with pytest.raises(TurnIsOver):
        await actions.stop(accepted.turn_id)
    async with family.database.reading() as tx:
        kinds = [row["kind"] for row in await audit.newest(tx, limit=5)]
    assert "turn.stop" in kinds


async def test_a_turn_that_runs_is_ended_with_its_run(family, actions, stopped):
    await family.hear("@Andy hi")
    turn, run, _ = await family.start_next()
    await actions.stop(turn.id)
    assert stopped == [(run.id, STOPPED_BY_HAND)]


async def test_a_failed_turn_is_asked_again_with_what_was_asked_since(family, actions):
    first = await family.hear("@Andy one")
    await actions.stop(first.turn_id)
    second = await family.hear("@Andy two")
    again = await actions.ask_again(first.turn_id)

    assert again.id == second.turn_id
    assert (again.first_seq, again.last_seq) == (first.seq, second.seq)
    async with family.database.reading() as tx:
        rows = await tx.execute_fetchall("SELECT DISTINCT turn_id FROM messages WHERE is_request = 1")
    assert [row["turn_id"] for row in rows] == [again.id]
    await family.answer("Both.")
    assert (await state_of(family, again.id))[0] is TurnState.ANSWERED
    with pytest.raises(TurnNotRepeatable):
        await actions.ask_again(again.id)


async def test_a_failed_turn_whose_messages_were_answered_by_another_asks_nothing_more(family, actions):
    first = await family.hear("@Andy one")
    await actions.stop(first.turn_id)
    await actions.ask_again(first.turn_id)
    await family.answer("One.")

    with pytest.raises(TurnNotRepeatable):
        await actions.ask_again(first.turn_id)

    assert await family.queued() == []


async def test_what_is_asked_again_beside_a_turn_that_is_put_back_becomes_part_of_it(family, actions):
    first = await family.hear("@Andy one")
    await actions.stop(first.turn_id)
    second = await family.hear("@Andy two")
    turn, run, _ = await family.start_next()
    await actions.ask_again(first.turn_id)

    await family.lose(run)

    (again,) = await family.queued()
    assert (again.id, again.first_seq, again.last_seq) == (turn.id, first.seq, second.seq)
    await family.answer("Both.")
    await family.hear("@Andy three")
    _, _, order = await family.start_next()
    assert "two" not in order.prompt, "what was answered is not shown as if it were new"


async def test_a_turn_that_waits_for_its_next_try_is_tried_at_once(family, actions):
    accepted = await family.hear("@Andy hi")
    turn, run, _ = await family.start_next()
    await family.lose(run)
    again = await actions.ask_again(turn.id)
    assert (again.id, again.state) == (accepted.turn_id, TurnState.QUEUED)
    assert again.not_before_ms <= family.clock.now_ms()


async def test_an_unknown_turn_is_told(actions):
    with pytest.raises(UnknownTurn):
        await actions.stop(99)
    with pytest.raises(UnknownTurn):
        await actions.ask_again(99)
