"""What went wrong in NanoClaw and is tried nowhere else: see docs/reference-weaknesses.md."""

from __future__ import annotations

import itertools
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent_runner.inbox import TurnInbox
from agent_runner.wire.files import write_whole
from agent_runner.wire.frames import Ack, Heartbeat, Result, TurnEnd
from agent_runner.wire.order import CLOSE_FILE, CloseOrder, TurnOrder
from orchestrator.containers import timeouts
from orchestrator.domain.values import Folder, OutboxState, RunState, TurnKind, TurnState
from orchestrator.queue import next_turns
from orchestrator.store.database import Database
from orchestrator.store.runs import sessions
from tests.processes.andy import AndyProcess, until
from tests.support.homes import furnish
from tests.support.queue_harness import a_run, a_turn
from tests.support.store_harness import StoreHarness, a_group
from tests.support.task_harness import HOUR_MS, TaskHarness

LIMITS = timeouts.RunTimeouts(idle_ms=60_000, age_ms=1_800_000, turn_ms=1_800_000)


@pytest.fixture
async def family(store_harness: StoreHarness) -> StoreHarness:
    await store_harness.add_group()
    return store_harness


@asynccontextmanager
async def restarted(family, database_path):
    """The host as it is after a crash: what it knows is what the store has."""
    database = await Database.open(database_path)
    try:
        yield StoreHarness(database, family.clock, numbers=itertools.count(100))
    finally:
        await database.close()


async def cursor_of(family):
    async with family.database.reading() as tx:
        return await sessions.cursor_of(tx, Folder("family"))


async def follow_up(family, run, text):
    """A second turn handed to a container that has answered one."""
    await family.hear(text)
    (turn,) = await family.queued()
    return turn, await family.give(turn, run)


async def test_a_follow_up_that_its_container_never_read_is_asked_again(family, database_path):
    await family.hear("@Andy one")
    turn, run, _ = await family.start_next()
    await family.take(run, Result(n=1, turn=turn.id, result="first"))
    await family.take(run, TurnEnd(n=2, turn=turn.id))
    before = await cursor_of(family)
    lost, _ = await follow_up(family, run, "@Andy two")
    assert await cursor_of(family) == before, "what is only handed over is not done"

    async with restarted(family, database_path) as again:
        await again.lose(run)
        turn, _, order = await again.start_next()
    assert turn.id == lost.id
    assert [one.text for one in order.requests] == ["two"]


async def test_an_error_in_a_later_turn_of_a_container_is_an_error_all_the_same(family):
    await family.hear("@Andy one")
    turn, run, _ = await family.start_next()
    await family.take(run, Result(n=1, turn=turn.id, result="first"))
    await family.take(run, TurnEnd(n=2, turn=turn.id))
    second, _ = await follow_up(family, run, "@Andy two")
    await family.take(run, TurnEnd(n=3, turn=second.id, status="error", error="overloaded"))

    assert (await family.turn(second.id)).state is TurnState.QUEUED
    assert (await family.turn(second.id)).attempt == 2


def test_no_turn_is_handed_to_a_container_that_was_asked_to_close():
    closing = a_run("r", state=RunState.CLOSING)
    decided = next_turns.plan([a_turn(1)], [closing], cap=5, now_ms=0)

    assert not any(isinstance(one, next_turns.HandOverTurn) for one in decided.actions)


async def test_a_turn_that_came_before_the_wish_to_close_is_answered_first(tmp_path):
    turn = TurnOrder(run="r", turn=2, kind="chat", prompt="hi")
    write_whole(tmp_path / CLOSE_FILE, CloseOrder(runs=("r",)).to_json())
    write_whole(tmp_path / "1763800000000-abcd.json", turn.to_json())
    inbox = TurnInbox(tmp_path, "r", handled={1})

    assert await inbox.next() == turn
    assert await inbox.next() is None


@pytest.mark.parametrize("text", ["andy: are you there?", "Andy: hello", "ANDY: 100% of_it"])
async def test_who_writes_like_the_assistant_is_heard(family, text):
    await family.add_group("open", requires_trigger=False)
    heard = await family.hear(text, "open")

    assert heard.outcome == "queued"
    _, _, order = await family.start_next("open")
    assert text in order.prompt


async def test_what_waits_to_be_sent_is_there_after_a_restart(family, database_path):
    await family.hear("@Andy hi")
    await family.answer("hello")
    assert [one.state for one in await family.outgoing()] == [OutboxState.PENDING]

    async with restarted(family, database_path) as again:
        assert await again.deliver_all() == ["hello"]


