"""What only the process runtime does: links for mounts, a short environment, no leftovers."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path, PurePosixPath
from unittest.mock import Mock

import pytest

from orchestrator.containers.mounts import prepare
from orchestrator.containers.process import container as process_container
from orchestrator.containers.process import layout as process_layout
from orchestrator.containers.process.identity import ProcessIdentity
from orchestrator.containers.process.layout import ProcessLayout
from orchestrator.containers.process.runtime import ProcessRuntime
from orchestrator.domain.errors import ContainerError
from orchestrator.domain.protocols import Mount
from orchestrator.domain.values import ChatJid, Folder, Group, RunId
from tests.support.buried import bury
from tests.support.runtimes import ProcessBench, a_spec, all_of, eventually, line_of, running

SLEEP = "import time\nprint('up', flush=True)\nwhile True: time.sleep(60)"
BREED = """
import subprocess, sys
child = subprocess.Popen(['sleep', '600'])
print(child.pid, flush=True)
sys.stdin.readline()
"""
LEAVES = {
    "setsid": "subprocess.Popen(['sleep', '600'], start_new_session=True).pid",
    "an orphan": "int(subprocess.run(['sh', '-c', 'setsid sleep 600 >&- 2>&- & echo $!'],"
    " stdout=subprocess.PIPE).stdout)",
    "another environment": "subprocess.Popen(['sleep', '600'], start_new_session=True, env={}).pid",
}
"""Expressions that start what leaves the session and the group of the process, and give its number."""


def breed(leave: str) -> str:
    return f"import subprocess, sys; print({LEAVES[leave]}, flush=True)"


SHOW = "import json, os; print(json.dumps(dict(os.environ)))"
MAIN = Group(jid=ChatJid("local:main"), name="Main", folder=Folder("main"), is_main=True)


def is_there(pid: int) -> bool:
    return ProcessIdentity.of(pid).started != ""


def test_it_says_that_it_is_not_isolated(tmp_path):
    assert not ProcessRuntime(home=tmp_path).is_isolated


async def test_no_secret_of_the_host_reaches_a_process(tmp_path, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    monkeypatch.setenv("TZ", "Asia/Seoul")
    spec = a_spec(environment={"ANDY_TOKEN": "a token of this run"})

    async with running(ProcessBench(tmp_path).runtime(SHOW), spec=spec) as process:
        seen = json.loads(await all_of(process))

    assert "secret" not in seen.values()
    assert seen["TZ"] == "Asia/Seoul"
    assert seen["ANDY_TOKEN"] == "a token of this run"
    assert seen["ANDY_WORKSPACE"] == str(tmp_path / "data" / "process" / spec.run_id / "workspace")
    assert seen["HOME"].startswith(str(tmp_path))
    told = set(process_layout.PASSED_ON) | {"ANDY_TOKEN", "ANDY_WORKSPACE", "HOME", "PYTHONUNBUFFERED"}
    assert set(seen) - {"LC_CTYPE"} <= told


async def test_a_groups_directories_are_where_a_runner_looks_for_them(tmp_path):
    planned = prepare(MAIN, home=tmp_path, uid=os.getuid())
    (tmp_path / ".env").write_text("secret")
    script = """
import os
root = os.environ['ANDY_WORKSPACE']
for name in ('group', 'env', 'ipc/input', 'ipc/tasks', 'project/groups'):
    open(os.path.join(root, name, 'seen'), 'w').close()
