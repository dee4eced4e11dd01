"""The state of every live run: a container that holds a slot, from the decision to start it until its end.

Only state that the host may lose is here; everything else is in the store.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

from orchestrator.base.clock import Clock
from orchestrator.base.rate_limits import TokenBucket
from orchestrator.base.wakeups import Wakeups
from orchestrator.containers import timeouts
from orchestrator.containers.turn_progress import DraftText
from orchestrator.domain.protocols import RunningContainer
from orchestrator.domain.turn_signs import Sign
from orchestrator.domain.values import Folder, Group, LiveRun, Run, RunId, RunState, TurnId
from orchestrator.groups import settings

PROGRESS_AT_ONCE, PROGRESS_A_SECOND = 2_000, 10.0
"""Burst and rate per second of pieces of a draft, which is the text that a model writes now, and of reports
about tool calls. A host that adopts a container reads all pieces of its last draft at once.
"""
MAX_BOOT_SECONDS = 60.0
"""Most seconds of processor time that a container is assumed to have used before its first turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerMakeup:
    """The parts of a live container that cannot be changed, besides its group's configuration."""

    environment: Mapping[str, str]
    """The container's environment without its token."""
    mcp_programs: Mapping[str, tuple[str, ...]]
    """The commands of the owner's MCP servers whose folders it can see, by name."""


@dataclass(slots=True, kw_only=True)
class LiveRunState:
    """The state of one container that holds a slot. All times are milliseconds of the steady clock."""

    run: Run
    """The run as recorded; before that, as far as it is known."""
    state: RunState
    started_ms: int
    state_since_ms: int
    last_frame_ms: int | None = None
    """The time of its last frame, heartbeats included; None before the first.

    For the container of an earlier host, it begins with the time at which this one took it over.
    """
    is_adopted: bool = False
    """Whether an earlier host started the container, and this one took it over."""
    has_read_frame: bool = False
    """Whether this host has read a frame of it."""
    container: RunningContainer | None = None
    """The container; None before it is started, and while the engine is lost."""
    failure: str | None = None
    """The problem that the runner itself reported, if any."""
    verdict: timeouts.TimeoutVerdict | None = None
    """The decision that the run has to end, with its reason; None before that."""
    stop_verdict: timeouts.TimeoutVerdict | None = None
    """The decision to stop the run at once, whatever becomes of it; None without one.

    Unlike `verdict`, it stays if the container could not be stopped, so that it is tried again.
    """
    close_reason: str | None = None
    """The reason why the container was asked to close; None if it was not."""
    has_exited: bool = False
    """Whether its exit was observed; False for a container that was abandoned."""
    frame_rate: TokenBucket
    """The limit for frames, except for those that `progress_rate` limits."""
    progress_rate: TokenBucket
    """The limit for pieces of drafts and reports about tool calls, of which a turn may send many."""
    last_frame: int
    """The number of the last frame that was applied."""
    turn_id: TurnId | None = None
    """The turn that the run is to get; None without one, and once the store has the turn as running in it."""
    session_id: str | None = None
    """The agent session that is recorded for the run, or was passed to it."""
    config: dict[str, Any] = field(default_factory=dict)
    """The group's configuration when the container was made."""
    turn_ms: int | None = None
    """The group's own limit for a turn, if it has one."""
    is_retired: bool = False
    """Whether it ends after its present turn: its group is gone or changed, or its image was replaced."""
    draft: DraftText = field(default_factory=DraftText)
    """The text that its model is writing at the moment."""
    free_replays: int = 0
    """The number of repeated frames still to come that no rate limit counts: they were applied before."""
    unreadable_frames: int = 0
    silenced_turn: int | None = None
    """The turn whose further results are dropped, because it has reached its limit."""
    task: asyncio.Task[None] | None = field(default=None, repr=False)
    sign: Sign | None = None
    """The event that made a turn likely, so the container was started ahead; None if a turn started it."""
    is_unused: bool = False
    """Whether it was started ahead and has had no turn yet."""
    cpu_seconds: float | None = None
    """The processor seconds that its boot took, as it reports; None before that."""
    made_with: ContainerMakeup | None = None
    """The fixed parts of a container that was started before its first turn."""

    @property
    def must_be_killed(self) -> bool:
        """Whether it was decided that the container has to be killed."""
        return self.verdict is not None and self.verdict.kill

    @property
    def is_awaited(self) -> bool:
        """Whether a turn waits for the container to boot."""
        is_for_turn = self.state in (RunState.STARTING, RunState.BUSY) and not self.is_unused
        return is_for_turn and self.last_frame_ms is None

    def enter(self, state: RunState, now_ms: int) -> None:
        """Change to a state, and record the time of the change: `now_ms` of the steady clock."""
        self.state, self.state_since_ms = state, now_ms

    def begin(self, run: Run, group: Group, *, now_ms: int) -> None:
        """Take over `run` as the database has recorded it, with the configuration of its group.

        `turn_id` becomes None: it names a turn only until the database has that turn as running in the run.
        The time that the container may take to start counts from `now_ms` of the steady clock.
        """
        self.run, self.turn_id, self.started_ms = run, None, now_ms
        self.apply_config(group)

    def apply_config(self, group: Group) -> None:
        """Remember the configuration of the group with which the container is created."""
        self.config, self.turn_ms = group.container_config, settings.of(group).timeout_ms

    def limits(self, common: timeouts.RunTimeouts) -> timeouts.RunTimeouts:
        """Return this run's time limits: the `common` ones, with its group's own limit for a turn, if any."""
        return replace(common, turn_ms=self.turn_ms or common.turn_ms)

    def vitals(self) -> timeouts.Vitals:
        """Return the facts by which `timeouts.judge` decides whether the container has to end."""
        return timeouts.Vitals(
            state=self.state,
            is_isolated=self.run.is_isolated,
            started_ms=self.started_ms,
            last_frame_ms=self.last_frame_ms,
            state_since_ms=self.state_since_ms,
        )


