"""The stack, as `docker compose up` gives it: built, spoken to, killed, gone on, taken down."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import docker
import pytest

from orchestrator.containers.docker.group_networks import ALIAS
from orchestrator.containers.image import base, build
from orchestrator.store.database import migrations
from tests.docker.conftest import PROJECT
from tests.processes.andy import until
from tests.processes.compose_stack import ComposeStack
from tests.support.skips import only_in_soak

pytestmark = [pytest.mark.docker, pytest.mark.timeout(3000)]


@pytest.fixture(scope="module")
def stack(docker_client, agent_image, tmp_path_factory) -> Iterator[ComposeStack]:
    """Up, on the home of an older Andy. Its base is that of the agents' image, which is here."""
    if shutil.which("docker-compose") is None:
        pytest.skip("docker-compose is missing: apt-get install docker-compose")
    root = tmp_path_factory.mktemp("checkout")
    with ComposeStack(root, client=docker_client, base_image=base_of(docker_client), project=PROJECT) as made:
        with closing(sqlite3.connect(root / "store" / "messages.db")) as connection:
            connection.executescript(f"{migrations()[0]}; PRAGMA user_version = 1;")
        made.up()
        yield made


@pytest.fixture(scope="module")
def family(stack) -> str:
    """A second group."""
    stack.compose("exec", "-T", "andy", "andy", "groups", "register", "family", "--no-trigger")
    return "family"


def base_of(client: docker.APIClient) -> str:
    """What can be built on here: Debian's own where there is no registry."""
    for tag in (base.PYTHON_IMAGE, base.DEBIAN_IMAGE):
        if build.is_present(client, tag):
            return tag
    pytest.skip("there is no base image here")


def ids_of(agents: list[dict[str, Any]]) -> set[str]:
    return {one["Id"] for one in agents}


def version_of(stack: ComposeStack) -> int:
    with closing(sqlite3.connect(stack.root / "store" / "messages.db")) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def set_version(stack: ComposeStack, version: int) -> None:
    with closing(sqlite3.connect(stack.root / "store" / "messages.db")) as connection:
        connection.execute(f"PRAGMA user_version = {version}")


