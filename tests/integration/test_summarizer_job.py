"""Better summaries, made once an answer has left, and only in the place of the one they are of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.context.context_manager import ContextManager
from orchestrator.context.dialogue import NewMessage
from orchestrator.context.summarizer import ModelSummarizer, SummarizerJob, SummaryRefused
from orchestrator.context.tokens import EstimatingCounter
from orchestrator.domain.values import Folder, Group
from orchestrator.store import groups
from tests.support.household import Household
from tests.support.until import until

FAMILY = Folder("family")
LONG = "They spoke of trains and of buses, at length. " * 40


@dataclass
class House:
    household: Household
    manager: ContextManager
    group: Group
    asked: list[str] = field(default_factory=list)
    opened: int = 0
    """How often a summary was about to be put."""
    answer: Callable[[], str] = lambda: "They go by train."
    summaries: SummarizerJob = field(init=False)

    def __post_init__(self) -> None:
        self.summaries = SummarizerJob(
            self.household.database,
            summariser=lambda _: ModelSummarizer(self._ask, EstimatingCounter()),
            manager=self._opened,
            clock=self.household.clock,
            bus=self.household.bus,
        )

    async def _ask(self, system: str, text: str) -> str:
        self.asked.append(text)
        return self.answer()

    def _opened(self, _: Folder) -> ContextManager:
        self.opened += 1
        return self.manager

    def speak(self, number: int) -> None:
        """Register what pushes the rest out of the window."""
        done = self.manager.register_message(
            NewMessage(id=f"t{number}.u", role="user", content=f"{number} {LONG}", at_ms=number),
            now_ms=number,
        )
        if done.evicted:
            self.summaries.note(self.group, done)

    @property
    def summary(self) -> str:
        return self.manager.load(now_ms=0).context.conversation.running_summary

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.summaries.run(), name="summaries")
        await until(lambda: self.household.bus._listeners, "it listens")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    def sent(self) -> None:
        self.household.bus.publish("message.sent", group=FAMILY)


@pytest.fixture
async def house(household: Household, tmp_path: Path) -> House:
    await household.add_group()
    async with household.database.reading() as tx:
        group = await groups.known(tx, FAMILY)
    return House(household, ContextManager.of(tmp_path, FAMILY, counter=EstimatingCounter()), group)


async def test_what_left_the_window_is_summed_up_once_the_answer_has_left(house: House) -> None:
    async with house.working():
        for number in range(1, 5):
            house.speak(number)
        assert house.asked == []
        house.sent()
        await until(lambda: house.summary == "They go by train.", "the model's is there")
    assert len(house.asked) == 1, "several make one question"


async def test_it_waits_for_the_turn_that_runs(house: House) -> None:
    await house.household.hear("@Andy hello")
    _, run, _ = await house.household.start_next()
    async with house.working():
        house.speak(1)
        house.speak(2)
        house.sent()
        await until(lambda: house.household.bus._listeners and _is_taken(house), "it has looked")
        assert house.asked == []
        await house.household.lose(run, is_retryable=False)
        house.sent()
        await until(lambda: house.asked, "it is asked")


def _is_taken(house: House) -> bool:
    return all(queue.empty() for queue in house.household.bus._listeners)


async def test_a_failing_model_leaves_the_extractive_summary(house: House) -> None:
    def fail() -> str:
        raise SummaryRefused("no")

    house.answer = fail
    async with house.working():
        house.speak(1)
        house.speak(2)
        extractive = house.summary
        house.sent()
        await until(lambda: house.asked and not house.summaries._jobs, "it has failed")
        house.answer = lambda: "Better."
        house.speak(3)
        house.sent()
        await until(lambda: house.summary == "Better.", "the next one is tried")
    assert "trains" in extractive


async def test_what_was_taken_back_is_summed_up_by_nobody(house: House) -> None:
    def meanwhile() -> str:
        house.summaries.drop(FAMILY)
        return "They go by train."

    house.answer = meanwhile
    async with house.working():
        house.speak(1)
        house.speak(2)
        house.sent()
        await until(lambda: house.asked, "it was asked")
        house.speak(3)
        house.summaries.drop(FAMILY)
        house.answer = lambda: "Of what was said since."
        house.speak(4)
        house.sent()
        await until(lambda: house.summary == "Of what was said since.", "the next one is made")
    assert house.opened == 1, "what the first said was put nowhere"
    assert len(house.asked) == 2
    assert '"text": "2 They' not in house.asked[1], "nobody is asked about what was let go"


async def test_a_summary_of_what_is_no_more_takes_no_place(house: House) -> None:
    def meanwhile() -> str:
        house.manager.close_conversation(now_ms=9)
        return "They go by train."

    house.answer = meanwhile
    async with house.working():
        house.speak(1)
        house.speak(2)
        house.sent()
        await until(lambda: house.asked and not house.summaries._jobs, "it was asked")
        await asyncio.to_thread(house.manager.load, now_ms=0)
    assert house.summary == ""
