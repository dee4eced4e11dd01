"""A release in a repository of its own: it is taken over whole, or the tree stays as it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from release import __main__ as command
from release.decisions import ReleaseRefused

PROJECT = Path(__file__).parents[2]
LOG = "# Changelog\n\n## Unreleased\n\n### Added\n- A bell.\n"


def git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with all that a release changes."""
    root = tmp_path / "tree"
    (root / "orchestrator").mkdir(parents=True)
    (root / "orchestrator" / "__init__.py").write_text('"""Andy."""\n\n__version__ = "0.1.0"\n')
    (root / "CHANGELOG.md").write_text(LOG)
    (root / ".gitignore").write_text("/dist/\n")
    git(root, "init", "--quiet", "--initial-branch", "main")
    git(root, "config", "user.name", "Mia")
    git(root, "config", "user.email", "mia@example.org")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "All of it")
    return root


@pytest.fixture
def scratch(root: Path, tmp_path: Path) -> Path:
    """A clone with the commit and the tag of a release; the tree knows neither."""
    scratch = tmp_path / "scratch"
    command.clone(root, scratch)
    command.commit(scratch, command.read_tree(root), "0.2.0")
    return scratch


@pytest.fixture
def made(tmp_path: Path) -> Path:
    made = tmp_path / "made"
    made.mkdir()
    (made / "SHA256SUMS").write_text("")
    return made


def test_the_tree_gets_commit_tag_and_files(root, scratch, made):
    command.take_over(root, scratch, made, "0.2.0")

    assert git(root, "log", "-1", "--format=%s %an") == "Release 0.2.0 Mia"
    assert git(root, "rev-parse", "v0.2.0^{commit}") == git(root, "rev-parse", "HEAD")
    assert "- A bell." in git(root, "tag", "--list", "--format=%(contents)", "v0.2.0")
    assert git(root, "branch", "--show-current") == "main"
    assert git(root, "status", "--porcelain") == ""
    assert '__version__ = "0.2.0"' in (root / "orchestrator" / "__init__.py").read_text()
    assert "## Unreleased\n\n## 0.2.0 - 20" in (root / "CHANGELOG.md").read_text()
    assert [path.name for path in (root / "dist").iterdir()] == ["0.2.0"]
    assert (root / "dist" / "0.2.0" / "SHA256SUMS").is_file()


def test_a_tree_that_went_on_in_the_meantime_is_left_as_it_is(root, scratch, made):
    git(root, "commit", "--quiet", "--allow-empty", "--message", "Meanwhile")

    with pytest.raises(ReleaseRefused, match="git merge"):
        command.take_over(root, scratch, made, "0.2.0")

    assert git(root, "log", "-1", "--format=%s") == "Meanwhile"
    assert git(root, "tag", "--list") == ""
    assert not (root / "dist" / "0.2.0").exists()


def refused(root: Path, *words: str) -> str:
    """Run the command in a process of its own and return the line that refuses."""
    done = subprocess.run(
        [sys.executable, "-m", "release", *words],
        cwd=root,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(PROJECT), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr.strip()


def test_a_file_that_git_does_not_know_yet_and_a_tag_that_is_there_are_refused(root):
    git(root, "tag", "v0.1.0")
    assert refused(root) == "0.1.0 is tagged already: 'make release VERSION=0.2.0'."

    (root / "forgotten.py").touch()
    assert refused(root, "--version", "0.2.0").startswith("Not committed: forgotten.py.")


def test_a_dry_run_pushes_to_this_machine_alone(root):
    said = refused(root, "--dry-run", "--registry", "ghcr.io/me")
    assert said == "A dry run pushes to this machine alone: REGISTRY=127.0.0.1:5000, or none."


def test_a_push_names_a_release_and_a_registry(root):
    assert "make release-push VERSION=0.2.0 REGISTRY=ghcr.io/me" in refused(root, "--push")
    said = refused(root, "--push", "--version", "0.2.0", "--registry", "ghcr.io/me")
    assert said == "There is no dist/0.2.0: 'make release VERSION=0.2.0' makes it."
