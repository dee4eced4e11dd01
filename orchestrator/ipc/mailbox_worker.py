"""Handle the requests in the groups' mailboxes: wait for a change, read a batch, handle, reply, remove.

Groups are handled concurrently, each by one task at a time: a slow request, such as copying a file, delays
only its own group.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from agent_runner.wire.document import WireError
from agent_runner.wire.mailbox import Reply, has_too_many_parts, parse_command
from orchestrator.base.clock import Clock, SystemClock
from orchestrator.base.rate_limits import TokenBucket
from orchestrator.domain.errors import MailboxError, StoreError
from orchestrator.domain.values import Folder, Group
from orchestrator.ipc import input_files
from orchestrator.ipc.command_dispatcher import CommandDispatcher, fallback_id
from orchestrator.ipc.handlers.files import RETENTION_MS, OutgoingFiles, remove_files
from orchestrator.ipc.mailbox import Mailbox, RequestFile, is_unique_name
from orchestrator.ipc.rejected_files import MAX_NAME_CHARS, Rejection
from orchestrator.ipc.watcher import MailboxWatcher
from orchestrator.store import audit
from orchestrator.store.conversation import outbox
from orchestrator.store.database import Database, Tx
from orchestrator.store.groups import groups
from orchestrator.store.runs import commands

log = structlog.get_logger(__name__)

REJECTION_COST = 5
"""Requests that a batch with rejections counts as, against its group's rate."""
MAX_REASON_CHARS = 300
BATCH = 20
"""Requests of one directory that are handled before the next directory has its turn."""
DIRECTORIES = ("messages", "tasks")
UNWATCHED_SWEEP_SECONDS = 60.0
"""Seconds between looks at the mailboxes of all groups, including unwatched ones. Files there were written in
a container's last second, or could not be handled then.
"""
MAX_TRIES = 3
"""Times that the handling of a request may fail unexpectedly before the request is set aside."""
RETRY_SECONDS = 1.0
"""Seconds of the pause before the second try; each further pause is one second longer.

All tries are over before the container stops waiting for a reply.
"""
MAX_FAILURES = 1_000
"""Failed requests of one mailbox that are remembered, the latest."""
DAY_MS = 24 * 3_600_000
HOST_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)
"""Errors of the system that any request would meet: a full or broken disk, too many open files."""


@dataclass(slots=True, kw_only=True)
class _Failure:
    """A request whose handling has failed."""

    name: str
    """The name of its file."""
    tries: int = 0
    """Times that it was handled, or was to be set aside, and that failed."""
    reason: str = ""
    """The kind of the latest error of its handling."""
    is_paused: bool = False
    """Whether it waits before it is tried again; the requests behind it do not wait."""


