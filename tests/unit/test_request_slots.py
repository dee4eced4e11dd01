"""How many requests to the model may be under way, for a group and over all."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from orchestrator.base.logging import LogThrottle
from orchestrator.domain.values import Folder
from orchestrator.proxies.model.error_responses import ProxyRefused
from orchestrator.proxies.model.limits import RequestSlots

A, B, C = Folder("a"), Folder("b"), Folder("c")


def test_a_group_has_its_own_bound_and_all_share_one() -> None:
    slots = RequestSlots(a_group=2, overall=3)
    with ExitStack() as held:
        held.enter_context(slots.hold(A))
        held.enter_context(slots.hold(A))
        with pytest.raises(ProxyRefused) as own, slots.hold(A):
            pass
        held.enter_context(slots.hold(B))
        with pytest.raises(ProxyRefused), slots.hold(C):
            pass
    assert own.value.refusal.status == 429
    with slots.hold(C):
        pass


def test_a_slot_is_given_back_after_a_failure_and_the_group_is_forgotten() -> None:
    slots = RequestSlots(a_group=1, overall=1)
    for _ in range(3):
        with pytest.raises(RuntimeError), slots.hold(A):
            raise RuntimeError
    assert not slots._held


def test_a_throttle_passes_one_of_a_burst_and_counts_the_rest() -> None:
    now = [0.0]
    throttle = LogThrottle(seconds=10, monotonic=lambda: now[0])
    assert [throttle.passes("a") for _ in range(3)] == [True, False, False]
    assert throttle.passes("b")
    now[0] = 10.0
    assert throttle.passes("a")
    assert throttle.take_held("a") == 2
    assert throttle.take_held("a") == 0