def mounts_of(agent: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    return {one["Destination"]: (one["Source"], one["RW"]) for one in agent["Mounts"]}


def status_of(container: dict[str, Any]) -> str:
    """`/proc/…/status` of its first process."""
    return Path(f"/proc/{container['State']['Pid']}/status").read_text()


def inside(container: dict[str, Any], *command: str) -> str:
    done = subprocess.run(
        ["docker", "exec", container["Id"], *command], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_a_question_is_answered_by_a_sibling_with_folders_of_the_host(stack):
    stack.say("remind me in 3 hours to stretch")

    (agent,) = stack.agents()
    seen, home = mounts_of(agent), stack.root
    assert seen["/workspace/group"] == (f"{home}/groups/main", True)
    assert seen["/workspace/ipc/input"] == (f"{home}/data/ipc/main/input", False)
    assert seen["/workspace/project/docs"] == (f"{home}/docs", False)
    assert all(source.startswith(f"{home}/") for source, _ in seen.values())
    assert not any(source.startswith((f"{home}/store", f"{home}/.env")) for source, _ in seen.values())
    assert agent["HostConfig"]["ReadonlyRootfs"]
    assert agent["Config"]["User"] not in ("", "0", "root")


def test_the_older_home_that_was_there_was_copied_and_led_on(stack):
    assert version_of(stack) == len(migrations())
    assert (stack.root / "store" / f"messages.before-v{len(migrations())}.db").exists()


def test_each_group_has_a_closed_network_with_nobody_but_andy(stack, family):
    stack.say("echo hello", group=family)
    stack.say("echo hello")

    own, agents = stack.container("andy")["Id"], stack.agents()
    names = [list(agent["NetworkSettings"]["Networks"]) for agent in agents]
    assert sorted(names) == [[f"andy-{stack.install}.family"], [f"andy-{stack.install}.main"]]
    for agent, (name,) in zip(agents, names, strict=True):
        network = stack.client.inspect_network(name)
        assert network["Internal"]
        assert set(network["Containers"]) == {own, agent["Id"]}


def test_an_agent_reaches_the_doors_by_name_and_nothing_else(stack):
    stack.say("echo hello")
    (agent,) = stack.agents("main")
    (network,) = agent["NetworkSettings"]["Networks"].values()
    door = (stack.root / "data" / "proxy-port").read_text()
    front = stack.container("andy")["NetworkSettings"]["Networks"][f"{stack.name}_default"]["IPAddress"]

    tried = json.dumps(
        [
            [ALIAS, int(door)],
            [ALIAS, stack.port],
            [front, stack.port],
            [network["Gateway"], 22],
            ["1.1.1.1", 443],
        ]
    )
    said = inside(agent, "python3", "-c", REACH, tried)

    assert said.split() == ["reached", "refused", "closed", "closed", "closed"]


REACH = """
import json, socket, sys
for host, port in json.loads(sys.argv[1]):
    try:
        socket.create_connection((host, port), timeout=2).close()
        print('reached')
    except ConnectionRefusedError:
        print('refused')
    except OSError:
        print('closed')
"""


def test_an_open_group_is_on_a_network_outwards_besides(stack, family):
    stack.compose("exec", "-T", "andy", "andy", "groups", "config", family, "--set", '{"egress": "open"}')
    stack.say("echo hello", group=family)

    names = {f"andy-{stack.install}.{family}", f"andy-{stack.install}-out"}
    assert names in [set(one["NetworkSettings"]["Networks"]) for one in stack.agents(family)]


def test_the_orchestrator_is_no_root_and_sees_no_engine_but_the_filter(stack):
    andy, engine = stack.container("andy"), stack.container("engine")

    owner = (stack.root / "data").stat().st_uid
    assert owner != 0
    assert "Uid:" + f"\t{owner}" * 4 in status_of(andy)
    assert "CapEff:\t0000000000000000" in status_of(andy)
    assert not any(one["Source"].endswith("docker.sock") for one in andy["Mounts"])
    assert engine["HostConfig"]["NetworkMode"] == "none"
    assert all(one["HostConfig"]["ReadonlyRootfs"] for one in (andy, engine))


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/containers/{andy}/archive?path=/"),
        ("POST", "/containers/{andy}/exec"),
        ("DELETE", "/containers/{engine}?force=1"),
        ("POST", "/containers/{andy}/stop"),
        ("GET", "/containers/{engine}/json"),
        ("GET", "/images/json"),
        ("POST", "/images/create?fromImage=busybox"),
    ],
)
def test_who_takes_the_orchestrator_over_gets_no_further_through_the_filter(stack, method, path):
    andy, engine = stack.container("andy"), stack.container("engine")
    path = path.format(andy=andy["Id"], engine=engine["Id"])

    said = inside(
        andy, "curl", "-s", "-X", method, "--unix-socket", "/run/andy/docker.sock", f"http://d/v1.41{path}"
    )

    assert "Andy's filter refuses" in said


@only_in_soak
def test_a_port_that_was_taken_keeps_it_away_only_as_long_as_it_is(stack):
    stack.compose("stop", "andy")
    with socket.create_server(("127.0.0.1", stack.port)):
        refused = stack.compose("start", "andy", is_checked=False)
        assert "address already in use" in stack.container("andy")["State"]["Error"], refused.stderr

    stack.until_up()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may kill it from outside, which is what restarts it")
