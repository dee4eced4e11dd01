"""Runs on a swarm, with real carriers: what a turn left counts with its end, and of a hostile one nothing."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from agent_runner.wire import carrier as carrier_wire
from agent_runner.wire.carrier import CarrierConnection, ConnectionLost
from agent_runner.wire.files import unique_name, write_whole
from agent_runner.wire.gate import MAX_OF_ONE
from agent_runner.wire.trees import Changes, Entry, StaleFile
from orchestrator.containers.swarm import group_files
from orchestrator.containers.swarm import runtime as swarm_runtime
from orchestrator.containers.swarm import session as swarm_session
from orchestrator.containers.swarm.door import loopback_of
from orchestrator.containers.swarm.group_files import MAX_SEALED, RunFiles, SharedTree, Stages
from orchestrator.containers.swarm.nodes import NodeMemory
from orchestrator.containers.swarm.session import CarrierSession
from orchestrator.domain.errors import ContainerError, EngineGone
from orchestrator.domain.values import Folder, RunId
from tests.doubles.swarm_engine import ProcessSwarmEngine, machine
from tests.processes.runner import RUN, order_of
from tests.support.runtimes import all_of, eventually
from tests.support.skips import only_in_soak
from tests.support.swarm_harness import SwarmHarness, appears, connect, frames_of
from tests.support.until import DEADLINE_SECONDS

pytestmark = [
    # A carrier may be within its TLS handshake as the loop ends, and asyncio then leaves its socket open.
    pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"),
]

ONE_TURN = """
frame(1, 'ack', turn=1)
pathlib.Path('notes').mkdir()
pathlib.Path('notes/today.md').write_text('milk' * 100_000)
pathlib.Path('old.md').unlink()
frame(2, 'turn_end', turn=1, status='success')
until('../ipc/input/_close')
"""
NO_END = "frame(1, 'ack', turn=1); pathlib.Path('half.md').write_text('half'); time.sleep(600)"
LOCKS = Path("/proc/locks")
SLEEP = "frame(1, 'ready'); time.sleep(600)"


@pytest.fixture
def connections(monkeypatch) -> list[CarrierConnection]:
    """The connections that carriers have made to the host."""
    serve, made = CarrierSession.serve, []

    async def note_and_serve(session, connection, hello):
        made.append(connection)
        await serve(session, connection, hello)

    monkeypatch.setattr(CarrierSession, "serve", note_and_serve)
    return made


@pytest.fixture
def host(tmp_path, monkeypatch) -> SwarmHarness:
    # No run is begun anew elsewhere because this machine is slow; what tests that sets it.
    monkeypatch.setattr(swarm_runtime, "CONNECT_SECONDS", DEADLINE_SECONDS)
    monkeypatch.setattr(swarm_runtime, "SETTING_UP_SECONDS", DEADLINE_SECONDS)
    made = SwarmHarness(tmp_path)
    (made.group / "old.md").write_text("old")
    return made


async def test_a_group_finds_its_files_and_only_the_writable_ones_come_back(host):
    (host.group / "sub").mkdir()
    (host.group / "sub" / "a.txt").write_text("가")
    (host.group / "link").symlink_to("sub/a.txt")
    (host.home / "global" / "SOUL.md").write_text("kind")
    script = """
print(pathlib.Path('link').read_text(), pathlib.Path('../global/SOUL.md').read_text())
pathlib.Path('../global/SOUL.md').write_text('spoilt'); pathlib.Path('new').symlink_to('/etc/passwd')
"""
    async with host.running(script) as (_, container):
        assert (await all_of(container)).decode() == "가 kind\n"
        assert (await container.wait()).code == 0

    assert (host.group / "new").readlink().as_posix() == "/etc/passwd"
    assert (host.home / "global" / "SOUL.md").read_text() == "kind"


async def test_the_files_of_a_turn_are_put_in_place_once_its_end_is_recorded(host):
    async with host.running(ONE_TURN) as (_, container), aclosing(container.output()) as output:
        text = b""
        while b"turn_end" not in text:
            text += await anext(output)
        assert not (host.group / "notes").exists()
        assert (host.group / "old.md").exists()

        host.recorded[container.run_id] = 2
        (host.home / "input" / "_close").touch()
        assert b"".join([chunk async for chunk in output]) is not None

        assert (host.group / "notes" / "today.md").read_text() == "milk" * 100_000
        assert not (host.group / "old.md").exists()


async def test_the_files_of_a_turn_that_never_counted_are_dropped(host):
    async with host.running(ONE_TURN) as (_, container):
        assert await frames_of(container, until=2) == [1, 2]

    assert sorted(path.name for path in host.group.iterdir()) == ["old.md"]
    assert list((host.home / "data" / "swarm").iterdir()) == []


async def test_a_node_that_dies_in_a_turn_takes_its_files_with_it(host):
    async with host.running(NO_END) as (runtime, container):
        await appears(host.workspace / "group" / "half.md")
        engine = runtime._engine
        engine.kill(host.started[container.ref])
        await all_of(container)

        assert (await container.wait()).code is None
    assert not (host.group / "half.md").exists()


async def test_a_connection_that_breaks_costs_no_byte_of_the_output(host):
    script = """