class ForesightView(TypedDict):
    """Counts of the containers that were started before their first turn, `hits` and `misses` by sign."""

    hits: dict[str, int]
    misses: dict[str, int]
    wasted_cpu_seconds: float


@dataclass(slots=True)
class ForesightFigures:
    """Counts of the containers that were started before their first turn, since the host started."""

    hits: Counter[Sign] = field(default_factory=Counter)
    """Containers that received a turn, by the sign for which they were started."""
    misses: Counter[Sign] = field(default_factory=Counter)
    """Containers that ended without a turn, by the sign for which they were started."""
    wasted_cpu_seconds: float = 0.0
    unused_in_a_row: Counter[Folder] = field(default_factory=Counter)
    """The number of a group's containers that ended without a turn, since the last one that got a turn."""

    def count_hit(self, live: LiveRunState) -> None:
        """Count a container that was started ahead and now gets its first turn, as a hit for its sign."""
        live.is_unused = False
        if live.sign is not None:
            self.hits[live.sign] += 1
        del self.unused_in_a_row[live.run.folder]  # resets it to 0; a Counter accepts a missing key

    def count_miss(self, live: LiveRunState, *, now_ms: int) -> None:
        """Count a container that was started ahead and ended without a turn, and the processor time it used.

        At most `MAX_BOOT_SECONDS` of processor time are counted for one. `now_ms` is the time of its end by
        the steady clock.
        """
        if live.sign is not None:
            self.misses[live.sign] += 1
        self.unused_in_a_row[live.run.folder] += 1
        # A container that has not reported its use was still booting, which occupies one processor.
        used = (now_ms - live.started_ms) / 1000 if live.cpu_seconds is None else live.cpu_seconds
        self.wasted_cpu_seconds += min(used, MAX_BOOT_SECONDS)

    def as_data(self) -> ForesightView:
        """Return the figures as plain data for the HTTP answer `/status`."""
        return {
            "hits": {sign.value: count for sign, count in self.hits.items()},
            "misses": {sign.value: count for sign, count in self.misses.items()},
            "wasted_cpu_seconds": round(self.wasted_cpu_seconds, 2),
        }


class LiveRuns:
    """The registry of the runs that hold a slot. It is used from the event loop only."""

    def __init__(self, *, limits: timeouts.RunTimeouts, clock: Clock, wakeups: Wakeups) -> None:
        """`limits` are the common time limits of runs.

        `wakeups` wakes other loops of the host when a run is added or removed.
        """
        self._limits = limits
        self._clock = clock
        self._wakeups = wakeups
        self._by_run: dict[RunId, LiveRunState] = {}
        self.foresight = ForesightFigures()
        """Counts of the containers that were started ahead of their first turn."""

    def __iter__(self) -> Iterator[LiveRunState]:
        """Iterate over a copy of the present runs, so that runs may be added or removed meanwhile."""
        return iter(list(self._by_run.values()))

    def __len__(self) -> int:
        """Return the number of runs that hold a slot."""
        return len(self._by_run)

    def __contains__(self, run_id: RunId) -> bool:
        """Return whether the run with this id holds a slot."""
        return run_id in self._by_run

    def get(self, run_id: RunId) -> LiveRunState | None:
        """Return the run with this id, or None when it holds no slot."""
        return self._by_run.get(run_id)

    def of(self, folder: Folder) -> list[LiveRunState]:
        """Return the runs of a group."""
        return [live for live in self if live.run.folder == folder]

    def admit(self, run: Run, state: RunState, *, turn_id: TurnId | None = None) -> LiveRunState:
        """Register a run that is about to start, or whose container was found alive, and return its state.

        From then on it occupies a slot. `state` is its first state, and `turn_id` the turn for which it is
        started; None if there is none, or if the store has it already.
        """
        now_ms = self._clock.steady_ms()
        live = LiveRunState(
            run=run,
            state=state,
            started_ms=now_ms,
            state_since_ms=now_ms,
            frame_rate=TokenBucket(self._clock),
            progress_rate=TokenBucket(self._clock, at_once=PROGRESS_AT_ONCE, a_second=PROGRESS_A_SECOND),
            last_frame=run.last_frame,
            turn_id=turn_id,
        )
        self._by_run[run.id] = live
        # The loop that checks the timeouts sleeps for good while no run lives.
        self._wakeups.reaper.set()
        return live

    def release_slot(self, live: LiveRunState) -> None:
        """Forget a run and wake the queue, because its slot is free."""
        del self._by_run[live.run.id]
        self._wakeups.lanes.set()

    def as_runs(self) -> list[LiveRun]:
        """Return a description of each run with the facts by which the queue decides, such as its state."""
        now_ms = self._clock.steady_ms()
        return [
            LiveRun(
                id=live.run.id,
                folder=live.run.folder,
                is_isolated=live.run.is_isolated,
                state=live.state,
                started_ms=live.started_ms,
                idle_since_ms=live.state_since_ms,
                started_wall_ms=live.run.started_ms,  # by the wall clock, unlike the two above
                turn_id=live.turn_id,
                is_awaited=live.is_awaited,
                is_restricted=live.run.role is not None,
                is_worn=live.is_retired or timeouts.is_too_old(live.vitals(), self._limits, now_ms=now_ms),
            )
            for live in self
        ]
