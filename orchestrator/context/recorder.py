"""Update each group's context from the store whenever a turn starts, is answered or fails.

The rows of turns and of the outbox are the source; each message is added to the context once, by its id. So a
host may be killed at any point: the next pass completes the context.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
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
from orchestrator.context.files import CONTEXT, WORKFLOW, ContextRepair, context_path, ignore_in_git
from orchestrator.context.models import question_id
from orchestrator.context.snapshots import SnapshotContents
from orchestrator.context.tokens import TokenCounter
from orchestrator.domain.errors import ContextBusy
from orchestrator.domain.values import Folder, Group, SessionCommand
from orchestrator.groups import owner
from orchestrator.store.conversation import exchanges
from orchestrator.store.conversation.exchanges import TurnExchange
from orchestrator.store.database import Database, Tx
from orchestrator.store.groups import groups

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 60.0
MAX_EXCHANGES = 100
"""The largest number of exchanges read at once. A window and a summary have room for no more."""
SNAPSHOT_MS = 30 * 60_000
"""Milliseconds between two snapshots of a context that changes."""
PATIENCE_SECONDS = 12.0
"""Seconds to wait for a group's files. Two other writers may each lock them for 5 s."""
AT_ONCE = 16
"""Groups that are updated at a time."""
SPEAKING = (
    *("turn.started", "turn.acknowledged", "turn.answered", "turn.failed", "turn.put_back"),
    "message.sent",  # for example, the reply that a conversation was cleared
)
"""Events after which the store may have new messages."""
AMENDED = "message.amended"

TOO_LONG = "it took too long"

T = TypeVar("T")
OnFold = Callable[[Group, RegisteredMessages], None]
"""Callback for messages that left a window. It must be quick: it is called in the event loop."""


def ignore_evicted(group: Group, registered: RegisteredMessages) -> None:
    """Do nothing, for hosts on which no model writes summaries."""
    del group, registered


