"""A turn on its way to a container: how its conversation goes on is decided in a job of its own.

A real database, context files and locks, the real lanes and pool; containers say what a test tells them.
"""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from agent_runner.wire.frames import Ack, Result, TurnEnd
from agent_runner.wire.order import RestoreOrder
from orchestrator.containers import start
from orchestrator.containers.pool import RunPool
from orchestrator.containers.ports import ChosenAgent, Restoration, resume_plainly
from orchestrator.context.recorder import ContextRecorder
from orchestrator.context.session_restorer import SessionRestorer
from orchestrator.context.tokens import EstimatingCounter, TokenFactors
from orchestrator.domain.errors import StoreError
from orchestrator.domain.protocols import Mount
from orchestrator.domain.values import Folder, Group, RunId, RunState, Turn, TurnState
from orchestrator.groups import registration
from orchestrator.queue.dispatcher import Containers, Dispatcher
from orchestrator.store.runs import runs, turns
from tests.doubles.scripted_runtime import (
    ScriptedContainer,
    ScriptedOrders,
    ScriptedRuntime,
    scripted_pool,
    scripted_ports,
)
from tests.support.store_harness import StoreHarness
from tests.support.until import DEADLINE_SECONDS, until

HOLDER = """
import sys
from filelock import FileLock
with FileLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""
FAMILY = Folder("family")


@contextmanager
def held_elsewhere(path: Path) -> Iterator[None]:
    """Another process holds a lock, until the block ends."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield
        holder.communicate()


@dataclass
class Gate:
    """A decision that takes until it `may` be made, for one group; others get theirs at once."""

    folder: str = FAMILY
    may: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[Turn] = field(default_factory=list)
    error: Exception | None = None

    async def restore(self, turn: Turn, group: Group, session_id: str | None) -> Restoration:
        self.asked.append(turn)
        if group.folder == self.folder:
            await self.may.wait()
            if self.error is not None:
                raise self.error
        return Restoration(
            restore=RestoreOrder(mode="rehydrate", reason="it was so decided", text="KEPT"),
            decided_on_session=session_id,
            session_id=None,
            model="opus",
            provider="api",
        )


@dataclass
class Harness:
    store_harness: StoreHarness
    runtime: ScriptedRuntime
    pool: RunPool
    dispatcher: asyncio.Task[None]

    async def ask(self, folder: str = "family", text: str = "@Andy hi") -> Turn:
        accepted = await self.store_harness.hear(text, folder)
        assert accepted.turn_id is not None
        return await self.store_harness.turn(accepted.turn_id)

    def states(self) -> list[tuple[str, RunState]]:
        return sorted((run.folder, run.state) for run in self.pool.live())

    async def container_of(self, folder: str) -> ScriptedContainer:
        found: list[ScriptedContainer] = []

        def is_there() -> bool:
            found[:] = [one for one in self.runtime.started if one.folder == folder]
            return bool(found)

        await until(is_there, f"the container of {folder} is started")
        return found[-1]

    async def answer(self, turn: Turn, container: ScriptedContainer, text: str = "Hello.") -> None:
        for frame in (
            Ack(n=1, turn=turn.id),
            Result(n=2, turn=turn.id, result=text),
            TurnEnd(n=3, turn=turn.id),
        ):
            container.say(frame)

        await self.until_state(turn, TurnState.ANSWERED)

    async def until_state(self, turn: Turn, state: TurnState) -> Turn:
        async def is_so() -> bool:
            return (await self.store_harness.turn(turn.id)).state is state

        await until(is_so, f"turn {turn.id} is {state.value}")
        return await self.store_harness.turn(turn.id)

    async def until_free(self) -> None:
        await until(lambda: self.states() == [], "its slot is free")

    async def recorded(self) -> list[str]:
        return [row["id"] for row in await self.store_harness.rows("SELECT id FROM runs")]

    async def look(self) -> None:
        """Have the lanes look twice, so that one look is whole."""
        for _ in range(2):
            self.store_harness.wakeups.lanes.set()
            async with self.store_harness.database.transaction():
                pass
            await asyncio.sleep(0)


