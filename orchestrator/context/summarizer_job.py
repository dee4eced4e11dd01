"""Better summaries, by a model, where the owner wants them: made once an answer has left, never before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus, HostEvent
from orchestrator.context.context_manager import ContextManager
from orchestrator.context.dialogue import RegisteredMessages
from orchestrator.context.models import ContextMessage
from orchestrator.context.summarizer import ModelSummarizer
from orchestrator.domain.errors import AndyError
from orchestrator.domain.values import Folder, Group, TurnKind
from orchestrator.store import turns
from orchestrator.store.database import Database

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 60.0
MAX_MESSAGES = 200
"""Of one job; the older ones are in the extractive summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryJob:
    """What a summary is to be made of, and the extractive one that it is to take the place of."""

    group: Group
    old: str
    evicted: tuple[ContextMessage, ...]
    made: str

    def and_then(self, registered: RegisteredMessages) -> SummaryJob:
        """The same with what left the window since."""
        return replace(
            self,
            evicted=(*self.evicted, *registered.evicted)[-MAX_MESSAGES:],
            made=registered.context.conversation.running_summary,
        )


class SummarizerJob:
    """Made once for a host. What goes wrong leaves the extractive summary where it is."""

    def __init__(
        self,
        database: Database,
        *,
        summariser: Callable[[Group], ModelSummarizer],
        manager: Callable[[Folder], ContextManager],
        clock: Clock,
        bus: EventBus,
    ) -> None:
        self._database = database
        self._summariser = summariser
        self._manager = manager
        self._clock = clock
        self._bus = bus
        self._jobs: dict[Folder, SummaryJob] = {}
        self._doing: Folder | None = None

    def note(self, group: Group, registered: RegisteredMessages) -> None:
        """Take notice that messages have left a window; several make one job."""
        job = self._jobs.get(group.folder)
        if job is None:
            job = SummaryJob(group=group, old=registered.old_summary, evicted=(), made="")
        self._jobs[group.folder] = job.and_then(registered)

    def drop(self, folder: Folder) -> None:
        """Let go of what left a group's window: some of it was taken back."""
        self._jobs.pop(folder, None)
        if self._doing == folder:
            self._doing = None

    async def run(self) -> None:
        """Work whenever something was sent, and look for what is left once a minute."""
        with self._bus.listening("message.sent", "turn.failed") as events:
            while True:
                await self._until_news(events)
                for folder in list(self._jobs):
                    if not await self._is_answering(folder):
                        await self._do(self._jobs.pop(folder))

    async def _until_news(self, events: asyncio.Queue[HostEvent]) -> None:
        try:
            async with asyncio.timeout(SWEEP_SECONDS):
                await events.get()
        except TimeoutError:
            return

    async def _is_answering(self, folder: Folder) -> bool:
        async with self._database.reading() as tx:
            turn = await turns.running_of(tx, folder)
        return turn is not None and turn.kind is not TurnKind.WORKER

    async def _do(self, job: SummaryJob) -> None:
        folder = self._doing = job.group.folder
        try:
            summary = await self._summariser(job.group).fold(job.old, job.evicted)
            if self._doing != folder:
                return
            stood = await asyncio.to_thread(
                self._manager(folder).put_summary,
                summary,
                instead_of=job.made,
                now_ms=self._clock.now_ms(),
            )
        except (AndyError, TimeoutError, OSError) as error:
            reason = str(error) or "the model took too long"
            log.info("summary.stays_extractive", group=folder, reason=reason)
            return
        log.info("summary.made", group=folder, used=stood, messages=len(job.evicted), chars=len(summary))
