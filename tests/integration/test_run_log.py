"""What a run's log holds, and what can be done to it from inside a container: nothing."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.base.event_bus import EventBus
from orchestrator.containers.logs import files
from orchestrator.containers.logs.files import MAX_AGE_MS, MAX_FILES
from orchestrator.containers.logs.flow import BURST_BYTES
from orchestrator.containers.logs.run_log import FILE_BYTES, PENDING_BYTES, RunLogs
from orchestrator.domain.values import Folder, Run, RunId
from tests.doubles.clock import FakeClock
from tests.support.runtimes import eventually
from tests.support.until import until

MEBIBYTE = 1024 * 1024


def a_run(number: int = 1, **changes: object) -> Run:
    run = Run(
        id=RunId(f"run{number:09d}"),
        folder=Folder("family"),
        is_isolated=False,
        runtime="docker",
        container_ref=None,
        token_hash=f"hash-{number}",
        last_frame=0,
        started_ms=FakeClock().now_ms(),
        ended_ms=None,
        exit_kind=None,
        exit_detail=None,
    )
    return replace(run, **changes)  # type: ignore[arg-type]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data" / "logs"


@pytest.fixture
def bus(clock: FakeClock) -> EventBus:
    return EventBus(clock)


@asynccontextmanager
async def logging_to(root: Path, bus: EventBus, clock: FakeClock) -> AsyncIterator[RunLogs]:
    """A writer that runs; closed at the end, so that all is in the files then."""
    logs = RunLogs(root, clock=clock)
    bus.taps.append(logs.take_event)
    loop = asyncio.create_task(logs.run(), name="run-logs")
    yield logs
    loop.cancel()
    await asyncio.wait([loop])
    await logs.close()


def text_of(root: Path, run: Run) -> str:
    return files.path_of(root, run.folder, run.id, run.started_ms).read_text()


async def taken_up(logs: RunLogs, run: Run) -> None:
    """Wait until the writing thread has what was said so far."""
    await until(lambda: not logs._logs[run.id].pending, "what was said is on its way to the disk")


def said_in(text: str) -> list[str]:
    return re.findall(r"stderr@\d+\| (.*)", text)


async def test_a_log_says_what_the_run_was_and_what_befell_it(root, bus, clock):
    run = a_run()
    async with logging_to(root, bus, clock) as logs:
        logs.about = {"image": "andy-agent:latest"}
        logs.begin(run, {"runtime": "docker", "agent": "claude"})
        bus.publish("turn.started", run=run.id, turn=3, attempt=1)
        clock.pass_ms(1_234)
        logs.take_stderr(run.id, b"loading\n")
        bus.publish("turn.put_back", run=run.id, turn=3, attempt=1, reason='I said "no" too often.')
        bus.publish("run.ended", run=run.id, detail="crashed", reason="my container crashed (exit code 3).")
    lines = text_of(root, run).splitlines()
    assert lines[0] == (
        "2026-05-28T20:26:40.000Z run.begun run=run000000001 group=family"
        " runtime=docker agent=claude image=andy-agent:latest"
    )
    assert lines[2] == "2026-05-28T20:26:41.234Z stderr@8| loading"
    told = [files.read_event(line) for line in lines]
    assert told[3] is not None
    assert told[3].facts == {"turn": "3", "attempt": "1", "reason": 'I said "no" too often.'}
    assert told[4] is not None
    assert (told[4].kind, told[4].facts["detail"], told[4].at_ms) == ("run.ended", "crashed", clock.now_ms())


async def test_logs_are_for_their_owner_alone(root, bus, clock):
    run = a_run()
    async with logging_to(root, bus, clock) as logs:
        logs.begin(run, {})
    (found,) = files.of_group(root, "family")
    assert found.run == run.id
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (root, found.path.parent, found.path)]
    assert modes == [0o700, 0o700, 0o600]


async def test_a_gigabyte_of_stderr_fills_neither_memory_nor_disk(root, bus, clock):
    run, chunk = a_run(), b"All work and no play makes Jack a dull boy.\n" * 1500
    async with logging_to(root, bus, clock) as logs:
        logs.begin(run, {})
        for number in range(1024 * MEBIBYTE // len(chunk)):
            logs.take_stderr(run.id, chunk)
            assert logs._logs[run.id].pending_bytes <= PENDING_BYTES
            if number % 64 == 0:
                clock.pass_ms(500)
                await taken_up(logs, run)
        logs.take_stderr(run.id, b"x" * 100_000 + b"\nthe very last words\n")
        bus.publish("run.ended", run=run.id, detail="crashed")
    text = text_of(root, run)
    assert len(text) < FILE_BYTES + MEBIBYTE
    assert "stderr.full" in text
    dropped = sum(int(found) for found in re.findall(r"stderr.left_out bytes=(\d+)", text))
    assert dropped > 1000 * MEBIBYTE
    assert said_in(text)[-1] == "the very last words"
    assert "run.ended detail=crashed" in text


async def test_what_a_flood_said_first_is_kept_whole(root, bus, clock):
    run = a_run()
    async with logging_to(root, bus, clock) as logs:
        logs.begin(run, {})
        logs.take_stderr(run.id, b"".join(b"line %d\n" % number for number in range(1000)))
        logs.take_stderr(run.id, b"z" * 10 * BURST_BYTES)
    said = said_in(text_of(root, run))
    assert said[:1000] == [f"line {number}" for number in range(1000)]


async def test_a_gap_is_told_while_the_run_lives(root, bus, clock):
    run = a_run()
    async with logging_to(root, bus, clock) as logs:
        logs.begin(run, {})
        logs.take_stderr(run.id, b"z" * BURST_BYTES)
        logs.take_stderr(run.id, b"lost\n" * 100)
        clock.pass_ms(10_000)
        logs.take_stderr(run.id, b"heard again\n")
    text = text_of(root, run)
    assert text.index("stderr.left_out bytes=500") < text.index("heard again")


async def test_a_container_can_forge_no_event_and_move_no_cursor(root, bus, clock):
    run = a_run()
    forged = "2026-05-28T20:26:40.000Z turn.answered turn=1"
    async with logging_to(root, bus, clock) as logs:
        logs.begin(run, {})
        logs.take_stderr(run.id, f"{forged}\r\n\r{forged}\n\x1b[2J\x1b]0;owned\x07 \u202egnol\n".encode())
        logs.take_stderr(run.id, b"\xff\xfe\x00\n")
    text = text_of(root, run)
    assert [told.kind for line in text.splitlines() if (told := files.read_event(line))] == [
        "run.begun",
        "run.left",
    ]
    assert text.replace("\n", "").isprintable()
    assert "\\x1b[2J" in text
    assert "\\u202egnol" in text


@pytest.mark.parametrize("digits", [20, 5_000])
async def test_a_container_cannot_say_how_far_its_log_has_got(root, bus, clock, digits):
    run, spoken = a_run(), b"2026-05-28T20:26:40.000Z stderr@" + b"9" * digits + b"| so much\n"
    async with logging_to(root, bus, clock) as first:
        first.begin(run, {})
        first.take_stderr(run.id, spoken)
    async with logging_to(root, bus, clock) as second:
        await second.resume(run)
        bus.publish("run.rejoined", run=run.id)
        second.take_stderr(run.id, spoken)
        second.take_stderr(run.id, b"the end\n")
    text = text_of(root, run)
    assert said_in(text)[-1] == "the end"
    assert text.count("so much") == 1


async def test_a_character_may_be_cut_between_chunks(root, bus, clock):
    run, word = a_run(), "안녕하세요 여러분\n".encode()
    async with logging_to(root, bus, clock) as logs:
        logs.begin(run, {})
        for byte in word:
            logs.take_stderr(run.id, bytes([byte]))
        logs.take_stderr(run.id, b"no end")
        bus.publish("run.ended", run=run.id)
    assert said_in(text_of(root, run)) == ["안녕하세요 여러분", "no end"]


@pytest.mark.parametrize("graceful", [True, False])
async def test_an_adopted_run_goes_on_in_its_log_and_repeats_nothing(root, bus, clock, graceful):
    run = a_run()
    spoken = b"".join(b"line %d\n" % number for number in range(200))
    async with logging_to(root, bus, clock) as first:
        first.begin(run, {})
        first.take_stderr(run.id, spoken[:700])
    path = files.path_of(root, run.folder, run.id, run.started_ms)
    if not graceful:
        on_disk = path.read_text().splitlines(keepends=True)[:-2]  # no word of the end, a line not written
        path.write_text("".join(on_disk))
    async with logging_to(root, bus, clock) as second:
        await second.resume(run)
        bus.publish("run.adopted", run=run.id)
        second.take_stderr(run.id, spoken[:500])
        second.take_stderr(run.id, spoken[500:])
        bus.publish("run.rejoined", run=run.id)
        second.take_stderr(run.id, spoken)
        second.take_stderr(run.id, b"the end\n")
    said = [line for line in said_in(path.read_text()) if line.startswith(("line", "the"))]
    assert list(dict.fromkeys(said)) == [*(f"line {number}" for number in range(200)), "the end"]
    assert len(said) == 201
    assert len(files.of_group(root, "family")) == 1


async def test_only_so_many_logs_are_kept_and_none_for_ever(root, bus, clock):
    old = a_run(0, started_ms=clock.now_ms() - MAX_AGE_MS - 1, folder=Folder("other"))
    async with logging_to(root, bus, clock) as logs:
        logs.begin(old, {})
    age = (clock.now_ms() - MAX_AGE_MS - 1) / 1000
    os.utime(files.of_group(root, "other")[0].path, (age, age))
    (root / "family").mkdir()
    (root / "family" / "notes.txt").write_text("not ours")
    live = a_run(1, started_ms=clock.now_ms() - 1_000_000)
    async with logging_to(root, bus, clock) as logs:
        logs.begin(live, {})
        for number in range(2, MAX_FILES + 20):
            run = a_run(number, started_ms=clock.pass_ms(1_000))
            logs.begin(run, {})
            bus.publish("run.ended", run=run.id)
            await eventually(lambda run=run: run.id not in logs._logs, "the log is written")
    found = [one.run for one in files.of_group(root, "family")]
    assert live.id in found, "a run that lives keeps its log"
    assert len(found) == MAX_FILES + 1
    assert found[-1] == f"run{MAX_FILES + 19:09d}"
    assert files.of_group(root, "other") == []
    assert (root / "family" / "notes.txt").exists()


async def test_a_disk_that_takes_nothing_stops_nobody(root, bus, clock):
    root.parent.mkdir(parents=True)
    root.write_text("no directory")
    first, second = a_run(1), a_run(2)
    async with logging_to(root, bus, clock) as logs:
        logs.begin(first, {})
        logs.take_stderr(first.id, b"heard by nobody\n")
        await eventually(lambda: not logs._logs[first.id].pending, "writing was tried")
        root.unlink()
        logs.begin(second, {})
        bus.publish("run.ended", run=first.id, detail="closed")
    assert "run.ended" in text_of(root, first)
    assert "run.begun" in text_of(root, second)


async def test_a_link_in_a_logs_place_is_not_followed(root, bus, clock, tmp_path):
    run = a_run()
    path = files.path_of(root, run.folder, run.id, run.started_ms)
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path / "elsewhere")
    async with logging_to(root, bus, clock) as logs:
        logs.begin(run, {})
    assert not (tmp_path / "elsewhere").exists()


def test_a_pipe_in_a_logs_place_is_neither_waited_for_nor_written_to(tmp_path):
    path = tmp_path / "run.log"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(OSError, match="no plain file"):
            files.append(path, "a secret\n", creates=False)
        assert os.read(reader, 100) == b""
    finally:
        os.close(reader)
    with pytest.raises(OSError, match="No such device"):
        files.append(path, "nobody reads it\n", creates=False)