@asynccontextmanager
async def a_host(
    store_harness: StoreHarness,
    home: Path,
    restore,  # type: ignore[no-untyped-def]
    *,
    cap: int = 5,
    **others: Any,
) -> AsyncIterator[Harness]:
    """Lanes and a pool, killed when they are left: nothing is recorded of their end."""
    runtime = ScriptedRuntime()
    async with asyncio.TaskGroup() as tasks:
        ports = replace(
            scripted_ports(), restore=restore, new_run_id=lambda: RunId(secrets.token_hex(6)), **others
        )
        ports = replace(ports, token=lambda: ("token", secrets.token_hex(6)))
        pool = scripted_pool(store_harness, runtime, tasks, home, ports=ports)
        containers = Containers(live=pool.live, start=pool.start, hand_over=pool.hand_over, close=pool.close)
        lanes = Dispatcher(
            store_harness.database,
            containers,
            cap=lambda: cap,
            clock=store_harness.clock,
            wakeups=store_harness.wakeups,
        )
        running = tasks.create_task(lanes.run(), name="dispatcher")
        yield Harness(store_harness, runtime, pool, running)
        running.cancel()
        await asyncio.sleep(0)  # a job that has not begun cannot be cancelled without a word
        for task in pool.tasks():
            task.cancel()


@pytest.fixture
async def groups_of_two(store_harness: StoreHarness) -> StoreHarness:
    await store_harness.add_group("family")
    await store_harness.add_group("work")
    return store_harness


# Others do not wait


async def test_while_one_groups_context_is_held_by_another_process_another_group_is_answered(
    groups_of_two: StoreHarness, tmp_path: Path
) -> None:
    store_harness = groups_of_two
    recorder = ContextRecorder(
        store_harness.database,
        contexts=tmp_path / "context",
        env=tmp_path / "env",
        counter=EstimatingCounter(),
        clock=store_harness.clock,
        bus=store_harness.bus,
        name="Andy",
        on_notified=lambda: None,
    )
    restoring = SessionRestorer(
        store_harness.database,
        recorder,
        session_files=tmp_path / "sessions",
        agent_of=lambda group, kind: ChosenAgent(agent="claude", model="opus", service="api"),
        factors=TokenFactors(tmp_path / "token-factors.json"),
        clock=store_harness.clock,
        bus=store_harness.bus,
    )
    await store_harness.hear("@Andy one")
    await store_harness.answer("1")
    await recorder.catch_up(FAMILY)
    async with a_host(store_harness, tmp_path, restoring.restore) as harness:
        with held_elsewhere(recorder.manager(FAMILY).files.path / ".context.lock"):
            first = await harness.ask("family")
            await until(lambda: harness.states() == [("family", RunState.STARTING)], "it has its slot")
            second = await harness.ask("work")
            await harness.answer(second, await harness.container_of("work"))
            assert [order.group for order in harness.runtime.orders] == ["work"], "the other still waits"
        await harness.answer(first, await harness.container_of("family"))
    assert [order.group for order in harness.runtime.orders] == ["work", "family"]


async def test_a_turn_is_decided_on_once_and_holds_its_groups_only_slot_meanwhile(
    groups_of_two: StoreHarness, tmp_path: Path
) -> None:
    gate = Gate()
    async with a_host(groups_of_two, tmp_path, gate.restore, cap=1) as harness:
        turn = await harness.ask("family")
        await until(lambda: gate.asked, "it is decided on")
        await harness.ask("work")
        await harness.ask("family", "@Andy and this")
        await harness.look()
        assert harness.states() == [("family", RunState.STARTING)]
        assert [one.id for one in gate.asked] == [turn.id]
        assert await harness.recorded() == []

        gate.may.set()
        container = await harness.container_of("family")
        await harness.answer(turn, container)
        container.end()
        await until(lambda: [one.folder for one in gate.asked] == ["family", "work"], "the next has a slot")
    (order, *_) = harness.runtime.orders
    assert "hi" in order.turn.prompt
    assert "and this" in order.turn.prompt, "what was said meanwhile is asked with it"
    assert (order.restore.text, order.restore.mode) == ("KEPT", "rehydrate")


