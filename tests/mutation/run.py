"""Change the pure decisions one line at a time and see whether a test notices: `make mutation`, for hours.

mutmut makes the mutants, in a copy of the tree below `.mutation/`, and runs for each the tests that reach its
function. Printed are the score of each module and what survived. `MODULES="wake_policy cron"` tries some.
"""

from __future__ import annotations

import ast
import difflib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PLACE = ROOT / ".mutation"
TOOLS, TREE = PLACE / "tools", PLACE / "tree"
MODULES: Mapping[str, tuple[str, ...]] = {
    "orchestrator/queue/next_turns.py": ("tests/unit/test_next_turns.py",),
    "orchestrator/loop/wake_policy.py": (
        "tests/unit/test_wake_policy.py",
        "tests/unit/test_loop_intervals.py",
    ),
    "orchestrator/inbound/triggers.py": ("tests/unit/test_triggers.py",),
    "orchestrator/ipc/authorise.py": ("tests/unit/test_authorise.py",),
    "orchestrator/proxies/model/budget_sums.py": ("tests/unit/test_budget_rules.py",),
    "orchestrator/proxies/model/request_policy.py": ("tests/unit/test_request_policy.py",),
    "orchestrator/proxies/mcp_message.py": ("tests/unit/test_mcp_message.py",),
    "orchestrator/proxies/approvals.py": ("tests/integration/test_approvals.py",),
    "orchestrator/proxies/egress/client_hello.py": ("tests/unit/test_client_hello.py",),
    "orchestrator/proxies/egress/public_addresses.py": ("tests/unit/test_egress_rules.py",),
    "orchestrator/domain/network_targets.py": ("tests/unit/test_egress_rules.py",),
    "orchestrator/scheduler/cron.py": ("tests/unit/test_cron.py",),
    "orchestrator/scheduler/timing.py": ("tests/unit/test_timing.py",),
    "orchestrator/scheduler/when.py": ("tests/unit/test_when.py",),
    "agent_runner/wire/frames.py": ("tests/unit/test_frames_codec.py",),
}
"""The pure decisions, each with the tests that are about it."""
COPIED = ("orchestrator", "agent_runner", "tests", "docs", "container", "pyproject.toml")
NAMES = {1: "killed", 3: "killed", 0: "survived", 33: "not reached", 5: "not reached", None: "not run"}
"""What mutmut writes down of a mutant, by the code with which its process ended; any other is a time-out."""
NUMBERED = re.compile(r"mutmut_\d+$")


def main() -> int:
    """Return 0 once all mutants were tried; survivors are for people to judge."""
    chosen = os.environ.get("MODULES", "").split()
    modules = {name: tests for name, tests in MODULES.items() if not chosen or Path(name).stem in chosen}
    copy_tree(modules)
    install()
    code = (
        f"import sys; sys.path.append({str(TOOLS)!r});"
        " from mutmut.__main__ import cli; cli(['run', '--max-children', '1'])"
    )
    subprocess.run([sys.executable, "-c", code], cwd=TREE, check=True, stdout=subprocess.DEVNULL)
    print("| module | mutants | killed | survived | not reached | timed out |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in modules:
        counts = counted(name)
        total = sum(counts.values())
        kinds = [counts[kind] for kind in ("killed", "survived", "not reached", "timed out")]
        print(f"| `{name}` | {total} | {' | '.join(map(str, kinds))} |")
    for name in modules:
        for survivor in survivors(name):
            print(survivor)
    return 0


def copy_tree(modules: Mapping[str, tuple[str, ...]]) -> None:
    """Copy what the tests need, with mutmut's settings in its `pyproject.toml`."""
    shutil.rmtree(TREE, ignore_errors=True)
    TREE.mkdir(parents=True)
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, TREE / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, TREE)
    options = ["-p", "no:xdist", "-p", "no:cacheprovider", "--timeout=60", "-W", "ignore"]
    tests = sorted({test for several in modules.values() for test in several})
    settings = {
        "source_paths": ["orchestrator", "agent_runner"],
        "only_mutate": list(modules),
        "also_copy": ["docs", "container"],
        "pytest_add_cli_args": options,
        "pytest_add_cli_args_test_selection": tests,
    }
    lines = ["", "[tool.mutmut]", *[f"{key} = {json.dumps(value)}" for key, value in settings.items()], ""]
    with (TREE / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write("\n".join(lines))


def install() -> None:
    """Install mutmut beside the environment of the tests, whose versions go first."""
    stamp = TOOLS / "lock"
    wanted = (HERE / "mutmut.lock").read_text(encoding="utf-8")
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--require-hashes", "--target", TOOLS, "--upgrade", "-r", HERE / "mutmut.lock"], check=True
    )
    stamp.write_text(wanted, encoding="utf-8")


def outcomes(module: str) -> dict[str, str]:
    """Return what became of each mutant of a module."""
    path = TREE / "mutants" / f"{module}.meta"
    if not path.is_file():
        return {}
    codes = json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
    return {name: NAMES.get(code, "timed out") for name, code in codes.items()}


def counted(module: str) -> Counter[str]:
    return Counter(outcomes(module).values())


def survivors(module: str) -> Iterator[str]:
    """Yield each survivor of a module with the lines that it changed."""
    path = TREE / "mutants" / module
    if not path.is_file():
        return
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    functions = {
        node.name: lines[node.lineno : node.end_lineno]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for mutant, outcome in outcomes(module).items():
        if outcome != "survived":
            continue
        name = mutant.rpartition(".")[2]
        original = functions.get(NUMBERED.sub("mutmut_orig", name), [])
        changes = difflib.unified_diff(original, functions.get(name, []), n=0, lineterm="")
        shown = [line.strip() for line in changes if not line.startswith(("---", "+++", "@@"))]
        yield f"{mutant}: {'  '.join(shown)[:300]}"


if __name__ == "__main__":
    sys.exit(main())
