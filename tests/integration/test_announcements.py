"""Changes announce themselves once they are committed; commands do it by files, which the host reads."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from orchestrator.base.announcements import (
    LOOPS_OF,
    MAX_IN_FILE,
    Announcement,
    announce_in_host,
    leave_for_host,
)
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.home.directory import Home
from orchestrator.ipc import announcement_reader, entries, watcher
from orchestrator.ipc.announcement_reader import ABANDONED_SECONDS, AnnouncementReader
from orchestrator.store.database import Database, Tx, after_commit, announce
from tests.doubles.clock import FakeClock
from tests.support.until import until

TASK = Announcement(kind="task.changed", group="family", detail="task-1a2b3c4d")
NAME = "1700000000000-0a1b2c3d.json"


# In the database


@pytest.fixture
async def database(database_path: Path) -> AsyncIterator[Database]:
    opened = await Database.open(database_path)
    yield opened
    await opened.close()


async def test_a_change_is_announced_after_its_commit_and_not_before(database: Database) -> None:
    announced: list[Announcement] = []
    database.announce = announced.append

    async def change(tx: Tx) -> None:
        announce(tx, "task.changed", group="family", detail="task-1a2b3c4d")
        assert announced == []

    await database.write(change)
    assert announced == [TASK]
    announced.clear()
    async with database.transaction() as tx:
        await change(tx)
    assert announced == [TASK]


async def test_what_is_rolled_back_is_not_announced_then_or_later(database: Database) -> None:
    followed: list[object] = []
    database.announce = followed.append

    async def fail(tx: Tx) -> None:
        announce(tx, "task.changed")
        after_commit(tx, partial(followed.append, "called"))
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - our own
        await database.write(fail)
    with pytest.raises(ValueError):  # noqa: PT011
        async with database.transaction() as tx:
            await fail(tx)
    async with database.transaction() as tx:
        await tx.execute("SELECT 1")
    assert followed == []


@pytest.mark.parametrize("is_leader", [True, False])
async def test_a_committed_change_is_announced_also_if_its_caller_is_cancelled(
    database: Database, *, is_leader: bool
) -> None:
    announced: list[Announcement] = []
    database.announce = announced.append
    has_begun, may_end = threading.Event(), threading.Event()

    async def hold(tx: Tx) -> None:
        has_begun.set()
        may_end.wait()

    async def change(tx: Tx) -> None:
        announce(tx, "task.changed", group="family", detail="task-1a2b3c4d")
        if is_leader:
            await hold(tx)

    async with database.reading():
        # Who waits for the same lock is written in one transaction, by the first of them.
        first = None if is_leader else asyncio.create_task(database.write(hold))
        await asyncio.sleep(0)
        writing = asyncio.create_task(database.write(change))
        await asyncio.sleep(0)
    await asyncio.to_thread(has_begun.wait)
    writing.cancel()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    if first is not None:
        await first
    assert announced == [TASK]


async def test_a_commit_is_announced_also_if_it_is_cancelled_meanwhile(database: Database) -> None:
    announced: list[Announcement] = []
    database.announce = announced.append

    async def change() -> None:
        async with database.transaction() as tx:
            await tx.execute("CREATE TABLE made (id)")
            announce(tx, "task.changed", group="family", detail="task-1a2b3c4d")
            # The commit is the next statement, so the cancellation arrives while it runs.
            asyncio.get_running_loop().call_soon(changing.cancel)

    changing = asyncio.create_task(change())
    with pytest.raises(asyncio.CancelledError):
        await changing
    async with database.reading() as tx:
        made = await tx.execute_fetchall("SELECT name FROM sqlite_schema WHERE name = 'made'")
    assert (len(list(made)), announced) == (1, [TASK])


async def test_an_event_wakes_the_loops_that_act_on_it() -> None:
    bus, wakeups = EventBus(FakeClock()), Wakeups()
    announce_in_host(bus, wakeups, TASK)
    (event,) = bus.ring
    assert (event.kind, event.group, event.detail) == ("task.changed", "family", "task-1a2b3c4d")
    async with asyncio.timeout(30):
        await wakeups.scheduler.wait(at_most_seconds=None)
        await wakeups.lanes.wait(at_most_seconds=None)


def test_every_loop_of_the_vocabulary_exists() -> None:
    assert {name for loops in LOOPS_OF.values() for name in loops} <= set(Wakeups.__dataclass_fields__)


# From a command to the host


class Host:
    """The part of a host that reads what commands leave, and what it announced."""

    def __init__(self, home: Home, *, sweep_seconds: float = 3_600.0) -> None:
        self.home = home
        self.announced: list[Announcement] = []
        self.reader = AnnouncementReader(
            home.announcements, announce=self.announced.append, sweep_seconds=sweep_seconds
        )

    def files(self) -> list[str]:
        return sorted(path.name for path in self.home.announcements.iterdir())


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    home.make()
    return home


@pytest.fixture
async def host(home: Home) -> AsyncIterator[Host]:
    host = Host(home)
    async with AsyncExitStack() as stack:
        await host.reader.open(stack)
        yield host


@pytest.fixture
async def running(host: Host) -> AsyncIterator[Host]:
    async with asyncio.TaskGroup() as tasks:
        loop = tasks.create_task(host.reader.run())
        yield host
        loop.cancel()


async def test_a_file_wakes_the_host_without_a_sweep(running: Host) -> None:
    await asyncio.to_thread(leave_for_host, running.home.announcements, [TASK])
    await until(lambda: running.announced == [TASK], what="it is announced")
    await until(lambda: running.files() == [], what="the file is gone")


async def test_commands_at_the_same_time_are_all_announced(running: Host) -> None:
    made = [Announcement(kind="reminder.changed", detail=str(number)) for number in range(20)]
    threads = [
        threading.Thread(target=leave_for_host, args=(running.home.announcements, [one])) for one in made
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    await until(lambda: len(running.announced) == len(made), what="all are announced")
    assert set(running.announced) == set(made)


async def test_a_lost_signal_is_made_up_by_the_sweep(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def deaf(watch: watcher._Watch) -> None:
        """Send no signal at all, as for a directory that is mounted over a network."""

    monkeypatch.setattr(watcher._Watch, "start", deaf)
    host = Host(home, sweep_seconds=0.01)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        await host.reader.open(stack)
        loop = tasks.create_task(host.reader.run())
        await asyncio.to_thread(leave_for_host, home.announcements, [TASK])
        await until(lambda: host.announced == [TASK], what="it is announced")
        loop.cancel()


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def _second_name(path: Path) -> None:
    other = path.parent.parent / "token"
    other.write_text(json.dumps([{"kind": "task.changed"}]))
    path.hardlink_to(other)


def _body(body: object) -> Callable[[Path], None]:
    return lambda path: path.write_text(body if isinstance(body, str) else json.dumps(body)) and None


HOSTILE: dict[str, Callable[[Path], None]] = {
    "empty": _body(""),
    "no JSON": _body("[{"),
    "no list": _body({"kind": "task.changed"}),
    "deep": _body("[" * 100_000),
    "no kind": _body([{"group": "family"}]),
    "unknown kind": _body([{"kind": "host.stopping"}]),
    "a kind of words": _body([{"kind": "You are told so."}]),
    "no objects": _body([None, 1, "task.changed", [], {}]),
    "a path as a group": _body([{"kind": "task.changed", "group": "../main"}]),
    "a text as a detail": _body([{"kind": "task.changed", "detail": "do what I say"}]),
    "a line after the detail": _body([{"kind": "task.changed", "detail": "7\n"}]),
    "a number as a detail": _body([{"kind": "task.changed", "detail": 7}]),
    "too many": _body([{"kind": "task.changed", "detail": str(one)} for one in range(MAX_IN_FILE + 1)]),
    "too large": _body(" " * 1_048_577),
    "a FIFO": _fifo,
    "a link": _link,
    "a second name": _second_name,
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE.keys())
async def test_a_broken_or_hostile_file_does_nothing_and_is_gone(
    host: Host, make: Callable[[Path], None]
) -> None:
    make(host.home.announcements / NAME)
    with capture_logs() as logged:
        await host.reader.look()
        await host.reader.look()
    assert (host.announced, host.files()) == ([], [])
    (line,) = logged
    assert (line["event"], line["file"], line["count"]) == ("announcements.refused", NAME, 1)
    # It holds up no other.
    leave_for_host(host.home.announcements, [TASK])
    await host.reader.look()
    assert host.announced == [TASK]


async def test_the_announcements_of_a_newer_version_count_as_far_as_they_are_known(host: Host) -> None:
    known = {"kind": "task.changed", "group": "family", "detail": "task-1a2b3c4d"}
    newer = [{"kind": "weather.changed"}, {**known, "chat": "local:x"}, {**known, "detail": "a new form"}]
    (host.home.announcements / NAME).write_text(json.dumps(newer))
    with capture_logs() as logged:
        await host.reader.look()
    assert (host.announced, host.files()) == ([TASK], [])
    assert [(line["event"], line["reason"]) for line in logged] == [
        ("announcements.refused", "this kind of event is unknown")
    ]


async def test_a_file_that_cannot_be_read_holds_up_no_other(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that were read before it are removed already: their changes would be lost."""
    changes = [Announcement(kind="reminder.changed", detail=str(number)) for number in range(3)]
    for change in changes:
        leave_for_host(host.home.announcements, [change])
    bad = next(name for name in host.files() if '"1"' in (host.home.announcements / name).read_text())
    read = entries.read

    def fail(directory: int, name: str, owners: frozenset[int]) -> object:
        if name == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(directory, name, owners)

    monkeypatch.setattr(entries, "read", fail)
    with capture_logs() as logged:
        await host.reader.look()
        await host.reader.look()
    assert (set(host.announced), host.files()) == ({changes[0], changes[2]}, [bad])
    assert [line["event"] for line in logged] == ["announcements.unreadable"]
    monkeypatch.undo()
    await host.reader.look()
    assert (set(host.announced), host.files()) == (set(changes), [])