for number in range(3_000): print('line', number, '가' * 50)
until('../ipc/input/_close')
print('end')
"""
    expected = "".join(f"line {n} {'가' * 50}\n" for n in range(3_000)) + "end\n"
    async with host.running(script) as (_, container):
        reading = asyncio.create_task(all_of(container), name="output")
        for _ in range(3):
            broken = container.session._connection
            broken.close()
            await eventually(
                lambda broken=broken: container.session._connection not in (None, broken), "it is back"
            )
        (host.home / "input" / "_close").touch()
        text = await reading

    assert text.decode() == expected


async def test_what_is_sent_over_a_closed_connection_is_lost_and_nothing_else_breaks(host):
    async with host.running(SLEEP) as (runtime, container):
        connection = await host.connect(runtime, container.ref, is_started=True, is_hardened=True)
        connection.close()
        with pytest.raises(ConnectionLost):
            await connection.send("stage", target="/workspace/group", removed=[], put={}, n=1)


async def test_an_agent_that_breaks_its_carrier_ends_at_once(host):
    script = """
frame(1, 'ack', turn=1)
box = pathlib.Path('../ipc/messages'); box.rename('../ipc/elsewhere'); box.write_text('no directory')
time.sleep(600)
"""
    async with host.running(script) as (_, container):
        await all_of(container)
        exited = await container.wait()
        assert host.started[container.ref].process.returncode == 70

    assert exited.code is None


async def test_a_host_that_starts_anew_hears_all_again_and_puts_in_place_what_counted(host):
    first = host.runtime(ONE_TURN)
    left = await first.start(host.spec(), "{}")
    await frames_of(left, until=2)
    await first.close()  # as kill -9 leaves it: staged, recorded, not in place
    host.recorded[left.run_id] = 2
    assert not (host.group / "notes").exists()

    second = host.runtime(ONE_TURN)
    try:
        (adopted,) = await second.adopt()
        assert (host.group / "notes" / "today.md").exists()
        (host.home / "input" / "_close").touch()
        assert (await all_of(adopted)).count(b'"kind"') == 2
        assert (await adopted.wait()).code == 0
        await adopted.remove()
    finally:
        await second.close()


async def test_a_host_that_starts_anew_knows_a_run_of_another_image(host):
    first = host.runtime(SLEEP)
    left = await first.start(host.spec(), "{}")
    await first.close()
    host.started[left.ref].service = replace(host.started[left.ref].service, is_outdated=True)

    second = host.runtime(SLEEP)
    try:
        (adopted,) = await second.adopt()
        assert adopted.is_outdated
        await adopted.remove()
    finally:
        await second.close()


async def test_a_host_that_starts_anew_refuses_no_carrier_before_it_has_found_its_runs(host):
    first = host.runtime(ONE_TURN)
    left = await first.start(host.spec(), "{}")
    await first.close()
    host.recorded[left.run_id] = 2

    second = host.runtime(ONE_TURN)
    try:
        asked, find = [], second.door._find
        second.door._find = lambda token_hash: (asked.append(token_hash), find(token_hash))[1]
        await second.open()
        early = await connect(second, host.token(left.ref), is_started=True, is_hardened=True)
        answer = asyncio.create_task(early.receive(), name="answer")
        await eventually(lambda: asked, "the host has looked for its run")
        (adopted,) = await second.adopt()
        assert (await answer).kind == "welcome"
        early.close()
        (host.home / "input" / "_close").touch()
        await all_of(adopted)  # its own carrier comes again, and is taken
        assert (await adopted.wait()).code == 0
        await adopted.remove()
    finally:
        await second.close()


async def test_a_run_that_the_engine_has_no_more_gives_what_counted_and_loses_the_rest(host):
    first = host.runtime(ONE_TURN)
    for run, recorded in (("r1", 2), ("r2", 1)):
        left = await first.start(host.spec(run), "{}")
        await frames_of(left, until=2)
        host.recorded[left.run_id] = recorded
        await first._engine.remove(left.ref)
    await first.close()

    second = host.runtime("")
    try:
        assert await second.adopt() == []
    finally:
        await second.close()

    assert (host.group / "notes" / "today.md").exists()
    assert list((host.home / "data" / "swarm").iterdir()) == []


async def test_two_runs_of_a_group_on_one_node_leave_each_other_alone(host):
    script = """
