"""With Docker: the host is killed between a turn's file and its acknowledgement.

Only in `make soak`: the simulated world kills its host there, too.
"""

from __future__ import annotations

import json
from pathlib import Path

import docker
import pytest

from agent_runner.wire.order import TurnOrder
from orchestrator.ipc import input_files
from tests.processes.andy import until
from tests.processes.killable_andy import MortalAndy
from tests.support.skips import only_in_soak

pytestmark = [
    pytest.mark.docker,
    only_in_soak,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("agent_image"),
]


def test_a_turn_that_nobody_has_read_outlives_the_host_and_those_of_gone_runs_do_not(
    tmp_path: Path, docker_client: docker.APIClient
) -> None:
    with MortalAndy(tmp_path / "home", runtime="docker") as andy:
        said = {"echo first": andy.try_to_say("echo first")}
        andy.until_settled_all()
        inputs = andy.home / "data" / "ipc" / "main" / "input"
        ((run, ref),) = andy.containers().items()
        docker_client.pause(ref)  # it cannot read what comes now
        said["echo second"] = andy.try_to_say("echo second")
        until(lambda: list(inputs.glob("*.json")), what="its turn lies there")
        andy.kill()
        input_files.write_turn(inputs, TurnOrder(run="gone", turn=99, kind="chat", prompt="echo gone"))
        andy.start()
        docker_client.unpause(ref)
        andy.until_settled_all()
        andy.check_answers(said)
        assert andy.live_runs() == {run}, "the same container has answered"
        until(lambda: not list(inputs.iterdir()), what="nothing is left to be read")
        assert "gone" not in json.dumps([*map(sorted, andy.seen().values())])
