"""The runner around agents that misbehave: no model, no CLI."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pydantic import ValidationError

from agent_runner.ans.lazy_notices import LazyNotices
from agent_runner.frame_writer import FrameWriter
from agent_runner.inbox import TurnInbox
from agent_runner.interfaces import Say, TokenUsage, TurnOutcome
from agent_runner.session import AGENT_BROKE, TURN_CUT_OFF, RunnerSession
from agent_runner.wire.frames import Frame, FrameDecoder, FrameLine, Heartbeat, Ready, parse_frame
from agent_runner.wire.mailbox import MAX_TEXT_CHARS
from agent_runner.wire.order import RestoreMode, RunOrder, TurnLimits, TurnOrder
from agent_runner.workspace import Workspace
from orchestrator.domain.values import TurnState
from tests.processes.forked_programs import forked
from tests.processes.runner import RUN, RunnerProcess, order_of
from tests.support.store_harness import StoreHarness

Answer = Callable[[TurnOrder, Say], Awaitable[TurnOutcome]]


@dataclass
class PlannedAgent:
    """Does in its first turn what the test says, then closes the run's inbox."""

    plan: Answer
    close_file: Path
    session_id: str | None = None
    restored: RestoreMode | None = None
    closed: list[bool] = field(default_factory=list)

    async def start(self) -> None:
        pass

    async def answer(self, turn: TurnOrder, say: Say) -> TurnOutcome:
        await asyncio.to_thread(self.close_file.write_text, f'{{"runs": ["{RUN}"]}}')
        return await self.plan(turn, say)

    async def close(self) -> None:
        self.closed.append(True)


class Reading:
    """The other end of an outlet."""

    def __init__(self) -> None:
        self.read, self._write = os.pipe()
        self.outlet = FrameWriter(self._write)
        self._got = b""

    def wait_for(self, count: int) -> None:
        """Block until so many frames were put."""
        while self._got.count(b"_END---") < count:
            self._got += os.read(self.read, 65536)

    def frames(self) -> list[Frame]:
        """Read all that was put. Last call."""
        with ThreadPoolExecutor(1) as reader, os.fdopen(self.read, "rb") as pipe:
            data = reader.submit(pipe.read)
            self.outlet.finish(60)
            os.close(self._write)
            return list(decoded(self._got + data.result()))


def test_a_frame_that_cannot_be_leaves_no_gap_in_the_numbers() -> None:
    reading = Reading()
    with pytest.raises(ValidationError):
        reading.outlet.put(Heartbeat, new_session_id="x" * 201)
    reading.outlet.put(Ready)
    assert [frame.n for frame in reading.frames()] == [1]


async def live(
    workspace: Workspace, plan: Answer, *, order: RunOrder | None = None
) -> tuple[int, list[Frame], PlannedAgent]:
    reading = Reading()
    agent = PlannedAgent(plan, workspace.input / "_close")
    inbox = TurnInbox(workspace.input, RUN, handled={1})
    order = order or order_of("hi")
    noticing = LazyNotices(order, workspace)
    code = await RunnerSession(order, agent, inbox, reading.outlet, noticing).run()
    return code, reading.frames(), agent


async def test_an_error_outcome_is_told_and_the_run_goes_on_to_its_close(workspace: Workspace) -> None:
    async def fails(turn: TurnOrder, say: Say) -> TurnOutcome:
        return TurnOutcome(error="no model is configured", usage=TokenUsage(input_tokens=3))

    code, frames, agent = await live(workspace, fails)
    assert code == 0
    assert [frame.kind for frame in frames] == ["ack", "usage", "turn_end"]
    assert frames[-1].model_dump(include={"status", "error", "code"}) == {
        "status": "error",
        "error": "no model is configured",
        "code": "agent",
    }
    assert agent.closed == [True]


