"""What only a Docker engine does: flags, adoption, networks, a broken engine."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import ipaddress
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, aclosing

import docker
import pytest

from agent_runner.wire.frames import Result, encode_frame
from orchestrator.containers import firewall as firewall_module
from orchestrator.containers import runtime_selection
from orchestrator.containers.docker import network
from orchestrator.containers.docker import runtime as docker_engine
from orchestrator.containers.docker.runtime import DockerRuntime, container_name
from orchestrator.containers.firewall import Firewall, FirewallOutOfReach
from orchestrator.containers.image import build
from orchestrator.containers.mounts import prepare
from orchestrator.domain.errors import ContainerError, EngineGone, ImageMissing
from orchestrator.domain.protocols import Mount
from orchestrator.domain.values import ChatJid, Folder, Group, RunId
from tests.processes.andy import AndyProcess
from tests.processes.engine_relay import EngineRelay
from tests.support.runtimes import DockerBench, a_spec, all_of, eventually, line_of, running
from tests.support.skips import THIS_MACHINE

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]

SLEEP = "import time\nprint('up', flush=True)\nwhile True: time.sleep(60)"
TALK = """
import sys, time
print('가' * 5, 'x' * 40_000, flush=True)
print('aside', file=sys.stderr, flush=True)
sys.stdin.readline()
print('more', flush=True)
while True: time.sleep(60)
"""
REACH = """
import json, socket, sys
for host, port in json.loads(sys.stdin.readline()):
    try:
        socket.create_connection((host, port), timeout=2).close()
        print('reached')
    except OSError as error:
        print('refused' if isinstance(error, ConnectionRefusedError) else 'closed')
"""
SERVE = """
import socket
server = socket.create_server(('0.0.0.0', 8000))
print(socket.gethostbyname(socket.gethostname()), flush=True)
while True: server.accept()
"""
NAME_OF = """
import socket
print(socket.gethostbyaddr(input()))
"""
RESOLVE = """
import socket, time
begun = time.monotonic()
try:
    print(socket.gethostbyname('example.com'))
except OSError:
    print('no name')
"""


@pytest.fixture
def bench(docker_client, request) -> Iterator[DockerBench]:
    tag = build.TAG if build.is_present(docker_client) else request.getfixturevalue("agent_image")
    docker_bench = DockerBench(docker_client, tag)
    yield docker_bench
    docker_bench.clear()


@pytest.fixture
async def closed_network(bench):
    made = await network.ensure_network(bench.install)
    yield made
    await asyncio.to_thread(bench.clear)
    await network.remove_network(bench.install)


def on_network(bench: DockerBench, script: str, name: str) -> DockerRuntime:
    return DockerRuntime(
        install=bench.install,
        image=bench.image,
        network=name,
        user="1000:1000",
        command=["python3", "-S", "-c", script],
    )


async def test_an_engine_that_answers_is_found():
    await docker_engine.probe()


async def test_an_engine_that_is_not_there_is_said_so(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")

    with pytest.raises(EngineGone, match="--runtime process"):
        await docker_engine.probe()


async def test_an_engine_that_never_answers_is_given_up(monkeypatch, tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "deaf.sock"))
        server.listen()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/deaf.sock")
        monkeypatch.setattr(docker_engine, "ANSWER_SECONDS", 0.1)

        with pytest.raises(EngineGone):
            await docker_engine.probe()


async def test_an_engine_that_listens_is_given_time_to_answer(monkeypatch, tmp_path):
    async def answer_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.5)  # so slow it is
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 22\r\n\r\n{"ApiVersion": "1.41"}')
        writer.close()

    server = await asyncio.start_unix_server(answer_late, str(tmp_path / "slow.sock"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/slow.sock")
    monkeypatch.setattr(docker_engine, "PING_SECONDS", 0.1)
    async with server:
        await docker_engine.probe()


async def test_a_missing_image_is_named_as_such_and_leaves_nothing(bench):
    runtime = DockerRuntime(install=bench.install, image="andy-none:0", network=None, user="1000:1000")

    with pytest.raises(ImageMissing, match="andy image build"):
        await runtime.start(a_spec(), "{}")

    await runtime.close()
    assert bench.left() == []


async def test_a_missing_network_is_refused_and_leaves_nothing(bench):
    runtime = on_network(bench, SLEEP, "andy-none")

    with pytest.raises(ContainerError, match="andy-none"):
        await runtime.start(a_spec(), "{}")

    await runtime.close()
    assert bench.left() == []


async def test_a_container_has_every_restriction(bench, tmp_path):
    mounts = (
        Mount(source=tmp_path, target="/workspace/env"),
        Mount(source=tmp_path, target="/workspace/group", is_writable=True),
    )
    spec = a_spec(run_id=RunId("r:1"), folder=Folder("family"), mounts=mounts, environment={"A": "b"})

    async with running(bench.runtime(SLEEP), spec=spec) as container:
        seen = await asyncio.to_thread(bench.client.inspect_container, container.ref)

    host, config = seen["HostConfig"], seen["Config"]
    assert seen["Name"] == "/andy-r-1"
    assert config["User"] == "1000:1000"
    assert config["Labels"]["andy.install"] == bench.install
    assert (config["Labels"]["andy.group"], config["Labels"]["andy.run"]) == ("family", "r:1")
    assert "A=b" in config["Env"]
    assert config["StopSignal"] == "SIGTERM"
    assert host["Init"]
    assert host["ReadonlyRootfs"]
    assert not host["AutoRemove"]
    assert not host["Privileged"]
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["Memory"] == host["MemorySwap"] == 2 * 1024**3
    assert host["NanoCpus"] == 2_000_000_000
    assert host["PidsLimit"] == 512
    assert host["NetworkMode"] == "none"
    assert host["LogConfig"] == {"Type": "json-file", "Config": {"max-size": "16m", "max-file": "4"}}
    assert "mode=1777" in host["Tmpfs"]["/tmp"]
    assert {(each["Destination"], each["RW"], each["Propagation"]) for each in seen["Mounts"]} == {
        ("/workspace/env", False, "private"),
        ("/workspace/group", True, "private"),
    }


async def test_the_root_is_read_only_and_scratch_is_not(bench):
    script = """
