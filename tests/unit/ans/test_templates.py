"""What a model reads of every type of event, with the payloads that are really sent."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from agent_runner.ans import subscriber_store
from agent_runner.ans.detectors import BudgetWatch, CheckpointPrompts, ContextUse, RepeatDetector
from agent_runner.ans.event import EventDraft, EventLevel, NoticeEvent
from agent_runner.ans.formatter import Formatter
from agent_runner.ans.notification import NoticeBatch, NoticeEntry
from agent_runner.ans.registry import unclaimed
from agent_runner.ans.subscriber import Subscriber, parse_subscriber
from agent_runner.ans.subscriber_store import SubscriberStore

SHELF = SubscriberStore(None).read()
NOW = datetime(2026, 11, 22, 9, 5, 7, tzinfo=UTC)
FAILED = {"tool_name": "Read", "call_id": "c1", "error_message": "no such file", "duration_ms": 4}
NOTE = {"message": "call Bo", "priority": "normal", "inject_at": "turn_start"}


def found(happening: EventDraft | None) -> dict[str, object]:
    assert happening is not None
    return dict(happening.payload)


def budget(kind: str, current: int) -> dict[str, object]:
    budgets = BudgetWatch(max_tokens=1_000, max_iterations=30, max_seconds=1_800)
    judge = {"token": budgets.tokens_used, "iteration": budgets.iterations_used, "time": budgets.seconds_used}
    return found(judge[kind](current))


def loop() -> dict[str, object]:
    loops = RepeatDetector()
    calls = [loops.called("Read", {"file_path": "a.md", "limit": 3}) for _ in range(3)]
    return found(calls[-1])


OPEN = "finish what matters most, and say what is open."
FULL = "The conversation will be summarised soon: write down what must not be forgotten."
LINES = {
    "tool.call.failure": (
        FAILED | {"error_type": "execution_error", "retry_count": 0},
        "tool_fail: Read execution_error - no such file",
    ),
    "tool.call.timeout": (
        FAILED | {"error_type": "timeout", "timeout_seconds": 30, "timeout_ms": 30_000},
        "tool_fail: Read timeout - no such file",
    ),
    "budget.token.warning": (
        budget("token", 850),
        f"budget_warn: token at 85% - 150 of 1,000 tokens are left: {OPEN}",
    ),
    "budget.iteration.warning": (
        budget("iteration", 21),
        f"budget_warn: iteration at 70% - 9 of 30 iterations are left: {OPEN}",
    ),
    "budget.timeout.warning": (
        budget("time", 1_500),
        f"budget_warn: time at 83% - 300 of 1,800 seconds are left: {OPEN}",
    ),
    "budget.token.exceeded": (
        budget("token", 1_100),
        f"!exceeded: token (1100 of 1000) - all 1,000 tokens are used: {OPEN}",
    ),
    "budget.iteration.exceeded": (
        budget("iteration", 30),
        f"!exceeded: iteration (30 of 30) - all 30 iterations are used: {OPEN}",
    ),
    "agent.loop.detected": (
        loop(),
        f"!loop: Read(file_path=a.md) repeated 3x - {loop()['suggestion']}",
    ),
    "agent.self.notify": (NOTE | {"category": "context"}, "[NOTE] call Bo"),
    "agent.self.remind": (NOTE | {"category": "reminder"}, "[REMINDER] call Bo"),
    "context.approaching_limit": (
        found(ContextUse().measured(150_000, 200_000, compaction_at=167_000)),
        f"context_warn: 75% used (17000 tokens remaining) - {FULL}",
    ),
    "session.resumed": (
        {
            "mode": "rehydrate",
            "reason": "gone",
            "session_id": None,
            "message": "it goes on",
            "exchanges_loaded": 4,
            "last_question": "which colours?",
        },
        'session_resumed: 4 exchanges loaded - last: "which colours?" - it goes on',
    ),
    "source.stale": (
        {"path": "a.md", "previous_hash": "1", "current_hash": "2", "message": "read it again"},
        "source_stale: a.md changed since last read - read it again",
    ),
    "task.checkpoint": (
        found(CheckpointPrompts().reached("is the plan still right?")),
        "checkpoint: is the plan still right? (turn 0)",
    ),
    "subagent.failed": (
        {"task_id": "t1", "error_message": "it was stopped"},
        "subagent_fail: t1 - it was stopped",
    ),
    "subagent.complete": (
        {"task_id": "t1", "result_summary": "found three", "duration_ms": 120},
        "subagent_done: t1 in 120 ms - found three",
    ),
    "host.reply.undelivered": (
        {"message": "Not delivered: “hello”", "items": ["“hello”"]},
        "!error: host: Not delivered: “hello”",
    ),
    "notices.dropped": (
        {"count": 3, "types": "3 a.b", "message": "3 events were dropped: 3 a.b"},
        "!dropped: 3 events were dropped: 3 a.b",
    ),
}
OF_OWN_SUBSCRIBERS = {
    "discovery.notable": (
        "discovery.j2",
        {"message": "the API has a second version", "priority": "normal", "event_id": "e1"},
        "[DISCOVERY] the API has a second version",
    ),
    "tool.call.pending": (
        "tool_call.j2",
        {"tool_name": "Read", "call_id": "c", "arguments": {}},
        "tool_call: Read begins",
    ),
    "tool.call.success": (
        "tool_call.j2",
        {"tool_name": "Read", "call_id": "c", "duration_ms": 4, "result_length": 90},
        "tool_done: Read in 4 ms (90 characters)",
    ),
    "tool.batch.complete": (
        "tool_batch.j2",
        {
            "batch_id": "b",
            "tool_count": 3,
            "success_count": 2,
            "failure_count": 1,
            "total_duration_ms": 40,
        },
        "tool_batch: 3 calls, 2 well, 1 failed, in 40 ms",
    ),
    "agent.turn.start": ("turn.j2", {"turn_number": 4, "session_id": None}, "turn_start: 4"),
    "agent.turn.end": (
        "turn.j2",
        {"turn_number": 4, "session_id": "s", "reason": "answered", "tool_calls": 2, "tokens_used": 90},
        "turn_end: 4 answered - 2 tool calls, 90 tokens",
    ),
    "query.start": (
        "session.j2",
        {"query": "what's on?", "group": "main", "turn": 3, "kind": "chat"},
        "query: what's on?",
    ),
    "session.end": (
        "session.j2",
        {"session_id": "s", "turns": 4, "messages": 9},
        "session_end: after 4 turns",
    ),
    "cli.event": (
        "cli_event.j2",
        {"event_name": "api_retry", "data": {"attempt": 2}},
        'cli: api_retry - {"attempt": 2}',
    ),
}


def shown(event_type: str, payload: dict[str, object], subscriber: Subscriber, *counts: int) -> str:
    priority = payload.get("priority", subscriber.output.priority)
    entries = tuple(
        NoticeEntry(
            event=NoticeEvent(
                type=event_type, source="s", severity=EventLevel.ERROR, timestamp=NOW, payload=dict(payload)
            ),
            order=order,
            count=count,
        )
        for order, count in enumerate(counts or (1,))
    )
    notification = NoticeBatch(
        subscriber=subscriber,
        priority=priority,  # type: ignore[arg-type]
        inject_at=subscriber.output.inject_at,
        entries=entries,
    )
    return Formatter(lambda each: SHELF.template_named(each.subscriber)).text(notification)


def teller(event_type: str) -> Subscriber:
    return next(each for each in SHELF.subscribers if each.names(event_type))


def own(template: str) -> Subscriber:
    return parse_subscriber(
        '[subscriber]\nid = "own"\nname = "n"\n[events]\ntypes = ["a.b"]\n'
        f'[output]\ntemplate = "{template}"\n',
        is_of_group=True,
    )


@pytest.mark.parametrize("event_type", LINES)
def test_a_type_is_told_in_one_full_line(event_type):
    """N-31, and B.12-13: fields that were empty for want of the right name."""
    payload, line = LINES[event_type]

    assert shown(event_type, payload, teller(event_type)) == line


@pytest.mark.parametrize("event_type", OF_OWN_SUBSCRIBERS)
def test_the_types_that_only_a_group_may_want_have_templates_too(event_type):
    """N-31."""
    template, payload, line = OF_OWN_SUBSCRIBERS[event_type]

    assert shown(event_type, payload, own(template)) == line


def test_no_type_is_without_its_line():
    """B.2."""
    from agent_runner.ans.event import matches

    types = {*LINES, *OF_OWN_SUBSCRIBERS}
    patterns = [pattern for each in SHELF.subscribers for pattern in each.events.types]

    assert all(any(matches(pattern, each) for each in types) for pattern in patterns)
    assert len(types - {"host.reply.undelivered", "notices.dropped"}) == 25


@pytest.mark.parametrize("event_type", [*LINES, *OF_OWN_SUBSCRIBERS])
def test_several_of_a_type_are_told_too(event_type):
    """N-31: a table, or a line each."""
    if event_type in LINES:
        payload, subscriber = LINES[event_type][0], teller(event_type)
    else:
        payload, subscriber = OF_OWN_SUBSCRIBERS[event_type][1], own(OF_OWN_SUBSCRIBERS[event_type][0])

    text = shown(event_type, payload, subscriber, 1, 2)

    assert "system notification" not in text
    if subscriber.batching.max_size > 1:
        assert len(text.splitlines()) in (2, 3)


def test_several_failures_are_a_table():
    """N-31."""
    payload = LINES["tool.call.failure"][0]

    assert shown("tool.call.failure", payload, teller("tool.call.failure"), 1, 1).splitlines() == [
        "tool_fail[2]{tool_name,error_type,error_message}:",
        "  Read,execution_error,no such file",
        "  Read,execution_error,no such file",
    ]


@pytest.mark.parametrize(
    ("count", "line"),
    [
        (2, "tool_fail: Read (2×) execution_error - no such file"),
        (3, "tool_fail: Read failed 3 times: execution_error - no such file"),
        (12, "tool_fail: Read failed 12 times: execution_error - no such file"),
    ],
)
def test_how_often_it_came_is_said(count, line):
    """N-21, and B.12-3."""
    assert (
        shown("tool.call.failure", LINES["tool.call.failure"][0], teller("tool.call.failure"), count) == line
    )


def test_what_failed_often_has_a_line_of_its_own_beside_the_table_of_the_others():
    """N-21: its count was a column of a table in which nothing stood out."""
    payload, subscriber = LINES["tool.call.failure"][0], teller("tool.call.failure")

    assert shown("tool.call.failure", payload, subscriber, 1, 3, 2).splitlines() == [
        "tool_fail: Read failed 3 times: execution_error - no such file",
        "tool_fail[2]{tool_name,error_type,error_message,times}:",
        "  Read,execution_error,no such file,1",
        "  Read,execution_error,no such file,2",
    ]
    assert shown("tool.call.failure", payload, subscriber, 3, 1).splitlines() == [
        "tool_fail: Read failed 3 times: execution_error - no such file",
        "tool_fail: Read execution_error - no such file",
    ]


@pytest.mark.parametrize(
    ("category", "priority", "tag"),
    [
        ("discovery", "normal", "[DISCOVERY]"),
        ("discovery", "high", "[DISCOVERY!]"),
        ("discovery", "critical", "[DISCOVERY!]"),
        ("reminder", "low", "[REMINDER]"),
        ("reminder", "high", "[REMINDER!]"),
        ("warning", "high", "[WARN]"),
        ("warning", "critical", "[WARN!]"),
        ("checkpoint", "critical", "[CHECKPOINT]"),
        ("context", "critical", "[NOTE]"),
    ],
)
def test_a_note_to_oneself_says_what_sort_it_is_and_how_grave(category, priority, tag):
    """N-31."""
    payload = NOTE | {"category": category, "priority": priority}

    assert shown("agent.self.notify", payload, teller("agent.self.notify")) == f"{tag} call Bo"


def test_a_resumed_session_says_what_was_asked_last_where_that_is_known():
    """N-31."""
    payload = LINES["session.resumed"][0] | {"last_question": "q" * 200}

    line = shown("session.resumed", payload, teller("session.resumed"))

    assert re.fullmatch(r'session_resumed: 4 exchanges loaded - last: "q{97}\.\.\." - it goes on', line)
    nothing = payload | {"exchanges_loaded": 0, "last_question": ""}
    assert shown("session.resumed", nothing, teller("session.resumed")) == "session_resumed: it goes on"


def test_a_shipped_template_that_nobody_names_does_not_lie_about():
    used = {each.output.template for each in SHELF.subscribers}
    used |= {template for template, _, _ in OF_OWN_SUBSCRIBERS.values()}

    assert {path.name for path in (subscriber_store.SHIPPED / "templates").glob("*.j2")} == used
    assert unclaimed().output.template not in used
