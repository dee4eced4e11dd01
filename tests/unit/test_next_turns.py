from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.domain.values import RunState, SessionCommand, TurnKind, TurnState
from orchestrator.queue import next_turns
from orchestrator.queue.next_turns import (
    AGEING_MS,
    LONGEST_PAUSE_MS,
    PLACE_NOTICE_AFTER_MS,
    ClearConversation,
    CloseContainer,
    HandOverTurn,
    NotifyPlace,
    StartContainer,
)
from tests.support.queue_harness import Harness, a_run, a_turn

NOW = 1_000_000
GROUPS = ["a", "b", "c", "d"]


def decide(turns, runs=(), *, cap=5, overlap=0, now_ms=NOW):
    return next_turns.plan(turns, runs, cap=cap, overlap=overlap, now_ms=now_ms)


def test_a_turn_without_a_container_starts_one():
    assert decide([a_turn(1)]).actions == (StartContainer(1),)


def test_a_live_container_of_the_group_gets_the_turn():
    assert decide([a_turn(1)], [a_run("r")]).actions == (HandOverTurn(1, "r"),)


def test_a_group_whose_turn_runs_waits_with_the_next():
    turns = [a_turn(1, state=TurnState.RUNNING, run_id="r"), a_turn(2)]

    assert decide(turns, [a_run("r", state=RunState.BUSY)]).actions == ()


def test_a_container_that_still_starts_is_not_joined_by_a_second():
    assert decide([a_turn(1)], [a_run("r", state=RunState.STARTING)]).actions == ()


def test_a_turn_for_which_a_container_is_being_made_is_started_once_and_holds_its_slot():
    making = a_run("r", state=RunState.STARTING, turn_id=1)
    other = a_turn(2, "work", queued_ms=NOW)

    assert decide([a_turn(1)], [making]).actions == ()
    assert decide([a_turn(1), other], [making], cap=1).actions == ()
    assert decide([a_turn(1), other], [making], cap=2).actions == (StartContainer(2),)


def test_a_chat_turn_waits_for_no_upkeep_that_is_only_being_made():
    worker = a_turn(1, kind=TurnKind.WORKER, is_isolated=True)
    making = a_run("r", state=RunState.STARTING, is_isolated=True, turn_id=1)

    assert decide([worker, a_turn(2)], [making]).actions == (StartContainer(2),)


def test_at_32_a_chat_turn_waits_for_no_upkeep_of_its_group():
    worker = a_turn(1, kind=TurnKind.WORKER, state=TurnState.RUNNING, run_id="r", is_isolated=True)
    busy = a_run("r", state=RunState.BUSY, is_isolated=True)

    assert decide([worker, a_turn(2)], [busy]).actions == (StartContainer(2),)
    assert decide([worker, a_turn(2)], [busy, a_run("chat")]).actions == (HandOverTurn(2, "chat"),)


def test_nothing_else_runs_beside_an_upkeep_and_no_upkeep_beside_a_chat():
    worker = a_turn(1, kind=TurnKind.WORKER, state=TurnState.RUNNING, run_id="r", is_isolated=True)
    busy = a_run("r", state=RunState.BUSY, is_isolated=True)
    chat = a_turn(2, state=TurnState.RUNNING, run_id="c")

    assert decide([worker, a_turn(2, kind=TurnKind.TASK)], [busy]).actions == ()
    assert decide([worker, chat, a_turn(3)], [busy, a_run("c", state=RunState.BUSY)]).actions == ()
    later = a_turn(3, kind=TurnKind.WORKER, is_isolated=True)
    assert decide([chat, later], [a_run("c", state=RunState.BUSY)]).actions == ()


def test_a_restricted_turn_runs_beside_nothing_of_its_group():
    guest = a_turn(1, is_isolated=True, is_restricted=True)
    assert decide([guest], []).actions == (StartContainer(1),)
    for state, more in ((RunState.IDLE, {}), (RunState.READY, {}), (RunState.READY, {"is_isolated": True})):
        assert decide([guest], [a_run("r", state=state, **more)]).actions == (CloseContainer("r"),)
    for state in (RunState.CLOSING, RunState.STARTING, RunState.BUSY):
        assert decide([guest], [a_run("r", state=state)]).actions == (), state
    worker = a_turn(2, kind=TurnKind.WORKER, state=TurnState.RUNNING, run_id="r", is_isolated=True)
    assert decide([worker, guest], [a_run("r", state=RunState.BUSY, is_isolated=True)]).actions == ()
    assert decide([guest], [a_run("r", "other")]).actions == (StartContainer(1),)


