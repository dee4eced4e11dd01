"""The filter on its socket: what reaches the engine, what does not, and what odd askers get."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypeVar

import docker
import pytest
from docker.errors import APIError

from orchestrator.compose.self_inspect import BindMount
from orchestrator.compose.socket_filter.checks import Checks
from orchestrator.compose.socket_filter.inventory import Engine, EngineInventory
from orchestrator.compose.socket_filter.server import FilterServer
from orchestrator.containers.swarm.nodes import NodeMemory, check_manager, list_nodes, read_nodes
from tests.doubles.engine import ANDY, EngineDouble, a_container
from tests.support.agent_container_request import a_bind, agent_body
from tests.support.swarm_service_request import (
    IMAGE_ID,
    INSTALL,
    NETWORK_ID,
    NODE_ID,
    SECRET_ID,
    SERVICES,
    sent_for_a_run,
    service_body,
    start,
)
from tests.support.until import DEADLINE_SECONDS

NETWORK = {"Id": "n" * 12, "Name": "andy-0123456789ab.family", "Labels": {"andy.project": "p"}}
T = TypeVar("T")
OTHERS_NETWORK = {"Id": "o" * 12, "Name": "andy-0123456789ab.other", "Labels": {"andy.project": "other"}}


def of_a_swarm() -> dict[str, object]:
    """What a manager's engine says where a run of ours and one of somebody else's have been made."""
    sent = sent_for_a_run()
    made = sent["/services/create"]
    ours = {
        "Labels": made["Labels"] | {"andy.project": "p"},
        "Name": "andy-r1",
        "TaskTemplate": made["TaskTemplate"],
    }
    theirs = {"Labels": ours["Labels"] | {"andy.project": "other"}, "Name": "andy-r1"}
    overlay = sent["/networks/create"] | {"Id": NETWORK_ID, "Containers": {}, "Labels": ours["Labels"]}
    node = {
        "ID": NODE_ID, "Spec": {"Availability": "active", "Labels": {"disk": "fast"}, "Role": "manager"},
        "Status": {"State": "ready", "Addr": "10.0.0.1"},
        "Description": {"Hostname": "one", "TLSInfo": {"TrustRoot": "root"}},
    }  # fmt: skip
    return {
        "GET /info": {
            "Name": "machine",
            "Swarm": {"LocalNodeState": "active", "ControlAvailable": True, "NodeID": "x"},
        },
        "GET /images/andy-agent:latest/json": {"Id": IMAGE_ID, "RepoDigests": ["registry:5000/a@sha256:2"]},
        "GET /nodes": [node],
        # By its label the engine would list only those of the project: the double lists by none.
        "GET /services": [{"ID": "mine", "Spec": ours}],
        "GET /secrets": [{"ID": SECRET_ID, "Spec": ours}, {"ID": "gone", "Spec": ours | {"Labels": {}}}],
        "GET /tasks": [{"ID": "t1", "ServiceID": "mine", "NodeID": NODE_ID, "Status": {"State": "running"}}],
        f"GET /networks/{NETWORK_ID}": overlay,
        "GET /networks/theirs": overlay | {"Id": "theirs", "Labels": theirs["Labels"]},
        "GET /networks/others": overlay | {"Labels": ours["Labels"] | {"andy.group": "others"}},
        "POST /networks/create": {"Id": NETWORK_ID},
        f"POST /networks/{NETWORK_ID}/connect": {},
        "POST /secrets/create": {"ID": SECRET_ID},
        "POST /services/create": {"ID": "mine"},
        "DELETE /services/mine": {},
        f"DELETE /secrets/{SECRET_ID}": {},
        "DELETE /secrets/gone": {},
    }


@pytest.fixture
def home(tmp_path) -> Path:
    for name in (
        "groups/family",
        "data/ipc/family/input",
        "data/env/family",
        "data/project",
        "mcp/dice",
        "store",
        "docs",
    ):
        (tmp_path / "home" / name).mkdir(parents=True)
    (tmp_path / "home" / "README.md").touch()
    return tmp_path / "home"


@pytest.fixture
async def engine(tmp_path, home) -> AsyncIterator[EngineDouble]:
    double = EngineDouble(tmp_path / "engine.sock")
    double.answers = {
        "GET /containers/mine/json": a_container("m" * 12, sources=(f"{home}/groups/family",)),
        "GET /containers/theirs/json": a_container("t" * 12, sources=("/elsewhere/groups/family",)),
        "GET /containers/bare/json": a_container("b" * 12, sources=()),
        "GET /containers/plain/json": a_container("p" * 12, sources=(f"{home}/groups",), labels={}),
        f"GET /containers/{ANDY}/json": a_container(ANDY, sources=(str(home),), labels={}),
        "GET /containers/json": [
            a_container("m" * 12, sources=(f"{home}/groups/family",)),
            a_container("t" * 12, sources=("/elsewhere/groups/family",)),
        ],
        "GET /networks": [NETWORK],
        "GET /networks/andy-0123456789ab.family": NETWORK,
        "GET /networks/bridge": {"Id": "x", "Name": "bridge", "Labels": {}},
        "GET /networks/andy-0123456789ab.other": OTHERS_NETWORK,
        "POST /containers/create": {"Id": "new"},
        **of_a_swarm(),
    }
    server = await double.start()
    yield double
    server.close()


@pytest.fixture
def has_swarm() -> bool:
    """Whether ANDY_RUNTIME says so."""
    return True


@pytest.fixture
async def door(tmp_path, engine, home, has_swarm) -> AsyncIterator[Path]:
    def held(*, is_writable: bool) -> tuple[BindMount, ...]:
        return (BindMount(source=str(home), destination=str(home), is_writable=is_writable, kind="bind"),)

    async def survey() -> EngineInventory:
        return EngineInventory(
            project="p",
            home=PurePosixPath(home),
            ids=frozenset({ANDY}),
            orchestrator_mounts=(
                *held(is_writable=True),
                BindMount(source="/srv/photos", destination="/srv/photos", is_writable=False, kind="bind"),
                BindMount(
                    source="/var/lib/docker/v/_data", destination="/run/andy", is_writable=True, kind="volume"
                ),
            ),
            filter_mounts=held(is_writable=False),
        )

    path = tmp_path / "filter.sock"
    async with Engine(str(engine.socket)) as asked:
        checks = Checks(asked, survey=survey, image="andy-agent:latest", has_swarm=has_swarm)
        opened = FilterServer(checks, connect=partial(asyncio.open_unix_connection, str(engine.socket)))
        server = await asyncio.start_unix_server(opened.handle, str(path))
        yield path
        server.close()
        await opened.close()


async def ask(door: Path, request: bytes, *more: bytes) -> str:
    """Send bytes as they are; return all that comes back until the filter hangs up."""
    reader, writer = await asyncio.open_unix_connection(str(door))
    async with asyncio.timeout(DEADLINE_SECONDS):
        writer.write(request)
        for part in more:
            await writer.drain()
            writer.write(part)
        answer = await reader.read()
    writer.close()
    return answer.decode()


def plain(method: str, target: str, document: object = None) -> bytes:
    body = b"" if document is None else json.dumps(document).encode()
    head = f"{method} {target} HTTP/1.1\r\nHost: d\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def create(**changes: object) -> bytes:
    return plain("POST", "/v1.41/containers/create?name=andy-family-r", agent_body(**changes))


def binds(home: Path, *places: str, **changes: object) -> bytes:
    return create(HostConfig__Mounts=[a_bind(one.format(home=home), **changes) for one in places])


async def test_what_is_passed_on_is_written_anew(door, engine, home):
    request = binds(home, "{home}/groups/family").replace(
        b"Host: d\r\n", b"Host: d\r\nX-Registry-Auth: secret\r\nUpgrade: tcp\r\n"
    )

    assert '{"Id": "new"}' in await ask(door, request)

    assert engine.asked() == ["POST /v1.41/containers/create?name=andy-family-r"]
    assert "Registry" not in engine.heads[-1]
    assert "Upgrade" not in engine.heads[-1]
    assert json.loads(engine.bodies[-1])["HostConfig"]["CapDrop"] == ["ALL"]


async def test_a_chunked_body_is_read_whole_and_passed_on_in_one_piece(door, engine, home):
    body = json.dumps(agent_body(HostConfig__Mounts=[a_bind(f"{home}/groups/family")])).encode()
    head = b"POST /v1.41/containers/create HTTP/1.1\r\nHost: d\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = [
        b"%x\r\n%s\r\n" % (len(body[at : at + 100]), body[at : at + 100]) for at in range(0, len(body), 100)
    ]

    assert '{"Id": "new"}' in await ask(door, head, *chunks, b"0\r\n\r\n")

    assert "chunked" not in engine.heads[-1]


@pytest.mark.parametrize(
    "place",
    [
        "/",
        "/etc",
        "/var/run/docker.sock",
        "/elsewhere/groups/family",
        "{home}",
        "{home}/store",
        "{home}/data",
        "{home}/.env",
        "{home}/data/ipc",
        "{home}/mcp",
        "{home}/data/token",
        "{home}/../home/store",
        "{home}/groups/../store",
        "{home}/groups/missing",
        "/srv/photos/inner",
        "/var/lib/docker/v/_data",
        "/srv",
    ],
)
async def test_no_agent_is_given_what_is_not_meant_for_agents(door, engine, home, place):
    assert "filter refuses" in await ask(door, binds(home, "{home}/groups/family", place, ReadOnly=True))
    assert engine.asked() == []


@pytest.mark.parametrize(
    "place",
    [
        "/srv/photos",
        "{home}/docs",
        "{home}/README.md",
        "{home}/groups",
        "{home}/data/project",
        "{home}/mcp/dice",
    ],
)
async def test_what_may_be_read_only_is_not_given_for_writing(door, engine, home, place):
    assert '{"Id": "new"}' in await ask(door, binds(home, place, ReadOnly=True))
    assert "filter refuses" in await ask(door, binds(home, place, ReadOnly=False))


async def test_a_planted_link_is_not_followed(door, engine, home):
    (home / "groups" / "family" / "inner").symlink_to("/etc")
    (home / "data" / "ipc" / "linked").symlink_to("/etc")

    for place in ("{home}/groups/family/inner", "{home}/data/ipc/linked/input"):
        assert "has a link in it" in await ask(door, binds(home, place))


async def test_a_link_that_was_planted_after_the_creation_is_seen_at_the_start(door, engine, home):
    (home / "groups" / "family").rmdir()
    (home / "groups" / "family").symlink_to("/etc")

    assert "has a link in it" in await ask(door, plain("POST", "/v1.41/containers/mine/start"))
    assert engine.asked() == []


@pytest.mark.parametrize("ref", ["theirs", "bare", "plain"])
@pytest.mark.parametrize(
    ("method", "rest"),
    [
        ("GET", "/json"),
        ("POST", "/start"),
        ("POST", "/stop"),
        ("POST", "/wait"),
        ("GET", "/logs"),
        ("DELETE", "?force=1"),
    ],
)
async def test_a_container_that_is_not_andys_is_out_of_reach(door, engine, ref, method, rest):
    assert f"'{ref}' is not Andy's" in await ask(door, plain(method, f"/v1.41/containers/{ref}{rest}"))
    assert engine.asked() == []


async def test_andys_own_container_is_looked_at_and_no_more(door, engine):
    assert ANDY in await ask(door, plain("GET", f"/v1.41/containers/{ANDY}/json"))
    for method, rest in (("POST", "/stop"), ("DELETE", "?force=1"), ("POST", "/start")):
        assert "no more" in await ask(door, plain(method, f"/v1.41/containers/{ANDY}{rest}"))


async def test_a_name_is_asked_for_by_its_id(door, engine):
    await ask(door, plain("DELETE", "/v1.41/containers/mine?force=1"))

    assert engine.asked() == [f"DELETE /v1.41/containers/{'m' * 12}?force=1"]


@pytest.mark.parametrize("version", ["", "/v1.41"])
@pytest.mark.parametrize("ref", ["c", "container", "v1", "v1.41"])
async def test_a_name_that_the_path_has_before_it_is_asked_for_by_its_id(door, engine, home, ref, version):
    one = a_container("c" * 12, sources=(f"{home}/groups/family",))
    engine.answers[f"GET /containers/{ref}/json"] = one

    await ask(door, plain("DELETE", f"{version}/containers/{ref}?force=1"))

    assert engine.asked() == [f"DELETE {version}/containers/{'c' * 12}?force=1"]


async def test_a_network_is_removed_by_its_id_also_under_a_short_name(door, engine):
    engine.answers["GET /networks/n"] = NETWORK

    await ask(door, plain("DELETE", "/v1.41/networks/n"))

    assert engine.asked() == [f"DELETE /v1.41/networks/{NETWORK['Id']}"]


async def test_what_is_gone_is_said_to_be_gone(door):
    assert (await ask(door, plain("DELETE", "/v1.41/containers/nothing"))).startswith("HTTP/1.1 404")
    assert (await ask(door, plain("DELETE", "/v1.41/networks/nothing"))).startswith("HTTP/1.1 404")


async def test_lists_have_what_is_andys_only(door):
    listed = await ask(door, plain("GET", '/v1.41/containers/json?filters={"label":["andy.install=i"]}'))

    assert "mmmm" in listed
    assert "tttt" not in listed


@pytest.mark.parametrize(
    "filters", ["{}", '{"label":["a=b"]}', '{"label":["andy.install=i","x"]}', '{"id":["t"]}', "x"]
)
async def test_containers_are_listed_by_their_install_only(door, engine, filters):
    assert "filter refuses" in await ask(door, plain("GET", f"/v1.41/containers/json?filters={filters}"))


@pytest.mark.parametrize("ref", ["bridge", "andy-0123456789ab.other"])
async def test_a_network_that_is_not_andys_is_out_of_reach(door, engine, home, ref):
    join = {"Container": "mine", "EndpointConfig": None}
    for request in (
        plain("GET", f"/v1.41/networks/{ref}"),
        plain("DELETE", f"/v1.41/networks/{ref}"),
        plain("POST", f"/v1.41/networks/{ref}/connect", join),
        plain("POST", f"/v1.41/networks/{ref}/disconnect", {"Container": "mine"}),
    ):
        assert "is not Andy's" in await ask(door, request)
    assert engine.asked() == []


async def test_no_strange_container_is_joined_to_andys_network(door, engine):
    join = {"Container": "theirs", "EndpointConfig": {"Aliases": ["orchestrator"]}}

    assert "is not Andy's" in await ask(
        door, plain("POST", "/v1.41/networks/andy-0123456789ab.family/connect", join)
    )


async def test_a_network_is_marked_as_the_projects(door, engine):
    made = {
        "Name": "andy-0123456789ab.family", "Driver": "bridge", "CheckDuplicate": True, "Internal": True,
        "Labels": {"andy.install": "0123456789ab"},
    }  # fmt: skip

    await ask(door, plain("POST", "/v1.41/networks/create", made))

    assert json.loads(engine.bodies[-1])["Labels"] == {"andy.install": "0123456789ab", "andy.project": "p"}


async def test_another_image_is_not_run_and_not_looked_at(door, engine, home):
    assert "not the agents'" in await ask(door, create(Image="evil:latest"))
    assert "not the agents'" in await ask(door, plain("GET", "/v1.41/images/evil:latest/json"))


POST = b"POST /v1.41/networks/create HTTP/1.1\r\n"
ATTACH = "/v1.41/containers/mine/attach?stdin=1&stdout=1&stderr=1&stream=1"


async def test_the_wires_of_a_container_are_joined_both_ways(door, engine):
    reader, writer = await asyncio.open_unix_connection(str(door))
    writer.write(plain("POST", ATTACH) + b"order ")
    async with asyncio.timeout(DEADLINE_SECONDS):
        await reader.readuntil(b"hello ")
        writer.write(b"more")
        writer.write_eof()
        said = await reader.read()
    writer.close()

    assert said == b"ORDER MORE"


async def test_after_a_refused_attach_not_a_byte_reaches_the_engine(door, engine):
    engine.refuses_attach = True

    answer = await ask(door, plain("POST", ATTACH), plain("POST", "/v1.41/containers/theirs/exec"))

    assert answer.startswith("HTTP/1.1 409")
    assert engine.wires == []


@pytest.mark.parametrize("refusal", [b"{}", b"[]", b"7", b"busy"])
async def test_a_refusal_without_a_message_is_handed_on_as_it_is(door, engine, refusal):
    engine.refuses_attach, engine.refusal = True, refusal

    answer = await ask(door, plain("POST", ATTACH))

    head, _, body = answer.partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 409")
    assert json.loads(body) == {"message": refusal.decode()}


@pytest.mark.parametrize("head", [b"HTTP/1.1\r\n\r\n", b"SSH-2.0 busy\r\n\r\n", b"\r\n\r\n"])
async def test_an_attach_whose_answer_has_no_status_is_a_bad_gateway_and_others_go_on(door, engine, head):
    engine.attach_head = head
    answer = await ask(door, plain("POST", ATTACH))
    assert answer.startswith("HTTP/1.1 502")
    assert json.loads(answer.partition("\r\n\r\n")[2]) == {"message": "The engine's answer cannot be read."}
    assert engine.wires == []
    await ask(door, plain("GET", "/v1.41/_ping"))
    assert engine.asked()[-1] == "GET /v1.41/_ping"


async def test_a_second_request_on_the_same_connection_is_not_passed_on(door, engine):
    await ask(door, plain("GET", "/v1.41/_ping") + plain("POST", "/v1.41/containers/theirs/start"))

    assert engine.asked() == ["GET /v1.41/_ping"]


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /v1.41/_ping HTTP/1.1\r\nHost: d\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        POST + b"Host: d\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Host: d\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        POST + b"Host: d\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /v1.41/_ping HTTP/1.1\r\nHost : d\r\n\r\n",
        b"GET  /v1.41/_ping HTTP/1.1\r\nHost: d\r\n\r\n",
        b"GET /v1.41/\xff HTTP/1.1\r\nHost: d\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: d\r\n\r\n",
        POST + b"Host: d\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n",
    ],
)  # fmt: skip
async def test_what_is_no_plain_request_is_refused(door, engine, request_bytes):
    answer = await ask(door, request_bytes)

    assert answer.startswith(("HTTP/1.1 400", "HTTP/1.1 403"))
    assert engine.asked() == []


async def test_a_body_that_is_too_long_is_refused(door, engine):
    answer = await ask(door, plain("POST", "/v1.41/networks/create", {"Name": "x" * 300_000}))

    assert answer.startswith("HTTP/1.1 400")


async def test_an_engine_that_is_gone_is_said_so(door, engine):
    engine.socket.unlink()

    assert (await ask(door, plain("GET", "/v1.41/_ping"))).startswith("HTTP/1.1 502")
    assert (await ask(door, plain("GET", "/v1.41/containers/mine/json"))).startswith("HTTP/1.1 502")


async def through(door: Path, work: Callable[[docker.APIClient], T]) -> T:
    """Do what the host does with docker-py, through the filter."""
    with closing(docker.APIClient(base_url=f"unix://{door}", version="1.41")) as client:
        return await asyncio.to_thread(work, client)


async def test_a_run_on_a_swarm_is_made_by_the_hosts_own_code_and_marked_as_the_projects(door, engine):
    assert await through(door, start) == "mine"

    made = [request for request in engine.asked() if request.endswith("/create")]
    assert made == [f"POST /v1.41/{one}/create" for one in ("networks", "secrets", "services")]
    bodies = [
        json.loads(body) for head, body in zip(engine.heads, engine.bodies, strict=True) if "/create" in head
    ]
    assert [body["Labels"]["andy.project"] for body in bodies] == ["p"] * 3
    assert f"POST /v1.41/networks/{NETWORK_ID}/connect" in engine.asked()


async def test_the_runs_of_a_swarm_are_seen_and_removed_by_the_hosts_own_code(door, engine, tmp_path):
    (run,) = await through(door, SERVICES.run_services)
    assert (run.run_id, run.is_outdated) == ("r1", False)
    assert not await through(door, lambda client: client.services(filters={"label": ["andy.install=x"]}))
    assert not await through(door, lambda client: client.services(filters={"id": "m"}))

    await through(door, partial(SERVICES.remove, ref="mine"))

    assert engine.asked() == ["DELETE /v1.41/services/mine", f"DELETE /v1.41/secrets/{SECRET_ID}"]


async def test_of_nodes_andy_sees_what_he_needs(door, tmp_path):
    (node,) = await through(door, lambda client: client.nodes())
    assert node == {
        "ID": NODE_ID,
        "Spec": {"Availability": "active", "Labels": {"disk": "fast"}},
        "Status": {"State": "ready", "Addr": "10.0.0.1"},
        "Description": {"Hostname": "one"},
    }
    assert (await through(door, lambda client: client.info())).keys() == {"Swarm"}
    await through(door, check_manager)
    assert [one.labels for one in await through(door, read_nodes)] == [("disk=fast",)]
    listing = partial(list_nodes, install=INSTALL, memory=NodeMemory(tmp_path), slots=0)
    assert [(one["name"], one["groups"]) for one in await through(door, listing)] == [("one", ("family",))]


async def test_a_node_that_was_never_reached_hides_no_other(door, engine, tmp_path):
    (known,) = engine.answers["GET /nodes"]
    silent = known | {"ID": "silent", "Description": {}, "Status": {"State": "unknown"}}
    engine.answers["GET /nodes"] = [known, silent]
    assert [one.name for one in await through(door, read_nodes)] == ["one", "silent"]


@pytest.mark.parametrize("answer", [{}, [], "x", [{"ID": 1}]])
async def test_an_answer_of_the_engine_that_cannot_be_read_is_said_so(door, engine, answer):
    engine.answers["GET /info"] = answer
    assert (await ask(door, plain("GET", "/v1.41/info"))).startswith("HTTP/1.1 502")


@pytest.mark.parametrize("path", ["services", "secrets"])
async def test_what_of_a_swarm_is_not_andys_cannot_be_removed(door, engine, path):
    assert (await ask(door, plain("DELETE", f"/v1.41/{path}/theirs"))).startswith("HTTP/1.1 404")
    assert engine.asked() == []


@pytest.mark.parametrize("filters", ['{"label":["a=b","c=d"]}', '{"mode":["global"]}', "x", '{"id":"mine"}'])
@pytest.mark.parametrize("path", ["services", "secrets", "tasks"])
async def test_a_list_of_a_swarm_is_asked_for_in_one_form(door, filters, path):
    assert "filter refuses" in await ask(door, plain("GET", f"/v1.41/{path}?filters={filters}"))


async def test_tasks_of_other_services_are_not_asked_for(door, engine):
    said = await ask(door, plain("GET", '/v1.41/tasks?filters={"service":["theirs"]}'))

    assert said.endswith("[]")
    assert not any("/tasks" in head.split("User-Agent")[0] for head in engine.heads)


SPEC = "TaskTemplate__ContainerSpec__"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({f"{SPEC}Image": "andy-agent:latest"}, "not the agents'"),
        ({f"{SPEC}Image": "evil@sha256:2"}, "not the agents'"),
        ({f"{SPEC}Mounts__0__Source": "andy-0123456789ab-others"}, "not that of the group"),
        ({f"{SPEC}Mounts__0__Source": "andy_engine"}, "not that of the group"),
        ({f"{SPEC}Mounts__0__VolumeOptions__Labels__andy.group": "others"}, "not that of the group"),
        ({f"{SPEC}Labels__andy.group": "others"}, "labels of the container"),
        ({"Labels__andy.install": "ba9876543210"}, "labels of the container"),
        ({f"{SPEC}Secrets__0__SecretID": "gone"}, "not that of the run"),
        ({f"{SPEC}Secrets__0__SecretID": "theirs"}, "not that of the run"),
        ({"TaskTemplate__Networks__0__Target": "theirs"}, "is not Andy's"),
        ({"TaskTemplate__Networks__0__Target": "bridge"}, "is not Andy's"),
        ({"TaskTemplate__Networks__0__Target": "others"}, "not that of the group"),
        ({"TaskTemplate__Networks__0__Target": "andy-0123456789ab.family"}, "not that of the group"),
        ({"TaskTemplate__Networks__0__Target": "missing"}, "404"),
        ({"TaskTemplate__Placement__Constraints": ["node.id==other"]}, "node is not the one"),
    ],
)
async def test_a_service_of_anothers_parts_is_refused(door, engine, changes, why):
    assert why in await ask(door, plain("POST", "/v1.41/services/create", service_body(**changes)))
    assert engine.asked() == []


async def test_a_service_may_name_the_image_by_its_digest(door, engine):
    body = service_body(**{f"{SPEC}Image": "registry:5000/a@sha256:2"})

    assert '"mine"' in await ask(door, plain("POST", "/v1.41/services/create", body))


async def test_no_agent_of_this_machine_joins_a_network_of_a_swarm(door, engine):
    join = {"Container": "mine", "EndpointConfig": {"Aliases": ["orchestrator"]}}

    assert "only Andy's own" in await ask(door, plain("POST", f"/v1.41/networks/{NETWORK_ID}/connect", join))
    assert "is not Andy's" in await ask(
        door, plain("POST", "/v1.41/networks/theirs/connect", join | {"Container": ANDY})
    )
    assert engine.asked() == []


@pytest.mark.parametrize("has_swarm", [False])
async def test_without_a_swarm_nothing_is_made_on_one_and_what_was_left_can_be_ended(door, engine, has_swarm):
    for path, body in sent_for_a_run().items():
        if path.endswith("/create"):
            assert "ANDY_RUNTIME=swarm" in await ask(door, plain("POST", f"/v1.41{path}", body))
    for path in ("nodes", "info"):
        assert "ANDY_RUNTIME=swarm" in await ask(door, plain("GET", f"/v1.41/{path}"))
    assert engine.asked() == []

    await through(door, partial(SERVICES.remove, ref="mine"))

    assert engine.asked()[0] == "DELETE /v1.41/services/mine"


async def test_a_manager_that_is_not_ready_is_said_to_be(door, engine):
    engine.answers["GET /services"] = None
    engine.missing = 503

    with pytest.raises(APIError) as refused:
        await through(door, SERVICES.run_services)
    assert refused.value.status_code == 503
