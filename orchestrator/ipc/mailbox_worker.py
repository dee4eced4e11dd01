"""The rounds of the mailboxes: wake on a hint, read a bounded batch a group, handle, answer, remove.

Groups are looked at beside each other, each by one round at a time: a request that takes long, such as a file
to be copied, keeps only its own group waiting.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection
from pathlib import Path

import structlog

from agent_runner.wire.document import WireError
from agent_runner.wire.mailbox import Reply
from orchestrator.base.clock import Clock, SystemClock
from orchestrator.base.rate_limits import TokenBucket
from orchestrator.domain.values import Folder, Group
from orchestrator.ipc import input_files
from orchestrator.ipc.command_dispatcher import CommandDispatcher
from orchestrator.ipc.handlers.files import KEPT_MS
from orchestrator.ipc.mailbox import Mailbox, RequestFile
from orchestrator.ipc.rejected_files import MAX_NAME_CHARS, Rejection
from orchestrator.ipc.watcher import MailboxWatcher
from orchestrator.store import audit, groups, outbox
from orchestrator.store.database import Database

log = structlog.get_logger(__name__)

REFUSAL_COST = 5
"""A batch with something to refuse costs a group as many letters."""
MAX_REASON_CHARS = 300
BATCH = 20
"""How many letters of one directory are handled in one round."""
DIRECTORIES = ("messages", "tasks")
DAY_MS = 24 * 3_600_000


class MailboxWorker:
    """Reads what all groups ask."""

    def __init__(
        self,
        root: Path,
        *,
        database: Database,
        reception: CommandDispatcher,
        watcher: MailboxWatcher,
        owner_uids: Callable[[], frozenset[int]],
        clock: Clock | None = None,
        sweep_files: Callable[[Collection[Path]], int] | None = None,
    ) -> None:
        """`sweep_files` removes copies of files but those given, and blocks."""
        self._root = root
        self._database = database
        self._reception = reception
        self._watcher = watcher
        self._owner_uids = owner_uids
        self._clock = clock or SystemClock()
        self._sweep_files = sweep_files
        self._swept_ms: int | None = None
        self._paces: dict[Folder, TokenBucket] = {}
        self._resting: set[Folder] = set()
        self._going: set[Folder] = set()
        self._again: set[Folder] = set()

    async def run(self) -> None:
        async with self._database.reading() as tx:
            for group in await groups.every(tx):
                self._watcher.hint(group.folder)  # what came while the host was down
        async with asyncio.TaskGroup() as rounds:
            while True:
                if not self._going:
                    await self._sweep()
                for folder in await self._watcher.hinted() - self._resting:
                    self._begin(folder, rounds)

    def _begin(self, folder: Folder, rounds: asyncio.TaskGroup) -> None:
        """Have a round of a group; what hints while it has one is looked at after that."""
        if folder in self._going:
            self._again.add(folder)
        else:
            self._going.add(folder)
            rounds.create_task(self._go_round(folder), name=f"mailbox:{folder}")

    async def _go_round(self, folder: Folder) -> None:
        try:
            await self._round(folder)
        finally:
            self._going.discard(folder)
            if folder in self._again:
                self._again.discard(folder)
                self._watcher.hint(folder)

    async def _sweep(self) -> None:
        """Once a day, while no group has a round: nothing is being copied then."""
        now_ms = self._clock.steady_ms()
        if self._sweep_files is None or (self._swept_ms is not None and now_ms - self._swept_ms < DAY_MS):
            return
        self._swept_ms = now_ms
        async with self._database.reading() as tx:
            kept = await outbox.kept_files(tx, since_ms=self._clock.now_ms() - KEPT_MS)
        try:
            count = await asyncio.to_thread(self._sweep_files, kept)
        except OSError as error:
            log.warning("outgoing.not_swept", reason=error.strerror)
            return
        if count:
            log.info("outgoing.swept", count=count)

    async def _round(self, folder: Folder) -> None:
        try:
            async with self._database.reading() as tx:
                group = await groups.by_folder(tx, folder)
            for directory in DIRECTORIES if group is not None else ():
                assert group is not None
                await self._empty(group, directory)
        except Exception:
            # One group's trouble is its own; the sweep comes back to it.
            log.exception("mailbox.failed", group=folder)

    async def _empty(self, group: Group, directory: str) -> None:
        mailbox = Mailbox(
            self._root / group.folder / directory,
            errors=self._root / "errors",
            folder=group.folder,
            owner_uids=self._owner_uids(),
        )
        batch = await asyncio.to_thread(mailbox.take, BATCH)
        if batch.refusals:
            # One line a batch: who floods a mailbox shall not flood the log. The quarantine has the rest.
            first = batch.refusals[0]
            log.warning(
                "mailbox.refused",
                group=group.folder,
                file=first.name,
                reason=first.reason,
                count=len(batch.refusals),
            )
            await self._note(
                "mailbox.refused", group, mailbox=directory, first=first, count=len(batch.refusals)
            )
        for letter in batch.letters:
            await self._answer(group, mailbox, letter)
        if batch.has_more:
            self._watcher.hint(group.folder)
        self._charge(group.folder, len(batch.letters) + REFUSAL_COST * bool(batch.refusals))

    async def _note(self, kind: str, group: Group, *, mailbox: str, first: Rejection, count: int) -> None:
        """A row of the audit; names and reasons, never what a letter held."""
        detail = {
            "mailbox": mailbox,
            "file": ascii(first.name[:MAX_NAME_CHARS])[1:-1],
            "reason": first.reason[:MAX_REASON_CHARS],
            "count": count,
        }
        event = audit.AuditEvent(at_ms=self._clock.now_ms(), kind=kind, folder=group.folder, detail=detail)
        async with self._database.transaction() as tx:
            await audit.append(tx, event)

    def _charge(self, folder: Folder, cost: int) -> None:
        """Have a group rest that asks faster than it may; the others go on."""
        if not cost:
            return
        pace = self._paces.setdefault(folder, TokenBucket(self._clock))
        seconds = pace.take(cost)
        if seconds > 0 and folder not in self._resting:
            self._resting.add(folder)
            asyncio.get_running_loop().call_later(seconds, self._wake, folder)

    def _wake(self, folder: Folder) -> None:
        self._resting.discard(folder)
        self._watcher.hint(folder)

    async def _answer(self, group: Group, mailbox: Mailbox, letter: RequestFile) -> None:
        """Handled, answered, removed, in this order: a crash between repeats only what has no effect."""
        replies = self._root / group.folder / "replies"
        try:
            reply = await self._reception.handle(group, _mark(letter), letter.body)
        except WireError as error:
            log.warning("mailbox.not_understood", group=group.folder, file=letter.name, reason=str(error))
            told = _refusal_of(letter.body, str(error))
            if told is not None:
                await asyncio.to_thread(input_files.write_reply, replies, told)
            refused = Rejection(name=letter.name, reason=str(error))
            await self._note("mailbox.not_understood", group, mailbox=mailbox.name, first=refused, count=1)
            await asyncio.to_thread(mailbox.quarantine, letter, str(error))
            return
        await asyncio.to_thread(input_files.write_reply, replies, reply)
        await asyncio.to_thread(mailbox.done, letter)


def _mark(letter: RequestFile) -> str:
    """What tells this file from a later one of its name, for requests that give no id."""
    return "-".join(str(part) for part in (*letter.version, letter.name))


def _refusal_of(body: bytes, reason: str) -> Reply | None:
    """An answer for whoever waits, when the letter tells at least who that is."""
    try:
        return Reply(
            request_id=json.loads(body)["requestId"],
            ok=False,
            code="not_understood",
            text=f"The host does not understand this: {reason}",
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
