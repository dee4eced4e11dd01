"""Words that their sender takes back leave what is kept of a conversation: real rows, real files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.context.deletions import DeletionSync
from orchestrator.context.dialogue import TAKEN_BACK
from orchestrator.context.models import Context
from orchestrator.context.recorder import ContextRecorder
from orchestrator.context.tokens import EstimatingCounter
from orchestrator.domain.values import Folder, MessageId
from orchestrator.store import sessions
from tests.support.household import Household, a_message
from tests.support.live_files import contents
from tests.support.until import until

FAMILY = Folder("family")
CODE = "We decided that the code is 4711."
LONG = "They spoke of trains and of buses, at length. " * 30
"""Two of them are more than a window holds."""


@dataclass
class House:
    household: Household
    home: Path
    dropped: list[Folder] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.again()

    def again(self) -> None:
        """Another host on the same home."""
        house = self.household
        self.recorder = ContextRecorder(
            house.database,
            contexts=self.home / "context",
            env=self.home / "env",
            counter=EstimatingCounter(),
            clock=house.clock,
            bus=house.bus,
            name="Andy",
            on_notified=house.wakeups.outbox.set,
        )
        self.forgetting = DeletionSync(
            house.database,
            self.recorder,
            clock=house.clock,
            bus=house.bus,
            name="Andy",
            on_forgetting=self.dropped.append,
            session_files=self.home / "sessions",
        )

    @property
    def kept(self) -> Context:
        return self.recorder.manager(FAMILY).load(now_ms=self.household.clock.now_ms()).context

    @property
    def summary(self) -> str:
        return self.kept.conversation.running_summary

    def having(self, words: str) -> list[str]:
        """The names of the files that have some words."""
        found = {**contents(self.home / "context", "**/*.json"), **contents(self.home / "env", "**/*.json")}
        return [path.name for path, body in found.items() if words.encode() in body]

    async def say(self, text: str, answer: str = "Noted.") -> str:
        """A whole turn; the id of what was asked."""
        question = a_message(f"@Andy {text}")
        await self.household.intake.accept(question)
        await self.household.answer(answer)
        await self.recorder.catch_up(FAMILY)
        return question.id

    async def delete_message(self, message: str) -> None:
        await self.household.intake.receive(a_message("", deletes=MessageId(message)))

    async def waiting(self) -> list[sessions.PendingDeletion]:
        async with self.household.database.reading() as tx:
            return await sessions.pending_deletions(tx, FAMILY)

    def snapshot(self) -> None:
        assert self.recorder.manager(FAMILY).snapshot(now_ms=self.household.clock.now_ms())

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.forgetting.run(), name="forgetting")
        await until(lambda: self.household.bus._listeners, "it listens")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})


@pytest.fixture
async def house(household: Household, tmp_path: Path) -> House:
    await household.add_group()
    (tmp_path / "env" / "family").mkdir(parents=True)
    return House(household, tmp_path)


async def test_a_summary_is_made_anew_without_what_was_taken_back(house: House) -> None:
    taken = await house.say(CODE, "The bees are fine.")
    await house.say(f"The ferry leaves at nine. {LONG}")
    await house.say(LONG)
    house.snapshot()
    assert CODE in house.summary
    async with house.looking():
        await house.delete_message(taken)
        await until(lambda: house.having("4711") == [], "the words are in no file")
    assert "The bees are fine." in house.summary, "what was said besides is there still"
    assert "The ferry leaves at nine." in house.summary
    assert TAKEN_BACK not in house.summary
    assert await house.waiting() == []
    assert house.dropped == [FAMILY], "nobody sums up what was taken back"


async def test_a_snapshot_lets_go_of_the_words_that_were_in_its_window(house: House) -> None:
    taken = await house.say(CODE)
    house.snapshot()
    other = house.recorder.manager(FAMILY).snapshots()[0].name
    await house.delete_message(taken)
    await house.forgetting.sweep()
    assert house.having("4711") == []
    assert house.recorder.manager(FAMILY).restore(other, now_ms=house.household.clock.now_ms())
    window = [one.content for one in house.kept.conversation.recent_window]
    assert window == [TAKEN_BACK, "Noted."]


async def test_what_others_asked_in_the_same_turn_stays(house: House) -> None:
    one, two = a_message(f"@Andy {CODE}"), a_message("@Andy the bees sleep.")
    for message in (one, two):
        await house.household.intake.accept(message)
    await house.household.answer("Noted.")
    await house.recorder.catch_up(FAMILY)
    for _ in range(2):
        await house.say(LONG)
    assert "4711" in house.summary
    await house.delete_message(one.id)
    await house.forgetting.sweep()
    assert "4711" not in house.summary
    assert "the bees sleep." in house.summary


async def test_a_host_that_died_before_forgets_when_it_is_there_again(house: House) -> None:
    taken = await house.say(CODE)
    for _ in range(2):
        await house.say(LONG)
    house.snapshot()
    await house.delete_message(taken)
    house.again()
    assert house.having("4711")
    async with house.looking():
        await until(lambda: house.having("4711") == [], "the words are in no file")


async def test_what_cannot_be_written_now_is_forgotten_later(house: House, monkeypatch) -> None:
    monkeypatch.setattr("orchestrator.context.context_manager.ContextManager.remove_messages", _full_disk)
    taken = await house.say(CODE)
    for _ in range(2):
        await house.say(LONG)
    await house.delete_message(taken)
    await house.forgetting.sweep()
    assert len(await house.waiting()) == 1
    monkeypatch.undo()
    await house.forgetting.sweep()
    assert await house.waiting() == []
    assert house.having("4711") == []


def _full_disk(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


async def test_what_a_session_said_of_itself_goes_with_words_that_it_may_have(house: House) -> None:
    for _ in range(3):
        await house.say(LONG)
    taken = await house.say("the code is blue")
    manager = house.recorder.manager(FAMILY)
    manager.join_summary("They spoke of a blue code.", now_ms=house.household.clock.now_ms())
    await house.delete_message(taken)
    await house.forgetting.sweep()
    assert house.having("blue") == []
    assert "trains" in house.summary, "what is known to be of others is there still"


async def test_words_that_no_summary_has_leave_it_as_it_is(house: House) -> None:
    for _ in range(3):
        await house.say(LONG)
    before = house.summary
    taken = await house.say(CODE)
    manager = house.recorder.manager(FAMILY)
    assert manager.put_summary("A better one.", instead_of=house.summary, now_ms=1)
    assert before
    await house.delete_message(taken)
    await house.forgetting.sweep()
    assert house.summary == "A better one."
    assert house.having("4711") == []


async def test_a_reset_brings_nothing_back_when_words_are_taken_back(house: House) -> None:
    taken = await house.say(CODE)
    for _ in range(2):
        await house.say(LONG)
    house.recorder.manager(FAMILY).reset(now_ms=house.household.clock.now_ms())
    await house.delete_message(taken)
    await house.forgetting.sweep()
    assert house.kept.is_empty
    assert house.having("4711") == [], "nor has the snapshot that was taken before"
