"""The cost of a host grows with the groups that are alive, not with those that are registered."""

from __future__ import annotations

from tests.simulation.scale import calls_of

FEW, MANY, ALIVE = 10, 110, 2


def test_idle_groups_cost_next_to_nothing() -> None:
    few, many = calls_of(FEW, alive=ALIVE), calls_of(MANY, alive=ALIVE)
    more = many - few
    # A loop that looks at each group once a minute would call some function 15 times for each more of them.
    most = 3 * (MANY - FEW)
    loops = {name: count for name, count in more.most_common(20) if count > most}
    assert loops == {}
    assert many.total() < 1.2 * few.total()
