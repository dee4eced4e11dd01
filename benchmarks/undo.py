"""An undo of a turn with files and rows, and the disk that a week of ordinary turns takes."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from pathlib import Path

from benchmarks.figures import Check, Figure, Series, median_of
from benchmarks.places import Effort, progress
from orchestrator.domain.values import Folder
from orchestrator.store.database import Database
from tests.doubles.clock import FakeClock
from tests.support.store_harness import StoreHarness
from tests.support.undo_harness import UndoHarness, use

UNDOS = 40
FILES, FILE_BYTES = 400, 20_000
CHANGED = 60
LIMIT_MS = 500.0
DAYS, TURNS_A_DAY = 5, 20
DISK_PERCENT = 5.0


async def measure(effort: Effort) -> list[Figure]:
    """A group of some hundred files; each turn changes dozens of them and of rows."""
    with tempfile.TemporaryDirectory(prefix="andy-bench-") as folder:
        root = Path(folder)
        (root / "store").mkdir()
        database = await Database.open(root / "store" / "messages.db")
        try:
            undo = UndoHarness(StoreHarness(database, FakeClock()), root)
            await undo.add_groups()
            _fill(undo.folder())
            times = await _undo_times(undo, effort.times(UNDOS, at_least=5))
            days = await _days(undo)
        finally:
            await database.close()
    measured = Series(name=f"undo of {CHANGED} files and 20 rows", unit="ms", values=tuple(times))
    disk = Series(name="a day of ordinary use, of the group's size", unit="%", values=tuple(days))
    check = Check(what="the most of a day", value=max(days), limit=DISK_PERCENT, unit="%")
    return [
        Figure(name="Undo", measured=measured, checks=(median_of(measured, LIMIT_MS),)),
        Figure(name="Undo, disk of snapshots", measured=disk, checks=(check,)),
    ]


def _fill(folder: Path) -> None:
    numbers = random.Random(1)
    for number in range(FILES):
        path = folder / f"notes{number // 40}" / f"{number}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(numbers.randbytes(FILE_BYTES))


def _change(folder: Path, count: int, size: int) -> None:
    for path in random.Random(time.monotonic_ns()).sample(sorted(folder.rglob("*.md")), count):
        path.write_bytes(os.urandom(size))


async def _undo_times(undo: UndoHarness, times: int) -> list[float]:
    found = []
    rows = [use("create_task", title=f"task {number}") for number in range(20)]
    for _ in range(times):
        turn = await undo.turn(*rows, writes=lambda folder: _change(folder, CHANGED, FILE_BYTES))
        await undo.feature.catch_up(Folder("family"))
        began = time.perf_counter()
        await undo.undo(turn.id)
        await undo.feature.catch_up(Folder("family"))
        found.append(1000 * (time.perf_counter() - began))
    progress(f"{times} undos, the last {found[-1]:.0f} ms")
    return found


async def _days(undo: UndoHarness) -> list[float]:
    """Percent of the group's size that its snapshots grow by on a day: a note or two a turn, of some KiB."""
    size = FILES * FILE_BYTES
    snapshots = undo.root / "data" / "undo" / "family"
    shutil.rmtree(snapshots)
    await undo.turn()
    await undo.feature.sweep()
    found = []
    for _ in range(DAYS):
        before = _bytes(snapshots)
        for turn in range(TURNS_A_DAY):
            await undo.turn(writes=lambda folder, n=turn: _change(folder, 1 + n % 2, 4_000))
            await undo.feature.catch_up(Folder("family"))
        await undo.feature.sweep()
        found.append(100 * (_bytes(snapshots) - before) / size)
    return found


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
