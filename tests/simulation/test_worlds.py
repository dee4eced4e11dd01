"""Worlds on seeds: the whole host in simulated time, with crashes, and the promises as judges."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.domain.model_services import OF_DOTENV
from orchestrator.domain.values import ChatJid, Folder, Group
from tests.simulation.people import Plan, Said
from tests.simulation.planted import BUGS, REPOSITORY, Planted
from tests.simulation.services import KINDS, ServiceFault, ServicesPlan
from tests.simulation.world import World

MAIN = Path(__file__).parent / "__main__.py"

REGRESSIONS: dict[int, str] = {
    5: "the order in which woken groups are looked at depended on the hash of their names",
    629: "a call of a tool whose answer a restart held up was done again by the next model",
}
"""Seeds of worlds that have broken a promise once, and what was wrong."""
OF_MODELS = {
    23: "nothing but the services goes wrong",
    47: "at times no service works",
    51: "the host is killed, and containers and messengers fail, too",
}
"""Seeds of worlds whose agents ask a model, and in which turns go on at another service."""


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_what_was_broken_once_is_whole(seed: int) -> None:
    assert World(seed).run().problems == []


@pytest.mark.parametrize("seed", OF_MODELS)
def test_what_is_asked_is_answered_where_model_services_fail(seed: int) -> None:
    outcome = World(seed).run()
    assert (outcome.problems, outcome.moves > 0) == ([], True)


@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_of_a_model_service_has_a_turn_go_on_at_the_next(kind: str) -> None:
    chat = ChatJid("chirp:g0")
    said = tuple(
        Said(at_s=at_s, who="Jane", jid=chat, kind="echo", token=token)
        for at_s, token in ((5.0, "zq1x"), (80.0, "zq3x"))
    )
    fault = ServiceFault(service=OF_DOTENV, kind=kind, at_s=0.0, seconds=150.0)
    plan = Plan(
        seconds=160.0,
        groups=(Group(jid=chat, name="Group 0", folder=Folder("g0")),),
        said=said,
        faults=(),
        idle_ms=5_000,
        services=ServicesPlan(asks_model=True, fallbacks=("spare",), faults=(fault,)),
    )
    world = World(kind, plan)
    outcome = world.run()
    assert outcome.problems == []
    assert (outcome.moves > 0, world.services.asked[-1].fault) == (True, None)


@pytest.mark.parametrize(("seed", "hash_seeds"), [("14", ("1", "2")), ("31", ("1",))])
def test_a_seed_gives_the_same_world_in_every_process(seed: str, hash_seeds: Sequence[str]) -> None:
    here = World(seed).run()
    for hash_seed in hash_seeds:
        elsewhere = subprocess.run(
            [sys.executable, MAIN, "--seed", seed, "--digest"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert elsewhere.stdout.strip() == here.digest


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_planted_bug_still_fits_the_program(bug: Planted) -> None:
    text = (REPOSITORY / bug.path).read_text(encoding="utf-8")
    assert text.count(bug.right) == 1