def test_nothing_of_a_group_starts_until_its_restricted_container_is_gone():
    kept = {"is_isolated": True, "is_restricted": True}
    ready = a_run("mine", state=RunState.READY)
    for turn in (a_turn(1), a_turn(1, is_isolated=True, is_restricted=True)):
        assert decide([turn], [a_run("r", **kept)]).actions == (CloseContainer("r"),)
        assert decide([turn], [a_run("r", state=RunState.CLOSING, **kept)]).actions == ()
    assert decide([a_turn(1)], [a_run("r", state=RunState.CLOSING, **kept), ready]).actions == ()


def test_what_was_given_up_holds_no_slot_and_its_turn_is_tried():
    assert decide([a_turn(1)], [a_run("r", state=RunState.LEFT)], cap=1).actions == (StartContainer(1),)


def test_a_turn_before_its_time_waits_and_tells_when_to_look_again():
    decided = decide([a_turn(1, not_before_ms=NOW + 5_000)])

    assert decided == next_turns.QueuePlan(actions=(), look_again_ms=NOW + 5_000)


def test_a_turn_is_tried_at_its_time_and_at_once_when_the_clock_was_set_back():
    for ahead, is_tried in [(0, True), (1, False), (LONGEST_PAUSE_MS, False), (LONGEST_PAUSE_MS + 1, True)]:
        assert bool(decide([a_turn(1, not_before_ms=NOW + ahead)]).actions) == is_tried, ahead


def test_two_turns_of_their_own_never_run_at_once_whatever_became_of_the_run_of_one():
    task = {"kind": TurnKind.TASK, "is_isolated": True}
    running = a_turn(1, state=TurnState.RUNNING, run_id="r", **task)

    assert (
        decide([running, a_turn(2, **task)], [a_run("r", state=RunState.LEFT, is_isolated=True)]).actions
        == ()
    )
    starting = a_run("r", state=RunState.STARTING, is_isolated=True)
    assert decide([a_turn(2, **task)], [starting]).actions == ()
    other = a_turn(3, "other", state=TurnState.RUNNING, run_id="o")
    assert (
        decide([other, a_turn(2, **task)], [starting, a_run("o", "other", state=RunState.BUSY)]).actions == ()
    )


def test_a_task_that_waits_for_upkeep_holds_up_no_other_group():
    worker = a_turn(1, kind=TurnKind.WORKER, state=TurnState.RUNNING, run_id="r", is_isolated=True)
    busy = a_run("r", state=RunState.BUSY, is_isolated=True)
    waits = a_turn(2, kind=TurnKind.TASK, queued_ms=NOW - 9)
    other = a_turn(3, "other", kind=TurnKind.TASK, queued_ms=NOW - 1)

    assert decide([worker, waits, other], [busy]).actions == (StartContainer(3),)


def test_an_earlier_question_that_is_tried_later_holds_up_its_chat_and_no_other():
    later = a_turn(1, chat_jid="local:a", not_before_ms=NOW + 5_000)

    assert decide([later, a_turn(2, chat_jid="local:a")]).actions == ()
    assert decide([later, a_turn(2, chat_jid="local:b")]).actions == (StartContainer(2),)
    assert decide([later, a_turn(2, "other", chat_jid="local:a")]).actions == (StartContainer(2),)
    assert decide([later, a_turn(2, chat_jid="local:a", kind=TurnKind.TASK)]).actions == (StartContainer(2),)
    task = a_turn(1, chat_jid="local:a", kind=TurnKind.TASK, not_before_ms=NOW + 5_000)
    assert decide([task, a_turn(2, chat_jid="local:a")]).actions == (StartContainer(2),)