open(os.path.join(os.environ['CLAUDE_CONFIG_DIR'], 'seen'), 'w').close()
print(os.path.realpath(os.getcwd()), sorted(os.listdir(root + '/project')))
"""

    async with running(ProcessBench(tmp_path).runtime(script), spec=a_spec(mounts=planned)) as process:
        assert (await all_of(process)).decode() == f"{tmp_path}/groups/main ['groups']\n"

    for place in (
        "groups/main",
        "data/env/main",
        "data/ipc/main/tasks",
        "groups",
        "data/sessions/main/.claude",
    ):
        assert (tmp_path / place / "seen").exists()


async def test_a_full_disk_at_the_last_step_of_a_start_is_an_error_of_containers(tmp_path, monkeypatch):
    bench = ProcessBench(tmp_path)
    monkeypatch.setattr(
        process_container, "write_whole", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    )
    with pytest.raises(ContainerError, match="No space left"):
        async with running(bench.runtime("import time; time.sleep(600)")):
            pass
    assert bench.left() == []


def test_a_mount_with_others_inside_is_no_link():
    mounts = (
        Mount(source=Path("/home/of"), target="/workspace/project"),
        Mount(source=Path("/home/of/groups"), target="/workspace/project/groups"),
        Mount(source=Path("/home/of/x"), target="/workspace/group"),
        Mount(source=Path("/home/of/.claude"), target="/home/andy/.claude"),
    )

    assert process_layout.links(mounts) == {
        PurePosixPath("project/groups"): Path("/home/of/groups"),
        PurePosixPath("group"): Path("/home/of/x"),
    }


async def test_removing_follows_no_link(tmp_path):
    group = tmp_path / "groups" / "family"
    group.mkdir(parents=True)
    (group / "kept").write_text("kept")
    spec = a_spec(mounts=(Mount(source=group, target="/workspace/group", is_writable=True),))

    async with running(ProcessBench(tmp_path).runtime(SLEEP), spec=spec) as process:
        await process.stop(grace_seconds=5)

    assert (group / "kept").read_text() == "kept"
    assert ProcessBench(tmp_path).left() == []


async def test_what_a_process_started_ends_with_it(tmp_path):
    async with running(ProcessBench(tmp_path).runtime(BREED)) as process, aclosing(process.output()) as said:
        child = int(await line_of(said))
        assert (await process.wait()).code == 0

    await eventually(lambda: not is_there(child), "the child has ended")


async def test_a_stop_ends_what_a_deaf_process_started(tmp_path):
    script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + BREED + "signal.pause()"
    async with running(ProcessBench(tmp_path).runtime(script)) as process, aclosing(process.output()) as said:
        child = int(await line_of(said))
        await process.stop(grace_seconds=0.1)

        assert (await process.wait()).code == 137

    await eventually(lambda: not is_there(child), "the child has ended")


@pytest.mark.parametrize("leave", LEAVES)
async def test_a_stop_ends_what_left_the_session_before_it_returns(tmp_path, leave):
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    script = f"{deaf}; {breed(leave)}; signal.pause()"
    async with running(ProcessBench(tmp_path).runtime(script)) as process, aclosing(process.output()) as said:
        child = int(await line_of(said))
        assert is_there(child)
        await process.stop(grace_seconds=0)
        assert not is_there(child)


@pytest.mark.parametrize("leave", ["setsid", "an orphan"])
async def test_what_left_the_session_of_a_process_has_ended_when_that_has(tmp_path, leave):
    async with running(ProcessBench(tmp_path).runtime(breed(leave))) as process:
        async with aclosing(process.output()) as said:
            child = int(await line_of(said))
        await process.wait()
        assert not is_there(child)


async def test_another_runs_processes_live_on(tmp_path):
    runtime = ProcessBench(tmp_path).runtime(f"{breed('setsid')}; import signal; signal.pause()")
    async with running(runtime) as one, running(runtime) as other, aclosing(other.output()) as said:
        child = int(await line_of(said))
        await one.stop(grace_seconds=0)
        assert is_there(child)


async def test_closing_the_runtime_ends_its_processes(tmp_path):
    runtime = ProcessBench(tmp_path).runtime(SLEEP)
    process = await runtime.start(a_spec(), "{}")
    pid = int(process.ref.partition(":")[0])

    await runtime.close()

    assert not is_there(pid)
    assert ProcessBench(tmp_path).left() == []


async def test_what_a_killed_host_left_is_ended_and_cleared(tmp_path):
    # Nobody is there to hear a word: that would end it. So its child is told in a file.
    silent = f"import subprocess, time; open('child', 'w').write(str({LEAVES['setsid']})); time.sleep(600)"
    child_file = tmp_path / "data" / "process" / "r1" / "workspace" / "group" / "child"
    host = f"""