pathlib.Path(f"{json.loads(order)['run']}.md").write_text('mine')
frame(1, 'ack', turn=1)
until('../ipc/input/go')
frame(2, 'turn_end', turn=1)
until('../ipc/input/_close')
"""
    runtime = host.runtime(script)
    try:
        chat = await runtime.start(host.spec("r1"), '{"run": "r1"}')
        await appears(host.workspace / "group" / "r1.md")
        task = await runtime.start(host.spec("r2"), '{"run": "r2"}')
        (host.home / "input" / "go").touch()
        for one in (chat, task):
            assert await frames_of(one, until=2) == [1, 2]
            host.recorded[one.run_id] = 2
        (host.home / "input" / "_close").touch()
        for one in (chat, task):
            await all_of(one)
            await one.remove()
    finally:
        await runtime.close()

    assert sorted(path.name for path in host.group.iterdir()) == ["old.md", "r1.md", "r2.md"]
    assert list(host.workspace.parent.iterdir()) == [host.workspace]


async def test_a_run_waits_until_a_given_up_one_has_left_the_node(host):
    runtime = host.runtime(NO_END)
    try:
        old = await runtime.start(host.spec("r1"), "{}")
        await appears(host.workspace / "group" / "half.md")
        left = host.started.pop(old.ref)  # its node is cut off: the engine cannot end it
        os.kill(left.process.pid, 19)
        await old.remove()

        starting = asyncio.create_task(runtime.start(host.spec("r2"), "{}"), name="start")
        await eventually(lambda: "service-r2" in host.started, "its container is there")
        pid = host.started["service-r2"].process.pid
        await eventually(lambda: f"-> FLOCK  ADVISORY  WRITE {pid} " in LOCKS.read_text(), "it waits")
        runtime._engine.kill(left)
        await left.process.wait()
        await (await starting).remove()
    finally:
        await runtime.close()


async def test_silence_gives_a_run_up_and_a_carrier_that_comes_back_is_refused_and_ends(host, monkeypatch):
    monkeypatch.setattr(swarm_session, "SILENCE_SECONDS", 7.0)  # pings come every five
    async with host.running(NO_END) as (_, container):
        await appears(host.workspace / "group" / "half.md")
        process = host.started[container.ref].process
        os.kill(process.pid, 19)  # SIGSTOP: to the host as a cut cable
        await all_of(container)
        assert (await container.wait()).code is None
        os.kill(process.pid, 18)
        assert await process.wait() == 75

    assert not (host.group / "half.md").exists()


@only_in_soak
@pytest.mark.slow
async def test_a_host_that_is_slow_to_keep_files_does_not_give_a_healthy_run_up(host, monkeypatch):
    monkeypatch.setattr(swarm_session, "SILENCE_SECONDS", 7.0)  # pings come every five
    sync, slow = group_files._sync, threading.Event()

    def syncs_slowly(directory: Path) -> None:
        slow.wait(9.0)
        sync(directory)

    monkeypatch.setattr(group_files, "_sync", syncs_slowly)
    async with host.running(ONE_TURN) as (_, container):
        assert await frames_of(container, until=2) == [1, 2]


async def test_a_run_that_is_started_ahead_answers_with_the_files_of_its_first_turn(host):
    order = order_of("", agent="offline", turn=0).model_copy(update={"is_standby": True})
    runtime = host.runtime("")
    runtime._engine.command = [sys.executable, "-m", "agent_runner"]
    try:
        container = await runtime.start(host.spec(RUN), order.to_json())
        async with aclosing(container.output()) as output:
            text = b""
            while b"standby" not in text:
                text += await anext(output)
            (host.group / "todo.md").write_text("- [ ] bread\n")
            asked = order_of("todo buy stamps", agent="offline", turn=3)
            write_whole(host.home / "input" / unique_name(), asked.first_turn().to_json())
            while b"turn_end" not in text:
                text += await anext(output)
        assert b"Added to the to-do list: buy stamps." in text
        host.recorded[container.run_id] = 99
        await container.remove()
    finally:
        await runtime.close()
    left = (host.group / "todo.md").read_text()
    assert "bread" in left
    assert "buy stamps" in left


async def test_what_the_host_writes_arrives_before_the_turn_that_needs_it(host):
    script = """
frame(1, 'ready')
until('../ipc/input/turn.json')
print(pathlib.Path('../env/tasks.json').read_text(), pathlib.Path('told.md').read_text())
until('../ipc/replies/r.json')
"""
    async with host.running(script) as (_, container), aclosing(container.output()) as output:
        text = await anext(output)
        (host.home / "env" / "tasks.json").write_text("tasks")
        (host.group / "told.md").write_text("told")
        (host.home / "input" / "turn.json").write_text("{}")
        while b"told" not in text:
            text += await anext(output)
        (host.home / "replies" / "r.json").write_text("{}")
        async for chunk in output:
            text += chunk

    assert text.endswith(b"tasks told\n")


async def test_what_was_lost_with_a_connection_is_sent_again_before_the_turn_that_needs_it(host):
    script = """
frame(1, 'ready')
until('../ipc/input/turn.json')
print(pathlib.Path('told.md').read_text(), pathlib.Path('old.md').read_text())
"""
    lost = []

    async def lose(kind, payload=b"", **fields):
        lost.append((kind, fields.get("path")))

    async with host.running(script) as (_, container), aclosing(container.output()) as output:
        text = await anext(output)
        connection = container.session._connection
        connection.send = lose
        (host.group / "told.md").write_text("told")
        (host.group / "old.md").write_text("changed")
        (host.home / "input" / "turn.json").write_text("{}")
        await eventually(lambda: ("file", "turn.json") in lost, "all is on its way")
        connection.close()
        async for chunk in output:
            text += chunk

    assert text.endswith(b"told changed\n")


async def test_what_arrived_before_a_connection_broke_is_not_put_over_the_work_of_the_agent(host):
    script = """