def test_nothing_of_a_group_goes_past_a_command_and_the_command_past_nothing_asked_before():
    command = a_turn(2, chat_jid="local:b", command=SessionCommand.CLEAR)
    before = a_turn(1, chat_jid="local:a", not_before_ms=NOW + 5_000)
    after = a_turn(3, chat_jid="local:a", after_command=1)
    rest = a_turn(4, chat_jid="local:a")

    assert decide([before, command]).actions == ()
    assert decide([before, command, after]).actions == ()
    assert decide([command, after]).actions == (ClearConversation(2),)
    assert decide([command, rest]).actions == (StartContainer(4),), "it was asked before the command"


def test_a_conversation_is_cleared_once_no_run_remembers_it_and_without_a_slot():
    clear = a_turn(1, command=SessionCommand.CLEAR, queued_ms=NOW - 5)
    busy = a_run("o", "other", state=RunState.BUSY)

    assert decide([clear], [busy], cap=1).actions == (ClearConversation(1),)
    assert decide([clear], [a_run("r", is_isolated=True)]).actions == (ClearConversation(1),)
    assert decide([clear], [a_run("r"), a_run("o", "other")]).actions == (CloseContainer("r"),)
    assert decide([clear], [a_run("r", state=RunState.CLOSING)]).actions == ()
    next_one = a_turn(2, "new", queued_ms=NOW)
    assert decide([clear, next_one], [a_run("r"), a_run("o", "other")], cap=2).actions == (
        CloseContainer("r"),
    )


def test_closing_containers_hold_their_slots_until_they_are_gone():
    closing = [a_run(f"r{n}", f"g{n}", state=RunState.CLOSING) for n in range(2)]

    assert decide([a_turn(1, queued_ms=NOW)], closing, cap=2).actions == ()


def test_chat_goes_before_task_before_worker_before_auto():
    kinds = [TurnKind.AUTO, TurnKind.WORKER, TurnKind.TASK, TurnKind.CHAT]
    turns = [a_turn(n, f"g{n}", kind=kind, queued_ms=NOW - 100 + n) for n, kind in enumerate(kinds)]

    assert decide(turns).actions == (
        StartContainer(3),
        StartContainer(2),
        StartContainer(1),
        StartContainer(0),
    )


def test_within_a_kind_the_first_to_come_goes_first():
    turns = [a_turn(1, "late", queued_ms=NOW - 1), a_turn(2, "early", queued_ms=NOW - 9)]

    assert decide(turns, cap=1).actions[0] == StartContainer(2)


def test_who_waited_five_minutes_goes_to_the_front():
    old = a_turn(1, "loop", kind=TurnKind.AUTO, queued_ms=NOW - AGEING_MS)
    fresh = a_turn(2, "chat", queued_ms=NOW - 1)

    assert decide([fresh, old], cap=1).actions[0] == StartContainer(1)
    assert decide([fresh, old], cap=1, now_ms=NOW - 1).actions[0] == StartContainer(2)


def test_an_isolated_turn_gets_a_container_of_its_own():
    task = a_turn(1, kind=TurnKind.TASK, is_isolated=True)

    assert decide([task], [a_run("chat")]).actions == (StartContainer(1),)
    assert decide([a_turn(2)], [a_run("task", is_isolated=True)]).actions == (StartContainer(2),)


def test_a_worn_container_ends_before_its_group_starts_another():
    worn = a_run("r", is_worn=True)

    assert decide([a_turn(1)], [worn]).actions == (CloseContainer("r"),)
    assert decide([a_turn(1)], [a_run("r", state=RunState.CLOSING)]).actions == ()
    assert decide([a_turn(1)]).actions == (StartContainer(1),)


def test_a_waiting_group_takes_the_slot_of_the_longest_idle():
    idle = [a_run("young", "a", idle_since_ms=900), a_run("old", "b", idle_since_ms=100)]

    assert decide([a_turn(1, "c", queued_ms=NOW)], idle, cap=2).actions == (CloseContainer("old"),)