async def test_it_is_recorded_how_it_goes_on_before_there_is_a_container(
    groups_of_two: StoreHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, object]] = []
    start = ScriptedRuntime.start

    async def look_and_start(self: ScriptedRuntime, spec, order):  # type: ignore[no-untyped-def]
        seen.extend(await groups_of_two.rows("SELECT * FROM runs"))
        return await start(self, spec, order)

    monkeypatch.setattr(ScriptedRuntime, "start", look_and_start)
    gate = Gate()
    gate.may.set()
    async with a_host(groups_of_two, tmp_path, gate.restore) as harness:
        turn = await harness.ask()
        await harness.answer(turn, await harness.container_of("family"))
        assert harness.pool.live()[0].turn_id is None
    (run,) = seen
    assert (run["restore_mode"], run["restore_reason"]) == ("rehydrate", "it was so decided")
    assert (run["model"], run["provider"]) == ("opus", "api")
    assert run["token_hash"]


# What happens meanwhile


async def test_a_turn_that_is_taken_back_meanwhile_gets_no_container(
    groups_of_two: StoreHarness, tmp_path: Path
) -> None:
    gate = Gate()
    async with a_host(groups_of_two, tmp_path, gate.restore) as harness:
        turn = await harness.ask()
        await until(lambda: gate.asked, "it is decided on")
        async with groups_of_two.database.transaction() as tx:
            await turns.settle(tx, turn.id, TurnState.ANSWERED, reason="taken back", now_ms=1)
        gate.may.set()
        await harness.until_free()
        assert (harness.runtime.started, await harness.recorded()) == ([], [])
    assert (await groups_of_two.turn(turn.id)).reason == "taken back"


async def test_a_group_that_is_taken_away_meanwhile_gets_no_container(
    groups_of_two: StoreHarness, tmp_path: Path
) -> None:
    gate = Gate()
    async with a_host(groups_of_two, tmp_path, gate.restore) as harness:
        turn = await harness.ask()
        await until(lambda: gate.asked, "it is decided on")
        async with groups_of_two.database.transaction() as tx:
            await registration.unregister(tx, "family", now_ms=1)
        gate.may.set()
        await harness.until_free()
        assert (harness.runtime.started, await harness.recorded()) == ([], [])
    assert (await groups_of_two.turn(turn.id)).state is TurnState.FAILED


async def test_a_run_that_is_stopped_while_it_is_decided_on_makes_no_container(
    groups_of_two: StoreHarness, tmp_path: Path
) -> None:
    gate = Gate()
    async with a_host(groups_of_two, tmp_path, gate.restore) as harness:
        turn = await harness.ask()
        await until(lambda: gate.asked, "it is decided on")
        (run,) = harness.pool.live()
        await harness.pool.stop(run.id, "the owner said so.")
        gate.may.set()
        failed = await harness.until_state(turn, TurnState.FAILED)
        await harness.until_free()
    assert failed.reason == "the owner said so."
    assert harness.runtime.started == []


async def test_what_goes_wrong_counts_as_an_attempt_and_frees_the_slot(
    groups_of_two: StoreHarness, tmp_path: Path
) -> None:
    gate = Gate(error=LookupError("broken"))
    gate.may.set()
    async with a_host(groups_of_two, tmp_path, gate.restore) as harness:
        turn = await harness.ask()

        async def is_put_back() -> bool:
            return (await groups_of_two.turn(turn.id)).attempt == 2

        await until(is_put_back, "the attempt is counted")
        await harness.until_free()
        other = await harness.ask("work")
        await harness.answer(other, await harness.container_of("work"))
    again = await groups_of_two.turn(turn.id)
    assert (again.state, again.reason) == (TurnState.QUEUED, "something went wrong inside Andy.")
    assert again.not_before_ms > groups_of_two.clock.now_ms()
    assert len(gate.asked) == 2, "one try each"


async def test_a_folder_on_a_disk_that_hangs_gives_the_slot_back(
    groups_of_two: StoreHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "PREPARE_SECONDS", 0.05)

    async def hang(group: Group, _: object) -> Sequence[Mount]:
        if group.folder == FAMILY:
            await asyncio.Event().wait()
        return ()

    gate = Gate()
    gate.may.set()
    async with a_host(
        groups_of_two, tmp_path, gate.restore, cap=1, orders=ScriptedOrders(prepare=hang)
    ) as harness:
        turn = await harness.ask()
        await until(lambda: gate.asked, "it is begun")
        other = await harness.ask("work")
        await harness.answer(other, await harness.container_of("work"))
    again = await groups_of_two.turn(turn.id)
    assert (again.state, again.reason) == (TurnState.QUEUED, "my folders could not be prepared.")


