"""What waits for the end of a tool or for a condition: N-70 to N-75."""

from __future__ import annotations

import pytest

from agent_runner.ans.deferred import DeferredNotices, TurnFacts, awaits, holds
from agent_runner.wire.conditions import BadCondition, parse_condition
from agent_runner.wire.notices import Notice


def notice(number: int, **awaited: str) -> Notice:
    return Notice(id=number, event_type="agent.self.notify", source="agent", **awaited)


def ids(due: list[Notice]) -> list[int]:
    return [each.id for each in due]


@pytest.mark.parametrize(
    ("condition", "facts", "is_true"),
    [
        ("context_above_threshold(0.7)", TurnFacts(context_tokens=70, max_context_tokens=100), True),
        ("context_above_threshold(0.7)", TurnFacts(context_tokens=69, max_context_tokens=100), False),
        ("context_above_threshold(1)", TurnFacts(context_tokens=100, max_context_tokens=100), True),
        ("token_usage_above(0.8)", TurnFacts(total_tokens=80, max_tokens=100), True),
        ("token_usage_above(0.8)", TurnFacts(total_tokens=79, max_tokens=100), False),
        ("message_count_above(20)", TurnFacts(message_count=20), True),
        ("message_count_above(20)", TurnFacts(message_count=19), False),
        ("tool_completed(Bash)", TurnFacts(completed_tools=frozenset({"Bash", "Read"})), True),
        ("tool_completed(Bash)", TurnFacts(completed_tools=frozenset({"Read"})), False),
        (
            "tool_completed(send_message)",
            TurnFacts(completed_tools=frozenset({"mcp__andy__send_message"})),
            True,
        ),
        (
            "all(tool_completed(Bash), message_count_above(3))",
            TurnFacts(completed_tools=frozenset({"Bash"}), message_count=3),
            True,
        ),
        ("all(tool_completed(Bash), message_count_above(3))", TurnFacts(message_count=3), False),
        ("any(tool_completed(Bash), message_count_above(3))", TurnFacts(message_count=3), True),
        ("any(tool_completed(Bash), message_count_above(3))", TurnFacts(), False),
        ("tool_completed(message)", TurnFacts(completed_tools=frozenset({"mcp__andy__send_message"})), False),
    ],
)
def test_a_condition_is_true_or_not(condition, facts, is_true):
    """N-71, N-73."""
    assert holds(parse_condition(condition), facts) is is_true


@pytest.mark.parametrize("condition", ["context_above_threshold(0.1)", "token_usage_above(0.1)"])
def test_a_share_of_what_is_not_known_is_never_reached(condition):
    """N-71: false when the maximum is unknown."""
    assert not holds(parse_condition(condition), TurnFacts(context_tokens=10**9, total_tokens=10**9))


def test_a_notice_without_anything_awaited_does_not_wait():
    """N-70."""
    assert not awaits(notice(1))
    assert awaits(notice(1, tool_name=""))
    assert awaits(notice(1, condition="tool_completed(Bash)"))


def test_after_a_tool_it_is_due_once_and_leaves():
    """N-70, N-74."""
    deferred = DeferredNotices()
    deferred.add(notice(1, tool_name="Bash"))
    deferred.add(notice(2, tool_name=""))
    deferred.add(notice(3, tool_name="Bash"))

    assert ids(deferred.due(TurnFacts())) == []
    assert ids(deferred.due(TurnFacts(completed_tools=frozenset({"Read"})))) == [2]
    assert ids(deferred.due(TurnFacts(completed_tools=frozenset({"Bash"})))) == [1, 3]
    assert ids(deferred.due(TurnFacts(completed_tools=frozenset({"Bash"})))) == []
    assert len(deferred) == 0


def test_a_condition_makes_it_due_once():
    """N-70, N-71."""
    deferred = DeferredNotices()
    deferred.add(notice(1, condition="message_count_above(3)"))

    assert ids(deferred.due(TurnFacts(message_count=2))) == []
    assert ids(deferred.due(TurnFacts(message_count=3))) == [1]
    assert ids(deferred.due(TurnFacts(message_count=4))) == []


def test_a_threshold_that_was_used_has_to_be_left_before_it_counts_again():
    """N-75: edge-triggered, with re-arming."""
    deferred, full = DeferredNotices(), TurnFacts(context_tokens=80, max_context_tokens=100)
    empty = TurnFacts(context_tokens=20, max_context_tokens=100)
    deferred.add(notice(1, condition="context_above_threshold(0.7)"))
    deferred.add(notice(2, condition=" context_above_threshold(0.70) "))
    assert ids(deferred.due(full)) == [1, 2], "all that wait for the same edge"

    deferred.add(notice(3, condition="context_above_threshold(0.7)"))
    assert ids(deferred.due(full)) == []
    assert ids(deferred.due(empty)) == []
    assert ids(deferred.due(full)) == [3]


def test_a_threshold_is_armed_again_while_nothing_waits_for_it():
    """N-75."""
    deferred, full = DeferredNotices(), TurnFacts(context_tokens=80, max_context_tokens=100)
    deferred.add(notice(1, condition="context_above_threshold(0.7)"))
    deferred.due(full)
    deferred.rearm(TurnFacts(context_tokens=20, max_context_tokens=100))
    deferred.add(notice(2, condition="context_above_threshold(0.7)"))

    assert ids(deferred.due(full)) == [2]


def test_a_notice_whose_turn_failed_is_due_again_although_its_condition_stayed_true():
    """N-75."""
    deferred, full = DeferredNotices(), TurnFacts(context_tokens=80, max_context_tokens=100)
    deferred.add(notice(1, condition="context_above_threshold(0.7)"))
    deferred.due(full)
    deferred.add(notice(1, condition="context_above_threshold(0.7)"))

    assert ids(deferred.due(full)) == [1]


@pytest.mark.parametrize(
    "condition",
    [
        "context_above_threshold(0.8); import os",
        "context_above_threshold(1.5)",
        "message_count_above(0)",
        "tool_completed()",
        "__import__('os')",
    ],
)
def test_what_is_no_condition_is_refused(condition):
    """N-72, and B.12-11: a beginning that fitted was enough."""
    with pytest.raises(BadCondition):
        DeferredNotices().add(notice(1, condition=condition))


def test_what_is_dropped_is_not_due():
    deferred = DeferredNotices()
    deferred.add(notice(1, tool_name=""))
    deferred.drop(1)
    deferred.drop(2)

    assert deferred.due(TurnFacts(completed_tools=frozenset({"Bash"}))) == []
