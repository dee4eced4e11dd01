"""Every container that lives: who they are, and what the lanes see of them."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.base.clock import Clock
from orchestrator.base.rate_limits import TokenBucket
from orchestrator.base.wakeups import Wakeups
from orchestrator.containers import timeouts
from orchestrator.containers.live_run import LiveRunState
from orchestrator.domain.values import Folder, LiveRun, Run, RunId, RunState, TurnId


class LiveRuns:
    """The lives that hold a slot. Called from the event loop only."""

    def __init__(self, *, limits: timeouts.RunTimeouts, clock: Clock, hints: Wakeups) -> None:
        self._limits = limits
        self._clock = clock
        self._hints = hints
        self._by_run: dict[RunId, LiveRunState] = {}

    def __iter__(self) -> Iterator[LiveRunState]:
        """Go over those that live now, whatever comes or goes meanwhile."""
        return iter(list(self._by_run.values()))

    def __len__(self) -> int:
        return len(self._by_run)

    def __contains__(self, run_id: RunId) -> bool:
        return run_id in self._by_run

    def get(self, run_id: RunId) -> LiveRunState | None:
        return self._by_run.get(run_id)

    def of(self, folder: Folder) -> list[LiveRunState]:
        return [life for life in self if life.run.folder == folder]

    def admit(self, run: Run, state: RunState, *, turn_id: TurnId | None = None) -> LiveRunState:
        """Take a slot for a run that is about to live, for a turn that waits, or was found alive."""
        now_ms = self._clock.steady_ms()
        life = LiveRunState(
            run=run,
            state=state,
            started_ms=now_ms,
            since_ms=now_ms,
            pace=TokenBucket(self._clock),
            last_frame=run.last_frame,
            turn_id=turn_id,
        )
        self._by_run[run.id] = life
        self._hints.reaper.give()
        return life

    def vacate(self, life: LiveRunState) -> None:
        """Free its slot, and tell the lanes."""
        del self._by_run[life.run.id]
        self._hints.lanes.give()

    def as_runs(self) -> list[LiveRun]:
        now_ms = self._clock.steady_ms()
        return [
            LiveRun(
                id=life.run.id,
                folder=life.run.folder,
                is_isolated=life.run.is_isolated,
                state=life.state,
                started_ms=life.started_ms,
                idle_since_ms=life.since_ms,
                begun_ms=life.run.started_ms,
                turn_id=life.turn_id,
                is_worn=life.is_retired or timeouts.is_worn(life.vitals(), self._limits, now_ms=now_ms),
            )
            for life in self
        ]