async def test_a_disk_without_room_is_waited_for_and_counts_as_no_attempt(
    groups_of_two: StoreHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, begin, refused = Gate(), runs.begin, []
    gate.may.set()

    async def begin_later(tx, run):  # type: ignore[no-untyped-def]
        if not refused:
            refused.append(run.id)
            raise StoreError("the disk is full")
        await begin(tx, run)

    monkeypatch.setattr(runs, "begin", begin_later)
    async with a_host(groups_of_two, tmp_path, gate.restore) as harness:
        turn = await harness.ask()
        await harness.answer(turn, await harness.container_of("family"))
    assert (await groups_of_two.turn(turn.id)).attempt == 1
    assert await harness.recorded() == refused


async def test_a_host_killed_while_it_decides_leaves_the_turn_to_the_next_as_it_was(
    groups_of_two: StoreHarness, tmp_path: Path
) -> None:
    gate = Gate()
    async with a_host(groups_of_two, tmp_path, gate.restore) as harness:
        turn = await harness.ask()
        await until(lambda: gate.asked, "it is decided on")
    left = await groups_of_two.turn(turn.id)
    assert (left.state, left.attempt, left.run_id) == (TurnState.QUEUED, 1, None)
    assert await harness.recorded() == []

    gate.may.set()
    async with a_host(groups_of_two, tmp_path, gate.restore) as harness:
        await harness.pool.adopt()
        await harness.answer(turn, await harness.container_of("family"))
    assert (await groups_of_two.turn(turn.id)).attempt == 1


async def test_a_host_that_ends_waits_for_what_it_decides(
    groups_of_two: StoreHarness, tmp_path: Path
) -> None:
    gate = Gate()
    async with a_host(groups_of_two, tmp_path, gate.restore) as harness:
        turn = await harness.ask()
        await until(lambda: gate.asked, "it is decided on")
        draining = asyncio.create_task(harness.pool.drain(seconds=30), name="draining")
        async with groups_of_two.database.transaction() as tx:
            await turns.settle(tx, turn.id, TurnState.ANSWERED, reason="taken back", now_ms=1)
        await asyncio.sleep(0)
        assert not draining.done()
        gate.may.set()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await draining


async def test_a_container_that_is_being_made_as_the_host_ends_is_ended_with_the_others(
    groups_of_two: StoreHarness, tmp_path: Path
) -> None:
    async with a_host(groups_of_two, tmp_path, resume_plainly) as harness:
        may_start, start = asyncio.Event(), harness.runtime.start

        async def slowly(spec: Any, order: str) -> ScriptedContainer:
            if spec.folder == "work":
                await may_start.wait()
            return await start(spec, order)

        harness.runtime.start = slowly  # type: ignore[method-assign]
        await groups_of_two.hear("@Andy hi")
        await groups_of_two.hear("@Andy hi", "work")
        await until(lambda: len(harness.runtime.started) == 1, "one container is there")
        await until(lambda: len(harness.pool.live()) == 2, "the other is being made")
        harness.dispatcher.cancel()
        stopping = asyncio.create_task(harness.pool.stop_all(), name="stopping")
        await harness.runtime.started[0].is_stopping.wait()
        may_start.set()
        await stopping
        assert [one.folder for one in harness.runtime.started] == ["family", "work"]
        assert harness.runtime.working == []


async def test_a_run_that_is_ended_while_its_container_is_made_holds_up_no_end_of_the_host(
    groups_of_two: StoreHarness, tmp_path: Path
) -> None:
    async with a_host(groups_of_two, tmp_path, resume_plainly) as harness:
        is_being_made, may_start, start = asyncio.Event(), asyncio.Event(), harness.runtime.start

        async def slowly(spec: Any, order: str) -> ScriptedContainer:
            is_being_made.set()
            await may_start.wait()
            return await start(spec, order)

        harness.runtime.start = slowly  # type: ignore[method-assign]
        await groups_of_two.hear("@Andy hi")
        await is_being_made.wait()
        harness.dispatcher.cancel()
        stopping = asyncio.create_task(harness.pool.stop_all(), name="stopping")
        await until(lambda: bool(groups_of_two.bus._listeners), "the host waits for it")
        harness.pool._termination.dismiss(next(iter(harness.pool._live_runs)), reason="Andy ends")
        may_start.set()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await stopping
        assert harness.runtime.working == []
