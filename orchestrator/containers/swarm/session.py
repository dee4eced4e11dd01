"""The host's side of one run on a node: it sends files, and receives output, requests and changed files.

The run's carrier connects to the host, and connects again whenever the connection breaks. If nothing is
received from it for `SILENCE_SECONDS`, the run is given up: its output ends, its token is no longer accepted,
and its carrier is refused if it connects later. So the results of two containers never both count for one
session.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from watchdog.events import FileClosedEvent, FileCreatedEvent, FileDeletedEvent, FileMovedEvent
from watchdog.observers.api import BaseObserver, ObservedWatch

from agent_runner.wire import trees
from agent_runner.wire.carrier import (
    ENTRIES_A_MESSAGE,
    REQUEST_NAME,
    SILENCE_SECONDS,
    CarrierConnection,
    CarrierMessage,
    ConnectionLost,
    changes_from,
    send_changes,
    send_file,
)
from agent_runner.wire.files import write_whole
from agent_runner.wire.trees import Changes, Entry, HashCache, StaleFile, Tree, TreeError
from orchestrator.base.clock import SystemClock
from orchestrator.base.file_watch import WatchHandler
from orchestrator.base.rate_limits import BYTES_A_SECOND, BYTES_AT_ONCE, TokenBucket
from orchestrator.containers.streams import Tail
from orchestrator.containers.swarm.group_files import (
    INPUT,
    LIVE_TARGETS,
    LastFrame,
    OpenStage,
    RunFiles,
    SharedTree,
    settle_stages,
)
from orchestrator.containers.swarm.lost_nodes import SilenceWatch
from orchestrator.domain.protocols import Exit
from orchestrator.domain.values import Folder, RunId

log = structlog.get_logger(__name__)

OnLog = Callable[[RunId, bytes], None]
"""Receives pieces of stderr on the event loop; it must not block."""
CHUNKS_AHEAD = 16
"""Chunks of output that are received before the reader has taken them."""
SWEEP_SECONDS = 2.0
"""Seconds after which the host's files are compared even if no change was signalled."""
WRITTEN = [FileCreatedEvent, FileClosedEvent, FileMovedEvent, FileDeletedEvent]
"""The events after which files are compared.

Events of reading are left out, since comparing reads the files.
"""
MAX_WAITING_REQUESTS = 500
"""Requests in a mailbox above which further ones are not accepted yet."""
BOX_FULL_PAUSE_SECONDS = 0.2
"""Seconds between two looks at a full mailbox."""
SETTLE_PAUSE_SECONDS = 0.02
"""Seconds between two tries to put stages in place."""


MAX_SENT_CHANGES = 1000
"""Changes of one connection that are remembered until the next: more than can be in flight when it breaks."""


@dataclass(frozen=True, slots=True)
class SentChange:
    """A change of a folder that was sent to the container, and may be lost if the connection breaks."""

    mark: str
    """Identifies the change: the container's next hello names the last one that has arrived."""
    shared: SharedTree
    before: dict[str, Entry | None]
    """The entries that the container had at the changed paths; None for a path that it had not."""
    put: dict[str, Entry]


