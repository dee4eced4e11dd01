"""A child process that is killed never keeps its parent waiting, whatever stands in its pipes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from agent_runner.wire import processes
from agent_runner.wire.processes import kill_and_wait
from orchestrator.channels.whatsapp.bridge_process import BridgeProcess
from tests.support.process_checks import is_alive
from tests.support.until import until

FIRST_BYTE_PAUSES = 1
"""A buffer of a byte: asyncio stops reading the pipe after what it reads first."""


def open_descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_one_whose_output_nobody_reads_any_more_is_gone(stream: str) -> None:
    command = "exec yes" if stream == "stdout" else "exec yes >&2"
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", command, stdout=PIPE, stderr=PIPE, limit=FIRST_BYTE_PAUSES
    )
    pipe = getattr(process, stream)
    await pipe.read(1)
    await kill_and_wait(process)
    assert process.returncode == -signal.SIGKILL
    assert set((await pipe.read()).split()) <= {b"y"}, "what was read before, and then the end"


async def test_the_processes_of_its_group_end_after_it(tmp_path: Path) -> None:
    child = tmp_path / "child"
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", f"sleep 600 >/dev/null & echo $! > {child}"), stdout=PIPE, start_new_session=True
    )
    await process.wait()
    await kill_and_wait(process, with_group=True)
    await until(lambda: not is_alive(int(child.read_text())), "the child is killed")


async def test_one_that_left_the_group_and_holds_the_pipe_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(processes, "CLOSE_SECONDS", 0.2)
    child = tmp_path / "child"
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", f"setsid sh -c 'echo $$ > {child}; echo x; exec sleep 600' & wait"),
        stdout=PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        await kill_and_wait(process, with_group=True)
        assert process.returncode == -signal.SIGKILL
    finally:
        os.kill(int(child.read_text()), signal.SIGKILL)
        await process.stdout.read()


async def test_a_bridge_that_prints_without_end_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    talking = (
        "import sys\nwhile True:\n sys.stdout.write('x\\n' * 1000); sys.stderr.write('y' * 10000 + '\\n')"
    )
    bridge = BridgeProcess([sys.executable, "-c", talking], on_report=lambda report: None)
    monkeypatch.setattr("orchestrator.channels.whatsapp.bridge_process.STOP_SECONDS", 0.2)
    monkeypatch.setattr("orchestrator.channels.whatsapp.protocol.MAX_LINE_BYTES", 1_000)
    running = asyncio.create_task(bridge.run())
    await until(lambda: bridge.is_alive, "it runs")
    running.cancel()
    await asyncio.wait({running})
    assert not bridge.is_alive


async def test_one_that_is_read_or_killed_twice_is_gone_all_the_same() -> None:
    process = await asyncio.create_subprocess_exec("sleep", "600", stdout=PIPE, stderr=PIPE, stdin=PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    reading = asyncio.create_task(process.stdout.readline())
    waiting = asyncio.create_task(process.stderr.read())
    await asyncio.sleep(0)
    await asyncio.gather(kill_and_wait(process), kill_and_wait(process))
    assert (await reading, await waiting) == (b"", b"")
    assert process.returncode == -signal.SIGKILL


async def test_one_whose_pipes_another_process_holds_leaves_nothing_open(tmp_path: Path) -> None:
    child = tmp_path / "child"
    before = open_descriptors()
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", f"setsid sh -c 'echo $$ > {child}; exec sleep 600' <&0 & wait"),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(b"x" * 1_000_000)
    await until(lambda: child.exists() and child.read_text().endswith("\n"), "the other process runs")
    try:
        await kill_and_wait(process, with_group=True)
        await until(lambda: open_descriptors() <= before, "all is closed")
        assert process.returncode == -signal.SIGKILL
    finally:
        os.kill(int(child.read_text()), signal.SIGKILL)


async def test_one_is_killed_even_if_its_parent_is_cancelled_at_once() -> None:
    process = await asyncio.create_subprocess_exec("sleep", "600", stdout=PIPE)

    async def end() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await kill_and_wait(process)

    await asyncio.gather(asyncio.create_task(end()), return_exceptions=True)
    await process.wait()
    assert process.returncode == -signal.SIGKILL
