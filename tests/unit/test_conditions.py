"""What a notice may wait for: a full match into a fixed table of four, arguments in range (N-71, N-72)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runner.wire.conditions import (
    FORMS,
    BadCondition,
    ContextAbove,
    MessagesAbove,
    TokensAbove,
    ToolCompleted,
    parse_condition,
)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("context_above_threshold(0.7)", ContextAbove(share=0.7)),
        ("context_above_threshold(1)", ContextAbove(share=1.0)),
        ("context_above_threshold(.25)", ContextAbove(share=0.25)),
        ("  token_usage_above( 0.8 ) ", TokensAbove(share=0.8)),
        ("message_count_above(1)", MessagesAbove(count=1)),
        ("message_count_above(10000)", MessagesAbove(count=10_000)),
        ("tool_completed(Bash)", ToolCompleted(tool="Bash")),
        ("tool_completed(mcp__andy__send_message)", ToolCompleted(tool="mcp__andy__send_message")),
    ],
)
def test_each_of_the_four_is_read(text, meant):
    """N-71."""
    assert parse_condition(text) == meant


def test_every_form_that_is_named_is_one():
    """N-72."""
    assert len({type(parse_condition(form)) for form in FORMS}) == len(FORMS) == 4


@pytest.mark.parametrize(
    "text",
    [
        "",
        "context_above_threshold",
        "context_above_threshold(0.8); import os",
        "context_above_threshold(0.8)\n",
        "x context_above_threshold(0.8)",
        "context_above_threshold(0.8)(0.8)",
        "context_above_threshold()",
        "context_above_threshold(.)",
        "context_above_threshold(0)",
        "context_above_threshold(1.01)",
        "context_above_threshold(-0.5)",
        "context_above_threshold(nan)",
        "context_above_threshold(1e-3)",
        "context_above_threshold(70)",
        "context_above_threshold(٠.٧)",
        "context_above_threshold(0.5, 0.6)",
        "CONTEXT_ABOVE_THRESHOLD(0.5)",
        "message_count_above(0)",
        "message_count_above(10001)",
        "message_count_above(3.5)",
        "message_count_above(+3)",
        "message_count_above(۳)",
        "token_usage_above(two)",
        "tool_completed()",
        "tool_completed('Bash')",
        "tool_completed(a b)",
        "tool_completed(Ünïcode)",
        f"tool_completed({'x' * 129})",
        "all(tool_completed(Bash))",
        "__import__(os)",
    ],
)
def test_what_is_no_condition_from_its_first_sign_to_its_last_is_refused(text):
    """N-72."""
    with pytest.raises(BadCondition) as refused:
        parse_condition(text)
    assert len(str(refused.value)) < 300
    assert "\n" not in str(refused.value)


@given(st.text(max_size=80) | st.from_regex(r"[a-z_]{1,30}\([0-9a-z.\-+ ]{0,12}\)"))
def test_any_text_is_a_condition_in_range_or_refused(text):
    """N-72."""
    try:
        found = parse_condition(text)
    except BadCondition:
        return
    match found:
        case ContextAbove(share=share) | TokensAbove(share=share):
            assert 0 < share <= 1
        case MessagesAbove(count=count):
            assert 1 <= count <= 10_000
        case ToolCompleted(tool=tool):
            assert 1 <= len(tool) <= 128
