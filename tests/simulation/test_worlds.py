"""Worlds on seeds: the whole host in simulated time, with crashes, and the promises as judges."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.planted import BUGS, REPOSITORY, Planted
from tests.simulation.world import World

MAIN = Path(__file__).parent / "__main__.py"

REGRESSIONS: dict[int, str] = {
    5: "the order in which woken groups are looked at depended on the hash of their names",
}
"""Seeds of worlds that have broken a promise once, and what was wrong."""


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_what_was_broken_once_is_whole(seed: int) -> None:
    assert World(seed).run().problems == []


def test_a_seed_gives_the_same_world_in_every_process() -> None:
    here = World("14").run()
    for hash_seed in ("1", "2"):
        elsewhere = subprocess.run(
            [sys.executable, MAIN, "--seed", "14", "--digest"],
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
