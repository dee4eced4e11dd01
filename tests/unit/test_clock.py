from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
import time_machine

from orchestrator.base.clock import SystemClock, local_iso, local_midnight, local_minute


@time_machine.travel("2026-11-22T00:30:00.250Z", tick=False)
def test_wall_time_is_epoch_milliseconds():
    assert SystemClock().now_ms() == 1_795_307_400_250


def test_steady_time_stands_aside_when_the_wall_jumps():
    clock = SystemClock()
    before = clock.steady_ms()
    with time_machine.travel("2036-01-01T00:00:00Z"):
        jumped = clock.steady_ms() - before

    assert 0 <= jumped < 60_000


@pytest.mark.parametrize(
    ("zone", "iso", "minute"),
    [
        ("UTC", "2026-11-22T00:30:00+00:00", "Sun 2026-11-22 00:30"),
        ("Asia/Seoul", "2026-11-22T09:30:00+09:00", "Sun 2026-11-22 09:30"),
        ("America/New_York", "2026-11-21T19:30:00-05:00", "Sat 2026-11-21 19:30"),
    ],
)
def test_times_are_told_in_the_zone(zone, iso, minute):
    assert local_iso(1_795_307_400_250, ZoneInfo(zone)) == iso
    assert local_minute(1_795_307_400_250, ZoneInfo(zone)) == minute


@pytest.mark.parametrize(
    ("zone", "now", "start"),
    [
        ("Asia/Seoul", "2026-11-22T00:30+00:00", "2026-11-21T15:00+00:00"),
        ("Atlantic/Azores", "2026-10-25T01:30+00:00", "2026-10-25T00:00+00:00"),  # midnight comes twice
        ("America/Havana", "2026-03-08T12:00+00:00", "2026-03-08T05:00+00:00"),  # it does not come at all
    ],
)
def test_a_day_begins_at_the_first_of_its_moments(zone, now, start):
    at_ms = round(datetime.fromisoformat(now).timestamp() * 1000)
    assert local_midnight(at_ms, ZoneInfo(zone)).timestamp() == datetime.fromisoformat(start).timestamp()
