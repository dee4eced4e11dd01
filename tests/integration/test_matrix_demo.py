"""`make matrix-demo` starts as the program that it is, without pytest's way to find modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[1] / "processes" / "matrix_demo.py"


def test_without_a_homeserver_it_names_the_command_that_installs_one(tmp_path: Path) -> None:
    environment = {**os.environ, "ANDY_MATRIX_SERVER": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, DEMO], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
    )
    assert done.stderr == "✗ No homeserver is installed here: 'make matrix-server' does that.\n"
    assert done.returncode == 1
