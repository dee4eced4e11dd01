"""Define the pool's dependencies: services of other packages (`RunPorts`) and of the host (`PoolContext`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from agent_runner.wire.order import AgentName, RestoreMode, RestoreOrder, RunOrder, TurnOrder
from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.redaction import redact
from orchestrator.base.wakeups import Wakeups
from orchestrator.containers import frame_effects, timeouts
from orchestrator.containers.logs.run_log import RunLogs
from orchestrator.domain.errors import StoreCorrupt, StoreError
from orchestrator.domain.protocols import ContainerRuntime, Mount
from orchestrator.domain.values import OFFLINE, Folder, Group, Role, Run, RunId, Turn, TurnState
from orchestrator.store.database import Database, Tx

if TYPE_CHECKING:
    from stamina import Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """The way in which a new container continues its group's conversation."""

    restore: RestoreOrder
    decided_on_session: str | None
    """The group's session at the time of the decision: with another session, it no longer applies."""
    session_id: str | None
    """The session to resume, if any."""
    model: str | None = None
    """The model that was chosen for the decision; None leaves it to the agent."""
    provider: str | None = None
    """The provider of the session, as `Run.provider`; None if it is not decided here."""
    service: str | None = None
    """The name of the model service; None is the one of `.env`."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Numbers about the decision, published with the event."""

    def event_fields(self) -> dict[str, Any]:
        """Return the fields of the event `conversation.restored`, which reports this decision."""
        return {"detail": self.restore.mode, "reason": self.restore.reason, "data": dict(self.facts)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenAgent:
    """The agent, model and service that answer in a group's containers."""

    agent: AgentName
    model: str | None
    """The model in the run's order; None leaves the choice to the agent."""
    service: str
    """The service with its address, to which a session is bound."""
    service_name: str | None = None
    """The name of the service; None is the one of `.env`."""

    @property
    def provider(self) -> str:
        """The provider to record with a run: the service, or `OFFLINE` for the agent without a model."""
        return OFFLINE if self.agent == "offline" else self.service

    def recorded_in(self, run: Run) -> Run:
        """Return a copy of `run` with this model, provider and service."""
        return replace(run, model=self.model, provider=self.provider, service=self.service_name)

    def is_recorded_in(self, run: Run) -> bool:
        """Return whether a recorded run uses this model, provider and service.

        A run without a provider was recorded by an older version and counts as equal.
        """
        recorded = (run.model, run.provider, run.service)
        return run.provider is None or recorded == (self.model, self.provider, self.service_name)


async def resume_plainly(turn: Turn, group: Group, session_id: str | None) -> Restoration:
    """Decide to resume the group's session unchanged, or to start a new one if `session_id` is None.

    This is the default where no package passes a decision of its own, so `turn` and `group` do not matter.
    """
    del turn, group
    mode: RestoreMode = "resume" if session_id else "fresh"
    return Restoration(restore=RestoreOrder(mode=mode), decided_on_session=session_id, session_id=session_id)


async def take_no_snapshot(turn: Turn) -> None:
    """Do nothing before a turn: the default where no snapshot of the group's files is taken."""
    del turn


class Orders(Protocol):
    """Makes orders, environments and mounts of containers from the present configuration of their group."""

    def chosen_agent(self, group: Group, turn: Turn) -> ChosenAgent:
        """Return the agent, model and service that would answer a turn now. Raises `SettingError`."""

    def order(self, run: Run, group: Group, turn: TurnOrder, session_id: str | None) -> RunOrder:
        """Return the first order of a container, with the session that it resumes; None starts a new one."""

    def environment(self, group: Group, agent: AgentName, token: str) -> Mapping[str, str]:
        """Return a container's environment variables; `token` is the secret that identifies the run."""

    async def prepare(self, group: Group, role: Role | None) -> Sequence[Mount]:
        """Create the group's directories, and return a container's mounts.

        With a `role`, the container is restricted to what that role of the group may do; None for no limit.
        """


class Mailboxes(Protocol):
    """Reads the requests that the containers of a group write for the host."""

    async def watch(self, folder: Folder) -> None:
        """Read the group's mailboxes from now on."""

    async def unwatch(self, folder: Folder) -> None:
        """Read the group's mailboxes a last time, and stop reading them."""


class TurnFiles(Protocol):
    """The files by which the host hands something to a live container. All methods block."""

    def write_turn(self, folder: Folder, order: TurnOrder) -> None:
        """Write the file that hands a turn to a live container. Raises `OSError`."""

    def write_close(self, folder: Folder, closing: Collection[RunId]) -> None:
        """Write the file that asks these runs of the group, and no others, to close. Raises `OSError`."""

    def remove_turn(self, folder: Folder, turn: int) -> None:
        """Remove the file of a turn that the container has read; `turn` is the turn's id."""

    def remove_run_files(self, folder: Folder, run: RunId) -> None:
        """Remove the files that an ended run has not read."""

    def remove_files_of_others(self, runs: Collection[RunId]) -> None:
        """Remove, in every group, the files that were written for other runs than these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPorts:
    """Services and functions of other packages that the pool calls; `app` passes them in."""

    orders: Orders
    mailboxes: Mailboxes
    files: TurnFiles
    compose: Callable[[Tx, Turn, Group, RunId], Awaitable[TurnOrder]]
    """Write a turn's prompt and the rest of its order."""
    token: Callable[[], tuple[str, str]]
    """Return a new token and its hash."""
    requeue: frame_effects.RequeueTurn
    new_run_id: Callable[[], RunId]
    on_success: frame_effects.OnSuccess = frame_effects.ignore_success
    before_turn: Callable[[Turn], Awaitable[None]] = take_no_snapshot
    """Take a snapshot of a group's files before an agent's turn: some seconds at most; never raises."""
    redact: Callable[[str], str] = redact
    """Remove secrets from a container's texts about its work."""
    restore: Callable[[Turn, Group, str | None], Awaitable[Restoration]] = resume_plainly
    """Decide how a new container continues the conversation of a group with this session. It may read files,
    and never fails a turn.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolContext:
    """The services that every part of the pool uses."""

    database: Database
    runtime: ContainerRuntime
    ports: RunPorts
    limits: timeouts.RunTimeouts
    logs: RunLogs
    clock: Clock
    tasks: asyncio.TaskGroup
    wakeups: Wakeups
    bus: EventBus
    image: str
    """The name of the agent image; empty for ordinary processes."""


def until_stored() -> AsyncIterator[Attempt]:
    """Return an iterator that repeats a write to the database for as long as the disk refuses it.

    Use it as `async for attempt in until_stored(): with attempt: …`. It pauses between the attempts. An error
    that no pause can help, such as a damaged database, is raised.
    """
    import stamina

    return stamina.retry_context(on=_is_temporary, attempts=None, timeout=None, wait_initial=0.5, wait_max=10)


def _is_temporary(error: Exception) -> bool:
    """Return whether an error of the database may go away: a full disk may have room again.

    A damaged database stays damaged.
    """
    return isinstance(error, StoreError) and not isinstance(error, StoreCorrupt)


def event_word(state: TurnState) -> str:
    """Return the part after `turn.` in the name of the event for a turn's new state, such as `answered`.

    A turn that is queued again is called "put back".
    """
    return "put_back" if state is TurnState.QUEUED else state.value
