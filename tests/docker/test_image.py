"""The agent image as containers run it: another user, no writable root, no capability."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import docker
import pytest

from orchestrator.containers.image import build
from orchestrator.containers.image.context import ImageSources

pytestmark = pytest.mark.docker

PROJECT = Path(__file__).parents[2]
TEST_TAG = "andy-agent-test:rebuild"
KEPT_TAG = "andy-agent-test:kept"

ABOUT_ME = """
import json, os
writable = [d for d in ("/", "/app/src", "/app/src/agent_runner", "/opt/andy") if os.access(d, os.W_OK)]
print(json.dumps({"uid": os.getuid(), "gid": os.getgid(), "home": os.path.expanduser("~"),
    "folder": os.getcwd(), "writable": writable, "config": os.environ["CLAUDE_CONFIG_DIR"],
    "reads": os.access(os.environ["CLAUDE_CONFIG_DIR"], os.R_OK | os.X_OK)}))
"""
UNCOMPILED = """
import json, os, sys
import agent_runner.wire.order, claude_agent_sdk
specs = [module.__spec__ for module in list(sys.modules.values()) if getattr(module, "__spec__", None)]
print(json.dumps([spec.name for spec in specs if spec.cached and not os.path.exists(spec.cached)]))
"""
BUNDLED_CLI = """
import os, pathlib, claude_agent_sdk
cli = pathlib.Path(claude_agent_sdk.__file__).with_name("_bundled") / "claude"
os.execv(cli, [str(cli), "--version"])
"""


def run_confined(client: docker.APIClient, tag: str, script: str) -> str:
    """Run a Python script as agents run, and return what it prints."""
    confined = client.create_host_config(
        init=True,
        read_only=True,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        network_mode="none",
        tmpfs={"/tmp": ""},
    )
    container = client.create_container(
        tag, ["-c", script], entrypoint=["/opt/andy/bin/python"], host_config=confined
    )["Id"]
    try:
        client.start(container)
        code = client.wait(container, timeout=600)["StatusCode"]
        printed = client.logs(container, stdout=True, stderr=False).decode()
        assert code == 0, client.logs(container).decode()
    finally:
        client.remove_container(container, force=True)
    return printed


def layers(client: docker.APIClient, tag: str) -> list[str]:
    return list(client.inspect_image(tag)["RootFS"]["Layers"])


def checkout(target: Path) -> Path:
    for source in ("agent_runner", "container"):
        shutil.copytree(PROJECT / source, target / source)
    return target


def test_an_agent_is_nobody_special_and_finds_its_place(
    docker_client: docker.APIClient, agent_image: str
) -> None:
    assert json.loads(run_confined(docker_client, agent_image, ABOUT_ME)) == {
        "uid": 1000,
        "gid": 1000,
        "home": "/home/andy",
        "folder": "/workspace/group",
        "writable": [],
        "config": "/home/andy/.claude",
        "reads": True,
    }


def test_no_module_has_to_be_compiled_at_start(docker_client: docker.APIClient, agent_image: str) -> None:
    assert json.loads(run_confined(docker_client, agent_image, UNCOMPILED)) == []


def test_the_bundled_cli_runs_without_a_writable_root_or_a_capability(
    docker_client: docker.APIClient, agent_image: str
) -> None:
    assert "Claude Code" in run_confined(docker_client, agent_image, BUNDLED_CLI)


def test_the_entry_point_is_the_runner(docker_client: docker.APIClient, agent_image: str) -> None:
    settings = docker_client.inspect_image(agent_image)["Config"]
    assert settings["Entrypoint"] == ["/opt/andy/bin/python", "-m", "agent_runner"]
    assert settings["User"] == "andy"


def test_an_absent_image_is_neither_present_nor_current(docker_client: docker.APIClient) -> None:
    assert not build.is_present(docker_client, "andy-agent-test:absent")
    assert not build.is_current(docker_client, "andy-agent-test:absent", ImageSources.below(PROJECT))


def build_changed(client: docker.APIClient, project: Path, text: str) -> str:
    (project / "agent_runner" / "new.py").write_text(text)
    return build.build(client, tag=TEST_TAG, sources=ImageSources.below(project), say=print)


def test_a_change_of_the_runner_installs_nothing_anew(
    docker_client: docker.APIClient, agent_image: str, tmp_path: Path
) -> None:
    project = checkout(tmp_path)
    build_changed(docker_client, project, "1")
    first = layers(docker_client, TEST_TAG)
    build_changed(docker_client, project, "2")
    second = layers(docker_client, TEST_TAG)
    docker_client.remove_image(TEST_TAG)
    assert first != second
    assert first[:-2] == second[:-2], "only the runner and its bytecode are new"


def test_a_replaced_image_goes_unless_it_has_another_tag(
    docker_client: docker.APIClient, agent_image: str, tmp_path: Path
) -> None:
    project = checkout(tmp_path)
    first = build_changed(docker_client, project, "first")
    second = build_changed(docker_client, project, "second")
    assert not build.is_present(docker_client, first)
    docker_client.tag(second, *KEPT_TAG.split(":"))
    build_changed(docker_client, project, "third")
    assert build.is_present(docker_client, KEPT_TAG)
    docker_client.remove_image(KEPT_TAG)
    docker_client.remove_image(TEST_TAG)


def test_an_image_is_current_until_a_source_changes(
    docker_client: docker.APIClient, agent_image: str, tmp_path: Path
) -> None:
    project = checkout(tmp_path)
    build_changed(docker_client, project, "built")
    assert build.is_current(docker_client, TEST_TAG, ImageSources.below(project))
    (project / "agent_runner" / "new.py").write_text("changed since")
    assert not build.is_current(docker_client, TEST_TAG, ImageSources.below(project))
    docker_client.remove_image(TEST_TAG)
