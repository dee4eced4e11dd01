"""What the rooms of this stage work with: the host's things, and what other stages do for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import stamina

from agent_runner.wire.order import AgentName, RestoreMode, RestoreOrder, RunOrder, TurnOrder
from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.containers import frames, timeouts
from orchestrator.containers.logs.run_log import RunLogs
from orchestrator.domain.errors import StoreCorrupt, StoreError
from orchestrator.domain.protocols import ContainerRuntime, Mount
from orchestrator.domain.values import OFFLINE, Folder, Group, Run, RunId, Turn, TurnState
from orchestrator.store.database import Database, Tx


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """How a container goes on with its group's conversation."""

    restore: RestoreOrder
    seen: str | None
    """The group's session when this was decided."""
    session_id: str | None
    """The session to resume."""
    model: str | None = None
    provider: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Numbers, for who watches."""

    def told(self) -> dict[str, Any]:
        """What an event says of it."""
        return {"detail": self.restore.mode, "reason": self.restore.reason, "data": dict(self.facts)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedAgent:
    """Who is asked in a group's containers."""

    agent: AgentName
    model: str | None
    """As it is ordered; None is the agent's own choice."""
    service: str | None
    """The host part of the address at which it is asked."""

    @property
    def provider(self) -> str | None:
        return OFFLINE if self.agent == "offline" else self.service


async def resume_plainly(turn: Turn, group: Group, session_id: str | None) -> Restoration:
    """Resume the session if there is one, and tell nothing."""
    del turn, group
    mode: RestoreMode = "resume" if session_id else "fresh"
    return Restoration(restore=RestoreOrder(mode=mode), seen=session_id, session_id=session_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPorts:
    """What other stages do for the pool; `app` ties them."""

    compose: Callable[[Tx, Turn, Group, RunId], Awaitable[TurnOrder]]
    order: Callable[[Run, Group, TurnOrder, str | None], RunOrder]
    token: Callable[[], tuple[str, str]]
    """A new token and its hash."""
    environment: Callable[[Group, AgentName, str], Mapping[str, str]]
    prepare: Callable[[Group], Awaitable[Sequence[Mount]]]
    """Make the group's directories and tell what a container of it sees."""
    watch: Callable[[Folder], Awaitable[None]]
    """Look at the group's mailboxes from now on."""
    unwatch: Callable[[Folder], Awaitable[None]]
    deposit_turn: Callable[[Folder, TurnOrder], None]
    """Write a turn for a live container; blocking."""
    deposit_close: Callable[[Folder, Sequence[RunId]], None]
    forget_turn: Callable[[Folder, int], None]
    """Remove a turn's file; blocking."""
    forget_run: Callable[[Folder, RunId], None]
    """Remove what a run that is over has not read; blocking."""
    forget_all_but: Callable[[Collection[RunId]], None]
    """Remove what any other run has not read; blocking."""
    give_back: frames.GiveBack
    new_run_id: Callable[[], RunId]
    hear: frames.Hear = frames.hear_nothing
    restore: Callable[[Turn, Group, str | None], Awaitable[Restoration]] = resume_plainly
    """Decide how a new container goes on with the conversation of a group that has this session. It may read
    files, and never fails a turn.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolContext:
    """What every room of the pool stands on."""

    database: Database
    runtime: ContainerRuntime
    ties: RunPorts
    limits: timeouts.RunTimeouts
    logs: RunLogs
    clock: Clock
    tasks: asyncio.TaskGroup
    hints: Wakeups
    bus: EventBus


def until_stored() -> AsyncIterator[stamina.Attempt]:
    """Try again while the disk refuses: `async for attempt in until_stored(): with attempt: …`."""
    return stamina.retry_context(on=_passes, attempts=None, timeout=None, wait_initial=0.5, wait_max=10)


def _passes(error: Exception) -> bool:
    """A disk has room again some day; a damaged database does not mend itself."""
    return isinstance(error, StoreError) and not isinstance(error, StoreCorrupt)


def word_of(state: TurnState) -> str:
    """The second part of the event that tells of a turn's new state."""
    return "put_back" if state is TurnState.QUEUED else state.value
