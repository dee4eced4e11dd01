"""Leftovers are seen, and what ends by itself or was there before is not blamed on a test."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support import leftovers
from tests.support.leftovers import held, left_behind
from tests.support.skips import THIS_MACHINE

pytestmark = pytest.mark.skipif(not leftovers.SELF.exists(), reason=f"{THIS_MACHINE}no /proc")


def test_a_process_a_thread_and_a_file_that_stay_are_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(leftovers, "DEADLINE_SECONDS", 0.01)
    known, may_end = held(), threading.Event()
    thread = threading.Thread(target=may_end.wait, name="slow")
    thread.start()
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process,
        (tmp_path / "x").open("wb"),
    ):
        left = left_behind(known)
        may_end.set()
    thread.join()

    assert f"process {process.pid}" in left
    assert any(one.startswith("thread slow ") for one in left)
    assert any(one.endswith(str(tmp_path / "x")) for one in left)


def test_what_ends_by_itself_is_waited_for() -> None:
    known = held()
    thread = threading.Thread(target=sum, args=([],))
    thread.start()

    assert left_behind(known) == set()
