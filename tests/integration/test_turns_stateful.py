"""Random lives of a chat, with crashes and outages: every message has one outcome, every turn speaks once.

A model of retries stands beside the store: attempts, restarts, the outage that a turn waits for, and the
pause after each. These mistakes were planted one at a time and each found: an outage that counts as an
attempt, that begins anew at each try, or that outlives its answer; an
engine that is away and is no outage; a pause of an outage that does not grow, or of another attempt; a
restart that counts as an attempt, or has no pause after some; held answers that are not dropped.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent_runner.wire.frames import Ack, Result, TurnEnd
from orchestrator.containers import frame_effects
from orchestrator.domain.failures import FailureOwner, ModelError, Outage
from orchestrator.domain.values import Folder, TurnState
from orchestrator.proxies.model.credentials import CredentialSource
from orchestrator.proxies.model.exchange import Answered, RunIdentity
from orchestrator.proxies.model.health import ModelHealth
from orchestrator.queue.retries import requeue_or_fail
from orchestrator.store.database import Database
from orchestrator.store.runs import runs, sessions, turn_outages
from tests.doubles.clock import FakeClock
from tests.support.json_schemas import examples
from tests.support.store_harness import StoreHarness, a_message

MINUTE_MS = 60_000
MAX_ATTEMPTS = 6
MAX_RESTARTS = 20
MAX_OUTAGE_MS = 15 * MINUTE_MS
RETRY_DELAYS_MS = (5_000, 10_000, 20_000, 40_000, 80_000)
RESTART_DELAYS_MS = (0, *RETRY_DELAYS_MS)
DOWN = Answered(error=ModelError.OUTAGE, status=529)
FINE = Answered(error=None, status=200)


class HostDied(Exception):
    """The host was killed within a transaction."""


@dataclass
class Tries:
    """The tries of a turn as they should be."""

    attempt: int = 1
    restarts: int = 0
    waits_since_ms: int | None = None
    waits_for: str | None = None
    """The service whose outage keeps it waiting."""
    met_ms: int | None = None
    """When the turn met the outage of the model, or when the present host started, if it waited for the
    model then. Only since then its waiting counts, as the machine may have slept before, or the host was off.
    """
    is_stopped: bool = False
    not_before_ms: int | None = None

    def wait(self, service, now_ms):
        self.waits_for = service
        self.waits_since_ms = now_ms if self.waits_since_ms is None else self.waits_since_ms
        if service == "model" and self.met_ms is not None:
            self.waits_since_ms = max(self.waits_since_ms, self.met_ms)
        elif service == "model":
            self.met_ms = now_ms

    def restart(self, now_ms):
        self.met_ms = now_ms if self.waits_for == "model" else None

    def end_wait(self, service):
        if self.waits_for == service:
            self.waits_for = self.waits_since_ms = None
        if service == "model":
            self.met_ms = None

    def go_on(self, now_ms, fault):
        """Go on after a try without an answer; return the state that the turn is in then."""
        if self.is_stopped:
            return TurnState.FAILED
        if fault is FailureOwner.ENGINE:
            self.wait("engine", now_ms)
        if fault is FailureOwner.RESTART:
            if self.restarts == MAX_RESTARTS:
                return TurnState.FAILED
            delay_ms = RESTART_DELAYS_MS[min(self.restarts, len(RESTART_DELAYS_MS) - 1)]
        elif self.waits_since_ms is not None:
            waited_ms = now_ms - self.waits_since_ms
            if waited_ms >= MAX_OUTAGE_MS:
                return TurnState.FAILED
            delay_ms = min(max(waited_ms // 2, 5_000), MINUTE_MS)
        else:
            if self.attempt == MAX_ATTEMPTS:
                return TurnState.FAILED
            delay_ms = RETRY_DELAYS_MS[self.attempt - 1]
            self.attempt += 1
        self.restarts += fault is FailureOwner.RESTART
        self.not_before_ms = now_ms + delay_ms
        return TurnState.QUEUED


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
        self.tries = {}
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
        self.health = ModelHealth(
            self.harness.database,
            source=CredentialSource(Path(self.folder.name), {}),
            clock=self.clock,
            model_of=_no_model,
            probe=_no_probe,
            on_recovery=_no_probe,
            on_change=lambda: None,
        )
        await self.health.load()

    async def _restart(self):
        await self.harness.database.close()
        numbers = self.harness.numbers
        await self._open()
        self.harness.numbers = numbers
        for tries in self.tries.values():
            tries.restart(self.clock.now_ms())

    @initialize()
    def a_question_is_asked(self):
        """Begin with a turn under way, for most rules need one."""
        self.hear(asks=True)
        self.start()

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
        self.tries.setdefault(self.running.id, Tries())

    @rule(seconds=st.sampled_from([1, 30, 300]))
    def pause(self, seconds):
        self.clock.pass_ms(seconds * 1000)

    @precondition(lambda self: self.running)
    @rule(minutes=st.sampled_from([0, 1, 6]))
    def meet_an_outage_of_the_model(self, minutes):
        """Ask a model service that is down, again and again for some time."""
        tries = self.tries[self.running.id]
        for passes_ms in (0, minutes * MINUTE_MS):
            self.clock.pass_ms(passes_ms)
            is_worth_it = self._judge(DOWN)
            tries.wait("model", self.clock.now_ms())
            is_too_long = self.clock.now_ms() - tries.waits_since_ms >= MAX_OUTAGE_MS
            tries.is_stopped |= is_too_long
            assert is_worth_it != is_too_long

    @precondition(lambda self: self.running)
    @rule(is_host_new=st.booleans())
    def get_an_answer_of_the_model(self, is_host_new):
        if is_host_new:
            self.restart_host_which_adopts_the_container()
        assert self._judge(FINE)
        self.tries[self.running.id].end_wait("model")

    @precondition(lambda self: self.running)
    @rule()
    def begin_a_container(self):
        """Find the engine there again, as each start of a container does."""
        self.do(self._end_outage_of_engine())
        self.tries[self.running.id].end_wait("engine")

    @precondition(lambda self: self.running)
    @rule(times=st.integers(1, 3))
    def fail_for_a_while(self, times):
        """Fail, wait and fail again: only so the last try comes."""
        for _ in range(times):
            if self.running is None and self.do(self.harness.queued()):
                self.start()
            if self.running is not None:
                self.lose_container(fault=FailureOwner.TURN)

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
    @rule(is_good=st.booleans(), is_adopted=st.booleans())
    def end_turn_as_the_host_dies_before_it_is_stored(self, is_good, is_adopted):
        frame = TurnEnd(
            n=len(self.frames) + 1, turn=self.running.id, status="success" if is_good else "error"
        )
        self.do(self._die_before_it_is_stored(frame))
        if is_adopted:
            self.restart_host_which_adopts_the_container()
            self._say(frame)
            self._leave(is_good=is_good)
        else:
            self.restart_host_which_finds_no_container()

    @precondition(lambda self: self.running)
    @rule(fault=st.sampled_from([FailureOwner.TURN, FailureOwner.HOST, FailureOwner.ENGINE]))
    def lose_container(self, fault):
        self.do(self.harness.lose(self.run_, fault=fault))
        self._leave(is_good=False, fault=fault)

    @rule()
    def restart_host_which_finds_no_container(self):
        self.do(self._restart())
        for run in self.do(self._live_runs()):
            self.do(self.harness.lose(run, fault=FailureOwner.RESTART))
        if self.running is not None:
            self._leave(is_good=False, fault=FailureOwner.RESTART)

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

    @invariant()
    def each_turn_waits_for_what_is_down_since_it_met_that(self):
        waiting = self.do(
            self.harness.rows(
                "SELECT turn_id, cause, since_ms FROM turn_outages JOIN turns ON turns.id = turn_id"
                " WHERE state IN ('queued', 'running')"
            )
        )
        for row in waiting:
            tries = self.tries[row["turn_id"]]
            assert (row["cause"], row["since_ms"]) == (tries.waits_for, tries.waits_since_ms)

    @invariant()
    def each_turn_is_tried_as_often_and_as_late_as_it_should(self):
        for turn in self.do(self.harness.rows("SELECT * FROM turns")):
            tries = self.tries.get(turn["id"], Tries())
            assert (turn["attempt"], turn["restarts"]) == (tries.attempt, tries.restarts)
            if turn["state"] == "queued" and tries.not_before_ms is not None:
                assert turn["not_before_ms"] == tries.not_before_ms

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

    def _leave(self, *, is_good, fault=FailureOwner.TURN):
        tries = self.tries[self.running.id]
        expected = TurnState.ANSWERED if is_good else tries.go_on(self.clock.now_ms(), fault)
        assert self.do(self.harness.turn(self.running.id)).state is expected
        self.running = None

    def _judge(self, answered):
        identity = RunIdentity(run_id=self.run_.id, folder=self.run_.folder, turn_id=self.running.id)
        return self.do(self.health.judge(identity, answered))

    async def _end_outage_of_engine(self):
        async with self.harness.database.transaction() as tx:
            await turn_outages.end(tx, self.running.id, Outage.ENGINE)

    async def _die_before_it_is_stored(self, frame):
        with suppress(HostDied):
            async with self.harness.database.transaction() as tx:
                await frame_effects.apply(
                    tx, self.run_, frame, requeue=requeue_or_fail, now_ms=self.clock.now_ms()
                )
                raise HostDied

    async def _live_runs(self):
        async with self.harness.database.reading() as tx:
            return await runs.live(tx)

    async def _cursor(self):
        async with self.harness.database.reading() as tx:
            return await sessions.cursor_of(tx, Folder("family"))


async def _no_model(folder, kind):
    del folder, kind


async def _no_probe(*arguments):
    raise AssertionError("nothing is refused here")


Chat.TestCase.settings = settings(max_examples=examples(20), stateful_step_count=40, deadline=None)
TestChat = pytest.mark.slow(Chat.TestCase)
