"""The pool when the disk, the engine or a container fails it, on a real database and a told runtime."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from agent_runner.wire import frames
from agent_runner.wire.frames import Ack, Draft, Frame, Heartbeat, Result, TurnEnd
from orchestrator.compose.self_inspect import FILTER_SOCKET
from orchestrator.containers import feature, live_runs, output, pool, start
from orchestrator.containers.feature import IMAGE_IS_THERE, ContainersFeature, ImageWatch
from orchestrator.containers.pool import RunPool
from orchestrator.domain import failures
from orchestrator.domain.errors import ContainerError, EngineGone, ImageMissing, StoreError
from orchestrator.domain.protocols import ContainerSpec
from orchestrator.domain.values import Folder, RunState, Turn, TurnState
from orchestrator.queue.availability import Availability
from orchestrator.store.runs import runs, sessions
from tests.doubles.scripted_runtime import ScriptedContainer, ScriptedRuntime, scripted_pool
from tests.support.host_contexts import host_context
from tests.support.read_only import read_only
from tests.support.store_harness import StoreHarness
from tests.support.until import DEADLINE_SECONDS, until

NO_IMAGE = "No agent starts, for the image is missing."


@dataclass
class ImageOnAnEngine:
    """A chosen runtime whose engine has these images."""

    images: set[str]
    image: str = "andy-agent:latest"

    async def is_image_there(self) -> bool:
        return self.image in self.images

    async def image_problem(self) -> str | None:
        return None if await self.is_image_there() else NO_IMAGE


@dataclass
class Harness:
    """A group, and a pool whose reaper runs."""

    store_harness: StoreHarness
    runtime: ScriptedRuntime
    pool: RunPool

    async def ask(self, text: str = "@Andy hi") -> Turn:
        await self.store_harness.hear(text)
        return (await self.store_harness.queued())[0]

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
        return await self.store_harness.turn(turn.id)

    async def until_put_back(self, turn: Turn) -> Turn:
        async def is_back() -> bool:
            now = await self.store_harness.turn(turn.id)
            return now.state is TurnState.QUEUED and now.reason is not None

        await until(is_back, "the turn is put back")
        await until(lambda: not self.slots(), "its slot is free")
        return await self.store_harness.turn(turn.id)

    async def until_met(self, turn: Turn) -> None:
        """Wait until a turn is known to wait for its engine."""

        async def is_met() -> bool:
            return bool(
                await self.store_harness.rows("SELECT 1 FROM turn_outages WHERE turn_id = ?", turn.id)
            )

        await until(is_met, "its outage is noted")

    async def told_after(self, milliseconds: int) -> list[str]:
        """What chats are told when so much time has passed."""
        harness = self.store_harness
        harness.clock.pass_ms(milliseconds)
        availability = Availability(
            harness.database,
            clock=harness.clock,
            wakeups=harness.wakeups,
            bus=harness.bus,
            refusal=AsyncMock(),
        )
        async with asyncio.timeout(DEADLINE_SECONDS):
            await availability.notify_waiting()
        return [one.text for one in await harness.outgoing()]

    async def answer(self, turn: Turn, container: ScriptedContainer) -> None:
        for frame in (Ack(n=1, turn=turn.id), TurnEnd(n=2, turn=turn.id)):
            container.say(frame)
        await until(lambda: self.states() == [RunState.IDLE], "the container is idle")

    async def heard(self, container: ScriptedContainer, frame: Frame, turn: Turn) -> None:
        """Say a frame and wait until it was taken: a result after it was."""
        container.say(frame)
        container.say(Result(n=frame.n + 1, turn=turn.id, result=f"after {frame.n}"))

        async def is_held() -> bool:
            return any(one.text == f"after {frame.n}" for one in await self.store_harness.outgoing())

        await until(is_held, "it was heard")

    async def session(self) -> tuple[str, int] | None:
        rows = await self.store_harness.rows("SELECT session_id, updated_ms FROM sessions")
        return (rows[0]["session_id"], rows[0]["updated_ms"]) if rows else None

    def states(self) -> list[RunState]:
        return [run.state for run in self.pool.live()]

    def slots(self) -> list[RunState]:
        return [state for state in self.states() if state is not RunState.LEFT]


@asynccontextmanager
async def a_harness(store_harness: StoreHarness, home: Path, *, image: str = "") -> AsyncIterator[Harness]:
    runtime = ScriptedRuntime()
    await store_harness.add_group()
    async with asyncio.TaskGroup() as tasks:
        pool = scripted_pool(store_harness, runtime, tasks, home, image=image)
        watch = tasks.create_task(pool.reap(), name="reaper")
        yield Harness(store_harness, runtime, pool)
        for task in [watch, *pool.tasks()]:
            task.cancel()


@pytest.fixture
async def harness(
    store_harness: StoreHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Harness]:
    monkeypatch.setattr(output, "REJOIN_SECONDS", 0.05)
    monkeypatch.setattr(pool, "REAP_SECONDS", 0.01)
    async with a_harness(store_harness, tmp_path) as made:
        yield made


# Handing over


async def test_a_hand_over_that_cannot_be_recorded_leaves_the_container_idle(harness: Harness) -> None:
    await harness.answer(*await harness.start())
    turn = await harness.ask("@Andy again")
    (run,) = harness.pool.live()
    async with harness.store_harness.database.transaction() as tx:
        await tx.execute(
            "CREATE TABLE broken (id INTEGER REFERENCES turns (id) DEFERRABLE INITIALLY DEFERRED) STRICT"
        )
        await tx.execute(
            "CREATE TRIGGER breaks AFTER UPDATE ON turns BEGIN INSERT INTO broken VALUES (-1); END"
        )

    with pytest.raises(sqlite3.IntegrityError):
        await harness.pool.hand_over(turn, run.id)

    assert harness.pool.live() == [run], "idle, and since when it was"
    async with harness.store_harness.database.transaction() as tx:
        await tx.execute("DROP TRIGGER breaks")
    await harness.pool.hand_over(turn, run.id)
    assert (await harness.store_harness.turn(turn.id)).state is TurnState.RUNNING
    assert harness.states() == [RunState.BUSY]


async def test_while_a_turn_is_handed_over_its_container_is_neither_closed_nor_given_another(
    harness: Harness,
) -> None:
    await harness.answer(*await harness.start())
    turn = await harness.ask("@Andy again")
    (run,) = harness.pool.live()
    async with harness.store_harness.database.transaction():
        handing = asyncio.create_task(harness.pool.hand_over(turn, run.id), name="handing")
        await until(lambda: harness.states() == [RunState.BUSY], "the hand-over is under way")
        await harness.pool.close(run.id)
        await harness.pool.hand_over(turn, run.id)
    await handing
    assert harness.states() == [RunState.BUSY]
    assert (await harness.store_harness.turn(turn.id)).state is TurnState.RUNNING


@pytest.mark.parametrize(
    ("is_asked", "reason"), [(True, "its slot is needed"), (False, "it had nothing to do")]
)
async def test_an_idle_container_that_closes_has_left_nobody_without_an_answer(
    harness: Harness, is_asked: bool, reason: str
) -> None:
    _, container = answered = await harness.start()
    await harness.answer(*answered)
    if is_asked:
        (run,) = harness.pool.live()
        await harness.pool.close(run.id)
    container.end()
    await until(lambda: not harness.slots(), "its slot is free")

    (run,) = await harness.store_harness.rows("SELECT exit_kind, exit_detail FROM runs")
    assert run == {"exit_kind": "closed", "exit_detail": f"closed: {reason}"}
    (ended,) = [event for event in harness.store_harness.bus.ring if event.kind == "run.ended"]
    assert ended.reason == f"closed: {reason}"


async def test_a_container_that_ends_in_a_turn_has_not_answered_it(harness: Harness) -> None:
    turn, container = await harness.start()
    container.say(Ack(n=1, turn=turn.id))
    container.end()
    back = await harness.until_put_back(turn)
    assert back.reason == "my container ended before I had answered."


# The session


async def test_a_session_is_kept_from_the_first_sign_of_life_in_a_turn(harness: Harness) -> None:
    turn, container = await harness.start()
    container.say(Heartbeat(n=1, new_session_id="first"))
    await until(harness.session, "the session is kept")
    container.end()
    again = await harness.until_put_back(turn)
    await harness.start(again)
    assert [order.session_id for order in harness.runtime.orders] == [None, "first"]


async def test_signs_of_life_of_a_known_session_write_nothing(harness: Harness) -> None:
    turn, container = await harness.start()
    await harness.heard(container, Heartbeat(n=1, new_session_id="first"), turn)
    kept = await harness.session()
    harness.store_harness.clock.pass_ms(10_000)
    await harness.heard(container, Heartbeat(n=3, new_session_id="first"), turn)
    assert await harness.session() == kept
    await harness.heard(container, Heartbeat(n=5, new_session_id="second"), turn)
    assert await harness.session() == ("second", harness.store_harness.clock.now_ms())


async def test_a_session_is_not_taken_of_a_sign_of_life_outside_a_turn(harness: Harness) -> None:
    async with harness.store_harness.database.transaction() as tx:
        await sessions.put_current(tx, Folder("family"), "gone", now_ms=1)
    turn, container = await harness.start()
    container.say(TurnEnd(n=1, turn=turn.id, status="error", error="no such session", code="session_gone"))
    container.say(Heartbeat(n=2, new_session_id="another"))
    container.end()
    await harness.until_put_back(turn)
    assert await harness.session() is None


# Output that is read again


async def test_pieces_of_a_draft_that_come_again_are_not_limited(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_runs, "PROGRESS_AT_ONCE", 20)
    monkeypatch.setattr(live_runs, "PROGRESS_A_SECOND", 1e-6)
    turn, container = await harness.start()
    said = [Ack(n=1, turn=turn.id), *(Draft(n=n, turn=turn.id, at=n, text="x") for n in range(2, 22))]
    for frame in said:
        container.say(frame)
    container.said.put_nowait(EngineGone())  # the connection to it is lost and found again
    for frame in (*said, Result(n=22, turn=turn.id, result="after all")):
        container.say(frame)

    async def is_held() -> bool:
        return any(one.text == "after all" for one in await harness.store_harness.outgoing())

    await until(is_held, "the result was heard")


# An engine that stays away


async def given_up(harness: Harness) -> tuple[Turn, ScriptedContainer]:
    """A turn whose container works on where no engine answers."""
    turn, container = await harness.start()
    harness.runtime.break_off()
    return await harness.until_put_back(turn), container


async def test_a_session_gets_no_second_container_before_the_first_is_seen_to_end(harness: Harness) -> None:
    turn, old = await given_up(harness)
    assert turn.reason == "Docker does not answer."
    assert RunState.LEFT in harness.states()

    turn = await harness.start_in_vain(turn)
    assert turn.reason == "Docker does not answer."

    old.can_be_ended = False
    harness.runtime.is_gone = False
    turn = await harness.start_in_vain(turn)
    assert turn.reason == "my container could not be started."
    assert harness.runtime.working == [old]

    old.can_be_ended = True
    _, new = await harness.start(turn)
    assert harness.runtime.working == [new]
    assert harness.states() == [RunState.BUSY]


async def test_starts_in_vain_while_no_engine_answers_leave_one_container_to_look_for(
    harness: Harness,
) -> None:
    harness.runtime.is_gone = True
    turn = await harness.ask()
    for _ in range(4):
        turn = await harness.start_in_vain(turn)
        assert turn.reason == "Docker does not answer."
        assert harness.states() == [RunState.LEFT], "the first may have been made; the others never were"
    harness.runtime.is_gone = False
    await until(lambda: harness.states() == [], "it is found not to be there")


async def test_a_container_that_was_made_though_no_engine_answered_is_found_and_ended(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = harness.runtime.start

    async def make_and_say_nothing(spec: ContainerSpec, order: str) -> ScriptedContainer:
        await make(spec, order)
        harness.runtime.is_gone = True
        raise EngineGone

    monkeypatch.setattr(harness.runtime, "start", make_and_say_nothing)
    turn = await harness.start_in_vain(await harness.ask())
    monkeypatch.setattr(harness.runtime, "start", make)
    turn = await harness.start_in_vain(turn)
    assert harness.states() == [RunState.LEFT]
    harness.runtime.is_gone = False
    await until(lambda: not harness.runtime.present, "what was made is ended")
    await until(lambda: harness.states() == [], "and known to be")


async def test_a_turn_waits_for_a_missing_image_and_is_tried_at_once_when_it_is_there(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = harness.store_harness
    await store.add_group("main", is_main=True, requires_trigger=False)
    make, images = harness.runtime.start, set[str]()

    async def start(spec: ContainerSpec, order: str) -> ScriptedContainer:
        if not images:
            raise ImageMissing
        return await make(spec, order)

    monkeypatch.setattr(harness.runtime, "start", start)
    watch = ImageWatch(store, ImageOnAnEngine(images))  # type: ignore[arg-type]
    watching = asyncio.create_task(watch.run(), name="image")
    monkeypatch.setattr(feature, "IMAGE_SECONDS", 0.05)
    try:
        turn = await harness.start_in_vain(await harness.ask())
        assert (turn.state, turn.attempt) == (TurnState.QUEUED, 1)
        assert turn.not_before_ms == store.clock.now_ms() + failures.IMAGE_PAUSE_MS
        assert await harness.told_after(failures.OUTAGE_NOTICE_AFTER_MS) == [
            f"⚠️ {NO_IMAGE}",
            failures.WAITING[failures.Outage.ENGINE],
        ]
        images.add("andy-agent:latest")

        async def is_due() -> bool:
            return (await store.turn(turn.id)).not_before_ms <= store.clock.now_ms()

        await until(is_due, "it is tried at once")
        assert (await harness.told_after(0))[2:] == [IMAGE_IS_THERE]
        await harness.start(await store.turn(turn.id))
        images.clear()
        store.wakeups.image.set()
        await until(lambda: watch.is_missing, "it is gone again")
        assert len(await harness.told_after(0)) == 3, "the same is said once a day"
    finally:
        watching.cancel()


async def test_a_missing_image_that_cannot_be_noted_now_is_told_once_the_disk_takes_it(
    harness: Harness,
) -> None:
    store = harness.store_harness
    await store.add_group("main", is_main=True, requires_trigger=False)
    images = set[str]()
    watch = ImageWatch(store, ImageOnAnEngine(images))  # type: ignore[arg-type]
    for told in ([f"⚠️ {NO_IMAGE}"], [f"⚠️ {NO_IMAGE}", IMAGE_IS_THERE]):
        async with read_only(store.database):
            with pytest.raises(StoreError):
                await watch.check()
        await watch.check()
        assert await harness.told_after(0) == told
        images.add("andy-agent:latest")


async def test_nothing_is_said_of_an_image_that_appears_between_two_looks(harness: Harness) -> None:
    store = harness.store_harness
    await store.add_group("main", is_main=True, requires_trigger=False)
    selected = AsyncMock(image="andy-agent:latest")
    selected.is_image_there.return_value = False
    selected.image_problem.return_value = None
    watch = ImageWatch(store, selected)  # type: ignore[arg-type]
    await watch.check()
    assert await harness.told_after(0) == []
    selected.is_image_there.return_value = True
    await watch.check()
    assert await harness.told_after(0) == []


async def test_the_problem_of_a_node_that_comes_back_is_told_again(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, choose = harness.store_harness, AsyncMock()
    await store.add_group("main", is_main=True, requires_trigger=False)
    monkeypatch.setattr(feature.runtime_selection, "choose", choose)
    containers = ContainersFeature(
        host_context(store, tmp_path / "home"), say=lambda _: None, leaves_containers=True
    )
    async with AsyncExitStack() as stack:
        await containers.open(stack)
        for _ in range(2):
            await choose.await_args.kwargs["on_node_problem"]("bare has not the agent image.")
            store.clock.pass_ms(1000)
    assert await harness.told_after(0) == ["⚠️ bare has not the agent image."] * 2


async def test_a_turn_does_not_wait_for_a_missing_image_for_ever(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness.runtime, "start", AsyncMock(side_effect=ImageMissing))
    turn = await harness.start_in_vain(await harness.ask())
    harness.store_harness.clock.pass_ms(failures.MAX_IMAGE_WAIT_MS)
    await harness.pool.start(turn)

    async def has_failed() -> bool:
        return (await harness.store_harness.turn(turn.id)).state is TurnState.FAILED

    await until(has_failed, "it fails")
    assert failures.NO_IMAGE in (await harness.told_after(0))[-1]


@pytest.mark.parametrize(
    "frame", ['{"n": 1, "kind": "ready", "v": 2}', '{"number": 1, "kind": "hi", "v": 2}']
)
async def test_a_container_of_another_version_ends_its_turn_at_once_with_the_reason(
    harness: Harness, frame: str
) -> None:
    turn, container = await harness.start()
    container.said.put_nowait(f"{frames.START}\n{frame}\n{frames.END}\n".encode())

    async def has_failed() -> bool:
        return (await harness.store_harness.turn(turn.id)).state is TurnState.FAILED

    await until(has_failed, "it fails")
    (told,) = await harness.told_after(0)
    assert "another version" in told
    assert "andy image build" in told
    await until(lambda: harness.states() == [], "its slot is free")


async def test_a_container_of_another_version_that_is_found_again_ends_its_turn_as_before(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "REJOIN_SECONDS", 60)  # it answers, and is heard out
    turn, container = await harness.start()
    container.said.put_nowait(EngineGone())
    container.said.put_nowait(f'{frames.START}\n{{"n": 1, "kind": "ready", "v": 2}}\n{frames.END}\n'.encode())

    async def is_over() -> bool:
        return (await harness.store_harness.turn(turn.id)).reason is not None

    await until(is_over, "its turn is over")
    assert (await harness.store_harness.turn(turn.id)).state is TurnState.FAILED


async def test_the_fix_for_another_version_of_an_image_with_a_digest_is_another_digest(
    store_harness: StoreHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "REAP_SECONDS", 0.01)
    image = f"registry:5000/andy-agent@sha256:{'a' * 64}"
    async with a_harness(store_harness, tmp_path, image=image) as harness:
        turn, container = await harness.start()
        container.said.put_nowait(
            f'{frames.START}\n{{"n": 1, "kind": "ready", "v": 2}}\n{frames.END}\n'.encode()
        )

        async def has_failed() -> bool:
            return (await harness.store_harness.turn(turn.id)).state is TurnState.FAILED

        await until(has_failed, "it fails")
        (told,) = await harness.told_after(0)
    assert "write the digest that it says to ANDY_IMAGE" in told


async def test_under_compose_the_fix_for_another_version_is_composes(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{FILTER_SOCKET}")
    turn, container = await harness.start()
    container.said.put_nowait(f'{frames.START}\n{{"n": 1, "kind": "ready", "v": 2}}\n{frames.END}\n'.encode())

    async def has_failed() -> bool:
        return (await harness.store_harness.turn(turn.id)).state is TurnState.FAILED

    await until(has_failed, "it fails")
    (told,) = await harness.told_after(0)
    assert "docker compose pull agent" in told


async def test_a_container_that_an_engine_fails_to_stop_is_stopped_later_for_the_same_reason(
    harness: Harness,
) -> None:
    turn, container = await harness.start()
    container.can_be_ended = False
    container.said.put_nowait(f'{frames.START}\n{{"n": 1, "kind": "ready", "v": 2}}\n{frames.END}\n'.encode())
    await until(container.is_stopping.is_set, "it is to be stopped")
    container.can_be_ended = True

    async def has_failed() -> bool:
        return (await harness.store_harness.turn(turn.id)).state is TurnState.FAILED

    await until(has_failed, "it fails")
    (told,) = await harness.told_after(0)
    assert "another version" in told
    await until(lambda: harness.states() == [], "its slot is free")


async def test_a_container_that_ends_by_itself_after_a_stop_that_failed_has_ended_for_the_reason_of_the_stop(
    harness: Harness,
) -> None:
    turn, container = await harness.start()
    container.can_be_ended = False
    container.said.put_nowait(f'{frames.START}\n{{"n": 1, "kind": "ready", "v": 2}}\n{frames.END}\n'.encode())
    await until(container.is_stopping.is_set, "it is to be stopped")
    container.end()

    async def is_settled() -> bool:
        return (await harness.store_harness.turn(turn.id)).state is not TurnState.RUNNING

    await until(is_settled, "its end is recorded")
    (message,) = await harness.told_after(0)
    assert "another version" in message
    container.can_be_ended = True


async def test_other_groups_do_not_wait_for_a_container_that_cannot_be_ended(harness: Harness) -> None:
    _, old = await given_up(harness)
    old.can_be_ended = False
    harness.runtime.is_gone = False
    await harness.store_harness.add_group("work")
    await harness.store_harness.hear("@Andy hi", "work")
    (turn,) = await harness.store_harness.queued("work")
    _, new = await harness.start(turn)
    assert harness.runtime.working == [old, new]
    assert sorted(harness.states()) == [RunState.BUSY, RunState.LEFT]


async def test_a_container_that_is_not_there_any_more_keeps_nobody_waiting(harness: Harness) -> None:
    turn, old = await given_up(harness)
    harness.runtime.present.remove(old)
    harness.runtime.is_gone = False
    await until(lambda: harness.states() == [], "nothing is held to be left")
    await harness.start(turn)


async def test_a_given_up_container_is_ended_also_when_nobody_asks_for_another(harness: Harness) -> None:
    _, old = await given_up(harness)
    harness.runtime.is_gone = False
    await until(lambda: harness.runtime.present == [], "it is ended")
    assert old.has_ended.is_set()
    await until(lambda: harness.states() == [], "nothing is held to be left")


async def test_a_container_that_an_engine_has_lost_is_known_to_be_gone(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "REJOIN_SECONDS", 60)  # it answers, and is heard out
    turn, container = await harness.start()
    harness.runtime.present.remove(container)
    container.said.put_nowait(EngineGone())
    turn = await harness.until_put_back(turn)
    assert (turn.reason, turn.not_before_ms) == (
        "my container vanished.",
        harness.store_harness.clock.now_ms(),
    )
    assert harness.states() == []


def refuse_to_list_once(runtime: ScriptedRuntime, monkeypatch: pytest.MonkeyPatch) -> list[ContainerError]:
    """Let an engine refuse the next list of containers; it is in the returned list until it did."""
    answers = runtime.adopt
    refusals = [ContainerError("Docker refuses: No such container: another, just removed")]

    async def adopt() -> list[ScriptedContainer]:
        if refusals:
            raise refusals.pop()
        return await answers()

    monkeypatch.setattr(runtime, "adopt", adopt)
    return refusals


async def test_a_container_that_an_engine_refuses_to_list_once_is_found_and_read_on(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "REJOIN_SECONDS", 60)  # it answers, and is heard out
    turn, container = await harness.start()
    refusals = refuse_to_list_once(harness.runtime, monkeypatch)
    container.said.put_nowait(EngineGone())
    await until(lambda: refusals == [], "it was refused")
    await harness.answer(turn, container)


async def test_a_refused_list_of_containers_does_not_end_the_watch_over_them(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await given_up(harness)
    refusals = refuse_to_list_once(harness.runtime, monkeypatch)
    harness.runtime.is_gone = False
    await until(lambda: refusals == [] and harness.states() == [], "it is ended at last")


# Who waits for an engine


async def test_a_chat_whose_engine_went_away_in_its_turn_is_told_within_a_minute(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "REJOIN_SECONDS", 60)  # it is looked for all the while
    turn, _ = await harness.start()
    harness.runtime.break_off()
    await harness.until_met(turn)
    assert await harness.told_after(failures.OUTAGE_NOTICE_AFTER_MS - 1) == []
    assert await harness.told_after(1) == [failures.WAITING[failures.Outage.ENGINE]]


async def test_a_chat_whose_container_cannot_be_made_is_told_and_its_attempts_do_not_count(
    harness: Harness,
) -> None:
    harness.runtime.is_gone = True
    turn = await harness.ask()
    for _ in range(7):
        turn = await harness.start_in_vain(turn)
    assert turn.attempt == 1
    assert await harness.told_after(failures.OUTAGE_NOTICE_AFTER_MS) == [
        failures.WAITING[failures.Outage.ENGINE]
    ]
    harness.runtime.is_gone = False
    await harness.start(turn)
    assert await harness.store_harness.rows("SELECT * FROM turn_outages") == []


async def test_a_start_that_hangs_is_told_before_the_engine_is_given_up(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "SLOW_SECONDS", 0.01)
    hangs = asyncio.Event()

    async def hang(*_: object) -> ScriptedContainer:
        await hangs.wait()
        raise EngineGone

    monkeypatch.setattr(harness.runtime, "start", hang)
    turn = await harness.ask()
    await harness.pool.start(turn)
    await harness.until_met(turn)
    assert await harness.told_after(failures.OUTAGE_NOTICE_AFTER_MS) == [
        failures.WAITING[failures.Outage.ENGINE]
    ]


# What can be seen


async def test_a_container_that_cannot_be_removed_is_seen_until_it_is(harness: Harness) -> None:
    _, container = await harness.start()
    container.can_be_ended = False
    container.end()
    await until(lambda: harness.states() == [RunState.LEFT], "it is left")
    container.can_be_ended = True
    await until(lambda: harness.states() == [], "it is removed at last")
    assert harness.runtime.present == []


async def test_a_run_that_was_refused_is_told_with_the_engines_reason(harness: Harness) -> None:
    harness.runtime.refusal = "Docker refuses: no space left on device"
    turn = await harness.start_in_vain(await harness.ask())
    assert turn.reason == "my container could not be started."
    async with harness.store_harness.database.reading() as tx:
        (told,) = await runs.bad_ends(tx, since_ms=0)
    assert (told["kind"], told["reason"]) == ("refused", harness.runtime.refusal)


# Restarting


@pytest.mark.parametrize(("was_idle", "kind"), [(True, "stopped"), (False, "lost")])
async def test_a_container_that_ended_with_the_host_is_an_error_only_if_a_turn_ran_in_it(
    store_harness: StoreHarness, tmp_path: Path, *, was_idle: bool, kind: str
) -> None:
    async with a_harness(store_harness, tmp_path) as harness:
        turn, container = await harness.start()
        if was_idle:
            await harness.answer(turn, container)

    async with asyncio.TaskGroup() as tasks:
        await scripted_pool(store_harness, ScriptedRuntime(), tasks, tmp_path).adopt()

    (run,) = await store_harness.rows("SELECT exit_kind FROM runs")
    assert run["exit_kind"] == kind
