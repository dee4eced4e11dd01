"""Worlds whose agents run on the nodes of a swarm: its runtime and its carriers are the real ones."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.domain.values import ChatJid, Folder, Group
from tests.simulation.people import Fault, Plan, Said
from tests.simulation.scale import waits_of, week_of
from tests.simulation.swarm import SwarmedEngine
from tests.simulation.world import World

pytestmark = pytest.mark.leaves("the temporary files and databases of carriers and hosts that are killed")

MAIN = Path(__file__).parent / "__main__.py"
CHAT = ChatJid("chirp:g0")
REGRESSIONS = {
    "swarm2911001073": "a messenger that takes each text once refused one that it had shown already",
    "swarm1039": "what may have arrived was said not to have, once the notice of it was refused",
    "swarm20008": "a reminder that met a starting messenger waited for minutes after it had connected",
}
"""Seeds of worlds that have broken a promise once, and what was wrong."""
OF_SWARM = {
    "swarm0": "the host is killed, connections break while the files of a turn are sent, and carriers die",
}
"""Seeds of worlds with a swarm, and what happens in them."""


@pytest.mark.parametrize("seed", OF_SWARM | REGRESSIONS)
def test_what_is_asked_on_a_swarm_is_answered_once_and_with_its_files(seed: str) -> None:
    assert World(seed).run().problems == []
    gc.collect()  # what its hosts had not closed when they were killed is let go of unheard


def test_a_swarm_of_a_seed_is_the_same_in_another_process() -> None:
    here = World("swarm17").run()
    assert here.problems == []
    assert here.kills, "a world without a kill shows less"
    elsewhere = subprocess.run(
        [sys.executable, MAIN, "--seed", "swarm17", "--digest"],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert elsewhere.stdout.strip() == here.digest


def _plan(*faults: Fault, nodes: int = 2) -> Plan:
    said = tuple(
        Said(at_s=5.0 + 60.0 * number, who="Jane", jid=CHAT, kind=kind, token=f"zq{number}x")
        for number, kind in enumerate(("list", "echo", "list"))
    )
    return Plan(
        seconds=300.0,
        groups=(Group(jid=CHAT, name="Group 0", folder=Folder("g0")),),
        said=said,
        faults=faults,
        idle_ms=90_000,
        nodes=nodes,
    )


def _engine_of(world: World) -> SwarmedEngine:
    assert isinstance(world.engine, SwarmedEngine)
    return world.engine


def test_a_run_goes_on_over_broken_connections_and_a_killed_host() -> None:
    faults = (
        Fault(at_s=5.1, kind="broken at an end", amount=1),
        Fault(at_s=30.0, kind="broken", amount=7),
        Fault(at_s=66.0, kind="kill", amount=1),
    )
    world = World("goes on", _plan(*faults))
    outcome = world.run()
    assert (outcome.problems, outcome.kills) == ([], 1)
    assert any("carrier.lost" in line.text for line in world.lines)


def test_a_turn_of_a_node_that_is_cut_off_counts_once() -> None:
    faults = tuple(Fault(at_s=at_s, kind="cut off", amount=90) for at_s in (6.0, 64.0))
    world = World("cut off", _plan(*faults))
    assert world.run().problems == []
    places = {end.place.rpartition(" ")[2] for end in _engine_of(world).turn_ends}
    assert places == {"node1", "node2"}


def test_groups_are_spread_evenly_over_nodes_and_none_waits_for_a_slot_that_is_free() -> None:
    world = World("spread", week_of(12, nodes=3, slots=2, burst=6, days=0.1))
    assert world.run().problems == []
    assert _engine_of(world).most_apart <= 1
    assert waits_of(world)[-1] < 12.0
