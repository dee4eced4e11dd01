"""Events: N-1 to N-4."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runner.ans.event import EventLevel, NoticeEvent, is_pattern, matches

B2_TYPES = [
    "tool.call.pending",
    "tool.call.success",
    "tool.call.failure",
    "tool.call.timeout",
    "tool.batch.complete",
    "budget.token.warning",
    "budget.token.exceeded",
    "budget.iteration.warning",
    "budget.iteration.exceeded",
    "budget.timeout.warning",
    "agent.turn.start",
    "agent.turn.end",
    "agent.loop.detected",
    "agent.self.notify",
    "agent.self.remind",
    "context.approaching_limit",
    "session.resumed",
    "source.stale",
    "discovery.notable",
    "task.checkpoint",
    "query.start",
    "session.end",
    "subagent.complete",
    "subagent.failed",
    "cli.event",
]


def test_an_event_has_an_id_a_time_in_utc_and_a_key_of_its_own_making():
    """N-1."""
    event = NoticeEvent(type="tool.call.failure", source="agent")

    assert uuid.UUID(event.id).version == 4
    assert event.timestamp.utcoffset() == timedelta(0)
    assert event.dedupe_key == "tool.call.failure:agent"
    assert event.severity is EventLevel.INFO
    assert event.payload == {}


def test_a_time_of_another_zone_is_kept_in_utc_and_one_of_no_zone_is_refused():
    """N-1."""
    seoul = datetime(2026, 11, 22, 18, 0, tzinfo=timezone(timedelta(hours=9)))

    assert NoticeEvent(type="a.b", source="s", timestamp=seoul).timestamp == datetime(
        2026, 11, 22, 9, tzinfo=UTC
    )
    with pytest.raises(ValueError, match="time zone"):
        NoticeEvent(type="a.b", source="s", timestamp=seoul.replace(tzinfo=None))


@pytest.mark.parametrize("event_type", B2_TYPES)
def test_every_type_there_is_has_a_name_that_is_taken(event_type):
    """N-1, and B.12-14: a rule for names that refuses the names in use."""
    assert NoticeEvent(type=event_type, source="s").type == event_type
    assert is_pattern(event_type)
    assert is_pattern(event_type.rsplit(".", 1)[0] + ".*")


@pytest.mark.parametrize("name", ["", "tool", "Tool.call", "tool..call", ".tool", "tool.", "tool.*", "a b.c"])
def test_a_name_that_is_not_dotted_lower_case_is_refused(name):
    """N-1."""
    with pytest.raises(ValueError, match="no event type"):
        NoticeEvent(type=name, source="s")


def test_severities_compare():
    """N-2."""
    assert list(EventLevel) == sorted(EventLevel)
    assert [level.word for level in EventLevel] == ["debug", "info", "warning", "error", "critical"]
    assert EventLevel.WARNING >= EventLevel.INFO
    assert EventLevel.ERROR < EventLevel.CRITICAL
    assert all(EventLevel.of(level.word) is level for level in EventLevel)
    with pytest.raises(ValueError, match="debug, info, warning, error, critical"):
        EventLevel.of("fatal")


@pytest.mark.parametrize(
    ("pattern", "event_type", "is_meant"),
    [
        ("tool.call.failure", "tool.call.failure", True),
        ("tool.call.failure", "tool.call", False),
        ("tool.*", "tool.call", True),
        ("tool.*", "tool.call.failure", True),
        ("tool.*", "tool", False),
        ("tool.*", "tools.call", False),
        ("tool.call.*", "tool.batch.complete", False),
    ],
)
def test_a_pattern_is_exact_or_all_below_a_prefix(pattern, event_type, is_meant):
    """N-3."""
    assert matches(pattern, event_type) is is_meant


@pytest.mark.parametrize("pattern", ["*", "tool.*.failure", "*.failure", "tool*", "tool.**", "", "TOOL.*"])
def test_there_are_no_other_wildcards(pattern):
    """N-3."""
    assert not is_pattern(pattern)


@pytest.mark.parametrize("pattern", ["tool.*", "tool.call.*", "host.*"])
def test_patterns_of_any_depth_are_patterns(pattern):
    """N-3, and B.12-14."""
    assert is_pattern(pattern)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False)
    | st.text(max_size=50),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(
    payload=st.dictionaries(st.text(max_size=8), json_values, max_size=5),
    severity=st.sampled_from(EventLevel),
)
def test_an_event_survives_being_written_and_read(payload: dict[str, Any], severity: EventLevel):
    """N-4."""
    event = NoticeEvent(type="a.b_c.d1", source="somewhere", severity=severity, payload=payload)

    assert NoticeEvent.from_dict(json.loads(json.dumps(event.to_dict()))) == event


@pytest.mark.parametrize("missing", ["id", "type", "source", "severity", "timestamp", "payload"])
def test_what_is_no_event_is_refused(missing):
    """N-4."""
    fields = NoticeEvent(type="a.b", source="s").to_dict()
    del fields[missing]

    with pytest.raises(ValueError, match=missing):
        NoticeEvent.from_dict(fields)


@pytest.mark.parametrize("timestamp", ["9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+05:00"])
def test_a_time_that_is_beyond_the_calendar_in_utc_is_of_no_event(timestamp):
    fields = NoticeEvent(type="a.b", source="s").to_dict()

    with pytest.raises(ValueError, match="this is no event"):
        NoticeEvent.from_dict({**fields, "timestamp": timestamp})


def test_a_payload_is_plain_json_of_a_bounded_size():
    """N-1."""
    nested: list[Any] = []
    for _ in range(500):
        nested = [nested]
    payload = {"long": "x" * 100_000, "many": list(range(1000)), "nested": nested, "odd": object(), 3: {1, 2}}

    event = NoticeEvent(type="a.b", source="s", payload={**payload, "half": "a\ud800b", "big": 2**200})

    written = json.dumps(event.to_dict(), ensure_ascii=False).encode("utf-8")
    assert len(written) < 10_000
    assert event.payload["long"].endswith("…")
    assert event.payload["3"] == [1, 2]


def test_a_payload_of_no_number_is_still_json():
    event = NoticeEvent(type="a.b", source="s", payload={"share": float("nan"), "speed": float("inf")})

    assert json.loads(json.dumps(event.to_dict(), allow_nan=False))["payload"] == {
        "share": "nan",
        "speed": "inf",
    }
