"""The cost of a host grows with the groups that are alive, not with those that are registered."""

from __future__ import annotations

from tests.simulation.scale import calls_of, idle_steps_of

FEW, MANY, ALIVE = 10, 110, 2


def test_idle_groups_cost_next_to_nothing() -> None:
    few, many = calls_of(FEW, alive=ALIVE), calls_of(MANY, alive=ALIVE)
    more = many - few
    # A loop that looks at each group once a minute would call some function 15 times for each more of them.
    most = 3 * (MANY - FEW)
    loops = {name: count for name, count in more.most_common(20) if count > most}
    assert loops == {}
    assert many.total() < 1.2 * few.total()


def test_groups_that_were_alive_once_cost_no_steps_while_nothing_happens() -> None:
    few, many = idle_steps_of(2), idle_steps_of(10)
    assert abs(many - few) < 8
