"""Build the services that store conversations, and connect them with turns, sessions and the event bus."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from orchestrator.base.redaction import Redactor
from orchestrator.containers.ports import ChosenAgent
from orchestrator.context import owner_changes
from orchestrator.context.context_manager import ContextManager
from orchestrator.context.deletions import DeletionSync
from orchestrator.context.forget_requests import ForgetRequests
from orchestrator.context.group_memory import GroupMemory
from orchestrator.context.owner_changes import ChangeContext
from orchestrator.context.person_removal import PersonRemovals
from orchestrator.context.recorder import ContextRecorder, ignore_evicted
from orchestrator.context.session_restorer import SessionRestorer
from orchestrator.context.snapshots import ContextSnapshot
from orchestrator.context.summarizer import MAX_OUTPUT_TOKENS, ModelSummarizer, SummarizerJob
from orchestrator.context.tokens import EncodingCounter, TokenCalibration, TokenFactors
from orchestrator.domain.values import Folder, Group, Turn
from orchestrator.groups.host_context import HostContext


class AskModel(Protocol):
    """Send one request of the host itself to a model, billed to a group. Raises `AndyError`."""

    def __call__(
        self, group: Group, *, model: str, system: str, text: str, max_tokens: int
    ) -> Awaitable[str]: ...


class ContextFeature:
    """The context ability: recorder, restorer, deletions, summaries. Each host has one instance."""

    def __init__(
        self,
        host: HostContext,
        *,
        ask_model: AskModel,
        agent_of: Callable[[Group, Turn], ChosenAgent],
        redactor: Redactor,
    ) -> None:
        """`agent_of` returns which agent answers a turn; `redactor` removes secrets from stored texts."""
        settings, database, clock, bus = host.settings, host.database, host.clock, host.bus
        data = host.home.data
        self._host = host
        self._counter = EncodingCounter()
        self._ask_model = ask_model
        self._model = settings.andy_context_model
        self._summarizer_job = SummarizerJob(
            database, summariser=self._summariser, manager=self.manager, clock=clock, bus=bus
        )
        self._has_model = settings.andy_context_summary == "model"
        self.recorder = ContextRecorder(
            database,
            contexts=data / "context",
            env=data / "env",
            counter=self._counter,
            clock=clock,
            bus=bus,
            name=settings.assistant_name,
            on_notified=host.wakeups.outbox.set,
            on_evicted=self._summarizer_job.note if self._has_model else ignore_evicted,
            redactor=redactor,
        )
        self._deletions = DeletionSync(
            database,
            self.recorder,
            clock=clock,
            bus=bus,
            name=settings.assistant_name,
            on_forgetting=self._summarizer_job.drop,
            session_files=data / "sessions",
            removals=PersonRemovals(
                database,
                self.recorder,
                home=host.home.root,
                clock=clock,
                bus=bus,
                on_notified=host.wakeups.outbox.set,
            ),
        )
        self.forget_requests = ForgetRequests(clock)
        self.commands = GroupMemory(database, self.recorder, home=host.home.root, clock=clock, bus=bus)
        factors = TokenFactors(data / "context" / "token-factors.json")
        self._calibration = TokenCalibration(
            database, factors=factors, counter=self._counter, clock=clock, bus=bus
        )
        self.restorer = SessionRestorer(
            database,
            self.recorder,
            session_files=data / "sessions",
            agent_of=agent_of,
            factors=factors,
            clock=clock,
            bus=bus,
        )

    def loops(self) -> dict[str, Callable[[], Any]]:
        """Map the names of the loops that the host is to run and supervise to their functions.

        The loop "summaries" is among them only if a model is to write summaries.
        """
        summaries = {"summaries": self._summarizer_job.run} if self._has_model else {}
        return {
            "context": self.recorder.run,
            "forgetting": self._deletions.run,
            "token-lessons": self._calibration.run,
            **self.restorer.loops(),
            **summaries,
        }

    def manager(self, folder: Folder) -> ContextManager:
        """Return the manager of a group's stored conversation."""
        return self.recorder.manager(folder)

    async def change(self, folder: Folder, act: ChangeContext) -> ContextSnapshot | None:
        """Have `act` change a group's stored conversation, as the owner asked, and end the agent's session.

        Return the snapshot that was taken before the change; None if none was needed. Raises what
        `owner_changes.change` raises.
        """
        manager, now_ms = self.manager(folder), self._host.clock.now_ms()
        return await owner_changes.change(
            self._host.database, manager, self.recorder.copies, act, now_ms=now_ms
        )

    def _summariser(self, group: Group) -> ModelSummarizer:
        """Return a summariser whose requests are billed to a group."""
        return ModelSummarizer(partial(self._ask, group), self._counter)

    async def _ask(self, group: Group, system: str, text: str) -> str:
        """Send a request for a summary to the model, billed to a group. Raises `AndyError`."""
        return await self._ask_model(
            group, model=self._model, system=system, text=text, max_tokens=MAX_OUTPUT_TOKENS
        )