frame(1, 'ready')
until('../ipc/input/turn.json')
pathlib.Path('told.md').write_text('mine')
pathlib.Path('begun').touch()
until('../ipc/input/again.json')
print(pathlib.Path('told.md').read_text())
"""
    async with host.running(script) as (_, container):
        connection = container.session._connection
        (host.group / "told.md").write_text("told")
        (host.home / "input" / "turn.json").write_text("{}")
        await appears(host.workspace / "group" / "begun")
        connection.close()
        await eventually(lambda: container.session._connection not in (None, connection), "it is back")
        (host.home / "input" / "again.json").write_text("{}")
        assert (await all_of(container)).endswith(b"mine\n")


async def test_what_a_turn_needs_is_sent_first_also_where_both_are_written_during_a_look(host, monkeypatch):
    read, send_file, sent = SharedTree.read, carrier_wire.send_file, []
    is_armed = threading.Event()

    def read_and_write(tree, cache):
        now = read(tree, cache)
        if tree.target == "/workspace/env" and is_armed.is_set():
            is_armed.clear()
            (host.home / "env" / "tasks.json").write_text("tasks")
            (host.home / "input" / "turn.json").write_text("{}")
        return now

    async def note_and_send(connection, tree, target, path, entry):
        sent.append(path)
        await send_file(connection, tree, target, path, entry)

    monkeypatch.setattr(SharedTree, "read", read_and_write)
    monkeypatch.setattr(carrier_wire, "send_file", note_and_send)
    async with host.running("frame(1, 'ready'); until('../ipc/input/turn.json')") as (_, container):
        is_armed.set()
        (host.home / "replies" / "r.json").write_text("{}")
        await all_of(container)

    assert sent.index("tasks.json") < sent.index("turn.json")


async def test_a_snapshot_that_is_written_anew_while_it_is_sent_arrives_over_the_same_connection(
    host, monkeypatch, connections
):
    script = """
frame(1, 'ready')
snapshot = pathlib.Path('../env/tasks.json')
while not (snapshot.exists() and snapshot.read_text() == 'the second'):
    time.sleep(0.01)
print('it is there')
"""
    send_file, sent = carrier_wire.send_file, []

    async def write_and_send(connection, tree, target, path, entry):
        sent.append(path)
        if sent.count("tasks.json") == 1:
            write_whole(tree / path, "the second", mode=0o600)
        await send_file(connection, tree, target, path, entry)

    monkeypatch.setattr(carrier_wire, "send_file", write_and_send)
    async with host.running(script) as (_, container), aclosing(container.output()) as output:
        text = await anext(output)
        write_whole(host.home / "env" / "tasks.json", "the first", mode=0o600)
        while b"it is there" not in text:
            text += await anext(output)
        assert len(connections) == 1


async def test_reading_what_was_written_for_an_agent_is_no_reason_to_look_again(host, monkeypatch):
    hints = []
    hint = CarrierSession._wake_comparison
    monkeypatch.setattr(CarrierSession, "_wake_comparison", lambda session: (hints.append(1), hint(session)))
    async with host.running(SLEEP):
        write_whole(host.home / "env" / "first.json", "{}")
        await appears(host.workspace / "env" / "first.json")
        for _ in range(200):
            (host.home / "env" / "first.json").read_text()
        write_whole(host.home / "env" / "last.json", "{}")
        await appears(host.workspace / "env" / "last.json")  # after all that the reading would have caused

        assert len(hints) < 20


async def test_a_file_that_changes_while_a_turn_ends_costs_a_second_look_and_not_the_connection(
    host, monkeypatch, connections
):
    seal, sealed = group_files.OpenStage.seal, []

    def seal_the_second(stage):
        sealed.append(stage.n)
        if len(sealed) == 1:
            raise StaleFile("a file that is not what was announced")
        seal(stage)

    monkeypatch.setattr(group_files.OpenStage, "seal", seal_the_second)
    async with host.running(ONE_TURN) as (_, container):
        assert await frames_of(container, until=2) == [1, 2]
        assert sealed == [2, 2]
        assert len(connections) == 1


async def test_requests_arrive_as_files_and_a_file_to_be_sent_arrives_before(host):
    script = """
