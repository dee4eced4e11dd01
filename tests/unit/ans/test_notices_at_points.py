"""What is told at which point of a turn, in which order, and how much: N-10, N-20 to N-26."""

from __future__ import annotations

import asyncio
import threading

import pytest
from blockbuster import blockbuster_ctx

from agent_runner.ans.notices import INJECTION_CHARS
from tests.support.notices_in_prompts import fail, kept, lines, note


async def test_what_happens_is_told_once_at_its_point(notices):
    """N-24."""
    fail(notices)

    assert await notices.drain("turn_start") == ""
    assert lines(await notices.drain("after_tool")) == ["tool_fail: Read execution_error - no such file"]
    assert await notices.drain("after_tool") == ""
    assert notices.pending == 0


async def test_nothing_of_it_blocks_the_loop(notices, tmp_path, as_toml):
    own = tmp_path / "subscribers"
    own.mkdir()
    (own / "probe.toml").write_text(as_toml())
    fail(notices)

    with blockbuster_ctx("agent_runner"):
        assert await notices.drain("after_tool")


async def test_drains_at_once_tell_each_thing_once(notices):
    """C.3: hooks of one batch run at once."""
    fail(notices)
    note(notices, "now", inject_at="immediate")

    told = await asyncio.gather(*(notices.drain("after_tool") for _ in range(8)))

    assert sorted(filter(None, told)) == [max(told)]
    assert len(lines(max(told))) == 2


@pytest.mark.parametrize("point", ["immediate", "turn_start", "after_tool", "turn_end"])
async def test_what_is_immediate_takes_whichever_point_comes_first(notices, point):
    """N-24, and B.12-5: it was drained after the last call of the model."""
    note(notices, "now", inject_at="immediate", priority="critical")

    assert lines(await notices.drain(point)) == ["[NOTE] now"]


async def test_the_end_of_a_turn_is_a_point_too(notices):
    """N-24, and B.12-6: turn_end was never drained."""
    note(notices, "at the end", inject_at="turn_end")

    assert await notices.drain("after_tool") == ""
    assert lines(await notices.drain("turn_end")) == ["[NOTE] at the end"]


async def test_at_the_end_only_what_matters_is_told_and_the_rest_with_the_next_turn(notices):
    """N-24."""
    note(notices, "grave", inject_at="turn_end", priority="high")
    note(notices, "later", inject_at="turn_end")
    note(notices, "never mind", inject_at="immediate", priority="low")

    assert lines(await notices.drain("turn_end", at_least="high")) == ["[NOTE] grave"]
    notices.begin_turn()
    assert lines(await notices.drain("turn_start")) == ["[NOTE] later", "[NOTE] never mind"]


async def test_what_matters_most_comes_first_and_of_the_same_the_earlier(notices):
    """N-22."""
    for priority in ("low", "normal", "critical", "high", "normal", "critical"):
        note(notices, f"{priority} {notices.events.pending_count}", priority=priority)

    assert lines(await notices.drain("turn_start")) == [
        "[NOTE] critical 2",
        "[NOTE] critical 5",
        "[NOTE] high 3",
        "[NOTE] normal 1",
        "[NOTE] normal 4",
        "[NOTE] low 0",
    ]


async def test_what_was_not_told_in_a_turn_is_told_at_the_next_ones_first_opportunity(notices):
    """N-20, and B.12-1."""
    fail(notices)
    notices.begin_turn()
    note(notices, "of this turn")

    told = lines(await notices.drain("turn_start"))

    assert told == ["tool_fail: Read execution_error - no such file", "[NOTE] of this turn"]


async def test_what_does_not_fit_is_told_at_the_next_point_whichever_that_is(notices):
    """N-26."""
    for number in range(14):
        note(notices, f"number {number}")

    first = lines(await notices.drain("turn_start"))
    second = lines(await notices.drain("after_tool"))

    assert first[-1] == "more: 4 to be told next"
    assert first[:-1] + second == [f"[NOTE] number {number}" for number in range(14)]


async def test_thirty_thousand_characters_stay_under_the_cap_and_are_all_told(notices):
    """N-26."""
    messages = [f"{number}-" + "x" * 1_490 for number in range(20)]
    for message in messages:
        note(notices, message)

    told, texts = [], []
    while text := await notices.drain("after_tool" if texts else "turn_start"):
        texts.append(text)
        told += [line for line in lines(text) if line.startswith("[NOTE]")]

    assert max(map(len, texts)) < INJECTION_CHARS
    assert told == [f"[NOTE] {message}" for message in messages]


async def test_a_note_of_the_greatest_length_is_told_whole(notices):
    """N-26."""
    note(notices, "x" * 2_000)

    assert lines(await notices.drain("turn_start")) == ["[NOTE] " + "x" * 2_000]
    assert len(notices.delivered[0].text) == 2_000


async def test_where_little_is_left_it_waits_for_a_point_with_more(notices):
    fail(notices)

    assert await notices.drain("after_tool", limit=100) == ""
    assert len(await notices.drain("after_tool", limit=400)) <= 400
    assert notices.pending == 0


def formatting_slowly(notices):
    """Have its next text wait: an event that tells of its begin, and one that lets it end."""
    entered, leave = asyncio.Event(), threading.Event()
    loop, write = asyncio.get_running_loop(), notices._formatter.text

    def slow(notification):
        loop.call_soon_threadsafe(entered.set)
        leave.wait(10)
        return write(notification)

    notices._formatter.text = slow
    return entered, leave


async def test_who_is_cancelled_has_told_nothing(notices):
    """A hook that took too long tells what it would have told the next time."""
    fail(notices)
    entered, leave = formatting_slowly(notices)
    drain = asyncio.create_task(notices.drain("after_tool"), name="drain")
    await entered.wait()
    drain.cancel()
    leave.set()
    with pytest.raises(asyncio.CancelledError):
        await drain

    assert notices.delivered == ()
    assert len(lines(await notices.drain("after_tool"))) == 1
    assert len(notices.delivered) == 1


async def test_a_drain_that_outlives_its_turn_tells_nothing(notices):
    notices.begin_turn([kept(7)])
    entered, leave = formatting_slowly(notices)
    drain = asyncio.create_task(notices.drain("turn_start"), name="drain")
    await entered.wait()
    assert notices.end_turn().returned == (7,)
    leave.set()

    assert await drain == ""
    assert notices.delivered == ()
