"""What a container tells of its work while it works: kept, shown, forgotten, and harmless whatever it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agent_runner.wire.frames import (
    END,
    START,
    Ack,
    Draft,
    Frame,
    Result,
    ToolEnd,
    ToolStart,
    TurnEnd,
)
from orchestrator.containers.pool import RunPool
from orchestrator.domain.values import Turn
from orchestrator.store.runs import tool_calls
from tests.doubles.scripted_runtime import (
    ScriptedContainer,
    ScriptedRuntime,
    scripted_pool,
    scripted_ports,
)
from tests.support.store_harness import StoreHarness
from tests.support.until import DEADLINE_SECONDS, until


@dataclass
class Work:
    """A turn that a scripted container works on."""

    store_harness: StoreHarness
    pool: RunPool
    turn: Turn
    container: ScriptedContainer
    _said: int = 0

    def say(self, frame: type[Frame], **fields: object) -> None:
        self._said += 1
        self.container.say(frame(n=self._said, **{"turn": self.turn.id, **fields}))  # type: ignore[operator]

    async def is_heard(self) -> None:
        """Wait until all that was said is taken."""
        text = f"heard {self._said}"
        self.say(Result, result=text)

        async def is_held() -> bool:
            return any(one.text == text for one in await self.store_harness.outgoing())

        await until(is_held, "a result that came after it is held")

    async def calls(self) -> list[tool_calls.ToolCallRecord]:
        async with self.store_harness.database.reading() as tx:
            return await tool_calls.of_turn(tx, self.turn.id)

    async def draft(self) -> str:
        return await self.pool.draft(self.container.run_id, self.turn.id)


@pytest.fixture
async def work(store_harness: StoreHarness, tmp_path: Path) -> AsyncIterator[Work]:
    await store_harness.add_group()
    await store_harness.hear("@Andy hi")
    turn = (await store_harness.queued())[0]
    runtime = ScriptedRuntime()
    async with asyncio.TaskGroup() as tasks:
        ports = replace(scripted_ports(), redact=lambda text: text.replace("hunter2", "[redacted]"))
        pool = scripted_pool(store_harness, runtime, tasks, tmp_path / "logs", ports=ports)
        await pool.start(turn)
        await until(lambda: bool(runtime.started), "a container is started")
        work = Work(store_harness, pool, turn, runtime.started[0])
        work.say(Ack)
        yield work
        runtime.started[0].end()


async def test_calls_of_tools_are_kept_for_who_looks_later(work: Work) -> None:
    work.say(ToolStart, call="c1", tool="Task", summary="count")
    work.say(ToolStart, call="c2", tool="Bash", summary="cat hunter2\x1b[2J", parent="c1")
    work.say(ToolEnd, call="c2", ms=10**9, status="error")
    await work.is_heard()
    first, second = await work.calls()
    assert (first.tool, first.parent_id, first.is_ok, first.duration_ms) == ("Task", None, None, None)
    assert (second.tool, second.parent_id, second.is_ok) == ("Bash", "c1", False)
    assert second.summary == "cat [redacted] [2J"
    assert second.duration_ms is not None
    assert second.duration_ms < 10**9, "nothing takes longer than its turn does"
    work.say(TurnEnd)
    await until(lambda: [run.turn_id for run in work.pool.live()] == [None], "the turn has ended")
    assert len(await work.calls()) == 2


async def test_a_call_whose_id_is_not_on_one_line_ends_too(work: Work) -> None:
    work.say(ToolStart, call="c\n1\x1b", tool="Bash")
    work.say(ToolEnd, call="c\n1\x1b", ms=1)
    await work.is_heard()
    (call,) = await work.calls()
    assert (call.call_id, call.is_ok) == ("c 1", True)


async def test_a_text_that_grows_is_kept_in_memory_alone(work: Work) -> None:
    await work.is_heard()
    (before,) = await work.store_harness.rows("SELECT last_frame FROM runs")
    seen = len(work.store_harness.bus.ring)
    with work.store_harness.bus.listening("agent.*", with_transient=True) as events:
        work.say(Draft, at=0, text="The password is ")
        work.say(Draft, at=16, text="hunter2, and")
        async with asyncio.timeout(DEADLINE_SECONDS):
            event = await events.get()
    assert (event.kind, event.turn, event.group) == ("agent.text", work.turn.id, "family")
    assert event.to_json_dict().keys() == {"n", "at_ms", "kind", "group", "turn", "run"}, "no text in it"

    async def is_there() -> bool:
        return await work.draft() == "The password is [redacted], and"

    await until(is_there, "the text is there")
    (after,) = await work.store_harness.rows("SELECT last_frame FROM runs")
    assert dict(after) == dict(before), "a piece of text is no write"
    assert len(work.store_harness.bus.ring) == seen, "it is not among what happened lately"
    work.say(TurnEnd)

    async def is_gone() -> bool:
        return await work.draft() == ""

    await until(is_gone, "it goes with its turn")
    assert (await work.store_harness.outgoing())[-1].text.startswith("heard"), "it is no answer"


async def test_a_hostile_container_fills_no_table_and_speaks_for_no_other_turn(
    work: Work,
) -> None:
    for number in range(170):
        work.say(ToolStart, call=f"c{number}", tool="Bash")
    work.say(ToolStart, call="c1", tool="Read")
    work.say(ToolStart, call="other", tool="Bash", turn=work.turn.id + 1)
    work.say(ToolEnd, call="never began")
    work.say(Draft, at=2**50, text="of another turn", turn=work.turn.id + 1)
    await work.is_heard()
    assert len(await work.calls()) == 170
    assert await work.draft() == ""
    async with work.store_harness.database.transaction() as tx:
        await tx.execute(
            "INSERT INTO tool_calls (turn_id, run_id, attempt, call_id, tool, summary, started_ms)"
            " SELECT turn_id, run_id, attempt, 'more ' || call_id, tool, summary, 1 FROM tool_calls LIMIT 129"
        )
    work.say(ToolStart, call="300", tool="Bash")
    work.say(ToolStart, call="301", tool="Bash")
    await work.is_heard()
    assert [one.call_id for one in await work.calls()][-1] == "300"
    assert len(await work.calls()) == tool_calls.MAX_CALLS


async def test_a_kind_that_a_later_runner_sends_is_passed_over_in_silence(
    work: Work, capsys: pytest.CaptureFixture[str]
) -> None:
    later = '{"v": 1, "n": 99, "kind": "thought", "turn": 1, "text": "hm"}'
    work.container.said.put_nowait(f"{START}\n{later}\n{END}\n".encode())
    await work.is_heard()
    assert "frame.refused" not in capsys.readouterr().out


async def test_a_frame_that_is_read_again_neither_adds_nor_ends_a_call(store_harness: StoreHarness) -> None:
    await store_harness.add_group()
    await store_harness.hear("@Andy hi")
    turn, run, _ = await store_harness.start_next()
    frames = [
        ToolStart(n=1, turn=turn.id, call="c1", tool="Bash"),
        ToolEnd(n=2, turn=turn.id, call="c1", ms=3),
    ]
    news = [await store_harness.take(run, frame) for frame in frames + frames]
    assert [bool(one and one.is_progress) for one in news] == [True, True, False, False]
    (row,) = await store_harness.rows("SELECT tool, is_ok, attempt FROM tool_calls")
    assert dict(row) == {"tool": "Bash", "is_ok": 1, "attempt": 1}
    again = ToolEnd(n=3, turn=turn.id, call="c1", ms=9, status="error")
    assert not (await store_harness.take(run, again)).is_progress  # type: ignore[union-attr]
    (row,) = await store_harness.rows("SELECT is_ok, duration_ms FROM tool_calls")
    assert dict(row)["is_ok"] == 1, "a call ends once"
