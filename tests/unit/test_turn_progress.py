"""What a runner tells of a turn while it works on it, and what the host makes of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from claude_agent_sdk import StreamEvent

from agent_runner.ans.sdk_stream import report_progress
from agent_runner.frame_writer import FrameWriter
from agent_runner.progress import TurnProgress, summary
from agent_runner.wire.frames import (
    MAX_DRAFT_CHARS,
    MAX_SUMMARY_CHARS,
    MAX_TOOL_CALLS,
    Draft,
    Frame,
    ToolEnd,
    ToolStart,
)
from orchestrator.base.redaction import Redactor
from orchestrator.containers.turn_progress import DraftText, safe_start
from tests.doubles.clock import FakeClock
from tests.support.until import DEADLINE_SECONDS


class Outlet(FrameWriter):
    """Keeps what is put."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def put(self, frame: type[Frame], **fields: Any) -> None:
        self.frames.append(frame(n=len(self.frames) + 1, **fields))  # type: ignore[operator]


def telling() -> tuple[TurnProgress, list[Frame]]:
    outlet = Outlet()
    progress = TurnProgress(outlet)
    progress.begin_turn(1)
    return progress, outlet.frames


async def until_sent(frames: list[Frame]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not frames:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_words_that_come_close_together_are_one_piece() -> None:
    progress, frames = telling()
    progress.text_begins()
    for word in ("One ", "two ", "three"):
        progress.text(word)
    assert frames == [], "a quick answer costs no piece at all"
    await until_sent(frames)
    assert [(one.at, one.text) for one in frames if isinstance(one, Draft)] == [(0, "One two three")]
    progress.text(" and four")
    progress.tool_started("c1", "Bash", {"command": "ls"})
    assert isinstance(frames[1], Draft), "what was written before a call is told before it"
    assert (frames[1].at, frames[1].text) == (13, " and four")
    progress.text_begins()
    progress.text("anew")
    progress.text_begins()
    assert isinstance(frames[3], Draft)
    assert (frames[3].at, frames[3].text) == (0, "anew")


async def test_a_text_a_turn_and_its_calls_are_bounded() -> None:
    progress, frames = telling()
    progress.text("x" * (MAX_DRAFT_CHARS + 5_000))
    for number in range(MAX_TOOL_CALLS + 50):
        progress.tool_started(f"c{number}", "Bash", {})
        progress.tool_ended(f"c{number}", ok=True)
    assert sum(len(one.text) for one in frames if isinstance(one, Draft)) == MAX_DRAFT_CHARS
    assert sum(isinstance(one, ToolStart) for one in frames) == MAX_TOOL_CALLS
    assert sum(isinstance(one, ToolEnd) for one in frames) == MAX_TOOL_CALLS


async def test_a_call_begins_once_and_ends_once_and_only_in_its_turn() -> None:
    progress, frames = telling()
    progress.tool_started("c1", "Bash", {})
    progress.tool_started("c1", "Bash", {})
    progress.tool_ended("c1", ok=False)
    progress.tool_ended("c1", ok=True)
    progress.tool_ended("never began", ok=True)
    assert [(one.kind, one.status) for one in frames] == [("tool_start", "success"), ("tool_end", "error")]
    progress.text("left over")
    progress.end_turn()
    progress.tool_started("c2", "Bash", {})
    progress.begin_turn(2)
    progress.tool_ended("c1", ok=True)
    progress.tool_started("c3", "Read", {})
    assert [(one.turn, one.kind) for one in frames[2:]] == [(2, "tool_start")]


async def test_the_words_of_a_subagent_are_not_the_turns_text() -> None:
    progress, frames = telling()
    event = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "its words"}}
    told = StreamEvent(uuid="u", session_id="s", event=event, parent_tool_use_id="toolu_1")
    report_progress(progress, told)
    report_progress(progress, replace(told, parent_tool_use_id=None))
    progress.text_begins()
    assert [one.text for one in frames if isinstance(one, Draft)] == ["its words"]


def test_a_summary_is_one_bounded_line_of_what_tells_most() -> None:
    assert summary({"command": "ls\n  -l", "description": "look"}) == "ls -l"
    assert summary({"due": "tomorrow", "is_all_day": True}) == '{"due": "tomorrow", "is_all_day": true}'
    assert summary({}) == ""
    assert len(summary({"content": "x" * 1_000_000, "rows": [["y" * 9_000]]})) == MAX_SUMMARY_CHARS
    assert summary({"command": 7}) == '{"command": 7}'


def test_the_host_shows_a_call_in_one_line_without_secrets() -> None:
    hostile = ToolStart(
        n=1,
        turn=1,
        call="a\nb",
        tool="Ba\x1b[2Jsh\u2028",
        summary="export API_KEY=abcdef0123456789abcdef hunter-two " + "x" * 500,
    )
    safe = safe_start(hostile, Redactor(lambda: ("hunter-two",)).redact)
    assert (safe.call, safe.tool) == ("a b", "Ba [2Jsh")
    assert "abcdef0123" not in safe.summary
    assert "hunter" not in safe.summary
    assert len(safe.summary) == 300
    assert safe_start(hostile.model_copy(update={"tool": "\x07"}), str).tool == "?"


def piece(at: int, text: str, *, turn: int = 1) -> Draft:
    return Draft(n=1, turn=turn, at=at, text=text)


def test_the_text_of_a_turn_grows_and_says_where_a_part_is_missing() -> None:
    draft = DraftText()
    draft.take(piece(0, "One "))
    draft.take(piece(4, "two"))
    assert draft.of(1) == "One two"
    draft.take(piece(20, "later"))
    assert draft.of(1) == "One two… later"
    draft.take(piece(0, "anew"))
    assert (draft.of(1), draft.of(2)) == ("anew", "")
    draft.take(piece(9, "of a turn whose beginning an earlier host has heard", turn=2))
    assert draft.of(2).startswith("… of a turn")
    for number in range(12):
        draft.take(piece(100 + number * 4_000, "x" * 4_000, turn=2))
    assert len(draft.of(2)) == MAX_DRAFT_CHARS
    draft.forget()
    assert draft.of(2) == ""


def test_watchers_of_a_run_are_not_told_of_every_piece() -> None:
    draft, clock = DraftText(), FakeClock()
    assert draft.claim_notification(clock)
    assert not draft.claim_notification(clock)
    clock.pass_ms(100)
    assert draft.claim_notification(clock)
