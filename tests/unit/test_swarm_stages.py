"""The files of a turn on a node are put in place once, whenever the host is killed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agent_runner.wire.trees import Changes, Entry
from orchestrator.containers.swarm import group_files
from orchestrator.containers.swarm.group_files import PLAN, RUN_FILE, RunFiles, Stages


def sealed(directory: Path, n: int) -> Stages:
    """A run with one sealed stage, in which nothing changed."""
    stages = Stages(directory)
    stages.open(n).seal()
    return stages


@pytest.mark.parametrize("steps", [0, 1])
def test_a_host_that_is_killed_while_it_removes_a_stage_finds_it_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    stages = sealed(tmp_path, 4)
    real = shutil.rmtree

    def killed(path: Path, **options: bool) -> None:
        if options:
            real(path, **options)
            return
        if steps:
            (path / PLAN).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(group_files.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            stages.apply(4, {})

    again = Stages(tmp_path)
    assert again.sealed() == []
    again.open(5).seal()
    assert [one.name for one in tmp_path.iterdir()] == ["5"], "what was left is removed"


@pytest.mark.parametrize("target", ["x\0y", "\ud800", "x" * 4_000 + "/" * 1_000])
def test_a_link_that_no_disk_takes_is_left_out_of_its_stage_alone(tmp_path: Path, target: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    stages = Stages(tmp_path / "run")
    stage = stages.open(4)
    stage.extend("/t", Changes((), {"a": Entry("link", content=target), "b": Entry("dir", mode=0o755)}))
    stage.seal()

    stages.apply(4, {"/t": folder})

    assert [one.name for one in folder.iterdir()] == ["b"]
    assert stages.sealed() == []


def test_what_an_earlier_version_left_of_a_stage_that_was_done_is_no_stage(tmp_path: Path) -> None:
    stages = sealed(tmp_path, 4)
    (tmp_path / "4" / PLAN).unlink()

    assert stages.sealed() == []
    stages.open(4).seal()
    assert stages.sealed() == [4]


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"shared": [["/t"]], "boxes": {}}', '{"shared": [], "boxes": []}']
)
def test_a_damaged_record_of_a_runs_folders_counts_as_missing(tmp_path: Path, text: str) -> None:
    (tmp_path / RUN_FILE).write_text(text)
    assert RunFiles.read(tmp_path) is None
