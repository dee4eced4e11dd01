"""Test that the wall clock and the steady clock of the tests move only when a test moves them."""

from __future__ import annotations

from tests.doubles.clock import START_MS, FakeClock


def test_it_stands_until_it_is_moved():
    clock = FakeClock()

    assert clock.now_ms() == clock.now_ms() == START_MS
    assert clock.steady_ms() == clock.steady_ms()


def test_passing_time_moves_wall_and_steady_time_alike():
    clock = FakeClock(wall_ms=5, running_ms=7)

    assert clock.pass_ms(100) == 105
    assert (clock.now_ms(), clock.steady_ms()) == (105, 107)


def test_the_wall_can_jump_while_steady_time_goes_on():
    clock = FakeClock(running_ms=7)

    clock.wall_ms -= 3_600_000

    assert clock.steady_ms() == 7