async def test_an_agent_that_raises_is_told_in_one_line_and_ends_the_run(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    quoted = "two lines of\nsecret talk"

    async def breaks(turn: TurnOrder, say: Say) -> TurnOutcome:
        raise ValueError(quoted)

    code, frames, agent = await live(workspace, breaks)
    assert code == AGENT_BROKE
    assert frames[-1].error == "ValueError: two lines of secret talk"
    assert agent.closed == [True]
    assert "secret talk" not in caplog.text


async def test_a_timeout_of_the_agents_own_is_not_the_turns(workspace: Workspace) -> None:
    async def times_out(turn: TurnOrder, say: Say) -> TurnOutcome:
        raise TimeoutError("its own")

    code, frames, _ = await live(workspace, times_out)
    assert (code, frames[-1].error) == (AGENT_BROKE, "TimeoutError: its own")


async def test_a_turn_is_cut_off_at_its_limit(workspace: Workspace) -> None:
    async def thinks(turn: TurnOrder, say: Say) -> TurnOutcome:
        await asyncio.Event().wait()
        raise AssertionError

    code, frames, _ = await live(
        workspace, thinks, order=order_of("hi", limits=TurnLimits(turn_seconds=0.05))
    )
    assert code == TURN_CUT_OFF
    assert frames[-1].error == "it took longer than 0.05 seconds."


async def test_a_turn_over_its_time_limit_is_not_tried_again_and_told_once(
    workspace: Workspace, store_harness: StoreHarness
) -> None:
    await store_harness.add_group()
    await store_harness.hear("@Andy hi")
    turn, run, _ = await store_harness.start_next()
    tools_used = []

    async def uses_a_tool_and_hangs(turn: TurnOrder, say: Say) -> TurnOutcome:
        tools_used.append(turn.turn)
        await asyncio.Event().wait()
        raise AssertionError

    limits = TurnLimits(turn_seconds=0.05)
    _, said, _ = await live(workspace, uses_a_tool_and_hangs, order=order_of("hi", limits=limits))
    for frame in said:
        await store_harness.take(run, frame)

    failed = await store_harness.turn(turn.id)
    assert (failed.state, failed.attempt) == (TurnState.FAILED, 1)
    assert await store_harness.deliver_all() == [
        "⚠️ I could not answer this: it took longer than 0.05 seconds. Your next message tries again."
    ]
    assert await store_harness.queued() == []
    assert tools_used == [turn.id]


async def test_text_that_no_frame_can_hold_is_made_to_fit(workspace: Workspace) -> None:
    async def says(turn: TurnOrder, say: Say) -> TurnOutcome:
        await say("broken \ud83d half")
        await say("  \n")
        await say("x" * (MAX_TEXT_CHARS + 1))
        return TurnOutcome()

    _, frames, _ = await live(workspace, says)
    results = [frame.result or "" for frame in frames if frame.kind == "result"]
    assert results[0] == "broken ? half"
    assert len(results) == 2
    assert len(results[1]) <= MAX_TEXT_CHARS
    assert results[1].endswith("(cut: 100,001 characters)")


async def test_the_heart_beats_while_the_agent_thinks(workspace: Workspace) -> None:
    reading = Reading()
    agent = PlannedAgent(
        lambda *_: asyncio.sleep(0, TurnOutcome()), workspace.input / "_close", session_id="s"
    )
    order, inbox = order_of("hi"), TurnInbox(workspace.input, RUN, handled=set())
    session = RunnerSession(order, agent, inbox, reading.outlet, LazyNotices(order, workspace))
    beating = asyncio.create_task(session.beat(0.01), name="beat")
    await asyncio.to_thread(reading.wait_for, 3)
    beating.cancel()
    beats = reading.frames()
    assert {(frame.kind, frame.new_session_id) for frame in beats} == {("heartbeat", "s")}
    assert [frame.n for frame in beats] == list(range(1, len(beats) + 1))
    assert len(beats) > 2


def test_frames_wait_for_a_reader_that_pauses() -> None:
    reading = Reading()
    for _ in range(3000):
        reading.outlet.put(Heartbeat, new_session_id="x" * 100)
    got = b""
    while got.count(b"_END---") < 3000:
        got += os.read(reading.read, 65536)
    assert [frame.n for frame in decoded(got)] == list(range(1, 3001))
    assert reading.frames() == []


def decoded(data: bytes) -> Iterator[Frame]:
    return (parse_frame(line) for line in FrameDecoder().feed(data) if isinstance(line, FrameLine))


def test_an_outlet_without_a_reader_is_broken_and_stays_quiet() -> None:
    reading = Reading()
    os.close(reading.read)
    reading.outlet.put(Ready)
    reading.outlet.finish(10)
    assert reading.outlet.is_broken
    os.close(reading._write)


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ("", "JSON"),
        ("not json\n", "JSON"),
        ('{"run": "x"}\n', "group"),
        (order_of("hi").to_json().replace('"v":1', '"v":2') + "\n", "rebuild the image"),
    ],
)
def test_a_bad_order_is_refused_in_a_frame(workspace: Workspace, order: str, reason: str) -> None:
    with RunnerProcess(workspace, order) as runner:
        assert runner.process.stdin
        runner.process.stdin.close()
        assert runner.exit_code() == 2
    (frame,) = runner.frames
    assert (frame.kind, frame.n, frame.status, getattr(frame, "code", None)) == ("error", 1, "error", "order")
    assert reason in (frame.error or "")


