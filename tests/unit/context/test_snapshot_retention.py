"""Which snapshots are given up: decided without a disk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.context.snapshots import DAY_MS, ContextSnapshot, name_of, parsed_name, surplus
from tests.support.dialogues import MINUTE, NOW


def taken(at_ms: int, *, is_pinned: bool = False) -> ContextSnapshot:
    found = parsed_name(name_of(at_ms // MINUTE, at_ms))
    assert found is not None
    return ContextSnapshot(name=found.name, at_ms=found.at_ms, revision=found.revision, is_pinned=is_pinned)


def kept(snapshots: list[ContextSnapshot], now_ms: int = NOW) -> set[str]:
    return {one.name for one in snapshots} - {one.name for one in surplus(snapshots, now_ms=now_ms)}


def test_c_22_a_snapshot_is_named_by_its_time_and_revision():
    assert name_of(17, NOW) == "context-20261122T093000Z-r17.json"
    assert parsed_name("context-20261122T093000Z-r17.json") == ContextSnapshot(
        name="context-20261122T093000Z-r17.json", at_ms=NOW, revision=17
    )


@pytest.mark.parametrize(
    "name",
    [
        *("context.json", "context-20261122T093000Z-r17.json.tmp-1-2", "context-20261322T093000Z-r17.json"),
        *(
            "../context-20261122T093000Z-r1.json",
            "context-20261122T093000Z-r.json",
            "workflow-v1-20261122T093000Z.json",
        ),
        "context-20261122T093000Z-r1.json\n",
    ],
)
def test_no_other_name_is_a_snapshots(name: str):
    assert parsed_name(name) is None


def test_c_22_the_48_newest_are_kept():
    every_half_hour = [taken(NOW - number * 30 * MINUTE) for number in range(48)]

    assert surplus(every_half_hour, now_ms=NOW) == ()


def test_c_22_one_a_day_is_kept_for_14_days():
    every_half_hour = [taken(NOW - number * 30 * MINUTE) for number in range(30 * 48)]

    left = sorted(kept(every_half_hour))

    assert len(left) == 48 + 13
    assert left[0].startswith("context-20261108T2330")
    assert left[12].startswith("context-20261120T2330")


def test_a_clock_that_is_ahead_for_a_while_gives_up_no_day():
    every_half_hour = [taken(NOW - number * 30 * MINUTE) for number in range(30 * 48)]
    days = {name for name in kept(every_half_hour) if "T2330" in name}
    ahead = [taken(NOW + 400 * DAY_MS + number * 30 * MINUTE) for number in range(4)]

    for count in range(1, 5):
        assert days <= kept([*ahead[:count], *every_half_hour], now_ms=ahead[count - 1].at_ms)


def test_c_22_a_pinned_one_is_kept_for_good():
    old = taken(NOW - 400 * DAY_MS, is_pinned=True)
    newest = [taken(NOW - number * MINUTE) for number in range(60)]

    assert old.name in kept([*newest, old])
    assert taken(NOW - 401 * DAY_MS).name not in kept([*newest, taken(NOW - 401 * DAY_MS)])


@given(
    st.lists(
        st.tuples(st.integers(0, 60 * 24 * 40), st.booleans()), max_size=200, unique_by=lambda one: one[0]
    )
)
def test_the_newest_and_the_pinned_are_never_given_up_and_giving_up_twice_gives_up_no_more(
    drawn: list[tuple[int, bool]],
):
    snapshots = [taken(NOW - minutes * MINUTE, is_pinned=pinned) for minutes, pinned in drawn]
    newest = sorted(snapshots, key=lambda one: one.at_ms, reverse=True)[:48]

    left = kept(snapshots)

    assert {one.name for one in (*newest, *(one for one in snapshots if one.is_pinned))} <= left
    assert kept([one for one in snapshots if one.name in left]) == left
    assert len(left) <= 48 + 15 + sum(one.is_pinned for one in snapshots)