def test_only_as_many_idle_containers_close_as_turns_wait():
    runs = [a_run(f"r{n}", f"g{n}", idle_since_ms=n) for n in range(4)]
    turns = [a_turn(1, "x", queued_ms=NOW), a_turn(2, "y", queued_ms=NOW)]

    assert decide(turns, runs, cap=4).actions == (CloseContainer("r0"), CloseContainer("r1"))


def test_a_slot_that_is_coming_is_counted_on():
    runs = [a_run("going", "a", state=RunState.CLOSING), a_run("idle", "b")]

    assert decide([a_turn(1, "c", queued_ms=NOW)], runs, cap=2).actions == ()


def test_a_worn_container_that_closes_for_its_own_group_is_not_the_slot_of_another():
    runs = [a_run("worn", "a", is_worn=True), a_run("idle", "b", idle_since_ms=5)]
    turns = [a_turn(1, "a", queued_ms=NOW - 2), a_turn(2, "c", queued_ms=NOW - 1)]

    assert decide(turns, runs, cap=2).actions == (CloseContainer("worn"), CloseContainer("idle"))


def test_a_busy_group_gives_its_slot_to_who_came_before_its_next_turn():
    turns = [a_turn(1, "quiet", queued_ms=NOW - 2), a_turn(2, "busy", queued_ms=NOW - 1)]

    assert decide(turns, [a_run("r", "busy")], cap=1).actions == (CloseContainer("r"),)


def test_a_turn_that_came_first_keeps_its_groups_container():
    turns = [a_turn(1, "busy", queued_ms=NOW - 2), a_turn(2, "quiet", queued_ms=NOW - 1)]

    assert decide(turns, [a_run("r", "busy")], cap=1).actions == (HandOverTurn(1, "r"),)


def test_a_container_nobody_wants_goes_before_one_that_is_wanted():
    runs = [a_run("wanted", "busy", idle_since_ms=1), a_run("unwanted", "gone", idle_since_ms=9)]
    turns = [a_turn(1, "quiet", queued_ms=NOW - 2), a_turn(2, "busy", queued_ms=NOW - 1)]

    assert set(decide(turns, runs, cap=2).actions) == {CloseContainer("unwanted"), HandOverTurn(2, "wanted")}


def test_more_containers_than_may_live_are_closed_until_one_can_start():
    runs = [a_run(f"r{n}", f"g{n}", idle_since_ms=n) for n in range(3)]

    assert decide([a_turn(1, "x", queued_ms=NOW)], runs, cap=2).actions == (
        CloseContainer("r0"),
        CloseContainer("r1"),
    )


def test_a_container_that_was_started_ahead_gets_its_groups_turn():
    ready = a_run("r", state=RunState.READY)
    assert decide([a_turn(1)], [ready]).actions == (HandOverTurn(1, "r"),)
    apart = a_run("r", state=RunState.READY, is_isolated=True)
    task = a_turn(1, kind=TurnKind.TASK, is_isolated=True)
    assert decide([task], [apart]).actions == (HandOverTurn(1, "r"),)
    assert decide([task], [ready]).actions == (StartContainer(1),), "it has booted on the chat's session"
    assert decide([a_turn(1)], [apart]).actions == (StartContainer(1),)
    upkeep = a_turn(1, kind=TurnKind.WORKER, is_isolated=True)
    assert decide([upkeep], [apart]).actions == (StartContainer(1),), "it has other instructions"


def test_a_container_that_was_started_ahead_ends_before_its_group_starts_another():
    worn = a_run("r", state=RunState.READY, is_worn=True)
    assert decide([a_turn(1)], [worn]).actions == (CloseContainer("r"),)


def test_who_waits_takes_the_slot_of_what_was_started_ahead_before_that_of_the_idle():
    runs = [a_run("idle", "a"), a_run("ahead", "b", state=RunState.READY, idle_since_ms=9_000)]
    assert decide([a_turn(1, queued_ms=NOW)], runs, cap=2).actions == (CloseContainer("ahead"),)


