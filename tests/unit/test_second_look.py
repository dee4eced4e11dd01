"""What failed beside others is run once more, alone; what fails again, or fails in number, is red."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import second_look

ONCE = """
from pathlib import Path
def test_once():
    seen = Path(__file__).with_name("seen")
    was = seen.exists()
    seen.touch()
    assert was
"""
NEVER = "import pytest\n@pytest.mark.parametrize('n', range({}))\ndef test_never(n): assert False\n"


@pytest.mark.parametrize(
    ("text", "code", "runs"),
    [
        (ONCE, 0, 2),
        (NEVER.format(1), 1, 2),
        (NEVER.format(second_look.MOST), 1, 2),
        (NEVER.format(second_look.MOST + 1), 1, 1),
        ("def test_fine(): pass\n", 0, 1),
        ("import nothing_of_that_name\n", 2, 1),
        ("raise SystemExit(3)\n", 3, 1),
    ],
    ids=["by chance", "again", "three", "four", "green", "cannot be read", "ends pytest"],
)
def test_only_few_failures_are_run_again(tmp_path, monkeypatch, text, code, runs):
    tests = tmp_path / "test_it.py"
    tests.write_text(text)
    calls: list[list[str]] = []

    def call(command: list[str]) -> int:
        calls.append(command)
        return subprocess.run(command, cwd=tmp_path, stdout=subprocess.DEVNULL, check=False).returncode

    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # ours take two seconds to import
    monkeypatch.setattr(second_look, "CACHES", tmp_path / "caches")
    monkeypatch.setattr(second_look.subprocess, "call", call)
    monkeypatch.setattr(
        second_look, "PYTEST", (sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", ".")
    )

    assert second_look.main("some", str(Path("test_it.py"))) == code
    assert len(calls) == runs