@pytest.mark.parametrize("is_directory", [True, False], ids=["directories", "unfinished files"])
async def test_what_cannot_be_read_or_removed_takes_the_place_of_no_file(
    host: Host, monkeypatch: pytest.MonkeyPatch, *, is_directory: bool
) -> None:
    monkeypatch.setattr(announcement_reader, "MAX_FILES", 2)
    for number in range(50):
        path = host.home.announcements / f"{'' if is_directory else '.'}{number}{NAME}"
        path.mkdir() if is_directory else path.touch()
    with capture_logs() as logged:
        await host.reader.look()
        leave_for_host(host.home.announcements, [TASK])
        for _ in range(25):
            await host.reader.look()
    assert (host.announced, len(host.files())) == ([TASK], 50)
    assert sum(line["count"] for line in logged) == (50 if is_directory else 0)


async def test_more_files_than_one_look_reads_are_read_in_order(
    running: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcement_reader, "MAX_FILES", 3)
    made = [Announcement(kind="reminder.changed", detail=str(number)) for number in range(50)]
    aside = running.home.data / "aside"
    aside.mkdir()
    for number, one in enumerate(made):
        leave_for_host(aside, [one])
        (written,) = aside.iterdir()
        written.rename(running.home.announcements / f"{1_700_000_000_000 + number}-0a1b2c3d.json")
    await until(lambda: len(running.announced) == len(made), what="all are announced")
    assert sorted(running.announced, key=lambda one: int(one.detail or 0)) == made
    assert running.files() == []


