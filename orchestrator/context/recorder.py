"""Keep each group's context up to date with the store, whenever something was said.

Truth are the rows of turns and of the outbox; the context follows, and each message counts once there by its
id. So it does not matter where a host was killed: the next look makes it whole.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog

from agent_runner.wire.files import write_whole
from agent_runner.wire.mailbox import Reply
from orchestrator.base import event_bus
from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus, HostEvent
from orchestrator.base.redaction import BY_SHAPE, Redactor
from orchestrator.context import disk, message_mapping, tools
from orchestrator.context.context_manager import ContextManager
from orchestrator.context.dialogue import RegisteredMessages
from orchestrator.context.files import CONTEXT, WORKFLOW, ContextRepair, keep_out_of_git
from orchestrator.context.models import question_id
from orchestrator.context.snapshots import SnapshotContents
from orchestrator.context.tokens import TokenCounter
from orchestrator.domain.errors import ContextBusy
from orchestrator.domain.values import Folder, Group, SessionCommand
from orchestrator.groups import owner
from orchestrator.store import exchanges, groups
from orchestrator.store.database import Database, Tx
from orchestrator.store.exchanges import TurnExchange

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 60.0
MAX_EXCHANGES = 100
"""Exchanges that it looks back. A window and a summary have room for no more."""
SNAPSHOT_MS = 30 * 60_000
PATIENCE_SECONDS = 12.0
"""Seconds to wait for a group's files. Two writers may each hold them for 5 s."""
AT_ONCE = 16
"""Groups that are brought up to date at a time."""
SPEAKING = (
    *("turn.started", "turn.acknowledged", "turn.answered", "turn.failed", "turn.put_back"),
    "message.sent",  # a conversation was cleared, for one
)
AMENDED = "message.amended"

TOO_LONG = "it took too long"

T = TypeVar("T")
OnFold = Callable[[Group, RegisteredMessages], None]
"""Hear that messages have left a window. Quick; called in the event loop."""


def fold_nothing(group: Group, registered: RegisteredMessages) -> None:
    """Do nothing: no model writes better summaries."""
    del group, registered


