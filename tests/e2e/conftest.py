"""Both runtimes: Docker's needs an engine and the image, and says so where it is skipped."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from tests.docker.conftest import agent_image, docker_client
from tests.support.skips import NEED_ALL

__all__ = ["agent_image", "docker_client"]

HERE = Path(__file__).parent
HUNG_SECONDS = 1500
"""Some start five containers one after another; each may take minutes where the engine has more to do."""

SAME_IN_BOTH = (
    "test_context.py",
    "test_dashboard.py",
    "test_dashboard_in_words.py",
    "test_foresight.py",
    "test_groups.py",
    "test_logs.py",
    "test_loop.py",
    "test_model_services.py",
    "test_notices.py",
    "test_notices_kept.py",
    "test_people.py",
    "test_roles.py",
    "test_session_commands.py",
    "test_spending.py",
    "test_tasks.py",
    "test_the_main_job.py",
    "test_undo.py",
    "test_with_a_model.py",
)
"""What is tried there happens in the host: where Docker was promised, once in containers is enough."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have whatever waits here give up by itself, and say for what, before it counts as hung."""
    if NEED_ALL:
        names = {item.nodeid for item in items}
        twins = [item for item in items if _is_done_in_a_container_too(item, names)]
        items[:] = [item for item in items if item not in twins]
        config.hook.pytest_deselected(items=twins)
    for item in items:
        if item.path.is_relative_to(HERE) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(HUNG_SECONDS))


def _is_done_in_a_container_too(item: pytest.Item, names: Collection[str]) -> bool:
    if item.path.parent != HERE or item.path.name not in SAME_IN_BOTH:
        return False
    return "process" in item.nodeid and item.nodeid.replace("process", "docker") in names


@pytest.fixture(params=["process", pytest.param("docker", marks=pytest.mark.docker)])
def runtime(request: pytest.FixtureRequest) -> str:
    """Where agents run."""
    if request.param == "docker":
        request.getfixturevalue("agent_image")
    return str(request.param)
