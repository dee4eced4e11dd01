from __future__ import annotations

from orchestrator.queue.retries import MAX_RESTARTS, restart_delay_ms, retry_delay_ms


def test_the_pauses_are_5_10_20_40_80_seconds_and_then_it_is_enough():
    assert [retry_delay_ms(attempt) for attempt in range(1, 7)] == [
        5_000,
        10_000,
        20_000,
        40_000,
        80_000,
        None,
    ]


def test_it_stays_enough():
    assert retry_delay_ms(1_000) is None


def test_a_restart_of_the_host_is_followed_at_once_and_many_by_pauses_until_it_is_enough():
    delays = [restart_delay_ms(restarts) for restarts in range(MAX_RESTARTS + 1)]

    assert delays[:7] == [0, 5_000, 10_000, 20_000, 40_000, 80_000, 80_000]
    assert delays[-2:] == [80_000, None]
