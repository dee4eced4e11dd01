"""Session commands: one outcome each, what was said before them first, nothing merged across them."""

from __future__ import annotations

import pytest

from agent_runner.wire.frames import Result, TurnEnd
from orchestrator.domain.values import LiveRun, RunId, RunState, SessionCommand, TurnState
from orchestrator.inbound import triggers
from orchestrator.inbound.triggers import ONLY_OWNER
from orchestrator.queue import next_turns as lanes
from orchestrator.queue.dispatcher import CLEARED, Containers, Dispatcher
from orchestrator.store.runs import sessions, turns
from tests.support.queue_harness import a_run, a_turn
from tests.support.store_harness import a_group

OWNER = {"is_from_me": True}


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/compact", SessionCommand.COMPACT),
        (" /clear\n", SessionCommand.CLEAR),
        ("@Andy /compact", SessionCommand.COMPACT),
        ("@andy, /clear", SessionCommand.CLEAR),
        ("@Fam: /clear", SessionCommand.CLEAR),
        ("/Clear", None),
        ("/clear everything", None),
        ("please /clear", None),
        (", /clear", None),
        ("/compact /clear", None),
        ("compact", None),
        ("@Bob /clear", None),
    ],
)
def test_a_command_is_the_whole_message_and_exact(text, command):
    assert triggers.session_command(text, a_group(trigger="@Fam"), name="Andy") is command


@pytest.fixture
async def family(store_harness):
    await store_harness.add_group()
    return store_harness


def a_dispatcher(store_harness, live=()):
    closed = []

    async def close(run_id):
        closed.append(run_id)

    async def never(*_):
        raise AssertionError("not called")

    dispatcher = Dispatcher(
        store_harness.database,
        Containers(live=lambda: live, start=never, hand_over=never, close=close),
        cap=lambda: 5,
        clock=store_harness.clock,
        wakeups=store_harness.wakeups,
    )
    return dispatcher, closed


async def test_what_is_said_after_a_command_does_not_join_what_was_said_before(family):
    first = await family.hear("@Andy one")
    command = await family.hear("/compact", **OWNER)
    second = await family.hear("@Andy two")
    third = await family.hear("and three")
    assert len({first.turn_id, command.turn_id, second.turn_id}) == 3
    assert third.turn_id == second.turn_id

    _, _, order = await family.start_next()
    assert "@Andy one" in order.prompt
    assert "two" not in order.prompt


async def test_a_compact_turn_is_a_command_and_its_text_is_read_by_nobody(family):
    await family.hear("lunch?")
    await family.hear("/compact", **OWNER)
    turn, run, order = await family.start_next()
    assert (order.command, order.prompt, order.requests) == ("compact", "/compact", ())
    await family.take(run, Result(n=1, turn=turn.id, result="done"))
    await family.take(run, TurnEnd(n=2, turn=turn.id))
    assert (await family.turn(turn.id)).state is TurnState.ANSWERED

    await family.hear("@Andy go on")
    _, _, order = await family.start_next()
    assert "lunch?" in order.prompt, "it was not seen yet"
    assert "/compact" not in order.prompt


async def test_a_question_put_back_takes_in_nothing_from_beyond_a_command(family):
    await family.hear("@Andy one")
    question, run, _ = await family.start_next()
    await family.hear("/clear", **OWNER)
    later = await family.hear("@Andy two")
    await family.lose(run)
    queued = await family.queued()
    assert queued[0].id == question.id
    assert len(queued) == 3
    assert (await family.turn(later.turn_id)).first_seq == later.seq


async def test_a_command_put_back_takes_in_nothing(family):
    await family.hear("/compact", **OWNER)
    command, run, _ = await family.start_next()
    later = await family.hear("@Andy two")
    await family.lose(run)
    assert [turn.id for turn in await family.queued()] == [command.id, later.turn_id]


async def test_clearing_forgets_the_session_and_what_was_said_before(family):
    async with family.database.transaction() as tx:
        await sessions.put_current(tx, a_group().folder, "session-1", now_ms=1)
    await family.hear("old talk")
    accepted = await family.hear("/clear", **OWNER)
    dispatcher, _ = a_dispatcher(family)
    await dispatcher._plan_and_act()

    turn = await family.turn(accepted.turn_id)
    assert (turn.state, turn.reason) == (TurnState.ANSWERED, "cleared")
    assert [one.text for one in await family.outgoing()] == [CLEARED]
    async with family.database.reading() as tx:
        assert await sessions.current(tx, turn.folder) is None
        assert await turns.unsettled(tx) == []
    await family.hear("@Andy new")
    _, _, order = await family.start_next()
    assert "old talk" not in order.prompt


async def test_clearing_waits_until_what_remembers_has_ended(family):
    await family.hear("/clear", **OWNER)
    run = LiveRun(
        id=RunId("r1"), folder=a_group().folder, is_isolated=False, state=RunState.IDLE, started_ms=0
    )
    dispatcher, closed = a_dispatcher(family, [run])
    await dispatcher._plan_and_act()
    assert closed == ["r1"]
    assert len(await family.queued()) == 1


async def test_a_stranger_is_refused_and_told_only_when_heard(family):
    for text, told in (("/clear", 0), ("@Andy /clear", 1), ("@Andy /clear", 2)):
        accepted = await family.hear(text)
        assert (accepted.outcome, accepted.reason) == ("ignored", ONLY_OWNER)
        assert len(await family.outgoing()) == told
    assert await family.queued() == []


async def test_in_main_anyone_commands(store_harness):
    await store_harness.add_group("main", is_main=True, requires_trigger=False)
    assert (await store_harness.hear("/compact", "main")).outcome == "queued"


async def test_a_command_that_comes_again_is_one_turn(family):
    one = await family.hear("/compact", id="same", **OWNER)
    again = await family.hear("/compact", id="same", **OWNER)
    assert (again.outcome, again.turn_id) == ("duplicate", one.turn_id)
    assert len(await family.queued()) == 1


# In the lanes


def test_a_clearing_turn_takes_no_slot_and_no_container():
    clear = a_turn(1, command=SessionCommand.CLEAR)
    busy = [a_run(f"other{n}", f"other{n}", state=RunState.BUSY) for n in range(5)]
    assert lanes.plan([clear], busy, cap=5, now_ms=0).actions == (lanes.ClearConversation(1),)


@pytest.mark.parametrize("state", [RunState.IDLE, RunState.CLOSING])
def test_a_clearing_turn_waits_for_the_containers_of_its_session(state):
    clear = a_turn(1, command=SessionCommand.CLEAR)
    runs = [a_run("mine", state=state), a_run("idle", "work")]
    actions = lanes.plan([clear], runs, cap=2, now_ms=0).actions
    assert actions == ((lanes.CloseContainer("mine"),) if state is RunState.IDLE else ())


def test_a_compacting_turn_goes_to_the_container_that_remembers():
    compact = a_turn(1, command=SessionCommand.COMPACT)
    assert lanes.plan([compact], [a_run("mine")], cap=5, now_ms=0).actions == (lanes.HandOverTurn(1, "mine"),)


def test_a_chat_keeps_its_order_while_its_first_question_waits_to_be_tried_again():
    waiting = a_turn(1, not_before_ms=5_000)
    clear = a_turn(2, command=SessionCommand.CLEAR)
    later = a_turn(3, after_command=2)
    plan = lanes.plan([waiting, clear, later], [], cap=5, now_ms=0)
    assert (plan.actions, plan.look_again_ms) == ((), 5_000)
    assert lanes.plan([waiting, clear, later], [], cap=5, now_ms=5_000).actions == (lanes.StartContainer(1),)
