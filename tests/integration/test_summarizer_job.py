"""Better summaries, made once an answer has left, and only in the place of the one they are of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from orchestrator.context.context_manager import ContextManager
from orchestrator.context.dialogue import NewMessage
from orchestrator.context.summarizer import ModelSummarizer, SummarizerJob, SummaryRefused
from orchestrator.context.tokens import EstimatingCounter
from orchestrator.domain.values import Folder, Group
from orchestrator.store.groups import groups
from tests.support.store_harness import StoreHarness
from tests.support.until import until

FAMILY = Folder("family")
LONG = "They spoke of trains and of buses, at length. " * 40


@dataclass
class Harness:
    store_harness: StoreHarness
    manager: ContextManager
    group: Group
    asked: list[str] = field(default_factory=list)
    opened: int = 0
    """How often a summary was about to be put."""
    answer: Callable[[], str] = lambda: "They go by train."
    summaries: SummarizerJob = field(init=False)

    def __post_init__(self) -> None:
        self.summaries = SummarizerJob(
            self.store_harness.database,
            summariser=lambda _: ModelSummarizer(self._ask, EstimatingCounter()),
            manager=self._opened,
            clock=self.store_harness.clock,
            bus=self.store_harness.bus,
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
        await until(lambda: self.store_harness.bus._listeners, "it listens")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    def sent(self) -> None:
        self.store_harness.bus.publish("message.sent", group=FAMILY)


@pytest.fixture
async def harness(store_harness: StoreHarness, tmp_path: Path) -> Harness:
    await store_harness.add_group()
    async with store_harness.database.reading() as tx:
        group = await groups.known(tx, FAMILY)
    return Harness(store_harness, ContextManager.of(tmp_path, FAMILY, counter=EstimatingCounter()), group)


async def test_what_left_the_window_is_summed_up_once_the_answer_has_left(harness: Harness) -> None:
    async with harness.working():
        for number in range(1, 5):
            harness.speak(number)
        assert harness.asked == []
        harness.sent()
        await until(lambda: harness.summary == "They go by train.", "the model's is there")
    assert len(harness.asked) == 1, "several make one question"


async def test_it_waits_for_the_turn_that_runs(harness: Harness) -> None:
    await harness.store_harness.hear("@Andy hello")
    _, run, _ = await harness.store_harness.start_next()
    async with harness.working():
        harness.speak(1)
        harness.speak(2)
        harness.sent()
        await until(lambda: harness.store_harness.bus._listeners and _is_taken(harness), "it has looked")
        assert harness.asked == []
        await harness.store_harness.lose(run, is_retryable=False)
        harness.sent()
        await until(lambda: harness.asked, "it is asked")


def _is_taken(harness: Harness) -> bool:
    return all(queue.empty() for queue in harness.store_harness.bus._listeners)


async def test_a_failing_model_leaves_the_extractive_summary(harness: Harness) -> None:
    def fail() -> str:
        raise SummaryRefused("no")

    harness.answer = fail
    async with harness.working():
        harness.speak(1)
        harness.speak(2)
        extractive = harness.summary
        harness.sent()
        await until(lambda: harness.asked and not harness.summaries._jobs, "it has failed")
        harness.answer = lambda: "Better."
        harness.speak(3)
        harness.sent()
        await until(lambda: harness.summary == "Better.", "the next one is tried")
    assert "trains" in extractive


async def test_what_was_taken_back_is_summed_up_by_nobody(harness: Harness) -> None:
    def meanwhile() -> str:
        harness.summaries.drop(FAMILY)
        return "They go by train."

    harness.answer = meanwhile
    async with harness.working():
        harness.speak(1)
        harness.speak(2)
        harness.sent()
        await until(lambda: harness.asked, "it was asked")
        harness.speak(3)
        harness.summaries.drop(FAMILY)
        harness.answer = lambda: "Of what was said since."
        harness.speak(4)
        harness.sent()
        await until(lambda: harness.summary == "Of what was said since.", "the next one is made")
    assert harness.opened == 1, "what the first said was put nowhere"
    assert len(harness.asked) == 2
    assert '"text": "2 They' not in harness.asked[1], "nobody is asked about what was let go"


async def test_what_is_taken_back_in_a_group_while_another_is_summed_up_stops_nothing(
    harness: Harness,
) -> None:
    work = replace(harness.group, folder=Folder("work"))

    def meanwhile() -> str:
        harness.summaries.drop(work.folder)
        return "They go by train."

    harness.answer = meanwhile
    async with harness.working():
        harness.speak(1)
        harness.speak(2)
        harness.summaries._jobs[work.folder] = replace(harness.summaries._jobs[FAMILY], group=work)
        harness.sent()
        await until(lambda: harness.summary == "They go by train.", "the first group's is there")
        harness.answer = lambda: "Of what was said since."
        harness.speak(3)
        harness.sent()
        await until(lambda: harness.summary == "Of what was said since.", "it goes on")
    assert len(harness.asked) == 2


async def test_a_summary_of_what_is_no_more_takes_no_place(harness: Harness) -> None:
    def meanwhile() -> str:
        harness.manager.close_conversation(now_ms=9)
        return "They go by train."

    harness.answer = meanwhile
    async with harness.working():
        harness.speak(1)
        harness.speak(2)
        harness.sent()
        await until(lambda: harness.asked and not harness.summaries._jobs, "it was asked")
        await asyncio.to_thread(harness.manager.load, now_ms=0)
    assert harness.summary == ""
