"""A host killed when a live container has been given a question and nobody has heard yet that it took it.

Nothing of the question is in `context.json` then: that follows the store, in which it is. Real rows, context
files, locks and files for the container; a told container, and a transcript as the CLI writes it.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from agent_runner.wire import frames
from agent_runner.wire.frames import Ack, Result, TurnEnd
from agent_runner.wire.order import RunOrder, TurnOrder
from orchestrator.containers.pool import RunPool
from orchestrator.containers.ports import ChosenAgent
from orchestrator.context.recorder import ContextRecorder
from orchestrator.context.session_restorer import SessionRestorer
from orchestrator.context.tokens import EstimatingCounter, TokenFactors
from orchestrator.domain.values import Folder, RunId, RunState, Turn, TurnState
from orchestrator.ipc import input_files
from tests.doubles.scripted_runtime import (
    ScriptedContainer,
    ScriptedOrders,
    ScriptedRuntime,
    scripted_pool,
    scripted_ports,
)
from tests.support.live_files import contents
from tests.support.store_harness import StoreHarness
from tests.support.transcripts import SESSION, Writing, place
from tests.support.until import until

FAMILY = Folder("family")
OPUS = ChosenAgent(agent="claude", model="opus", service="api")
FIRST, QUESTION, NEXT = "one bee is blue", "which colour has it", "are you sure"
SAID = {FIRST: "Noted.", QUESTION: "It is azure.", NEXT: "I am."}


@dataclass
class Home:
    """What outlives a host: store, files, the engine with its containers, and the transcript in them."""

    store_harness: StoreHarness
    root: Path
    runtime: ScriptedRuntime = field(default_factory=ScriptedRuntime)
    transcript: Writing = field(default_factory=Writing)
    frames: dict[RunId, int] = field(default_factory=dict)

    @property
    def recorder(self) -> ContextRecorder:
        """One that remembers nothing."""
        return ContextRecorder(
            self.store_harness.database,
            contexts=self.root / "context",
            env=self.root / "env",
            counter=EstimatingCounter(),
            clock=self.store_harness.clock,
            bus=self.store_harness.bus,
            name="Andy",
            on_notified=lambda: None,
        )

    def kept(self) -> str:
        """The words that are in the context now; none before the host has come to write it."""
        path = self.recorder.manager(FAMILY).files.path / "context.json"
        if not path.exists():
            return ""
        return json.dumps(json.loads(path.read_bytes())["conversation"]["recent_window"])

    def given(self) -> list[int]:
        """The turns that lie in `input/`."""
        files = contents(self.root / "ipc" / "family" / "input", "*.json")
        return [TurnOrder.parse(body).turn for body in files.values()]

    def write(self) -> None:
        place(self.root / "sessions").write_text(self.transcript.text())

    def lose_session(self) -> None:
        place(self.root / "sessions").unlink()
        self.transcript = Writing()

    @asynccontextmanager
    async def host(self) -> AsyncIterator[Host]:
        """A host, killed when it is left: nothing is recorded of its end."""
        recorder, inputs = self.recorder, input_files.InputFiles(self.root / "ipc")
        restoring = SessionRestorer(
            self.store_harness.database,
            recorder,
            session_files=self.root / "sessions",
            agent_of=lambda *_: OPUS,
            factors=TokenFactors(self.root / "token-factors.json"),
            clock=self.store_harness.clock,
            bus=self.store_harness.bus,
        )
        ports = replace(
            scripted_ports(),
            orders=ScriptedOrders(chosen_agent=lambda *_: OPUS),
            restore=restoring.restore,
            files=inputs,
            new_run_id=lambda: RunId(secrets.token_hex(6)),
            token=lambda: ("token", secrets.token_hex(6)),
        )
        async with asyncio.TaskGroup() as tasks:
            pool = scripted_pool(self.store_harness, self.runtime, tasks, self.root, ports=ports)
            await pool.adopt()
            following = tasks.create_task(recorder.run(), name="context")
            yield Host(self, pool)
            await asyncio.sleep(0)  # a job that has not begun cannot be cancelled without a word
            for task in [following, *pool.tasks()]:
                task.cancel()


@dataclass
class Host:
    home: Home
    pool: RunPool
    seen: str = ""
    """All that the model of the newest container is told."""

    async def ask(self, text: str) -> Turn:
        await self.home.store_harness.hear(f"@Andy {text}")
        return (await self.home.store_harness.queued())[0]

    async def start(self, turn: Turn) -> ScriptedContainer:
        """Start a container for a turn, which writes down what it is told besides."""
        before = len(self.home.runtime.started)
        await self.pool.start(turn)
        await until(lambda: len(self.home.runtime.started) > before, "a container is started")
        order = self.home.runtime.orders[-1]
        self.seen = before_the_model(order, self.home.transcript)
        if order.restore.text is not None:
            self.home.transcript.attaches(text=order.restore.text)
        return self.home.runtime.started[-1]

    async def answer(self, turn: Turn, container: ScriptedContainer, text: str) -> None:
        """Say what a whole turn says, and write it into the transcript."""
        home = self.home
        home.transcript.asks(text)
        checkpoint = home.transcript.answers(SAID[text])
        home.write()
        n = home.frames.get(container.run_id, 0)
        home.frames[container.run_id] = n + 3
        for frame in (
            Ack(n=n + 1, turn=turn.id, new_session_id=SESSION),
            Result(n=n + 2, turn=turn.id, result=SAID[text]),
            TurnEnd(n=n + 3, turn=turn.id, checkpoint=checkpoint, new_session_id=SESSION),
        ):
            container.say(frame)

        async def is_answered() -> bool:
            return (await home.store_harness.turn(turn.id)).state is TurnState.ANSWERED

        await until(is_answered, f"turn {turn.id} is answered")
        await until(lambda: self.states() == [RunState.IDLE], "its container is idle")

    async def end(self, container: ScriptedContainer) -> None:
        container.end()
        await until(lambda: self.states() == [], "its container is gone")

    def states(self) -> list[RunState]:
        return [one.state for one in self.pool.live()]


@pytest.fixture
async def home(store_harness: StoreHarness, tmp_path: Path) -> Home:
    await store_harness.add_group()
    made = Home(store_harness, tmp_path)
    (tmp_path / "ipc" / "family" / "input").mkdir(parents=True)
    (tmp_path / "sessions").mkdir()
    return made


async def killed_before_it_heard(home: Home) -> tuple[Turn, ScriptedContainer]:
    """A host dies right after it has given a live container its second question."""
    async with home.host() as host:
        first = await host.ask(FIRST)
        container = await host.start(first)
        await host.answer(first, container, FIRST)
        await until(lambda: SAID[FIRST] in home.kept(), "the first exchange is kept")
        turn = await host.ask(QUESTION)
        await host.pool.hand_over(turn, container.run_id)
        assert home.given() == [turn.id]
    assert QUESTION not in home.kept(), "the host died at the point that is meant"
    return turn, container


def before_the_model(order: RunOrder, transcript: Writing) -> str:
    """All that a model is told that works on this order: its session as far as that counts, and the rest."""
    told = [order.restore.text or "", order.turn.prompt]
    if order.session_id is not None:
        entries = {entry["uuid"]: entry for entry in map(json.loads, transcript.lines)}
        at = order.restore.resume_at or transcript.last
        while at is not None:
            told.append(json.dumps(entries[at]))
            at = entries[at]["parentUuid"]
    return "\n".join(told)


def counts(seen: str) -> dict[str, int]:
    return {text: seen.count(text) for text in (FIRST, SAID[FIRST], QUESTION, SAID[QUESTION])}


ONCE = {FIRST: 1, SAID[FIRST]: 1, QUESTION: 1, SAID[QUESTION]: 1}


async def goes_on(host: Host) -> None:
    """The next container is told all of it once, with its session and without."""
    for is_lost in (False, True):
        if is_lost:
            host.home.lose_session()
        turn = await host.ask(NEXT)
        container = await host.start(turn)
        restore = host.home.runtime.orders[-1].restore
        assert restore.mode == ("rehydrate" if is_lost else "resume"), restore.reason
        assert counts(host.seen) == ONCE
        await host.answer(turn, container, NEXT)
        await host.end(container)


async def test_a_container_that_is_adopted_has_its_question_once_and_so_has_the_next(home: Home) -> None:
    turn, container = await killed_before_it_heard(home)
    async with home.host() as host:
        assert home.given() == [turn.id]
        await until(lambda: QUESTION in home.kept(), "the next host has written it down")
        await host.answer(turn, container, QUESTION)
        await host.end(container)
        assert len(home.runtime.started) == 1
        await goes_on(host)


async def test_an_idle_container_of_an_earlier_image_is_replaced_and_its_conversation_goes_on(
    home: Home,
) -> None:
    async with home.host() as host:
        turn = await host.ask(FIRST)
        container = await host.start(turn)
        await host.answer(turn, container, FIRST)
        await until(lambda: SAID[FIRST] in home.kept(), "the first exchange is kept")
    container.is_outdated = True
    async with home.host() as host:
        assert host.states() == [RunState.CLOSING]
        await host.end(container)
        turn = await host.ask(QUESTION)
        successor = await host.start(turn)
        assert home.runtime.orders[-1].restore.mode == "resume"
        assert SAID[FIRST] in host.seen
        await host.answer(turn, successor, QUESTION)
        await host.end(successor)


async def test_a_container_of_an_earlier_image_ends_after_the_turn_it_has(home: Home) -> None:
    turn, container = await killed_before_it_heard(home)
    container.is_outdated = True
    async with home.host() as host:
        assert host.states() == [RunState.BUSY]
        container.say(Ack(n=4, turn=turn.id, new_session_id=SESSION))
        container.say(Result(n=5, turn=turn.id, result=SAID[QUESTION]))
        container.say(TurnEnd(n=6, turn=turn.id, new_session_id=SESSION))
        await until(lambda: host.states() == [RunState.CLOSING], "it is asked to close")
        assert (await home.store_harness.turn(turn.id)).state is TurnState.ANSWERED
        await host.end(container)


async def replaced_by_another_version(home: Home, turn: Turn, container: ScriptedContainer) -> None:
    """The next host reads a frame of another version, ends the container, and queues its turn again."""
    container.is_outdated = True
    container.said.put_nowait(f'{frames.START}\n{{"n": 1, "kind": "ready", "v": 2}}\n{frames.END}\n'.encode())
    async with home.host():
        await until(container.is_stopping.is_set, "it is ended")

        async def is_back() -> bool:
            return (await home.store_harness.turn(turn.id)).state is TurnState.QUEUED

        await until(is_back, "its turn is put back")


async def test_a_container_of_another_version_that_is_adopted_ends_at_once_and_its_turn_is_tried_again(
    home: Home,
) -> None:
    turn, container = await killed_before_it_heard(home)
    await replaced_by_another_version(home, turn, container)


async def test_a_container_of_another_version_in_its_first_turn_is_replaced_by_one_that_tries_it_again(
    home: Home,
) -> None:
    async with home.host() as host:
        turn = await host.ask(FIRST)
        container = await host.start(turn)
    await replaced_by_another_version(home, turn, container)


async def test_a_container_that_answered_while_no_host_was_there_has_its_question_once(home: Home) -> None:
    turn, container = await killed_before_it_heard(home)
    home.transcript.asks(QUESTION)
    checkpoint = home.transcript.answers(SAID[QUESTION])
    home.write()
    container.say(Ack(n=4, turn=turn.id, new_session_id=SESSION))
    container.say(Result(n=5, turn=turn.id, result=SAID[QUESTION]))
    container.say(TurnEnd(n=6, turn=turn.id, checkpoint=checkpoint, new_session_id=SESSION))
    container.end()
    async with home.host() as host:
        await until(lambda: host.states() == [], "its container is heard to its end")
        assert (await home.store_harness.turn(turn.id)).state is TurnState.ANSWERED
        await goes_on(host)


@pytest.mark.parametrize("has_read", [False, True], ids=["never read", "read and died of it"])
@pytest.mark.parametrize("is_lost", [False, True], ids=["with its session", "its session gone too"])
async def test_a_question_whose_container_is_gone_is_asked_once_and_kept_once(
    home: Home, has_read: bool, is_lost: bool
) -> None:
    turn, _ = await killed_before_it_heard(home)
    home.runtime.present.clear()
    if has_read:
        home.transcript.asks(QUESTION)
        home.write()
    if is_lost:
        home.lose_session()
    async with home.host() as host:
        again = await home.store_harness.turn(turn.id)
        assert (again.state, again.attempt, again.restarts) == (TurnState.QUEUED, 1, 1)
        assert home.given() == [], "what nobody will read is gone"
        container = await host.start(again)
        assert counts(host.seen) == {**ONCE, SAID[QUESTION]: 0}
        resume_at = home.runtime.orders[-1].restore.resume_at
        if resume_at is not None:
            home.transcript.last = resume_at  # what was asked then is on a branch that has ended
        await host.answer(again, container, QUESTION)
        await host.end(container)
        await goes_on(host)
