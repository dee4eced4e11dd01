"""What every `ContainerRuntime` holds to."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from contextlib import aclosing, suppress
from pathlib import Path

import pytest

from orchestrator.containers.image import build
from orchestrator.domain.errors import ContainerError
from orchestrator.domain.protocols import Mount
from tests.support.runtimes import (
    Bench,
    DockerBench,
    ProcessBench,
    SwarmBench,
    a_spec,
    all_of,
    eventually,
    line_of,
    running,
)

ECHO = "import sys; sys.stdout.write(sys.stdin.readline()); sys.stdout.write(repr(sys.stdin.read()))"
SAY_AT_ONCE = "import sys, time; print('first', flush=True); sys.stdin.readline(); print('second')"
CUT = """
import sys, time
for byte in ('안녕하세요 ' * 3).encode():
    sys.stdout.buffer.write(bytes([byte])); sys.stdout.flush(); time.sleep(0.001)
sys.stdout.buffer.write(('한' * 40_000).encode())
"""
FLOOD = """
import sys
line = ('가' * 341).encode() + b'\\n'
for _ in range(5_000): sys.stdout.buffer.write(line)
sys.stdout.buffer.write(b'end')
"""
COMPLAIN = """
import sys
print('spoken', flush=True)
for number in range(5_000): print('line', number, file=sys.stderr)
print('last words 끝', file=sys.stderr)
sys.exit(3)
"""
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('up', flush=True)
while True: time.sleep(60)
"""
# Not a handler and a sleep: a signal just before the sleep begins does not interrupt it.
POLITE = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print('up', flush=True)
signal.sigwait({signal.SIGTERM})
print('bye', flush=True)
sys.exit(7)
"""
QUIT = "import os; os._exit(5)"
SLEEP = "import time\nprint('up', flush=True)\nwhile True: time.sleep(60)"
BREED = """
import subprocess, sys
subprocess.Popen(['sleep', '600'])
print('up', flush=True)
"""


@pytest.fixture(
    params=["process", "swarm", pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.timeout(900)])]
)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    if request.param == "process":
        yield ProcessBench(tmp_path / "home")
        return
    if request.param == "swarm":
        yield SwarmBench(tmp_path / "home")
        return
    client = request.getfixturevalue("docker_client")
    tag = build.TAG if build.is_present(client) else request.getfixturevalue("agent_image")
    docker_bench = DockerBench(client, tag)
    yield docker_bench
    docker_bench.clear()


async def test_the_order_arrives_on_stdin_as_one_line_and_stdin_ends(bench):
    order = '{"prompt": "안녕 --- \\u2028"}'

    async with running(bench.runtime(ECHO), order=order) as container:
        assert (await all_of(container)).decode() == f"{order}\n''"
        assert (await container.wait()).code == 0


async def test_an_order_larger_than_any_pipe_arrives_whole(bench):
    order = "가" * 700_000

    async with running(bench.runtime(ECHO), order=order) as container:
        assert (await all_of(container)).decode() == f"{order}\n''"


async def test_output_is_heard_from_its_first_byte(bench):
    async with running(bench.runtime(SAY_AT_ONCE)) as container:
        assert await all_of(container) == b"first\nsecond\n"


async def test_characters_cut_across_chunks_arrive_byte_exact(bench):
    async with running(bench.runtime(CUT)) as container:
        assert (await all_of(container)).decode() == "안녕하세요 " * 3 + "한" * 40_000


async def test_a_slow_reader_loses_nothing_of_five_megabytes(bench):
    line = ("가" * 341).encode() + b"\n"
    expected = hashlib.sha256(line * 5_000 + b"end").hexdigest()
    heard = hashlib.sha256()

    async with running(bench.runtime(FLOOD)) as container, aclosing(container.output()) as output:
        async for chunk in output:
            heard.update(chunk)
            await asyncio.sleep(0.002)

    assert heard.hexdigest() == expected


async def test_stderr_is_not_mixed_in_and_its_end_is_kept(bench):
    async with running(bench.runtime(COMPLAIN)) as container:
        assert await all_of(container) == b"spoken\n"
        ended = await container.wait()

    assert ended.code == 3
    assert not ended.was_oom_killed
    assert ended.stderr_tail.endswith("line 4999\nlast words 끝\n")
    assert len(ended.stderr_tail.encode()) <= 4096 + 3


async def test_a_container_that_takes_the_signal_ends_with_its_own_code(bench):
    async with running(bench.runtime(POLITE)) as container, aclosing(container.output()) as output:
        assert await line_of(output) == b"up\n"
        await container.stop(grace_seconds=60)
        assert b"".join([chunk async for chunk in output]) == b"bye\n"
        assert (await container.wait()).code == 7


async def test_a_container_deaf_to_the_signal_is_killed_after_the_grace(bench):
    async with running(bench.runtime(DEAF)) as container, aclosing(container.output()) as output:
        assert await line_of(output) == b"up\n"
        await container.stop(grace_seconds=1)
        assert (await container.wait()).code == 137


async def test_stopping_and_removing_twice_is_no_error(bench):
    async with running(bench.runtime(SLEEP)) as container:
        await container.stop(grace_seconds=0)
        await container.stop(grace_seconds=0)
        await container.remove()
        await container.remove()

    assert bench.left() == []


async def test_removing_ends_a_running_container(bench):
    async with running(bench.runtime(SLEEP)) as container, aclosing(container.output()) as output:
        await line_of(output)
        await container.remove()
        with suppress(StopAsyncIteration, ContainerError):
            await anext(output)

    assert bench.left() == []


async def test_a_container_that_ends_without_reading_its_order_is_an_exit(bench):
    async with running(bench.runtime(QUIT), order="x" * 1_000_000) as container:
        assert await all_of(container) == b""
        assert (await container.wait()).code == 5


async def test_the_end_can_be_awaited_by_several_and_more_than_once(bench):
    async with running(bench.runtime(QUIT)) as container:
        await all_of(container)
        codes = [ended.code for ended in await asyncio.gather(container.wait(), container.wait())]

        assert [*codes, (await container.wait()).code] == [5, 5, 5]


async def test_a_cancelled_wait_leaves_the_container_alone(bench):
    async with running(bench.runtime(ECHO.replace("import sys", "import sys, time; time.sleep(1)"))) as one:
        waiting = asyncio.create_task(one.wait(), name="wait")
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])

        assert waiting.cancelled()
        assert await all_of(one) == b"{}\n''"


async def test_what_the_leader_leaves_running_ends_with_it(bench):
    async with running(bench.runtime(BREED)) as container:
        assert await all_of(container) == b"up\n"
        assert (await container.wait()).code == 0


async def test_a_missing_command_is_refused_or_ends_as_a_shell_would_say_it(bench):
    runtime = bench.runtime("", command=["/no/such/command"])
    try:
        container = await runtime.start(a_spec(), "{}")
        assert (await container.wait()).code == 127
        await container.remove()
    except ContainerError as error:
        assert "/no/such/command" in str(error)  # noqa: PT017  # either way is right
    finally:
        await runtime.close()

    assert bench.left() == []


async def test_a_missing_mount_source_is_refused_with_its_path(bench, tmp_path):
    missing = tmp_path / "is:not there"
    runtime = bench.runtime(ECHO)
    spec = a_spec(mounts=(Mount(source=missing, target="/workspace/group"),))
    try:
        with pytest.raises(ContainerError, match="is:not there"):
            await runtime.start(spec, "{}")
    finally:
        await runtime.close()

    assert bench.left() == []
    assert not missing.exists()


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 20, 100, 1000])
async def test_a_cancelled_start_leaves_nothing(bench, steps):
    runtime = bench.runtime(SLEEP)
    starting = asyncio.create_task(runtime.start(a_spec(), "{}"), name="start")
    for _ in range(steps):
        await asyncio.sleep(0)
    starting.cancel()
    with suppress(asyncio.CancelledError):
        await (await starting).remove()

    await eventually(lambda: bench.left() == [], "nothing is left of the start")
    await runtime.close()


async def test_a_mount_is_seen_at_its_place_and_the_environment_is_the_specs(bench, tmp_path):
    shared = tmp_path / "a:b"
    shared.mkdir(mode=0o755)
    (shared / "note").write_text("안녕")
    tmp_path.chmod(0o755)
    script = (
        "import os; root = os.environ.get('ANDY_WORKSPACE', '/workspace');"
        "print(open(root + '/ipc/input/note', encoding='utf-8').read(), os.environ['TOLD'])"
    )
    spec = a_spec(
        mounts=(Mount(source=shared, target="/workspace/ipc/input"),),
        environment={"TOLD": "yes", "PYTHONUTF8": "1"},
    )

    async with running(bench.runtime(script), spec=spec) as container:
        assert (await all_of(container)).decode() == "안녕 yes\n"

    assert (shared / "note").exists()


async def test_two_containers_are_heard_apart(bench):
    runtime = bench.runtime(ECHO)
    first, second = await asyncio.gather(runtime.start(a_spec(), "one"), runtime.start(a_spec(), "two"))

    assert await asyncio.gather(all_of(first), all_of(second)) == [b"one\n''", b"two\n''"]
    assert first.ref != second.ref
    await asyncio.gather(first.remove(), second.remove())
    await runtime.close()


async def test_what_an_earlier_host_left_is_adopted_or_ended(bench):
    earlier, later = bench.runtime(SLEEP), bench.runtime(SLEEP)
    left = await earlier.start(a_spec(), "{}")

    adopted = await later.adopt()

    assert [each.run_id for each in adopted] == ([left.run_id] if bench.left() else [])
    for each in adopted:
        await each.remove()
    await earlier.close()
    await later.close()


async def test_a_runtimes_own_containers_outlive_its_looking_for_others(bench):
    runtime = bench.runtime(POLITE)
    starting = asyncio.create_task(runtime.start(a_spec(), "{}"), name="start")
    while not starting.done():
        await runtime.adopt()
    container = await starting
    async with aclosing(container.output()) as output:
        assert await line_of(output) == b"up\n"

    await container.stop(grace_seconds=60)

    assert (await container.wait()).code == 7
    await container.remove()
    await runtime.close()
