"""Each benchmark measures once, with as little as it can. Nobody judges these figures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as benchmarks
from tests.support.skips import only_in_soak
from tests.support.until import DEADLINE_SECONDS

ROOT = Path(__file__).parents[2]
IN_CONTAINERS = frozenset(
    {
        "cold_start",
        "commands",
        "due_task",
        "fan_out",
        "flood",
        "hostile_bodies",
        "hot_claude",
        "hot_path",
        "idle",
        "recovery",
        "restore",
        "start_up",
        "warm_start",
    }
)
ALWAYS = frozenset({"commands", "lists", "model_proxy", "swarm_host", "turn_price", "undo"})
"""Tried by `make check`, too: one with containers, and what takes little."""
ON_NODES = frozenset({"swarm"})
"""Tried in tests/swarm."""


ELSEWHERE = frozenset(benchmarks.NAMES + benchmarks.LONG) - IN_CONTAINERS - ON_NODES


def _left_to_soak(names: Collection[str]) -> list[Any]:
    """Return the names as parameters of a test; those that `make check` does not try are left to the soak."""
    return [name if name in ALWAYS else pytest.param(name, marks=only_in_soak) for name in sorted(names)]


@pytest.mark.parametrize("name", _left_to_soak(ELSEWHERE))
def test_a_benchmark_can_measure(name: str) -> None:
    measured_once(name)


@pytest.mark.docker
@pytest.mark.usefixtures("agent_image")
@pytest.mark.parametrize("name", _left_to_soak(IN_CONTAINERS))
def test_a_benchmark_with_containers_can_measure(name: str) -> None:
    measured_once(name)


def measured_once(name: str, *, seconds: float = 4 * DEADLINE_SECONDS) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", name, "--once"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-4000:]}"
