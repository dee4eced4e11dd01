"""Make turns and runs for the lanes, and carry out the plans of the lanes in memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from orchestrator.domain.turn_signs import Sign
from orchestrator.domain.values import (
    ChatJid,
    Folder,
    LiveRun,
    RunId,
    RunState,
    Turn,
    TurnId,
    TurnKind,
    TurnState,
)
from orchestrator.queue import next_turns, warm_start_policy


def a_turn(number: int, folder: str = "family", **changes: object) -> Turn:
    fields: dict[str, object] = {
        "id": TurnId(number),
        "folder": Folder(folder),
        "chat_jid": ChatJid(f"local:{folder}"),
        "kind": TurnKind.CHAT,
        "is_isolated": False,
        "first_seq": None,
        "last_seq": None,
        "task_id": None,
        "prompt": None,
        "attempt": 1,
        "run_id": None,
        "state": TurnState.QUEUED,
        "reason": None,
        "queued_ms": 0,
        "not_before_ms": 0,
        "started_ms": None,
        "ended_ms": None,
        "is_place_notified": False,
    }
    return Turn(**{**fields, **changes})  # type: ignore[arg-type]


def a_run(name: str, folder: str = "family", **changes: object) -> LiveRun:
    fields: dict[str, object] = {
        "id": RunId(name),
        "folder": Folder(folder),
        "is_isolated": False,
        "state": RunState.IDLE,
        "started_ms": 0,
    }
    return LiveRun(**{**fields, **changes})  # type: ignore[arg-type]


@dataclass
class Harness:
    """What the pool and the store do with a plan, in memory, with every promise checked on the way."""

    cap: int
    overlap: int = 0
    now_ms: int = 0
    turns: dict[TurnId, Turn] = field(default_factory=dict)
    runs: dict[RunId, LiveRun] = field(default_factory=dict)
    started: list[TurnId] = field(default_factory=list)
    answered: list[TurnId] = field(default_factory=list)
    told: list[TurnId] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def ask(self, folder: str, kind: TurnKind = TurnKind.CHAT, *, is_isolated: bool = False) -> TurnId:
        turn = a_turn(
            next(self.numbers),
            folder,
            kind=kind,
            is_isolated=is_isolated,
            queued_ms=self.now_ms,
            not_before_ms=self.now_ms,
        )
        self.turns[turn.id] = turn
        return turn.id

    def step(self) -> next_turns.QueuePlan:
        """Decide once and do it, as the dispatcher does."""
        decided = next_turns.plan(
            list(self.turns.values()),
            list(self.runs.values()),
            cap=self.cap,
            overlap=self.overlap,
            now_ms=self.now_ms,
        )
        for action in decided.actions:
            match action:
                case next_turns.StartContainer(turn_id):
                    self._start(turn_id)
                case next_turns.HandOverTurn(turn_id, run_id):
                    self._hand_over(turn_id, run_id)
                case next_turns.CloseContainer(run_id):
                    self._close(run_id)
                case next_turns.NotifyPlace(turn_id, _):
                    assert turn_id not in self.told, "told its place twice"
                    self.told.append(turn_id)
                    self.turns[turn_id] = replace(self.turns[turn_id], is_place_notified=True)
        return decided

    def expect(self, folder: str, *, is_isolated: bool) -> None:
        """Start a container ahead of a turn of this group, if one is of use."""
        expected = warm_start_policy.ExpectedTurn(
            folder=Folder(folder), sign=Sign.TYPING, is_isolated=is_isolated
        )
        turns, runs = list(self.turns.values()), list(self.runs.values())
        for one in warm_start_policy.choose(
            [expected],
            turns,
            runs,
            cap=self.cap,
            max_ahead=self.overlap,
            unused_in_a_row={},
            now_ms=self.now_ms,
        ):
            run_id = RunId(f"ahead-{next(self.numbers)}")
            self.runs[run_id] = a_run(
                run_id, one.folder, state=RunState.READY, is_isolated=is_isolated, idle_since_ms=self.now_ms
            )
            self.check_slots()

    def check_slots(self) -> None:
        """Check that no more containers live than may, but for those that end while others start."""
        closing = len(self.in_state(RunState.CLOSING))
        assert len(self.runs) - min(closing, self.overlap) <= self.cap, "more containers than may live"

    def record(self, run_id: RunId) -> None:
        """How a new container goes on is decided: its turn is given to it."""
        turn_id = self.runs[run_id].turn_id
        assert turn_id is not None
        self.turns[turn_id] = replace(self.turns[turn_id], state=TurnState.RUNNING, run_id=run_id)
        self.runs[run_id] = replace(self.runs[run_id], state=RunState.BUSY, turn_id=None)

    def record_all(self) -> None:
        for run_id in self.in_state(RunState.STARTING):
            self.record(run_id)

    def finish(self, turn_id: TurnId) -> None:
        """The agent answers; its container idles."""
        turn = self.turns.pop(turn_id)
        assert turn.run_id is not None
        self.answered.append(turn_id)
        self._enter(turn.run_id, RunState.IDLE)

    def end(self, run_id: RunId) -> None:
        """A closing container is gone."""
        assert self.runs.pop(run_id).state is RunState.CLOSING

    def wear(self, run_id: RunId) -> None:
        self.runs[run_id] = replace(self.runs[run_id], is_worn=True)

    def running(self) -> list[Turn]:
        return [turn for turn in self.turns.values() if turn.state is TurnState.RUNNING]

    def begun(self) -> list[Turn]:
        """Those that run, and those for which a run is being made."""
        made_for = {run.turn_id for run in self.runs.values()}
        return [*self.running(), *(turn for turn in self.turns.values() if turn.id in made_for)]

    def in_state(self, *states: RunState) -> list[RunId]:
        return [run.id for run in self.runs.values() if run.state in states]

    def _begin(self, turn_id: TurnId) -> None:
        turn = self.turns[turn_id]
        assert turn not in self.begun(), "a turn was started twice"
        beside = [other for other in self.begun() if other.folder == turn.folder]
        upkeep = turn.kind is TurnKind.CHAT and all(other.kind is TurnKind.WORKER for other in beside)
        assert not beside or (upkeep and len(beside) == 1), "two turns of one group"
        self.started.append(turn_id)

    def _start(self, turn_id: TurnId) -> None:
        turn = self.turns[turn_id]
        run_id = RunId(f"run-{turn_id}")
        assert turn.is_isolated or all(
            run.is_isolated for run in self.runs.values() if run.folder == turn.folder
        ), "two containers on one session"
        self._begin(turn_id)
        self.runs[run_id] = a_run(
            run_id, turn.folder, state=RunState.STARTING, is_isolated=turn.is_isolated, turn_id=turn_id
        )
        self.check_slots()

    def _hand_over(self, turn_id: TurnId, run_id: RunId) -> None:
        turn, run = self.turns[turn_id], self.runs[run_id]
        assert run.state in (RunState.IDLE, RunState.READY), "handed to a container at work"
        assert run.folder == turn.folder, "handed to another group's container"
        assert turn.is_isolated == run.is_isolated, "a chat and what is isolated share a container"
        assert run.state is RunState.READY or not run.is_isolated, "two isolated turns share a container"
        assert run.state is RunState.IDLE or turn.kind is not TurnKind.WORKER, "booted for something else"
        assert not run.is_worn, "handed to a worn container"
        self._begin(turn_id)
        self.turns[turn_id] = replace(turn, state=TurnState.RUNNING, run_id=run_id)
        self._enter(run_id, RunState.BUSY)

    def _close(self, run_id: RunId) -> None:
        assert self.runs[run_id].state in (RunState.IDLE, RunState.READY), "closed what works, or twice"
        self._enter(run_id, RunState.CLOSING)

    def _enter(self, run_id: RunId, state: RunState) -> None:
        self.runs[run_id] = replace(self.runs[run_id], state=state, idle_since_ms=self.now_ms)


def kinds_of(actions: Sequence[next_turns.Action]) -> list[str]:
    return [type(action).__name__ for action in actions]
