"""Random lives of notices in two groups, with failures, new conversations and new hosts (N-60 to N-64).

A model of the rules is kept beside the store, and every turn has to be given just what the model says.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agent_runner.wire.notices import MAX_UNDELIVERED
from orchestrator.store.database import Database
from orchestrator.store.notices.claims import MAX_DELIVERIES
from tests.doubles.clock import FakeClock
from tests.support.notice_harness import HOUR, NoticeHarness, told
from tests.support.store_harness import StoreHarness

GROUPS = ("family", "work")
URGENT = ("high", "critical")


@dataclass
class Mine:
    """What a notice should be."""

    folder: str
    message: str
    priority: str
    lasts: bool
    key: str | None
    turns: int
    made_turn: int | None
    session: str | None
    expires_ms: int
    state: str = "pending"
    deliveries: int = 0
    told_session: str | None = None
    counted_turn: int | None = None


class Lives(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "messages.db"
        self.clock = FakeClock()
        self.known: dict[int, Mine] = {}
        self.running = {}
        self.session = dict.fromkeys(GROUPS)
        self.session_numbers = 0
        self.given: dict[str, list[int]] = {}
        self.do(self._open())
        for folder in GROUPS:
            self.do(self.home.harness.add_group(folder))

    def do(self, coroutine):
        return self.runner.run(coroutine)

    async def _open(self):
        self.home = NoticeHarness(StoreHarness(await Database.open(self.path), self.clock))

    @property
    def now(self):
        return self.clock.now_ms()

    # The agent

    @rule(
        folder=st.sampled_from(GROUPS),
        priority=st.sampled_from(["low", "normal", *URGENT]),
        lasts=st.booleans(),
        key=st.sampled_from([None, "a", "b"]),
        turns=st.integers(0, 3),
        hours=st.sampled_from([1, 24, 720]),
    )
    def note(self, folder, priority, lasts, key, turns, hours):
        message = f"{folder} {len(self.known)}"
        timing = {"deliver_at": "after_n_turns", "turns": turns} if turns else {}
        keyed = {} if key is None else {"dedupe_key": key}
        reply = self.do(
            self.home.ask(
                "notify_self",
                by=folder,
                message=message,
                priority=priority,
                persist_cross_session=lasts,
                expires_in_hours=hours,
                **timing,
                **keyed,
            )
        )
        replaced = [
            number
            for number, one in self.known.items()
            if (one.folder, one.key, one.state) == (folder, key, "pending") and key is not None
        ]
        waiting = [one for one in self.known.values() if (one.folder, one.state) == (folder, "pending")]
        if not replaced and len(waiting) >= MAX_UNDELIVERED:
            assert reply.code == "limit_reached"
            return
        number = reply.data["id"]
        assert replaced in ([], [number])
        running, waiting_again = self.running.get(folder), self.do(self.home.harness.queued(folder))
        turns_of_it = [running[0]] if running else [one for one in waiting_again if one.run_id]
        self.known[number] = Mine(
            folder=folder,
            message=message,
            priority=priority,
            lasts=lasts,
            key=key,
            turns=turns,
            made_turn=turns_of_it[0].id if turns_of_it else None,
            session=self.session[folder],
            expires_ms=self.now + hours * HOUR,
        )
        if number in self.given.get(folder, ()):
            self.given[folder].remove(number)  # what that turn tells is not this any more

    @precondition(lambda self: self.known)
    @rule(pick=st.integers(0, 100), way=st.sampled_from(["acknowledge_notification", "cancel_notice"]))
    def end_one(self, pick, way):
        number = sorted(self.known)[pick % len(self.known)]
        one = self.known[number]
        for folder in GROUPS:
            reply = self.do(self.home.ask(way, by=folder, noticeId=number))
            assert reply.ok == (folder == one.folder and one.state in ("pending", "delivered"))
        if one.state in ("pending", "delivered"):
            one.state = "acknowledged" if way.startswith("ack") else "cancelled"

    # Turns

    def _due(self, folder, turn):
        return [
            number
            for number, one in self.known.items()
            if one.folder == folder
            and one.expires_ms > self.now
            and (
                (
                    one.state == "pending"
                    and one.turns == 0
                    and one.made_turn != turn.id
                    and (one.lasts or one.session in (None, self.session[folder]))
                )
                or (
                    one.state == "delivered"
                    and one.lasts
                    and one.priority in URGENT
                    and one.deliveries < MAX_DELIVERIES
                    and one.told_session != self.session[folder]
                )
            )
        ]

    @rule(folder=st.sampled_from(GROUPS))
    def begin(self, folder):
        if folder in self.running:
            return
        again = self.do(self.home.harness.queued(folder))
        turn, run, order = self.do(self.home.start(folder) if again else self.home.begin(folder))
        for one in self.known.values():
            counts = one.made_turn != turn.id and one.counted_turn != turn.id
            if one.folder == folder and one.state == "pending" and one.turns and counts:
                one.turns, one.counted_turn = one.turns - 1, turn.id
        self.running[folder] = (turn, run)
        ids = [one.id for one in order.notices]
        assert sorted(ids) == sorted(self._due(folder, turn))
        assert {one.payload["message"].split()[0] for one in order.notices} <= {folder}
        self.given[folder] = ids

    @precondition(lambda self: self.running)
    @rule(data=st.data(), is_good=st.booleans(), is_new=st.booleans())
    def end(self, data, is_good, is_new):
        folder = data.draw(st.sampled_from(sorted(self.running)))
        turn, run = self.running.pop(folder)
        given = self.given.pop(folder)
        said = data.draw(st.lists(st.sampled_from(sorted({*given, *self.known, 4711})), max_size=40))
        if is_new or self.session[folder] is None:
            self.session_numbers += 1
            self._enter(folder, f"s{self.session_numbers}")
        status = {} if is_good else {"status": "error", "error": "overloaded"}
        taken = self.do(self.home.end(turn, run, *map(told, said), session=self.session[folder], **status))
        expected = {number for number in given if number in said} if is_good else set()
        assert set(taken.delivered_notices) == expected
        for number in expected:
            one = self.known[number]
            one.deliveries += 1
            one.told_session = self.session[folder]
            one.state = "delivered" if one.state == "pending" else one.state

    def _enter(self, folder, session):
        """What waits goes along, into whichever session."""
        self.session[folder] = session
        for one in self.known.values():
            if one.folder == folder and not one.lasts and one.state == "pending":
                one.session = session

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def lose_container(self, data):
        folder = data.draw(st.sampled_from(sorted(self.running)))
        _, run = self.running.pop(folder)
        self.given.pop(folder)
        self.do(self.home.harness.lose(run))

    @rule(folder=st.sampled_from(GROUPS))
    def clear(self, folder):
        if folder in self.running:
            return
        self.session[folder] = None
        for one in self.known.values():
            if one.folder == folder and not one.lasts and one.state == "pending":
                one.state = "expired"
        self.do(self.home.clear(folder))

    # Time and hosts

    @rule(hours=st.sampled_from([0, 1, 12, 30]))
    def pass_hours(self, hours):
        self.clock.pass_ms(hours * HOUR)
        self.do(self.home.noticing._sweeper.sweep())
        held = {number for ids in self.given.values() for number in ids}
        for number, one in self.known.items():
            is_over = one.state in ("pending", "delivered") and one.expires_ms <= self.now
            if is_over and number not in held:
                one.state = "expired"

    @rule()
    def restart_host_which_adopts_the_containers(self):
        self.do(self.home.harness.database.close())
        numbers, frame = self.home.harness.numbers, self.home.frame
        self.do(self._open())
        self.home.harness.numbers, self.home.frame = numbers, frame
        for folder, (turn, run) in self.running.items():
            again = self.do(self._compose(turn, run))
            # The same as before, and what has come due since.
            assert {one.id for one in again.notices} >= set(self.given[folder])
            self.given[folder] = [one.id for one in again.notices]

    async def _compose(self, turn, run):
        async with self.home.harness.database.reading() as tx:
            return await self.home.compose(tx, turn, run)

    # What must hold

    @invariant()
    def each_is_in_its_state(self):
        rows = self.do(self.home.harness.rows("SELECT * FROM cross_session_notifications"))
        found = {row["id"]: row["state"] for row in rows}
        assert found == {number: one.state for number, one in self.known.items()}
        for row in rows:
            assert row["deliveries"] == self.known[row["id"]].deliveries <= MAX_DELIVERIES
            assert row["group_folder"] == self.known[row["id"]].folder

    @invariant()
    def a_claim_is_of_a_turn_that_runs(self):
        rows = self.do(
            self.home.harness.rows("SELECT * FROM cross_session_notifications WHERE claim_turn IS NOT NULL")
        )
        running = {turn.id: folder for folder, (turn, _) in self.running.items()}
        for row in rows:
            assert running[row["claim_turn"]] == row["group_folder"]

    def teardown(self):
        self.do(self.home.harness.database.close())
        self.runner.close()
        self.folder.cleanup()


TestLives = pytest.mark.slow(Lives.TestCase)
TestLives.settings = settings(max_examples=20, stateful_step_count=30)
