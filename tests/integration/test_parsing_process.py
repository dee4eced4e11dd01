"""Large bodies of containers are read outside of the host's process, within bounds a group."""

from __future__ import annotations

import asyncio
import errno
import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import psutil
import pytest

from orchestrator.domain.values import Folder
from orchestrator.proxies import parsing_process
from orchestrator.proxies.model.error_responses import ProxyRefused
from orchestrator.proxies.parsing_process import ORDINARY_BYTES, SMALL_BYTES, ParsingProcess
from tests.doubles.clock import FakeClock
from tests.support.until import until

EVE, BOB = Folder("eve"), Folder("bob")
LARGE = json.dumps({"messages": [{"role": "user", "content": "x" * SMALL_BYTES}]}).encode()


@pytest.fixture
async def parsing() -> AsyncIterator[ParsingProcess]:
    async with aclosing(ParsingProcess(clock=FakeClock())) as made:
        yield made


async def check(parsing: ParsingProcess, body: bytes, folder: Folder = BOB) -> int | None:
    try:
        await parsing.check_model_request(folder, body, may_search=False, is_open=False)
    except ProxyRefused as error:
        return error.refusal.status
    return None


class SlowMachine:
    """A clock of a machine that is so busy that a minute passes between any two looks at it."""

    now = 0.0
    process_time, thread_time = staticmethod(time.process_time), staticmethod(time.thread_time)

    @classmethod
    def perf_counter(cls) -> float:
        cls.now += 60.0
        return cls.now


