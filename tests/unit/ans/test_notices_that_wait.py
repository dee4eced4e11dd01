"""What waits for a tool, a condition or a threshold."""

from __future__ import annotations

import pytest

from tests.support.notices_in_prompts import kept, lines


async def test_what_awaits_a_tool_is_told_after_it(notices):
    """N-70."""
    notices.begin_turn([kept(7, "after any", tool_name=""), kept(8, "after Bash", tool_name="Bash")])

    assert await notices.drain("turn_start") == ""
    notices.tool_ended("Read")
    assert lines(await notices.drain("after_tool")) == ["[NOTE] after any (notice 7)"]
    notices.tool_ended("Bash")
    assert lines(await notices.drain("after_tool")) == ["[NOTE] after Bash (notice 8)"]


async def test_the_end_of_a_tool_counts_for_one_look(notices):
    """N-75, and B.12-11: a tool of long ago stayed the last one."""
    notices.tool_ended("Bash")
    await notices.drain("after_tool")
    notices.give([kept(7, tool_name="Bash"), kept(8, condition="tool_completed(Bash)")])

    assert await notices.drain("after_tool") == ""
    notices.tool_ended("Bash")
    assert len(lines(await notices.drain("after_tool"))) == 2


async def test_the_tools_of_a_parallel_batch_all_count(notices):
    """N-75."""
    notices.give([kept(7, tool_name="Read"), kept(8, tool_name="Bash")])
    for name in ("Read", "Bash", "Grep"):
        notices.tool_ended(name)

    assert len(lines(await notices.drain("after_tool"))) == 2


@pytest.mark.parametrize("point", ["turn_start", "after_tool", "turn_end"])
async def test_a_condition_is_looked_at_at_every_point(notices, point):
    """N-75, and B.12-6: conditions were never looked at."""
    notices.give([kept(7, condition="context_above_threshold(0.5)")])
    assert await notices.drain(point) == ""
    notices.learn(context_tokens=60, max_context_tokens=100)

    assert lines(await notices.drain(point)) == ["[NOTE] call Bo (notice 7)"]
    assert await notices.drain(point) == ""


async def test_a_threshold_counts_again_after_it_was_left(notices):
    """N-75."""
    notices.learn(context_tokens=60, max_context_tokens=100, total_tokens=5, max_tokens=10, message_count=3)
    notices.give([kept(7, condition="context_above_threshold(0.5)")])
    assert len(lines(await notices.drain("after_tool"))) == 1
    notices.give([kept(8, condition="context_above_threshold(0.5)")])
    assert await notices.drain("after_tool") == ""
    notices.learn(context_tokens=10)
    notices.learn(context_tokens=70)

    assert len(lines(await notices.drain("after_tool"))) == 1
    assert (notices.facts.message_count, notices.facts.total_tokens) == (3, 5)
