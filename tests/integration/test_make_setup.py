"""`make` in a new clone says what it installs while it does, and fails where that fails."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PYTHON = """#!/bin/sh
# Stands for Python: it makes a .venv of itself, and its pip does what the test says.
case "$*" in
*"-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
*"-r requirements-dev.lock"*) . ./pip ;;
esac
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name in ("requirements-dev.lock", "pyproject.toml"):
        (tmp_path / name).touch()
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def make(clone: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["make", "--file", PROJECT / "Makefile", "setup", f"PYTHON={clone / 'python'}"],
        cwd=clone,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_each_package_is_named_while_it_is_installed(clone: Path) -> None:
    # It goes on as soon as its package was named; without a name, after a minute.
    (clone / "pip").write_text(
        "echo 'Collecting one==1.0 (from -r requirements-dev.lock)'\n"
        "for _ in $(seq 600); do [ -e named ] && exit 0; sleep 0.1; done\nexit 1\n"
    )
    with make(clone) as made:
        assert made.stdout is not None
        for line in made.stdout:
            if line == "  … package 1: one==1.0\n":
                (clone / "named").touch()
    assert (made.returncode, (clone / ".venv" / ".ready").exists()) == (0, True)


def test_what_cannot_be_installed_fails_with_its_reason(clone: Path) -> None:
    (clone / "pip").write_text("echo 'ERROR: no network' >&2\nexit 1\n")
    with make(clone) as made:
        assert made.stdout is not None
        said = made.stdout.read()
    assert "ERROR: no network\n" in said
    assert made.returncode != 0
    assert not (clone / ".venv" / ".ready").exists()