import os
for path in ('/tmp/x', '/home/andy/x', '/x', '/usr/x', '/etc/x'):
    try:
        open(path, 'w').close(); print('yes', end=' ')
    except OSError: print('no', end=' ')
print(os.getuid(), os.getgid())
"""
    async with running(bench.runtime(script)) as container:
        assert await all_of(container) == b"yes yes no no no 1000 1000\n"


async def test_a_container_that_eats_its_memory_is_told_as_such(bench):
    spec = a_spec(memory_bytes=32 * 1024**2)

    async with running(bench.runtime("x = bytearray(200 * 1024**2)"), spec=spec) as container:
        await all_of(container)
        ended = await container.wait()

    assert ended.was_oom_killed
    assert ended.code == 137


async def test_a_later_host_hears_a_container_from_its_first_byte(bench):
    earlier, later = bench.runtime(TALK), bench.runtime(TALK)
    expected = ("가" * 5 + " " + "x" * 40_000 + "\nmore\n").encode()
    started = await earlier.start(a_spec(), "go")
    async with aclosing(started.output()) as output:
        await line_of(output)
    await earlier.close()

    (adopted,) = await later.adopt()

    assert (adopted.run_id, adopted.folder, adopted.ref) == (started.run_id, started.folder, started.ref)
    async with aclosing(adopted.output()) as output:
        heard = b""
        while not heard.endswith(b"more\n"):
            heard += await anext(output)
        await adopted.stop(grace_seconds=0)
        heard += b"".join([chunk async for chunk in output])
    assert heard == expected
    assert (await adopted.wait()).stderr_tail == "aside\n"
    await adopted.remove()
    await later.close()


async def test_a_long_korean_frame_is_heard_again_as_it_was_said(bench):
    frame = encode_frame(Result(n=1, turn=1, result="가나다 --- " * 9_000))
    script = "import sys; sys.stdout.buffer.write(bytes.fromhex(sys.stdin.readline()))"
    earlier, later = bench.runtime(script), bench.runtime(script)
    assert await all_of(await earlier.start(a_spec(), frame.hex())) == frame
    await earlier.close()

    (adopted,) = await later.adopt()

    assert await all_of(adopted) == frame
    await adopted.remove()
    await later.close()


async def test_a_container_that_ended_without_a_host_is_adopted_with_its_output(bench):
    earlier, later = bench.runtime("print('said')"), bench.runtime("")
    started = await earlier.start(a_spec(), "go")
    await started.wait()
    await earlier.close()

    (adopted,) = await later.adopt()

    assert await all_of(adopted) == b"said\n"
    assert (await adopted.wait()).code == 0
    await adopted.remove()
    assert await later.adopt() == []
    await later.close()


async def test_a_container_is_outdated_once_the_name_of_its_image_is_another_images(bench, docker_client):
    name = f"andy-{bench.install}"
    docker_client.tag(bench.image, name, "latest")
    try:
        earlier, later = bench.runtime(SLEEP, image=name), bench.runtime("", image=name)
        started = await earlier.start(a_spec(), "go")
        await earlier.close()
        (same,) = await later.adopt()
        assert not same.is_outdated

        await asyncio.to_thread(docker_client.commit, started.ref, name, "latest")
        (other,) = await later.adopt()
        assert other.is_outdated

        # Where no image bears the name now, nothing could take its place.
        await asyncio.to_thread(docker_client.remove_image, name, force=True)
        (alone,) = await later.adopt()
        assert not alone.is_outdated
        await alone.remove()
        await later.close()
    finally:
        for image in docker_client.images(name=name, quiet=True):
            docker_client.remove_image(image, force=True)


async def test_a_container_that_was_never_started_is_removed_by_the_next_host(bench):
    runtime = bench.runtime("")
    labels = {"andy.install": bench.install, "andy.group": "family", "andy.run": "r1"}
    await asyncio.to_thread(bench.client.create_container, bench.image, ["true"], labels=labels)

    assert await runtime.adopt() == []

    await runtime.close()
    assert bench.left() == []


async def test_a_container_that_is_started_while_others_are_listed_is_left_alone(bench, monkeypatch):
    runtime = bench.runtime(SLEEP)
    made, listed, started = threading.Event(), threading.Event(), threading.Event()
    start, containers = docker.APIClient.start, docker.APIClient.containers

    def starts_once_listed(client, ref):
        made.set()
        listed.wait()
        start(client, ref)

    def lists_what_is_started_then(client, **wanted):
        made.wait()
        found = containers(client, **wanted)
        listed.set()
        started.wait()
        return found

    monkeypatch.setattr(docker.APIClient, "start", starts_once_listed)
    monkeypatch.setattr(docker.APIClient, "containers", lists_what_is_started_then)
    adopting = asyncio.create_task(runtime.adopt(), name="adopt")
    container = await runtime.start(a_spec(), "{}")
    started.set()
    assert await adopting == []
    monkeypatch.undo()

    assert bench.left() == [container.ref]
    await container.remove()
    await runtime.close()


async def test_containers_of_other_installs_are_not_touched(bench, docker_client):
    other = DockerBench(docker_client, bench.image)
    own, others = bench.runtime(SLEEP), other.runtime(SLEEP)
    kept = await others.start(a_spec(), "{}")

    assert await own.adopt() == []

    (seen,) = await others.adopt()
    assert seen.ref == kept.ref
    await kept.remove()
    await own.close()
    await others.close()


async def test_a_removed_container_has_an_end_nobody_knows(bench):
    async with running(bench.runtime(SLEEP)) as container:
        await container.remove()

        assert (await container.wait()).code is None


async def test_closing_the_output_ends_its_thread_and_not_the_container(bench):
    def threads() -> list[str]:
        """Return the names of this container's threads; the one that hands it its order ends by itself."""
        names = [each.name for each in threading.enumerate() if each.name.endswith(container.run_id)]
        return [name for name in names if not name.startswith("order-")]

    async with running(bench.runtime(SLEEP)) as container:
        async with aclosing(container.output()) as output:
            await line_of(output)
            assert threads() == [f"output-{container.run_id}"]

        await eventually(lambda: threads() == [], "the thread has ended")
        seen = await asyncio.to_thread(bench.client.inspect_container, container.ref)
        assert seen["State"]["Running"]


