"""Words that their sender takes back leave what is kept of a conversation: real rows, real files."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.context import transcript
from orchestrator.context.deletions import DeletionSync
from orchestrator.context.dialogue import TAKEN_BACK
from orchestrator.context.models import FROM_SESSION, Context
from orchestrator.context.recorder import ContextRecorder
from orchestrator.context.tokens import EstimatingCounter
from orchestrator.domain.values import Folder, MessageId
from orchestrator.store.runs import sessions
from tests.support.live_files import contents
from tests.support.store_harness import StoreHarness, a_message
from tests.support.until import until

FAMILY = Folder("family")
CODE = "We decided that the code is tulip."
LONG = "They spoke of trains and of buses, at length. " * 30
"""Two of them are more than a window holds."""


@dataclass
class Harness:
    store_harness: StoreHarness
    home: Path
    dropped: list[Folder] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.again()

    def again(self) -> None:
        """Another host on the same home."""
        harness = self.store_harness
        self.recorder = ContextRecorder(
            harness.database,
            contexts=self.home / "context",
            env=self.home / "env",
            counter=EstimatingCounter(),
            clock=harness.clock,
            bus=harness.bus,
            name="Andy",
            on_notified=harness.wakeups.outbox.set,
        )
        self.forgetting = DeletionSync(
            harness.database,
            self.recorder,
            clock=harness.clock,
            bus=harness.bus,
            name="Andy",
            on_forgetting=self.dropped.append,
            session_files=self.home / "sessions",
        )

    @property
    def kept(self) -> Context:
        return self.recorder.manager(FAMILY).load(now_ms=self.store_harness.clock.now_ms()).context

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
        await self.store_harness.intake.accept(question)
        await self.store_harness.answer(answer)
        await self.recorder.catch_up(FAMILY)
        return question.id

    async def delete_message(self, message: str) -> None:
        await self.store_harness.intake.receive(a_message("", deletes=MessageId(message)))

    async def waiting(self) -> list[sessions.PendingDeletion]:
        async with self.store_harness.database.reading() as tx:
            return await sessions.pending_deletions(tx, FAMILY)

    def snapshot(self) -> None:
        assert self.recorder.manager(FAMILY).snapshot(now_ms=self.store_harness.clock.now_ms())

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.forgetting.run(), name="forgetting")
        await until(lambda: self.store_harness.bus._listeners, "it listens")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})


@pytest.fixture
async def harness(store_harness: StoreHarness, tmp_path: Path) -> Harness:
    await store_harness.add_group()
    (tmp_path / "env" / "family").mkdir(parents=True)
    return Harness(store_harness, tmp_path)


async def test_a_summary_is_made_anew_without_what_was_taken_back(harness: Harness) -> None:
    taken = await harness.say(CODE, "The bees are fine.")
    await harness.say(f"The ferry leaves at nine. {LONG}")
    await harness.say(LONG)
    harness.snapshot()
    assert CODE in harness.summary
    async with harness.looking():
        await harness.delete_message(taken)
        await until(lambda: harness.having("tulip") == [], "the words are in no file")
    assert "The bees are fine." in harness.summary, "what was said besides is there still"
    assert "The ferry leaves at nine." in harness.summary
    assert TAKEN_BACK not in harness.summary
    assert await harness.waiting() == []
    assert harness.dropped == [FAMILY], "nobody sums up what was taken back"


async def test_a_snapshot_lets_go_of_the_words_that_were_in_its_window(harness: Harness) -> None:
    taken = await harness.say(CODE)
    harness.snapshot()
    other = harness.recorder.manager(FAMILY).snapshots()[0].name
    await harness.delete_message(taken)
    await harness.forgetting.sweep()
    assert harness.having("tulip") == []
    assert harness.recorder.manager(FAMILY).restore(other, now_ms=harness.store_harness.clock.now_ms())
    window = [one.content for one in harness.kept.conversation.recent_window]
    assert window == [TAKEN_BACK, "Noted."]


async def test_what_others_asked_in_the_same_turn_stays(harness: Harness) -> None:
    one, two = a_message(f"@Andy {CODE}"), a_message("@Andy the bees sleep.")
    for message in (one, two):
        await harness.store_harness.intake.accept(message)
    await harness.store_harness.answer("Noted.")
    await harness.recorder.catch_up(FAMILY)
    for _ in range(2):
        await harness.say(LONG)
    assert "tulip" in harness.summary
    await harness.delete_message(one.id)
    await harness.forgetting.sweep()
    assert "tulip" not in harness.summary
    assert "the bees sleep." in harness.summary


async def test_a_host_that_died_before_forgets_when_it_is_there_again(harness: Harness) -> None:
    taken = await harness.say(CODE)
    for _ in range(2):
        await harness.say(LONG)
    harness.snapshot()
    await harness.delete_message(taken)
    harness.again()
    assert harness.having("tulip")
    async with harness.looking():
        await until(lambda: harness.having("tulip") == [], "the words are in no file")


async def test_what_cannot_be_written_now_is_forgotten_later(harness: Harness, monkeypatch) -> None:
    monkeypatch.setattr("orchestrator.context.context_manager.ContextManager.remove_messages", _full_disk)
    taken = await harness.say(CODE)
    for _ in range(2):
        await harness.say(LONG)
    await harness.delete_message(taken)
    await harness.forgetting.sweep()
    assert len(await harness.waiting()) == 1
    monkeypatch.undo()
    await harness.forgetting.sweep()
    assert await harness.waiting() == []
    assert harness.having("tulip") == []


async def test_a_group_whose_words_cannot_be_removed_stops_no_other(harness: Harness, monkeypatch) -> None:
    await harness.store_harness.add_group("work")
    (harness.home / "env" / "work").mkdir()
    await harness.delete_message(await harness.say(CODE))
    async with harness.store_harness.database.transaction() as tx:
        await sessions.request_new_session(tx, Folder("work"))
    monkeypatch.setattr("orchestrator.context.context_manager.ContextManager.remove_messages", _odd_file)
    with pytest.raises(ExceptionGroup) as failed:
        await harness.forgetting.sweep()
    assert [str(error) for error in failed.value.exceptions] == ["an odd file"]
    async with harness.store_harness.database.reading() as tx:
        assert await sessions.groups_with_deleted_text(tx) == [FAMILY]
    monkeypatch.undo()
    await harness.forgetting.sweep()
    assert await harness.waiting() == []


def _odd_file(*_: object, **__: object) -> None:
    raise ValueError("an odd file")


def _full_disk(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


async def test_what_a_session_said_of_itself_goes_with_words_that_it_may_have(harness: Harness) -> None:
    for _ in range(3):
        await harness.say(LONG)
    taken = await harness.say("the code is blue")
    manager = harness.recorder.manager(FAMILY)
    manager.join_summary("They spoke of a blue code.", now_ms=harness.store_harness.clock.now_ms())
    await harness.delete_message(taken)
    await harness.forgetting.sweep()
    assert harness.having("blue") == []
    assert "trains" in harness.summary, "what is known to be of others is there still"


async def test_a_second_summary_of_a_session_is_known_for_one_behind_all_earlier_messages(
    harness: Harness,
) -> None:
    manager, now_ms = harness.recorder.manager(FAMILY), harness.store_harness.clock.now_ms()
    manager.join_summary("They spoke of trains.", now_ms=now_ms)
    for _ in range(3):
        await harness.say(LONG)
    manager.join_summary("They spoke of a blue code.", now_ms=now_ms)
    folded = harness.kept.conversation.folded
    # Only the newest ids are stored: a mark before them would be dropped.
    assert len(folded) > 1
    assert folded.index(FROM_SESSION) == len(folded) - 1


async def transcript_to_remove(harness: Harness) -> Path:
    """A transcript of a session that is to end because something was forgotten."""
    async with harness.store_harness.database.transaction() as tx:
        await sessions.request_new_session(tx, FAMILY)
    path = harness.home / "sessions" / "family" / ".claude" / "projects" / "p" / "s.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(CODE)
    return path


async def test_transcripts_whose_removal_was_broken_off_are_removed_at_the_next_look(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await transcript_to_remove(harness)

    with monkeypatch.context() as broken:
        broken.setattr(transcript, "remove_all", _odd_file)
        with pytest.raises(ExceptionGroup):
            await harness.forgetting.sweep()
    await harness.forgetting.sweep()
    assert not path.exists()


async def test_transcripts_that_could_not_be_removed_are_removed_at_a_later_look(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await transcript_to_remove(harness)
    ended: list[str] = []

    def too_many(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as broken, harness.store_harness.bus.listening("group.configured") as events:
        broken.setattr(transcript, "remove_all", too_many)
        for _ in range(3):
            await harness.forgetting.sweep()
        while not events.empty():
            ended.append(events.get_nowait().kind)
    assert ended == ["group.configured"], "the session is ended once"
    assert path.exists()
    await harness.forgetting.sweep()
    assert not path.exists()
    async with harness.store_harness.database.reading() as tx:
        assert await sessions.new_session_requests(tx, FAMILY) == 0


async def test_the_transcript_of_the_session_begun_since_stays(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harness.store_harness.database.transaction() as tx:
        await sessions.request_new_session(tx, FAMILY)
    old = harness.home / "sessions" / "family" / ".claude" / "projects" / "p" / "old.jsonl"
    new = old.with_name("new.jsonl")
    old.parent.mkdir(parents=True)
    old.write_text(CODE)
    with monkeypatch.context() as broken:
        broken.setattr(transcript, "remove_all", _full_disk)
        await harness.forgetting.sweep()
    async with harness.store_harness.database.transaction() as tx:
        await sessions.put_current(tx, FAMILY, "new", now_ms=1)
    new.write_text("{}")
    await harness.forgetting.sweep()
    assert not old.exists()
    assert new.exists()


async def test_while_transcripts_are_removed_others_use_the_database_and_more_may_be_forgotten(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    removed: list[int] = []
    noted: list[int] = []

    async def note() -> None:
        async with harness.store_harness.database.transaction() as tx:
            await sessions.request_new_session(tx, FAMILY)

    def remove(*_: object) -> None:
        removed.append(1)
        if len(removed) == 1:
            asyncio.run_coroutine_threadsafe(note(), loop).result(10)
            noted.append(1)

    monkeypatch.setattr(transcript, "remove_all", remove)
    await note()
    for _ in range(3):
        await harness.forgetting.sweep()
    assert noted, "the database was free"
    assert len(removed) == 2, "once more for what was noted meanwhile"


async def test_words_that_no_summary_has_leave_it_as_it_is(harness: Harness) -> None:
    for _ in range(3):
        await harness.say(LONG)
    before = harness.summary
    taken = await harness.say(CODE)
    manager = harness.recorder.manager(FAMILY)
    assert manager.put_summary("A better one.", instead_of=harness.summary, now_ms=1)
    assert before
    await harness.delete_message(taken)
    await harness.forgetting.sweep()
    assert harness.summary == "A better one."
    assert harness.having("tulip") == []


async def test_a_reset_brings_nothing_back_when_words_are_taken_back(harness: Harness) -> None:
    taken = await harness.say(CODE)
    for _ in range(2):
        await harness.say(LONG)
    harness.recorder.manager(FAMILY).reset(now_ms=harness.store_harness.clock.now_ms())
    await harness.delete_message(taken)
    await harness.forgetting.sweep()
    assert harness.kept.is_empty
    assert harness.having("tulip") == [], "nor has the snapshot that was taken before"


async def test_a_look_costs_no_statement_for_a_group_that_has_nothing_to_forget(harness: Harness) -> None:
    for number in range(5):
        await harness.store_harness.add_group(f"other-{number}")
    statements: list[str] = []
    harness.store_harness.database._direct.set_trace_callback(statements.append)

    await harness.forgetting.sweep()

    assert len(statements) == 1, statements
