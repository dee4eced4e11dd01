"""A subscriber's file: every key, its range and what it is when it is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_runner.ans import subscriber_store
from agent_runner.ans.event import EventLevel, NoticeEvent
from agent_runner.ans.subscriber import BadSubscriber, parse_subscriber
from orchestrator.containers.image.context import ImageSources

SHIPPED = sorted((subscriber_store.SHIPPED / "subscribers").glob("*.toml"))
LEAST = """
[subscriber]
id = "least"
name = "The least there is"
[events]
types = ["a.b"]
[output]
template = "a.j2"
"""


def test_what_is_left_out_has_the_documented_value():
    """N-20, B.4."""
    least = parse_subscriber(LEAST)

    assert (least.about.description, least.about.version) == ("", "1.0.0")
    assert (least.events.severity_filter, least.events.sources) == ("info", None)
    assert (least.batching.window_ms, least.batching.max_size) == (2_000, 10)
    assert (least.batching.dedupe_key, least.batching.dedupe_window_ms) == ("", 5_000)
    assert (least.output.priority, least.output.inject_at, least.output.core) == (
        "normal",
        "after_tool",
        False,
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("subscriber__id", "a1_b"),
        ("subscriber__name", "x" * 100),
        ("subscriber__description", "x" * 500),
        ("subscriber__version", "2.10.0-rc.1+5"),
        ("events__types", ["tool.call.failure", "tool.*"]),
        ("events__severity_filter", "critical"),
        ("events__sources", ["host"]),
        ("batching__window_ms", 0),
        ("batching__window_ms", 10_000),
        ("batching__max_size", 1),
        ("batching__max_size", 100),
        ("batching__dedupe_key", "type:payload.tool_name:x"),
        ("batching__dedupe_window_ms", 60_000),
        ("output__priority", "critical"),
        ("output__inject_at", "turn_end"),
        ("output__core", True),
    ],
)
def test_a_value_at_the_edge_of_its_range_is_taken(as_toml, key, value):
    """B.4."""
    parse_subscriber(as_toml(**{key: value}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("subscriber__id", None),
        ("subscriber__id", "1a"),
        ("subscriber__id", "A"),
        ("subscriber__id", "a-b"),
        ("subscriber__id", "a\\n"),
        ("subscriber__name", None),
        ("subscriber__name", ""),
        ("subscriber__name", "x" * 101),
        ("subscriber__description", "x" * 501),
        ("subscriber__version", "1.0"),
        ("subscriber__colour", "red"),
        ("events__types", None),
        ("events__types", []),
        ("events__types", ["*"]),
        ("events__types", ["tool.*.failure"]),
        ("events__severity_filter", "fatal"),
        ("batching__window_ms", -1),
        ("batching__window_ms", 10_001),
        ("batching__window_ms", "2000"),
        ("batching__window_ms", 1.5),
        ("batching__max_size", 0),
        ("batching__max_size", 101),
        ("batching__dedupe_window_ms", 60_001),
        ("output__priority", "urgent"),
        ("output__inject_at", "now"),
        ("output__template", None),
        ("output__template", "../../etc/passwd"),
        ("output__template", "a/b.j2"),
        ("output__core", "yes"),
        ("output__core", 1),
    ],
)
def test_any_other_value_is_refused_in_one_line_that_names_the_key(as_toml, key, value):
    """B.4."""
    with pytest.raises(BadSubscriber) as refused:
        parse_subscriber(as_toml(**{key: value}))

    assert key.replace("__", ".") in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["[subscriber", "", "a = 1", "[[[]]]", "x = " + "[" * 5_000, "x = " + "1" * 5_000]
)
def test_what_is_no_subscriber_is_refused(text):
    """B.4."""
    with pytest.raises(BadSubscriber):
        parse_subscriber(text)


def test_a_group_cannot_make_a_core_subscriber(as_toml):
    """N-25."""
    with pytest.raises(BadSubscriber, match=r"output\.core"):
        parse_subscriber(as_toml(output__core=True), is_of_group=True)


@pytest.mark.parametrize("severity", EventLevel)
def test_the_filter_says_at_least(subscriber, severity):
    """B.12-2: the filter was read and never applied."""
    probe = subscriber(events__severity_filter="warning")
    event = NoticeEvent(type="tool.call.failure", source="s", severity=severity)

    assert probe.takes(event) is (severity >= EventLevel.WARNING)


def test_sources_bound_who_is_heard(subscriber):
    """B.4."""
    probe = subscriber(events__sources=["host"])

    assert probe.takes(NoticeEvent(type="tool.a", source="host"))
    assert not probe.takes(NoticeEvent(type="tool.a", source="agent"))


def test_a_dedupe_key_is_made_of_type_payload_and_words_and_begins_with_the_subscriber(subscriber):
    """N-21, B.4."""
    event = NoticeEvent(type="tool.a", source="s", payload={"tool_name": "Read", "n": 3}, dedupe_key="own")

    assert subscriber().dedupe_key(event) == "probe:own"
    assert subscriber(batching__dedupe_key="type:payload.tool_name:x:payload.n:payload.none").dedupe_key(
        event
    ) == ("probe:tool.a:Read:x:3:")


def test_the_shipped_ones_are_all_good_and_each_has_its_template():
    """B.4."""
    subscribers = [parse_subscriber(path.read_text(encoding="utf-8")) for path in SHIPPED]
    templates = {path.name for path in (subscriber_store.SHIPPED / "templates").glob("*.j2")}

    assert [each.id for each in subscribers] == [path.stem for path in SHIPPED]
    assert all(each.about.description for each in subscribers)
    assert {each.output.template for each in subscribers} <= templates


SPECIFIED = {
    "tool_failure": ("high", "after_tool", 2000, 10, 5000, True, "warning"),
    "budget_warning": ("high", "turn_start", 1000, 3, 10000, True, "warning"),
    "budget_exceeded": ("critical", "immediate", 0, 1, 0, True, "error"),
    "loop_detected": ("critical", "immediate", 0, 1, 30000, True, "warning"),
    "self_notify": ("normal", "turn_start", 0, 1, 0, False, "debug"),
    "context_limit": ("high", "turn_start", 5000, 1, 60000, True, "warning"),
    "session_resumed": ("normal", "turn_start", 1000, 1, 30000, False, "info"),
    "source_stale": ("normal", "after_tool", 2000, 5, 10000, True, "warning"),
    "task_checkpoint": ("low", "turn_start", 5000, 1, 30000, False, "info"),
}


@pytest.mark.parametrize("name", SPECIFIED)
def test_the_shipped_ones_are_as_specified(name):
    """B.4. What runs out while a turn goes on says itself that it cannot wait for the next."""
    path = subscriber_store.SHIPPED / "subscribers" / f"{name}.toml"
    each = parse_subscriber(path.read_text(encoding="utf-8"))

    assert (
        each.output.priority,
        each.output.inject_at,
        each.batching.window_ms,
        each.batching.max_size,
        each.batching.dedupe_window_ms,
        each.output.core,
        each.events.severity_filter,
    ) == SPECIFIED[name]


def test_the_host_and_others_are_heard_too():
    """B.2."""
    named = [
        pattern
        for path in SHIPPED
        for pattern in parse_subscriber(path.read_text(encoding="utf-8")).events.types
    ]

    for pattern in ("host.*", "subagent.failed", "subagent.complete", "notices.dropped"):
        assert pattern in named
    assert "discovery.notable" not in named, "who made it is told of it as a note"


def test_the_package_takes_the_files_with_it():
    """The wheel and the image have what the tree has."""
    project = Path(__file__).resolve().parents[3]
    shipped = ImageSources.below(project).files()
    for folder, pattern in (("subscribers", "*.toml"), ("templates", "*.j2")):
        for path in (subscriber_store.SHIPPED / folder).glob(pattern):
            assert path.relative_to(project).as_posix() in shipped
