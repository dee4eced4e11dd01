"""The tree itself: nothing hidden, nothing grown out of its form."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.skips import THIS_MACHINE

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("orchestrator", "agent_runner")
COMPOSITION_ROOT_MAX_LINES = 160
NO_SUBJECT = re.compile(r"\s*(What|Who|Whose|Whom|How|Where|Which|Why|Those|Of)\b")
"""The opening of a docstring that has no subject: it describes a thing around a corner."""
CATCH_ALLS = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}


def modules(*folders: str) -> list[Path]:
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "__pycache__" not in path.parts
    )


SOURCES = modules(*PACKAGES)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module", autouse=True)
def forgotten_trees() -> Iterator[None]:
    """Let go of a million nodes, which each collection of garbage would look through in the tests to come."""
    yield
    tree.cache_clear()


def calls(path: Path) -> Iterator[ast.Call]:
    yield from (node for node in ast.walk(tree(path)) if isinstance(node, ast.Call))


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def ignored(*paths: str) -> list[str]:
    """Those of `paths` that git would not track."""
    asked = subprocess.run(
        ["git", "check-ignore", "--no-index", "--", *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode in (0, 1), asked.stderr
    return asked.stdout.split()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason=f"{THIS_MACHINE}no git checkout")
def test_gitignore_hides_no_source():
    """`store/` unanchored hides `orchestrator/store/`; `data/` and `groups/` likewise."""
    sources = [shown(path) for path in modules("orchestrator", "agent_runner", "tests", "benchmarks")]
    sources += [shown(path) for path in (ROOT / "orchestrator").rglob("*.sql")]
    sources += [
        "orchestrator/groups/x.py",
        "orchestrator/data/x.py",
        "docs/store/x.md",
        "container/Dockerfile",
    ]

    assert ignored(*sources) == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason=f"{THIS_MACHINE}no git checkout")
def test_gitignore_hides_what_is_the_users_own():
    own = [
        "store/messages.db",
        "data/token",
        "backups/b.tar.gz",
        "groups/main/note.md",
        ".env",
        "andy.toml",
        ".venv",
    ]

    assert sorted(ignored(*own)) == sorted(own)
    assert ignored("store/.gitkeep", "data/.gitkeep", "groups/.gitkeep", "backups/.gitkeep") == []


def test_the_composition_root_reads_like_a_table_of_contents():
    """Other modules have no cap on lines: a file is as long as its one idea. Docstrings do not count."""
    tree = ast.parse((ROOT / "orchestrator" / "app.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and ast.get_docstring(node) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]

    assert len(ast.unparse(tree).splitlines()) <= COMPOSITION_ROOT_MAX_LINES


def test_no_module_is_a_place_for_everything():
    assert [shown(path) for path in SOURCES if path.stem in CATCH_ALLS] == []


def test_the_root_of_the_host_holds_only_its_entry_and_its_composition():
    loose = {path.name for path in (ROOT / "orchestrator").glob("*.py")}

    assert loose == {"__init__.py", "__main__.py", "app.py"}


def test_migrations_are_numbered_without_gaps():
    names = sorted(path.name for path in (ROOT / "orchestrator" / "store" / "migrations").glob("*.sql"))
    assert [name[:4] for name in names] == [f"{number:04}" for number in range(1, len(names) + 1)]


def test_no_two_public_classes_share_a_name():
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(shown(path))

    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_every_task_has_a_name():
    nameless = [
        f"{shown(path)}:{call.lineno}"
        for path in SOURCES
        for call in calls(path)
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in ("create_task", "ensure_future")
        and "name" not in {keyword.arg for keyword in call.keywords}
    ]

    assert nameless == []


def test_deadlines_are_timeouts():
    """`asyncio.wait_for` runs its work in a task of its own, which a client bound to one does not bear."""
    used = [
        f"{shown(path)}:{call.lineno}"
        for path in SOURCES
        for call in calls(path)
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "wait_for"
        and ast.unparse(call.func) == "asyncio.wait_for"
    ]

    assert used == []


def test_a_module_says_what_it_is():
    assert [shown(path) for path in SOURCES if tree(path).body and not ast.get_docstring(tree(path))] == []


def test_tests_are_compiled_once_however_pytest_is_started():
    """Else each process rewrites all of them, and each `andy` that a test starts compiles its modules."""
    assert not sys.dont_write_bytecode
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ


def docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings of a module: its own, those of classes and functions, and those of names."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
        if isinstance(node, ast.Module | ast.ClassDef):
            for named, text in pairwise(node.body):
                if isinstance(named, ast.Assign | ast.AnnAssign):
                    match text:
                        case ast.Expr(value=ast.Constant(value=str(said))):
                            yield said


def test_a_function_that_may_return_none_says_when():
    """A docstring that describes the value describes None, too. Names alone, such as `get`, need none."""
    silent = [
        f"{shown(path)}: {node.name}"
        for path in SOURCES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.returns is not None
        and ast.unparse(node.returns).endswith("| None")
        and (text := ast.get_docstring(node))
        and not re.search(r"\bNone\b", text)
    ]

    assert silent == []


def test_docstrings_are_sentences_with_a_subject():
    """Write "Return …", "The …" or "Whether …"; constants say what they are, with their unit."""
    found = [
        f"{shown(path)}: {text.strip().splitlines()[0]}"
        for path in SOURCES
        for text in docstrings(path)
        if NO_SUBJECT.match(text)
    ]

    assert found == []


def test_whoever_starts_a_process_with_pipes_ends_it_in_the_one_way_that_cannot_hang() -> None:
    """`Process.wait` alone waits for ever while bytes stand in a pipe that nobody reads."""
    starters = {
        shown(path): text
        for path in SOURCES
        if "create_subprocess" in (text := path.read_text(encoding="utf-8")) and re.search(r"=\S*PIPE", text)
    }
    assert starters, "the pattern no longer fits what it looks for"
    assert not [path for path, text in starters.items() if "kill_and_wait" not in text]
