"""The contract of channels, run as somebody else would on a channel of a package of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from setuptools import find_packages

from tests.support.skips import only_in_soak

# Not of hosts, but each starts a run of tests, which takes as long.
pytestmark = pytest.mark.host
ROOT = Path(__file__).parents[2]
SLATE = ROOT / "tests" / "support" / "slate"
MODULE = """
import pytest
from orchestrator.testing.channel_contract import *  # noqa: F403
from slate.harness import SlateHarness

@pytest.fixture
def harness_kind():
    return SlateHarness
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the package `slate`, installed there with its entry point, and its tests."""
    shutil.copytree(SLATE, tmp_path / "slate", ignore=shutil.ignore_patterns("__pycache__"))
    info = tmp_path / "slate-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slate\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[andy.channels]\nslate = slate.channel:CHANNEL\n")
    (tmp_path / "test_slate.py").write_text(MODULE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    return tmp_path


def pytest_in(project: Path, *arguments: str, bug: str = "") -> str:
    """Run pytest as its user would; return what it printed."""
    environment = {**os.environ, "PYTHONPATH": f"{project}{os.pathsep}{ROOT}", "SLATE_BUG": bug}
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "TESTS_NEED_ALL"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    return f"{done.stdout}\n{done.stderr}\nexit code {done.returncode}"


def failed_in(said: str) -> set[str]:
    return {
        line.removeprefix("FAILED test_slate.py::").split(" ", 1)[0]
        for line in said.splitlines()
        if line.startswith("FAILED")
    }


def test_a_channel_that_was_written_from_the_docs_alone_keeps_the_contract(project):
    said = pytest_in(project, "-rs")
    assert "exit code 0" in said, said
    skipped = [line for line in said.splitlines() if line.startswith("SKIPPED")]
    assert [line.partition(": ")[2] for line in skipped] == ["on purpose: slate has no polls"], said


@pytest.mark.parametrize(
    ("bug", "test"),
    [
        ("key_memory", "test_what_was_sent_and_not_recorded_is_never_twice_in_the_chat"),
        ("no_limit", "test_it_is_what_its_description_says"),
        ("swallow", "test_a_message_that_the_other_end_refuses_is_never_said_to_be_sent"),
    ],
)
def test_the_contract_finds_a_planted_bug(project, bug, test):
    said = pytest_in(project, "-k", test, bug=bug)
    assert failed_in(said) == {test}, said


def test_the_contract_is_in_the_wheel():
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    assert "orchestrator.testing" in find_packages(str(ROOT), include=found["include"])


@only_in_soak
def test_a_foreign_channel_that_is_installed_breaks_no_test_of_andys_own(project):
    tests = ROOT / "tests" / "contract" / "test_channel_contract.py"
    names = "comes_with_andy or is_what_its_description or owns"
    said = pytest_in(
        project, str(tests), f"--rootdir={ROOT}", "-c", str(ROOT / "pyproject.toml"), "-k", names
    )
    assert "exit code 0" in said, said
