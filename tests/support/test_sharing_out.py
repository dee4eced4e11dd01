"""Test that a file's tests stay in one process and in order, unless they share nothing."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.leftovers import shares
from tests.support.sharing_out import LONGEST, TESTS, FilesTogether, is_apart, place_in_run

TOGETHER, APART = TESTS / "docker" / "test_compose.py", TESTS / "e2e" / "test_groups.py"


class Node:
    """Stands for a process of pytest: it takes what it is given, and is never done."""

    shutting_down = False

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.given: list[list[int]] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given.append(indices)

    def shutdown(self) -> None:
        """End, which it does not."""


def scheduled(collection: list[str]) -> list[list[list[str]]]:
    """What each of two processes is given of a collection at first, unit for unit."""
    options: dict[str, Any] = {"tx": ["popen", "popen"]}
    config = SimpleNamespace(getvalue=options.get, option=SimpleNamespace(loadscopereorder=False))
    scheduler = FilesTogether(config)  # type: ignore[arg-type]
    nodes = [Node("gw0"), Node("gw1")]
    for node in nodes:
        scheduler.add_node(node)  # type: ignore[arg-type]
        scheduler.add_node_collection(node, collection)  # type: ignore[arg-type]
    scheduler.schedule()
    return [[[collection[index] for index in unit] for unit in node.given] for node in nodes]


def test_a_file_stays_with_one_process_and_in_order():
    ids = [f"{TOGETHER.relative_to(TESTS.parent)}::test_{name}" for name in "zayb"]
    other = [f"tests/docker/test_egress.py::test_{name}" for name in "zayb"]

    assert scheduled([*ids, *other]) == [[ids], [other]]


def test_tests_that_share_nothing_go_to_whoever_is_free():
    ids = [f"{APART.relative_to(TESTS.parent)}::test_{name}" for name in "zayb"]

    assert scheduled(ids) == [[[ids[0]], [ids[2]]], [[ids[1]], [ids[3]]]]


def test_the_longest_files_start_first_and_tests_that_share_nothing_last():
    assert [path.name for path in LONGEST if not path.exists()] == []
    paths = [APART, TESTS / "unit" / "test_triggers.py", *LONGEST[::-1]]

    assert sorted(paths, key=place_in_run) == [*LONGEST, paths[1], APART]


def test_no_test_of_a_file_that_is_shared_out_shares_anything(request: pytest.FixtureRequest):
    """Of those that this run has collected."""
    found = [item.nodeid for item in request.session.items if is_apart(item.path) and shares(item)]

    assert found == []


@pytest.mark.host
def test_the_run_with_hosts_shares_out_by_file(tmp_path):
    """A whole run, as the Makefile starts it: xdist has ignored its own marks of groups without a word."""
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup",
            "--no-loadscope-reorder", "-v", f"--basetemp={tmp_path / 'run'}",
            "tests/support/test_until.py", "tests/support/test_shuffling.py", "tests/support/test_skips.py",
        ],
        cwd=TESTS.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    processes = defaultdict(set)
    for line in done.stdout.splitlines():
        if line.startswith("[gw"):
            process, *_, test = line.split()
            processes[test.partition("::")[0]].add(process)

    assert processes, done.stdout + done.stderr
    assert all(len(found) == 1 for found in processes.values()), done.stdout
