"""Test that leftovers are found, and that things which end by themselves or were there before are not."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


def test_a_database_that_is_open_is_named_and_one_that_waits_for_a_statement_is_not(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(leftovers, "DEADLINE_SECONDS", 0.01)
    known = held()
    connection = sqlite3.connect(tmp_path / "a.db")
    # A fixture of another file, which this process has for longer than a test, may have one open.
    monkeypatch.setattr(leftovers.gc, "get_objects", lambda: [connection])
    statement = connection.execute("SELECT 1 UNION SELECT 2")  # keeps the files open as long as it lives
    assert any(one.endswith("a.db") for one in left_behind(known))
    connection.close()
    assert any(one.endswith("a.db") for one in held())
    assert left_behind(known) == set()
    assert statement


def an_item(*scopes: str) -> Any:
    """Return a test of one file that uses fixtures of these scopes."""
    found = {scope: [SimpleNamespace(scope=scope)] for scope in scopes}
    return SimpleNamespace(
        path=Path("test_it.py"),
        get_closest_marker=lambda _: None,
        _fixtureinfo=SimpleNamespace(name2fixturedefs=found),
    )


def test_a_fixture_of_the_file_is_not_blamed_on_a_test_between_that_does_not_use_it(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(leftovers, "DEADLINE_SECONDS", 0.01)
    plugin, sharing, between, last = leftovers.Leftovers(), an_item("module"), an_item(), an_item("function")
    list(plugin.pytest_runtest_setup())
    with (tmp_path / "x").open("wb"):
        list(plugin.pytest_runtest_teardown(sharing, between))
        list(plugin.pytest_runtest_setup())
        list(plugin.pytest_runtest_teardown(between, last))
        list(plugin.pytest_runtest_setup())
        with pytest.raises(AssertionError, match=str(tmp_path / "x")):
            list(plugin.pytest_runtest_teardown(last, None))
