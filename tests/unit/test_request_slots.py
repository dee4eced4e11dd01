"""How many requests to the model may be under way, for a group and over all."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from orchestrator.base.logging import LogThrottle
from orchestrator.base.rate_limits import CallerPace
from orchestrator.domain.values import Folder
from orchestrator.proxies.model.error_responses import ProxyRefused
from orchestrator.proxies.model.limits import HeldBytes, ModelProxyLimits, RequestSlots
from tests.doubles.clock import FakeClock

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
    assert throttle.take_dropped("a") == 2
    assert throttle.take_dropped("a") == 0


def test_bytes_are_held_as_they_come_and_a_body_that_has_gone_up_holds_none() -> None:
    held = HeldBytes(a_group=10, overall=100, reserved=20)
    with held.growing(A) as idle, held.growing(A) as body:
        idle.add(1)
        body.add(9)
        with pytest.raises(ProxyRefused), held.growing(A) as more:
            more.add(1)
        body.release()
        body.add(9)
    assert not held._held


def test_groups_that_hold_much_leave_room_for_one_that_holds_little() -> None:
    held = HeldBytes(a_group=100, overall=100, reserved=20)
    with held.growing(A) as first, held.growing(B) as second, held.growing(C) as third:
        first.add(40)
        second.add(40)
        with pytest.raises(ProxyRefused):
            second.add(1)
        third.add(10)
        with pytest.raises(ProxyRefused):
            third.add(1)


def test_a_container_that_sends_many_bytes_is_read_slowly_and_another_is_not() -> None:
    clock = FakeClock()
    pace = CallerPace(clock, at_once=100, a_second=10)
    assert [pace.wait_seconds("172.18.0.2", 50) for _ in range(4)] == [0, 0, 5, 10]
    assert pace.wait_seconds("172.18.0.3", 100) == 0
    clock.pass_ms(20_000)
    assert pace.wait_seconds("172.18.0.2", 50) == 0
    for number in range(2_000):
        pace.wait_seconds(str(number), 1)
    assert len(pace._buckets) <= 1_000


@pytest.mark.parametrize(
    ("base_url", "is_patient"),
    [
        ("https://api.anthropic.com", False),
        ("https://anthropic.com", False),
        ("http://127.0.0.1:8080", True),
        ("https://gateway.example/anthropic", True),
        ("https://anthropic.com.example", True),
        ("https://notanthropic.com", True),
    ],
)
def test_whoever_may_read_a_long_prompt_for_minutes_is_waited_for(base_url: str, is_patient: bool) -> None:
    """Anthropic's own API sends a head and pings at once: there silence means that the request is lost."""
    assert (ModelProxyLimits().first_byte_of(base_url) >= 600) is is_patient
    assert ModelProxyLimits(first_byte_seconds=7).first_byte_of(base_url) == 7
