"""A world that breaks a promise is shrunk to the few things that matter, and replayed by their names."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from tests.simulation import shrinking
from tests.simulation.__main__ import main
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


def test_a_death_has_the_number_of_its_container() -> None:
    plan = replace(Plan.drawn("11"), deaths=(0, 0, 4))
    assert [one.name for one in things_of(plan) if "deaths" in one.classes] == ["death3"]
    assert only(plan, ["death3"]).deaths == (0, 0, 4)


@pytest.mark.parametrize(
    ("names", "error"),
    [
        ("group2 said999", "The world has no said999. It has group0 "),
        ("group2 said1", "said1 needs its group: add group0 to ONLY, or leave out said1."),
    ],
)
@pytest.mark.parametrize("also", [[], ["--shrink=1"]])
def test_names_that_make_no_world_are_an_error_of_one_line(
    names: str,
    error: str,
    also: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulate", "--seed=42", f"--only={names}", *also])
    assert main() == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(error)
    assert (printed.err.count("\n"), printed.out) == (1, "")


def test_deaths_of_containers_count_as_faults() -> None:
    plan = replace(Plan.drawn("11"), deaths=(0, 3, 4))
    search = Shrinking("11", plan, ["group0", "said0", "death2", "death3"], seconds=1, say=lambda _: None)
    assert search.size == "1 messages, 2 faults, 1 other things"


@pytest.mark.parametrize(
    ("seconds", "is_broken", "last"),
    [
        (60, True, "Nothing more can go"),
        (0, True, "The time is over"),
        (60, False, "Every promise is kept"),
    ],
)
def test_a_search_says_why_it_ended(
    seconds: int, is_broken: bool, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(world: World) -> Outcome:
        world.loop.close()
        return Outcome(seed=world.seed, lines=[], problems=["It broke"] if is_broken else [])

    monkeypatch.setattr(World, "run", run)
    monkeypatch.setattr(shrinking, "DRAWS", (1,))
    lines: list[str] = []
    Shrinking("11", Plan.drawn("11"), seconds=seconds, say=lines.append).run()
    assert lines[-1].startswith(last)


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
