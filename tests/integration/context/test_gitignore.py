"""C-23: what was said never reaches a repository that a home happens to lie in."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.context.context_manager import ContextManager
from orchestrator.context.files import ignore_in_git
from orchestrator.context.tokens import EstimatingCounter
from tests.support.dialogues import NOW

ROOT = Path(__file__).resolve().parents[3]
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="no git")


def git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)


@needs_git
@pytest.mark.parametrize("home_in", [".", "some/where"])
@pytest.mark.parametrize("before", [None, "", "*.pyc", "*.pyc\n"])
def test_c_23_the_line_is_added_once_and_git_ignores_what_was_said(
    tmp_path: Path, home_in: str, before: str | None
):
    assert git(tmp_path, "init").returncode == 0
    home = tmp_path / home_in
    home.mkdir(parents=True, exist_ok=True)
    if before is not None:
        (home / ".gitignore").write_text(before)
    manager = ContextManager.of(home / "data" / "context", "family", counter=EstimatingCounter())
    manager.record_decision("Nobody else's business", now_ms=NOW)
    manager.snapshot(now_ms=NOW)

    assert ignore_in_git(home)
    assert not ignore_in_git(home)

    assert (home / ".gitignore").read_text().splitlines() == [*(["*.pyc"] if before else []), ".ai-brain/"]
    assert ".ai-brain" not in git(tmp_path, "status", "--porcelain", "--untracked-files=all").stdout
    for path in manager.files.path.rglob("*"):
        assert git(tmp_path, "check-ignore", "--quiet", str(path)).returncode == 0


@needs_git
@pytest.mark.parametrize(
    ("before", "separator"),
    [
        ("# für mich\n".encode("latin-1"), b""),
        ("*.pyc\r\n".encode("utf-16"), b"\n"),  # as PowerShell's `>` writes it
    ],
)
def test_c_23_the_line_is_added_to_a_file_of_any_encoding(tmp_path: Path, before: bytes, separator: bytes):
    git(tmp_path, "init")
    (tmp_path / ".gitignore").write_bytes(before)

    assert ignore_in_git(tmp_path)
    assert not ignore_in_git(tmp_path)

    assert (tmp_path / ".gitignore").read_bytes() == before + separator + b".ai-brain/\n"
    assert (
        git(tmp_path, "check-ignore", "--quiet", "data/context/main/.ai-brain/context.json").returncode == 0
    )


@needs_git
def test_c_23_where_git_ignores_it_already_nothing_is_added(tmp_path: Path):
    git(tmp_path, "init")
    (tmp_path / ".gitignore").write_text("/data/*\n")

    assert not ignore_in_git(tmp_path)
    assert (tmp_path / ".gitignore").read_text() == "/data/*\n"


def test_c_23_where_there_is_no_repository_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("orchestrator.context.files._is_in_work_tree", lambda _: False)

    assert not ignore_in_git(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_c_23_without_git_the_line_is_added_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))

    assert ignore_in_git(tmp_path)
    assert not ignore_in_git(tmp_path)
    assert (tmp_path / ".gitignore").read_text() == ".ai-brain/\n"


def test_c_23_this_repository_and_its_images_leave_it_out():
    assert ".ai-brain/" in (ROOT / ".gitignore").read_text().splitlines()
    assert "**/.ai-brain" in (ROOT / ".dockerignore").read_text().splitlines()
