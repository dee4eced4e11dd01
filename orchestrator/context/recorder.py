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
from orchestrator.domain.errors import ContextBusy, StoreError
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
MAX_GROUPS_AT_ONCE = 16
"""Groups that are updated at a time."""
MESSAGE_EVENTS = (
    *("turn.started", "turn.acknowledged", "turn.answered", "turn.failed", "turn.put_back"),
    "message.sent",  # for example, the reply that a conversation was cleared
)
"""Events after which the store may have new messages."""
AMENDED = "message.amended"

TOOK_TOO_LONG = "it took too long"

T = TypeVar("T")
OnEvicted = Callable[[Group, RegisteredMessages], None]
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
        on_evicted: OnEvicted = ignore_evicted,
        redactor: Redactor = BY_SHAPE,
    ) -> None:
        """`contexts` is `data/context`, `env` is `data/env`; `name` is the assistant's name.

        `on_notified` is called after a message to the owner was put into the outbox, and `on_evicted` when
        messages left the window of newest messages, so that they are to be summarised.
        """
        self._database = database
        self._contexts = contexts
        self._counter = counter
        self._clock = clock
        self._bus = bus
        self._name = name
        self._on_notified = on_notified
        self._on_evicted = on_evicted
        self._redactor = redactor
        self.copies = ContextCopies(env, redactor)
        self._locks: dict[Folder, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._running_calls: dict[Folder, asyncio.Future[Any]] = {}
        """The last call of each group that runs in a thread; it may have been given up, and hang."""
        self._last_read_turns: dict[Folder, int] = {}
        """The last turn of each group that was read into its context, and needs no second reading."""
        self._snapshot_due_ms: dict[Folder, int] = {}
        """When the next snapshot of each group is due, in epoch milliseconds."""
        self._snapshot_versions: dict[Folder, int | None] = {}
        """The `_context_version` of each group that is in its newest snapshot."""
        self._copied_versions: dict[Folder, int] = {}
        """The `_context_version` of each group that was last copied for its container."""
        self._paths: dict[Folder, str] = {}
        """The path of each group's context; making and checking one takes longer than a look at the file."""
        self._groups: Sequence[Group] | None = None
        """The registered groups at the last sweep; None before the first."""
        self._folders: list[Folder] = []
        """The folders of `_groups`."""
        self._caught_up: set[Folder] = set()
        """Groups whose contexts and copies were brought up to date once in this life of the host."""
        self._repairs: deque[ContextRepair] = deque()
        """Repairs of stored files that the owner does not know of yet."""

    @property
    def name(self) -> str:
        """The assistant's name."""
        return self._name

    def manager(self, folder: Folder, *, project_name: str = "") -> ContextManager:
        """Return the manager of a group's stored context. Repairs that it makes are reported to the owner.

        `project_name` is the title of the group's plans if none are stored yet; by default the folder's name.
        """
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
        """Update a group's context after each event of its turns, and all contexts once a minute.

        Runs until it is cancelled.
        """
        await self._ignore_in_git()
        with self._bus.listening(*MESSAGE_EVENTS, AMENDED) as events:
            while True:
                await self.sweep()
                await self._handle_events(events)

    async def _ignore_in_git(self) -> None:
        """Make git ignore the stored conversations if Andy's home is in a repository; they are private.

        A failure is only logged.
        """
        home = self._contexts.parent.parent
        try:
            if await asyncio.to_thread(ignore_in_git, home):
                log.info("context.kept_out_of_git", file=str(home / ".gitignore"))
        except OSError as error:
            log.warning("context.not_kept_out_of_git", home=str(home), reason=str(error))

    async def _handle_events(self, events: asyncio.Queue[HostEvent]) -> None:
        """Update the groups that events name, and return when the caller has to update all groups.

        That is so after a minute, or once a message that is already stored was changed.
        """
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
        """Update the contexts of several groups, `MAX_GROUPS_AT_ONCE` at a time.

        Groups whose files are busy are skipped.
        """
        await _for_each(folders, self._try_catch_up)

    async def sweep(self) -> None:
        """Update the contexts that are behind the database, take due snapshots, and report repairs.

        Contexts whose copy for the container is outdated are updated, too, and so is each context once after
        the start of the host.
        """
        registered = await groups.registered(self._database)
        # As long as no group has changed, `registered` is the same object.
        if registered is not self._groups:
            self._groups, self._folders = registered, [group.folder for group in registered]
        with_new_messages = await self._database.read(self._folders_with_new_messages)
        with_context = await asyncio.to_thread(self._folders_with_context)
        with_outdated_copy = await asyncio.to_thread(self._folders_with_outdated_copy, with_context)
        never_updated = [folder for folder in self._folders if folder not in self._caught_up]
        await self._catch_up_all({*with_new_messages, *with_outdated_copy, *never_updated})
        await self._take_due_snapshots(dict.fromkeys((*with_context, *with_new_messages)))
        await self._notify_owner_of_repairs()

    async def _folders_with_new_messages(self, tx: Tx) -> list[Folder]:
        """Return the groups that have turns after the one that was last read into their context."""
        last_read = {folder: self._last_read_turns.get(folder, 0) for folder in self._folders}
        return await exchanges.folders_after(tx, last_read)

    def _folders_with_context(self) -> list[Folder]:
        """Return the groups that have a directory for a context: in others nothing was ever said. Blocks."""
        try:
            with os.scandir(self._contexts) as entries:
                names = {entry.name for entry in entries}
        except FileNotFoundError:
            return []
        return [folder for folder in self._folders if folder in names]

    def _folders_with_outdated_copy(self, folders: Iterable[Folder]) -> list[Folder]:
        """Return the groups whose context was written after its last copy for the container. Blocks.

        Commands and the owner write contexts, too.
        """
        return [folder for folder in folders if self._is_copy_outdated(folder, self._context_version(folder))]

    def _is_copy_outdated(self, folder: Folder, version: int | None) -> bool:
        """Return whether a group's context has another version than its last copy for the container.

        False if there is no context, so that `version` is None.
        """
        return version is not None and version != self._copied_versions.get(folder)

    async def _take_due_snapshots(self, folders: Iterable[Folder]) -> None:
        """Take a snapshot of each context that has changed and whose last snapshot is `SNAPSHOT_MS` old."""
        now_ms = self._clock.now_ms()
        due = [folder for folder in folders if self._is_snapshot_due(folder, now_ms)]
        if not due:
            return
        changed = await asyncio.to_thread(self._changed_since_snapshot, due)
        # An unchanged context is checked again after the usual pause between two snapshots.
        self._snapshot_due_ms |= dict.fromkeys(set(due).difference(changed), now_ms + SNAPSHOT_MS)
        await _for_each(changed, self._snapshot_if_due)

    def _is_snapshot_due(self, folder: Folder, now_ms: int) -> bool:
        """Return whether the pause after a group's last snapshot is over.

        Return True also if the clock was set back since: otherwise, no snapshot would be taken until it has
        reached that time again.
        """
        return not 0 < self._snapshot_due_ms.get(folder, 0) - now_ms <= SNAPSHOT_MS

    def _changed_since_snapshot(self, folders: Iterable[Folder]) -> list[Folder]:
        """Return the groups whose context was written since its newest snapshot, or may have been. Blocks."""
        return [
            folder
            for folder in folders
            if folder not in self._snapshot_versions
            or self._snapshot_versions[folder] != self._context_version(folder)
        ]

    async def _try_catch_up(self, folder: Folder) -> None:
        """Update a group's context; if that fails, log it, and let the next sweep try again.

        Raises `StoreError` if the database cannot be used, as no other group can be updated then, either.
        """
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self.catch_up(folder)
            self._caught_up.add(folder)
        except (ContextBusy, OSError) as error:  # `TimeoutError` is an `OSError`
            # The next pass completes it.
            log.warning("context.behind", group=folder, reason=str(error) or TOOK_TOO_LONG)
        except StoreError:
            raise
        except Exception:  # such as an unreadable time in its file, which must hold up no other group
            log.exception("context.behind", group=folder)

    async def catch_up(self, folder: Folder) -> None:
        """Update a group's context, and its container's copy of it, from the store.

        Messages that have left the window are handed on to be summarised by a model, and the owner is
        notified if damaged files of a context were repaired. Nothing happens if the group is gone.

        Raises:
            ContextBusy, OSError: the context cannot be written now; a later call adds what is missing.
        """
        async with self._locks[folder]:
            unread = await self._database.read(
                partial(_exchanges_after, folder=folder, last_read_turn=self._last_read_turns.get(folder, 0))
            )
            if unread is None:
                return
            group, new_exchanges, oldest_open_turn = unread.group, unread.exchanges, unread.oldest_open_turn
            registered = await self._in_thread(folder, self._write_exchanges, group, new_exchanges)
            if new_exchanges:
                newest_turn = new_exchanges[-1].turn
                # A turn that is not settled is read again, because its answer comes later.
                self._last_read_turns[folder] = (
                    newest_turn if oldest_open_turn is None else min(newest_turn, oldest_open_turn - 1)
                )
        for result in registered:
            if result.evicted:
                self._on_evicted(group, result)
        await self._notify_owner_of_repairs()
        # `_notify_owner_of_repairs` removes a group from `_last_read_turns` if its context was replaced by an
        # older snapshot, which lacks the newer messages of the store: all turns are read again.
        if new_exchanges and folder not in self._last_read_turns:
            await self.catch_up(folder)

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

    def _write_exchanges(
        self, group: Group, turn_exchanges: Sequence[TurnExchange]
    ) -> list[RegisteredMessages]:
        """Add the messages of exchanges to a group's context, and update the container's copy of it. Blocks.

        An exchange is the question and the answer of one turn; messages that the context has are not added
        again. At an exchange by which somebody cleared the conversation, the conversation is deleted. The
        copy is written if the context may have changed since the last copy. Return the results of the
        additions.
        """
        manager = self.manager(group.folder, project_name=group.name)
        now_ms = self._clock.now_ms()
        registered: list[RegisteredMessages] = []
        for part in _split_at_clear(turn_exchanges):
            if part.exchanges:
                registered += [self._register(manager, group, part.exchanges, now_ms)]
            if part.clearing is not None:
                _clear_conversation(manager, part.clearing.turn, now_ms)
        # The version is read before the content: if a command or the owner writes the file in between, the
        # recorded version is too old, and the next pass copies the context again.
        version = self._context_version(group.folder)
        needs_copy = bool(turn_exchanges) or self._is_copy_outdated(group.folder, version)
        if needs_copy and self.copies.write(group.folder, manager.load(now_ms=now_ms)):
            self._note_copied(group.folder, version)
        return registered

    def _note_copied(self, folder: Folder, version: int | None) -> None:
        """Record which version of a group's context was copied for its container.

        When the context has another version, the next sweep copies it again. Nothing is recorded if `version`
        is None, as there was no context before the copy.
        """
        if version is not None:
            self._copied_versions[folder] = version

    def _context_version(self, folder: Folder) -> int | None:
        """Return the version of a group's context: the time of its last write, in nanoseconds. Blocks.

        None where there is no context, or its directory cannot be read.
        """
        path = self._paths.get(folder)
        if path is None:
            path = self._paths[folder] = str(context_path(self._contexts, folder) / CONTEXT)
        try:
            return os.stat(path).st_mtime_ns  # noqa: PTH116  # for each group in each minute
        except OSError:
            return None  # whatever reads or writes the context reports it

    def _register(
        self, manager: ContextManager, group: Group, turn_exchanges: Sequence[TurnExchange], now_ms: int
    ) -> RegisteredMessages:
        """Add the messages of exchanges (turns' questions and answers) to a context; return the result.

        A question that waits for an answer stops waiting if its turn has ended without one. Blocks.
        """
        messages = [
            message
            for exchange in turn_exchanges
            for message in message_mapping.messages_of(exchange, group, name=self._name)
        ]
        result = manager.register_message(*messages, now_ms=now_ms)
        # If the question of a turn that has ended is still pending, the turn gave no answer.
        ended_questions = {question_id(each.turn) for each in turn_exchanges if each.is_settled}
        if result.context.pending_user in ended_questions:
            manager.settle(str(result.context.pending_user), now_ms=now_ms)
        return result

    # Before a container starts

    async def write_copies(self, folder: Folder) -> None:
        """Write the copies of a group's context that a container reads when it starts.

        If that fails or takes too long, it is logged, and the container starts with what is there.
        """
        try:
            async with asyncio.timeout(PATIENCE_SECONDS), self._locks[folder]:
                await self._in_thread(folder, self._write_copies_for_new_container, folder)
        except (ContextBusy, OSError) as error:  # `TimeoutError` is an `OSError`
            log.warning("context.not_copied", group=folder, reason=str(error) or TOOK_TOO_LONG)

    def _write_copies_for_new_container(self, folder: Folder) -> None:
        """Write the copies of a group's context for a new container, which has none yet. Blocks."""
        contents = self.manager(folder).load(now_ms=self._clock.now_ms())
        self.copies.write(folder, contents, is_new=True)

    # Tools of agents

    async def use(self, group: Group, tool: str, arguments: Mapping[str, Any], request_id: str) -> Reply:
        """Carry out a call of a tool by which an agent reads and changes its group's stored context.

        `tool` and `arguments` are those of `agent_runner.wire.context_tools`. If the call fails, also because
        it took too long, the reply has an error code. A repetition of `request_id` makes no second plan or
        task.
        """
        folder = group.folder
        try:
            async with asyncio.timeout(PATIENCE_SECONDS), self._locks[folder]:
                reply = await self._in_thread(folder, self._use_tool, group, tool, arguments, request_id)
        except TimeoutError:
            log.warning("context.not_used", group=folder, tool=tool, reason=TOOK_TOO_LONG)
            return tools.busy(folder, request_id)
        await self._notify_owner_of_repairs()
        return reply

    def _use_tool(self, group: Group, tool: str, arguments: Mapping[str, Any], request_id: str) -> Reply:
        """Carry out a call of a context tool, and update the container's copies if it succeeded. Blocks."""
        manager = self.manager(group.folder, project_name=group.name)
        now_ms = self._clock.now_ms()
        reply = tools.use(manager, tool, arguments, request_id=request_id, now_ms=now_ms)
        if reply.ok:
            self.copies.write(group.folder, manager.load(now_ms=now_ms))
        return reply

    # Snapshots and repairs

    async def _snapshot_if_due(self, folder: Folder) -> None:
        """Take a snapshot of a group's context if it is due, and record when the next one is due.

        If it fails, as when the files are busy or slow, that is only logged.
        """
        now_ms = self._clock.now_ms()
        if not self._is_snapshot_due(folder, now_ms):
            return
        try:
            async with asyncio.timeout(PATIENCE_SECONDS), self._locks[folder]:
                due_ms = await self._in_thread(folder, self._take_snapshot, folder, now_ms)
            self._snapshot_due_ms[folder] = due_ms
        except (ContextBusy, OSError) as error:  # `TimeoutError` is an `OSError`
            log.warning("context.no_snapshot", group=folder, reason=str(error) or TOOK_TOO_LONG)
        except Exception:  # it must hold up no other group
            log.exception("context.no_snapshot", group=folder)

    def _take_snapshot(self, folder: Folder, now_ms: int) -> int:
        """Take a snapshot of a group's context, unless nothing changed since the newest one.

        Nor is one taken while the newest is less than `SNAPSHOT_MS` old. Return when the next one is due, in
        epoch milliseconds. Blocks.
        """
        manager = self.manager(folder)
        newest_ms = max((snapshot.at_ms for snapshot in manager.snapshots()), default=0)
        # A time in the future means that the clock was set back: then a snapshot is taken.
        if newest_ms <= now_ms < newest_ms + SNAPSHOT_MS:
            return newest_ms + SNAPSHOT_MS
        version = self._context_version(folder)  # before the snapshot: a change in between is in the next one
        manager.snapshot(now_ms=now_ms)  # takes none if nothing changed
        self._snapshot_versions[folder] = version
        return now_ms + SNAPSHOT_MS

    async def _notify_owner_of_repairs(self) -> None:
        """Notify the owner, once, of each context that had a file which could not be read.

        Such a context is an older one now, so all turns are read into it again.
        """
        while self._repairs:
            repair = self._repairs.popleft()
            # An active plan or task was gone. The owner need not know: the agent reads about it in its next
            # prompt (`memory.note`).
            if repair.kind == "dangling":
                continue
            self._last_read_turns.pop(Folder(repair.folder), None)
            try:
                async with self._database.transaction() as tx:
                    is_new = await owner.notify(
                        tx,
                        f"⚠️ {repair.text} The bad file is kept as {repair.moved_to}; see"
                        f" 'andy context show {repair.folder}'.",
                        about=f"context:{repair.folder}",
                        now_ms=self._clock.now_ms(),
                    )
            except BaseException:
                self._repairs.appendleft(repair)  # the next call tries again
                raise
            if is_new:
                self._on_notified()


@dataclass(frozen=True, slots=True, kw_only=True)
class _NewExchanges:
    """A group's newest exchanges after the last turn that was read, and the oldest turn not settled yet."""

    group: Group
    exchanges: list[TurnExchange]
    oldest_open_turn: int | None


async def _exchanges_after(tx: Tx, *, folder: Folder, last_read_turn: int) -> _NewExchanges | None:
    """Return the questions and answers of a group's newest `MAX_EXCHANGES` turns after `last_read_turn`.

    The oldest turn that has not ended is returned with them. None if the group is gone.
    """
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

    exchanges: Sequence[TurnExchange]
    clearing: TurnExchange | None = None
    """The exchange that cleared the conversation after them; None if they are the newest."""


async def next_events(events: asyncio.Queue[HostEvent]) -> list[HostEvent]:
    """Wait for an event, and return it with all others that are in the queue by then."""
    arrived = [await events.get()]
    while not events.empty():
        arrived.append(events.get_nowait())
    return arrived


async def _for_each(folders: Iterable[Folder], work: Callable[[Folder], Awaitable[None]]) -> None:
    """Call `work` for each folder, for `MAX_GROUPS_AT_ONCE` at a time.

    So a group with locked files delays few others. It is not done for all at once: the process never returns
    the memory of a thousand tasks to the system.
    """
    ordered = sorted(folders)
    remaining = iter(ordered)

    async def take() -> None:
        """Work on one folder after the other until none is left; several such tasks share one iterator."""
        for folder in remaining:
            await work(folder)

    await asyncio.gather(*(take() for _ in range(min(MAX_GROUPS_AT_ONCE, len(ordered)))))


def _split_at_clear(turn_exchanges: Iterable[TurnExchange]) -> Iterator[_ExchangePart]:
    """Yield exchanges, questions and answers of turns, in parts in their order.

    Each part ends at an exchange by which somebody cleared the conversation (`/clear`); the last part has the
    exchanges after the last of these, perhaps none.
    """
    part: list[TurnExchange] = []
    for exchange in turn_exchanges:
        if exchange.command is SessionCommand.CLEAR:
            yield _ExchangePart(exchanges=part, clearing=exchange)
            part = []
        else:
            part.append(exchange)
    yield _ExchangePart(exchanges=part)


def _clear_conversation(manager: ContextManager, turn: int, now_ms: int) -> None:
    """Delete the stored conversation, which `/clear` ended in this turn, unless that was done before."""
    # `close_conversation` raises `floor`, the last turn of which no message can be added, to this turn.
    if manager.load(now_ms=now_ms).context.conversation.seen.floor < turn:
        manager.close_conversation(now_ms=now_ms, through_turn=turn)


HOST_FIELDS = frozenset({"writer"})
"""Fields that are left out of the copies, as they describe the host's machine."""


@dataclass(slots=True)
class ContextCopies:
    """Writes the copies of contexts and workflows that containers read, if they have changed.

    Blocks. Calls for one group must not overlap.
    """

    root: Path
    """`data/env`"""
    redactor: Redactor = BY_SHAPE
    _written: dict[str, tuple[str, int]] = field(default_factory=dict)
    """The writer and the revision of the context that was copied last, by the group's folder."""
    _digests: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """The hash of each copy, by the group's folder and the name of the file."""

    def write(self, folder: str, contents: SnapshotContents, *, is_new: bool = False) -> bool:
        """Write the copies of a group's context and workflow, each if it has changed since it was written.

        Return False if they could not be written, which is logged; True also if the group never had a
        container, so that no copy is needed. `is_new` says that the container is new: both are written.
        """
        # A change of the workflow gives the context a new revision, too.
        version = (contents.context.writer, contents.context.revision)
        if not is_new and self._written.get(folder) == version:
            return True
        context = contents.context.model_dump(mode="json", exclude=set(HOST_FIELDS))
        documents = {CONTEXT: context, WORKFLOW: contents.workflow.model_dump(mode="json")}
        try:
            for name, document in documents.items():
                data = disk.encoded(document, self.redactor)
                digest = hashlib.sha256(data).digest()
                # Most changes are of the context alone; the file of the workflow stays as it is then.
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
