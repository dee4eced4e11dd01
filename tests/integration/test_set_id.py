"""What an agent writes lets nobody on the host act as its owner."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from orchestrator.containers import set_id
from orchestrator.domain.values import LiveRun, RunId, RunState
from orchestrator.groups.reconciler import GroupReconciler
from tests.support.until import until

SETUID, SETGID = stat.S_ISUID | 0o755, stat.S_ISGID | 0o755
NOBODY = 65534
AS_ANOTHER = f"""
import os, sys
from pathlib import Path
from orchestrator.containers import set_id
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
print(set_id.clear(Path(sys.argv[1])))
"""


def planted(path: Path, mode: int = SETUID) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_bits_are_cleared_of_files_and_of_nothing_else(tmp_path):
    top, outside = tmp_path / "family", planted(tmp_path / "outside" / "program")
    bad = [planted(top / "a"), planted(top / "deep" / "er" / "b", SETGID), planted(top / "c", 0o6711)]
    plain = planted(top / "plain", 0o755)
    shared = top / "shared"
    shared.mkdir()
    shared.chmod(0o2775)
    os.mkfifo(top / "pipe")
    (top / "link").symlink_to(outside)
    (top / "way").symlink_to(outside.parent)

    assert set_id.clear(top) == 3

    assert [mode(path) for path in bad] == [0o755, 0o755, 0o711]
    assert (mode(plain), mode(shared), mode(outside)) == (0o755, 0o2775, SETUID)
    assert set_id.clear(top) == 0


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that any user reaches; pytest closes its own, and closes them again at each start."""
    with TemporaryDirectory(prefix="andy-set-id-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_what_its_owner_may_not_read_is_no_place_to_hide(open_path):
    """As an ordinary user, where this is root: to root nothing is closed."""
    top = open_path / "family"
    hidden, unread = planted(top / "closed" / "a"), planted(top / "b", 0o4111)
    hidden.parent.chmod(0o311)
    if os.geteuid() == 0:
        for path in (top, top / "closed", hidden, unread):
            before = mode(path)
            os.chown(path, NOBODY, NOBODY)  # which takes the bits
            path.chmod(before)

    told = subprocess.run(
        [sys.executable, "-c", AS_ANOTHER, str(top)], capture_output=True, text=True, check=False
    )

    assert told.stdout.splitlines()[-1:] == ["2"], told.stderr
    assert (mode(hidden), mode(unread)) == (0o755, 0o111)


def test_what_lies_too_deep_is_closed_to_others(tmp_path):
    deep = tmp_path.joinpath(*["d"] * (set_id.MAX_DEPTH + 3))
    program = planted(deep / "program")

    set_id.clear(tmp_path)

    assert mode(tmp_path.joinpath(*["d"] * set_id.MAX_DEPTH)) == 0o700
    assert mode(program) == SETUID


async def test_all_groups_are_looked_through_at_the_start_and_live_ones_from_then_on(store_harness, tmp_path):
    await store_harness.add_group("family")
    await store_harness.add_group("work")
    live = [LiveRun(id=RunId("r"), folder="family", is_isolated=False, state=RunState.IDLE, started_ms=0)]
    files = {folder: planted(tmp_path / "groups" / folder / "a") for folder in ("family", "work")}
    letter = planted(tmp_path / "data" / "ipc" / "family" / "tasks" / "b")
    looks = []

    def clear(group):
        set_id.clear_group(group, home=tmp_path)
        looks.append(group.folder)

    upkeep = GroupReconciler(
        store_harness.database,
        ensure_folder=lambda _: None,
        clear=clear,
        live=lambda: live,
        retire=lambda _: asyncio.sleep(0),
        bus=store_harness.bus,
        clear_seconds=0.001,
    )
    keeping = asyncio.create_task(upkeep.clear_files(), name="set-id")
    await until(lambda: {*looks} == {"family", "work"}, "all are looked through")
    assert [mode(path) for path in (*files.values(), letter)] == [0o755] * 3

    files["family"].chmod(SETUID)
    await until(lambda: mode(files["family"]) == 0o755, "what a live one writes since is cleared")
    live.clear()
    files["family"].chmod(SETUID)
    await until(lambda: mode(files["family"]) == 0o755, "and once more after its end")
    assert looks.count("work") == 1
    keeping.cancel()
    await asyncio.wait([keeping])
