"""What a container says, taken into a real store: once, in its own turn, or not at all."""

from __future__ import annotations

import pytest

from agent_runner.wire.frames import Ack, FailureFrame, Heartbeat, Ready, Result, TurnEnd, Usage
from orchestrator.containers import frame_effects
from orchestrator.domain.values import Folder, OutboxState, TurnState
from orchestrator.store.runs import sessions
from tests.support.store_harness import StoreHarness

FAMILY = Folder("family")


@pytest.fixture
async def family(store_harness: StoreHarness) -> StoreHarness:
    await store_harness.add_group()
    return store_harness


async def texts(store_harness, state):
    return [one.text for one in await store_harness.outgoing() if one.state is state]


async def session_of(store_harness):
    async with store_harness.database.reading() as tx:
        return await sessions.current(tx, FAMILY)


async def cursor_of(store_harness):
    async with store_harness.database.reading() as tx:
        return await sessions.cursor_of(tx, FAMILY)


async def test_results_are_held_until_their_turn_ends_well(family):
    await family.hear("@Andy hi")
    turn, run, _ = await family.start_next()
    await family.take(run, Result(n=1, turn=turn.id, result="hello"))
    assert await texts(family, OutboxState.HELD) == ["hello"]

    taken = await family.take(run, TurnEnd(n=2, turn=turn.id))

    assert taken.ended is TurnState.ANSWERED
    assert await texts(family, OutboxState.PENDING) == ["hello"]


async def test_a_good_end_moves_the_cursor_to_the_last_message_of_the_turn(family):
    await family.hear("@Andy hi")
    last = await family.hear("please")
    await family.answer("hello")

    assert await cursor_of(family) == last.seq


async def test_results_of_a_turn_that_ends_badly_are_never_sent(family):
    await family.hear("@Andy hi")
    turn, run, _ = await family.start_next()
    await family.take(run, Result(n=1, turn=turn.id, result="half an ans"))

    taken = await family.take(run, TurnEnd(n=2, turn=turn.id, status="error", error="overloaded"))

    assert taken.ended is TurnState.QUEUED
    assert await family.outgoing() == []
    assert await cursor_of(family) == 0
    again = await family.turn(turn.id)
    assert (again.attempt, again.reason) == (2, "overloaded.")
    assert again.not_before_ms == family.clock.now_ms() + 5_000


async def test_a_turn_tried_again_speaks_once(family):
    await family.hear("@Andy hi")
    turn, run, _ = await family.start_next()
    await family.take(run, Result(n=1, turn=turn.id, result="first try"))
    await family.lose(run)
    await family.answer("second try")

    assert await family.deliver_all() == ["second try"]
    assert (await family.turn(turn.id)).state is TurnState.ANSWERED


async def test_a_frame_seen_twice_does_nothing(family):
    await family.hear("@Andy hi")
    turn, run, _ = await family.start_next()
    said = Result(n=1, turn=turn.id, result="hello")
    end = TurnEnd(n=2, turn=turn.id)

    assert await family.take(run, said)
    assert await family.take(run, said) is None
    assert await family.take(run, end)
    assert await family.take(run, said) is None
    assert await family.take(run, end) is None
    assert await family.deliver_all() == ["hello"]


async def test_a_whole_output_read_again_after_a_restart_changes_nothing(family):
    await family.hear("@Andy hi")
    turn, run, _ = await family.start_next()
    output = [
        Ready(n=1),
        Ack(n=2, turn=turn.id),
        Result(n=3, turn=turn.id, result="hello"),
        TurnEnd(n=4, turn=turn.id),
    ]
    for frame in output[:3]:
        await family.take(run, frame)

    for frame in output:
        await family.take(run, frame)

    assert await family.deliver_all() == ["hello"]
    assert (await family.turn(turn.id)).state is TurnState.ANSWERED


@pytest.mark.parametrize("kind", [Ack, Result, TurnEnd, Usage])
async def test_a_frame_of_another_turn_does_nothing(family, kind):
    await family.hear("@Andy hi")
    turn, run, _ = await family.start_next()
    fields = {"result": "not mine"} if kind is Result else {}

    assert await family.take(run, kind(n=1, turn=turn.id + 1, new_session_id="stolen", **fields)) is None

    assert (await family.turn(turn.id)).state is TurnState.RUNNING
    assert await family.outgoing() == []
    assert await session_of(family) is None


async def test_a_container_cannot_end_the_turn_of_another_group(family):
    await family.add_group("work")
    await family.hear("@Andy hi")
    await family.hear("@Andy hi", "work")
    mine, _, _ = await family.start_next()
    _, other_run, _ = await family.start_next("work")

    assert await family.take(other_run, TurnEnd(n=1, turn=mine.id)) is None
    assert (await family.turn(mine.id)).state is TurnState.RUNNING


async def test_what_comes_after_the_end_of_its_turn_is_not_taken(family):
    await family.hear("@Andy hi")
    turn, run, _ = await family.start_next()
    await family.take(run, TurnEnd(n=1, turn=turn.id))

    assert await family.take(run, Result(n=2, turn=turn.id, result="late")) is None
    assert await family.outgoing() == []


async def test_a_turn_with_nothing_to_say_is_answered_and_says_so(family):
    await family.hear("@Andy hi")
    turn = await family.answer()

    ended = await family.turn(turn.id)
    assert (ended.state, ended.reason) == (TurnState.ANSWERED, "nothing to say")