frame(1, 'ready')
pathlib.Path('chart.png').write_bytes(b'png')
box = pathlib.Path('../ipc/tasks')
(box / '.1.partial').write_text(json.dumps({'type': 'send_file', 'path': '/workspace/group/chart.png'}))
(box / '.1.partial').rename(box / '1795405691483-6f28b620.json')
time.sleep(600)
"""
    async with host.running(script):
        await appears(host.home / "tasks" / "1795405691483-6f28b620.json")
        assert (host.group / "chart.png").read_bytes() == b"png"
        await eventually(
            lambda: not list((host.workspace / "ipc" / "tasks").iterdir()), "the request is removed"
        )


async def test_an_agent_reaches_the_hosts_proxies_from_an_address_of_its_run_alone(host):
    peers = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(writer.get_extra_info("peername")[0])
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, host.running(SLEEP) as (runtime, container):
        container.session.ports = frozenset({port})
        connection = await host.connect(runtime, container.ref, port=port)
        assert (await connection.receive()).kind == "welcome"
        connection.writer.write(b"hello\n")
        assert await connection.reader.readline() == b"hello\n"
        connection.close()

        refused = await host.connect(runtime, container.ref, port=22)
        assert (await refused.receive()).kind == "refused"
        refused.close()

    assert peers == [loopback_of("r1")]
    assert peers != [loopback_of("r2")]


async def test_a_host_under_compose_is_reached_at_one_port_where_no_container_takes_the_places_of_others(
    tmp_path,
):
    host = SwarmHarness(tmp_path, is_gate=True)
    async with host.running(SLEEP) as (runtime, container):
        secret = json.loads(host.started[container.ref].secret.read_text())
        assert secret["port"] == int((host.home / "data" / "carrier-port").read_text()) != runtime.door.port
        held = [
            await asyncio.open_connection("127.0.0.1", secret["port"], local_addr=("127.0.0.2", 0))
            for _ in range(MAX_OF_ONE + 1)
        ]
        reader, _ = held[-1]
        async with asyncio.timeout(DEADLINE_SECONDS):  # the door itself closes such a one after a minute
            assert await reader.read(1) == b"", "it has as many as it may have"
        for _, writer in held:
            writer.close()
        assert await frames_of(container, until=1) == [1]

    again = host.runtime(SLEEP)
    await again.open()
    assert (host.home / "data" / "carrier-port").read_text() == str(secret["port"])
    await again.close()


@pytest.mark.parametrize("text", ["", "port", "99999", "-1"])
async def test_a_spoilt_file_of_the_port_stops_no_start(host, text):
    (host.home / "data" / "carrier-port").write_text(text)
    runtime = host.runtime(SLEEP)
    await runtime.open()
    assert (host.home / "data" / "carrier-port").read_text() == str(runtime.door.port)
    await runtime.close()


async def test_files_of_an_earlier_turn_that_have_no_place_any_more_stop_no_start(host):
    gone = SharedTree("/workspace/group", host.home / "groups" / "gone", is_writable=True)
    for run, tree in {"r8": gone, "r9": replace(gone, source=host.group)}.items():
        stages = Stages(host.home / "data" / "swarm" / run)
        stage = stages.open(2)
        stage.extend(tree.target, Changes((), {run: Entry("dir", mode=0o755)}))
        stage.seal()
        RunFiles(shared={tree.target: tree}, mailboxes={}, stages=stages).write_record()
        host.recorded[RunId(run)] = 2
    runtime = host.runtime(SLEEP)

    assert await runtime.adopt() == []

    await runtime.close()
    assert (host.group / "r9").is_dir()
    assert [path.name for path in (host.home / "data" / "swarm").iterdir()] == ["r8"]


async def test_a_stranger_is_refused(host):
    async with host.running(SLEEP) as (runtime, _):
        for token in ("", "x" * 43):
            connection = await connect(runtime, token)
            assert (await connection.receive()).kind == "refused"
            connection.close()


async def test_a_node_that_lets_programs_gain_privileges_is_refused_with_the_fix(tmp_path):
    host = SwarmHarness(tmp_path, privileges=[])
    with pytest.raises(ContainerError, match="no-new-privileges"):
        async with host.running(SLEEP):
            pass
    assert host.started == {}


async def test_an_open_group_is_refused_with_the_fix(host):
    runtime = host.runtime(SLEEP)
    with pytest.raises(ContainerError, match="egress"):
        await runtime.start(replace(host.spec(), is_open=True), "{}")
    await runtime.close()
    assert host.started == {}


FILE = {"kind": "file", "mode": 0o644, "size": 3, "content": hashlib.sha256(b"abc").hexdigest()}

TREE = {"n": 2, "target": "/workspace/group", "removed": [], "put": {}}


@pytest.mark.parametrize(
    "messages",
    [
        [("stage", {**TREE, "put": {"../out": FILE}}, b"")],
        [("stage", {**TREE, "removed": ["../../data"]}, b"")],
        [("stage", {**TREE, "put": {"a": FILE}}, b""),
         ("file", {"target": "/workspace/group", "path": "b", "is_last": True}, b"abc")],
        [("stage", {**TREE, "put": {"a": FILE}}, b""),
         ("file", {"target": "/workspace/group", "path": "a", "is_last": True}, b"abcd")],
        [("stage", {**TREE, "put": {"a": FILE}}, b""),
         ("file", {"target": "/workspace/group", "path": "a", "is_last": True}, b"abd"),
         ("stage_end", {"n": 2}, b"")],
        [("stage", {**TREE, "put": {"a": FILE}}, b""), ("stage_end", {"n": 2}, b"")],
        [("stage", {**TREE, "n": -1}, b"")],
        [("out", {"at": 1_000}, b"late")],
        [("request", {"box": "tasks", "name": "../../x.json"}, b"{}")],
        [("request", {"box": "../groups/family", "name": "x.json"}, b"{}")],
        [("nonsense", {}, b"")],
        [("exit", {"code": "zero"}, b"")],
    ],
)  # fmt: skip
async def test_what_a_hostile_carrier_sends_is_refused_and_leaves_nothing(host, messages):
    before = {path for path in host.home.rglob("*") if "nodes" not in path.parts}
    async with host.running(SLEEP) as (runtime, container):
        host.recorded[container.run_id] = 9
        connection = await host.connect(runtime, container.ref, is_started=True, is_hardened=True)
        assert (await connection.receive()).kind == "welcome"
        for kind, fields, payload in messages:
            await connection.send(kind, payload, **fields)
        await until_refused(connection)
        connection.close()
        after = {path for path in host.home.rglob("*") if "nodes" not in path.parts}

        assert {path.relative_to(host.home).parts[:2] for path in after - before} <= {
            ("r1.secret",), ("data", "swarm"), ("data", "carrier.crt"), ("data", "carrier.key"),
            ("data", "carrier-port"), ("data", "swarm-nodes.json"),
        }  # fmt: skip
    assert sorted(path.name for path in host.group.iterdir()) == ["old.md"]


async def until_refused(connection: CarrierConnection) -> None:
    """Wait until the host ends the connection, or wants what was sent of a turn's files once more."""
    with suppress(ConnectionLost):
        while (kind := (await connection.receive()).kind) != "stale":
            assert kind != "staged"


