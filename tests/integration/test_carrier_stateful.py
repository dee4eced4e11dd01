"""Random lives of a run on another machine: its host, connection and runner come and go in any order.

The carrier, its files and its messages are real. The host, the runner's process and the clock are the test's,
so that each step ends when nothing is left to do, and an hour takes as long as its timers.

These mistakes, planted in the carrier one at a time, were each found by the examples that CI tries:

- in the table: no way out of LAYING at the start, out of IN_TURN at a turn's end, out of STORING once its
  files are stored, out of ENDED at `bye`; a turn that was cut off leaves its files;
- an answer that is lost: `staged` not noted, `stale` taken for `staged`, files noted as taken before the
  answer, the wait for an answer not ended with its connection;
- an order: a turn's end before its files, a request before its file, the exit before the last output or the
  last requests, a request removed before the host has it;
- what a new connection has to forget or not: requests that another sent, parts of files, the offset of the
  output, the exit, that the run has started, when the host was last there;
- an end: output that goes on after too much of it, a runner that outlives its carrier or a stop.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent_runner.carrier.carrier import REFUSED_CODE
from tests.support.carrier_node import ABANDONED_SECONDS, MAX_OUTPUT_BYTES, CarrierNode
from tests.support.json_schemas import examples

RECONNECT_SECONDS = 4
"""Seconds within which a carrier is back at a host that is there."""
STALE_SECONDS = 1
"""Seconds within which files are sent again that have changed while they were sent."""
MAX_ROUNDS = 20
"""Times that a host takes all that has come, before something is said to come again and again."""


class CarrierLife(RuleBasedStateMachine):
    """One run from its first connection on. The test says what the runner does and what the host does."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.node = CarrierNode(Path(self.folder.name))
        self.host = self.node.host
        self.unread = []
        """Lines that the runner has written and the carrier may not have read."""
        self.expected = b""
        """The output that a host is to hear in the end, if it hears all."""
        self.turns = 0
        self.storing = None
        """The line of a turn's end whose files the host has not stored yet."""
        self.is_spoiled = False
        """Whether the runner has said or left too much: what it says from then on is not passed on."""
        self.away_seconds = 0.0
        """Seconds that no host has been there for."""
        self.is_over = False
        """Whether a host has said that the container may end."""
        self.may_end = False
        self.files = 0
        self.requests = 0

    @property
    def runs(self):
        return self.node.carrier_started and self.node.runner.code is None

    @initialize(is_laid_down=st.sampled_from([True, True, True, False]), has_worked=st.booleans())
    def a_run_begins(self, is_laid_down, has_worked):
        """Most begin with a runner at work: its life is longer than its start."""
        if is_laid_down:
            self.work_off()
            if has_worked:
                self.the_runner_begins_a_turn()
                self.the_agent_writes_a_file(is_new=True)

    # The connection

    @precondition(lambda self: self.host.connection)
    @rule()
    def the_connection_breaks(self):
        self.host.break_off()
        self.node.settle()

    @precondition(lambda self: self.host.is_up)
    @rule()
    def the_host_goes(self):
        self.host.is_up = False
        self.host.break_off()
        self.node.settle()

    @precondition(lambda self: not self.host.is_up)
    @rule(is_another=st.booleans())
    def a_host_comes(self, is_another):
        if is_another:
            self.host = self.node.another_host()
        self.host.is_up = True
        if self.node.code is None:
            self.away_seconds = 0.0
        self.time_passes(RECONNECT_SECONDS)

    @precondition(lambda self: self.host.is_up and self.node.has_started)
    @rule()
    def another_host_takes_over(self):
        self.host.break_off()
        self.host = self.node.another_host()
        self.node.settle()

    @precondition(lambda self: self.host.is_up)
    @rule(seconds=st.sampled_from([0.5, RECONNECT_SECONDS, ABANDONED_SECONDS * 2]))
    def time_passes(self, seconds):
        self.node.pass_seconds(seconds)
        if seconds >= RECONNECT_SECONDS:
            assert self.node.code is not None or self.host.connection

    @precondition(lambda self: not self.host.is_up and self.node.code is None)
    @rule()
    def the_host_stays_away(self):
        self.node.pass_seconds(ABANDONED_SECONDS / 3)
        self.away_seconds += ABANDONED_SECONDS / 3

    @precondition(lambda self: not self.node.has_started and not self.host.connection)
    @rule()
    def the_hosts_files_change_before_the_start(self):
        self.files += 1
        self.node.host_files = {"CLAUDE.md": b"be kind", f"{self.files}.md": b"new"}

    # What the host does

    @precondition(lambda self: self.host.inbox)
    @rule(count=st.sampled_from([1, 2, 4, 20]))
    def the_host_takes_messages(self, count):
        for _ in range(count):
            self.host.take()
            self.note_stored()

    @precondition(lambda self: self.host.inbox)
    @rule(count=st.integers(0, 4))
    def the_host_takes_messages_and_the_last_answer_is_lost(self, count):
        for _ in range(count):
            self.host.take()
            self.note_stored()
        self.host.take(is_answered=False)
        self.the_connection_breaks()

    @precondition(lambda self: "stage_end" in self.host.kinds())
    @rule()
    def the_host_finds_files_stale(self):
        for kind in self.host.kinds():
            self.host.take(is_stale=True)
            if kind == "stage_end":
                break
        self.node.pass_seconds(STALE_SECONDS)

    @precondition(lambda self: self.host.connection and self.node.has_started)
    @rule(parts=st.integers(1, 3), is_whole=st.booleans())
    def the_host_writes_for_the_agent(self, parts, is_whole):
        """Send a file in several parts; without its last, the connection breaks."""
        self.files += 1
        self.host.write_input(f"{self.files}.json", parts=parts, is_whole=is_whole)
        if not is_whole:
            self.the_connection_breaks()

    @precondition(lambda self: self.host.connection and self.node.carrier_started and self.may_end)
    @rule()
    def the_host_refuses_the_files(self):
        self.is_spoiled |= self.runs or self.storing is not None
        self.node.refuses_files = True
        self.host.send("too_much", reason="more than a turn may leave")
        self.the_connection_breaks()

    @precondition(lambda self: self.host.connection and (not self.runs or self.may_end))
    @rule()
    def the_host_says_bye(self):
        self.is_over = True
        self.host.send("bye")

    @precondition(lambda self: self.host.connection and self.node.has_started and self.may_end)
    @rule(is_deaf=st.booleans())
    def the_host_stops_the_agent(self, is_deaf):
        self.node.runner.is_deaf = is_deaf
        self.host.send("stop", milliseconds=2000)
        self.node.settle()
        assert self.node.runner.code is not None or is_deaf
        self.node.pass_seconds(2)
        assert self.node.runner.code is not None

    @rule()
    def the_run_may_end(self):
        """Let a run live for a while, for most of what can go wrong does so between its ends."""
        self.may_end = True

    # What the runner does

    @precondition(lambda self: self.runs)
    @rule()
    def the_runner_says_something(self):
        self.say({"result": f"line {len(self.expected)}", "kind": "result"})

    @precondition(lambda self: self.runs and not self.node.is_in_turn and not self.storing)
    @rule()
    def the_runner_begins_a_turn(self):
        self.turns += 1
        self.node.is_in_turn = True
        self.say({"kind": "ack", "n": self.turns})

    @precondition(lambda self: self.runs and not self.storing)
    @rule(is_new=st.booleans())
    def the_agent_writes_a_file(self, is_new):
        self.files += is_new
        (self.node.group / f"{self.files}.md").write_text(f"{self.files} at {self.turns} " * self.files)

    @precondition(lambda self: self.runs and not self.storing and len(self.node.files()) > 1)
    @rule()
    def the_agent_removes_a_file(self):
        (self.node.group / max(self.node.files())).unlink()

    @precondition(lambda self: self.runs and self.node.is_in_turn and not self.storing)
    @rule(speaks_on=st.booleans())
    def the_runner_ends_its_turn(self, speaks_on):
        self.say({"kind": "turn_end", "n": self.turns, "status": "success"})
        if speaks_on:
            self.the_runner_says_something()

    @precondition(lambda self: self.runs)
    @rule(sends_file=st.booleans())
    def the_agent_asks_for_something(self, sends_file):
        self.requests += 1
        name = f"sent-{self.requests}.png" if sends_file and not self.storing else None
        self.node.write_request(f"{self.requests}.json", name)

    @precondition(lambda self: self.runs and self.may_end)
    @rule()
    def the_runner_floods(self):
        """Write more than a run may say, and then a line for which there would be room."""
        self.say(
            {"kind": "result", "result": "x" * MAX_OUTPUT_BYTES},
            {"kind": "result", "result": "There is room."},
        )

    @precondition(lambda self: self.runs and self.may_end)
    @rule(code=st.sampled_from([0, 1, -9]), leaves_child=st.booleans())
    def the_runner_ends(self, code, leaves_child):
        self.node.runner.end(code, leaves_child=leaves_child)
        self.node.settle()

    def say(self, *frames):
        lines = [json.dumps({"v": 1, **frame}, separators=(",", ":")).encode() + b"\n" for frame in frames]
        self.node.runner.write(b"".join(lines))
        self.unread += lines
        self.node.settle()
        self.read()

    def read(self):
        """Go on as the carrier does: what comes behind a turn's end waits until its files are stored."""
        while self.unread and not self.storing and not self.is_spoiled:
            line = self.unread.pop(0)
            if b'"turn_end"' in line:
                self.storing = line
            else:
                self.hear(line)

    def hear(self, line):
        if len(self.expected) + len(line) > MAX_OUTPUT_BYTES:
            self.is_spoiled = True
        else:
            self.expected += line

    def note_stored(self):
        """The host has said that it keeps the files of a turn's end, and the carrier has heard it."""
        if self.storing and not self.is_spoiled and self.host.acknowledged == json.loads(self.storing)["n"]:
            line, self.storing, self.node.is_in_turn = self.storing, None, False
            self.hear(line)
            self.read()

    # What must hold

    @invariant()
    def a_host_hears_what_the_runner_said_and_nothing_else(self):
        assert self.expected.startswith(bytes(self.host.heard))

    @invariant()
    def a_carrier_goes_only_with_a_reason_and_its_runner_with_it(self):
        if self.node.code is None:
            assert not self.is_over
            assert self.away_seconds < ABANDONED_SECONDS + RECONNECT_SECONDS
            return
        assert self.node.runner.code is not None
        if self.node.code == REFUSED_CODE:
            assert self.node.is_refused or self.away_seconds > ABANDONED_SECONDS - RECONNECT_SECONDS
        else:
            assert self.is_over
            assert self.node.code in (self.host.exits or (0, exit_code(self.node.runner)))

    @invariant()
    def a_runner_whose_turn_cannot_count_is_killed(self):
        assert not self.is_spoiled or self.node.runner.code is not None

    @invariant()
    def a_request_is_removed_only_once_the_host_has_it(self):
        assert self.node.requests.keys() <= self.node.stored_requests.keys() | self.node.waiting_requests()

    def teardown(self):
        try:
            self.left_alone_the_host_hears_and_stores_all()
        finally:
            self.node.close()
            self.folder.cleanup()

    def left_alone_the_host_hears_and_stores_all(self):
        if self.node.code is not None:
            return
        if not self.host.is_up:
            self.a_host_comes(is_another=False)
        self.work_off()
        assert self.node.carrier_started or self.node.is_refused
        if self.node.code is not None:
            return
        if self.node.runner.code is None:
            self.the_host_has_all()
            self.the_runner_ends(code=7, leaves_child=False)
            self.work_off()
        self.the_host_has_all()
        assert self.host.exits == [exit_code(self.node.runner)]
        if not self.node.is_in_turn and not self.is_spoiled and not self.node.refuses_files:
            assert self.node.host_files == self.node.files()
        self.the_host_says_bye()
        self.a_carrier_goes_only_with_a_reason_and_its_runner_with_it()
        assert self.node.runner.is_reaped

    def work_off(self):
        """Let the host take and answer all that comes, until nothing does."""
        for _ in range(MAX_ROUNDS):
            self.node.pass_seconds(RECONNECT_SECONDS)
            if not self.host.inbox:
                return
            while self.host.inbox:
                self.host.take()
                self.note_stored()
        raise AssertionError("it comes to no end")

    def the_host_has_all(self):
        assert bytes(self.host.heard) == self.expected
        assert not self.storing or self.is_spoiled
        assert self.node.stored_requests == self.node.requests
        assert not self.node.waiting_requests()
        assert self.node.input_files() == self.host.input


