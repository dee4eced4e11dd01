"""One machine becomes many by one setting, and one again: nothing is lost, and nothing runs twice."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.processes.andy import AndyProcess, until
from tests.processes.swarm_nodes import SwarmNodes

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(300)]


def andy_on(home: Path, runtime: str, nodes: SwarmNodes, agent_image: str) -> AndyProcess:
    environment = {"ANDY_IMAGE": agent_image, "DOCKER_HOST": nodes.manager.docker_host}
    andy = AndyProcess(home, runtime=runtime, environment=environment)
    andy.is_forked = False
    return andy


def test_a_home_goes_on_on_a_swarm_and_back_with_its_files_and_one_agent(nodes, agent_image, tmp_path):
    home = tmp_path / "home"
    todo = home / "groups" / "main" / "todo.md"
    with closing(nodes.manager.client()) as engine, andy_on(home, "docker", nodes, agent_image) as first:
        mine = f"andy.install={first.install}"

        def kinds() -> set[bool]:
            """Whether each container of an agent, on whatever node, is one of the swarm."""
            return {
                "com.docker.swarm.task.id" in one["Labels"]
                for one in all_containers(nodes, mine)
                if "andy.run" in one["Labels"]
            }

        first.say("todo apples")
        assert first.terminate() == 0
        assert kinds() == {False}

        with andy_on(home, "swarm", nodes, agent_image) as second:
            assert kinds() == set()
            second.say("todo bread")
            assert kinds() == {True}
            assert second.terminate() == 0
            assert kinds() == {True}, "a stop leaves it for the next start"

            with andy_on(home, "docker", nodes, agent_image) as third:
                until(lambda: not kinds(), what="the swarm's container is gone")
                assert not engine.services(filters={"label": [mine]})
                third.say("todo carrots")
                assert kinds() == {False}
                assert todo.read_text().split("- [ ] ")[1:] == ["apples\n", "bread\n", "carrots\n"]


def all_containers(nodes: SwarmNodes, label: str) -> list[dict[str, dict[str, str]]]:
    found = []
    for node in nodes.nodes:
        if not node.listens():  # another test has killed it
            continue
        with closing(node.client()) as client:
            found += client.containers(all=True, filters={"label": [label]})
    return found