async def until_staged(connection: CarrierConnection) -> None:
    while (await connection.receive()).kind != "staged":
        continue


async def test_a_link_in_the_way_of_a_turns_file_is_not_followed(host):
    outside = host.home / "data" / "token"
    outside.write_text("secret")
    async with host.running(SLEEP) as (runtime, container):
        host.recorded[container.run_id] = 9
        connection = await host.connect(runtime, container.ref, is_started=True, is_hardened=True)
        assert (await connection.receive()).kind == "welcome"
        link = {"kind": "link", "mode": 0, "size": 0, "content": "../../data"}
        tree = {"target": "/workspace/group", "removed": []}
        await connection.send("stage", n=2, **tree, put={"d": link})
        await connection.send("stage_end", n=2)
        await until_staged(connection)
        await container.session.settle()
        assert (host.group / "d").is_symlink()
        await connection.send("stage", n=3, **tree, put={"d/token": FILE})
        await connection.send("file", b"abc", target="/workspace/group", path="d/token", is_last=True)
        await connection.send("stage_end", n=3)
        await until_staged(connection)
        with suppress(OSError):
            await container.session.settle()
        connection.close()

    assert outside.read_text() == "secret"


async def test_more_files_than_may_travel_end_the_run_and_its_turn_does_not_count(host):
    script = """
frame(1, 'ack', turn=1)
open('big', 'wb').truncate(300 * 1024**2)
frame(2, 'turn_end', turn=1)
time.sleep(600)
"""
    async with host.running(script) as (_, container):
        assert (
            await all_of(container)
            == b"---NANOCLAW_OUTPUT_START---\n"
            + json.dumps({"v": 1, "n": 1, "kind": "ack", "turn": 1}, separators=(",", ":")).encode()
            + b"\n---NANOCLAW_OUTPUT_END---\n---NANOCLAW_OUTPUT_START---\n"
        )
        ended = await container.wait()

    assert ended.code == 137
    assert "256 MiB" in ended.stderr_tail


async def test_files_of_other_groups_and_of_read_only_folders_are_not_taken(host):
    (host.home / "groups" / "other").mkdir()
    async with host.running(SLEEP) as (runtime, container):
        host.recorded[container.run_id] = 9
        connection = await host.connect(runtime, container.ref, is_started=True, is_hardened=True)
        assert (await connection.receive()).kind == "welcome"
        targets = (
            "/workspace/global",
            "/workspace/../groups/other",
            "groups/other",
            "/workspace/env",
            "\ud800",
        )
        for target in targets:
            await connection.send("stage", n=2, target=target, removed=[], put={"a": FILE})
            await connection.send("file", b"abc", target=target, path="a", is_last=True)
        await connection.send("stage_end", n=2)
        await until_staged(connection)
        await container.session.settle()
        connection.close()

    assert not list(host.home.rglob("a"))


async def test_uploads_without_end_take_no_more_room_than_one(host):
    async with host.running(SLEEP) as (runtime, container):
        connection = await host.connect(runtime, container.ref, is_started=True, is_hardened=True)
        assert (await connection.receive()).kind == "welcome"
        for n in range(1, 30):  # begun, and never ended
            await connection.send("stage", **{**TREE, "n": n, "put": {"a": FILE}})
            await connection.send("file", b"abc", target=TREE["target"], path="a", is_last=True)
        await connection.send("request", b"{}", box="tasks", name="1.json")
        await appears(host.home / "tasks" / "1.json")
        assert len(list((host.home / "data" / "swarm" / "r1").glob(".[0-9]*"))) == 1

        with suppress(ConnectionLost):
            for n in range(100, 130):  # ended, and of no turn that counts
                await connection.send("stage_end", n=n)
            while (await connection.receive()).kind != "too_much":
                continue
        assert len(container.session.files.stages.sealed()) == MAX_SEALED
        connection.close()


@pytest.mark.slow
async def test_a_carrier_that_reads_nothing_holds_up_its_own_run_alone(host):
    async with host.running(SLEEP) as (runtime, container):
        connection = await host.connect(runtime, container.ref, is_started=True, is_hardened=True)
        assert (await connection.receive()).kind == "welcome"
        (host.home / "env" / "large").write_bytes(os.urandom(64 * 1024**2))
        await eventually(container.session._files_lock.locked, "the host sends it")

        other = await runtime.start(host.spec("r2"), "{}")
        assert await frames_of(other, until=1) == [1]
        await other.remove()
        assert container.session._files_lock.locked()
        connection.close()