import asyncio, os, signal
from pathlib import Path
from orchestrator.containers.process.runtime import ProcessRuntime
from orchestrator.domain.protocols import ContainerSpec
async def main():
    runtime = ProcessRuntime(home=Path({str(tmp_path)!r}), command=[{sys.executable!r}, '-c', {silent!r}])
    process = await runtime.start(ContainerSpec(run_id='r1', folder='family', mounts=()), '{{}}')
    child = Path({str(child_file)!r})
    while not child.exists() or not child.read_text():
        await asyncio.sleep(0.01)
    print(process.ref, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", host], capture_output=True, text=True, check=False
    )
    left = ProcessIdentity.parse(ended.stdout)
    assert left.is_alive(), ended.stderr
    child = ProcessIdentity.of(int(child_file.read_text()))
    assert child.is_alive()

    assert await ProcessRuntime(home=tmp_path).adopt() == ()

    assert not left.is_alive()
    assert not child.is_alive()
    assert ProcessBench(tmp_path).left() == []


async def test_what_cannot_be_walked_down_is_removed_with_its_run(tmp_path):
    async with running(ProcessBench(tmp_path).runtime(SLEEP)) as process:
        bury(ProcessLayout(tmp_path / "data" / "process" / process.run_id).home, depth=3_000)
        await process.stop(grace_seconds=5)

    assert ProcessBench(tmp_path).left() == []


async def test_a_leftover_that_cannot_be_removed_stops_neither_the_end_of_a_run_nor_a_start(
    tmp_path, monkeypatch
):
    def refused(path):
        raise OSError(errno.EPERM, "Operation not permitted", str(path))

    monkeypatch.setattr(process_layout.dirfd, "remove_tree", refused)
    async with running(ProcessBench(tmp_path).runtime(SLEEP)) as process:
        await process.stop(grace_seconds=5)
    assert ProcessBench(tmp_path).left() != []

    assert await ProcessRuntime(home=tmp_path).adopt() == ()

    monkeypatch.undo()
    await ProcessRuntime(home=tmp_path).adopt()
    assert ProcessBench(tmp_path).left() == []


async def test_a_number_that_is_another_process_by_now_is_left_alone(tmp_path):
    async with running(ProcessBench(tmp_path / "other").runtime(SLEEP)) as process:
        pid = process.ref.partition(":")[0]
        layout = ProcessLayout(tmp_path / "data" / "process" / "r1")
        layout.make(())
        layout.identity.write_text(f"{pid}:1")

        await ProcessRuntime(home=tmp_path).adopt()

        assert is_there(int(pid))
    assert not layout.run.exists()


@pytest.mark.parametrize("text", ["", "not a number", "12"])
async def test_a_leftover_without_proof_kills_nothing_and_goes(tmp_path, text):
    layout = ProcessLayout(tmp_path / "data" / "process" / "r1")
    layout.make(())
    layout.identity.write_text(text)

    assert await ProcessRuntime(home=tmp_path).adopt() == ()

    assert not layout.run.exists()


async def test_a_file_beside_the_runs_stops_no_start(tmp_path):
    beside = tmp_path / "data" / "process" / ".DS_Store"
    beside.parent.mkdir(parents=True)
    beside.touch()
    assert await ProcessRuntime(home=tmp_path).adopt() == ()


async def test_a_run_has_one_process(tmp_path):
    runtime = ProcessBench(tmp_path).runtime(SLEEP)
    spec = a_spec(run_id=RunId("r1"))
    process = await runtime.start(spec, "{}")

    with pytest.raises(Exception, match="r1"):
        await runtime.start(spec, "{}")

    assert is_there(int(process.ref.partition(":")[0]))
    await runtime.close()
