"""A home that goes on with another runtime: the containers that it left in Docker end first."""

from __future__ import annotations

import pytest

from tests.processes.andy import AndyProcess

pytestmark = pytest.mark.docker


def test_a_home_that_goes_on_without_docker_leaves_no_container_beside_its_agents(
    agent_image, docker_client, tmp_path
):
    home = tmp_path / "home"
    with AndyProcess(home, runtime="docker", environment={"ANDY_IMAGE": agent_image}) as before:
        mine = {"label": [f"andy.install={before.install}", "andy.run"]}
        before.say("todo buy stamps")
        assert before.terminate() == 0
        assert docker_client.containers(filters=mine), "a stop leaves them for the next start"

        with AndyProcess(home, runtime="process") as after:
            assert docker_client.containers(all=True, filters=mine) == []
            after.say("todo buy bread")
            assert (home / "groups" / "main" / "todo.md").read_text().count("buy") == 2