def test_a_container_starts_while_another_ends_as_often_as_may_be():
    idle = [a_run(f"r{n}", f"g{n}", idle_since_ms=n) for n in range(3)]
    turns = [a_turn(n, f"new{n}", queued_ms=NOW) for n in range(1, 4)]
    made = decide(turns, idle, cap=3, overlap=2).actions
    assert made == (
        CloseContainer("r0"),
        StartContainer(1),
        CloseContainer("r1"),
        StartContainer(2),
        CloseContainer("r2"),
    )
    closing = [a_run(f"r{n}", f"g{n}", state=RunState.CLOSING) for n in range(2)]
    assert decide([a_turn(1)], closing, cap=2, overlap=1).actions == (StartContainer(1),)
    assert decide([a_turn(1, queued_ms=NOW)], closing, cap=1, overlap=1).actions == ()


def test_a_slot_that_ends_beside_others_is_counted_once():
    runs = [a_run("going", "a", state=RunState.CLOSING), a_run("idle", "b")]

    assert decide([a_turn(1, "new", queued_ms=NOW)], runs, cap=1, overlap=1).actions == (
        CloseContainer("idle"),
    )
    turns = [a_turn(n, f"new{n}", queued_ms=NOW) for n in range(1, 5)]
    made = decide(turns, runs, cap=4).actions
    assert made == (StartContainer(1), StartContainer(2), CloseContainer("idle"))


def test_who_waits_for_its_own_run_to_end_counts_on_one_slot_and_leaves_the_others():
    own = a_turn(1, "a", queued_ms=NOW - 5)
    others = [a_turn(2, "b", queued_ms=NOW - 4), a_turn(3, "c", queued_ms=NOW - 3)]
    going = a_run("r", "a", state=RunState.CLOSING)

    assert decide([own, *others], [going], cap=2).actions == (StartContainer(2),)
    idle = [a_run("o", "x", idle_since_ms=1), a_run("p", "y", idle_since_ms=2)]
    assert decide([own, others[0]], [going, *idle], cap=3).actions == (CloseContainer("o"),)


def test_the_slot_that_a_worn_run_gives_up_at_once_is_held_for_its_own_group():
    own, other = a_turn(1, "a", queued_ms=NOW - 5), a_turn(2, "b", queued_ms=NOW - 4)
    worn = a_run("r", "a", is_worn=True)

    assert decide([own, other], [worn], cap=1, overlap=1).actions == (CloseContainer("r"),)
    made = decide([own, other], [worn, a_run("o", "x")], cap=2, overlap=2).actions
    assert made == (CloseContainer("r"), CloseContainer("o"), StartContainer(2))


def test_one_that_ends_beside_others_makes_no_room_where_more_live_than_may():
    runs = [a_run(f"r{n}", f"g{n}", idle_since_ms=n) for n in range(3)]

    made = decide([a_turn(1, "new", queued_ms=NOW)], runs, cap=1, overlap=2).actions
    assert made == tuple(CloseContainer(f"r{n}") for n in range(3))


def test_a_place_is_told_after_ten_seconds_and_once():
    busy = [a_run("r", "other", state=RunState.BUSY)]
    turn = a_turn(1, queued_ms=NOW - PLACE_NOTICE_AFTER_MS)
    told = a_turn(1, queued_ms=NOW - PLACE_NOTICE_AFTER_MS, is_place_notified=True)

    assert decide([turn], busy, cap=1).actions == (NotifyPlace(1, 1),)
    assert decide([told], busy, cap=1) == next_turns.QueuePlan(actions=()), (
        "there is nothing to look at again"
    )


def test_before_ten_seconds_nobody_is_told_but_the_lanes_look_again_then():
    busy = [a_run("r", "other", state=RunState.BUSY)]

    decided = decide([a_turn(1, queued_ms=NOW - 1)], busy, cap=1)

    assert decided == next_turns.QueuePlan(actions=(), look_again_ms=NOW - 1 + PLACE_NOTICE_AFTER_MS)


def test_places_count_all_who_wait_and_only_chats_are_told():
    busy = [a_run("r", "other", state=RunState.BUSY)]
    turns = [
        a_turn(1, "a", queued_ms=NOW - 30_000, is_place_notified=True),
        a_turn(2, "b", queued_ms=NOW - 20_000),
        a_turn(3, "c", queued_ms=NOW - 40_000, kind=TurnKind.TASK),
    ]

    assert decide(turns, busy, cap=1).actions == (NotifyPlace(2, 2),)