async def test_a_turn_fails_after_six_attempts_and_the_chat_is_told_once(family):
    await family.hear("@Andy hi")
    pauses = []
    for _ in range(6):
        turn, run, _ = await family.start_next()
        before_ms = family.clock.now_ms()
        await family.take(run, TurnEnd(n=1, turn=turn.id, status="error", error="boom"))
        pauses.append((await family.turn(turn.id)).not_before_ms - before_ms)
        if (await family.turn(turn.id)).state is TurnState.QUEUED:
            assert await family.outgoing() == []

    failed = await family.turn(turn.id)
    assert (failed.state, failed.attempt, failed.reason) == (TurnState.FAILED, 6, "boom.")
    assert pauses[:5] == [5_000, 10_000, 20_000, 40_000, 80_000]
    (told,) = await family.deliver_all()
    assert "boom." in told
    assert await family.queued() == []


async def test_an_error_that_no_retry_mends_fails_at_once(family):
    await family.hear("@Andy hi")
    turn, run, _ = await family.start_next()
    await family.lose(run, is_retryable=False)

    assert (await family.turn(turn.id)).state is TurnState.FAILED
    assert len(await family.deliver_all()) == 1


async def test_a_turn_put_back_takes_in_the_one_that_queued_behind_it(family):
    first = await family.hear("@Andy one")
    turn, run, _ = await family.start_next()
    younger = await family.hear("@Andy two")
    await family.lose(run)

    (back,) = await family.queued()

    assert back.id == turn.id == first.turn_id
    assert (back.first_seq, back.last_seq, back.attempt) == (first.seq, younger.seq, 2)
    assert {one.turn_id for one in await family.messages()} == {turn.id}
    _, _, order = await family.start_next()
    assert [one.text for one in order.requests] == ["one", "two"]


async def test_a_session_is_kept_as_soon_as_it_is_told(family):
    await family.hear("@Andy hi")
    _, run, _ = await family.start_next()

    await family.take(run, Heartbeat(n=1, new_session_id="s-1"))

    assert await session_of(family) == "s-1"


async def test_a_lost_session_is_forgotten_so_that_the_retry_starts_afresh(family):
    await family.hear("@Andy hi")
    turn, run, _ = await family.start_next()
    await family.take(run, Ack(n=1, turn=turn.id, new_session_id="s-1"))

    await family.take(
        run, TurnEnd(n=2, turn=turn.id, status="error", error="no such session", code="session_gone")
    )

    assert await session_of(family) is None
    assert (await family.turn(turn.id)).state is TurnState.QUEUED


@pytest.mark.parametrize("code", [None, "session_gone"])
async def test_an_isolated_run_leaves_the_session_of_the_chat_alone(family, code):
    await family.hear("@Andy hi")
    turn, run, _ = await family.start_next()
    await family.take(run, TurnEnd(n=1, turn=turn.id, new_session_id="chat"))
    async with family.database.transaction() as tx:
        await tx.execute(
            "INSERT INTO turns (group_folder, chat_jid, kind, is_isolated, prompt, state, queued_ms,"
            " not_before_ms) VALUES ('family', 'local:family', 'task', 1, 'x', 'queued', 1, 1)"
        )
    (task,) = await family.queued()
    isolated = await family.begin_run(is_isolated=True)
    await family.give(task, isolated)

    status = "error" if code else "success"
    await family.take(isolated, TurnEnd(n=1, turn=task.id, status=status, code=code, new_session_id="task"))

    assert await session_of(family) == "chat"


async def test_a_task_that_fails_for_good_does_not_write_to_the_chat(family):
    async with family.database.transaction() as tx:
        await tx.execute(
            "INSERT INTO turns (group_folder, chat_jid, kind, prompt, state, queued_ms, not_before_ms)"
            " VALUES ('family', 'local:family', 'task', 'x', 'queued', 1, 1)"
        )
    turn, run, _ = await family.start_next()
    await family.lose(run, is_retryable=False)

    assert (await family.turn(turn.id)).state is TurnState.FAILED
    assert await family.outgoing() == []


async def test_a_long_error_becomes_one_short_line(family):
    await family.hear("@Andy hi")
    turn, run, _ = await family.start_next()

    await family.take(run, TurnEnd(n=1, turn=turn.id, status="error", error="a\nb  c " * 500))

    reason = (await family.turn(turn.id)).reason
    assert reason.startswith("a b c a b c")
    assert len(reason) <= 201


async def test_an_acknowledgement_and_what_is_no_answer_leave_the_turn_running(family):
    await family.hear("@Andy hi")
    turn, run, _ = await family.start_next()

    acked = await family.take(run, Ack(n=1, turn=turn.id))
    await family.take(run, Usage(n=2, turn=turn.id, input_tokens=5))
    await family.take(run, FailureFrame(n=3, error="trouble"))

    assert acked.is_acked
    assert (await family.turn(turn.id)).state is TurnState.RUNNING


async def test_a_sign_of_life_of_an_isolated_run_names_no_session(family):
    await family.hear("@Andy hi")
    (turn,) = await family.queued()
    run = await family.begin_run(is_isolated=True)
    await family.give(turn, run)
    async with family.database.transaction() as tx:
        assert not await frame_effects.store_session(tx, run, "its own", now_ms=1)
    assert await session_of(family) is None
