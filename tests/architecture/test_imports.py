"""Which modules may import which. The layers are in pyproject.toml; here is what they cannot say."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WIRE = ROOT / "agent_runner" / "wire"


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return every node of a module; parsed once, as the tests below look at all modules."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@pytest.fixture(scope="module", autouse=True)
def forgotten_nodes() -> Iterator[None]:
    """Let go of what each collection of garbage would look through in the tests to come."""
    yield
    nodes.cache_clear()


def imports_of(path: Path) -> Iterator[str]:
    for node in nodes(path):
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
    """All but the watch of directories, which loads watchdog at its first call; host and runner have it."""
    foreign = [
        f"{path.name}: {name}"
        for path in sorted({*WIRE.rglob("*.py")} - {WIRE / "arrivals.py"})
        for name in imports_of(path)
        if name.split(".")[0] not in {*sys.stdlib_module_names, "pydantic"}
        and not name.startswith("agent_runner.wire")
    ]
    assert foreign == []


def test_only_one_module_normalises_text():
    """Python's `normalize` is quadratic in a run of combining marks; `unicode_forms` bounds the runs."""
    others = [
        str(path.relative_to(ROOT))
        for package in ("orchestrator", "agent_runner")
        for path in sorted((ROOT / package).rglob("*.py"))
        if "unicodedata" in path.read_text(encoding="utf-8")
        for node in nodes(path)
        if (
            isinstance(node, ast.Attribute)
            and node.attr == "normalize"
            and ast.unparse(node) == "unicodedata.normalize"
        )
        or (isinstance(node, ast.ImportFrom) and node.module == "unicodedata")
    ]
    assert {*others} <= {"agent_runner/wire/unicode_forms.py"}


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


ABOUT_ONE_CHANNEL = {
    "orchestrator/backup/archive.py": "the name of its folder in data/",
    "orchestrator/cli/commands.py": "the name of its own command",
    "orchestrator/cli/setup.py": "its steps of the first set-up",
    "orchestrator/home/settings.py": "what is on where nothing is said",
}


def test_nothing_but_a_channel_itself_knows_which_one_it_is():
    """All else asks what a channel can do: it neither imports one nor compares names."""
    folder = ROOT / "orchestrator" / "channels"
    names = {path.parent.name for path in folder.glob("*/description.py")} - {"local"}
    assert "whatsapp" in names
    found = []
    for path in sorted((ROOT / "orchestrator").rglob("*.py")):
        shown = path.relative_to(ROOT).as_posix()
        if shown in ABOUT_ONE_CHANNEL:
            continue
        text = path.read_text(encoding="utf-8")
        for name in names:
            own = shown.startswith(f"orchestrator/channels/{name}/") or shown == f"orchestrator/cli/{name}.py"
            if own or name not in text:
                continue
            found += [f"{shown}: {one}" for one in imports_of(path) if f"channels.{name}" in one]
            constants = (one for one in nodes(path) if isinstance(one, ast.Constant))
            found += [f"{shown}:{one.lineno}: {name!r}" for one in constants if one.value == name]
    assert found == []
