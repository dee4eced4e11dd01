"""What a notice may wait for, as the host judges it: by a full match into a fixed table (N-71, N-72)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runner.wire.conditions import BadCondition, Several, parse_condition


@pytest.mark.parametrize(
    "text",
    [
        "context_above_threshold(0.7)",
        "context_above_threshold(1)",
        "token_usage_above(0.8)",
        "message_count_above(1)",
        "message_count_above(10000)",
        "tool_completed(Bash)",
        "tool_completed(mcp__andy__send_message)",
    ],
)
def test_each_of_the_four_is_read(text):
    """N-71."""
    parse_condition(text)


@pytest.mark.parametrize(
    ("text", "needs", "count"),
    [
        ("all(tool_completed(Bash), message_count_above(3))", "all", 2),
        (" any(tool_completed(Bash)) ", "any", 1),
        (f"any({', '.join(['message_count_above(3)'] * 4)})", "any", 4),
    ],
)
def test_a_few_of_them_together_are_read(text, needs, count):
    """N-72."""
    several = parse_condition(text)

    assert isinstance(several, Several)
    assert (several.needs, len(several.parts)) == (needs, count)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "all()",
        "all(tool_completed(Bash)",
        "all(tool_completed(Bash),)",
        "none(tool_completed(Bash))",
        "all(any(tool_completed(Bash)), tool_completed(Read))",
        "all(tool_completed(Bash)) or all(tool_completed(Read))",
        f"all({', '.join(['tool_completed(Bash)'] * 5)})",
        "context_above_threshold",
        "context_above_threshold(0.8); import os",
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
        "tool_completed(a b)",
        "tool_completed(Ünïcode)",
        f"tool_completed({'x' * 129})",
        "__import__(os)",
    ],
)
def test_what_is_no_condition_from_its_first_sign_to_its_last_is_refused(text):
    """N-72."""
    with pytest.raises(BadCondition) as refused:
        parse_condition(text)
    assert len(str(refused.value)) < 400


@given(st.text(max_size=80) | st.from_regex(r"[a-z_]{1,30}\([0-9a-z.\-+ ]{0,12}\)"))
def test_no_text_does_more_than_be_refused(text):
    """N-72."""
    try:
        parse_condition(text)
    except BadCondition:
        return
    assert any(
        name in text
        for name in (
            "context_above_threshold",
            "tool_completed",
            "message_count_above",
            "token_usage_above",
        )
    )