async def test_what_is_large_is_judged_as_what_is_small_but_by_another_process(
    parsing: ParsingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: list[str] = []
    real = parsing_process._run_job
    monkeypatch.setattr(
        parsing_process, "_run_job", lambda job, *rest: (here.append(job), real(job, *rest))[1]
    )
    assert await check(parsing, b'{"messages": []}') is None
    assert here == ["model"]
    assert await check(parsing, LARGE) is None
    assert await check(parsing, LARGE[:-1]) == 400
    assert await check(parsing, LARGE[:-1] + b', "speed": "fast"}') == 403
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    params = {"name": "write", "arguments": {"text": "안" * SMALL_BYTES}}
    read = await parsing.read_mcp_message(BOB, json.dumps({**message, "params": params}).encode())
    assert json.loads(read.body) == {**message, "params": params}
    assert here == ["model"], "nothing large was read in this process"


async def test_the_process_has_no_secret_of_the_hosts_and_ends_with_it(
    parsing: ParsingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-the-key")
    await check(parsing, LARGE)
    assert parsing._ordinary.process is not None
    child = psutil.Process(parsing._ordinary.process.pid)
    assert "sk-ant-the-key" not in str(child.environ())
    await parsing.aclose()
    assert not child.is_running()


async def test_a_process_that_was_killed_costs_no_request_and_another_is_started(
    parsing: ParsingProcess,
) -> None:
    await check(parsing, LARGE)
    assert parsing._ordinary.process is not None
    parsing._ordinary.process.kill()
    await parsing._ordinary.process.wait()
    assert await check(parsing, LARGE) is None


async def test_a_body_that_no_process_can_be_started_for_may_be_sent_again(
    parsing: ParsingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> asyncio.subprocess.Process:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    with monkeypatch.context() as full:
        full.setattr(parsing_process, "_start", fail)
        assert await check(parsing, LARGE) == 429, "clients repeat that"
    assert await check(parsing, LARGE) is None


async def test_a_group_is_not_blamed_for_a_body_that_a_busy_machine_could_not_read(
    parsing: ParsingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> asyncio.subprocess.Process:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(parsing_process, "_start", fail)
    with pytest.raises(ProxyRefused) as raised:
        await parsing.check_model_request(BOB, LARGE, may_search=False, is_open=False)
    assert "busy" in raised.value.refusal.message
    assert "this group" not in raised.value.refusal.message


async def test_its_end_ends_what_is_being_parsed_and_every_process(parsing: ParsingProcess) -> None:
    before = set(psutil.Process().children())
    assert await check(parsing, LARGE) is None
    [child] = set(psutil.Process().children()) - before
    child.suspend()
    waiting = asyncio.create_task(check(parsing, LARGE))
    await until(parsing._ordinary.lock.locked, "its body is being parsed")
    await parsing.aclose()
    assert await waiting == 400
    assert set(psutil.Process().children()) <= before


async def test_its_end_is_also_that_of_a_process_that_is_being_started(parsing: ParsingProcess) -> None:
    before = set(psutil.Process().children())
    waiting = asyncio.create_task(check(parsing, LARGE))
    await until(parsing._ordinary.lock.locked, "its process is being started")
    await parsing.aclose()
    assert await waiting == 400
    assert set(psutil.Process().children()) <= before


async def test_a_body_that_needs_more_processor_time_than_it_may_ends_its_child_and_not_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = b'{"messages": [' + b"[0]," * 30_000 + b"[0]]}"
    monkeypatch.setattr(parsing_process, "ORDINARY_CPU_SECONDS", 0.005)
    async with aclosing(ParsingProcess(clock=FakeClock())) as parsing:
        # The start of a child is no part of a body's time.
        assert await check(parsing, b'{"messages": [0]}' + b" " * SMALL_BYTES) is None
        child = parsing._ordinary.process
        assert child is not None
        assert await check(parsing, parts, EVE) == 400
        # 255 is what asyncio says where the host's own `kill` met the dead child before the watcher did.
        assert child.returncode in {-signal.SIGPROF, 255}
        assert await check(parsing, LARGE) is None


async def test_a_body_that_a_busy_machine_does_not_come_to_may_be_sent_again_at_once(
    parsing: ParsingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await check(parsing, LARGE) is None
    assert parsing._ordinary.process is not None
    psutil.Process(parsing._ordinary.process.pid).suspend()
    with monkeypatch.context() as busy:
        busy.setattr(parsing_process, "JOB_SECONDS", 0.01)
        busy.setattr(parsing_process, "time", SlowMachine)
        assert await check(parsing, LARGE) == 429, "clients repeat that"
    assert await check(parsing, LARGE) is None


async def test_a_request_that_is_given_up_leaves_no_half_answer_to_the_next(parsing: ParsingProcess) -> None:
    await check(parsing, LARGE)
    task = asyncio.create_task(check(parsing, LARGE), name="gone")
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await check(parsing, LARGE[:-1]) == 400


async def test_a_group_whose_bodies_took_too_long_waits_and_another_does_not() -> None:
    clock = FakeClock()
    async with aclosing(ParsingProcess(clock=clock)) as parsing:
        parsing._group(EVE).work.take(parsing_process.BURST_MS + 500)
        assert await check(parsing, b"{}", EVE) == 429
        assert await check(parsing, b"{}", BOB) is None
        clock.pass_ms(6_000)
        assert await check(parsing, b"{}", EVE) is None


@pytest.mark.slow
async def test_a_group_pays_for_what_its_body_costs_and_not_for_the_time_that_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine, or behind another group's bodies, a second passes while nothing of it is read."""

    monkeypatch.setattr(parsing_process, "time", SlowMachine)
    async with aclosing(ParsingProcess(clock=FakeClock())) as parsing:
        for body in (LARGE, b"{}", LARGE, b"{}"):
            assert await check(parsing, body) is None
        group = parsing._group(BOB)
        parts = b'{"messages": [' + b"[0]," * 20_000 + b"[0]]}"
        for _ in range(1_000):  # a few tens: as long as there is anything left of two seconds
            if await check(parsing, parts) == 429:
                break
        assert group.work.wait_ms() > 0, "what it costs is counted still"


async def test_an_ordinary_body_waits_for_no_large_one_of_another_group() -> None:
    async with aclosing(ParsingProcess(clock=FakeClock())) as parsing, parsing._large.lock:
        large = asyncio.create_task(check(parsing, b" " * (ORDINARY_BYTES + 1), EVE), name="large")
        assert await check(parsing, LARGE) is None
        assert not large.done()
        large.cancel()
