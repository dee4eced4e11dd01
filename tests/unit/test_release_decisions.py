"""A release is refused, numbered and described as its decisions say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version

from release import decisions
from release.decisions import ReleaseRefused, Tree, choose_version, compose_file

ROOT = Path(__file__).parents[2]
LOG = "# Changelog\n\n## Unreleased\n\n### Added\n- A bell.\n\n## 0.1.0 - 2026-01-02\n\n- Andy.\n"
IMAGES = {
    "andy-orchestrator:latest": f"ghcr.io/me/andy-orchestrator@sha256:{'a' * 64}",
    "andy-agent:latest": f"ghcr.io/me/andy-agent@sha256:{'b' * 64}",
}


def tree(**facts: Any) -> Tree:
    return Tree(**{"version": "0.1.0", "changelog": LOG, **facts})


@pytest.mark.parametrize(
    ("wanted", "tags", "version"),
    [
        (None, (), "0.1.0"),
        ("0.2.0", ("v0.1.0",), "0.2.0"),
        ("0.2.0rc1", ("v0.1.0", "vienna", "nightly"), "0.2.0rc1"),
        ("0.10.0", ("v0.9.0",), "0.10.0"),
        ("0.2.0", ("v0.2.0rc1",), "0.2.0"),
    ],
)
def test_the_version_is_the_one_that_is_wanted_or_the_trees(wanted, tags, version):
    assert choose_version(tree(tags=tags), wanted, is_dry=False) == version


@pytest.mark.parametrize(
    ("facts", "wanted", "reason"),
    [
        ({"changed": ("README.md",)}, None, "Not committed: README.md. Commit it"),
        ({"changed": ("a", "b", "c", "d")}, None, "Not committed: a, b, c …. Commit it"),
        ({"branch": None}, None, "'git switch main' first"),
        ({"is_base_pinned": False}, None, "'make pin' writes its digest"),
        ({"tags": ("v0.1.0",)}, None, "0.1.0 is tagged already: 'make release VERSION=0.2.0'"),
        (
            {"tags": ("v0.3.0",)},
            "0.2.9",
            "0.2.9 is below 0.3.0, which is tagged: 'make release VERSION=0.4.0'",
        ),
        ({}, "two", "'two' is no version: write three numbers, such as VERSION=0.2.0"),
        ({}, "1.2", "is no version"),
        ({"changelog": "# Changelog\n\n## Unreleased\n\n## 0.1.0\n\n- Andy.\n"}, None, "has no entry under"),
        ({"changelog": "# Changelog\n\n## Unreleased\n\n### Added\n"}, None, "has no entry under"),
        ({"changelog": "# Changelog\n"}, None, "write what changed for users, and commit it"),
    ],
)
def test_a_release_is_refused_with_one_line_that_names_the_fix(facts, wanted, reason):
    with pytest.raises(ReleaseRefused) as refused:
        choose_version(tree(**facts), wanted, is_dry=False)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_dry_run_needs_no_branch_but_all_else():
    assert choose_version(tree(branch=None), None, is_dry=True) == "0.1.0"
    with pytest.raises(ReleaseRefused, match="Not committed"):
        choose_version(tree(changed=("README.md",)), None, is_dry=True)


@pytest.mark.parametrize(
    ("latest", "notes", "version"),
    [
        ("0.1.3", "### Added\n- A bell.\n", "0.2.0"),
        ("0.1.3", "### Changed\n- A bell.\n", "0.2.0"),
        ("0.1.3", "### Fixed\n- A bell that was Added.\n", "0.1.4"),
        ("0.2.0rc1", "### Fixed\n- A bell.\n", "0.2.0"),
    ],
)
def test_the_next_version_counts_the_second_number_for_features(latest, notes, version):
    assert decisions.next_version(Version(latest), notes) == version


def test_what_was_unreleased_stands_under_the_version_and_nothing_else_changes():
    made = decisions.released_changelog(LOG, "0.2.0", "2026-11-28")
    assert made == LOG.replace("## Unreleased\n", "## Unreleased\n\n## 0.2.0 - 2026-11-28\n")
    assert decisions.notes_of(LOG) == "### Added\n- A bell.\n"
    with pytest.raises(ReleaseRefused, match="no entry"):
        decisions.notes_of(made)


def test_the_version_is_set_in_the_code_and_read_from_there():
    text = (ROOT / "orchestrator" / "__init__.py").read_text()
    made = decisions.with_version(text, "7.8.9")
    assert decisions.version_of(made) == "7.8.9"
    assert made.replace("7.8.9", decisions.version_of(text)) == text
    with pytest.raises(ReleaseRefused, match="put it back with git"):
        decisions.version_of("version = 1\n")


def test_the_compose_file_is_that_of_the_clone_without_builds_and_with_images_by_digest():
    text = (ROOT / "docker-compose.yml").read_text()
    made = compose_file(text, IMAGES, "0.2.0")

    expected = text
    for before, after in IMAGES.items():
        expected = expected.replace(before, after)
    whole, without = yaml.safe_load(expected), yaml.safe_load(made)
    builds = [service.pop("build", None) for service in whole["services"].values()]
    assert all(builds)
    assert without == whole
    assert "build" not in made
    assert ":latest" not in made
    assert made.startswith("# Andy 0.2.0 without a clone")
    assert made.count("# The only one that sees Docker's socket") == 1


def test_a_compose_file_with_an_image_of_somebody_else_is_refused():
    text = (ROOT / "docker-compose.yml").read_text() + "  more:\n    image: redis:8\n"
    with pytest.raises(ReleaseRefused, match="has the image redis:8"):
        compose_file(text, IMAGES, "0.2.0")


def test_checksums_are_lines_of_sha256sum_in_the_order_of_names():
    assert decisions.checksums({"b.whl": "2" * 64, "a.gz": "1" * 64}) == (
        f"{'1' * 64}  a.gz\n{'2' * 64}  b.whl\n"
    )


def test_the_next_steps_are_commands_and_begin_with_the_images():
    said = decisions.next_steps("0.2.0", branch="main", registry="ghcr.io/me").splitlines()
    assert said[1].strip().startswith("make release-push VERSION=0.2.0 REGISTRY=ghcr.io/me")
    assert "git push --atomic origin main v0.2.0" in said[2]
    assert "git tag -d v0.2.0" in said[-1]


def test_the_labels_name_what_is_in_an_image():
    labels = decisions.image_labels("andy-agent", version="0.2.0", revision="abc", created="2026-11-28")
    assert labels["org.opencontainers.image.version"] == "0.2.0"
    assert labels["org.opencontainers.image.revision"] == "abc"
    assert labels["org.opencontainers.image.title"] == "andy-agent"