async def test_closing_the_engine_ends_its_threads_and_leaves_its_containers(bench):
    runtime = bench.runtime(SLEEP)
    container = await runtime.start(a_spec(), "{}")
    hearing = asyncio.create_task(all_of(container), name="hear")
    waiting = asyncio.create_task(container.wait(), name="wait")
    both = {f"{each}-{container.run_id}" for each in ("output", "wait")}
    await eventually(lambda: both <= {t.name for t in threading.enumerate()}, "both are open")

    await runtime.close()

    assert all(
        isinstance(each, EngineGone)
        for each in await asyncio.gather(hearing, waiting, return_exceptions=True)
    )
    await eventually(lambda: not [t for t in threading.enumerate() if container.run_id in t.name], "none")
    assert bench.left() == [container.ref]


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # docker-py's own, where none listens
async def test_an_engine_that_breaks_off_is_told_and_its_container_heard_again(bench, monkeypatch, tmp_path):
    relay = await EngineRelay.begin(tmp_path / "engine.sock")
    monkeypatch.setenv("DOCKER_HOST", relay.address)
    runtime = bench.runtime(SLEEP)
    container = await runtime.start(a_spec(), "{}")
    hearing = asyncio.create_task(all_of(container), name="hear")
    waiting = asyncio.create_task(container.wait(), name="wait")
    await eventually(lambda: relay.streams >= 2, "both streams are open")

    await relay.end()

    with pytest.raises(EngineGone):
        await hearing
    with pytest.raises(EngineGone):
        await waiting
    with pytest.raises(EngineGone):
        await runtime.adopt()

    relay = await EngineRelay.begin(tmp_path / "engine.sock")
    (again,) = await runtime.adopt()
    async with aclosing(again.output()) as output:
        assert await line_of(output) == b"up\n"
    await again.remove()
    await runtime.close()
    await relay.end()
    del hearing, waiting
    gc.collect()


