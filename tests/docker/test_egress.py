"""What containers reach, from inside real ones: nothing, a list, or what an open network leads to.

The internet is a table of names and a server on loopback; what lies outside is a container of the test.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial

import docker
import pytest

from agent_runner.wire.listeners import listen
from orchestrator.containers.docker import network
from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.network_targets import parse_target
from orchestrator.domain.values import Folder, RunId
from orchestrator.proxies.egress.proxy import EgressCaller, EgressProxy
from orchestrator.store.audit import AuditEvent
from tests.doubles.clock import FakeClock
from tests.processes.small_internet import PUBLIC, SmallInternet
from tests.support.outside_container import OutsideContainer
from tests.support.runtimes import DockerBench, a_spec, all_of, running
from tests.support.until import until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]

ASK = """
import http.client, json, os, socket, sys, urllib.parse
order = json.loads(sys.stdin.readline())
proxy = urllib.parse.urlsplit(os.environ.get('HTTPS_PROXY', ''))
for host, port in order['through']:
    import base64
    proof = base64.b64encode(f'{proxy.username}:{proxy.password}'.encode()).decode()
    line = http.client.HTTPConnection(proxy.hostname, proxy.port, timeout=60)
    line.set_tunnel(host, port, {'Proxy-Authorization': f'Basic {proof}'})
    try:
        line.request('GET', '/')
        print(host, port, line.getresponse().read().decode())
    except OSError as error:
        print(host, port, error)
for host, port in order['straight']:
    try:
        socket.create_connection((host, port), timeout=3).close()
        print(host, port, 'reached')
    except OSError as error:
        print(host, port, 'no')
print('networks', len(os.listdir('/sys/class/net')) - 1)
print('proxies', sorted(name for name in os.environ if 'proxy' in name.lower()))
"""


@asynccontextmanager
async def way_out(gateway: str, *allowed: str) -> AsyncIterator[tuple[str, list[AuditEvent]]]:
    """A proxy on the gateway for the token `t`; the internet answers "hello" to everything."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello")
        writer.close()

    async def identify(token: str) -> EgressCaller | None:
        targets = frozenset(parse_target(text) for text in allowed)
        known = EgressCaller(run_id=RunId("r"), folder=Folder("family"), turn_id=None, allowed=targets)
        return known if token == "t" else None

    events: list[AuditEvent] = []
    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    names = {"good.example": [[PUBLIC]], "other.example": [[PUBLIC]], "home.example": [["127.0.0.1"]]}
    internet = SmallInternet(port=server.sockets[0].getsockname()[1], names=names)
    listener = listen(gateway, 0)
    proxy = EgressProxy(listener, identify=identify, note=events.append, clock=FakeClock(), internet=internet)
    task = asyncio.create_task(proxy.serve(), name="egress")
    try:
        yield f"http://run:t@{gateway}:{listener.getsockname()[1]}", events
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        proxy.close()
        server.close()
        await server.wait_closed()


async def asked(
    bench: DockerBench,
    joined: str,
    *,
    through: list[tuple[str, int]],
    straight: list[tuple[str, int]],
    environment: Mapping[str, str] | None = None,
    is_open: bool = False,
) -> list[str]:
    engine = DockerRuntime(
        install=bench.install,
        image=bench.image,
        network=joined,
        open_network=partial(network.open_network, install=bench.install),
        user="1000:1000",
        command=["python3", "-S", "-c", ASK],
    )
    order = json.dumps({"through": through, "straight": straight})
    spec = a_spec(environment=dict(environment or {}), is_open=is_open)
    async with running(engine, order=order, spec=spec) as container:
        return (await all_of(container)).decode().splitlines()


async def test_a_list_lets_out_to_exactly_what_is_on_it(
    network_bench: DockerBench, outside: OutsideContainer
) -> None:
    made = await network.ensure_network(network_bench.install)
    listed = ("good.example:8080", "good.example:443", "home.example:443")
    async with way_out(made.gateway, *listed) as (proxy, events):
        said = await asked(
            network_bench,
            made.name,
            through=[
                ("good.example", 8080),
                ("good.example", 80),
                ("other.example", 443),
                ("home.example", 443),
                ("127.0.0.1", 443),
                ("good.example", 443),
            ],
            straight=[(outside.address, 8000)],
            environment={"HTTPS_PROXY": proxy},
        )
        await until(lambda: len(events) >= 4, "all is told: a connection when it has ended")
    assert said[0] == "good.example 8080 hello"
    assert ["403" in line for line in said[1:5]] == [True] * 4, said
    assert said[5] == "good.example 443 Andy refuses this connection: it does not begin with a TLS hello."
    del said[5:7]  # which ends with a line end
    assert said[5:7] == [f"{outside.address} 8000 no", "networks 1"], "there is no way around the proxy"
    kinds = sorted((event.kind, event.detail["target"]) for event in events)
    assert kinds == [
        ("egress.connection", "good.example:8080"),
        ("egress.refused", "good.example:443"),
        ("egress.refused", "good.example:80"),
        ("egress.refused", "home.example:443"),
    ], "refusals of a kind are told once in a while"


async def test_without_a_list_there_is_no_route_and_no_proxy(
    network_bench: DockerBench, outside: OutsideContainer
) -> None:
    made = await network.ensure_network(network_bench.install)
    said = await asked(network_bench, made.name, through=[], straight=[(outside.address, 8000)])
    assert said == [f"{outside.address} 8000 no", "networks 1", "proxies []"]


async def test_an_open_container_is_on_a_second_network_that_is_not_closed(
    network_bench: DockerBench, docker_client: docker.APIClient
) -> None:
    made = await network.ensure_network(network_bench.install)
    with socket.create_server((made.gateway, 0)) as door:
        said = await asked(
            network_bench,
            made.name,
            through=[],
            straight=[(made.gateway, door.getsockname()[1])],
            is_open=True,
        )
    assert said[0].endswith("reached"), "the host's doors are where they were"
    assert said[1] == "networks 2"
    (found,) = await asyncio.to_thread(docker_client.networks, names=[f"{made.name}-open"])
    assert not found["Internal"]
    assert found["Options"]["com.docker.network.bridge.enable_icc"] == "false"
    assert found["Labels"] == {"andy.install": network_bench.install}
    closed = await asked(network_bench, made.name, through=[], straight=[])
    assert closed[0] == "networks 1", "the others stay on the closed one"


async def test_both_networks_go_with_the_install(
    network_bench: DockerBench, docker_client: docker.APIClient
) -> None:
    made = await network.ensure_network(network_bench.install)
    await asyncio.to_thread(network.open_network, docker_client, install=network_bench.install)
    await network.remove_network(network_bench.install)
    assert await asyncio.to_thread(docker_client.networks, names=[made.name]) == []
