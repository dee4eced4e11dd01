"""Host, nodes and engine of a swarm die at any moment, while files change: nothing is lost or doubled."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from docker.errors import APIError

from agent_runner.wire.carrier import SILENCE_SECONDS
from orchestrator.containers.docker.client import ALREADY_SO
from tests.processes.andy import until
from tests.processes.swarm_andy import SwarmAndy
from tests.processes.swarm_nodes import SwarmNode, SwarmNodes

KILLS = int(os.environ.get("SWARM_KILLS", "20"))
pytestmark = [pytest.mark.swarm, pytest.mark.timeout(900 + 120 * KILLS)]
GROUPS = ("main", "one", "two", "three")
SLOTS = {"MAX_CONCURRENT_CONTAINERS": "3"}
"""Fewer than groups, so that a slot that leaks is missed."""
POINTS = 70
"""As many steps a host of these tests takes in its start and the turns after it."""
STAGES = {
    "made": "SELECT 1 FROM runs WHERE id = ?",
    "known": "SELECT 1 FROM runs WHERE id = ? AND container_ref IS NOT NULL",
    "acknowledged": "SELECT 1 FROM turns WHERE run_id = ? AND acked_ms IS NOT NULL",
    "answered": "SELECT 1 FROM turns WHERE run_id = ? AND state = 'answered'",
}


def test_a_host_killed_at_any_step_loses_and_doubles_no_answer_and_no_file(
    tmp_path: Path, nodes: SwarmNodes, agent_image: str
) -> None:
    chance = random.Random(20261123)
    said: dict[str, str | None] = {}
    kills = survived = 0
    with SwarmAndy(tmp_path / "home", nodes, image=agent_image, environment=SLOTS) as andy:
        andy.register(*GROUPS[1:])
        andy.kill()
        for number in itertools.count():
            if kills >= KILLS:
                break
            before = set(andy.containers())
            andy.start_to_die_at(chance.randint(1, POINTS))
            until(lambda: andy.is_dead() or andy.is_up(), what="up or dead")
            survived += bool(before & set(andy.containers()) & andy.live_runs())
            for count in range(chance.randint(1, 3)):
                text = f"todo k{number:04d}n{count}"
                said[text] = andy.try_to_say(text, group=chance.choice(GROUPS))
            until(lambda: andy.is_dead() or andy.unsettled() == 0, what=f"dead or done after kill {kills}")
            kills += andy.is_dead()
            andy.kill()
        andy.start_to_die_at(0)
        andy.until_settled_all()
        andy.check_answers(said)
        answered = andy.check_files()
        andy.check_no_leak()
    print(f"{kills} hosts died of themselves in {number} lives; {answered} of {len(said)} messages answered")
    assert survived > 3, "containers live on"


def kill_agent(andy: SwarmAndy, run: str, node: SwarmNode) -> None:
    with closing(node.client()) as client:
        for one in client.containers(filters={"label": [f"andy.run={run}"]}):
            client.kill(one["Id"])


def blink(andy: SwarmAndy, run: str, node: SwarmNode) -> None:
    node.cut()
    node.heal()


def cut_for_long(andy: SwarmAndy, run: str, node: SwarmNode) -> None:
    """Cut it until all that the host has there is given up."""
    node.cut()
    until(
        lambda: run not in andy.live_runs(),
        seconds=SILENCE_SECONDS * 10,
        what="the run is given up",
    )
    node.heal()


def reboot(andy: SwarmAndy, run: str, node: SwarmNode) -> None:
    node.reboot()


def restart_engine(andy: SwarmAndy, run: str, node: SwarmNode) -> None:
    node.restart_engine()


Blow = Callable[[SwarmAndy, str, SwarmNode], None]
BLOWS: tuple[Blow, ...] = (kill_agent, blink, cut_for_long, reboot, restart_engine)
OF_MANAGER: tuple[Blow, ...] = (kill_agent, restart_engine)
"""The host itself lives there: cut off or without power, nobody is left who could lose anything."""


def test_nodes_cut_healed_and_killed_in_turns_lose_and_double_no_answer_and_no_file(
    tmp_path: Path, nodes: SwarmNodes, agent_image: str
) -> None:
    chance = random.Random(20261124)
    said: dict[str, str | None] = {}
    blows: list[str] = []
    rounds = itertools.count()
    with SwarmAndy(tmp_path / "home", nodes, image=agent_image, environment=SLOTS) as andy:
        andy.register(*GROUPS[1:])
        while len(blows) < KILLS:
            number = next(rounds)
            for group in GROUPS:
                text = f"todo k{number:04d}{group}"
                said[text] = andy.try_to_say(text, group=group)
            blow = strike(andy, nodes, chance)
            blows += [blow] if blow else []
            andy.until_settled_all()
        andy.check_answers(said)
        assert all(said.values())
        answered = andy.check_files()
        andy.check_no_leak()
        again = len(andy.rows("SELECT 1 FROM turns WHERE attempt > 1"))
    print(f"{len(blows)} blows: {sorted(blows)}; {answered} of {len(said)} answered, {again} tried again")
    assert again > 0, "none was hit in a turn"


def strike(andy: SwarmAndy, nodes: SwarmNodes, chance: random.Random) -> str | None:
    """Hit the node of a random run at a random stage of its turn; what hit it, or None where nothing did."""
    run, node = chance.choice(sorted(until(andy.working, what="a container").items(), key=lambda one: one[0]))
    stage = STAGES[chance.choice(list(STAGES))]
    until(lambda: andy.rows(stage, run) or run not in andy.live_runs(), what="the stage, or its end")
    blow = chance.choice(OF_MANAGER if node is nodes.manager else BLOWS)
    try:
        blow(andy, run, node)
    except APIError as error:
        if error.status_code not in ALREADY_SO:
            raise
        return None
    return blow.__name__
