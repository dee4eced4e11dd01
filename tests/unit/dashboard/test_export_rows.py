"""Times as the compatibility files have them: fast, and the same as if the zone were asked for each."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.dashboard.files.export_rows import LocalTimes

ZONES = (
    "Asia/Seoul",
    "Europe/Amsterdam",  # counted minutes and seconds of its own until 1940
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Africa/Monrovia",  # was 44 minutes and 30 seconds behind until 1972
    "Pacific/Apia",
)
NEW_YORK = ZoneInfo("America/New_York")


@given(
    at_ms=st.integers(-4_000_000_000_000, 7_000_000_000_000),
    more_ms=st.integers(0, 3_600_000),
    zone=st.sampled_from(ZONES).map(ZoneInfo),
)
@example(at_ms=1_772_953_199_999, more_ms=1, zone=NEW_YORK)  # clocks go forward
@example(at_ms=1_793_512_799_999, more_ms=1, zone=NEW_YORK)  # and back
@example(at_ms=-1, more_ms=1, zone=ZoneInfo("UTC"))
def test_a_time_is_what_the_clocks_of_the_zone_show(at_ms: int, more_ms: int, zone: ZoneInfo) -> None:
    times = LocalTimes(zone)
    for each in (at_ms, at_ms + more_ms):
        asked = datetime.fromtimestamp(each // 1000, zone).replace(tzinfo=None).isoformat()
        assert times.show(each) == asked


def test_no_time_stays_none() -> None:
    assert LocalTimes(NEW_YORK).show(None) is None