async def test_a_container_reaches_the_hosts_door_and_not_its_loopback(bench, closed_network):
    with (
        socket.create_server((closed_network.gateway, 0)) as door,
        socket.create_server(("127.0.0.1", 0)) as private,
    ):
        addresses = [
            (closed_network.gateway, door.getsockname()[1]),
            (closed_network.gateway, private.getsockname()[1]),
            ("127.0.0.1", private.getsockname()[1]),
        ]
        runtime = on_network(bench, REACH, closed_network.name)
        async with running(runtime, order=json.dumps(addresses)) as container:
            assert (await all_of(container)).split() == [b"reached", b"refused", b"refused"]


@pytest.fixture
async def firewall(bench, closed_network):
    """The rule of this install, not applied yet."""
    rule = Firewall(install=bench.install, bridge=closed_network.bridge, gateway=closed_network.gateway)
    try:
        await asyncio.to_thread(rule.is_applied)
    except FirewallOutOfReach as error:
        pytest.skip(f"{THIS_MACHINE}its firewall cannot be set: {error}")
    yield rule
    await asyncio.to_thread(rule.remove)


@pytest.fixture
async def neighbour(bench, docker_client):
    """The network of another install."""
    other = f"{bench.install}n"
    yield await network.ensure_network(other)
    await network.remove_network(other)