class CarrierSession:
    """The host's side of one run on a node.

    The door calls `serve` for each connection of the run's carrier; a new one replaces the one before.
    """

    def __init__(
        self,
        run_id: RunId,
        folder: Folder,
        files: RunFiles,
        *,
        observer: BaseObserver,
        last_frame: LastFrame,
        on_log: OnLog,
        is_adopted: bool,
    ) -> None:
        """`files` are the folders that the run shares with the host, and `observer` watches the host's files.

        `last_frame` returns the number of the last frame of a run that the store has recorded. `on_log`
        receives pieces of stderr. `is_adopted` says whether an earlier host has started the run. A
        task begins to watch for a carrier that falls silent.
        """
        self.run_id = run_id
        self.folder = folder
        self.files = files
        self.environment: dict[str, str] = {}
        self.ports: frozenset[int] = frozenset()
        """The ports of the host's proxies that the agent may connect to."""
        self.order = b""
        """The run's order, which is sent to the carrier when it connects."""
        self.is_hardened: bool | None = None
        """Whether the node prevents programs from gaining privileges; None until its carrier reports."""
        self.problem: str | None = None
        """The reason why the node cannot store the group's files, as its carrier reported; None if none."""
        self.has_started = asyncio.Event()
        """Set when the agent was started, by this host or an earlier one."""
        self.is_given_up = False
        self.ended = asyncio.Event()
        self.exit = Exit(code=None)
        self.relays: set[asyncio.Task[None]] = set()
        """The tasks that relay the agent's connections to the proxies."""
        self._observer = observer
        self._last_frame = last_frame
        self._on_log = on_log
        self._is_adopted = is_adopted
        self._stderr = Tail()
        self._received = 0
        """Bytes of stdout that were received."""
        self._output: asyncio.Queue[bytes | None] = asyncio.Queue(CHUNKS_AHEAD)
        self._pace = TokenBucket(SystemClock(), at_once=BYTES_AT_ONCE, a_second=BYTES_A_SECOND)
        self._connection: CarrierConnection | None = None
        self._serving: asyncio.Task[None] | None = None
        """The task that serves the present connection."""
        self._stage: OpenStage | None = None
        """The stage whose files are being received."""
        self._sent: deque[SentChange] = deque(maxlen=MAX_SENT_CHANGES)
        """The newest changes that were sent over the present connection, oldest first."""
        self._files_lock = asyncio.Lock()
        self._changed = asyncio.Event()
        """Set when the host's files may have changed."""
        self._watches: list[ObservedWatch] = []
        self._loop = asyncio.get_running_loop()
        self._received_at = self._loop.time()
        self._silence = SilenceWatch(self._update_received_at)
        self._watchdog = asyncio.create_task(self._watch_silence(), name=f"carrier-silence:{run_id}")

    # The connection

    async def serve(self, connection: CarrierConnection, hello: CarrierMessage) -> None:
        """Serve a connection of the run's carrier, the program that connects its container to the host.

        `hello` is the connection's first message, whose token was checked. A new container first gets all
        files and the order to start the agent. Then files and messages are exchanged until the connection
        breaks, or a newer one replaces it.

        The connection is refused if the node lets programs gain privileges. It is also refused if the node
        cannot store the files, or if the run has started in another container; a run that has started is
        given up then. If files cannot be stored later (`TreeError`), the container is told, and ends the run.
        """
        previous = self._serving
        self._serving = asyncio.current_task()
        if previous is not None:
            previous.cancel()
            await asyncio.wait([previous])
        self._connection = connection
        self._received_at = self._loop.time()
        self.is_hardened = hello.fields.get("is_hardened") is True
        try:
            if (problem := hello.fields.get("problem")) is not None:
                await self._handle_problem(connection, str(problem)[:200])
                return
            if not self.is_hardened:
                await connection.send("refused", reason="its node lets programs gain privileges")
                return
            if self.has_started.is_set() and hello.fields.get("is_started") is not True:
                # Swarm has created another container for the run. The results of the first one are unknown.
                await connection.send("refused", reason="this run had a container before")
                self.give_up("its container is gone, and another came")
                return
            await connection.send("welcome", out=self._received)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(connection.keep_alive(), name=f"carrier-ping:{self.run_id}")
                if hello.fields.get("is_started") is not True:
                    await self._send_everything(connection)
                else:
                    self.has_started.set()
                    with self._silence.handling():
                        await self._take_files_as_sent(hello)
                tasks.create_task(self._send_changes_forever(connection), name=f"carrier-files:{self.run_id}")
                while True:
                    message = await connection.receive()
                    with self._silence.handling():
                        await self._handle(connection, message)
        except* (ConnectionLost, OSError) as lost:
            log.info("carrier.lost", run=self.run_id, group=self.folder, reason=str(lost.exceptions[0]))
        except* TreeError as refused:
            await self._refuse_files(connection, str(refused.exceptions[0]))
        finally:
            self._stage = None
            if self._connection is connection:
                self._update_received_at()
                self._connection = None
            connection.close()

    @property
    def is_connected(self) -> bool:
        """Whether the carrier of this run is connected now."""
        return self._connection is not None

    async def send(self, kind: str, **fields: Any) -> bool:
        """Send a message over the present connection; return False when there is none or it breaks."""
        if self._connection is None:
            return False
        try:
            await self._connection.send(kind, **fields)
        except ConnectionLost:
            return False
        return True

    def give_up(self, reason: str) -> None:
        """End the run for the host: accept nothing from its container any more. Its exit code is unknown.

        Nothing is done if it has ended already. `reason` is logged.
        """
        if self.ended.is_set():
            return
        self.is_given_up = True
        log.warning("run.given_up", run=self.run_id, group=self.folder, reason=reason)
        self._end(Exit(code=None, stderr_tail=self._stderr.text()))

    def close(self) -> None:
        """Stop the tasks, the file watches and the connections of this object; the container goes on."""
        for task in (self._watchdog, self._serving, *self.relays):
            if task is not None:
                task.cancel()
        for watch in self._watches:
            with suppress(KeyError):
                self._observer.unschedule(watch)
        self._watches.clear()

    async def _watch_silence(self) -> None:
        """Wait until nothing was received from the run's container for too long, then give the run up."""
        if not self._is_adopted:  # adopted: an earlier host has started it
            await self.has_started.wait()  # until then, the time limit of the start applies
        await self._silence.watch(SILENCE_SECONDS, self.give_up)

    def _update_received_at(self) -> float:
        """Return the time at which something was last received, by the event loop's clock, and remember it.

        It has to be remembered, because the connection that it was received on may break.
        """
        if self._connection is not None:
            self._received_at = max(self._received_at, self._connection.last_received_at)
        return self._received_at

    def _end(self, exited: Exit) -> None:
        """Record the run's end, and end its output, its relayed connections and the watch for silence.

        If the run was given up, the connection of its carrier ends, too.
        """
        self.exit = exited
        self.ended.set()
        # A carrier that has reported its exit stays connected until it is answered `bye`.
        if self._serving is not None and self.is_given_up:
            self._serving.cancel()
        for relay in self.relays:
            relay.cancel()
        self._watchdog.cancel()
        # If the queue is full, its reader empties it and then sees that the run has ended.
        with suppress(asyncio.QueueFull):
            self._output.put_nowait(None)

    # Files from the host to the container

    async def _send_everything(self, connection: CarrierConnection) -> None:
        """Send all files that the container lacks, then the order to start the agent.

        First the files of turns whose ends are recorded are put in place. Then the lists of all files are
        sent, which later changes are compared with. The container replies which of the files it lacks.

        Raises:
            ConnectionLost: the connection broke, or the container sent an unexpected message.
        """
        await self.settle()
        for key, shared in self.files.shared.items():
            tree = shared.base = await asyncio.to_thread(shared.read, self._cache(key))
            items = list(tree.items())
            # An empty tree is sent, too, as one message without entries.
            for start in range(0, max(1, len(items)), ENTRIES_A_MESSAGE):
                end = start + ENTRIES_A_MESSAGE
                await connection.send(
                    "tree",
                    target=shared.target,
                    entries={path: trees.fields_of(entry) for path, entry in items[start:end]},
                    is_last=end >= len(items),
                    is_whole=shared.single_file is None,
                    is_writable=shared.is_writable,
                )
        await connection.send("laid")  # all lists were sent
        while (message := await connection.receive()).kind != "ready":
            if message.kind != "need":
                raise ConnectionLost(f"a '{message.kind}' before the start")
            await self._send_needed(connection, message)
        await connection.send("start", self.order, environment=self.environment, ports=sorted(self.ports))
        self.has_started.set()

    async def _send_needed(self, connection: CarrierConnection, message: CarrierMessage) -> None:
        """Send the files that the container lacks.

        `message` has the path of a folder in the container, and the paths of the files in that folder. Paths
        that the host has not listed are ignored.
        """
        target = message.text("target")
        for shared in self.files.shared.values():
            if shared.target != target or shared.base is None:
                continue
            for path in message.texts("paths"):
                if path in shared.base:
                    await send_file(connection, shared.source, target, path, shared.base[path])

    async def _take_files_as_sent(self, hello: CarrierMessage) -> None:
        """Prepare the sending of changes to a container that has its files already.

        First the files of completed turns are put in place, and changes that were lost with the last
        connection, as `hello` shows, are noted to be sent again. Then `SharedTree.base`, the files that the
        container is believed to have, is set for each folder:

        - In the folders that the host writes to while the agent works, it has none: all are sent again.
        - In other folders that this host has not sent, it has the host's present files, which an earlier host
          has sent: only later changes are sent.
        """
        await self.settle()
        self._take_back_lost_changes(hello)
        for key, shared in self.files.shared.items():
            if shared.target in LIVE_TARGETS:
                shared.base = {}  # files may have been written meanwhile
            elif shared.base is None:  # neither sent by this host, nor set here for an earlier connection
                shared.base = await asyncio.to_thread(shared.read, self._cache(key))

    def _take_back_lost_changes(self, hello: CarrierMessage) -> None:
        """Record that the container lacks the changes which it did not receive over the last connection.

        `hello` has the mark of the last change that has arrived. What the container is believed to have
        (`SharedTree.base`) is set back to what it had before the later changes.
        """
        sent = list(self._sent)
        self._sent.clear()
        last_mark = hello.fields.get("change")
        if last_mark is None:  # a carrier of an older version does not name it
            return
        for change in reversed(sent):  # the newest first: an older one may have changed the same path
            if change.mark == last_mark:
                return
            base = change.shared.base
            for path, entry in change.before.items():
                # A path that the container has changed since is left as it is.
                if base is None or base.get(path) != change.put.get(path):
                    continue
                if entry is None:
                    base.pop(path, None)
                else:
                    base[path] = entry

    async def _send_changes_forever(self, connection: CarrierConnection) -> None:
        """Send changes of the host's files to the container, whenever there are any, until cancelled."""
        self._watch()
        while True:
            self._changed.clear()
            try:
                async with self._files_lock:
                    await self._send_changes(connection)
            except FileNotFoundError:  # a file was removed after it was listed, so the files are listed again
                self._changed.set()
            # Without a signal the files are compared again after a while, because a signal may be lost.
            with suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_SECONDS):
                    await self._changed.wait()

    async def _send_changes(self, connection: CarrierConnection) -> None:
        """Send the changes in the host's files since the last call.

        They are then taken to be in the container, until the hello of the next connection shows that they
        were lost.
        """
        for shared, present_tree, changed in await asyncio.to_thread(self._changed_trees):
            await send_changes(connection, "change", shared.target, shared.source, changed)
            # All files of `LIVE_TARGETS` are sent again on each connection, so theirs need no mark.
            if shared.target not in LIVE_TARGETS:
                mark, base = secrets.token_hex(8), shared.base or {}
                await connection.send("change_end", mark=mark)
                before = {path: base.get(path) for path in (*changed.removed, *changed.put)}
                self._sent.append(SentChange(mark, shared, before, changed.put))
            shared.base = present_tree

    def _changed_trees(self) -> list[tuple[SharedTree, Tree, Changes]]:
        """Return each changed folder with its present content and its changes, in the order to send. Blocks.

        Folders outside of `LIVE_TARGETS` are only compared when there is a new turn, which is a new file in
        the input folder: an agent does not expect them to change during a turn.
        """
        changed_trees: list[tuple[SharedTree, Tree, Changes]] = []
        has_new_turn = False
        # A turn must not reach the container before the files that it needs. The host writes the files
        # of a turn first, and its input last. Here the input is read first, so that the files of a turn whose
        # input was found are found, too. At the end the order is reversed, so that the input is sent last.
        # Sorting by a boolean puts the items first for which it is False.
        input_first = sorted(self.files.shared.items(), key=lambda item: item[1].target != INPUT)
        for key, shared in input_first:
            is_live = shared.target in LIVE_TARGETS
            if not is_live and not has_new_turn:
                continue
            # A live folder has few files: all are hashed again, without stored hashes (`{}`).
            present_tree = shared.read({} if is_live else self._cache(key))
            if changed := trees.changes(shared.base or {}, present_tree):
                changed_trees.append((shared, present_tree, changed))
                has_new_turn |= shared.target == INPUT and bool(changed.put)
        return changed_trees[::-1]

    def _watch(self) -> None:
        """Watch the folders in `LIVE_TARGETS` for changes, unless they are watched already."""
        if self._watches:
            return
        watch = partial(self._observer.schedule, WatchHandler(self._wake_comparison), event_filter=WRITTEN)
        for shared in self.files.shared.values():
            if shared.target in LIVE_TARGETS:
                with suppress(OSError):  # without a watch, changes are found every `SWEEP_SECONDS`
                    self._watches.append(watch(str(shared.source), recursive=True))

    def _wake_comparison(self) -> None:
        """Wake the task that compares the host's files. Called in the observer's thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._changed.set)

    def _cache(self, key: str) -> HashCache:
        """Return the cache of file hashes for the folder or file with this key in `files.shared`."""
        return self.files.caches.setdefault(key, {})

    # Messages from the carrier

    async def _handle(self, connection: CarrierConnection, message: CarrierMessage) -> None:
        """Handle one message of the carrier, the program that connects the run's container to the host.

        Raises:
            ConnectionLost: the message is of an unknown kind or has an unexpected form.
            TreeError: the files of a turn exceed a limit, or cannot be read.
        """
        match message.kind:
            case "out":
                await self._handle_output(message)
            case "err":
                self._stderr.add(message.payload)
                self._on_log(self.run_id, message.payload)
            case "request":
                await self._handle_request(connection, message)
            case "stage" | "file" if message.text("target") not in self.files.writable:
                pass  # of a folder that the agent may not change
            case "stage" | "file" | "stage_end":
                await self._handle_stage(connection, message)
            case "too_much":
                await self._refuse_files(connection, str(message.fields.get("reason"))[:200])
            case "exit":
                code = min(message.number("code"), 255)
                was_oom_killed = message.fields.get("was_oom_killed") is True
                tail = self._stderr.text()
                await self._output.put(None)
                self._end(Exit(code=code, was_oom_killed=was_oom_killed, stderr_tail=tail))
            case other:
                raise ConnectionLost(f"an unknown message '{other[:40]}'")

    async def _handle_output(self, message: CarrierMessage) -> None:
        """Pass a piece of the agent's stdout on to the reader of `output`, no faster than a fixed rate.

        `at` in the message is the position in the stream, in bytes, at which the piece begins. After a lost
        connection bytes are repeated, which are skipped here.

        Raises:
            ConnectionLost: bytes before the piece are missing.
        """
        start, data = message.number("at"), message.payload
        if start > self._received:
            raise ConnectionLost("a gap in its output")
        data = data[self._received - start :]
        await self._pace.wait(len(data))
        if data:
            await self._output.put(data)  # if a newer connection cancels this, the data is sent again
            self._received += len(data)

    async def _handle_request(self, connection: CarrierConnection, message: CarrierMessage) -> None:
        """Write a request of the agent into a mailbox, a folder that the host reads, and confirm it.

        While the mailbox is full, this waits. It also waits while another request under this name is in the
        mailbox, which would be lost.

        Raises:
            ConnectionLost: the message names no mailbox, or no acceptable file name.
        """
        box, name = message.text("box"), message.text("name")
        directory = self.files.mailboxes.get(box)
        if directory is None or not REQUEST_NAME.fullmatch(name) or name.endswith(".partial"):
            raise ConnectionLost("a request of no mailbox")
        text = message.payload.decode("utf-8", "replace")
        while not await asyncio.to_thread(_has_room, directory, name, text):  # noqa: ASYNC110  # a folder has no event
            await asyncio.sleep(BOX_FULL_PAUSE_SECONDS)
        await asyncio.to_thread(write_whole, directory / name, text, mode=0o600)
        await connection.send("took", box=box, name=name)

    async def _handle_stage(self, connection: CarrierConnection, message: CarrierMessage) -> None:
        """Handle a message about the files that a turn changed: a list, a piece of a file, or the end.

        They are stored apart, in a stage whose number `n` is that of the output frame that ends the turn. At
        the end the stage is sealed on disk and confirmed. If a file changed while it was sent, the reply is
        `stale` instead. Number 0 is for changes that count at once. A piece of a file is ignored if no stage
        is open.
        """
        if message.kind == "stage_end":
            n = message.number("n")
            stage, self._stage = self._stage, None
            if stage is None or stage.n != n:  # no change came for this turn: its stage is empty
                stage = await asyncio.to_thread(self.files.stages.open, n)
            # Stage 0 counts at once. Earlier stages must be in place before it: `settle` puts them there once
            # the ends of their turns are recorded.
            if n == 0:
                while await asyncio.to_thread(self.files.stages.sealed) and not self.ended.is_set():
                    await self.settle()
                    await asyncio.sleep(SETTLE_PAUSE_SECONDS)
            try:
                await asyncio.to_thread(stage.seal)
            except StaleFile:  # a program changed the file while it was sent, at the end of a turn
                await connection.send("stale", n=n)
                return
            if n == 0:
                await self.settle()
            await connection.send("staged", n=n)
        elif message.kind == "stage":
            n = message.number("n")
            if self._stage is None or self._stage.n != n:
                self._stage = await asyncio.to_thread(self.files.stages.open, n)
            self._stage.extend(message.text("target"), changes_from(message))
        elif self._stage is not None:
            await asyncio.to_thread(
                self._stage.write, message.text("target"), message.text("path"), message.payload
            )

    async def _handle_problem(self, connection: CarrierConnection, problem: str) -> None:
        """Refuse a connection from a node that reports that it cannot store the group's files.

        If the run has started, it is given up. Otherwise the start of the container, which finds the problem
        in `problem`, tries another node.
        """
        self.problem = problem
        await connection.send("refused", reason="its node cannot take the files")
        if self.has_started.is_set():
            self._stderr.add(f"\nThe node cannot take the group's files: {problem}.\n".encode())
            self.give_up(f"its node says '{problem}'")

    async def _refuse_files(self, connection: CarrierConnection, reason: str) -> None:
        """Log why the files of a run cannot be stored, and tell its container, which then ends the run.

        The reason is also the last line of the agent's stderr, and so the detail of the run's end. The turn
        must not go on, because it does not count without its files.
        """
        log.warning("run.files_refused", run=self.run_id, group=self.folder, reason=reason)
        self._stderr.add(f"\nIts files cannot be kept: {reason}.\n".encode())
        with suppress(ConnectionLost):
            await connection.send("too_much", reason=reason)

    # Output for the pool

    async def output(self) -> AsyncGenerator[bytes, None]:
        """Yield the agent's stdout until the run has ended.

        The reader of this output records the ends of turns that are in it. So after each chunk, and at the
        end, the file changes of the turns whose ends are recorded are applied to the host's folders.
        """
        try:
            while (data := await self._next_output()) is not None:
                yield data
                # When the reader asks for the next chunk, it has recorded the ends of turns in `data`.
                await self.settle()
        finally:
            # In a task of its own, which goes on if the reader is cancelled during this last call.
            await asyncio.shield(asyncio.create_task(self.settle(), name=f"settle:{self.run_id}"))

    async def _next_output(self) -> bytes | None:
        """Return the next chunk of stdout; None if the run was given up, or has ended and all was read."""
        if self.is_given_up or (self.ended.is_set() and self._output.empty()):
            return None
        return await self._output.get()  # ends at the run's end, too, which puts None into the queue

    async def settle(self) -> None:
        """Apply the changed files of turns whose ends the store has recorded to the host's folders.

        Until then they wait in stages, one for each turn. This is called after each chunk of output, so it
        looks first whether any stage is complete ("sealed"). If the disk refuses, the files go on waiting.
        """
        if not await asyncio.to_thread(self.files.stages.sealed):
            return
        try:
            async with self._files_lock:
                for applied in await settle_stages(self.files, self.run_id, self._last_frame):
                    # The changes came from the container, so they must not be sent back to it.
                    self._update_bases(applied)
        except OSError as error:
            # The disk may be full. This is tried again, at the latest before the next start of a container.
            log.warning("run.files_wait", run=self.run_id, group=self.folder, reason=str(error))

    async def has_files_to_settle(self) -> bool:
        """Return whether files of a turn whose end is recorded still wait to reach the host's folders."""
        recorded = await self._last_frame(self.run_id)
        return any(n <= recorded for n in await asyncio.to_thread(self.files.stages.sealed))

    def _update_bases(self, applied: dict[str, Changes]) -> None:
        """Record that the host has applied changes that came from the container, so that both have them.

        `applied` has the changes by target: the path of a folder in the container.
        """
        for shared in self.files.shared.values():
            if shared.base is not None and shared.target in applied:
                for path in applied[shared.target].removed:
                    shared.base.pop(path, None)
                shared.base.update(applied[shared.target].put)


def _has_room(mailbox: Path, name: str, text: str) -> bool:
    """Return whether a request can be written into a mailbox, a directory, under a name. Blocks.

    It cannot while the mailbox is full, or has another request under this name. The same request may be
    written again: it was sent twice because a connection broke. For a mailbox that does not exist, return
    True: the caller finds the error when it writes.
    """
    try:
        # As bytes: reading as text would change the ends of lines.
        if (mailbox / name).read_bytes() != text.encode():
            return False
    except FileNotFoundError:
        pass
    return not mailbox.is_dir() or sum(1 for _ in mailbox.iterdir()) < MAX_WAITING_REQUESTS
