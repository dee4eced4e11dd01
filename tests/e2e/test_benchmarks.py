"""Each benchmark measures once, with as little as it can. Nobody judges these figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
ALWAYS = frozenset({"cold_start", "commands", "hot_claude"})
"""Tried by `make check`, too: with the agent that needs no model, through the host, and with a model."""
ON_NODES = frozenset({"swarm"})
"""Tried in tests/swarm."""


ELSEWHERE = frozenset(benchmarks.NAMES + benchmarks.LONG) - IN_CONTAINERS - ON_NODES


@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_a_benchmark_can_measure(name: str) -> None:
    measured_once(name)


@pytest.mark.docker
@pytest.mark.usefixtures("agent_image")
@pytest.mark.parametrize(
    "name",
    [name if name in ALWAYS else pytest.param(name, marks=only_in_soak) for name in sorted(IN_CONTAINERS)],
)
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