class ContextRecorder:
    """Registers the messages of turns in the contexts. Each host has one instance."""

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
        on_fold: OnFold = ignore_evicted,
        redactor: Redactor = BY_SHAPE,
    ) -> None:
        """`contexts` is `data/context`, `env` is `data/env`; `name` is the assistant's name.

        `on_notified` is called after a message to the owner was put into the outbox.
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
        self._running_calls: dict[Folder, asyncio.Future[Any]] = {}
        self._last_read_turns: dict[Folder, int] = {}
        self._snapshot_due_ms: dict[Folder, int] = {}
        self._snapshot_versions: dict[Folder, int | None] = {}
        """For each group whose newest snapshot has all of its context: the version of that context."""
        self._copied_versions: dict[Folder, int] = {}
        self._paths: dict[Folder, str] = {}
        """The path of each group's context; making and checking one takes longer than a look at the file."""
        self._groups: Sequence[Group] | None = None
        self._folders: list[Folder] = []
        """The folders of `_groups`."""
        self._caught_up: set[Folder] = set()
        """Groups whose contexts and copies were brought up to date once in this life of the host."""
        self._repairs: deque[ContextRepair] = deque()

    def manager(self, folder: Folder, *, project_name: str = "") -> ContextManager:
        """Return the context of a group. Repairs that a load makes are reported to the owner."""
        return ContextManager.of(
            self._contexts,
            folder,
            counter=self._counter,
            project_name=project_name,
            report=self._repairs.append,
            redactor=self._redactor,
        )

    # Following the turns

    async def run(self) -> None:
        """Update a group's context after each event of its turns, and all contexts once a minute."""
        await self._ignore_in_git()
        with self._bus.listening(*SPEAKING, AMENDED) as events:
            while True:
                await self.sweep()
                await self._handle_events(events)

    async def _ignore_in_git(self) -> None:
        """Make git ignore contexts in a repository around the home: they contain private messages."""
        home = self._contexts.parent.parent
        try:
            if await asyncio.to_thread(ignore_in_git, home):
                log.info("context.kept_out_of_git", file=str(home / ".gitignore"))
        except OSError as error:
            log.warning("context.not_kept_out_of_git", home=str(home), reason=str(error))

    async def _handle_events(self, events: asyncio.Queue[HostEvent]) -> None:
        """Follow events until all groups are due, after a minute or after a message was amended."""
        try:
            async with asyncio.timeout(SWEEP_SECONDS):
                while True:
                    arrived = await next_events(events)
                    if any(event.kind == AMENDED for event in arrived):
                        # Messages that were already read have changed, so they are read again.
                        self._last_read_turns.clear()
                        return
                    await self._catch_up_all(
                        {Folder(event.group) for event in arrived if event.group is not None}
                    )
                    # Counting tokens and writing to the disk for each answer of a busy group would slow down
                    # the others. Whoever needs the whole context, such as a new container, catches up first.
                    await asyncio.sleep(event_bus.PAUSE_SECONDS)
        except TimeoutError:
            return

    async def _catch_up_all(self, folders: Iterable[Folder]) -> None:
        """Update the contexts of several groups, some at a time."""
        await _for_each(folders, self._try_catch_up)

    async def sweep(self) -> None:
        """Update every group's context, take the snapshots that are due, and report repairs."""
        registered = await groups.registered(self._database)
        # As long as no group has changed, it is the same object.
        if registered is not self._groups:
            self._groups, self._folders = registered, [group.folder for group in registered]
        with_new_messages = await self._database.read(self._with_new_messages)
        with_context = await asyncio.to_thread(self._with_context)
        changed = await asyncio.to_thread(self._with_outdated_copy, with_context)
        never_updated = [folder for folder in self._folders if folder not in self._caught_up]
        await self._catch_up_all({*with_new_messages, *changed, *never_updated})
        await self._take_due_snapshots(dict.fromkeys((*with_context, *with_new_messages)))
        await self._notify_owner_of_repairs()

    async def _with_new_messages(self, tx: Tx) -> list[Folder]:
        """Return the groups with messages that their contexts do not have."""
        last_read = {folder: self._last_read_turns.get(folder, 0) for folder in self._folders}
        return await exchanges.folders_after(tx, last_read)

    def _with_context(self) -> list[Folder]:
        """Return the groups that may have a context: in the others nothing was ever said. Blocks."""
        try:
            with os.scandir(self._contexts) as entries:
                names = {entry.name for entry in entries}
        except FileNotFoundError:
            return []
        return [folder for folder in self._folders if folder in names]

    def _with_outdated_copy(self, folders: Iterable[Folder]) -> list[Folder]:
        """Return the groups whose context was written after its last copy for the container. Blocks.

        Commands and the owner write contexts, too.
        """
        return [folder for folder in folders if self._is_copy_outdated(folder, self._version(folder))]

    def _is_copy_outdated(self, folder: Folder, version: int | None) -> bool:
        """Return whether there is a context, and it has another version than its last copy."""
        return version is not None and version != self._copied_versions.get(folder)

    async def _take_due_snapshots(self, folders: Iterable[Folder]) -> None:
        """Take a snapshot of each context that has changed and whose last one is `SNAPSHOT_MS` old."""
        now_ms = self._clock.now_ms()
        due = [folder for folder in folders if now_ms >= self._snapshot_due_ms.get(folder, 0)]
        if not due:
            return
        changed = await asyncio.to_thread(self._changed_since_snapshot, due)
        self._snapshot_due_ms |= dict.fromkeys(set(due).difference(changed), now_ms + SNAPSHOT_MS)
        await _for_each(changed, self._snapshot_if_due)

    def _changed_since_snapshot(self, folders: Iterable[Folder]) -> list[Folder]:
        """Return the groups whose context may have changed since its newest snapshot. Blocks."""
        return [
            folder
            for folder in folders
            if folder not in self._snapshot_versions
            or self._snapshot_versions[folder] != self._version(folder)
        ]

    async def _try_catch_up(self, folder: Folder) -> None:
        """Update a group's context; if its files are busy, log that, and let the next sweep do it."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self.catch_up(folder)
            self._caught_up.add(folder)
        except (ContextBusy, OSError) as error:  # `TimeoutError` is an `OSError`
            # The next pass completes it.
            log.warning("context.behind", group=folder, reason=str(error) or TOO_LONG)

    async def catch_up(self, folder: Folder) -> None:
        """Update a group's context, and its container's copy of it, from the store.

        Messages that left the window are handed on to be summarised; the owner is told of repairs.

        Raises:
            ContextBusy, OSError: the context cannot be written now; a later call makes up for it.
        """
        async with self._locks[folder]:
            spoken = await self._database.read(
                partial(_exchanges_after, folder=folder, last_read_turn=self._last_read_turns.get(folder, 0))
            )
            if spoken is None:
                return
            group, new, oldest_open_turn = spoken.group, spoken.exchanges, spoken.oldest_open_turn
            registered = await self._in_thread(folder, self._write, group, new)
            if new:
                last = new[-1].turn
                # A turn that is not settled is read again, because its answer comes later.
                self._last_read_turns[folder] = (
                    last if oldest_open_turn is None else min(last, oldest_open_turn - 1)
                )
        for result in registered:
            if result.evicted:
                self._on_fold(group, result)
        await self._notify_owner_of_repairs()
        if new and folder not in self._last_read_turns:
            await self.catch_up(folder)  # a repair restored a snapshot: add the newer messages of the store

    async def _in_thread(self, folder: Folder, work: Callable[..., T], *arguments: Any) -> T:
        """Run a blocking function on a group's files in a thread, and return its result.

        The caller holds the group's lock. An earlier call that timed out may still hang in its thread; it is
        waited for first, so that a group never has more than one thread.
        """
        if (earlier := self._running_calls.get(folder)) is not None:
            await asyncio.wait([earlier])
        job = asyncio.get_running_loop().run_in_executor(None, work, *arguments)
        self._running_calls[folder] = job
        try:
            return await asyncio.shield(job)
        finally:
            if job.done():
                self._running_calls.pop(folder, None)

    def _write(self, group: Group, turn_exchanges: Sequence[TurnExchange]) -> list[RegisteredMessages]:
        """Bring a group's context and the container's copy of it up to date; return what was registered.

        The messages of the exchanges that the context does not have yet are added. A conversation that the
        owner cleared is closed. The copy is written if the context may have changed since the last copy.
        Blocks.
        """
        manager = self.manager(group.folder, project_name=group.name)
        now_ms = self._clock.now_ms()
        registered: list[RegisteredMessages] = []
        for part in _split_at_clear(turn_exchanges):
            if part.spoken:
                registered += [self._register(manager, group, part.spoken, now_ms)]
            if part.closing is not None:
                _close(manager, part.closing.turn, now_ms)
        # The version is read before the content: if a command or the owner writes the file in between, the
        # recorded version is too old, and the next pass copies the context again.
        version = self._version(group.folder)
        needs_copy = bool(turn_exchanges) or self._is_copy_outdated(group.folder, version)
        if needs_copy and self.copies.write(group.folder, manager.load(now_ms=now_ms)):
            self._note_copied(group.folder, version)
        return registered

    def _note_copied(self, folder: Folder, version: int | None) -> None:
        """Record the version that was copied. One that could not be copied is retried by the next sweep."""
        if version is not None:
            self._copied_versions[folder] = version

    def _version(self, folder: Folder) -> int | None:
        """Return when a group's context was written, in nanoseconds; None where there is none. Blocks."""
        path = self._paths.get(folder)
        if path is None:
            path = self._paths[folder] = str(context_path(self._contexts, folder) / CONTEXT)
        try:
            return os.stat(path).st_mtime_ns  # noqa: PTH116  # for each group in each minute
        except FileNotFoundError:
            return None

    def _register(
        self, manager: ContextManager, group: Group, turn_exchanges: Sequence[TurnExchange], now_ms: int
    ) -> RegisteredMessages:
        """Register the messages of exchanges, and give up the pending question of a turn that ended without
        answer.
        """
        spoken = [
            each
            for exchange in turn_exchanges
            for each in message_mapping.spoken_in(exchange, group, name=self._name)
        ]
        result = manager.register_message(*spoken, now_ms=now_ms)
        # If the question of a turn that has ended is still pending, the turn gave no answer.
        ended_questions = {question_id(each.turn) for each in turn_exchanges if each.is_settled}
        if result.context.pending_user in ended_questions:
            manager.settle(str(result.context.pending_user), now_ms=now_ms)
        return result

    # Before a container starts

    async def show(self, folder: Folder) -> None:
        """Write the copies of a group's context that a container reads when it starts.

        If that fails or takes too long, it is logged, and the container starts with what is there.
        """
        try:
            async with asyncio.timeout(PATIENCE_SECONDS), self._locks[folder]:
                await self._in_thread(folder, self._show, folder)
        except (ContextBusy, OSError) as error:  # `TimeoutError` is an `OSError`
            log.warning("context.not_copied", group=folder, reason=str(error) or TOO_LONG)

    def _show(self, folder: Folder) -> None:
        """Write the copies of a group's context that its new container may read. Blocks."""
        contents = self.manager(folder).load(now_ms=self._clock.now_ms())
        self.copies.write(folder, contents, is_new=True)

    # Tools of agents

    async def use(self, group: Group, tool: str, arguments: Mapping[str, Any], request_id: str) -> Reply:
        """Use a tool of `agent_runner.wire.context_tools`; if that fails, the reply has an error code."""
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
        """Carry out a context tool, and update the container's copies if it changed something. Blocks."""
        manager = self.manager(group.folder, project_name=group.name)
        now_ms = self._clock.now_ms()
        reply = tools.use(manager, tool, arguments, request_id=request_id, now_ms=now_ms)
        if reply.ok:
            self.copies.write(group.folder, manager.load(now_ms=now_ms))
        return reply

    # Snapshots and repairs

    async def _snapshot_if_due(self, folder: Folder) -> None:
        """Take a group's snapshot if it is due, and record when the next one is."""
        now_ms = self._clock.now_ms()
        if now_ms < self._snapshot_due_ms.get(folder, 0):
            return
        try:
            async with asyncio.timeout(PATIENCE_SECONDS), self._locks[folder]:
                due_ms = await self._in_thread(folder, self._take_snapshot, folder, now_ms)
            self._snapshot_due_ms[folder] = due_ms
        except (ContextBusy, OSError) as error:  # `TimeoutError` is an `OSError`
            log.warning("context.no_snapshot", group=folder, reason=str(error) or TOO_LONG)

    def _take_snapshot(self, folder: Folder, now_ms: int) -> int:
        """Take a snapshot if one is due and something changed; return when the next is due, in ms."""
        manager = self.manager(folder)
        newest = max((snapshot.at_ms for snapshot in manager.snapshots()), default=0)
        if newest <= now_ms < newest + SNAPSHOT_MS:
            return newest + SNAPSHOT_MS
        version = self._version(folder)  # before the snapshot: a change in between is in the next one
        manager.snapshot(now_ms=now_ms)
        self._snapshot_versions[folder] = version
        return now_ms + SNAPSHOT_MS

    async def _notify_owner_of_repairs(self) -> None:
        """Notify the owner, once, of each context that had to be repaired."""
        while self._repairs:
            repair = self._repairs.popleft()
            if repair.kind == "dangling":
                continue  # the agent reads about it: `memory.note` is part of its next prompt
            self._last_read_turns.pop(Folder(repair.folder), None)
            async with self._database.transaction() as tx:
                is_new = await owner.notify(
                    tx,
                    f"⚠️ {repair.text} The bad file is kept as {repair.moved_to}; see"
                    f" 'andy context show {repair.folder}'.",
                    about=f"context:{repair.folder}",
                    now_ms=self._clock.now_ms(),
                )
            if is_new:
                self._on_notified()


