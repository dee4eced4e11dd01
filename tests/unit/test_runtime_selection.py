"""Where agents run under Docker Compose: never in Andy's own container."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from orchestrator.compose.self_inspect import FILTER_SOCKET
from orchestrator.containers import runtime_selection
from orchestrator.containers.runtime_selection import SelectedRuntime
from orchestrator.domain.errors import ContainerError


async def choose(wanted: Literal["auto", "process"], home: Path) -> SelectedRuntime:
    async def never(*_: Any) -> Any:
        raise AssertionError

    return await runtime_selection.choose(
        wanted,
        home=home,
        install="0123456789ab",
        tag="andy-agent:latest",
        left=(),
        last_frame=never,
        on_log=lambda *_: None,
        on_node_problem=never,
        slots_per_node=0,
        say=lambda _: None,
    )


@pytest.mark.parametrize(
    ("wanted", "why"), [("process", "set ANDY_RUNTIME=docker"), ("auto", "^No Docker engine answers")]
)
async def test_under_compose_agents_are_no_processes_of_andys_container(wanted, why, monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{FILTER_SOCKET}")

    with pytest.raises(ContainerError, match=why):
        await choose(wanted, tmp_path)


@pytest.mark.parametrize("wanted", ["process", "auto"])
async def test_elsewhere_they_are_where_no_engine_answers(wanted, monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")

    assert (await choose(wanted, tmp_path)).runtime.name == "process"
