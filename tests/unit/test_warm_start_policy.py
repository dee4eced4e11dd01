"""For whom a container is started before anybody asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestrator.base.wakeups import Wakeup
from orchestrator.domain.turn_signs import MAX_SIGNS, Sign, TurnSign, TurnSigns
from orchestrator.domain.values import ChatJid, Folder, LiveRun, RunState, Turn, TurnKind, TurnState
from orchestrator.queue.warm_start_policy import MAX_UNUSED_IN_A_ROW, ExpectedTurn, choose
from tests.support.queue_harness import a_run, a_turn

NOW = 1_000_000


def expected(folder: str = "family", sign: Sign = Sign.TYPING, *, is_isolated: bool = False) -> ExpectedTurn:
    return ExpectedTurn(folder=Folder(folder), sign=sign, is_isolated=is_isolated)


def chosen(
    *those: ExpectedTurn,
    turns: Sequence[Turn] = (),
    runs: Sequence[LiveRun] = (),
    cap: int = 5,
    most: int = 2,
    in_vain: Mapping[Folder, int] | None = None,
) -> list[tuple[str, str]]:
    found = choose(those, turns, runs, cap=cap, max_ahead=most, unused_in_a_row=in_vain or {}, now_ms=NOW)
    return [(one.folder, one.sign.value) for one in found]


def test_a_group_whose_turn_is_expected_gets_a_container() -> None:
    assert chosen(expected()) == [("family", "typing")]


def test_only_so_many_wait_at_a_time_and_the_strongest_sign_goes_first() -> None:
    those = [expected("a", Sign.TALK), expected("b", Sign.TYPING), expected("c", Sign.DUE)]
    assert chosen(*those) == [("c", "due"), ("b", "typing")]
    assert chosen(*those, runs=[a_run("r", "x", state=RunState.READY)]) == [("c", "due")]
    assert chosen(*those, most=0) == []


def test_only_a_free_slot_is_taken() -> None:
    busy = [a_run(f"r{n}", f"g{n}", state=RunState.BUSY) for n in range(5)]
    assert chosen(expected(), runs=busy) == []
    assert chosen(expected(), runs=busy[1:]) == [("family", "typing")]
    idle = [a_run(f"r{n}", f"g{n}") for n in range(5)]
    assert chosen(expected(), runs=idle) == [], "nobody's container is closed for what may never come"
    left = [a_run("gone", "g9", state=RunState.LEFT), *busy[1:]]
    assert chosen(expected(), runs=left) == [("family", "typing")], "what was given up holds no slot"


def test_a_slot_that_a_turn_is_about_to_take_is_none() -> None:
    busy = [a_run(f"r{n}", f"g{n}", state=RunState.BUSY) for n in range(4)]
    waiting = a_turn(1, "work")
    assert chosen(expected(), turns=[waiting], runs=busy) == []
    later = a_turn(1, "work", not_before_ms=NOW + 60_000)
    assert chosen(expected(), turns=[later], runs=busy) == [("family", "typing")]
    answered_there = [*busy[:3], a_run("own", "work")]
    assert chosen(expected(), turns=[waiting], runs=answered_there) == [("family", "typing")]


def test_a_group_with_a_container_or_a_turn_needs_none() -> None:
    for state in (RunState.STARTING, RunState.READY, RunState.BUSY, RunState.IDLE, RunState.CLOSING):
        assert chosen(expected(), runs=[a_run("r", state=state)]) == [], state
    assert chosen(expected(), runs=[a_run("r", state=RunState.LEFT)]) == []
    assert chosen(expected(), turns=[a_turn(1)]) == []
    assert chosen(expected(), turns=[a_turn(1, state=TurnState.RUNNING)]) == []


def test_what_runs_apart_from_the_chat_keeps_no_container_from_it() -> None:
    task = a_run("r", state=RunState.BUSY, is_isolated=True)
    upkeep = a_turn(1, kind=TurnKind.WORKER, is_isolated=True, state=TurnState.RUNNING)
    assert chosen(expected(), turns=[upkeep], runs=[task]) == [("family", "typing")]
    due = expected(sign=Sign.DUE, is_isolated=True)
    assert chosen(due, runs=[task, a_run("chat", state=RunState.IDLE)]) == [("family", "due")]
    assert chosen(due, runs=[a_run("r2", state=RunState.READY, is_isolated=True)]) == []
    assert chosen(due, runs=[a_run("r2", state=RunState.READY)]) == [("family", "due")]


def test_two_signs_of_one_group_start_one_container() -> None:
    assert chosen(expected(sign=Sign.TALK), expected(sign=Sign.TYPING)) == [("family", "typing")]


def test_talk_that_came_to_nothing_starts_no_more() -> None:
    vain = {Folder("family"): MAX_UNUSED_IN_A_ROW}
    assert chosen(expected(sign=Sign.TALK), in_vain=vain) == []
    assert chosen(expected(sign=Sign.TYPING), in_vain=vain) == [("family", "typing")]
    assert chosen(expected(sign=Sign.TALK), in_vain={Folder("family"): 1}) == [("family", "talk")]


def test_talk_starts_none_while_a_turn_waits_for_its_container() -> None:
    """A busy chat would have a second container boot beside that of a group that has asked."""
    talk, booting = expected(sign=Sign.TALK), a_run("r", "work", state=RunState.STARTING, is_awaited=True)
    assert chosen(talk, runs=[booting]) == []
    assert chosen(talk, runs=[replace(booting, state=RunState.BUSY)]) == []
    assert chosen(talk, turns=[a_turn(1, "work")]) == []
    assert chosen(expected(sign=Sign.TYPING), runs=[booting]) == [("family", "typing")]
    booted = replace(booting, state=RunState.BUSY, is_awaited=False)
    assert chosen(talk, runs=[booted]) == [("family", "talk")]


def test_signs_are_kept_once_each_and_not_without_end() -> None:
    signs = TurnSigns(Wakeup())
    signs.note(Sign.TYPING, jid=ChatJid("a@g.us"))
    signs.note(Sign.TYPING, jid=ChatJid("a@g.us"))
    assert signs.take() == [TurnSign(sign=Sign.TYPING, jid=ChatJid("a@g.us"))]
    assert signs.take() == []
    for number in range(2 * MAX_SIGNS):
        signs.note(Sign.TYPING, jid=ChatJid(f"{number}@g.us"))
    assert len(signs.take()) == MAX_SIGNS