@dataclass(frozen=True, slots=True, kw_only=True)
class _NewExchanges:
    """A group's exchanges after a mark, and the oldest turn that is not settled yet."""

    group: Group
    exchanges: list[TurnExchange]
    oldest_open_turn: int | None


async def _exchanges_after(tx: Tx, *, folder: Folder, last_read_turn: int) -> _NewExchanges | None:
    """Return a group's exchanges after a turn, at most `MAX_EXCHANGES`; None if the group is gone."""
    group = await groups.by_folder(tx, folder)
    if group is None:
        return None
    return _NewExchanges(
        group=group,
        exchanges=await exchanges.after(tx, folder, last_read_turn, limit=MAX_EXCHANGES),
        oldest_open_turn=await exchanges.oldest_open(tx, folder),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExchangePart:
    """Exchanges in their order, up to one that cleared the conversation."""

    spoken: Sequence[TurnExchange]
    closing: TurnExchange | None = None


async def next_events(events: asyncio.Queue[HostEvent]) -> list[HostEvent]:
    """Wait for an event, and return it with all others that are in the queue."""
    arrived = [await events.get()]
    while not events.empty():
        arrived.append(events.get_nowait())
    return arrived


async def _for_each(folders: Iterable[Folder], work: Callable[[Folder], Awaitable[None]]) -> None:
    """Call `work` for each folder, for `AT_ONCE` at a time: one whose files are locked delays no other.

    Not for all at once: the process never returns the memory of a thousand tasks to the system.
    """
    ordered = sorted(folders)
    remaining = iter(ordered)

    async def take() -> None:
        """Work on folders until none is left; several such workers share one iterator."""
        for folder in remaining:
            await work(folder)

    await asyncio.gather(*(take() for _ in range(min(AT_ONCE, len(ordered)))))


def _split_at_clear(turn_exchanges: Iterable[TurnExchange]) -> Iterator[_ExchangePart]:
    """Split exchanges after each one that cleared the conversation."""
    spoken: list[TurnExchange] = []
    for exchange in turn_exchanges:
        if exchange.command is SessionCommand.CLEAR:
            yield _ExchangePart(spoken=spoken, closing=exchange)
            spoken = []
        else:
            spoken.append(exchange)
    yield _ExchangePart(spoken=spoken)


def _close(manager: ContextManager, turn: int, now_ms: int) -> None:
    """Delete a conversation that was cleared in this turn, unless that was done before."""
    if manager.load(now_ms=now_ms).context.conversation.seen.floor < turn:
        manager.close_conversation(now_ms=now_ms, through_turn=turn)


HOST_FIELDS = frozenset({"writer"})
"""Fields that are left out of the copies, as they describe the host's machine."""


@dataclass(slots=True)
class ContextCopies:
    """Writes the copies of contexts that containers read, if they changed.

    Blocks. Calls for one group must not overlap.
    """

    root: Path
    """`data/env`"""
    redactor: Redactor = BY_SHAPE
    _written: dict[str, tuple[str, int]] = field(default_factory=dict)
    _digests: dict[tuple[str, str], bytes] = field(default_factory=dict)

    def write(self, folder: str, contents: SnapshotContents, *, is_new: bool = False) -> bool:
        """Update the copies of a group and return whether they are up to date, or not needed yet.

        `is_new`: its container is new and has no copies yet.
        """
        version = (contents.context.writer, contents.context.revision)
        if not is_new and self._written.get(folder) == version:
            return True
        context = contents.context.model_dump(mode="json", exclude=set(HOST_FIELDS))
        documents = {CONTEXT: context, WORKFLOW: contents.workflow.model_dump(mode="json")}
        try:
            for name, document in documents.items():
                data = disk.encoded(document, self.redactor)
                digest = hashlib.sha256(data).digest()
                # Most changes leave the plans unchanged.
                if is_new or self._digests.get((folder, name)) != digest:
                    write_whole(self.root / folder / name, data.decode())
                    self._digests[folder, name] = digest
        except FileNotFoundError:
            return True  # no container of this group has been prepared yet
        except OSError as error:
            log.warning("context.not_copied", group=folder, reason=error.strerror)
            return False
        self._written[folder] = version
        return True
