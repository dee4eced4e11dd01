"""The runner's look at a directory, on a real file system with real signals."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from watchdog.observers import Observer

from agent_runner import watch as watch_module
from agent_runner.watch import DirectoryWatch
from agent_runner.wire.files import write_whole
from tests.support.until import DEADLINE_SECONDS

NEVER_SECONDS = 3600.0


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "input"
    directory.mkdir()
    return directory


async def next_look(checks: AsyncIterator[None]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        await anext(checks)


@pytest.mark.parametrize("is_link", [False, True], ids=["a directory", "a link to one"])
async def test_a_new_file_is_signalled_without_a_sweep(
    tmp_path: Path, directory: Path, is_link: bool
) -> None:
    watched = directory
    if is_link:
        watched = tmp_path / "link"
        watched.symlink_to(directory)
    watch = DirectoryWatch(watched)
    watch.start()
    try:
        checks = watch.checks(NEVER_SECONDS)
        await next_look(checks)
        write_whole(directory / "turn.json", "{}")
        await next_look(checks)
    finally:
        watch.stop()


async def test_a_hint_of_a_rename_comes_when_the_file_has_its_name(directory: Path) -> None:
    """No first half of a rename is a hint, so all of them come of the second."""
    watch = DirectoryWatch(directory)
    watch.start()
    try:
        checks = watch.checks(NEVER_SECONDS)
        await next_look(checks)
        for number in range(50):
            path = directory / f"{number}.json"
            await asyncio.to_thread(write_whole, path, "{}")
            while True:
                await next_look(checks)
                if path.exists():
                    break
    finally:
        watch.stop()


async def test_nobody_waits_for_a_watch_to_end(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that was just read would wait, too."""
    may_end, has_ended = threading.Event(), threading.Event()

    class Asleep(Observer):  # type: ignore[misc, valid-type]
        def stop(self) -> None:
            may_end.wait(DEADLINE_SECONDS)
            super().stop()
            has_ended.set()

    monkeypatch.setattr(watch_module, "new_observer", Asleep)
    watch = DirectoryWatch(directory)
    watch.start()
    watch.stop()
    assert not has_ended.is_set()
    may_end.set()
    assert await asyncio.to_thread(has_ended.wait, DEADLINE_SECONDS)


async def test_a_missing_directory_leaves_the_sweep(tmp_path: Path) -> None:
    watch = DirectoryWatch(tmp_path / "missing")
    watch.start()
    try:
        checks = watch.checks(0.01)
        await next_look(checks)
        await next_look(checks)
    finally:
        watch.stop()


async def test_where_nothing_more_can_be_watched_the_sweep_is_left(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the user's other programs have taken all that Linux gives them of inotify."""

    def none_left() -> None:
        raise OSError(24, "inotify instance limit reached")

    monkeypatch.setattr(watch_module, "new_observer", none_left)
    watch = DirectoryWatch(directory)
    watch.start()
    try:
        checks = watch.checks(0.01)
        await next_look(checks)
        await next_look(checks)
    finally:
        watch.stop()
