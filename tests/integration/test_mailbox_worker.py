"""The rounds of the mailboxes, with real directories, signals and rows."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent_runner.wire.files import write_whole
from agent_runner.wire.mailbox import Reply
from orchestrator.domain.errors import StoreError
from orchestrator.domain.values import Folder, Group
from orchestrator.ipc import mailbox, mailbox_worker
from orchestrator.ipc.command_dispatcher import CommandDispatcher
from orchestrator.ipc.mailbox import Mailbox, RequestFile
from orchestrator.ipc.mailbox_worker import MailboxWorker
from orchestrator.ipc.watcher import MailboxWatcher
from tests.support.command_dispatchers import dispatcher_of
from tests.support.store_harness import StoreHarness
from tests.support.until import until


@dataclass
class SlowDispatcher:
    """The real one, which takes its time for some groups: as for a file to be copied from a slow disk."""

    real: CommandDispatcher
    slow: frozenset[str]
    may_go_on: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[str] = field(default_factory=list)
    failures: dict[str, list[BaseException]] = field(default_factory=dict)
    """The errors that the handling of requests is to raise, one each time, by the requests' ids."""
    touched: Path | None = None
    """The directory whose files change their status while a request is handled; None for none."""

    async def handle(self, group: Group, name: str, body: bytes, *, written_ms: int) -> Reply:
        self.asked.append(json.loads(body).get("requestId", name))
        for path in self.touched.iterdir() if self.touched else ():
            path.chmod(0o600)
        if self.failures.get(self.asked[-1]):
            raise self.failures[self.asked[-1]].pop()
        if group.folder in self.slow:
            await self.may_go_on.wait()
        return await self.real.handle(group, name, body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    root: Path
    dispatcher: SlowDispatcher
    watcher: MailboxWatcher
    worker: MailboxWorker

    def has_been_hinted(self) -> bool:
        """Whether all hints that came were taken."""
        return not self.watcher._woken

    def ask(self, folder: str, request_id: str, *, number: int = 0) -> None:
        name = f"{1_000_000_000_000 + number}-{request_id}.json"
        write_whole(self.root / folder / "messages" / name, self.body(folder, request_id))

    def body(self, folder: str, request_id: str) -> str:
        return json.dumps({"type": "message", "text": f"of {folder}", "requestId": request_id})

    def is_at_work(self) -> bool:
        """Whether any group's requests are being handled."""
        return bool(self.worker._at_work)

    def is_answered(self, folder: str, request_id: str) -> bool:
        return (self.root / folder / "replies" / f"{request_id}.json").exists()


@asynccontextmanager
async def round_of(post: MailboxWorker, watcher: MailboxWatcher) -> AsyncIterator[None]:
    async with watcher:
        task = asyncio.create_task(post.run(), name="post")
        yield
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
async def mail(store_harness: StoreHarness, tmp_path: Path) -> AsyncIterator[Mail]:
    """Of two groups, of which `family` is slow."""
    root = tmp_path / "ipc"
    dispatcher = SlowDispatcher(dispatcher_of(store_harness), frozenset({"family"}))
    watcher = MailboxWatcher(root)
    for folder in ("family", "work"):
        group = await store_harness.add_group(folder)
        for name in ("messages", "tasks", "input", "replies"):
            (root / folder / name).mkdir(parents=True)
        await watcher.watch(group.folder)
    post = MailboxWorker(
        root,
        database=store_harness.database,
        dispatcher=dispatcher,  # type: ignore[arg-type]
        watcher=watcher,
        owner_uids=lambda: frozenset({os.getuid()}),
    )
    async with round_of(post, watcher):
        yield Mail(root=root, dispatcher=dispatcher, watcher=watcher, worker=post)


async def test_a_request_that_takes_long_keeps_only_its_own_group_waiting(mail: Mail) -> None:
    mail.ask("family", "slow")
    await until(lambda: mail.dispatcher.asked == ["slow"], "the slow one is being handled")
    mail.ask("work", "quick")
    await until(lambda: mail.is_answered("work", "quick"), "the other group is answered")
    assert not mail.is_answered("family", "slow")
    mail.dispatcher.may_go_on.set()
    await until(lambda: mail.is_answered("family", "slow"), "the slow one is answered")


async def test_what_a_group_asks_during_its_round_is_handled_after_that_and_once(mail: Mail) -> None:
    mail.ask("family", "first")
    await until(lambda: mail.dispatcher.asked == ["first"], "the first is being handled")
    mail.ask("family", "second")
    mail.ask("work", "barrier")
    await until(lambda: mail.is_answered("work", "barrier"), "a hint has come since")
    await until(mail.has_been_hinted, "no other comes")
    assert mail.dispatcher.asked == ["first", "barrier"], "one at a time"
    mail.dispatcher.may_go_on.set()
    await until(lambda: mail.is_answered("family", "second"), "the second is answered")
    assert mail.dispatcher.asked == ["first", "barrier", "second"]


async def test_a_request_without_an_id_that_a_carrier_sends_again_is_done_once(
    mail: Mail, store_harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name of the agent's own choice may come again for another request; a unique one does not."""
    monkeypatch.setattr(mailbox, "SETTLE_MS", 0)
    messages = mail.root / "work" / "messages"
    for name in ("1000000000000-abcd1234.json", "1000000000000-abcd1234.json", "note.json", "note.json"):
        write_whole(messages / name, json.dumps({"type": "message", "text": f"of {name}"}))
        await until(lambda: not any(messages.iterdir()), "it is done")
    rows = await store_harness.rows("SELECT text FROM outbox")
    assert [row["text"] for row in rows] == [
        "of 1000000000000-abcd1234.json",
        "of note.json",
        "of note.json",
    ]


async def test_a_request_that_fails_again_and_again_is_set_aside_for_those_behind_it(
    mail: Mail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox_worker, "RETRY_SECONDS", 0.0)
    mail.dispatcher.failures["wrong"] = [ValueError("an odd name: \udcff")] * 10
    mail.dispatcher.failures["once"] = [ValueError("an odd moment")]
    for number, request in enumerate(("wrong", "once", "good")):
        mail.ask("work", request, number=number)
    await until(lambda: mail.is_answered("work", "good"), "those behind it are answered")
    await until(lambda: not any((mail.root / "work" / "messages").iterdir()), "the mailbox is empty")
    assert sorted(mail.dispatcher.asked) == ["good", "once", "once", *["wrong"] * mailbox_worker.MAX_TRIES]
    reply = json.loads((mail.root / "work" / "replies" / "wrong.json").read_text())
    assert (reply["ok"], reply["code"]) == (False, "failed")
    assert json.loads((mail.root / "work" / "replies" / "once.json").read_text())["ok"]
    assert [path.read_bytes() for path in (mail.root / "errors" / "work").glob("*.json")] == [
        mail.body("work", "wrong").encode()
    ]


async def test_more_failing_requests_than_a_batch_has_hold_up_none_behind_them(
    mail: Mail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox_worker, "BATCH", 2)
    monkeypatch.setattr(mailbox_worker, "RETRY_SECONDS", 1_000.0)
    for number in range(5):
        mail.dispatcher.failures[f"wrong{number}"] = [ValueError()] * 10
        mail.ask("work", f"wrong{number}", number=number)
    mail.ask("work", "good", number=9)
    await until(lambda: mail.is_answered("work", "good"), "the one behind them is answered")
    assert mail.dispatcher.asked == [*(f"wrong{number}" for number in range(5)), "good"]


async def test_an_agent_cannot_have_a_failing_request_tried_again_by_touching_its_file(
    mail: Mail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox_worker, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(mailbox, "SETTLE_MS", 0)
    mail.dispatcher.touched = mail.root / "work" / "messages"
    mail.dispatcher.failures["wrong"] = [ValueError()] * 10
    write_whole(mail.dispatcher.touched / "note.json", mail.body("work", "wrong"))
    await until(lambda: mail.is_answered("work", "wrong"), "it is answered")
    assert mail.dispatcher.asked == ["wrong"] * mailbox_worker.MAX_TRIES


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionResetError(), asyncio.CancelledError()])
async def test_a_request_that_cannot_reach_something_is_set_aside_like_any_other(
    mail: Mail, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr(mailbox_worker, "RETRY_SECONDS", 0.0)
    mail.dispatcher.failures["wrong"] = [error] * 10
    mail.ask("work", "wrong")
    await until(lambda: mail.is_answered("work", "wrong"), "it is answered")
    assert mail.dispatcher.asked == ["wrong"] * mailbox_worker.MAX_TRIES


async def test_a_request_is_tried_no_more_while_its_record_cannot_be_written(
    mail: Mail, store_harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox_worker, "RETRY_SECONDS", 0.0)
    reject, errors = Mailbox.reject, [OSError(28, "No space left on device"), PermissionError()]

    def reject_later(self: Mailbox, request: RequestFile, reason: str) -> None:
        if errors:
            raise errors.pop()
        reject(self, request, reason)

    monkeypatch.setattr(Mailbox, "reject", reject_later)
    mail.dispatcher.failures["wrong"] = [ValueError()] * 10
    mail.ask("work", "wrong")
    await until(lambda: not errors, "its record cannot be written")
    await until(lambda: not mail.is_at_work(), "the round is over")
    mail.watcher.wake(Folder("work"))
    await until(lambda: mail.is_answered("work", "wrong"), "it is set aside")
    assert mail.dispatcher.asked == ["wrong"] * mailbox_worker.MAX_TRIES
    assert len(await store_harness.rows("SELECT 1 FROM audit WHERE kind = 'mailbox.set_aside'")) == 1


async def test_a_request_that_was_set_aside_when_the_host_ended_is_neither_done_nor_told_again(
    store_harness: StoreHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox_worker, "RETRY_SECONDS", 0.0)
    root = tmp_path / "ipc"
    await store_harness.add_group("work")
    for name in ("messages", "tasks", "input", "replies"):
        (root / "work" / name).mkdir(parents=True)
    dispatcher = SlowDispatcher(dispatcher_of(store_harness), frozenset())
    dispatcher.failures["wrong"] = [ValueError()] * mailbox_worker.MAX_TRIES

    def mail_of_a_host() -> Mail:
        watcher = MailboxWatcher(root)
        return Mail(
            root=root,
            dispatcher=dispatcher,
            watcher=watcher,
            worker=MailboxWorker(
                root,
                database=store_harness.database,
                dispatcher=dispatcher,  # type: ignore[arg-type]
                watcher=watcher,
                owner_uids=lambda: frozenset({os.getuid()}),
            ),
        )

    def ended(*_: object) -> None:
        raise OSError

    mail = mail_of_a_host()
    mail.ask("work", "wrong")
    with monkeypatch.context() as ending:
        ending.setattr(Mailbox, "remove", ended)
        async with round_of(mail.worker, mail.watcher):
            await until(lambda: mail.is_answered("work", "wrong"), "it is set aside")
    mail = mail_of_a_host()
    async with round_of(mail.worker, mail.watcher):
        await until(lambda: not any((root / "work" / "messages").iterdir()), "its file is removed")
    assert json.loads((root / "work" / "replies" / "wrong.json").read_text())["code"] == "failed"
    assert await store_harness.rows("SELECT 1 FROM outbox") == []
    assert len(await store_harness.rows("SELECT 1 FROM audit WHERE kind = 'mailbox.set_aside'")) == 1
    assert len(list((root / "errors" / "work").glob("*.reason"))) == 1


async def test_a_request_waits_for_a_disk_that_has_no_room(mail: Mail) -> None:
    mail.dispatcher.failures["first"] = [StoreError(), OSError(28, "No space left on device")] * 4
    mail.ask("work", "first")
    for tried in range(1, 9):
        await until(lambda tried=tried: len(mail.dispatcher.asked) >= tried, "it is tried")
        await until(lambda: not mail.is_at_work(), "the round is over")
        mail.watcher.wake(Folder("work"))
    await until(lambda: mail.is_answered("work", "first"), "it is answered")


async def test_a_request_waits_for_a_database_that_is_damaged(
    mail: Mail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox_worker, "RETRY_SECONDS", 0.0)
    damage = sqlite3.DatabaseError("database disk image is malformed")
    tries = mailbox_worker.MAX_TRIES + 2
    mail.dispatcher.failures["first"] = [damage] * tries
    mail.ask("work", "first")
    for tried in range(1, tries + 1):
        await until(lambda tried=tried: len(mail.dispatcher.asked) >= tried, "it is tried")
        await until(lambda: not mail.is_at_work(), "the round is over")
        mail.watcher.wake(Folder("work"))
    await until(lambda: mail.is_answered("work", "first"), "it is answered")
    assert json.loads((mail.root / "work" / "replies" / "first.json").read_text())["ok"]


async def test_what_is_written_into_a_mailbox_that_nobody_watches_is_found_by_a_sweep(
    store_harness: StoreHarness, tmp_path: Path
) -> None:
    root = tmp_path / "ipc"
    await store_harness.add_group("family")
    for name in ("messages", "tasks", "input", "replies"):
        (root / "family" / name).mkdir(parents=True)
    dispatcher = SlowDispatcher(dispatcher_of(store_harness), frozenset())
    watcher = MailboxWatcher(root)
    post = MailboxWorker(
        root,
        database=store_harness.database,
        dispatcher=dispatcher,  # type: ignore[arg-type]
        watcher=watcher,
        owner_uids=lambda: frozenset({os.getuid()}),
        unwatched_sweep_seconds=0.01,
    )
    mail = Mail(root=root, dispatcher=dispatcher, watcher=watcher, worker=post)
    mail.ask("family", "before")
    async with round_of(post, watcher):
        await until(lambda: mail.is_answered("family", "before"), "what lay there at the start is answered")
        mail.ask("family", "after")
        await until(lambda: mail.is_answered("family", "after"), "what came after the first look is answered")
    assert dispatcher.asked == ["before", "after"]
