"""Where agents run under Docker Compose: never in Andy's own container."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from orchestrator.cli import demo
from orchestrator.compose.self_inspect import FILTER_SOCKET
from orchestrator.containers import runtime_selection
from orchestrator.containers.runtime_selection import SelectedRuntime
from orchestrator.domain.errors import ContainerError


async def choose(
    wanted: Literal["auto", "docker", "process"], home: Path, say: Any = lambda _: None
) -> SelectedRuntime:
    async def never(*_: Any) -> Any:
        raise AssertionError

    return await runtime_selection.choose(
        wanted,
        home=home,
        install="0123456789ab",
        tag="andy-agent:latest",
        used_runtimes=(),
        last_frame=never,
        on_log=lambda *_: None,
        on_node_problem=never,
        slots_per_node=0,
        say=say,
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


@pytest.fixture
def bare_engine(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """An engine that answers; the images it has are what the set holds. None can be built."""
    images: set[str] = set()

    async def answers() -> None:
        pass

    def refuse(tag: str, say: Any) -> None:
        raise ContainerError("The image was not built: pip found no index.\nline of pip\nline of pip")

    async def join(install: str) -> Any:
        return SimpleNamespace(name="n", gateway="127.0.0.1", bridge="lo")

    monkeypatch.setattr(runtime_selection.docker_engine, "probe", answers)
    monkeypatch.setattr(runtime_selection.host_paths, "find", lambda: None)
    monkeypatch.setattr(runtime_selection, "ensure_image", refuse)
    monkeypatch.setattr(runtime_selection, "has_image", lambda tag: tag in images)
    monkeypatch.setattr(runtime_selection.network, "ensure_network", join)
    return images


async def test_where_an_engine_answers_without_an_image_no_agent_is_a_process(bare_engine, tmp_path):
    said: list[str] = []

    chosen = await choose("auto", tmp_path, said.append)

    assert (chosen.runtime.name, chosen.runtime.is_isolated) == ("docker", True)
    assert chosen.problem is not None
    assert "andy image build" in chosen.problem
    assert "\n" not in chosen.problem
    assert said[-1].endswith(chosen.problem)
    assert await chosen.image_problem() == chosen.problem
    bare_engine.add("andy-agent:latest")
    assert await chosen.image_problem() is None


@pytest.mark.parametrize(("wanted", "has_old"), [("docker", False), ("auto", True)])
async def test_an_image_that_was_asked_for_or_is_too_old_is_a_reason_to_stop(
    wanted, has_old, bare_engine, tmp_path
):
    if has_old:
        bare_engine.add("andy-agent:latest")

    with pytest.raises(ContainerError, match="pip found no index"):
        await choose(wanted, tmp_path)


def test_the_fix_for_a_missing_image_fits_the_install(monkeypatch, tmp_path):
    assert runtime_selection.image_fix() == "andy image build"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{FILTER_SOCKET}")
    monkeypatch.setattr(runtime_selection, "COMPOSE_HOME", str(tmp_path))
    assert runtime_selection.image_fix() == "docker compose pull agent"
    (tmp_path / "container").mkdir()
    (tmp_path / "container" / "Dockerfile").touch()
    assert runtime_selection.image_fix() == "docker compose build agent"
    pinned = f"registry:5000/andy-agent@sha256:{'a' * 64}"
    assert runtime_selection.image_fix(pinned) == f"docker pull {pinned}", "it is never built"


def test_a_demo_needs_neither_engine_nor_image_and_says_that_its_agent_is_not_isolated(
    bare_engine, monkeypatch, capsys
):
    assert demo._best_runtime() == "process"
    assert "NOT isolated" in capsys.readouterr().out
    monkeypatch.setattr(runtime_selection, "has_image", no_engine)
    assert demo._best_runtime() == "process"
    assert "NOT isolated" in capsys.readouterr().out
    monkeypatch.setattr(runtime_selection, "has_image", lambda _: True)
    assert demo._best_runtime() == "docker"
    assert "NOT isolated" not in capsys.readouterr().out


def no_engine(_: str) -> bool:
    raise ContainerError("no engine answers")
