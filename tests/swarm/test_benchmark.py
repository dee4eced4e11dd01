"""The benchmark of nodes can measure, on the nodes that are there."""

from __future__ import annotations

import pytest

from tests.e2e.test_benchmarks import ON_NODES, measured_once
from tests.support.skips import only_in_soak

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(1800), pytest.mark.usefixtures("nodes")]


@only_in_soak
@pytest.mark.parametrize("name", sorted(ON_NODES))
def test_a_benchmark_on_nodes_can_measure(name: str) -> None:
    measured_once(name, seconds=1500)
