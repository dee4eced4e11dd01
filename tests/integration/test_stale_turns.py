"""Turns that lie in `input/` when their run, or the host, ends before they were read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agent_runner.wire.frames import Ack, TurnEnd
from agent_runner.wire.order import CloseOrder, RunOrder, TurnOrder
from orchestrator.containers.pool import RunPool
from orchestrator.containers.termination import TURN_NOT_WRITTEN
from orchestrator.containers.timeouts import CLOSE_GRACE_MS
from orchestrator.domain.errors import SettingError
from orchestrator.domain.failures import FailureOwner
from orchestrator.domain.values import Group, Run, RunState, Turn, TurnState
from orchestrator.ipc import input_files
from orchestrator.queue.retries import MAX_RESTARTS, TOO_MANY_RESTARTS
from tests.doubles.scripted_runtime import (
    ScriptedContainer,
    ScriptedOrders,
    ScriptedRuntime,
    scripted_pool,
    scripted_ports,
)
from tests.support.live_files import contents
from tests.support.store_harness import StoreHarness
from tests.support.until import until

GONE = TurnOrder(run="gone", turn=99, kind="chat", prompt="x")


@dataclass
class Hosts:
    """One home, on which one host after another runs; the engine outlives them."""

    store_harness: StoreHarness
    home: Path
    runtime: ScriptedRuntime
    problem: SettingError | None = None
    """The reason why no order can be composed."""

    @property
    def input(self) -> Path:
        return self.home / "ipc" / "family" / "input"

    @asynccontextmanager
    async def host(self) -> AsyncIterator[RunPool]:
        """A host, killed when it is left: nothing is recorded of its end."""
        inputs = input_files.InputFiles(self.home / "ipc")
        ports = replace(scripted_ports(), files=inputs, orders=ScriptedOrders(order=self._order))
        async with asyncio.TaskGroup() as tasks:
            pool = scripted_pool(self.store_harness, self.runtime, tasks, self.home, ports=ports)
            await pool.adopt()
            yield pool
            await asyncio.sleep(0)  # a job that has not begun cannot be cancelled without a word
            for task in pool.tasks():
                task.cancel()

    def _order(self, run: Run, group: Group, turn: TurnOrder, session_id: str | None) -> RunOrder:
        if self.problem is not None:
            raise self.problem
        return ScriptedOrders().order(run, group, turn, session_id)

    async def ask(self, text: str) -> Turn:
        await self.store_harness.hear(f"@Andy {text}")
        return (await self.store_harness.queued())[0]

    async def idle(self, pool: RunPool) -> ScriptedContainer:
        """A container that has answered its first turn."""
        turn = await self.ask("first")
        await pool.start(turn)
        await until(lambda: self.runtime.started, "a container is started")
        (container,) = self.runtime.started
        container.say(Ack(n=1, turn=turn.id))
        container.say(TurnEnd(n=2, turn=turn.id))
        await until(lambda: [one.state for one in pool.live()] == [RunState.IDLE], "it is idle")
        return container

    async def handed_over(self, pool: RunPool, container: ScriptedContainer) -> Turn:
        turn = await self.ask("second")
        await pool.hand_over(turn, container.run_id)
        return turn

    def orders(self) -> list[tuple[str, int]]:
        """What lies in `input/`: each turn by its run."""
        found = [TurnOrder.parse(body) for body in contents(self.input, "*.json").values()]
        return sorted((order.run, order.turn) for order in found)


@pytest.fixture
async def hosts(store_harness: StoreHarness, tmp_path: Path) -> Hosts:
    await store_harness.add_group()
    made = Hosts(store_harness, tmp_path, ScriptedRuntime())
    made.input.mkdir(parents=True)
    return made


async def test_a_host_killed_before_its_turn_was_read_leaves_it_and_the_next_clears_only_what_is_over(
    hosts: Hosts,
) -> None:
    async with hosts.host() as pool:
        container = await hosts.idle(pool)
        turn = await hosts.handed_over(pool, container)
    input_files.write_turn(hosts.input, GONE)
    input_files.write_close(hosts.input, {"gone"})
    (hosts.input / ".half.json.partial").write_text("{")
    async with hosts.host():
        assert hosts.orders() == [(container.run_id, turn.id)]
        assert not (hosts.input / "_close").exists()
        assert not (hosts.input / ".half.json.partial").exists()
        container.say(Ack(n=3, turn=turn.id))
        container.say(TurnEnd(n=4, turn=turn.id))
        container.end()

        async def is_answered() -> bool:
            return (await hosts.store_harness.turn(turn.id)).state is TurnState.ANSWERED

        await until(is_answered, "the turn is answered")
        await until(lambda: not list(hosts.input.iterdir()), "nothing is left of a run that is over")


async def test_a_close_order_of_a_container_that_lives_on_is_kept(hosts: Hosts) -> None:
    async with hosts.host() as pool:
        container = await hosts.idle(pool)
        await pool.close(container.run_id)
    async with hosts.host():
        assert CloseOrder.parse((hosts.input / "_close").read_bytes()).runs == (container.run_id,)


async def test_a_turn_that_its_container_has_already_is_not_written_again(hosts: Hosts) -> None:
    async with hosts.host() as pool:
        container = await hosts.idle(pool)
        turn = await hosts.handed_over(pool, container)
        container.say(Ack(n=3, turn=turn.id))
        await until(lambda: not hosts.orders(), "its file is gone once it was taken")
    async with hosts.host() as pool:
        assert [one.state for one in pool.live()] == [RunState.BUSY]
        assert hosts.orders() == []


async def test_a_container_that_ends_before_it_has_read_its_turn_takes_the_file_along(hosts: Hosts) -> None:
    async with hosts.host() as pool:
        container = await hosts.idle(pool)
        turn = await hosts.handed_over(pool, container)
        assert hosts.orders() == [(container.run_id, turn.id)]
        input_files.write_turn(hosts.input, GONE)
        container.end()

        async def is_back() -> bool:
            return (await hosts.store_harness.turn(turn.id)).state is TurnState.QUEUED

        await until(is_back, "the turn is put back")
        await until(lambda: hosts.orders() == [("gone", 99)], "its file is gone, and no other")


async def test_a_container_that_died_with_the_host_leaves_no_turn(hosts: Hosts) -> None:
    async with hosts.host() as pool:
        turn = await hosts.handed_over(pool, await hosts.idle(pool))
    hosts.runtime.present.clear()
    async with hosts.host():
        assert (await hosts.store_harness.turn(turn.id)).state is TurnState.QUEUED
        assert hosts.orders() == []


async def test_a_restart_of_the_host_uses_up_no_attempt_of_a_turn(hosts: Hosts) -> None:
    """Runs in processes die with their host; a container that was removed is lost likewise."""
    async with hosts.host() as pool:
        turn = await hosts.handed_over(pool, await hosts.idle(pool))
    hosts.runtime.present.clear()
    async with hosts.host():
        found = await hosts.store_harness.turn(turn.id)
        assert (found.state, found.attempt, found.restarts) == (TurnState.QUEUED, 1, 1)
        assert found.not_before_ms <= hosts.store_harness.clock.now_ms(), "nothing has to recover first"


async def test_a_turn_during_which_the_host_always_dies_is_given_up_at_last(
    store_harness: StoreHarness,
) -> None:
    await store_harness.add_group()
    heard = await store_harness.hear("@Andy hi")
    for _ in range(MAX_RESTARTS + 1):
        run = await store_harness.begin_run()
        (turn,) = await store_harness.queued()
        await store_harness.give(turn, run)
        await store_harness.lose(run, fault=FailureOwner.RESTART)
        store_harness.clock.pass_ms(80_000)

    found = await store_harness.turn(heard.turn_id)
    assert (found.state, found.reason, found.attempt) == (TurnState.FAILED, TOO_MANY_RESTARTS, 1)
    (notice,) = await store_harness.outgoing()
    assert TOO_MANY_RESTARTS in notice.text


# Where the host cannot write


@asynccontextmanager
async def reaping(pool: RunPool) -> AsyncIterator[None]:
    watching = asyncio.create_task(pool.reap())
    try:
        yield
    finally:
        watching.cancel()


async def test_a_turn_that_cannot_be_written_again_at_a_start_is_put_back_and_ends_no_start(
    hosts: Hosts,
) -> None:
    async with hosts.host() as pool:
        turn = await hosts.handed_over(pool, await hosts.idle(pool))
    hosts.input.rename(hosts.home / "away")
    async with hosts.host():

        async def is_back() -> bool:
            return (await hosts.store_harness.turn(turn.id)).state is TurnState.QUEUED

        await until(is_back, "the turn is put back")
        assert (await hosts.store_harness.turn(turn.id)).reason == TURN_NOT_WRITTEN.reason


async def test_a_turn_whose_order_cannot_be_encoded_at_a_start_is_put_back_and_ends_no_start(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_turn(directory: Path, order: TurnOrder) -> str:
        del directory, order
        raise ValueError("no text")

    async with hosts.host() as pool:
        turn = await hosts.handed_over(pool, await hosts.idle(pool))
    monkeypatch.setattr(input_files, "write_turn", write_turn)
    async with hosts.host():

        async def is_back() -> bool:
            return (await hosts.store_harness.turn(turn.id)).state is TurnState.QUEUED

        await until(is_back, "the turn is put back")


async def test_a_container_of_an_old_image_that_cannot_be_asked_to_close_ends_no_start(hosts: Hosts) -> None:
    async with hosts.host() as pool:
        container = await hosts.idle(pool)
    container.is_outdated = True
    hosts.input.rename(hosts.home / "away")
    async with hosts.host() as pool:
        assert [one.state for one in pool.live()] == [RunState.CLOSING]


async def test_a_container_that_cannot_be_asked_to_close_is_killed_instead(hosts: Hosts) -> None:
    async with hosts.host() as pool:
        container = await hosts.idle(pool)
        hosts.input.rename(hosts.home / "away")
        await pool.close(container.run_id)
        assert [one.state for one in pool.live()] == [RunState.CLOSING]
        hosts.store_harness.clock.pass_ms(CLOSE_GRACE_MS + 1)
        async with reaping(pool):
            await until(container.has_ended.is_set, "it is killed")


async def test_a_turn_that_cannot_be_composed_again_ends_no_start(hosts: Hosts) -> None:
    async with hosts.host() as pool:
        turn = await hosts.ask("first")
        await pool.start(turn)
        await until(lambda: hosts.runtime.started, "a container is started")
    hosts.problem = SettingError("ANTHROPIC_API_KEY holds a space.")
    async with hosts.host():

        async def is_back() -> bool:
            return (await hosts.store_harness.turn(turn.id)).state is TurnState.QUEUED

        await until(is_back, "the turn is put back")
        assert hosts.runtime.started[0].has_ended.is_set()


async def test_a_container_whose_turn_was_not_written_is_ended_also_if_the_engine_refused_once(
    hosts: Hosts,
) -> None:
    async with hosts.host() as pool:
        container = await hosts.idle(pool)
        hosts.input.rename(hosts.home / "away")
        container.can_be_ended = False
        turn = await hosts.handed_over(pool, container)
        await until(container.is_stopping.is_set, "the engine refuses to stop it")
        container.can_be_ended = True

        async def is_back() -> bool:
            return (await hosts.store_harness.turn(turn.id)).state is TurnState.QUEUED

        async with reaping(pool):
            await until(is_back, "the turn is put back")


async def test_a_turns_file_that_cannot_be_removed_does_not_break_its_turn(hosts: Hosts) -> None:
    async with hosts.host() as pool:
        container = await hosts.idle(pool)
        turn = await hosts.handed_over(pool, container)
        hosts.input.rename(hosts.home / "away")
        hosts.input.write_text("no folder")
        container.say(Ack(n=3, turn=turn.id))
        container.say(TurnEnd(n=4, turn=turn.id))
        await until(lambda: [one.state for one in pool.live()] == [RunState.IDLE], "it is answered")
        assert (await hosts.store_harness.turn(turn.id)).state is TurnState.ANSWERED