async def test_an_unfinished_file_of_a_killed_command_is_removed_after_a_minute(host: Host) -> None:
    partial_file = host.home.announcements / f".{NAME}.0a1b2c3d.partial"
    partial_file.touch()
    await host.reader.look()
    assert host.files() == [partial_file.name]
    minute_ago = time.time() - ABANDONED_SECONDS - 1
    os.utime(partial_file, (minute_ago, minute_ago))
    await host.reader.look()
    assert host.files() == []


async def test_a_removed_directory_is_made_anew(home: Home) -> None:
    host = Host(home, sweep_seconds=0.01)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        await host.reader.open(stack)
        loop = tasks.create_task(host.reader.run())
        home.announcements.rmdir()
        await until(home.announcements.is_dir, what="it is there again")
        leave_for_host(home.announcements, [TASK])
        await until(lambda: host.announced == [TASK], what="it is announced")
        assert home.announcements.stat().st_mode & 0o777 == 0o700
        loop.cancel()


async def test_a_name_that_no_command_chooses_is_refused(host: Host) -> None:
    (host.home.announcements / "later.json").write_text(json.dumps([{"kind": "task.changed"}]))
    with capture_logs() as logged:
        await host.reader.look()
    assert (host.announced, host.files(), len(logged)) == ([], [], 1)


async def test_an_unfinished_file_is_left_alone_until_it_has_its_name(host: Host) -> None:
    partial_file = host.home.announcements / f".{NAME}.0a1b2c3d.partial"
    partial_file.write_text("[{")
    await host.reader.look()
    assert host.files() == [partial_file.name]


async def test_the_same_event_of_several_commands_is_published_once(host: Host) -> None:
    for _ in range(3):
        leave_for_host(host.home.announcements, [TASK])
    await host.reader.look()
    assert host.announced == [TASK]


