"""Hints of a real observer on real directories."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from watchdog.observers.inotify import InotifyEmitter
from watchdog.observers.inotify_c import InotifyConstants

from agent_runner.wire import files
from orchestrator.domain.values import Folder
from orchestrator.ipc import watcher as watching
from orchestrator.ipc.watcher import MailboxWatcher
from tests.support.until import DEADLINE_SECONDS

FAMILY, WORK = Folder("family"), Folder("work")
NEVER = 3600.0
DEADLINE = DEADLINE_SECONDS


def _made(root: Path, folder: Folder) -> Path:
    for name in ("messages", "tasks", "input", "replies"):
        (root / folder / name).mkdir(parents=True)
    return root / folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in (FAMILY, WORK):
        _made(tmp_path, folder)
    return tmp_path


@pytest.fixture
async def watcher(root: Path) -> AsyncIterator[MailboxWatcher]:
    """Never sweeps but the first time: what comes, comes of a hint."""
    async with MailboxWatcher(root, sweep_seconds=NEVER) as watcher:
        yield watcher


async def _watched(watcher: MailboxWatcher, *folders: Folder) -> None:
    for folder in folders:
        await watcher.watch(folder)
    await _until(watcher, lambda hinted: set(folders) <= hinted)


async def _until(
    watcher: MailboxWatcher, is_met: Callable[[set[Folder]], bool], seconds: float = DEADLINE
) -> set[Folder]:
    seen: set[Folder] = set()
    async with asyncio.timeout(seconds):
        while not is_met(seen):
            seen |= await watcher.wait()
    return seen


async def _quiet(watcher: MailboxWatcher) -> None:
    """Take what hints are on their way, until none has come for a while."""
    with suppress(TimeoutError):
        while True:
            async with asyncio.timeout(0.7):
                await watcher.wait()


@pytest.mark.parametrize("mailbox", ["messages", "tasks"])
async def test_a_request_hints_its_group_and_no_other(
    watcher: MailboxWatcher, root: Path, mailbox: str
) -> None:
    await _watched(watcher, FAMILY, WORK)
    await _quiet(watcher)
    await asyncio.to_thread(files.write_whole, root / WORK / mailbox / files.unique_name(), "{}")
    assert await _until(watcher, bool) == {WORK}


async def test_a_file_written_in_place_or_moved_in_hints_too(watcher: MailboxWatcher, root: Path) -> None:
    await _watched(watcher, FAMILY)
    await _quiet(watcher)
    (root / FAMILY / "tasks" / "by-hand.json").write_text("{}")
    assert await _until(watcher, bool) == {FAMILY}
    await _quiet(watcher)
    outside = root / "elsewhere.json"
    outside.write_text("{}")
    outside.rename(root / FAMILY / "tasks" / "moved.json")
    assert await _until(watcher, bool) == {FAMILY}


async def test_reading_and_our_own_directories_hint_nothing(watcher: MailboxWatcher, root: Path) -> None:
    letter = root / FAMILY / "tasks" / files.unique_name()
    letter.write_text("{}")
    await _watched(watcher, FAMILY)
    await _quiet(watcher)
    assert [path.read_text() for path in letter.parent.iterdir()] == ["{}"]
    letter.unlink()
    files.write_whole(root / FAMILY / "input" / files.unique_name(), "{}")
    files.write_whole(root / FAMILY / "replies" / "r1.json", "{}")
    with pytest.raises(TimeoutError):
        await _until(watcher, bool, seconds=0.7)


async def test_a_watched_group_is_looked_at_once_for_what_lay_there_before(watcher: MailboxWatcher) -> None:
    await watcher.watch(FAMILY)
    assert await _until(watcher, bool) == {FAMILY}


async def test_hints_of_one_group_are_one(watcher: MailboxWatcher) -> None:
    await _watched(watcher, FAMILY)
    await _quiet(watcher)
    for _ in range(1000):
        watcher.wake(FAMILY)
    assert await watcher.wait() == {FAMILY}
    with pytest.raises(TimeoutError):
        await _until(watcher, bool, seconds=0.2)


async def test_the_first_half_of_a_rename_holds_nothing_back(watcher: MailboxWatcher, root: Path) -> None:
    """watchdog waits half a second for the second half, and tells nothing else meanwhile."""
    await _watched(watcher, FAMILY)
    await _quiet(watcher)
    (emitter, *_) = watcher._watches[FAMILY]._observer.emitters  # type: ignore[union-attr]
    assert isinstance(emitter, InotifyEmitter)
    mask = emitter.get_event_mask_from_filter()
    assert not mask & InotifyConstants.IN_MOVED_FROM
    assert mask & InotifyConstants.IN_MOVED_TO
    assert mask & InotifyConstants.IN_CLOSE_WRITE


async def test_a_file_that_is_only_begun_hints_nothing(watcher: MailboxWatcher, root: Path) -> None:
    await _watched(watcher, FAMILY)
    await _quiet(watcher)
    os.close(os.open(root / FAMILY / "tasks" / "x.partial", os.O_CREAT | os.O_RDONLY))
    (root / FAMILY / "tasks" / "x.partial").rename(root / "elsewhere")
    with pytest.raises(TimeoutError):
        await _until(watcher, bool, seconds=0.7)


async def test_a_group_no_longer_watched_is_looked_at_one_last_time(
    watcher: MailboxWatcher, root: Path
) -> None:
    await _watched(watcher, FAMILY)
    await _quiet(watcher)
    await watcher.unwatch(FAMILY)
    await watcher.unwatch(WORK)
    assert await _until(watcher, bool) == {FAMILY}
    files.write_whole(root / FAMILY / "tasks" / files.unique_name(), "{}")
    with pytest.raises(TimeoutError):
        await _until(watcher, bool, seconds=0.7)


async def test_the_sweep_finds_what_no_event_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching.WatchHandler, "dispatch", lambda *_: None)
    async with MailboxWatcher(root, sweep_seconds=0.05) as watcher:
        await _watched(watcher, FAMILY, WORK)
        for _ in range(3):
            assert await _until(watcher, lambda seen: len(seen) == 2) == {FAMILY, WORK}


async def test_a_group_that_hints_without_end_does_not_put_off_the_sweep(root: Path) -> None:
    async with MailboxWatcher(root, sweep_seconds=0.05) as watcher:
        await _watched(watcher, FAMILY, WORK)
        async with asyncio.timeout(DEADLINE):
            for _ in range(3):
                watcher.wake(FAMILY)
                while WORK not in await watcher.wait():
                    watcher.wake(FAMILY)
                    await asyncio.sleep(0)


async def test_a_flooded_mailbox_takes_no_hint_from_another_group(
    watcher: MailboxWatcher, root: Path
) -> None:
    await _watched(watcher, FAMILY, WORK)
    stop = threading.Event()
    flood = threading.Thread(target=_flood, args=(root / FAMILY / "messages", stop), name="flood")
    flood.start()
    try:
        for _ in range(20):
            name = root / WORK / "tasks" / files.unique_name()
            await asyncio.to_thread(files.write_whole, name, "{}")
            await _until(watcher, lambda hinted: WORK in hinted)
    finally:
        stop.set()
        await asyncio.to_thread(flood.join)


def _flood(directory: Path, stop: threading.Event) -> None:
    one, other = directory / "one.json", directory / "other.json"
    one.write_text("{}")
    while not stop.is_set():
        one.rename(other)
        other.rename(one)


async def test_a_directory_that_was_replaced_is_watched_again(watcher: MailboxWatcher, root: Path) -> None:
    await _watched(watcher, FAMILY)
    tasks = root / FAMILY / "tasks"
    tasks.rename(root / "old")
    tasks.mkdir()
    await _watched(watcher, FAMILY)
    await _quiet(watcher)
    files.write_whole(tasks / files.unique_name(), "{}")
    assert await _until(watcher, bool) == {FAMILY}


async def test_a_link_in_place_of_a_mailbox_is_not_followed(watcher: MailboxWatcher, root: Path) -> None:
    tasks = root / FAMILY / "tasks"
    tasks.rmdir()
    tasks.symlink_to(root / WORK / "tasks")
    await watcher.watch(FAMILY)
    trouble = watcher._watches[FAMILY].trouble
    assert trouble is not None
    assert "tasks is no directory" in trouble


async def test_without_watches_left_a_group_is_swept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted() -> None:
        raise OSError(errno.EMFILE, "inotify instance limit reached")

    monkeypatch.setattr(watching, "new_observer", exhausted)
    monkeypatch.setattr(watching, "BLIND_SWEEP_SECONDS", 0.05)
    async with MailboxWatcher(root, sweep_seconds=NEVER) as watcher:
        await _watched(watcher, FAMILY)
        trouble = watcher._watches[FAMILY].trouble
        assert trouble is not None
        assert "sysctl fs.inotify" in trouble
        for _ in range(3):
            assert await _until(watcher, bool) == {FAMILY}


async def test_a_watcher_without_groups_waits_for_a_hint_alone(watcher: MailboxWatcher) -> None:
    waiting = asyncio.create_task(watcher.wait(), name="waiting")
    await asyncio.sleep(0)
    watcher.wake(FAMILY)
    async with asyncio.timeout(DEADLINE):
        assert await waiting == {FAMILY}


async def test_stopping_ends_every_thread(root: Path) -> None:
    before = set(threading.enumerate())
    async with MailboxWatcher(root, sweep_seconds=NEVER) as watcher:
        await _watched(watcher, FAMILY, WORK)
        await watcher.watch(FAMILY)
        assert {type(thread).__name__ for thread in set(threading.enumerate()) - before} > {"ArrivalObserver"}
    left = {type(thread).__name__ for thread in set(threading.enumerate()) - before}
    assert left <= {"Thread"}, "only the loop's own worker threads may stay"


async def test_a_cancelled_watch_leaves_no_thread_behind(root: Path) -> None:
    before = set(threading.enumerate())
    async with MailboxWatcher(root, sweep_seconds=NEVER) as watcher:
        watching_task = asyncio.create_task(watcher.watch(FAMILY), name="watch")
        await asyncio.sleep(0)
        watching_task.cancel()
        await asyncio.wait({watching_task})
    assert {type(thread).__name__ for thread in set(threading.enumerate()) - before} <= {"Thread"}


async def test_a_watch_that_was_stopped_before_its_start_stays_stopped(root: Path) -> None:
    """Cancelling `watch` leaves its start to a worker thread, which may come to it late."""
    before = set(threading.enumerate())
    watch = watching._Watch([root / FAMILY / "tasks"], lambda: None)
    watch.stop()
    watch.start()
    assert set(threading.enumerate()) == before