class MailboxWorker:
    """Handles the requests of all groups."""

    def __init__(
        self,
        root: Path,
        *,
        database: Database,
        dispatcher: CommandDispatcher,
        watcher: MailboxWatcher,
        owner_uids: Callable[[], frozenset[int]],
        clock: Clock | None = None,
        outgoing_files: OutgoingFiles | None = None,
        unwatched_sweep_seconds: float = UNWATCHED_SWEEP_SECONDS,
    ) -> None:
        """Set up the worker; `run` handles the requests.

        Args:
            root: the directory with the mailboxes of all groups.
            database: the database.
            dispatcher: carries out the requests.
            watcher: signals changes in the mailboxes of the groups that have a container.
            owner_uids: returns the ids of the users whose files are accepted.
            clock: the clock.
            outgoing_files: the copies of outgoing files, of which those that no message needs are removed.
                Without it, none are removed.
            unwatched_sweep_seconds: the seconds between two looks at the mailboxes of all groups, also of
                those that `watcher` does not watch.
        """
        self._unwatched_sweep_seconds = unwatched_sweep_seconds
        self._root = root
        self._database = database
        self._dispatcher = dispatcher
        self._watcher = watcher
        self._owner_uids = owner_uids
        self._clock = clock or SystemClock()
        self._outgoing_files = outgoing_files
        self._swept_ms: int | None = None
        """When copies were last removed, by the steady clock; None before the first time."""
        self._rates: dict[Folder, TokenBucket] = {}
        """The number of requests that each group may still send now, as tokens in a bucket."""
        self._failures: dict[tuple[Folder, str], dict[str, _Failure]] = {}
        """The failed requests of each mailbox, by name and content; a restart forgets them and the tries."""
        self._paused: set[Folder] = set()
        """Groups that wait because they sent requests faster than they may."""
        self._at_work: set[Folder] = set()
        """Groups whose requests are being handled."""
        self._changed_meanwhile: set[Folder] = set()
        """Groups at work whose mailboxes changed since, and have to be looked at again."""

    async def run(self) -> None:
        """Handle the requests of all groups as they come, until cancelled."""
        async with asyncio.TaskGroup() as group_tasks:
            group_tasks.create_task(self._look_at_all(), name="mailbox-sweep")
            while True:
                # Only while no group is handled: a file that is being copied belongs to no message yet, and
                # would be removed.
                if not self._at_work:
                    await self._sweep()
                for folder in sorted(await self._watcher.wait() - self._paused):
                    self._begin(folder, group_tasks)

    async def _look_at_all(self) -> None:
        """Let each group with files in its mailboxes be handled, now and at intervals, until cancelled.

        Only watched groups signal changes, and a group is watched as long as it has a container. This finds
        files that were written while the host was down, or in a container's last moment.
        """
        while True:
            registered = await groups.registered(self._database)
            for folder in await asyncio.to_thread(self._with_files, registered):
                self._watcher.wake(folder)
            await asyncio.sleep(self._unwatched_sweep_seconds)

    def _with_files(self, registered: Sequence[Group]) -> list[Folder]:
        """Return the folders of those groups whose mailboxes are not empty. Blocks."""
        try:
            with os.scandir(self._root) as entries:  # a group has no mailboxes until it has a container
                have_mailboxes = {entry.name for entry in entries}
        except FileNotFoundError:
            return []
        folders = [group.folder for group in registered if group.folder in have_mailboxes]
        # Paths are plain text here: a `Path` for each directory takes longer than to look into the directory.
        return [
            folder
            for folder in folders
            if any(_has_entries(f"{self._root}/{folder}/{name}") for name in DIRECTORIES)
        ]

    def _begin(self, folder: Folder, group_tasks: asyncio.TaskGroup) -> None:
        """Handle a group's requests in a new task, or, if one is at work, again after it."""
        # There is one task per group, because two would read the same file and carry out its request twice.
        if folder in self._at_work:
            self._changed_meanwhile.add(folder)
        else:
            self._at_work.add(folder)
            group_tasks.create_task(self._work_on(folder), name=f"mailbox:{folder}")

    async def _work_on(self, folder: Folder) -> None:
        """Handle a group's requests once; if its mailboxes changed meanwhile, let it be handled again."""
        try:
            await self._handle_group(folder)
        finally:
            self._at_work.discard(folder)
            if folder in self._changed_meanwhile:
                self._changed_meanwhile.discard(folder)
                self._watcher.wake(folder)

    async def _sweep(self) -> None:
        """Remove, once a day, copies of outgoing files that no message needs any more.

        Called while no group is handled, so that no file is being copied: a copy exists before its message.
        """
        now_ms = self._clock.steady_ms()
        if self._outgoing_files is None or (self._swept_ms is not None and now_ms - self._swept_ms < DAY_MS):
            return
        self._swept_ms = now_ms
        # The files first: a spoken reply, which may be stored meanwhile, has its message before its file. In
        # the other order, its file would be found here and its message would not.
        try:
            stored = await asyncio.to_thread(self._outgoing_files.stored)
            in_use = await self._database.read(
                lambda tx: outbox.files_in_use(tx, since_ms=self._clock.now_ms() - RETENTION_MS)
            )
            unused = [path for path in stored if path not in in_use]
            await asyncio.to_thread(remove_files, unused)
        except OSError as error:
            log.warning("outgoing.not_swept", reason=error.strerror)
            return
        if unused:
            log.info("outgoing.swept", count=len(unused))

    async def _handle_group(self, folder: Folder) -> None:
        """Handle a batch of requests of each mailbox of a group. Errors are logged, not raised.

        Nothing is done for a group that is not registered any more.
        """
        # A failure of one mailbox or group does not stop the others; a sweep comes back to it.
        try:
            group = await self._database.read(lambda tx: groups.by_folder(tx, folder))
        except Exception:
            log.exception("mailbox.failed", group=folder)
            return
        if group is None:
            return
        for directory in DIRECTORIES:
            try:
                await self._handle_directory(group, directory)
            except Exception:
                log.exception("mailbox.failed", group=folder, mailbox=directory)

    async def _handle_directory(self, group: Group, directory: str) -> None:
        """Handle a batch of requests in one mailbox of a group: `directory` is its name.

        Requests that wait after a failure are left out. The number of requests counts for the group's rate.
        Rejected files are logged and audited.
        """
        mailbox = Mailbox(
            self._root / group.folder / directory,
            errors=self._root / "errors",
            folder=group.folder,
            owner_uids=self._owner_uids(),
        )
        failures = self._failures.get((group.folder, directory), {}).values()
        paused_names = {failure.name for failure in failures if failure.is_paused}
        # In a thread, because a slow disk would stop every channel that lives on this event loop.
        batch = await asyncio.to_thread(mailbox.take, BATCH, without=paused_names)
        if batch.rejections:
            # One line per batch: a flooded mailbox must not flood the log. `errors/` has the details.
            first = batch.rejections[0]
            log.warning(
                "mailbox.refused",
                group=group.folder,
                file=first.name,
                reason=first.reason,
                count=len(batch.rejections),
            )
            refused = self._rejected_event(
                "mailbox.refused", group, directory, first, count=len(batch.rejections)
            )
            await self._database.write(lambda tx: audit.append(tx, refused))
        for request in batch.requests:
            await self._answer(group, mailbox, request)
        if batch.has_more:
            self._watcher.wake(group.folder)
        # Charged after the work: these requests are answered, and only the next batch has to wait.
        cost_of_rejections = REJECTION_COST if batch.rejections else 0
        self._charge(group.folder, len(batch.requests) + cost_of_rejections)

    def _rejected_event(
        self, kind: str, group: Group, mailbox: str, first: Rejection, *, count: int = 1
    ) -> audit.AuditEvent:
        """Return the audit entry of `count` rejections: name and reason of the `first`, never its content."""
        detail = {
            "mailbox": mailbox,
            "file": ascii(first.name[:MAX_NAME_CHARS])[1:-1],  # escaped, without the quotes of `ascii`
            "reason": first.reason[:MAX_REASON_CHARS],
            "count": count,
        }
        return audit.AuditEvent(at_ms=self._clock.now_ms(), kind=kind, folder=group.folder, detail=detail)

    def _charge(self, folder: Folder, cost: int) -> None:
        """Count `cost` requests of a group, and pause the group if it sends faster than it may."""
        if not cost:
            return
        bucket = self._rates.setdefault(folder, TokenBucket(self._clock))
        seconds = bucket.take(cost)  # above 0 if the group has sent more than it may by now
        if seconds > 0 and folder not in self._paused:
            self._paused.add(folder)
            asyncio.get_running_loop().call_later(seconds, self._end_pause, folder)

    def _end_pause(self, folder: Folder) -> None:
        """End the pause of a group, and let its mailboxes be looked at again."""
        self._paused.discard(folder)
        self._watcher.wake(folder)

    async def _answer(self, group: Group, mailbox: Mailbox, request: RequestFile) -> None:
        """Carry out a request, write the reply to it, and then remove its file from the mailbox.

        After a crash in between, the file is handled again, which has no further effect: it gets the same
        reply. A file that is no command is recorded as rejected. If the handling fails unexpectedly, the
        request is left for later, and those behind it go on; after `MAX_TRIES` times `_reply_to` sets it
        aside, which means that it is recorded as rejected.

        Raises:
            StoreError, MailboxError, OSError: the host cannot do this for any request now, as with a full
                disk. Such errors count as no failed try, however many there are; the requests wait in their
                order.
        """
        replies = self._root / group.folder / "replies"
        failures = self._failures.setdefault((group.folder, mailbox.name), {})
        # Without the file's version: an agent could change its rights or times again and again.
        request_key = fallback_id(request.name, request.body)
        failure = failures.get(request_key) or _Failure(name=request.name)
        try:
            reply = await self._reply_to(group, mailbox, request, failure)
            # The reply is written before the file is removed: after a crash in between, the file is handled
            # again, and the reply that is in the store is written once more.
            if reply is not None:
                await asyncio.to_thread(input_files.write_reply, replies, reply)
            await asyncio.to_thread(mailbox.remove, request)
        # A cancellation that does not come from the host, but from a handler, is a failure of this request.
        except (Exception, asyncio.CancelledError) as error:
            if _is_host_error(error):
                raise
            log.exception("mailbox.failed", group=group.folder, mailbox=mailbox.name, file=request.name)
            failures[request_key] = failure
            self._pause(group.folder, failure, error)
            if len(failures) > MAX_FAILURES:
                del failures[next(iter(failures))]  # the oldest
        else:
            failures.pop(request_key, None)

    def _pause(self, folder: Folder, failure: _Failure, error: BaseException) -> None:
        """Count a failure of a request, and let the request wait before it is handled again.

        After `MAX_TRIES` failures it is set aside when it is handled next, so that needs no wait.
        """
        # Any later error is not one of its handling, but of setting it aside.
        if failure.tries < MAX_TRIES:
            failure.reason = type(error).__name__
        failure.tries += 1
        failure.is_paused = True

        def end() -> None:
            """End the request's pause, and let the group's mailboxes be looked at again."""
            failure.is_paused = False
            self._watcher.wake(folder)

        seconds = 0 if failure.tries == MAX_TRIES else RETRY_SECONDS * failure.tries
        asyncio.get_running_loop().call_later(seconds, end)

    async def _reply_to(
        self, group: Group, mailbox: Mailbox, request: RequestFile, failure: _Failure
    ) -> Reply | None:
        """Carry out a request, or record it as rejected; return the reply.

        Return None if it is no command and names no id. `failure` says how often it has failed so far.
        """
        try:
            if failure.tries >= MAX_TRIES:
                return await self._set_aside(group, mailbox, request, failure)
            return await self._dispatcher.handle(
                group, _file_key(request), request.body, written_ms=request.written_ms
            )
        except WireError as error:
            log.warning("mailbox.not_understood", group=group.folder, file=request.name, reason=str(error))
            # Recorded before it is audited and removed: a crash in between repeats this but loses nothing.
            await asyncio.to_thread(mailbox.reject, request, str(error))
            rejection = Rejection(name=request.name, reason=str(error))
            event = self._rejected_event("mailbox.not_understood", group, mailbox.name, rejection)
            await self._database.write(lambda tx: audit.append(tx, event))
            return _not_understood(request.body, str(error))

    async def _set_aside(
        self, group: Group, mailbox: Mailbox, request: RequestFile, failure: _Failure
    ) -> Reply:
        """Record a request as rejected whose handling has failed `MAX_TRIES` times; return the reply to it.

        The reply is stored together with the row of the audit. So a request that is found again after a crash
        is neither handled nor set aside again: it gets this reply.
        """
        command = parse_command(request.body)
        request_id = command.request_id or fallback_id(_file_key(request), request.body)
        earlier = await self._database.read(lambda tx: commands.answered(tx, group.folder, request_id))
        if earlier is not None:  # only the writing of the reply or the removal has failed
            return earlier
        reason = f"its handling failed {MAX_TRIES} times: {failure.reason}"
        await asyncio.to_thread(mailbox.reject, request, reason)
        text = "The host failed to do this. Part of it may be done: look before you ask again."
        reply = Reply(request_id=request_id, ok=False, code="failed", text=text)
        event = self._rejected_event(
            "mailbox.set_aside", group, mailbox.name, Rejection(name=request.name, reason=reason)
        )

        async def store(tx: Tx) -> None:
            """Store the reply and the row of the audit."""
            await commands.record(tx, group.folder, command.title, reply, now_ms=event.at_ms)
            await audit.append(tx, event)

        await self._database.write(store)
        log.error("mailbox.set_aside", group=group.folder, file=request.name, reason=reason)
        return reply


