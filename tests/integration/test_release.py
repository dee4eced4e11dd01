"""A release in a repository of its own: it is taken over whole, or the tree stays as it was."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from release import __main__ as command
from release import artifacts
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
    shutil.copy2(PROJECT / "docker-compose.yml", root)
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


def test_a_push_writes_the_digests_into_the_compose_file_of_the_tag(root, scratch, made, monkeypatch):
    command.write_compose_file(scratch, made, command.images_of(scratch, "0.2.0", is_dry=False), "0.2.0")
    command.take_over(root, scratch, made, "0.2.0")
    before = (root / "dist" / "0.2.0" / "docker-compose.yml").read_text()
    (root / "docker-compose.yml").write_text("what comes after the release")

    def push(_, images, to):
        return {name: f"{to}/{name.partition(':')[0]}@sha256:{'a' * 64}" for name in images.values()}

    monkeypatch.setattr(command, "engine", nullcontext)
    monkeypatch.setattr(artifacts, "push_images", push)
    command.push(root, "0.2.0", "ghcr.io/me")

    after = (root / "dist" / "0.2.0" / "docker-compose.yml").read_text()
    assert before.count("andy-agent:0.2.0}") == after.count(f"ghcr.io/me/andy-agent@sha256:{'a' * 64}}}") == 3
    assert ":0.2.0}" not in after
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=root / "dist" / "0.2.0", check=True)


@pytest.mark.parametrize(("takes", "taken"), [(True, ["company.crt"]), (False, [])])
def test_only_a_dry_run_takes_this_machines_authorities_into_its_images(takes, taken, tmp_path, monkeypatch):
    authorities, source = tmp_path / "authorities", tmp_path / "source"
    (source / "container" / "certificates").mkdir(parents=True)
    shutil.copy2(PROJECT / "Makefile", source)
    authorities.mkdir()
    (authorities / "company.crt").write_text("PEM")
    built: dict[str, list[str]] = {}

    def build_agent(_, *, tag, authorities, **rest):
        built[tag] = [path.name for path in authorities.rglob("*.crt")]

    def build_host(_, source, tag, labels):
        built[tag] = [path.name for path in source.rglob("*.crt")]

    monkeypatch.setattr(artifacts, "HOST_AUTHORITIES", authorities)
    monkeypatch.setattr(artifacts.build, "build", build_agent)
    monkeypatch.setattr(artifacts, "_build_host", build_host)
    images = {"andy-agent:latest": "agent", "andy-orchestrator:latest": "host"}
    artifacts.build_images(
        None, source, images, version="0.2.0", revision="a", created="b", takes_authorities=takes
    )

    assert built == {"agent": taken, "host": taken}


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
