"""One container's life, as the pool keeps it in mind. What must outlive the host is in the store."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.base.rate_limits import TokenBucket
from orchestrator.containers import exit_classification, timeouts
from orchestrator.domain.protocols import RunningContainer
from orchestrator.domain.values import Group, Run, RunState, TurnId
from orchestrator.groups import settings


@dataclass(slots=True, kw_only=True)
class LiveRunState:
    """A container that holds a slot, from the decision to start it until its end is recorded."""

    run: Run
    """As it is recorded; as far as it is known, until it is."""
    state: RunState
    started_ms: int
    since_ms: int
    heard_ms: int | None = None
    container: RunningContainer | None = None
    failure: str | None = None
    verdict: timeouts.TimeoutVerdict | None = None
    close_reason: str | None = None
    """Why it was asked to end, if it was."""
    has_exited: bool = False
    """Seen to have ended, as opposed to given up."""
    pace: TokenBucket
    last_frame: int
    turn_id: TurnId | None = None
    """The turn that it is made for, until that is recorded: from then on the store knows."""
    session_id: str | None = None
    """The agent session that is recorded for it, or was handed to it."""
    config: dict[str, Any] = field(default_factory=dict)
    """What its group had set when it began."""
    turn_ms: int | None = None
    is_retired: bool = False
    """To end after the turn it has: its group is gone, or has another configuration."""
    replays: int = 0
    """How many frames may be heard again at no cost: as many as an earlier host or stream has heard."""
    refused: int = 0
    """How many frames could not be read."""
    muted_turn: int | None = None
    """The turn that has said enough."""
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def has_to_go(self) -> bool:
        return self.verdict is not None and self.verdict.kill

    def enter(self, state: RunState, now_ms: int) -> None:
        self.state, self.since_ms = state, now_ms

    def begin(self, run: Run, group: Group, *, now_ms: int) -> None:
        """Be what was recorded. Its container has its whole time to start from here on."""
        self.run, self.turn_id, self.started_ms = run, None, now_ms
        self.obey(group)

    def obey(self, group: Group) -> None:
        self.config, self.turn_ms = group.container_config, settings.of(group).timeout_ms

    def limits(self, common: timeouts.RunTimeouts) -> timeouts.RunTimeouts:
        return replace(common, turn_ms=self.turn_ms or common.turn_ms)

    def sentence(self) -> exit_classification.RunEnd | None:
        """How it ends if it has to go."""
        if self.verdict is None or not self.verdict.kill:
            return None
        return exit_classification.RunEnd(
            kind=exit_classification.RunEndKind.TIMED_OUT,
            reason=self.verdict.reason,
            is_retryable=self.verdict.is_retryable,
        )

    def vitals(self) -> timeouts.Vitals:
        return timeouts.Vitals(
            state=self.state,
            is_isolated=self.run.is_isolated,
            started_ms=self.started_ms,
            heard_ms=self.heard_ms,
            since_ms=self.since_ms,
        )
