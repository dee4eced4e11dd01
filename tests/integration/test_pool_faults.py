"""The pool when the disk, the engine or a container fails it, on a real database and a told runtime."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from agent_runner.wire.frames import Ack, Frame, Heartbeat, Result, TurnEnd
from orchestrator.containers import output, pool, start
from orchestrator.containers.pool import RunPool
from orchestrator.domain import failures
from orchestrator.domain.errors import EngineGone
from orchestrator.domain.protocols import ContainerSpec
from orchestrator.domain.values import Folder, RunState, Turn, TurnState
from orchestrator.queue.availability import Availability
from orchestrator.store import runs, sessions
from tests.doubles.scripted_runtime import ScriptedContainer, ScriptedRuntime, scripted_pool
from tests.support.household import Household
from tests.support.until import until


@dataclass
class House:
    """A group, and a pool whose reaper runs."""

    household: Household
    runtime: ScriptedRuntime
    pool: RunPool

    async def ask(self, text: str = "@Andy hi") -> Turn:
        await self.household.hear(text)
        return (await self.household.queued())[0]

    async def start(self, turn: Turn | None = None) -> tuple[Turn, ScriptedContainer]:
        """Give a turn to a new container."""
        turn = turn or await self.ask()
        count = len(self.runtime.started)
        await self.pool.start(turn)
        await until(lambda: len(self.runtime.started) > count, "a container is started")
        return turn, self.runtime.started[-1]

    async def start_in_vain(self, turn: Turn) -> Turn:
        """Try to give it to a new container; how the turn is afterwards."""
        await self.pool.start(turn)
        await self.until_put_back(turn)
        return await self.household.turn(turn.id)

    async def until_put_back(self, turn: Turn) -> Turn:
        async def is_back() -> bool:
            now = await self.household.turn(turn.id)
            return now.state is TurnState.QUEUED and now.reason is not None

        await until(is_back, "the turn is put back")
        await until(lambda: not self.slots(), "its slot is free")
        return await self.household.turn(turn.id)

    async def until_met(self, turn: Turn) -> None:
        """Wait until a turn is known to wait for its engine."""

        async def is_met() -> bool:
            return bool(await self.household.rows("SELECT 1 FROM turn_outages WHERE turn_id = ?", turn.id))

        await until(is_met, "its outage is noted")

    async def told_after(self, milliseconds: int) -> list[str]:
        """What chats are told when so much time has passed."""
        house = self.household
        house.clock.pass_ms(milliseconds)
        availability = Availability(
            house.database, clock=house.clock, wakeups=house.wakeups, bus=house.bus, refusal=AsyncMock()
        )
        async with asyncio.timeout(60):
            await availability.notify_waiting()
        return [one.text for one in await house.outgoing()]

    async def answer(self, turn: Turn, container: ScriptedContainer) -> None:
        for frame in (Ack(n=1, turn=turn.id), TurnEnd(n=2, turn=turn.id)):
            container.say(frame)
        await until(lambda: self.states() == [RunState.IDLE], "the container is idle")

    async def heard(self, container: ScriptedContainer, frame: Frame, turn: Turn) -> None:
        """Say a frame and wait until it was taken: a result after it was."""
        container.say(frame)
        container.say(Result(n=frame.n + 1, turn=turn.id, result=f"after {frame.n}"))

        async def is_held() -> bool:
            return any(one.text == f"after {frame.n}" for one in await self.household.outgoing())

        await until(is_held, "it was heard")

    async def session(self) -> tuple[str, int] | None:
        rows = await self.household.rows("SELECT session_id, updated_ms FROM sessions")
        return (rows[0]["session_id"], rows[0]["updated_ms"]) if rows else None

    def states(self) -> list[RunState]:
        return [run.state for run in self.pool.live()]

    def slots(self) -> list[RunState]:
        return [state for state in self.states() if state is not RunState.LEFT]


@asynccontextmanager
async def a_house(household: Household, home: Path) -> AsyncIterator[House]:
    runtime = ScriptedRuntime()
    await household.add_group()
    async with asyncio.TaskGroup() as tasks:
        pool = scripted_pool(household, runtime, tasks, home)
        watch = tasks.create_task(pool.reap(), name="reaper")
        yield House(household, runtime, pool)
        for task in [watch, *pool.tasks()]:
            task.cancel()


@pytest.fixture
async def house(
    household: Household, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[House]:
    monkeypatch.setattr(output, "REJOIN_SECONDS", 0.05)
    monkeypatch.setattr(pool, "REAP_SECONDS", 0.01)
    async with a_house(household, tmp_path) as made:
        yield made


# Handing over


async def test_a_hand_over_that_cannot_be_recorded_leaves_the_container_idle(house: House) -> None:
    await house.answer(*await house.start())
    turn = await house.ask("@Andy again")
    (run,) = house.pool.live()
    async with house.household.database.transaction() as tx:
        await tx.execute(
            "CREATE TABLE broken (id INTEGER REFERENCES turns (id) DEFERRABLE INITIALLY DEFERRED) STRICT"
        )
        await tx.execute(
            "CREATE TRIGGER breaks AFTER UPDATE ON turns BEGIN INSERT INTO broken VALUES (-1); END"
        )

    with pytest.raises(sqlite3.IntegrityError):
        await house.pool.hand_over(turn, run.id)

    assert house.pool.live() == [run], "idle, and since when it was"
    async with house.household.database.transaction() as tx:
        await tx.execute("DROP TRIGGER breaks")
    await house.pool.hand_over(turn, run.id)
    assert (await house.household.turn(turn.id)).state is TurnState.RUNNING
    assert house.states() == [RunState.BUSY]


async def test_while_a_turn_is_handed_over_its_container_is_neither_closed_nor_given_another(
    house: House,
) -> None:
    await house.answer(*await house.start())
    turn = await house.ask("@Andy again")
    (run,) = house.pool.live()
    async with house.household.database.transaction():
        handing = asyncio.create_task(house.pool.hand_over(turn, run.id), name="handing")
        await until(lambda: house.states() == [RunState.BUSY], "the hand-over is under way")
        await house.pool.close(run.id)
        await house.pool.hand_over(turn, run.id)
    await handing
    assert house.states() == [RunState.BUSY]
    assert (await house.household.turn(turn.id)).state is TurnState.RUNNING


@pytest.mark.parametrize(
    ("is_asked", "reason"), [(True, "its slot is needed"), (False, "it had nothing to do")]
)
async def test_an_idle_container_that_closes_has_left_nobody_without_an_answer(
    house: House, is_asked: bool, reason: str
) -> None:
    _, container = answered = await house.start()
    await house.answer(*answered)
    if is_asked:
        (run,) = house.pool.live()
        await house.pool.close(run.id)
    container.end()
    await until(lambda: not house.slots(), "its slot is free")

    (run,) = await house.household.rows("SELECT exit_kind, exit_detail FROM runs")
    assert run == {"exit_kind": "closed", "exit_detail": f"closed: {reason}"}
    (ended,) = [event for event in house.household.bus.ring if event.kind == "run.ended"]
    assert ended.reason == f"closed: {reason}"


async def test_a_container_that_ends_in_a_turn_has_not_answered_it(house: House) -> None:
    turn, container = await house.start()
    container.say(Ack(n=1, turn=turn.id))
    container.end()
    back = await house.until_put_back(turn)
    assert back.reason == "my container ended before I had answered."


# The session


async def test_a_session_is_kept_from_the_first_sign_of_life_in_a_turn(house: House) -> None:
    turn, container = await house.start()
    container.say(Heartbeat(n=1, new_session_id="first"))
    await until(house.session, "the session is kept")
    container.end()
    again = await house.until_put_back(turn)
    await house.start(again)
    assert [order.session_id for order in house.runtime.orders] == [None, "first"]


async def test_signs_of_life_of_a_known_session_write_nothing(house: House) -> None:
    turn, container = await house.start()
    await house.heard(container, Heartbeat(n=1, new_session_id="first"), turn)
    kept = await house.session()
    house.household.clock.pass_ms(10_000)
    await house.heard(container, Heartbeat(n=3, new_session_id="first"), turn)
    assert await house.session() == kept
    await house.heard(container, Heartbeat(n=5, new_session_id="second"), turn)
    assert await house.session() == ("second", house.household.clock.now_ms())


async def test_a_session_is_not_taken_of_a_sign_of_life_outside_a_turn(house: House) -> None:
    async with house.household.database.transaction() as tx:
        await sessions.keep(tx, Folder("family"), "gone", now_ms=1)
    turn, container = await house.start()
    container.say(TurnEnd(n=1, turn=turn.id, status="error", error="no such session", code="session_gone"))
    container.say(Heartbeat(n=2, new_session_id="another"))
    container.end()
    await house.until_put_back(turn)
    assert await house.session() is None


# An engine that stays away


async def given_up(house: House) -> tuple[Turn, ScriptedContainer]:
    """A turn whose container works on where no engine answers."""
    turn, container = await house.start()
    house.runtime.break_off()
    return await house.until_put_back(turn), container


async def test_a_session_gets_no_second_container_before_the_first_is_seen_to_end(house: House) -> None:
    turn, old = await given_up(house)
    assert turn.reason == "Docker does not answer."
    assert RunState.LEFT in house.states()

    turn = await house.start_in_vain(turn)
    assert turn.reason == "Docker does not answer."

    old.can_be_ended = False
    house.runtime.is_gone = False
    turn = await house.start_in_vain(turn)
    assert turn.reason == "my container could not be started."
    assert house.runtime.working == [old]

    old.can_be_ended = True
    _, new = await house.start(turn)
    assert house.runtime.working == [new]
    assert house.states() == [RunState.BUSY]


async def test_starts_in_vain_while_no_engine_answers_leave_one_container_to_look_for(house: House) -> None:
    house.runtime.is_gone = True
    turn = await house.ask()
    for _ in range(4):
        turn = await house.start_in_vain(turn)
        assert turn.reason == "Docker does not answer."
        assert house.states() == [RunState.LEFT], "the first may have been made; the others never were"
    house.runtime.is_gone = False
    await until(lambda: house.states() == [], "it is found not to be there")


async def test_a_container_that_was_made_though_no_engine_answered_is_found_and_ended(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = house.runtime.start

    async def make_and_say_nothing(spec: ContainerSpec, order: str) -> ScriptedContainer:
        await make(spec, order)
        house.runtime.is_gone = True
        raise EngineGone

    monkeypatch.setattr(house.runtime, "start", make_and_say_nothing)
    turn = await house.start_in_vain(await house.ask())
    monkeypatch.setattr(house.runtime, "start", make)
    turn = await house.start_in_vain(turn)
    assert house.states() == [RunState.LEFT]
    house.runtime.is_gone = False
    await until(lambda: not house.runtime.present, "what was made is ended")
    await until(lambda: house.states() == [], "and known to be")


async def test_other_groups_do_not_wait_for_a_container_that_cannot_be_ended(house: House) -> None:
    _, old = await given_up(house)
    old.can_be_ended = False
    house.runtime.is_gone = False
    await house.household.add_group("work")
    await house.household.hear("@Andy hi", "work")
    (turn,) = await house.household.queued("work")
    _, new = await house.start(turn)
    assert house.runtime.working == [old, new]
    assert sorted(house.states()) == [RunState.BUSY, RunState.LEFT]


async def test_a_container_that_is_not_there_any_more_keeps_nobody_waiting(house: House) -> None:
    turn, old = await given_up(house)
    house.runtime.present.remove(old)
    house.runtime.is_gone = False
    await until(lambda: house.states() == [], "nothing is held to be left")
    await house.start(turn)


async def test_a_given_up_container_is_ended_also_when_nobody_asks_for_another(house: House) -> None:
    _, old = await given_up(house)
    house.runtime.is_gone = False
    await until(lambda: house.runtime.present == [], "it is ended")
    assert old.has_ended.is_set()
    await until(lambda: house.states() == [], "nothing is held to be left")


async def test_a_container_that_an_engine_has_lost_is_known_to_be_gone(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "REJOIN_SECONDS", 60)  # it answers, and is heard out
    turn, container = await house.start()
    house.runtime.present.remove(container)
    container.said.put_nowait(EngineGone())
    turn = await house.until_put_back(turn)
    assert (turn.reason, turn.not_before_ms) == ("my container vanished.", house.household.clock.now_ms())
    assert house.states() == []


# Who waits for an engine


async def test_a_chat_whose_engine_went_away_in_its_turn_is_told_within_a_minute(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "REJOIN_SECONDS", 60)  # it is looked for all the while
    turn, _ = await house.start()
    house.runtime.break_off()
    await house.until_met(turn)
    assert await house.told_after(failures.TELL_OUTAGE_AFTER_MS - 1) == []
    assert await house.told_after(1) == [failures.WAITING[failures.Outage.ENGINE]]


async def test_a_chat_whose_container_cannot_be_made_is_told_and_its_attempts_do_not_count(
    house: House,
) -> None:
    house.runtime.is_gone = True
    turn = await house.ask()
    for _ in range(7):
        turn = await house.start_in_vain(turn)
    assert turn.attempt == 1
    assert await house.told_after(failures.TELL_OUTAGE_AFTER_MS) == [failures.WAITING[failures.Outage.ENGINE]]
    house.runtime.is_gone = False
    await house.start(turn)
    assert await house.household.rows("SELECT * FROM turn_outages") == []


async def test_a_start_that_hangs_is_told_before_the_engine_is_given_up(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "SLOW_SECONDS", 0.01)
    hangs = asyncio.Event()

    async def hang(*_: object) -> ScriptedContainer:
        await hangs.wait()
        raise EngineGone

    monkeypatch.setattr(house.runtime, "start", hang)
    turn = await house.ask()
    await house.pool.start(turn)
    await house.until_met(turn)
    assert await house.told_after(failures.TELL_OUTAGE_AFTER_MS) == [failures.WAITING[failures.Outage.ENGINE]]


# What can be seen


async def test_a_container_that_cannot_be_removed_is_seen_until_it_is(house: House) -> None:
    _, container = await house.start()
    container.can_be_ended = False
    container.end()
    await until(lambda: house.states() == [RunState.LEFT], "it is left")
    container.can_be_ended = True
    await until(lambda: house.states() == [], "it is removed at last")
    assert house.runtime.present == []


async def test_a_run_that_was_refused_is_told_with_the_engines_reason(house: House) -> None:
    house.runtime.refusal = "Docker refuses: no space left on device"
    turn = await house.start_in_vain(await house.ask())
    assert turn.reason == "my container could not be started."
    async with house.household.database.reading() as tx:
        (told,) = await runs.bad_ends(tx, since_ms=0)
    assert (told["kind"], told["reason"]) == ("refused", house.runtime.refusal)


# Restarting


@pytest.mark.parametrize(("was_idle", "kind"), [(True, "stopped"), (False, "lost")])
async def test_a_container_that_ended_with_the_host_is_an_error_only_if_a_turn_ran_in_it(
    household: Household, tmp_path: Path, *, was_idle: bool, kind: str
) -> None:
    async with a_house(household, tmp_path) as house:
        turn, container = await house.start()
        if was_idle:
            await house.answer(turn, container)

    async with asyncio.TaskGroup() as tasks:
        await scripted_pool(household, ScriptedRuntime(), tasks, tmp_path).adopt()

    (run,) = await household.rows("SELECT exit_kind FROM runs")
    assert run["exit_kind"] == kind
