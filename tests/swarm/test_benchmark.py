"""The benchmark of nodes can measure. It starts nodes of its own."""

from __future__ import annotations

import pytest

from tests.e2e.test_benchmarks import ON_NODES, measured_once
from tests.processes.swarm_nodes import has_overlays, why_not
from tests.support.skips import THIS_MACHINE

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(1800), pytest.mark.usefixtures("agent_image")]


@pytest.mark.parametrize("name", sorted(ON_NODES))
def test_a_benchmark_on_nodes_can_measure(name: str) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    if not has_overlays():
        pytest.skip(f"{THIS_MACHINE}its kernel has no vxlan devices, or lets nobody make one")
    measured_once(name, seconds=1500)