SMALL_DISK = ("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs")


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk is mounted by root only")
async def test_a_node_whose_disk_is_full_says_so_and_takes_no_run(host):
    workspace = host.workspace
    workspace.mkdir(parents=True)
    await asyncio.to_thread(subprocess.run, [*SMALL_DISK, str(workspace)], check=True)
    try:
        (host.group / "large").write_bytes(os.urandom(4 * 1024**2))
        with pytest.raises(ContainerError, match="cannot take the group's files: No space left on device"):
            async with host.running(SLEEP):
                pass
        (host.group / "large").unlink()
        async with host.running(SLEEP) as (_, container):
            (host.home / "env" / "large").write_bytes(os.urandom(4 * 1024**2))
            await all_of(container)
            assert "No space left on device" in (await container.wait()).stderr_tail
    finally:
        await asyncio.to_thread(subprocess.run, ["umount", "-l", str(workspace)], check=True)


def remove_files_of_ended_faketimes() -> None:
    """Remove the shared memory of faketimes that have ended.

    One that is killed, as a container's processes are, leaves it. It is named by the process id, and if that
    is given to another faketime, that one does not start.
    """
    for path in Path("/dev/shm").glob("*faketime_s*_*"):
        if not Path("/proc", path.name.rpartition("_")[2]).exists():
            with suppress(OSError):  # it is another user's, or gone
                path.unlink()


@pytest.mark.parametrize("minutes", ["-5m", "+5m"])
async def test_a_node_whose_clock_is_minutes_apart_costs_nothing(tmp_path, minutes, request):
    if shutil.which("faketime") is None:
        pytest.skip("no faketime to set the clock of one process with: apt-get install faketime")
    remove_files_of_ended_faketimes()
    request.addfinalizer(remove_files_of_ended_faketimes)
    host = SwarmHarness(tmp_path, privileges=["setpriv", "--no-new-privs", "faketime", "-f", minutes])
    (host.group / "old.md").write_text("old")
    async with host.running(ONE_TURN) as (_, container), aclosing(container.output()) as output:
        text = b""
        while b"turn_end" not in text:
            text += await anext(output)
        host.recorded[container.run_id] = 2
        (host.home / "input" / "_close").touch()
        assert b"".join([chunk async for chunk in output]) is not None
        assert (await container.wait()).code == 0

    assert (host.group / "notes" / "today.md").read_text() == "milk" * 100_000
    assert not (host.group / "old.md").exists()


async def test_a_node_that_cannot_start_a_run_is_left_for_another_and_the_owner_is_told_once(host):
    host.machines[:] = [machine("bare"), machine("lax"), machine("well")]
    host.without_image, host.without_hardening = {"bare"}, {"lax"}
    runtime = host.runtime(SLEEP)
    try:
        for run in ("r1", "r2"):
            container = await runtime.start(host.spec(run), "{}")
            assert host.started[container.ref].service.node_id == "well"
            await container.remove()
    finally:
        await runtime.close()

    image, hardening = host.problems
    assert image.startswith("bare has not the agent image: 'andy nodes load-image'")
    assert hardening.startswith("lax lets programs gain privileges")


async def test_where_no_node_can_start_a_run_the_reason_is_told(host):
    host.machines[:] = [machine("bare"), machine("bare2")]
    host.without_image = {"bare", "bare2"}
    runtime = host.runtime(SLEEP)
    try:
        with pytest.raises(ContainerError, match="has not the agent image"):
            await runtime.start(host.spec(), "{}")
    finally:
        await runtime.close()

    assert host.started == {}
    assert len(host.problems) == 2


async def test_one_container_at_a_time_is_set_up_on_a_node(host):
    host.machines[:] = [machine("one"), machine("two")]
    host.slow[:] = ["one"]
    runtime = host.runtime(SLEEP)
    starts = []

    def start(run):
        starts.append(asyncio.create_task(runtime.start(host.spec(run, folder=Folder(run)), "{}")))

    try:
        start("r1")
        await eventually(lambda: "service-r1" in host.started, "the first is being set up")
        start("r2")
        await starts[1]  # on the other node
        start("r3")
        await eventually(lambda: runtime.placement.occupied.get("r3") == "one", "the third has a slot")
        start("r4")
        await starts[3]
        assert set(host.started) == {"service-r1", "service-r2", "service-r4"}

        starts[0].cancel()
        await starts[2]
        assert set(host.started) == {"service-r2", "service-r3", "service-r4"}
    finally:
        for one in starts:
            one.cancel()
        await asyncio.gather(*starts, return_exceptions=True)
        for container in await runtime.adopt():
            await container.remove()
        await runtime.close()


@pytest.mark.parametrize("others", [[machine("b")], []])
async def test_a_run_that_does_not_come_up_where_others_did_is_begun_anew_elsewhere_if_there_is_room(
    host, monkeypatch, others
):
    monkeypatch.setattr(swarm_runtime, "CONNECT_SECONDS", 0.0)
    monkeypatch.setattr(swarm_runtime, "SETTING_UP_SECONDS", 0.0)
    host.machines[:] = [machine("a"), *others]
    runtime = host.runtime(SLEEP, slots_per_node=1)
    try:
        await (await runtime.start(host.spec("r1"), "{}")).remove()
        host.slow[:] = ["a"]

        container = await runtime.start(host.spec("r2"), "{}")

        assert host.slow == []
        assert host.started[container.ref].service.node_id == ("b" if others else "a")
        assert host.problems == []
        await container.remove()
    finally:
        await runtime.close()