def exit_code(runner):
    return runner.code if runner.code >= 0 else 128 - runner.code


CarrierLife.TestCase.settings = settings(max_examples=examples(120), stateful_step_count=30, deadline=None)
TestCarrierLife = pytest.mark.slow(CarrierLife.TestCase)


def test_a_turn_whose_file_changes_all_the_time_is_given_up(tmp_path):
    node = CarrierNode(tmp_path)

    def take_all():
        for _ in range(MAX_ROUNDS):
            if not node.host.inbox:
                return
            message = node.host.inbox[0]
            reasons.extend([message.fields["reason"]] if message.kind == "too_much" else [])
            node.host.take(is_stale=True)

    reasons = []
    try:
        take_all()
        assert node.carrier_started
        (node.group / "now.txt").write_text("12:00:00")
        for frame in ({"kind": "ack", "n": 1}, {"kind": "turn_end", "n": 2, "status": "success"}):
            line = json.dumps({"v": 1, **frame}, separators=(",", ":"))
            node.runner.write(line.encode() + b"\n")
            node.settle()
        for seconds in (100, 300):
            assert not reasons, "it is tried for some minutes"
            for _ in range(seconds):
                take_all()
                node.pass_seconds(1)
        assert reasons == ["a program changes one of them all the time"]
        assert node.runner.code is not None
    finally:
        node.close()