async def test_a_directory_that_is_a_link_is_not_read(host: Host, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / NAME).write_text(json.dumps([{"kind": "task.changed"}]))
    host.home.announcements.rmdir()
    host.home.announcements.symlink_to(elsewhere)
    with capture_logs() as logged:
        await host.reader.look()
        await host.reader.look()
    assert (host.announced, len(logged)) == ([], 1)
    assert (elsewhere / NAME).exists()
    host.home.announcements.unlink()


async def test_the_data_of_a_home_may_lie_on_another_disk(tmp_path: Path) -> None:
    home, disk = Home(tmp_path / "home"), tmp_path / "disk"
    home.root.mkdir()
    disk.mkdir()
    home.data.symlink_to(disk)
    host = Host(home)
    async with AsyncExitStack() as stack:
        await host.reader.open(stack)
        leave_for_host(home.announcements, [TASK])
        await host.reader.look()
    assert host.announced == [TASK]


async def test_a_command_whose_clock_is_centuries_ahead_is_noticed(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 20_000_000_000 * 1_000_000_000)
    leave_for_host(host.home.announcements, [TASK])
    await host.reader.look()
    assert host.announced == [TASK]


# Without a host


@pytest.mark.parametrize("kind", ["a file", "a link", "a dangling link"])
async def test_what_stands_in_the_place_of_the_directory_keeps_no_host_from_starting(
    home: Home, tmp_path: Path, kind: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    if kind == "a file":
        home.announcements.touch()
    else:
        home.announcements.symlink_to(elsewhere)
    if kind == "a link":
        elsewhere.mkdir()
        (elsewhere / NAME).touch()
    host = Host(home)
    async with AsyncExitStack() as stack:
        await host.reader.open(stack)
        leave_for_host(home.announcements, [TASK])
        await host.reader.look()
    assert host.announced == [TASK]
    assert not home.announcements.exists()
    assert (elsewhere / NAME).exists() is (kind == "a link")


async def test_a_directory_that_cannot_be_made_keeps_no_host_from_starting(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    host = Host(home)
    async with AsyncExitStack() as stack:
        with monkeypatch.context() as patch, capture_logs() as logged:
            patch.setattr(Path, "mkdir", refuse)
            await host.reader.open(stack)
            await host.reader.look()
        assert [line["event"] for line in logged] == ["announcements.unreadable"]
        await host.reader.look()
        leave_for_host(home.announcements, [TASK])
        await host.reader.look()
    assert host.announced == [TASK]


async def test_the_directory_goes_also_while_commands_write_into_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    rmdir = os.rmdir

    def write_first(path: str, *given: object, **options: object) -> None:
        """Leave a file after the directory was emptied, and before it is removed."""
        monkeypatch.undo()
        leave_for_host(home.announcements, [TASK])
        rmdir(path, *given, **options)  # type: ignore[arg-type]

    host = Host(home)
    async with AsyncExitStack() as stack:
        await host.reader.open(stack)
        monkeypatch.setattr(os, "rmdir", write_first)
    assert not home.announcements.exists()


async def test_the_directory_is_the_hosts_own_and_goes_with_it(home: Home) -> None:
    host = Host(home)
    async with AsyncExitStack() as stack:
        await host.reader.open(stack)
        assert home.announcements.stat().st_mode & 0o777 == 0o700
        leave_for_host(home.announcements, [TASK])
        assert len(host.files()) == 1
    assert not home.announcements.exists()


async def test_a_start_forgets_what_an_earlier_host_did_not_read(home: Home) -> None:
    home.announcements.mkdir()
    leave_for_host(home.announcements, [TASK])
    (home.announcements / f".{NAME}.0a1b2c3d.partial").touch()
    host = Host(home)
    async with AsyncExitStack() as stack:
        await host.reader.open(stack)
        assert host.files() == []


def test_nothing_is_left_where_no_host_runs(home: Home) -> None:
    leave_for_host(home.announcements, [TASK])
    assert not home.announcements.exists()


def test_a_directory_that_cannot_be_written_is_no_error_of_the_command(home: Home) -> None:
    home.announcements.touch()
    leave_for_host(home.announcements, [TASK])
    assert home.announcements.read_bytes() == b""


def test_a_command_that_announced_nothing_leaves_nothing(home: Home) -> None:
    home.announcements.mkdir()
    leave_for_host(home.announcements, [])
    assert list(home.announcements.iterdir()) == []


async def test_more_changes_than_a_file_may_have_are_left_in_several(host: Host) -> None:
    many = [Announcement(kind="task.changed", detail=str(number)) for number in range(MAX_IN_FILE + 50)]
    leave_for_host(host.home.announcements, many)
    assert len(host.files()) == 2
    await host.reader.look()
    assert set(host.announced) == set(many)
