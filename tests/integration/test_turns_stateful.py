"""Random lives of a chat, with crashes: every message has one outcome, every turn speaks once."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agent_runner.wire.frames import Ack, Result, TurnEnd
from orchestrator.domain.values import Folder, TurnState
from orchestrator.store import runs, sessions
from orchestrator.store.database import Database
from tests.doubles.clock import FakeClock
from tests.support.store_harness import StoreHarness, a_message

MAX_ATTEMPTS = 6


class Chat(RuleBasedStateMachine):
    """One group whose messages, containers and host come and go."""

    def __init__(self):
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "messages.db"
        self.clock = FakeClock()
        self.heard = []
        self.seen_in_attempt = {}
        self.said_in_attempt = {}
        self.frames = []
        self.running = None
        self.run_ = None
        self.cursor = 0
        self.do(self._open())
        self.do(self.harness.add_group())

    def do(self, coroutine):
        return self.runner.run(coroutine)

    async def _open(self):
        self.harness = StoreHarness(await Database.open(self.path), self.clock)

    async def _restart(self):
        await self.harness.database.close()
        numbers = self.harness.numbers
        await self._open()
        self.harness.numbers = numbers

    # What happens

    @rule(asks=st.booleans())
    def hear(self, asks):
        number = len(self.heard)
        message = a_message(f"{'@Andy ' if asks else ''}word-{number:03}.")
        accepted = self.do(self.harness.intake.accept(message))
        self.heard.append(message)
        assert accepted.outcome == ("queued" if accepted.turn_id else "ignored")
        assert accepted.turn_id or not asks

    @precondition(lambda self: self.heard)
    @rule(pick=st.integers(0, 50))
    def hear_again(self, pick):
        message = self.heard[pick % len(self.heard)]
        assert self.do(self.harness.intake.accept(message)).outcome == "duplicate"

    @precondition(lambda self: self.running is None and self.do(self.harness.queued()))
    @rule()
    def start(self):
        self.running, self.run_, order = self.do(self.harness.start_next())
        self.frames = []
        self.seen_in_attempt[self.running.id] = order.prompt
        self.said_in_attempt[self.running.id] = []

    @precondition(lambda self: self.running)
    @rule()
    def acknowledge(self):
        self._say(Ack(n=len(self.frames) + 1, turn=self.running.id))

    @precondition(lambda self: self.running)
    @rule()
    def answer(self):
        text = f"{self.run_.id} says {len(self.frames)}"
        self._say(Result(n=len(self.frames) + 1, turn=self.running.id, result=text))
        self.said_in_attempt[self.running.id].append(text)

    @precondition(lambda self: self.frames)
    @rule(pick=st.integers(0, 50))
    def read_a_frame_again(self, pick):
        assert self.do(self.harness.take(self.run_, self.frames[pick % len(self.frames)])) is None

    @precondition(lambda self: self.running)
    @rule()
    def speak_of_a_turn_that_is_not_mine(self):
        frame = TurnEnd(n=len(self.frames) + 1, turn=self.running.id + 1_000)
        assert self.do(self.harness.take(self.run_, frame)) is None
        self.frames.append(frame)

    @precondition(lambda self: self.running)
    @rule(is_good=st.booleans())
    def end_turn(self, is_good):
        status = "success" if is_good else "error"
        self._say(TurnEnd(n=len(self.frames) + 1, turn=self.running.id, status=status))
        self._leave(is_good=is_good)

    @precondition(lambda self: self.running)
    @rule()
    def lose_container(self):
        self.do(self.harness.lose(self.run_))
        self._leave(is_good=False)

    @rule()
    def restart_host_which_finds_no_container(self):
        self.do(self._restart())
        for run in self.do(self._live_runs()):
            self.do(self.harness.lose(run))
        if self.running is not None:
            self._leave(is_good=False)

    @rule()
    def restart_host_which_adopts_the_container(self):
        self.do(self._restart())
        for frame in self.frames:
            assert self.do(self.harness.take(self.run_, frame)) is None

    # What must hold

    @invariant()
    def each_message_is_stored_once_with_one_outcome(self):
        rows = self.do(
            self.harness.rows(
                "SELECT m.*, t.state FROM messages m LEFT JOIN turns t ON t.id = m.turn_id"
                " WHERE is_bot_message = 0 ORDER BY m.seq"
            )
        )
        assert [row["content"] for row in rows] == [one.text for one in self.heard]
        for row in rows:
            assert (row["turn_id"] is None) != (row["ignored_reason"] is None)
            assert row["turn_id"] is None or row["state"] is not None
            assert not (row["is_request"] and row["turn_id"] is None)

    @invariant()
    def one_turn_runs_and_one_waits_at_most(self):
        states = [row["state"] for row in self.do(self.harness.rows("SELECT state FROM turns"))]
        assert states.count("running") == (self.running is not None)
        assert states.count("queued") <= 1

    @invariant()
    def the_cursor_never_goes_back(self):
        now = self.do(self._cursor())
        assert now >= self.cursor
        self.cursor = now

    @invariant()
    def only_the_attempt_that_ended_well_is_heard(self):
        for turn in self.do(self.harness.rows("SELECT * FROM turns")):
            said = self.do(
                self.harness.rows("SELECT * FROM outbox WHERE turn_id = ? ORDER BY id", turn["id"])
            )
            if turn["state"] == "queued":
                assert said == []
            elif turn["state"] == "failed":
                assert turn["attempt"] == MAX_ATTEMPTS
                assert [row["dedupe_key"] for row in said] == [f"failed:{turn['id']}"]
            else:
                is_held = turn["state"] == "running"
                assert {row["state"] for row in said} <= {"held" if is_held else "pending"}
                assert [row["text"] for row in said] == self.said_in_attempt[turn["id"]]

    @invariant()
    def what_was_answered_was_read(self):
        answered = self.do(
            self.harness.rows(
                "SELECT m.content, t.id FROM messages m JOIN turns t ON t.id = m.turn_id"
                " WHERE t.state = 'answered'"
            )
        )
        for row in answered:
            assert row["content"] in self.seen_in_attempt[row["id"]]

    def teardown(self):
        try:
            self._end_in_peace()
        finally:
            self.do(self.harness.database.close())
            self.runner.close()
            self.folder.cleanup()

    def _end_in_peace(self):
        """Left alone, every turn ends, and every word was read by an agent or is still to be."""
        if self.running is not None:
            self.end_turn(is_good=True)
        if self.do(self.harness.queued()):
            self.start()
            self.end_turn(is_good=True)
        assert self.do(self.harness.queued()) == []
        self.each_message_is_stored_once_with_one_outcome()
        self.only_the_attempt_that_ended_well_is_heard()
        self.what_was_answered_was_read()

    def _say(self, frame):
        assert self.do(self.harness.take(self.run_, frame)) is not None
        self.frames.append(frame)

    def _leave(self, *, is_good):
        state = self.do(self.harness.turn(self.running.id)).state
        assert (state is TurnState.ANSWERED) == is_good
        self.running = None

    async def _live_runs(self):
        async with self.harness.database.reading() as tx:
            return await runs.live(tx)

    async def _cursor(self):
        async with self.harness.database.reading() as tx:
            return await sessions.cursor_of(tx, Folder("family"))


Chat.TestCase.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
TestChat = Chat.TestCase
