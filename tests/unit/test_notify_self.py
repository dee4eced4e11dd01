"""What a notice to oneself may say (N-41 to N-43)."""

from __future__ import annotations

from typing import Any

import pytest

from agent_runner.wire.mailbox import NotifySelf
from agent_runner.wire.notify_self import event_type_of, refusal_of, severity_of


@pytest.mark.parametrize(
    ("fields", "code", "names"),
    [
        ({"message": ""}, "missing_message", "message"),
        ({"message": " \n "}, "missing_message", "message"),
        ({"message": "x" * 2001}, "message_too_long", "at most 2,000 characters, not 2,001"),
        ({"priority": "urgent"}, "bad_enum", "low, normal, high, critical, not 'urgent'"),
        ({"category": "note"}, "bad_enum", "discovery, warning, checkpoint, reminder, context"),
        (
            {"deliver_at": "later"},
            "bad_enum",
            "immediate, next_turn, after_n_turns, after_tool, on_condition, not 'later'",
        ),
        ({"deliver_at": "after_n_turns"}, "bad_value", "turns: from 1 to 100, and it is missing"),
        ({"deliver_at": "after_n_turns", "turns": 0}, "bad_value", "from 1 to 100, not '0'"),
        ({"deliver_at": "after_n_turns", "turns": -5}, "bad_value", "from 1 to 100, not '-5'"),
        ({"deliver_at": "after_n_turns", "turns": 101}, "bad_value", "from 1 to 100, not '101'"),
        ({"turns": 3}, "bad_value", "turns: only with deliver_at after_n_turns, not with next_turn"),
        ({"tool_name": "Bash"}, "bad_value", "tool_name: only with deliver_at after_tool"),
        ({"condition": "x"}, "bad_value", "condition: only with deliver_at on_condition"),
        ({"deliver_at": "after_tool", "tool_name": "rm -rf"}, "bad_value", "tool_name: the name of a tool"),
        ({"deliver_at": "on_condition"}, "bad_condition", "context_above_threshold(0.7)"),
        (
            {"deliver_at": "on_condition", "condition": "context_above_threshold(0.8); import os"},
            "bad_condition",
            "tool_completed",
        ),
        ({"expires_in_hours": -1}, "bad_value", "to 720, not -1"),
        ({"expires_in_hours": 721}, "bad_value", "to 720, not 721"),
        ({"dedupe_key": ""}, "bad_value", "from 1 to 200 characters"),
        ({"dedupe_key": "k" * 201}, "bad_value", "not 201"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(fields: dict[str, Any], code: str, names: str) -> None:
    refusal = refusal_of(NotifySelf(**{"message": "look", **fields}))
    assert refusal is not None
    assert refusal.code == code
    assert names in refusal.text


@pytest.mark.parametrize(
    "fields",
    [
        {"message": "x" * 2000},
        {"priority": "critical", "category": "discovery", "deliver_at": "immediate"},
        {"deliver_at": "after_n_turns", "turns": 100, "expires_in_hours": 0},
        {"deliver_at": "after_tool"},
        {"deliver_at": "after_tool", "tool_name": "mcp__andy__send_message"},
        {"deliver_at": "on_condition", "condition": "tool_completed(Bash)"},
        {"dedupe_key": "k" * 200, "expires_in_hours": 720, "persist_cross_session": True},
    ],
)
def test_what_fits_is_taken(fields: dict[str, Any]) -> None:
    assert refusal_of(NotifySelf(**{"message": "look", **fields})) is None


def test_a_priority_says_how_grave_the_event_is() -> None:
    severities = [severity_of(priority) for priority in ("low", "normal", "high", "critical")]
    assert severities == ["debug", "info", "warning", "error"]


def test_only_a_reminder_is_an_event_of_another_name() -> None:
    assert event_type_of("reminder") == "agent.self.remind"
    assert {event_type_of(name) for name in ("discovery", "warning", "checkpoint", "context")} == {
        "agent.self.notify"
    }