def _file_key(request: RequestFile) -> str:
    """Return a key that identifies a request file, for requests without an id.

    It stays the same if a carrier whose connection broke sends the file again, and differs from the key of a
    later file of the same name. Names of the form that `unique_name` makes have no later file.
    """
    # A file that is sent again is another one on this disk, so its version must not count.
    if is_unique_name(request.name):
        return request.name
    # An agent may write another request under a name of its own choice.
    return "-".join(str(part) for part in (*request.version, request.name))


def _is_host_error(error: BaseException) -> bool:
    """Return whether an error is the host's own, so that any other request would fail with it, too.

    These are errors of the store and of a disk, and the cancellation of the present task by the host. A
    connection that fails and a wait that takes too long are errors of one request.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    if isinstance(error, OSError):
        return error.errno in HOST_ERRORS
    # Reads of the store raise the errors of SQLite itself: for a damaged file, `DatabaseError`. Most of its
    # subclasses, such as a broken constraint, are errors of one request.
    is_damage = type(error) is sqlite3.DatabaseError
    return is_damage or isinstance(error, StoreError | MailboxError | sqlite3.OperationalError)


def _not_understood(body: bytes, reason: str) -> Reply | None:
    """Return the reply to a file that is no command; None if it names no request id, or is too complex."""
    if has_too_many_parts(body):
        return None
    try:
        return Reply(
            request_id=json.loads(body)["requestId"],
            ok=False,
            code="not_understood",
            text=f"The host does not understand this: {reason}",
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _has_entries(directory: str) -> bool:
    """Return whether a directory contains anything, as far as can be determined. Blocks."""
    try:
        with os.scandir(directory) as entries:
            return any(True for _ in entries)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # so that the directory is read, which reports the error