def test_the_conversation_goes_on_after_the_orchestrator_was_killed(stack):
    stack.say("remind me in 5 hours to water the plants")
    before, agents = stack.container("andy"), ids_of(stack.agents("main"))

    os.kill(before["State"]["Pid"], signal.SIGKILL)
    until(
        lambda: stack.container("andy")["State"]["Pid"] not in (0, before["State"]["Pid"]), what="restarted"
    )
    stack.until_up()
    answer = stack.say("list reminders")

    assert "water the plants" in answer["reply"]
    assert ids_of(stack.agents("main")) == agents


def test_a_new_container_of_the_orchestrator_adopts_the_agents_of_the_one_that_was_lost(stack):
    stack.say("remind me in 5 hours to water the plants")
    agents = ids_of(stack.agents("main"))

    stack.client.remove_container(stack.container("andy")["Id"], force=True)
    stack.up()
    answer = stack.say("list reminders")

    assert "water the plants" in answer["reply"]
    assert ids_of(stack.agents("main")) == agents


def test_the_documented_backup_and_restore_bring_back_what_was(stack):
    stack.say("add backed up milk to the shopping list")
    make_backups, put_back = documented("Backup and restore")

    stack.type(make_backups)
    stack.say("add later bread to the shopping list")
    stack.type(put_back)
    stack.until_up()
    said = stack.say("show the shopping list")["reply"]

    assert ("backed up milk" in said, "later bread" in said) == (True, False), said
    first, second = stack.root / "backups" / "monday.tar.gz", stack.root / "elsewhere.tar.gz"
    assert names_in(first) == names_in(second)
    assert first.stat().st_uid == (stack.root / "data").stat().st_uid


def documented(heading: str) -> list[str]:
    """The blocks of shell lines that the deployment page has under a heading."""
    text = (PROJECT / "docs" / "deployment.md").read_text()
    (section,) = (part for part in text.split("\n## ") if part.startswith(heading))
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


def names_in(archive: Path) -> set[str]:
    with tarfile.open(archive) as tar:
        return {member.name for member in tar if "/" not in member.name}


def test_the_doctor_finds_nothing_wrong_inside_and_tells_where_the_home_is(stack):
    said = stack.compose("exec", "-T", "andy", "andy", "doctor", "--json")

    rows = {row["check"]: row for row in json.loads(said.stdout)}
    assert [row for row in rows.values() if row["state"] == "bad"] == []
    assert rows["compose"]["text"] == f"/andy/groups is {stack.root}/groups on the host"


def test_the_libraries_of_all_messengers_are_there(stack):
    said = stack.compose(
        "exec", "-T", "andy", "python", "-c", "import neonize, nio, telegram", is_checked=False
    )

    assert said.returncode == 0, said.stderr


@only_in_soak
def test_another_build_replaces_the_agents_and_the_conversation_goes_on(stack):
    stack.say("remind me in 5 hours to water the plants")
    before, agents = stack.container("andy")["Id"], ids_of(stack.agents("main"))
    with (stack.root / "orchestrator" / "__init__.py").open("a") as source:
        source.write("\n# Another version.\n")

    stack.compose("up", "-d", "--build", seconds=900)
    stack.until_up()
    answer = stack.say("list reminders")

    assert stack.container("andy")["Id"] != before
    assert "water the plants" in answer["reply"]
    until(lambda: not agents & ids_of(stack.agents("main")), what="the agents of the older build are removed")


@only_in_soak
def test_a_home_of_a_newer_andy_is_refused_and_left_as_it_is(stack):
    stack.compose("stop", "andy")
    found = version_of(stack)
    set_version(stack, 999)

    said = stack.compose("run", "--rm", "--no-deps", "-T", "andy", "up", is_checked=False)

    assert said.returncode == 1
    assert "has version 999, this Andy knows" in said.stderr + said.stdout
    assert version_of(stack) == 999
    set_version(stack, found)
    stack.compose("start", "andy")
    stack.until_up()


def test_taken_down_it_leaves_nothing_but_the_home(stack):
    stack.say("echo hello")

    stack.compose("down", "--volumes")

    assert stack.left() == []
    assert (stack.root / "store" / "messages.db").exists()