def lan_address() -> str:
    """The address by which this machine is known to others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # nothing is sent
        return probe.getsockname()[0]


async def test_with_the_firewall_a_container_reaches_the_proxies_and_nothing_else_of_the_host(
    bench, docker_client, closed_network, neighbour, firewall
):
    bridge = await asyncio.to_thread(docker_client.inspect_network, "bridge")
    docker0 = str(ipaddress.ip_network(bridge["IPAM"]["Config"][0]["Subnet"])[1])
    places = [closed_network.gateway, closed_network.gateway, docker0, lan_address(), neighbour.gateway]
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server((place, 0))) for place in places]
        addresses = [one.getsockname() for one in listeners]

        async def seen() -> list[bytes]:
            runtime = on_network(bench, REACH, closed_network.name)
            async with running(runtime, order=json.dumps(addresses)) as container:
                return (await all_of(container)).split()

        assert await seen() == [b"reached"] * 5
        for _ in range(2):  # also again, as at the next start
            await asyncio.to_thread(firewall.apply, [addresses[0][1]])
            assert await asyncio.to_thread(firewall.is_applied)
            assert await seen() == [b"reached"] + [b"refused"] * 4
        await asyncio.to_thread(firewall.remove)
        assert not await asyncio.to_thread(firewall.is_applied)
        assert await seen() == [b"reached"] * 5


def test_the_firewall_is_set_at_the_start_and_taken_away_at_the_stop(agent_image, tmp_path):
    with AndyProcess(tmp_path / "home", runtime="docker") as andy:
        rule = Firewall(install=andy.install, bridge="", gateway="")
        try:
            rule.is_applied()
        except FirewallOutOfReach as error:
            pytest.skip(f"{THIS_MACHINE}its firewall cannot be set: {error}")
        (told,) = [one for one in andy.listed("doctor") if one["check"] == "firewall"]
        assert (told["state"], rule.exists()) == ("ok", True)
        assert andy.terminate() == 0
        assert not rule.exists()


async def no_owner(_: str) -> None:
    pass


async def no_frame(_: RunId) -> int:
    return 0


async def test_where_the_firewall_cannot_be_set_that_is_said(monkeypatch, tmp_path):
    said = []
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(firewall_module, "ADMIN_PATH", "")
    rule = Firewall(install="i", bridge="lo", gateway="127.0.0.1")
    chosen = dataclasses.replace(
        await runtime_selection.choose(
            "process",
            home=tmp_path,
            install="i",
            tag="",
            used_runtimes=(),
            last_frame=no_frame,
            on_log=lambda *_: None,
            on_node_problem=no_owner,
            slots_per_node=0,
            say=lambda _: None,
        ),
        firewall=rule,
    )

    await chosen.block_other_ports([1], said.append)
    await chosen.remove_port_block()

    (line,) = said
    assert "there is no iptables" in line
    assert "andy doctor" in line


async def test_no_folder_of_a_group_is_in_a_name_that_others_can_look_up(bench, closed_network):
    serving = on_network(bench, SERVE, closed_network.name)
    spec = a_spec(folder=Folder("my-divorce"))
    async with running(serving, spec=spec) as server, aclosing(server.output()) as output:
        address = (await line_of(output)).decode().strip()
        async with running(on_network(bench, NAME_OF, closed_network.name), order=address) as other:
            found = (await all_of(other)).decode()
    assert spec.run_id in found
    assert "divorce" not in found


async def test_a_container_reaches_nothing_outside(bench, docker_client, closed_network):
    outside = await asyncio.to_thread(
        docker_client.create_container, bench.image, entrypoint=["python3", "-S", "-c", SERVE]
    )
    try:
        await asyncio.to_thread(docker_client.start, outside)
        seen = await asyncio.to_thread(docker_client.inspect_container, outside)
        address = seen["NetworkSettings"]["IPAddress"]
        runtime = on_network(bench, REACH, closed_network.name)
        async with running(runtime, order=json.dumps([(address, 8000)])) as container:
            assert await all_of(container) == b"closed\n"
        made = await asyncio.to_thread(docker_client.inspect_network, closed_network.name)
        assert made["Internal"]
    finally:
        await asyncio.to_thread(docker_client.remove_container, outside, force=True)


async def test_no_name_is_looked_up_for_a_container(bench, closed_network):
    async with running(on_network(bench, RESOLVE, closed_network.name)) as container:
        assert await all_of(container) == b"no name\n"


async def test_groups_do_not_reach_each_other(bench, closed_network):
    serving = on_network(bench, SERVE, closed_network.name)
    async with running(serving) as server, aclosing(server.output()) as output:
        address = (await line_of(output)).decode().strip()
        asking = on_network(bench, REACH, closed_network.name)
        async with running(asking, order=json.dumps([(address, 8000)])) as container:
            assert await all_of(container) == b"closed\n"


async def test_a_network_is_made_once_however_many_ask(bench):
    made = await asyncio.gather(*(network.ensure_network(bench.install) for _ in range(4)))

    assert len(set(made)) == 1
    found = await asyncio.to_thread(bench.client.networks, names=[made[0].name])
    assert len(found) == 1
    await network.remove_network(bench.install)
    await network.remove_network(bench.install)


async def test_an_open_network_of_the_same_name_is_refused(bench):
    name = f"andy-{bench.install}"
    await asyncio.to_thread(bench.client.create_network, name, driver="bridge")
    try:
        with pytest.raises(ContainerError, match=f"docker network rm {name}"):
            await network.ensure_network(bench.install)
    finally:
        await asyncio.to_thread(bench.client.remove_network, name)


def test_a_name_has_only_characters_that_the_engine_takes():
    spec = a_spec(run_id=RunId("a/b:c d"), folder=Folder("my_group"))

    assert container_name(spec) == "andy-a-b-c-d"


async def test_main_sees_the_home_without_its_secrets_and_writes_its_own_alone(bench, tmp_path):
    script = """
import os
def can_write(path):
    try:
        open(path + '/.probe', 'w').close(); return True
    except OSError: return False
print(sorted(os.listdir('/workspace/project')))
print(open('/workspace/project/README.md').read())
for path in (
    'project', 'project/groups', 'group', 'env', 'ipc/input', 'ipc/replies', 'ipc/messages', 'ipc/tasks'
):
    print(path, can_write('/workspace/' + path))
print(can_write('/home/andy/.claude'))
"""
    tmp_path.chmod(0o755)
    (tmp_path / ".env").write_text("ANTHROPIC_API_KEY=secret")
    (tmp_path / "README.md").write_text("read me")
    group = Group(jid=ChatJid("local:main"), name="Main", folder=Folder("main"), is_main=True)
    uid = os.getuid() or 1000
    planned = await asyncio.to_thread(prepare, group, home=tmp_path, uid=uid)

    async with running(bench.runtime(script), spec=a_spec(mounts=planned)) as container:
        said = (await all_of(container)).decode().splitlines()

    assert said == [
        "['README.md', 'groups']",
        "read me",
        "project False",
        "project/groups False",
        "group True",
        "env False",
        "ipc/input False",
        "ipc/replies False",
        "ipc/messages True",
        "ipc/tasks True",
        "True",
    ]
    assert not [
        path for path in (tmp_path / "data" / "project").rglob("*") if path.stat().st_uid != os.getuid()
    ]
