"""A lock between processes is held by one, and dies with its holder."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from orchestrator.base.file_lock import FileLock, LockTaken

HOLD = """
import sys
from pathlib import Path
from orchestrator.base.file_lock import FileLock
lock = FileLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_is_taken_once_and_again_when_it_was_let_go(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with FileLock(path, mode=0o600), pytest.raises(LockTaken):
        FileLock(path)
    FileLock(path).release()
    assert path.stat().st_mode & 0o777 == 0o600


def test_who_waits_gets_the_lock_when_its_holder_lets_go(tmp_path: Path) -> None:
    held = FileLock(tmp_path / "lock")
    waiting = threading.Event()
    got = threading.Event()

    def wait() -> None:
        waiting.set()
        with FileLock(tmp_path / "lock", seconds=60, poll_seconds=0.001):
            got.set()

    thread = threading.Thread(target=wait, name="waits")
    thread.start()
    assert waiting.wait(60)
    assert not got.is_set()
    held.release()
    thread.join(60)
    assert got.is_set()


def test_a_lock_dies_with_the_process_that_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LockTaken):
            FileLock(path)
        holder.kill()
        holder.wait()
        FileLock(path).release()


def test_a_lock_in_no_directory_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FileLock(tmp_path / "nowhere" / "lock")