def test_a_finished_task_does_not_hold_the_chat_until_its_container_is_gone():
    done = a_run("task", state=RunState.IDLE, is_isolated=True)
    assert next_turns.plan([a_turn(1)], [done], cap=5, now_ms=0).actions == (next_turns.StartContainer(1),)
    assert next_turns.plan([a_turn(1)], [done], cap=1, now_ms=0).actions == (
        next_turns.CloseContainer("task"),
    )


def test_a_task_that_said_nothing_closes_as_soon_as_one_that_spoke(clock):
    vitals = timeouts.Vitals(
        state=RunState.IDLE,
        is_isolated=True,
        started_ms=clock.steady_ms(),
        last_frame_ms=clock.steady_ms() + timeouts.TASK_IDLE_MS,
        state_since_ms=clock.steady_ms(),
    )
    later = clock.steady_ms() + timeouts.TASK_IDLE_MS + 1
    verdict = timeouts.judge(vitals, LIMITS, now_ms=later)

    assert verdict is not None
    assert not verdict.kill


async def test_words_in_the_middle_of_a_turn_do_not_make_its_container_idle(family):
    await family.hear("@Andy hi")
    turn, run, _ = await family.start_next()
    taken = [
        await family.take(run, frame)
        for frame in (Ack(n=1, turn=turn.id), Result(n=2, turn=turn.id, result="so far"), Heartbeat(n=3))
    ]

    assert [one.ended for one in taken] == [None, None, None]
    assert (await family.turn(turn.id)).state is TurnState.RUNNING


def test_a_container_that_has_a_turn_is_not_closed_as_idle(clock):
    vitals = timeouts.Vitals(
        state=RunState.BUSY,
        is_isolated=False,
        started_ms=clock.steady_ms(),
        last_frame_ms=clock.steady_ms() + 10 * LIMITS.idle_ms,
        state_since_ms=clock.steady_ms(),
    )

    assert timeouts.judge(vitals, LIMITS, now_ms=clock.steady_ms() + 10 * LIMITS.idle_ms) is None


async def test_a_task_in_the_groups_context_goes_on_in_its_session(family):
    harness = TaskHarness(family)
    await harness.schedule("interval", "1h", context_mode="group")
    (turn,) = await harness.after(HOUR_MS)
    assert (turn.kind, turn.is_isolated) == (TurnKind.TASK, False)
    turn, run = await harness.begin()
    await family.take(run, TurnEnd(n=2, turn=turn.id, new_session_id="after-the-task"))

    async with family.database.reading() as tx:
        assert await sessions.current(tx, Folder("family")) == "after-the-task"


@pytest.fixture
def cursed(tmp_path: Path) -> AndyProcess:
    andy = AndyProcess(tmp_path / "home", environment={"MAX_CONCURRENT_CONTAINERS": "1"})
    andy.program = [sys.executable, str(Path(__file__).with_name("host_with_bugs.py"))]
    furnish(andy.home, [a_group("other", requires_trigger=False)])
    return andy


@pytest.mark.host
def test_a_bug_over_one_output_costs_its_group_an_attempt_and_nobody_a_slot(cursed: AndyProcess) -> None:
    with cursed as andy:
        asked = andy.say("echo cursed", wait=0)["id"]
        until(lambda: andy.rows("SELECT 1 FROM turns WHERE attempt > 1"), what="the attempt has ended")
        assert andy.say("echo free", group="other")["reply"] == "free"
        (turn,) = andy.rows("SELECT reason FROM turns WHERE group_folder = 'main'")
        assert turn["reason"] == "something went wrong inside Andy."
        (andy.home / "cured").touch()
        assert andy.until_settled(asked)["reply"] == "cursed"


@pytest.mark.host
def test_a_channel_that_does_not_come_up_keeps_nobody_waiting(cursed: AndyProcess) -> None:
    with cursed as andy:
        assert andy.say("echo here")["reply"] == "here"
        until(lambda: andy.events().count("loop.restarts") == 3, what="it was tried again")
        assert andy.say("echo still")["reply"] == "still"


@pytest.mark.host
def test_no_log_holds_what_was_said_not_even_where_it_failed(cursed: AndyProcess) -> None:
    with cursed as andy:
        andy.say("echo cursed by a secret word", wait=0)
        until(lambda: andy.rows("SELECT 1 FROM turns WHERE attempt > 1"), what="the attempt has ended")
        logs = [andy.log, *(andy.home / "data" / "logs").rglob("*.log")]
        assert len(logs) > 1
        assert not any("secret word" in log.read_text() for log in logs)
