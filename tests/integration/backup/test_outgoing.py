"""Files on their way to a chat: backed up with their messages, and sent by the home they are put into."""

from __future__ import annotations

import errno
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.backup import make as backup
from orchestrator.backup import outgoing, restore
from orchestrator.base.clock import SystemClock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.domain.values import Attachment, ChatJid, Folder, OutboxState
from orchestrator.home.directory import Home
from orchestrator.ipc.handlers.files import OutgoingFiles
from orchestrator.store.conversation import outbox
from orchestrator.store.database import Database
from tests.doubles.channel import ScriptedChannel
from tests.support.delivering import delivering
from tests.support.store_harness import StoreHarness
from tests.support.until import until

JID = ChatJid("local:family")


class Sender:
    """A home whose agent sends files."""

    def __init__(self, store_harness: StoreHarness, root: Path) -> None:
        self.harness, self.home = store_harness, Home(root)
        self.files = OutgoingFiles(root, limit=1000)

    async def queue(self, name: str, *, state: OutboxState = OutboxState.PENDING) -> Attachment:
        place = self.home.groups / "family"
        place.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(f"the body of {name}")
        copied = self.files.copy("family", name)
        async with self.harness.database.transaction() as tx:
            await outbox.add(
                tx,
                chat_jid=JID,
                folder=Folder("family"),
                text=name,
                dedupe_key=name,
                attachment=copied,
                now_ms=self.harness.clock.now_ms(),
            )
            await tx.execute("UPDATE outbox SET state = ? WHERE dedupe_key = ?", (state, name))
        return copied

    def back_up(self) -> Path:
        target = self.home.root / "b.tar.gz"
        clock = self.harness.clock
        backup.back_up(self.home, target, with_env=False, replaces=True, clock=clock, say=lambda _: None)
        return target

    def restore_into(self, root: Path, source: Path) -> Home:
        home = Home(root)
        restore.restore(home, source, force=True, clock=self.harness.clock, say=lambda _: None)
        return home


@pytest.fixture
async def sender(store_harness: StoreHarness, tmp_path: Path) -> Sender:
    await store_harness.add_group("family")
    return Sender(store_harness, tmp_path)


def rows(home: Home) -> dict[str, tuple[str, str, str | None]]:
    """Of each message with a file: its state, where its file is, and its error."""
    with closing(sqlite3.connect(home.database)) as connection:
        found = connection.execute("SELECT text, state, file_path, error FROM outbox").fetchall()
    return {text: (state, path, error) for text, state, path, error in found}


def files(home: Home) -> dict[str, str]:
    return {path.name: path.read_text() for path in (home.data / "outgoing").glob("*")}


async def test_a_restored_home_sends_the_files_that_were_on_their_way(sender: Sender, tmp_path: Path) -> None:
    plan = await sender.queue("plan.txt")
    (sender.home.data / "outgoing" / "out-0123").write_text("of no message")
    source = sender.back_up()
    plan.path.unlink()  # the old home has sent it since
    new = sender.restore_into(tmp_path / "new", source)
    assert files(new) == {plan.path.name: "the body of plan.txt"}
    assert (new.data / "outgoing").stat().st_mode & 0o077 == 0

    assert (await sent_by(new)) == [b"the body of plan.txt"]


async def sent_by(home: Home) -> list[bytes | None]:
    """The files that a home sends as it begins."""
    database, phone, clock = await Database.open(home.database), ScriptedChannel(), SystemClock()
    try:
        wakeup, bus = Wakeups().outbox, EventBus(clock)
        async with delivering(database, phone, clock=clock, wakeup=wakeup, bus=bus):
            await until(lambda: phone.shown, "all is sent")
    finally:
        await database.close()
    return [one.file for one in phone.shown]


async def test_a_message_whose_file_is_not_in_the_backup_is_dead_and_says_why(
    sender: Sender, tmp_path: Path
) -> None:
    lost = await sender.queue("lost.txt")
    held = await sender.queue("held.txt", state=OutboxState.HELD)
    gone = await sender.queue("gone.txt", state=OutboxState.DEAD)
    lost.path.unlink()
    gone.path.unlink()
    new = sender.restore_into(tmp_path / "new", sender.back_up())
    place = tmp_path / "new" / "data" / "outgoing"
    assert rows(new) == {
        "lost.txt": ("dead", str(place / lost.path.name), outgoing.NOT_THERE),
        "held.txt": ("held", str(place / held.path.name), None),
        "gone.txt": ("dead", str(place / gone.path.name), None),
    }


async def test_a_backup_that_was_tampered_with_sends_no_file_of_the_machine(
    sender: Sender, tmp_path: Path
) -> None:
    await sender.queue("plan.txt")
    async with sender.harness.database.transaction() as tx:
        await tx.execute("UPDATE outbox SET file_path = '/etc/passwd'")
    new = sender.restore_into(tmp_path / "new", sender.back_up())
    state, path, _ = rows(new)["plan.txt"]
    assert (state, path) == ("dead", str(tmp_path / "new" / "data" / "outgoing" / "passwd"))


async def test_what_was_on_its_way_after_the_backup_is_kept_aside(sender: Sender) -> None:
    first = await sender.queue("first.txt")
    source = sender.back_up()
    await sender.queue("second.txt")
    await sender.harness.database.close()
    home = sender.restore_into(sender.home.root, source)
    assert list(files(home)) == [first.path.name]
    (aside,) = home.root.parent.glob("*before-restore*")
    assert len(list((aside / "data" / "outgoing").iterdir())) == 2


async def test_a_file_that_is_sent_while_the_backup_is_made_is_in_it(
    sender: Sender, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = await sender.queue("plan.txt")
    copy = backup._snapshot

    def send_meanwhile(source: Path, target: Path) -> int:
        version = copy(source, target)
        plan.path.unlink()
        return version

    monkeypatch.setattr(backup, "_snapshot", send_meanwhile)
    new = sender.restore_into(tmp_path / "new", sender.back_up())
    assert rows(new)["plan.txt"][0] == "pending"
    assert list(files(new).values()) == ["the body of plan.txt"]


async def test_files_are_copied_where_they_cannot_be_linked(
    sender: Sender, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await sender.queue("plan.txt")

    def another_disk(self: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", another_disk)
    new = sender.restore_into(tmp_path / "new", sender.back_up())
    assert list(files(new).values()) == ["the body of plan.txt"]


async def test_a_bare_database_sends_what_still_lies_in_the_home(sender: Sender, tmp_path: Path) -> None:
    plan, lost = await sender.queue("plan.txt"), await sender.queue("lost.txt")
    copy = tmp_path / "copy.db"
    with closing(sqlite3.connect(sender.home.database)) as live, closing(sqlite3.connect(copy)) as bare:
        live.backup(bare)
    lost.path.unlink()
    await sender.harness.database.close()
    home = sender.restore_into(sender.home.root, copy)
    assert rows(home)["plan.txt"] == ("pending", str(plan.path), None)
    assert rows(home)["lost.txt"][0] == "dead"
