"""The tool that compares two checkouts: how runs are pooled, judged and told, and when a comparison ends."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmarks import checkouts, comparison, rounds, soak
from benchmarks.figures import Figure, Series, excess_of, p99_excess_of, ratio_of


def _document(*figures: Figure) -> dict[str, Any]:
    from benchmarks import report

    return {"figures": [report.document(figure) for figure in figures]}


def _figure(*values: float, floor: tuple[float, ...] = (1.0,), name: str = "A start") -> Figure:
    measured = Series(name="started", unit="ms", values=values)
    bare = Series(name="floor", unit="ms", values=floor)
    checks = (
        ratio_of(measured, bare, 2.0),
        excess_of(measured, bare, 5.0),
        p99_excess_of(measured, bare, 90.0),
    )
    return Figure(name=name, measured=measured, floor=bare, checks=checks)


def _by_name(found: list[comparison.Row]) -> dict[str, comparison.Row]:
    return {row.name: row for row in found}


def test_the_values_of_all_runs_are_one_series() -> None:
    before = [_document(_figure(10, 12)), _document(_figure(14, 100))]
    after = [_document(_figure(4, 6)), _document(_figure(5))]
    row = _by_name(comparison.rows(before, after))["A start"]
    assert (row.before, row.after) == (13, 5)
    assert row.ratio == pytest.approx(5 / 13)
    assert row.counts == (4, 3)
    assert row.limit is None
    assert row.is_met is None


def test_targets_beside_a_floor_are_judged_on_all_values_of_both() -> None:
    after = [_document(_figure(4, 6, floor=(2.0,))), _document(_figure(5, 100, floor=(4.0,)))]
    rows = _by_name(comparison.rows([], after))
    # Medians of 5.5 and 3; one run alone has 5 and 2, the other 52.5 and 4.
    assert rows["A start: times the floor"].after == pytest.approx(5.5 / 3)
    assert rows["A start: times the floor"].is_met is True
    assert rows["A start: above the floor"].after == pytest.approx(2.5)
    assert rows["A start: p99 above the floor"].after == pytest.approx(97)
    assert rows["A start: p99 above the floor"].is_met is False


def test_a_number_that_a_run_alone_can_tell_is_the_median_of_the_runs() -> None:
    def run(value: float) -> dict[str, Any]:
        series = {"name": "of a core", "unit": "%", "values": [1.0]}
        check = {"what": "resident", "value": value, "limit": 60.0, "unit": "MiB"}
        return {"figures": [{"name": "Idle", "floor": None, "series": [series], "checks": [check]}]}

    (row,) = comparison.rows([run(74.0)], [run(50.0), run(52.0), run(70.0)])
    assert (row.name, row.unit, row.before, row.after) == ("Idle: resident", "MiB", 74.0, 52.0)
    assert row.is_met is True


def test_a_figure_that_one_side_lacks_is_told_of_the_other() -> None:
    only_before = _document(_figure(1.0, name="Gone"))
    rows = comparison.rows([only_before], [_document(_figure(3.0, name="New"))])
    assert {row.name.partition(":")[0] for row in rows} == {"New"}
    assert [(row.before, row.ratio, row.counts) for row in rows] == [(None, None, (0, 1))] * len(rows)


def test_an_older_document_that_names_neither_floor_nor_units_can_be_compared() -> None:
    old = _document(_figure(10.0, floor=(4.0,)))
    for figure in old["figures"]:
        del figure["floor"]
        for check in figure["checks"]:
            del check["unit"]
    rows = _by_name(comparison.rows([old], [_document(_figure(6.0, floor=(3.0,)))]))
    assert rows["A start: times the floor"].before == pytest.approx(2.5)
    assert rows["A start: times the floor"].unit == "x"


def test_the_table_has_a_line_for_each_row_with_its_verdict() -> None:
    found = comparison.rows([_document(_figure(10, 12))], [_document(_figure(4, 250))])
    heading, rule, first, times, above, p99 = comparison.table(found).splitlines()
    assert [cell.strip() for cell in heading.strip("|").split("|")] == list(comparison.HEADINGS)
    assert set(rule) == {"|", "-"}
    assert [cell.strip() for cell in first.strip("|").split("|")] == [
        "A start", "11 ms", "127 ms", "11.55", "18 / 194 %", "2 / 2", "–", "–",
    ]  # fmt: skip
    assert "≤ 2 ×" in times
    assert "not met" in above
    assert "≤ 90 ms" in p99
    assert len({len(line) for line in (heading, rule, first, times, above, p99)}) == 1


def test_what_would_end_too_late_is_not_measured() -> None:
    budget = rounds.Budget(seconds=100.0, began=0.0, took={"long": 60.0, "short": 5.0})
    assert budget.allows("short", 90.0)
    assert not budget.allows("long", 90.0)
    assert budget.allows("new", 99.0)
    assert not budget.allows("new", 101.0)


@dataclass
class Measured:
    """A checkout that says what it is asked, and cannot measure some."""

    commit: str
    asked: list[str]
    broken: set[str] = field(default_factory=set)

    def has(self, name: str) -> bool:
        return name != "commands" or self.commit == "new"

    def measure(self, name: str, *, is_shared: bool, effort: float) -> dict[str, Any]:
        self.asked.append(f"{self.commit} {name}")
        if name in self.broken:
            raise subprocess.CalledProcessError(1, name)
        return {"figures": []}


def _sides(asked: list[str], **broken: set[str]) -> tuple[rounds.Side, rounds.Side]:
    made = [
        Measured(commit=commit, asked=asked, broken=broken.get(commit, set())) for commit in ("old", "new")
    ]
    before, after = (rounds.Side(checkout=one) for one in made)  # type: ignore[arg-type]
    return before, after


def test_the_two_take_turns_figure_by_figure_and_the_first_of_a_round_changes() -> None:
    asked: list[str] = []
    before, after = _sides(asked)
    rounds.run(["idle", "flood"], before, after, budget=rounds.Budget(seconds=60.0), effort=0.1, rounds=2)
    assert asked == [
        "old idle", "new idle", "old flood", "new flood",
        "new idle", "old idle", "new flood", "old flood",
    ]  # fmt: skip
    assert (len(before.documents), len(after.documents)) == (4, 4)


def test_what_a_checkout_cannot_measure_is_tried_once_and_the_rest_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[str] = []
    before, after = _sides(asked, old={"idle"})
    names = ["idle", "commands"]
    rounds.run(names, before, after, budget=rounds.Budget(seconds=60.0), effort=0.1, rounds=2)
    assert asked.count("old idle") == 1
    assert "old commands" not in asked
    assert asked.count("new idle") == asked.count("new commands") == 2
    assert before.cannot == {"idle", "commands"}
    assert not after.cannot
    assert "old cannot tell idle" in capsys.readouterr().err


def test_a_commit_that_git_does_not_know_is_named() -> None:
    with pytest.raises(checkouts.UnknownCommit, match="no-such-commit"):
        checkouts.prepare("no-such-commit")


@pytest.mark.parametrize(
    ("more", "expected"), [(0.0, 0.0), (2.0, 2.0), (-0.5, -0.5)], ids=["flat", "grows", "shrinks"]
)
def test_the_growth_of_memory_is_told_for_10_000_turns(more: float, expected: float) -> None:
    samples = [(turns, 80.0 + more * turns / 10_000) for turns in range(1_000, 51_000, 1_000)]
    assert soak.slope(samples) == pytest.approx(expected)
    (check,) = soak.figure(samples).checks
    assert check.is_met is (expected <= soak.MORE_MIB)


def test_what_fills_caches_at_the_beginning_is_no_growth() -> None:
    samples = [(turns, 60.0 + min(turns, 10_000) / 500) for turns in range(1_000, 51_000, 1_000)]
    assert soak.slope(samples) == pytest.approx(0.0)