def test_who_waits_for_its_own_container_to_end_is_not_told_that_hands_are_busy():
    closing = [a_run("r", state=RunState.CLOSING)]

    assert decide([a_turn(1, queued_ms=NOW - 60_000)], closing).actions == ()


kinds = st.sampled_from(list(TurnKind))
asks = st.tuples(st.just("ask"), st.sampled_from(GROUPS), kinds, st.booleans())
signs = st.tuples(st.just("expect"), st.sampled_from(GROUPS), st.booleans())
others = st.tuples(st.sampled_from(["record", "finish", "end", "wear", "pass"]), st.integers(0, 10))
scripts = st.lists(st.one_of(asks, signs, others), max_size=60)


def play(harness, event):  # noqa: C901 - one case an event
    match event:
        case ("ask", folder, kind, isolated):
            harness.ask(folder, kind, is_isolated=isolated and kind is not TurnKind.CHAT)
        case ("expect", folder, isolated):
            harness.expect(folder, is_isolated=isolated)
        case ("record", pick):
            if starting := harness.in_state(RunState.STARTING):
                harness.record(starting[pick % len(starting)])
        case ("finish", pick):
            if running := harness.running():
                harness.finish(running[pick % len(running)].id)
        case ("end", pick):
            if closing := harness.in_state(RunState.CLOSING):
                harness.end(closing[pick % len(closing)])
        case ("wear", pick):
            if live := harness.in_state(RunState.IDLE, RunState.BUSY):
                harness.wear(live[pick % len(live)])
        case ("pass", pick):
            harness.now_ms += pick * 7_000


def let_all_end(harness, *, at_most_steps):
    for _ in range(at_most_steps):
        harness.step()
        harness.record_all()
        for turn in harness.running():
            harness.finish(turn.id)
        for run_id in harness.in_state(RunState.CLOSING):
            harness.end(run_id)
        harness.now_ms += 1_000
        if not harness.turns:
            return
    raise AssertionError(f"turns never got a slot: {sorted(harness.turns)}")


@settings(max_examples=80, deadline=None)
@given(scripts, st.integers(1, 4), st.integers(0, 3))
def test_whatever_happens_the_promises_hold_and_every_turn_is_answered_once(script, cap, overlap):
    harness = Harness(cap=cap, overlap=overlap)
    for event in script:
        play(harness, event)
        harness.step()
        assert len(harness.runs) <= cap + overlap
    asked = len(harness.turns) + len(harness.answered)
    let_all_end(harness, at_most_steps=4 * asked + 10)

    assert len(harness.answered) == len(set(harness.answered)) == asked


@settings(max_examples=40, deadline=None)
@given(scripts, st.integers(1, 4), st.integers(0, 3))
def test_a_plan_carried_out_has_nothing_to_add(script, cap, overlap):
    harness = Harness(cap=cap, overlap=overlap)
    for event in script:
        play(harness, event)
        harness.step()

        assert harness.step().actions == ()


@settings(max_examples=40, deadline=None)
@given(scripts, st.integers(1, 4))
def test_no_idle_container_closes_while_nobody_waits(script, cap):
    harness = Harness(cap=cap)
    for event in script:
        play(harness, event)
        wearing = {run.folder for run in harness.runs.values() if run.is_worn}
        for action in harness.step().actions:
            if isinstance(action, CloseContainer) and harness.runs[action.run_id].folder not in wearing:
                assert len(harness.runs) == cap


def test_a_chat_that_never_falls_silent_starves_nobody():
    harness = Harness(cap=1)
    harness.ask("busy")
    harness.step()
    quiet = harness.ask("quiet", TurnKind.AUTO)
    for _ in range(1_000):
        harness.now_ms += 1_000
        harness.ask("busy") if len(harness.turns) < 4 else None
        harness.record_all()
        for turn in harness.running():
            harness.finish(turn.id)
        harness.step()
        for run_id in harness.in_state(RunState.CLOSING):
            harness.end(run_id)
        harness.step()

    assert quiet in harness.answered