async def test_a_node_that_may_have_to_fetch_the_image_is_given_the_time(host, monkeypatch):
    monkeypatch.setattr(swarm_runtime, "CONNECT_SECONDS", 0.0)
    monkeypatch.setattr(swarm_runtime, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(swarm_runtime, "SETTING_UP_SECONDS", 0.0)
    host.machines[:] = [machine("a"), machine("b")]
    runtime = host.runtime(SLEEP)
    try:
        container = await runtime.start(host.spec("r1"), "{}")  # nothing ever came up there
        assert host.started[container.ref].service.node_id == "a"
        await container.remove()
    finally:
        await runtime.close()


async def test_a_manager_whose_engine_is_away_for_a_moment_costs_no_start(host, monkeypatch):
    async def away(self, ref):
        raise EngineGone

    monkeypatch.setattr(ProcessSwarmEngine, "task", away)
    monkeypatch.setattr(swarm_runtime, "LOOK_SECONDS", 0.001)
    async with host.running(SLEEP) as (_, container):
        assert container.session.is_connected


async def test_a_start_that_is_cancelled_while_its_failure_is_cleared_away_is_cancelled(host, monkeypatch):
    is_removing = asyncio.Event()

    async def hang(self, ref):
        is_removing.set()
        await asyncio.Event().wait()

    host.without_image = {"one"}
    runtime = host.runtime(SLEEP)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(ProcessSwarmEngine, "remove", hang)
            start = asyncio.create_task(runtime.start(host.spec(), "{}"))
            await is_removing.wait()
            start.cancel()
            await asyncio.wait([start])
        assert start.cancelled()
        assert await runtime.adopt() == []  # a later host removes what is left
        assert host.started == {}
    finally:
        await runtime.close()


async def test_what_a_failed_start_leaves_while_the_engine_is_away_is_removed_later(host, monkeypatch):
    async def away(self, ref):
        raise EngineGone

    host.without_image = {"one"}
    runtime = host.runtime(SLEEP)
    remove = ProcessSwarmEngine.remove
    monkeypatch.setattr(ProcessSwarmEngine, "remove", away)
    try:
        with pytest.raises(EngineGone):  # so that whoever starts it looks for what is left
            await runtime.start(host.spec(), "{}")
        assert list(host.started) == ["service-r1"]
        monkeypatch.setattr(ProcessSwarmEngine, "remove", remove)
        assert await runtime.adopt() == []
        assert host.started == {}
    finally:
        await runtime.close()


async def test_a_start_that_is_cancelled_while_its_node_is_noted_leaves_nothing(host, monkeypatch):
    is_noting, may_go_on = threading.Event(), threading.Event()

    def note_started(*_):
        is_noting.set()
        may_go_on.wait()

    monkeypatch.setattr(NodeMemory, "note_started", note_started)
    runtime = host.runtime(SLEEP)
    try:
        starting = asyncio.create_task(runtime.start(host.spec(), "{}"))
        await eventually(is_noting.is_set, "its node is noted")
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert (host.started, runtime.placement.occupied) == ({}, {})
    finally:
        may_go_on.set()
        for container in await runtime.adopt():
            await container.remove()
        await runtime.close()


async def test_a_run_that_a_full_disk_does_not_record_leaves_nothing(host, monkeypatch):
    def write_record(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RunFiles, "write_record", write_record)
    runtime = host.runtime(SLEEP)
    try:
        with pytest.raises(OSError, match="No space"):
            await runtime.start(host.spec(), "{}")
    finally:
        await runtime.close()
    assert list((host.home / "data" / "swarm").iterdir()) == []
    assert (host.started, runtime.placement.occupied) == ({}, {})


async def test_the_slots_of_nodes_are_kept_also_by_a_host_that_starts_anew(host, monkeypatch):
    monkeypatch.setattr(swarm_runtime, "FULL_SECONDS", 0.0)
    host.machines[:] = [machine("a"), machine("b")]
    first = host.runtime(SLEEP, slots_per_node=1)
    await first.start(host.spec("r1"), "{}")
    assert first.placement.room == 2
    await first.close()

    second = host.runtime(SLEEP, slots_per_node=1)
    try:
        (adopted,) = await second.adopt()
        other = await second.start(host.spec("r2", folder=Folder("work")), "{}")
        assert {one.service.node_id for one in host.started.values()} == {"a", "b"}
        with pytest.raises(ContainerError, match="All nodes are full"):
            await second.start(host.spec("r3", folder=Folder("third")), "{}")

        await adopted.remove()
        third = await second.start(host.spec("r3", folder=Folder("third")), "{}")
        for container in (other, third):
            await container.remove()
    finally:
        await second.close()


async def test_a_group_goes_back_to_the_node_that_has_its_files(host):
    host.machines[:] = [machine("a"), machine("b")]
    runtime = host.runtime(SLEEP)
    try:
        busy = await runtime.start(host.spec("r1", folder=Folder("work")), "{}")
        for run in ("r2", "r3"):
            container = await runtime.start(host.spec(run), "{}")
            assert host.started[container.ref].service.node_id == "b"
            await container.remove()
            if run == "r2":
                await busy.remove()
    finally:
        await runtime.close()