MISBEHAVING = """
import asyncio, os, subprocess, sys, time
from agent_runner import __main__, runner
from agent_runner.interfaces import TurnOutcome

class Agent:
    session_id = restored = None
    async def start(self):
        print("stray print")
        os.write(1, b"stray write\\n")
        subprocess.run(["echo", "stray child"])
        {start}
    async def answer(self, turn, say):
        {answer}
    async def close(self):
        {close}

runner.make_agent = lambda *_: Agent()
runner.HEARTBEAT_SECONDS = 0.05
sys.exit(__main__.main())
"""


class Misbehaving(RunnerProcess):
    """A runner whose agent is a few lines of a test."""

    def __init__(
        self, workspace: Workspace, *, answer: str, start: str = "pass", close: str = "pass"
    ) -> None:
        program = MISBEHAVING.format(answer=answer, start=start, close=close)
        super().__init__(workspace, order_of("hi"), command=forked("runner", "-c", program))


def test_stray_output_never_enters_the_frames(workspace: Workspace) -> None:
    with Misbehaving(workspace, answer="await say('hi'); return TurnOutcome()") as runner:
        runner.close()
        assert runner.exit_code() == 0
    assert runner.stray == []
    assert all(f"stray {what}" in runner.stderr for what in ("print", "write", "child"))
    assert runner.results(1) == ["hi"]


@pytest.mark.parametrize(
    ("answer", "close"),
    [
        ("await asyncio.Event().wait()", "pass"),
        ("await asyncio.Event().wait()", "await asyncio.Event().wait()"),
        ("time.sleep(600)", "pass"),
        (
            "while True:\n            try: await asyncio.sleep(600)\n            except BaseException: pass",
            "pass",
        ),
    ],
    ids=["that waits", "that does not close", "that blocks the loop", "that refuses to be cancelled"],
)
def test_sigterm_ends_an_agent(workspace: Workspace, answer: str, close: str) -> None:
    with Misbehaving(workspace, answer=answer, close=close) as runner:
        runner.wait_for("ack")
        runner.process.send_signal(signal.SIGTERM)
        assert runner.exit_code() == 143


def test_a_runner_that_nobody_listens_to_ends_quietly(workspace: Workspace) -> None:
    with Misbehaving(workspace, answer="await asyncio.Event().wait()") as runner:
        runner.stop_listening()
        assert runner.exit_code() == 0
    assert "Traceback" not in runner.stderr


def test_an_agent_that_cannot_start_ends_the_run_with_the_reason(workspace: Workspace) -> None:
    with Misbehaving(workspace, start="raise OSError('no CLI here')", answer="pass") as runner:
        assert runner.wait_for("turn_end").error == "OSError: no CLI here"
        assert runner.exit_code() == 1
    assert [frame.kind for frame in runner.frames if frame.kind != "heartbeat"] == ["ready", "turn_end"]


def test_the_package_says_nothing_when_stdin_is_empty(workspace: Workspace) -> None:
    environment = {**os.environ, "ANDY_WORKSPACE": str(workspace.root)}
    ended = subprocess.run(
        [sys.executable, "-m", "agent_runner"], stdin=subprocess.DEVNULL, capture_output=True, env=environment
    )
    assert (ended.returncode, ended.stderr) == (2, b"")