class ContextRecorder:
    """Follows the turns in the store and registers their messages in the contexts. One is made for a host."""

    def __init__(
        self,
        database: Database,
        *,
        contexts: Path,
        env: Path,
        counter: TokenCounter,
        clock: Clock,
        bus: EventBus,
        name: str,
        on_notified: Callable[[], None],
        on_fold: OnFold = fold_nothing,
        redactor: Redactor = BY_SHAPE,
    ) -> None:
        """`contexts` is `data/context`, `env` is `data/env`; `name` that of the assistant.

        `on_notified` says that the outbox has a word for the owner.
        """
        self._database = database
        self._contexts = contexts
        self._counter = counter
        self._clock = clock
        self._bus = bus
        self._name = name
        self._on_notified = on_notified
        self._on_fold = on_fold
        self._redactor = redactor
        self.copies = ContextCopies(env, redactor)
        self._locks: dict[Folder, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._at_work: dict[Folder, asyncio.Future[Any]] = {}
        self._marks: dict[Folder, int] = {}
        self._snapshot_due_ms: dict[Folder, int] = {}
        self._versions: dict[Folder, int] = {}
        self._troubles: deque[ContextRepair] = deque()

    def manager(self, folder: Folder, *, project_name: str = "") -> ContextManager:
        """Return the context of a group. What a load has to repair in it is reported to the owner."""
        return ContextManager.of(
            self._contexts,
            folder,
            counter=self._counter,
            project_name=project_name,
            report=self._troubles.append,
            redactor=self._redactor,
        )

    # Following what is said

    async def run(self) -> None:
        """Look whenever a turn has come further, and at all groups once a minute."""
        await self._keep_out_of_git()
        with self._bus.listening(*SPEAKING, AMENDED) as events:
            while True:
                await self.sweep()
                await self._hear(events)

    async def _keep_out_of_git(self) -> None:
        """Make git ignore contexts in a repository around the home: they hold what was said."""
        home = self._contexts.parent.parent
        try:
            if await asyncio.to_thread(keep_out_of_git, home):
                log.info("context.kept_out_of_git", file=str(home / ".gitignore"))
        except OSError as error:
            log.warning("context.not_kept_out_of_git", home=str(home), reason=str(error))

    async def _hear(self, events: asyncio.Queue[HostEvent]) -> None:
        """Follow events until it is time, or there is a reason, to look at everything."""
        try:
            async with asyncio.timeout(SWEEP_SECONDS):
                while True:
                    arrived = await next_events(events)
                    if any(one.kind == AMENDED for one in arrived):
                        self._marks.clear()  # words that were read were taken back: look at them again
                        return
                    await self._follow_all({Folder(one.group) for one in arrived if one.group is not None})
                    # Counting tokens and writing to the disk for each answer of a busy group would slow down
                    # the others. Whoever needs the whole context, such as a new container, catches up first.
                    await asyncio.sleep(event_bus.PAUSE_SECONDS)
        except TimeoutError:
            return

    async def _follow_all(self, folders: Iterable[Folder]) -> None:
        await _for_each(folders, self._follow)

    async def sweep(self) -> None:
        """Bring every group's context up to date, take the snapshots that are due, and report repairs."""
        async with self._database.reading() as tx:
            found = [group.folder for group in await groups.every(tx)]
        await self._follow_all(found)
        await _for_each(found, self._keep_snapshot)
        await self._notify_owner_of_repairs()

    async def _follow(self, folder: Folder) -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self.catch_up(folder)
        except (ContextBusy, OSError) as error:  # a timeout is one too
            # The next look makes it whole.
            log.warning("context.behind", group=folder, reason=str(error) or TOO_LONG)

    async def catch_up(self, folder: Folder) -> None:
        """Bring a group's context, and its container's copy of it, up to date with the store.

        Raises:
            ContextBusy, OSError: it could not be written; nothing of it is lost.
        """
        async with self._locks[folder]:
            spoken = await self._database.read(
                partial(_spoken_after, folder=folder, mark=self._marks.get(folder, 0))
            )
            if spoken is None:
                return
            group, found, still_open = spoken.group, spoken.exchanges, spoken.still_open
            registered = await self._in_thread(folder, self._write, group, found)
            if found:
                last = found[-1].turn
                self._marks[folder] = last if still_open is None else min(last, still_open - 1)
        for one in registered:
            if one.evicted:
                self._on_fold(group, one)
        await self._notify_owner_of_repairs()
        if found and folder not in self._marks:
            await self.catch_up(folder)  # a snapshot took its place: what was said since is in the store

    async def _in_thread(self, folder: Folder, work: Callable[..., T], *given: Any) -> T:
        """Do what blocks on a group's files in a thread. Call it with the group's lock held.

        What was given up and hangs still is waited for first: a group never has more than one thread.
        """
        if (earlier := self._at_work.get(folder)) is not None:
            await asyncio.wait([earlier])
        job = asyncio.get_running_loop().run_in_executor(None, work, *given)
        self._at_work[folder] = job
        try:
            return await asyncio.shield(job)
        finally:
            if job.done():
                self._at_work.pop(folder, None)

    def _write(self, group: Group, found: Sequence[TurnExchange]) -> list[RegisteredMessages]:
        """Register the messages that are new. Blocks."""
        manager = self.manager(group.folder, project_name=group.name)
        now_ms = self._clock.now_ms()
        registered: list[RegisteredMessages] = []
        for part in _parts(found):
            if part.spoken:
                registered += [self._register(manager, group, part.spoken, now_ms)]
            if part.closing is not None:
                _close(manager, part.closing.turn, now_ms)
        if self._has_changed(group.folder) or found:
            self.copies.write(group.folder, manager.load(now_ms=now_ms))
        return registered

    def _has_changed(self, folder: Folder) -> bool:
        """Return whether somebody else, such as a command, has written since."""
        try:
            version = self.manager(folder).files.path.joinpath(CONTEXT).stat().st_mtime_ns
        except FileNotFoundError:
            return False
        before, self._versions[folder] = self._versions.get(folder), version
        return before != version

    def _register(
        self, manager: ContextManager, group: Group, found: Sequence[TurnExchange], now_ms: int
    ) -> RegisteredMessages:
        spoken = [
            one for exchange in found for one in message_mapping.spoken_in(exchange, group, name=self._name)
        ]
        done = manager.register_message(*spoken, now_ms=now_ms)
        silent = {question_id(one.turn) for one in found if one.is_settled}
        if done.context.pending_user in silent:
            manager.settle(str(done.context.pending_user), now_ms=now_ms)
        return done

    # Before a model is asked

    async def show(self, folder: Folder) -> None:
        """Write the copy for a container that is about to start, if that can be done in time."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS), self._locks[folder]:
                await self._in_thread(folder, self._show, folder)
        except (ContextBusy, OSError) as error:  # a timeout is one too
            log.warning("context.not_copied", group=folder, reason=str(error) or TOO_LONG)

    def _show(self, folder: Folder) -> None:
        contents = self.manager(folder).load(now_ms=self._clock.now_ms())
        self.copies.write(folder, contents, is_new=True)

    # What agents keep

    async def use(self, group: Group, tool: str, arguments: Mapping[str, Any], request_id: str) -> Reply:
        """Use a tool of `agent_runner.wire.context_tools`; the reply has a code where that cannot be done."""
        folder = group.folder
        try:
            async with asyncio.timeout(PATIENCE_SECONDS), self._locks[folder]:
                reply = await self._in_thread(folder, self._use, group, tool, arguments, request_id)
        except TimeoutError:
            log.warning("context.not_used", group=folder, tool=tool, reason=TOO_LONG)
            return tools.busy(folder, request_id)
        await self._notify_owner_of_repairs()
        return reply

    def _use(self, group: Group, tool: str, arguments: Mapping[str, Any], request_id: str) -> Reply:
        manager = self.manager(group.folder, project_name=group.name)
        now_ms = self._clock.now_ms()
        reply = tools.use(manager, tool, arguments, request_id=request_id, now_ms=now_ms)
        if reply.ok:
            self.copies.write(group.folder, manager.load(now_ms=now_ms))
        return reply

    # Snapshots, and what was amiss

    async def _keep_snapshot(self, folder: Folder) -> None:
        now_ms = self._clock.now_ms()
        if now_ms < self._snapshot_due_ms.get(folder, 0):
            return
        try:
            async with asyncio.timeout(PATIENCE_SECONDS), self._locks[folder]:
                due_ms = await self._in_thread(folder, self._take_snapshot, folder, now_ms)
            self._snapshot_due_ms[folder] = due_ms
        except (ContextBusy, OSError) as error:  # a timeout is one too
            log.warning("context.no_snapshot", group=folder, reason=str(error) or TOO_LONG)

    def _take_snapshot(self, folder: Folder, now_ms: int) -> int:
        """Take a snapshot if the newest is old enough and something changed; return when to look again."""
        manager = self.manager(folder)
        newest = max((one.at_ms for one in manager.snapshots()), default=0)
        if newest <= now_ms < newest + SNAPSHOT_MS:
            return newest + SNAPSHOT_MS
        manager.snapshot(now_ms=now_ms)
        return now_ms + SNAPSHOT_MS

    async def _notify_owner_of_repairs(self) -> None:
        """Notify the owner, once, of each context that had to be repaired."""
        while self._troubles:
            trouble = self._troubles.popleft()
            if trouble.kind == "dangling":
                continue  # the agent is told, in what it is told anyway
            self._marks.pop(Folder(trouble.folder), None)
            async with self._database.transaction() as tx:
                is_new = await owner.notify(
                    tx,
                    f"⚠️ {trouble.text} The bad file is kept as {trouble.moved_to}; see"
                    f" 'andy context show {trouble.folder}'.",
                    about=f"context:{trouble.folder}",
                    now_ms=self._clock.now_ms(),
                )
            if is_new:
                self._on_notified()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spoken:
    """A group's conversation after a mark, and the oldest turn of it that may still grow."""

    group: Group
    exchanges: list[TurnExchange]
    still_open: int | None


async def _spoken_after(tx: Tx, *, folder: Folder, mark: int) -> _Spoken | None:
    group = await groups.by_folder(tx, folder)
    if group is None:
        return None
    return _Spoken(
        group=group,
        exchanges=await exchanges.after(tx, folder, mark, limit=MAX_EXCHANGES),
        still_open=await exchanges.oldest_open(tx, folder),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Exchanges in their order, up to the one that cleared the conversation, if one did."""

    spoken: Sequence[TurnExchange]
    closing: TurnExchange | None = None


async def next_events(events: asyncio.Queue[HostEvent]) -> list[HostEvent]:
    """Return the next event, and all that have come with it."""
    arrived = [await events.get()]
    while not events.empty():
        arrived.append(events.get_nowait())
    return arrived


async def _for_each(folders: Iterable[Folder], work: Callable[[Folder], Awaitable[None]]) -> None:
    """Do it for several groups at once, so that one whose files are locked does not delay the others.

    Not for all at once: a thousand tasks are memory that the host keeps for good.
    """
    left = iter(sorted(folders))

    async def take() -> None:
        for folder in left:
            await work(folder)

    await asyncio.gather(*(take() for _ in range(AT_ONCE)))


def _parts(found: Iterable[TurnExchange]) -> Iterator[_Part]:
    spoken: list[TurnExchange] = []
    for one in found:
        if one.command is SessionCommand.CLEAR:
            yield _Part(spoken=spoken, closing=one)
            spoken = []
        else:
            spoken.append(one)
    yield _Part(spoken=spoken)


def _close(manager: ContextManager, turn: int, now_ms: int) -> None:
    """Delete a conversation that was cleared, unless that was done before."""
    if manager.load(now_ms=now_ms).context.conversation.seen.floor < turn:
        manager.close_conversation(now_ms=now_ms, through_turn=turn)


HOSTS_OWN = frozenset({"writer"})
"""Fields that describe the host's machine."""


@dataclass(slots=True)
class ContextCopies:
    """Writes the copies of contexts that containers read, where they have changed.

    Blocks; one call a group at a time.
    """

    root: Path
    """`data/env`"""
    redactor: Redactor = BY_SHAPE
    _written: dict[str, tuple[str, int]] = field(default_factory=dict)
    _digests: dict[tuple[str, str], bytes] = field(default_factory=dict)

    def write(self, folder: str, contents: SnapshotContents, *, is_new: bool = False) -> None:
        """Bring the copies of a group up to date; `is_new` says that its container is new and sees
        none yet.
        """
        version = (contents.context.writer, contents.context.revision)
        if not is_new and self._written.get(folder) == version:
            return
        context = contents.context.model_dump(mode="json", exclude=set(HOSTS_OWN))
        documents = {CONTEXT: context, WORKFLOW: contents.workflow.model_dump(mode="json")}
        try:
            for name, document in documents.items():
                data = disk.encoded(document, self.redactor)
                digest = hashlib.sha256(data).digest()
                if is_new or self._digests.get((folder, name)) != digest:  # plans change seldom
                    write_whole(self.root / folder / name, data.decode())
                    self._digests[folder, name] = digest
        except FileNotFoundError:
            return  # no container of this group has been prepared yet
        except OSError as error:
            log.warning("context.not_copied", group=folder, reason=error.strerror)
            return
        self._written[folder] = version
