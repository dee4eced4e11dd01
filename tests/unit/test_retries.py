from __future__ import annotations

from orchestrator.queue.retries import retry_delay_ms


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
