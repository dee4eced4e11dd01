"""Host, nodes and engine of a swarm die at any moment, while files change: nothing is lost or doubled."""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from docker.errors import APIError

from agent_runner.wire.carrier import SILENCE_SECONDS
from orchestrator.containers.docker.client import ALREADY_SO
from orchestrator.containers.docker.runtime import RUN_LABEL
from tests.processes.andy import until
from tests.processes.swarm_andy import SwarmAndy
from tests.processes.swarm_nodes import SwarmNode, SwarmNodes
from tests.support.skips import only_in_soak

KILLS = int(os.environ.get("SOAK_KILLS", "0")) or 4
pytestmark = [pytest.mark.swarm, pytest.mark.timeout(900 + 120 * KILLS)]
GROUPS = ("main", "one", "two", "three")
SLOTS = {"MAX_CONCURRENT_CONTAINERS": "3"}
"""Fewer than groups, so that a slot that leaks is missed."""
STAGES = (
    "SELECT run_id FROM turns WHERE id > ? AND state = 'running'",
    "SELECT run_id FROM turns WHERE id > ? AND state = 'running' AND acked_ms IS NOT NULL",
    "SELECT run_id FROM turns WHERE id > ? AND state = 'answered'",
)
"""How far the turns are after one: the runs that have come so far."""


def test_a_host_killed_at_any_step_loses_and_doubles_no_answer_and_no_file(
    tmp_path: Path, nodes: SwarmNodes, agent_image: str
) -> None:
    chance = random.Random(20261123)
    said: dict[str, str | None] = {}
    kills = survived = 0
    with SwarmAndy(tmp_path / "home", nodes, image=agent_image, environment=SLOTS) as andy:
        andy.register(*GROUPS[1:])
        said |= {f"todo k9999{group}": andy.try_to_say(f"todo k9999{group}", group=group) for group in GROUPS}
        andy.until_settled_all()
        reach = andy.points()
        """How far a host comes that starts three containers: measured, as it grows with what a start does."""
        andy.kill()
        for number in itertools.count():
            if kills >= KILLS:
                break
            before = set(andy.containers())
            andy.start_to_die_at(chance.randint(1, reach))
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
    accepted = sum(one is not None for one in said.values())
    print(f"{kills} hosts died of themselves in {number} lives; {answered} answers, {accepted} accepted")
    assert survived > min(3, number // 4), "containers live on"


def kill_agent(andy: SwarmAndy, run: str, node: SwarmNode) -> None:
    with closing(node.client()) as client:
        for one in client.containers(filters={"label": [f"{RUN_LABEL}={run}"]}):
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
BLOWS: tuple[Blow, ...] = (kill_agent, blink, restart_engine, cut_for_long, reboot)
OF_ANY_NODE: tuple[Blow, ...] = (kill_agent,)
OF_MANAGER: tuple[Blow, ...] = (restart_engine,)
"""The host itself lives there: cut off or without power, nobody is left who could lose anything."""


@only_in_soak
def test_agents_nodes_and_the_managers_engine_that_die_in_turns_lose_and_double_no_answer_and_no_file(
    tmp_path: Path, nodes: SwarmNodes, agent_image: str
) -> None:
    chance = random.Random(20261124)
    said: dict[str, str | None] = {}
    blows: list[str] = []
    rounds = itertools.count()
    with SwarmAndy(tmp_path / "home", nodes, image=agent_image, environment=SLOTS) as andy:
        andy.register(*GROUPS[1:])
        while len(blows) < KILLS:
            number, before = next(rounds), last_turn(andy)
            for group in GROUPS:
                text = f"todo k{number:04d}{group}"
                said[text] = andy.try_to_say(text, group=group)
            blow = BLOWS[len(blows) % len(BLOWS)]
            if strike(andy, nodes, blow, before, chance):
                blows.append(blow.__name__)
            andy.until_settled_all()
        andy.check_answers(said)
        assert all(said.values())
        answered = andy.check_files()
        assert answered == len(said)
        andy.check_no_leak()
        again = len(andy.rows("SELECT 1 FROM turns WHERE attempt > 1"))
    print(f"{dict(Counter(blows))} in {number + 1} rounds; {answered} of {len(said)} answered, {again} again")
    assert again > 0, "none was hit in a turn"


def last_turn(andy: SwarmAndy) -> int:
    return int(andy.rows("SELECT coalesce(max(id), 0) AS n FROM turns")[0]["n"])


def strike(andy: SwarmAndy, nodes: SwarmNodes, blow: Blow, before: int, chance: random.Random) -> bool:
    """Hit a node in one of the turns after `before`, at a random stage; whether there was one to hit."""
    stage = chance.choice(STAGES)
    until(lambda: andy.rows(stage, before) or andy.unsettled() == 0, what="the stage, or its end")
    has_come = {row["run_id"] for row in andy.rows(stage, before)}
    found = [
        (run, node)
        for run, node in sorted(andy.working().items(), key=lambda one: one[0])
        if run in has_come and (blow in OF_ANY_NODE or (node is nodes.manager) == (blow in OF_MANAGER))
    ]
    if not found:
        return False
    try:
        blow(andy, *chance.choice(found))
    except APIError as error:
        if error.status_code not in ALREADY_SO:
            raise
        return False
    return True


def test_a_cut_node_works_on_and_nothing_of_it_is_taken_when_it_comes_back(
    tmp_path: Path, nodes: SwarmNodes, agent_image: str
) -> None:
    said: dict[str, str | None] = {}
    with SwarmAndy(tmp_path / "home", nodes, image=agent_image, environment=SLOTS) as andy:
        andy.register(*GROUPS[1:])
        said |= {
            f"todo k0001{group}": andy.try_to_say(f"todo k0001{group}", group=group) for group in GROUPS[1:]
        }
        andy.until_settled_all()
        run, node = next(one for one in andy.working().items() if one[1] is not nodes.manager)
        group = andy.rows("SELECT group_folder FROM runs WHERE id = ?", run)[0]["group_folder"]
        workspace = node.root / "data" / "volumes" / f"andy-{andy.install}-{group}" / "_data"
        runner = runner_of(run, node)

        runner.suspend()
        said["todo k0002"] = andy.try_to_say("todo k0002", group=group)
        until(lambda: any((workspace / "ipc" / "input").iterdir()), what="the turn has come to the node")
        node.cut()
        runner.resume()
        (workspace / "group" / "late.txt").write_text("of no turn that counts")
        until(lambda: "k0002" in (workspace / "group" / "todo.md").read_text(), what="the cut agent works on")
        until(lambda: run not in andy.live_runs(), what="the run is given up")
        andy.until_settled_all()
        assert run in andy.working(), "it lives on, and nobody can tell it anything"

        with node.without_manager():  # which would end its container before the carrier is heard
            node.heal()
            until(lambda: "carrier.refused" in andy.events(), what="it comes back, and is refused")
            until(lambda: run not in andy.working(), what="it has ended")

        andy.check_answers(said)
        assert andy.check_files() == len(said)
        assert not list(andy.home.rglob("late.txt"))
        andy.check_no_leak()


def runner_of(run: str, node: SwarmNode) -> psutil.Process:
    """The process of the agent in the container of a run, beside its carrier."""
    with closing(node.client()) as client:
        (container,) = client.containers(filters={"label": [f"{RUN_LABEL}={run}"]})
        pid = client.inspect_container(container["Id"])["State"]["Pid"]
    family = psutil.Process(pid).children(recursive=True)
    (runner,) = [one for one in family if "agent_runner.carrier.waiting_runner" in one.cmdline()]
    return runner
