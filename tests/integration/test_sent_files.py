"""Files that agents send: copied by the host, queued, sent once, and gone from the host's own disk."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.event_bus import EventBus
from orchestrator.domain.protocols import Feature
from orchestrator.domain.values import OutboxState
from orchestrator.ipc.command_dispatcher import CommandDispatcher
from orchestrator.ipc.handlers import files as file_handlers
from orchestrator.ipc.handlers.files import OutgoingFiles
from orchestrator.ipc.mailbox_worker import MailboxWorker
from orchestrator.ipc.watcher import MailboxWatcher
from orchestrator.outbound import delivery as delivery_module
from orchestrator.scheduler.timing import schedule_reader
from orchestrator.scheduler.when import point_ms
from orchestrator.store.conversation import outbox
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from tests.doubles.channel import ScriptedChannel
from tests.support.store_harness import SEOUL, StoreHarness
from tests.support.until import until

LIMIT = 1_000


class Harness:
    """A dispatcher of a home with two groups."""

    def __init__(self, store_harness: StoreHarness, home: Path, *, limit: int = LIMIT) -> None:
        self.harness, self.home = store_harness, home
        self.bus = EventBus(store_harness.clock)
        self.files = OutgoingFiles(home, limit=limit)
        self.dispatcher = CommandDispatcher(
            store_harness.database,
            clock=store_harness.clock,
            read_time=point_ms,
            times=schedule_reader(lambda _: SEOUL),
            zone_of=lambda _: SEOUL,
            wakeups=store_harness.wakeups,
            bus=self.bus,
            copy_file=self.files.copy,
        )

    async def send(self, path: str, *, folder: str = "family", **more):
        async with self.harness.database.reading() as tx:
            group = await groups.known(tx, folder)
        body = json.dumps({"type": "send_file", "path": path, **more}).encode()
        return await self.dispatcher.handle(group, f"{path[:20]}.json", body)

    @property
    def copies(self) -> list[Path]:
        return sorted((self.home / "data" / "outgoing").glob("*"))


@pytest.fixture
async def harness(store_harness, tmp_path):
    await store_harness.add_group("main", is_main=True)
    await store_harness.add_group("family")
    for folder in ("main", "family"):
        (tmp_path / "groups" / folder / "out").mkdir(parents=True)
        (tmp_path / "groups" / folder / "out" / "plan.pdf").write_bytes(b"%PDF of " + folder.encode())
    (tmp_path / "secret").write_text("key")
    return Harness(store_harness, tmp_path)


async def test_a_file_is_queued_as_a_copy_that_its_container_cannot_change(harness):
    reply = await harness.send("out/plan.pdf", caption="the plan")
    (harness.home / "groups/family/out/plan.pdf").write_bytes(b"changed")

    assert (reply.ok, reply.text) == (True, "plan.pdf is on its way.")
    (queued,) = await harness.harness.outgoing()
    assert (queued.chat_jid, queued.text, queued.state) == ("local:family", "the plan", OutboxState.PENDING)
    assert (queued.attachment.name, queued.attachment.mime) == ("plan.pdf", "application/pdf")
    assert queued.attachment.path.read_bytes() == b"%PDF of family"
    assert queued.attachment.path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("name", "mime"),
    [
        ("photo.jpg", "image/jpeg"),
        ("photo.jpg.gz", "application/gzip"),
        ("log.txt.gz", "application/gzip"),
        ("backup.tgz", "application/gzip"),
        ("clip.mp4.xz", "application/octet-stream"),
        ("noname", "application/octet-stream"),
    ],
)
async def test_a_compressed_file_does_not_have_the_type_of_its_contents(harness, name, mime):
    (harness.home / "groups/family/out" / name).write_bytes(b"bytes")

    assert (await harness.send(f"out/{name}")).ok

    (queued,) = await harness.harness.outgoing()
    assert queued.attachment.mime == mime


@pytest.mark.parametrize(
    "path",
    [
        "../../secret",
        "/etc/passwd",
        "/workspace/group/../../secret",
        "/workspace/project/secret",
        "out/link.pdf",
        "linked/plan.pdf",
        "out/hard.pdf",
        "out/pipe",
        "out",
        "out/empty",
        "out/large",
        "out/none.pdf",
        "out/plan.pdf\0",
    ],
)
async def test_nothing_but_a_file_of_the_groups_own_is_sent(harness, path):
    place = harness.home / "groups" / "family" / "out"
    (place / "link.pdf").symlink_to(harness.home / "secret")
    (harness.home / "groups/family/linked").symlink_to(harness.home / "groups/main/out")
    os.link(harness.home / "secret", place / "hard.pdf")
    os.mkfifo(place / "pipe")
    (place / "empty").touch()
    (place / "large").write_bytes(b"x" * (LIMIT + 1))

    reply = await harness.send(path)

    assert (reply.ok, reply.code) == (False, "bad_file")
    assert await harness.harness.outgoing() == []
    assert harness.copies == []


async def test_the_same_request_again_sends_nothing_and_leaves_no_copy(harness):
    first = await harness.send("out/plan.pdf", requestId="r1")
    again = await harness.send("out/plan.pdf", requestId="r1")

    assert first == again
    assert len(await harness.harness.outgoing()) == len(harness.copies) == 1


async def test_a_group_sends_in_its_own_chat_and_main_in_any(harness):
    theirs = await harness.send("out/plan.pdf", chatJid="local:main")
    mains = await harness.send("out/plan.pdf", folder="main", chatJid="local:family")

    assert (theirs.code, mains.ok) == ("not_allowed", True)
    (queued,) = await harness.harness.outgoing()
    assert queued.chat_jid == "local:family"
    assert queued.attachment.path.read_bytes() == b"%PDF of main"


async def test_a_group_may_have_only_so_many_files_on_their_way(harness):
    for number in range(file_handlers.MAX_WAITING):
        assert (await harness.send("out/plan.pdf", requestId=f"r{number}")).ok

    reply = await harness.send("out/plan.pdf", requestId="more")

    assert (reply.ok, reply.code) == (False, "too_many")
    assert len(harness.copies) == file_handlers.MAX_WAITING
    assert (await harness.send("out/plan.pdf", folder="main")).ok


async def test_where_files_are_switched_off_none_is_sent(store_harness, harness):
    closed = Harness(store_harness, harness.home, limit=0)

    assert (await closed.send("out/plan.pdf")).code == "bad_file"


async def test_a_file_leaves_once_and_of_what_was_sent_the_newest_copies_are_kept(harness, monkeypatch):
    monkeypatch.setattr(delivery_module, "RETAINED_FILES", 2)
    for number in range(4):
        await harness.send("out/plan.pdf", caption="the *plan*", requestId=f"r{number}")
        harness.harness.clock.pass_ms(1)
    channel = ScriptedChannel()
    async with harness.harness.delivering(channel):
        await until(lambda: len(channel.shown) == 4 and len(harness.copies) == 2, "the older copies gone")

    assert {(one.text, one.file) for one in channel.shown} == {("the *plan*", b"%PDF of family")}
    assert {one.text for one in await harness.harness.messages()} == {"the *plan*\n[file plan.pdf]"}
    async with harness.harness.database.reading() as tx:
        rows = await tx.execute_fetchall("SELECT file_path FROM outbox ORDER BY id DESC LIMIT 2")
        kept = {Path(row["file_path"]) for row in rows}
        assert set(harness.copies) == kept
        assert await outbox.files_in_use(tx, since_ms=0) >= kept
        assert await outbox.files_in_use(tx, since_ms=harness.harness.clock.now_ms() + 1) == frozenset()


async def test_a_copy_that_cannot_be_read_now_is_sent_when_it_can(harness):
    await harness.send("out/plan.pdf")
    (copy,) = harness.copies
    copy.rename(harness.home / "aside")
    copy.symlink_to(copy)  # in a loop of links nothing can be found
    channel = ScriptedChannel(features=frozenset({Feature.IDEMPOTENT}))
    async with harness.harness.delivering(channel):

        async def is_put_off() -> bool:
            (waiting,) = await harness.harness.outgoing()
            return waiting.attempts == 1 and waiting.next_attempt_ms > harness.harness.clock.now_ms()

        await until(is_put_off, "it waits for another attempt")
        (harness.home / "aside").replace(copy)
        harness.harness.clock.pass_ms(delivery_module.FIRST_BACKOFF_MS)
        harness.harness.wakeups.outbox.set()
        await until(lambda: channel.shown, "it is sent")

    assert [one.file for one in channel.shown] == [b"%PDF of family"]


async def test_copies_that_no_message_has_are_swept_and_the_others_stay(harness, tmp_path, monkeypatch):
    await harness.send("out/plan.pdf")
    (kept,) = harness.copies
    (harness.home / "data" / "outgoing" / "out-lost").write_bytes(b"of a crash")
    post = MailboxWorker(
        tmp_path / "ipc",
        database=harness.harness.database,
        dispatcher=harness.dispatcher,
        watcher=MailboxWatcher(tmp_path / "ipc"),
        owner_uids=lambda: frozenset({os.getuid()}),
        outgoing_files=harness.files,
    )
    find_files_in_use = outbox.files_in_use

    async def find_and_store_another(tx: Tx, *, since_ms: int) -> frozenset[Path]:
        """Find the files in use; the file of a spoken reply, with its row, comes right after that."""
        in_use = await find_files_in_use(tx, since_ms=since_ms)
        (harness.home / "data" / "outgoing" / "out-spoken").write_bytes(b"sound")
        return in_use

    monkeypatch.setattr(outbox, "files_in_use", find_and_store_another)

    await post._sweep()

    assert harness.copies == sorted([kept, kept.with_name("out-spoken")])


async def test_a_copy_that_could_not_be_sent_is_kept_for_a_week(harness):
    await harness.send("out/plan.pdf")
    (queued,) = await harness.harness.outgoing()
    async with harness.harness.database.transaction() as tx:
        await outbox.finish(tx, queued.id, OutboxState.DEAD, now_ms=1, error="no")
        soon = await outbox.files_in_use(tx, since_ms=queued.created_ms)
        late = await outbox.files_in_use(tx, since_ms=queued.created_ms + 1)

    assert (soon, late) == (frozenset({queued.attachment.path}), frozenset())


async def test_a_file_whose_message_is_stored_while_the_host_is_stopped_stays(harness, monkeypatch):
    loop, add = asyncio.get_running_loop(), outbox.add
    request = asyncio.create_task(harness.send("out/plan.pdf"))

    async def add_while_the_host_is_stopped(*args: Any, **fields: Any) -> bool:
        loop.call_soon_threadsafe(request.cancel)
        return await add(*args, **fields)

    monkeypatch.setattr(outbox, "add", add_while_the_host_is_stopped)
    with pytest.raises(asyncio.CancelledError):
        await request

    (queued,) = await harness.harness.outgoing()
    assert queued.attachment.path.read_bytes() == b"%PDF of family"


async def test_a_copy_whose_request_breaks_off_is_not_left_behind(harness, monkeypatch):
    async def full(*_: object, **__: object) -> bool:
        raise OSError("disk full")

    monkeypatch.setattr(outbox, "add", full)
    with pytest.raises(OSError, match="disk full"):
        await harness.send("out/plan.pdf")

    assert harness.copies == []
