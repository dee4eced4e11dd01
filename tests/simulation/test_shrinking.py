"""A world that breaks a promise is shrunk to the few things that matter, and replayed by their names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation import shrinking
from tests.simulation.people import Plan
from tests.simulation.shrinking import Shrinking, kind_of, only, things_of
from tests.simulation.world import Outcome, World


@pytest.mark.parametrize("seed", ["11", "swarm7"])
def test_what_matters_is_left_of_a_world(seed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan.drawn(seed)
    plan = replace(plan, deaths=plan.deaths[:4])
    said, fault = plan.said[-2], plan.faults[1]

    def run(world: World) -> Outcome:
        world.loop.close()
        is_broken = said in world.plan.said and fault in world.plan.faults
        other = ["Reminded 3 times: another promise"]
        problems = [f"Answered {len(world.plan.said)} times: {said}"] if is_broken else other
        return Outcome(seed=world.seed, lines=[], problems=problems)

    monkeypatch.setattr(World, "run", run)
    monkeypatch.setattr(shrinking, "DRAWS", (1, 2))
    search = Shrinking(seed, plan, seconds=60, say=lambda _: None)
    search.run()
    group = next(one.group for one in things_of(plan) if one.name == f"said{len(plan.said) - 2}")
    assert search.names == {f"said{len(plan.said) - 2}", "fault1", group}
    assert search.tries < 2 * len(things_of(plan))
    less = only(plan, search.names)
    assert (less.said, less.faults, len(less.groups)) == ((said,), (fault,), 1)
    assert less.seconds <= max(said.at_s, fault.at_s) + 60
    assert search.command == f'make simulate SEED={seed} ONLY="{" ".join(_in_order(plan, search.names))}"'


def _in_order(plan: Plan, names: frozenset[str]) -> list[str]:
    return [one.name for one in things_of(plan) if one.name in names]


def test_a_seed_with_another_draw_has_the_same_plan() -> None:
    assert Plan.drawn("7/3") == Plan.drawn("7")


def test_all_things_together_are_the_whole_plan() -> None:
    plan = Plan.drawn("11")
    assert only(plan, [one.name for one in things_of(plan)]) == plan
    with pytest.raises(ValueError, match="no said999"):
        only(plan, ["said999"])


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        ("Answered 2 times: Jane in chirp:g0: @Andy echo zq3x → []", "Answered times"),
        ("Turn 7 of g1 was begun after 5 that were asked for later.", "Turn of was begun after that were"),
        ("Not answered (failed): Ali in flock:g2: …", "Not answered"),
    ],
)
def test_problems_of_one_kind_are_told_by_their_words(problem: str, kind: str) -> None:
    assert kind_of(problem).startswith(kind)
