"""How a conversation goes on, decided on a real store, real context files and transcripts of every kind."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from filelock import FileLock

from agent_runner.wire.frames import Ack, Result, TurnEnd, Usage
from orchestrator.base import event_bus
from orchestrator.containers.ports import ChosenAgent, Restoration
from orchestrator.context import session_restorer as restoring
from orchestrator.context import transcript
from orchestrator.context.recorder import ContextRecorder
from orchestrator.context.resume_or_retell import DAY_MS
from orchestrator.context.session_restorer import UNREAD, SessionRestorer
from orchestrator.context.tokens import EstimatingCounter, TokenFactors
from orchestrator.domain.errors import SettingError
from orchestrator.domain.values import OFFLINE, Folder, RunId, SessionCommand, Turn, TurnState
from orchestrator.store.runs import checkpoints, runs, sessions, turns
from tests.support.store_harness import StoreHarness, a_group
from tests.support.transcripts import SESSION, Writing, place
from tests.support.until import until

FAMILY = Folder("family")
OPUS = ChosenAgent(agent="claude", model="opus", service="api.anthropic.com")


@dataclass
class Harness:
    """A group whose agent writes its transcript as the CLI does."""

    store_harness: StoreHarness
    home: Path
    agent: ChosenAgent = OPUS
    transcript: Writing = field(default_factory=Writing)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.recorder = ContextRecorder(
            self.store_harness.database,
            contexts=self.home / "context",
            env=self.home / "env",
            counter=EstimatingCounter(),
            clock=self.store_harness.clock,
            bus=self.store_harness.bus,
            name="Andy",
            on_notified=lambda: None,
        )
        self.restoring = SessionRestorer(
            self.store_harness.database,
            self.recorder,
            session_files=self.home / "sessions",
            agent_of=lambda group, kind: self.agent,
            factors=TokenFactors(self.home / "token-factors.json"),
            clock=self.store_harness.clock,
            bus=self.store_harness.bus,
        )

    @property
    def file(self) -> Path:
        return place(self.home / "sessions")

    def write(self, lines: slice = slice(None)) -> None:
        self.file.write_text(self.transcript.text(lines))

    async def ask(self, text: str) -> Turn:
        """Have a question wait."""
        await self.store_harness.hear(f"@Andy {text}")
        return (await self.store_harness.queued())[0]

    async def begin(self, text: str, *, tokens: int = 50_000) -> tuple[Turn, RunId]:
        turn = await self.ask(text)
        run = replace(
            await self.store_harness.begin_run(),
            id=RunId(f"r-{next(self.numbers)}"),
            model=self.agent.model,
            provider=self.agent.provider,
            restore_mode="resume",
        )
        async with self.store_harness.database.transaction() as tx:
            await runs.begin(tx, replace(run, token_hash=run.id))
        await self.store_harness.give(turn, run)
        await self.store_harness.take(run, Ack(n=1, turn=turn.id))
        if self.agent.agent == "claude":
            await self.store_harness.take(
                run, Usage(n=2, turn=turn.id, context_tokens=tokens, new_session_id=SESSION)
            )
        self.run = run
        return turn, run.id

    async def say(self, text: str, answer: str, **more: int) -> None:
        """One whole turn, in the store and in the transcript."""
        turn, _ = await self.begin(text, **more)
        await self.store_harness.take(self.run, Result(n=3, turn=turn.id, result=answer))
        checkpoint = None
        if self.agent.agent == "claude":
            self.transcript.asks(text)
            checkpoint = self.transcript.answers(answer)
            self.write()
        await self.store_harness.take(self.run, TurnEnd(n=4, turn=turn.id, checkpoint=checkpoint))

    async def restore(self, text: str = "and now?") -> Restoration:
        """What a container would be told that starts with this question."""
        turn = await self.ask(text)
        async with self.store_harness.database.reading() as tx:
            session_id = await sessions.current(tx, FAMILY)
        return await self.restoring.restore(turn, a_group(), session_id)


@pytest.fixture
async def harness(store_harness: StoreHarness, tmp_path: Path) -> Harness:
    await store_harness.add_group()
    (tmp_path / "sessions").mkdir()
    return Harness(store_harness, tmp_path)


@pytest.fixture
async def talked(harness: Harness) -> Harness:
    """Three answered turns."""
    for number, colour in enumerate(("blue", "red", "green"), start=1):
        await harness.say(f"Colour {number} is {colour}.", f"Noted {colour}.")
    return harness


def mode_of(found: Restoration) -> tuple[str, str | None]:
    return found.restore.mode, found.session_id


async def test_the_first_conversation_of_a_group_begins(harness: Harness) -> None:
    found = await harness.restore("hello")
    assert mode_of(found) == ("fresh", None)
    assert (found.restore.text, found.restore.fallback) == (None, None)
    assert (found.model, found.provider) == ("opus", "api.anthropic.com")


async def test_a_session_that_is_whole_is_resumed_and_told_nothing(talked: Harness) -> None:
    found = await talked.restore("sure?")
    assert mode_of(found) == ("resume", SESSION)
    assert (found.restore.text, found.restore.resume_at) == (None, None)
    assert "Noted green." in (found.restore.fallback or ""), "for the case that it is gone after all"
    assert "sure?" not in (found.restore.fallback or "")


async def test_what_the_conversation_was_so_far_goes_along(talked: Harness) -> None:
    """N-51, C.5-6: whoever is to notice that it goes on is told how much of it there is."""
    talked.store_harness.clock.pass_ms(90_000)
    so_far = (await talked.restore("sure?")).restore.so_far
    assert (so_far.turns, so_far.exchanges_kept, so_far.messages_kept) == (3, 3, 6)
    assert so_far.last_question == "Jane: Colour 3 is green."
    assert (so_far.context_tokens, so_far.summary_chars) == (50_000, 0)
    assert so_far.age_seconds >= 90


async def test_a_question_that_is_asked_again_is_not_yet_of_the_conversation(talked: Harness) -> None:
    await talked.begin("what is the second?")
    await talked.store_harness.lose(talked.run)
    async with talked.store_harness.database.reading() as tx:
        (again,) = await turns.unsettled(tx)
    so_far = (await talked.restoring.restore(again, a_group(), SESSION)).restore.so_far
    assert (so_far.turns, so_far.last_question) == (3, "Jane: Colour 3 is green.")


def delete(harness: Harness) -> None:
    harness.file.unlink()


def empty(harness: Harness) -> None:
    harness.file.write_text("")


def lose_the_head(harness: Harness) -> None:
    harness.write(slice(2, None))


def plant_a_pipe(harness: Harness) -> None:
    harness.file.unlink()
    os.mkfifo(harness.file)


def plant_a_link(harness: Harness) -> None:
    harness.file.rename(harness.home / "elsewhere")
    harness.file.symlink_to(harness.home / "elsewhere")


def change_the_provider(harness: Harness) -> None:
    harness.agent = replace(OPUS, service="gateway.example")


def wait_a_month(harness: Harness) -> None:
    harness.store_harness.clock.pass_ms(30 * DAY_MS)


LOSSES = (delete, empty, lose_the_head, plant_a_pipe, plant_a_link, change_the_provider, wait_a_month)


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
async def test_a_conversation_outlives_its_session(talked: Harness, lose) -> None:
    lose(talked)
    found = await talked.restore("which colours?")
    assert mode_of(found) == ("rehydrate", None)
    text = found.restore.text or ""
    for said in ("Colour 1 is blue.", "Noted blue.", "Colour 3 is green.", "Noted green."):
        assert text.count(said) == 1
    assert "which colours?" not in text
    assert found.restore.reason
    assert found.facts["messages_in_window"] == 6


async def test_another_model_goes_on_in_the_session_if_it_has_room(talked: Harness) -> None:
    talked.agent = replace(OPUS, model="haiku")
    assert mode_of(await talked.restore()) == ("resume", SESSION)


async def test_another_model_without_room_begins_with_what_was_kept(harness: Harness) -> None:
    await harness.say("A long story.", "I see.", tokens=190_000)
    harness.agent = replace(OPUS, model="haiku")
    found = await harness.restore()
    assert mode_of(found) == ("rehydrate", None)
    assert "247,000" in found.restore.reason


async def test_a_session_is_told_the_end_that_it_lost(talked: Harness) -> None:
    talked.write(slice(0, 4))
    found = await talked.restore()
    assert mode_of(found) == ("resume_plus_delta", SESSION)
    text = found.restore.text or ""
    assert text.count("Noted green.") == 1
    assert "Noted red." not in text, "that is in the session"
    assert len(text) <= 2_000


async def test_an_end_that_is_too_long_to_tell_is_a_new_session(talked: Harness) -> None:
    for number in range(4):
        await talked.say(f"Story {number}: " + "x y z " * 60, "So it goes. " * 30)
    talked.write(slice(0, 4))
    found = await talked.restore()
    assert found.restore.mode == "rehydrate"
    assert "lacks" in found.restore.reason


async def test_a_turn_tried_again_goes_on_after_the_last_answer(talked: Harness) -> None:
    answered = talked.transcript.last
    await talked.begin("what is the second?")
    talked.transcript.asks("what is the second?")
    talked.transcript.uses_tool()
    talked.write()
    await talked.store_harness.lose(talked.run)
    async with talked.store_harness.database.reading() as tx:
        (again,) = await turns.unsettled(tx)
    found = await talked.restoring.restore(again, a_group(), SESSION)
    assert mode_of(found) == ("resume", SESSION)
    assert found.restore.resume_at == answered
    assert "what is the second?" not in (found.restore.fallback or "")


async def test_an_answer_that_the_host_did_not_hear_is_given_again(talked: Harness) -> None:
    """The transcript has question and answer; the store has a turn to try again."""
    answered = talked.transcript.last
    await talked.begin("what is the second?")
    talked.transcript.asks("what is the second?")
    talked.transcript.answers("Red.")
    talked.write()
    await talked.store_harness.lose(talked.run)
    async with talked.store_harness.database.reading() as tx:
        (again,) = await turns.unsettled(tx)
    found = await talked.restoring.restore(again, a_group(), SESSION)
    assert (*mode_of(found), found.restore.resume_at) == ("resume", SESSION, answered)


async def test_a_first_question_tried_again_begins_a_session_of_its_own(harness: Harness) -> None:
    await harness.begin("hello")
    harness.transcript.asks("hello")
    harness.write()
    await harness.store_harness.lose(harness.run)
    found = await harness.restore("hello again")
    assert mode_of(found) == ("fresh", None), "the session holds nothing but the question"


async def test_what_an_agent_without_sessions_answered_is_told_to_the_session(talked: Harness) -> None:
    talked.agent = ChosenAgent(agent="offline", model=None, service="api.anthropic.com")
    found = await talked.restore()
    assert (*mode_of(found), found.provider) == ("rehydrate", None, OFFLINE)
    async with talked.store_harness.database.transaction() as tx:
        await tx.execute("DELETE FROM messages WHERE turn_id = (SELECT max(id) FROM turns)")
        await tx.execute("DELETE FROM turns WHERE state = 'queued'")
    await talked.say("remind me of the bees", "I will.")
    talked.agent = OPUS
    found = await talked.restore()
    assert mode_of(found) == ("resume_plus_delta", SESSION)
    assert (found.restore.text or "").count("remind me of the bees") == 1
    assert "Noted green." not in (found.restore.text or "")


async def test_what_was_cleared_is_told_to_nobody(talked: Harness) -> None:
    await talked.recorder.catch_up(FAMILY)
    async with talked.store_harness.database.transaction() as tx:
        now_ms = talked.store_harness.clock.now_ms()
        group = a_group()
        turn = await turns.add_command(tx, group.folder, group.jid, SessionCommand.CLEAR, now_ms=now_ms)
        await sessions.forget(tx, FAMILY, now_ms=now_ms)
        await turns.settle(tx, turn, TurnState.ANSWERED, reason="cleared", now_ms=now_ms)
    found = await talked.restore("which colours?")
    assert mode_of(found) == ("fresh", None)
    assert (found.restore.text, found.restore.fallback) == (None, None)


async def test_a_conversation_that_was_forgotten_by_hand_is_kept_by_its_session(talked: Harness) -> None:
    await talked.recorder.catch_up(FAMILY)
    await asyncio.to_thread(talked.recorder.manager(FAMILY).reset, now_ms=talked.store_harness.clock.now_ms())
    assert mode_of(await talked.restore()) == ("resume", SESSION)
    delete(talked)
    assert mode_of(await talked.restore())[0] == "fresh"


async def test_context_files_that_are_busy_cost_no_answer(talked: Harness, monkeypatch) -> None:
    await talked.recorder.catch_up(FAMILY)
    brain = talked.recorder.manager(FAMILY).files.path
    with FileLock(brain / ".context.lock"), monkeypatch.context() as hurried:
        hurried.setattr(restoring, "PATIENCE_SECONDS", 0.05)
        found = await talked.restore()
        assert (*mode_of(found), found.restore.reason) == ("resume", SESSION, UNREAD)
    assert (await talked.restore()).restore.reason != UNREAD


async def test_a_transcript_that_a_disk_does_not_give_costs_no_answer(talked: Harness, monkeypatch) -> None:
    monkeypatch.setattr(restoring, "TRANSCRIPT_SECONDS", 0.05)
    released = threading.Event()
    monkeypatch.setattr(transcript, "read", lambda *_: released.wait())
    try:
        found = await talked.restore()
    finally:
        released.set()
    assert (*mode_of(found), found.restore.reason) == (
        "resume",
        SESSION,
        "its session could not be looked at",
    )


async def test_a_context_file_that_is_broken_costs_no_answer(talked: Harness) -> None:
    await talked.recorder.catch_up(FAMILY)
    path = talked.recorder.manager(FAMILY).files.path / "context.json"
    path.write_text('{"version": ')
    assert mode_of(await talked.restore()) == ("resume", SESSION)
    path.unlink()
    path.mkdir()
    assert mode_of(await talked.restore()) == ("resume", SESSION)


async def test_whatever_goes_wrong_costs_no_answer(talked: Harness, monkeypatch) -> None:
    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(restoring, "_plan_with_texts", broken)
    assert mode_of(await talked.restore()) == ("resume", SESSION)
    await talked.begin("a first question in a new session")
    async with talked.store_harness.database.transaction() as tx:
        await sessions.put_current(tx, FAMILY, "0b9d1f3e-1111-4222-8333-555555555555", now_ms=1)
    await talked.store_harness.lose(talked.run)
    assert mode_of(await talked.restore()) == ("fresh", None)


async def test_a_question_is_there_once_also_when_nothing_that_was_kept_can_be_read(
    talked: Harness, monkeypatch
) -> None:
    monkeypatch.setattr(restoring, "PATIENCE_SECONDS", 0)
    answered = talked.transcript.last
    talked.transcript.asks("cut off")
    talked.write()
    found = await talked.restore()
    assert (*mode_of(found), found.restore.resume_at) == ("resume", SESSION, answered)
    talked.write(slice(0, 4))
    found = await talked.restore()
    assert (*mode_of(found), found.restore.reason) == ("resume", SESSION, UNREAD)


async def test_settings_that_are_amiss_are_told_by_whoever_needs_them(talked: Harness) -> None:
    def amiss(group, kind):
        raise SettingError("ANTHROPIC_BASE_URL is no URL.")

    talked.restoring._agent_of = amiss
    found = await talked.restore()
    assert (*mode_of(found), found.restore.reason) == ("resume", SESSION, UNREAD)


@pytest.fixture
async def noting(talked: Harness) -> AsyncIterator[Harness]:
    task = asyncio.create_task(talked.restoring.run(), name="restoring")
    await asyncio.sleep(0)
    yield talked
    task.cancel()
    await asyncio.wait([task])


async def test_the_session_of_a_busy_group_is_noted_at_once_and_then_now_and_then(
    talked: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_bus, "PAUSE_SECONDS", 3_600.0)
    noted = []

    async def note(self: SessionRestorer, folder: Folder) -> None:
        noted.append(folder)

    monkeypatch.setattr(SessionRestorer, "_note", note)
    task = asyncio.create_task(talked.restoring.run(), name="restoring")
    for _ in range(20):
        await asyncio.sleep(0)
        talked.store_harness.bus.publish("turn.answered", group=FAMILY)
        for _ in range(5):
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert noted == [FAMILY]


async def test_the_context_tells_people_what_is_known_of_the_session(noting: Harness) -> None:
    noting.store_harness.bus.publish("turn.answered", group=FAMILY)
    manager = noting.recorder.manager(FAMILY)

    def noted() -> bool:
        return manager.load(now_ms=0).context.sdk.session_id is not None

    await until(noted, "the session is noted")
    sdk = manager.load(now_ms=0).context.sdk
    assert (sdk.session_id, sdk.model, sdk.provider) == (SESSION, "opus", "api.anthropic.com")
    assert sdk.context_tokens == 50_000
    async with noting.store_harness.database.reading() as tx:
        newest = (await checkpoints.since_start(tx, FAMILY, SESSION))[-1]
    await until(
        lambda: [one.uuid for one in manager.load(now_ms=0).context.sdk.checkpoints] == [newest.uuid],
        "the checkpoint is noted",
    )
