"""Timeouts in the texts of tools' errors."""

from __future__ import annotations

import pytest

from agent_runner.ans.tool_events import ToolTimeout, timeout_in


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        ("Command timed out after 2m", 120.0),
        ("Command timed out after 1.5s", 1.5),
        ("out of paper\nCommand timed out after 250 ms.", 0.25),
        ("The host did not answer in 30 s", 30.0),
        ("The host did not answer in 0.2 s.", 0.2),
        ("MCP error -32001: Request timed out", None),
    ],
)
def test_a_timeout_says_after_how_long(error: str, seconds: float | None) -> None:
    assert timeout_in(error) == ToolTimeout(seconds=seconds)


@pytest.mark.parametrize(
    "error",
    [
        "Command timed out after 1.2.3s",
        "Command timed out after .s",
        f"Command timed out after {'9' * 400}s",
        "The host did not answer in 1..2 s",
        "exit code 3",
    ],
)
def test_another_error_is_no_timeout(error: str) -> None:
    assert timeout_in(error) is None
