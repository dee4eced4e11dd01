"""Which modules may import which. The layers are in pyproject.toml; here is what they cannot say."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WIRE = ROOT / "agent_runner" / "wire"


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports by full names only"
            yield node.module or ""


def test_the_import_contracts_are_kept():
    checked = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout


def test_the_wire_needs_the_standard_library_and_pydantic_alone():
    foreign = [
        f"{path.name}: {name}"
        for path in sorted(WIRE.rglob("*.py"))
        for name in imports_of(path)
        if name.split(".")[0] not in {*sys.stdlib_module_names, "pydantic"}
        and not name.startswith("agent_runner.wire")
    ]
    assert foreign == []


def loaded_with(*names: str) -> set[str]:
    """The top names of all that a fresh interpreter has loaded after importing `names`."""
    program = f"import sys, {', '.join(names)}; print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return {name.split(".")[0] for name in output.split()}


def test_the_wire_loads_nothing_slow():
    """The container reads its order before anything else is loaded."""
    loaded = loaded_with(*(f"agent_runner.wire.{path.stem}" for path in WIRE.glob("[a-z]*.py")))

    assert not loaded & {"orchestrator", "claude_agent_sdk", "watchdog", "httpx", "docker"}


def test_slow_libraries_are_not_loaded_with_the_host_or_the_runner():
    loaded = loaded_with("orchestrator.cli", "orchestrator.app", "agent_runner.__main__")

    assert not loaded & {"neonize", "claude_agent_sdk"}
