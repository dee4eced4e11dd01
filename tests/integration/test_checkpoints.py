"""How far a session holds a conversation, and how a run went on with it: as the store keeps it."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from agent_runner.wire.frames import Ack, TurnEnd, Usage
from agent_runner.wire.order import RestoreOrder
from orchestrator.containers.ports import Restoration
from orchestrator.domain.values import OFFLINE, Folder, RunId
from orchestrator.store.database import Database, migrations
from orchestrator.store.runs import checkpoints, runs, sessions
from orchestrator.store.runs.checkpoints import TurnCheckpoint
from tests.doubles.scripted_runtime import ScriptedRuntime, scripted_pool, scripted_ports
from tests.support.store_harness import StoreHarness
from tests.support.until import until

FAMILY = Folder("family")


@pytest.fixture
async def family(store_harness: StoreHarness) -> StoreHarness:
    await store_harness.add_group()
    return store_harness


async def a_run(family, **fields):
    """A run as the pool records it."""
    run = replace(await family.begin_run(), id=RunId(f"run-{next(family.numbers)}"), **fields)
    async with family.database.transaction() as tx:
        await runs.begin(tx, replace(run, token_hash=run.id))
    return run


async def answer(family, text, *, session="s-1", run=None, **end):
    """Have one question answered in a session; without a `checkpoint` its end is `u{turn}`."""
    await family.hear(f"@Andy {text}")
    (turn,) = await family.queued()
    run = run or await a_run(family, restore_mode="resume", provider="api", model="opus")
    await family.give(turn, run)
    n = run.last_frame
    await family.take(run, Ack(n=n + 1, turn=turn.id, new_session_id=session))
    await family.take(run, Usage(n=n + 2, turn=turn.id, context_tokens=1234, context_window=200_000))
    fields = {"checkpoint": f"u{turn.id}", **end}
    await family.take(run, TurnEnd(n=n + 3, turn=turn.id, new_session_id=session, **fields))
    return turn.id


async def known(family, session="s-1"):
    async with family.database.reading() as tx:
        return (
            await checkpoints.answered(tx, FAMILY, session),
            await checkpoints.since_start(tx, FAMILY, session),
        )


async def test_a_good_end_says_how_far_its_session_holds_the_conversation(family):
    turn = await answer(family, "hi")
    found, turn_checkpoints = await known(family)
    assert turn_checkpoints == [TurnCheckpoint(turn=turn, uuid=f"u{turn}")]
    assert (found.model, found.provider, found.context_tokens) == ("opus", "api", 1234)
    assert found.at_ms == family.clock.now_ms()


async def test_a_bad_end_says_nothing(family):
    await answer(family, "hi", status="error", error="no")
    assert await known(family) == (None, [])


async def test_an_end_without_a_checkpoint_leaves_the_last_one(family):
    turn = await answer(family, "hi")
    await answer(family, "check", checkpoint=None, note="the check found nothing to do")
    _, turn_checkpoints = await known(family)
    assert turn_checkpoints == [TurnCheckpoint(turn=turn, uuid=f"u{turn}")]


async def test_a_run_apart_from_the_conversation_leaves_no_mark_in_it(family):
    await answer(family, "hi", run=await family.begin_run(is_isolated=True))
    assert await known(family) == (None, [])
    assert await family.rows("SELECT * FROM checkpoints") == []


async def test_a_session_in_which_nothing_was_answered_is_not_known(family):
    await answer(family, "hi")
    async with family.database.transaction() as tx:
        await sessions.put_current(tx, FAMILY, "s-2", now_ms=1)
    assert await known(family, "s-2") == (None, [])


async def test_marks_are_those_since_the_session_began(family):
    await answer(family, "one", session="s-1")
    two = await answer(family, "two", session="s-2")
    offline = await a_run(family, restore_mode="rehydrate", provider=OFFLINE)
    three = await answer(family, "three", session=None, run=offline, checkpoint=None)
    four = await answer(family, "four", session="s-2")
    _, turn_checkpoints = await known(family, "s-2")
    assert [(checkpoint.turn, checkpoint.uuid) for checkpoint in turn_checkpoints] == [
        (two, f"u{two}"),
        (three, None),
        (four, f"u{four}"),
    ]


async def test_the_oldest_marks_give_way(family, monkeypatch):
    monkeypatch.setattr(checkpoints, "MAX_CHECKPOINTS", 3)
    turns = [await answer(family, f"question {number}") for number in range(5)]
    _, turn_checkpoints = await known(family)
    assert [checkpoint.turn for checkpoint in turn_checkpoints] == turns[-3:]


async def test_a_prompt_asks_again_what_failed_and_not_what_was_answered(family):
    await family.hear("@Andy answered")
    await family.answer("So it is.")
    await family.deliver_all()
    await family.hear("@Andy failed")
    failed, run, _ = await family.start_next()
    await family.lose(run, is_retryable=False)
    await family.hear("no question")
    await family.hear("@Andy new")
    (new,) = await family.queued()
    async with family.database.reading() as tx:
        cursor = await sessions.cursor_of(tx, FAMILY)
        again = await checkpoints.turns_in_prompt(tx, new, cursor)
    assert again == [failed.id, new.id]
    _, _, order = await family.start_next()
    assert "failed" in order.prompt
    assert "answered" not in order.prompt


async def test_the_runner_has_the_last_word_on_how_it_went_on(family):
    await family.hear("@Andy hi")
    (turn,) = await family.queued()
    run = await a_run(family, restore_mode="resume", restore_reason="its session holds all of it")
    await family.give(turn, run)
    taken = await family.take(run, Ack(n=1, turn=turn.id, restored="rehydrate"))
    assert taken.restored == "rehydrate"
    taken = await family.take(run, TurnEnd(n=2, turn=turn.id, restored="rehydrate"))
    assert taken.restored is None, "that is no news"
    (row,) = await family.rows("SELECT restore_mode, restore_reason FROM runs WHERE id = ?", run.id)
    assert row == {
        "restore_mode": "rehydrate",
        "restore_reason": "its session was gone when it was to be resumed",
    }


async def test_a_run_that_goes_on_with_nothing_cannot_say_that_it_does(family):
    await family.hear("@Andy hi")
    turn, run, _ = await family.start_next()
    assert (await family.take(run, Ack(n=1, turn=turn.id, restored="resume"))).restored is None
    assert await family.rows("SELECT 1 FROM runs WHERE restore_mode IS NOT NULL") == []


async def test_a_window_is_learned_of_each_model(family):
    await answer(family, "hi")
    async with family.database.reading() as tx:
        assert await runs.window_of(tx, "opus") == 200_000
        assert await runs.window_of(tx, "haiku") is None
        assert await runs.window_of(tx, None) is None


async def test_sessions_from_before_are_taken_to_hold_what_was_answered(tmp_path):
    path = tmp_path / "messages.db"
    with closing(sqlite3.connect(path)) as old:
        for script in migrations()[:8]:
            old.executescript(script)
        old.execute("INSERT INTO sessions VALUES ('family', 's-1', 77)")
        old.execute("PRAGMA user_version = 8")
        old.commit()
    database = await Database.open(path)
    async with database.reading() as tx:
        found = await checkpoints.answered(tx, FAMILY, "s-1")
        assert await checkpoints.since_start(tx, FAMILY, "s-1") == []
    await database.close()
    assert found == checkpoints.AnsweredSession(session_id="s-1", at_ms=77)


# The pool


async def started(family: StoreHarness, tmp_path: Path, restore, *, order=0):
    """Start the queued turn with this tie; return what the container was told, and the row of its run."""
    runtime = ScriptedRuntime()
    async with asyncio.TaskGroup() as tasks:
        pool = scripted_pool(
            family, runtime, tasks, tmp_path, ports=replace(scripted_ports(), restore=restore)
        )
        await pool.start((await family.queued())[0])
        await until(lambda: runtime.started, "the container is started")
        runtime.started[0].end()
    (row,) = await family.rows("SELECT * FROM runs")
    return runtime.orders[0], row


async def test_a_container_is_told_what_was_decided_before_its_run_was_recorded(family, tmp_path):
    async with family.database.transaction() as tx:
        await sessions.put_current(tx, FAMILY, "s-1", now_ms=1)
    await family.hear("@Andy hi")
    seen = []

    async def restore(turn, group, session_id):
        async with family.database.transaction() as tx:  # the lock is free
            seen.append((turn.prompt, group.folder, session_id, await runs.live(tx)))
        return Restoration(
            restore=RestoreOrder(mode="rehydrate", reason="it is old", text="KEPT"),
            decided_on_session=session_id,
            session_id=None,
            model="opus",
            provider="api",
            facts={"messages_in_window": 2},
        )

    with family.bus.listening("conversation.restored") as events:
        order, row = await started(family, tmp_path, restore)
        event = events.get_nowait()
    assert seen == [(None, FAMILY, "s-1", [])]
    assert (order.session_id, order.restore.text) == (None, "KEPT")
    assert {name: row[name] for name in ("restore_mode", "restore_reason", "model", "provider")} == {
        "restore_mode": "rehydrate",
        "restore_reason": "it is old",
        "model": "opus",
        "provider": "api",
    }
    assert (event.detail, event.reason, event.data) == ("rehydrate", "it is old", {"messages_in_window": 2})


async def test_what_was_decided_for_another_session_is_left(family, tmp_path):
    await family.hear("@Andy hi")

    async def restore(turn, group, session_id):
        async with family.database.transaction() as tx:
            await sessions.put_current(tx, FAMILY, "s-2", now_ms=1)
        return Restoration(restore=RestoreOrder(mode="fresh"), decided_on_session=session_id, session_id=None)

    order, row = await started(family, tmp_path, restore)
    assert (order.session_id, order.restore.mode, row["restore_mode"]) == ("s-2", "resume", "resume")


async def test_a_turn_apart_from_the_conversation_restores_nothing(family, tmp_path):
    await family.hear("@Andy hi")
    async with family.database.transaction() as tx:
        await tx.execute("UPDATE turns SET is_isolated = 1")

    async def restore(turn, group, session_id):
        raise AssertionError("not asked")

    order, row = await started(family, tmp_path, restore)
    assert (order.session_id, order.restore, row["restore_mode"]) == (None, RestoreOrder(), None)
