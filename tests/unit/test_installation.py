"""The commands that extend and remove Andy are those of the program that installed him."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.base import installation


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process whose code is no clone, and is not in Compose's container."""
    monkeypatch.setattr(installation, "clone", lambda: None)
    monkeypatch.delenv("ANDY_HOME", raising=False)
    installation.installer.cache_clear()
    yield
    installation.installer.cache_clear()


def environment(monkeypatch: pytest.MonkeyPatch, path: Path, *, installed_by: str) -> Path:
    """Return the folder of the Python environment of this process, into which a program installed Andy."""
    path.mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(path))
    distribution = SimpleNamespace(read_text={"INSTALLER": f"{installed_by}\n"}.get)
    monkeypatch.setattr(metadata, "distribution", lambda _: distribution)
    return path


def receipt(*requirements: str) -> str:
    return f"[tool]\nrequirements = [{', '.join(requirements)}]\nentrypoints = []\n"


@pytest.mark.parametrize(
    ("requirements", "extras"),
    [
        (['{ name = "andy-assistant", extras = ["telegram"] }'], "telegram,voice"),
        (
            ['{ name = "six" }', '{ name = "andy-assistant", extras = ["voice", "telegram", "matrix"] }'],
            "matrix,telegram,voice",
        ),
        (['{ name = "andy-assistant" }'], "voice"),
        (["1"], "voice"),
    ],
)
def test_a_uv_tool_that_is_extended_keeps_the_libraries_that_were_added_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requirements: list[str], extras: str
) -> None:
    tool = environment(monkeypatch, tmp_path / "uv" / "tools" / "andy-assistant", installed_by="uv")
    (tool / "uv-receipt.toml").write_text(receipt(*requirements))
    assert installation.command_to_add("voice") == f"uv tool install 'andy-assistant[{extras}]'"
    assert installation.command_to_remove() == "uv tool uninstall andy-assistant"


@pytest.mark.parametrize("text", ["", "[tool", "tool = 1", "[tool]\nrequirements = 1", "\udcff"])
def test_a_receipt_of_another_form_names_no_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    tool = environment(monkeypatch, tmp_path / "andy-assistant", installed_by="uv")
    (tool / "uv-receipt.toml").write_text(text, errors="surrogateescape")
    assert installation.command_to_add("voice") == "uv tool install 'andy-assistant[voice]'"


def test_an_andy_that_uvx_runs_is_extended_by_installing_him(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(monkeypatch, tmp_path / "uv" / "archive-v0" / "P1pV9eYWYL-E11R0", installed_by="uv")
    assert installation.command_to_add("voice") == "uv tool install 'andy-assistant[voice]'"


def test_an_environment_that_uv_installed_into_is_extended_by_uv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = environment(monkeypatch, tmp_path / "my andy", installed_by="uv")
    place = shlex.quote(str(path))
    assert installation.command_to_add("voice") == f"uv pip install -p {place} 'andy-assistant[voice]'"
    assert installation.command_to_remove() == f"uv pip uninstall -p {place} andy-assistant"


def test_a_folder_called_uv_is_not_yet_a_tool_of_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch, tmp_path / "uv" / "venv", installed_by="pip")
    assert installation.command_to_add("voice") == "pip install 'andy-assistant[voice]'"


def test_a_folder_called_archive_is_not_yet_the_cache_of_uvx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(monkeypatch, tmp_path / "archive-venvs" / "andy", installed_by="pip")
    assert installation.command_to_add("voice") == "pip install 'andy-assistant[voice]'"
