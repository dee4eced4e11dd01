"""Code that got into the voice program through a sound file has no files, no processes and no network."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.channels.voice import fence
from tests.support.skips import THIS_MACHINE

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason=f"{THIS_MACHINE}the fence is Linux's",
)
ATTACKER = Path(__file__).parents[1] / "processes" / "voice_attacks.py"
READS = {"read another file", "list a folder", "read another environment"}
"""Attacks that Landlock alone refuses; kernels before 5.13 have none."""
OFTEN_SHUT = {"io_uring", "take an open file", "write memory"}
"""Attacks that machines may refuse to everybody."""
VICTIM = """
import ctypes, os, sys
if os.getuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
print("here", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not tmp_path: only its owner may enter the folders above it.
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        for name in ("secret", "removed", "moved-from"):
            (place / name).write_text("GOOD")
        (place / "empty-folder").mkdir()
        for path in (place, *place.iterdir()):
            path.chmod(0o777)
            if os.getuid() == 0:
                os.chown(path, 65534, 65534)
        yield place


def attack(folder: Path, mode: str) -> dict[str, Any]:
    with subprocess.Popen(
        [sys.executable, "-c", VICTIM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as victim:
        assert victim.stdout is not None
        assert victim.stdin is not None
        victim.stdout.readline()
        done = subprocess.run(
            [sys.executable, ATTACKER, str(folder), str(victim.pid), mode], capture_output=True, text=True
        )
        victim.stdin.close()
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_an_attack_from_inside_is_refused_and_threads_still_start(folder: Path) -> None:
    before = sorted(folder.iterdir())

    found = attack(folder, "fenced")

    outcomes = found["attacks"]
    assert outcomes.pop("thread") == "started"
    reads = {name: outcomes.pop(name) for name in READS}
    assert set(outcomes.values()) <= {"EPERM", "EACCES"}, outcomes
    if found["missing"]:
        assert "no Landlock" in found["missing"][0]
    else:
        assert set(reads.values()) == {"EACCES"}, reads
    assert (sorted(folder.iterdir()), (folder / "secret").read_text()) == (before, "GOOD")


def test_the_same_attacks_succeed_without_the_fence(folder: Path) -> None:
    outcomes = attack(folder, "open")["attacks"]

    assert {name for name, outcome in outcomes.items() if outcome not in ("done", "started")} <= OFTEN_SHUT


def test_without_landlock_the_rest_of_the_fence_stands_and_that_is_said(folder: Path) -> None:
    program = (
        "import os, sys\n"
        "from orchestrator.channels.voice import fence\n"
        "fence._restrict_files = lambda *_: False\n"
        "print(fence.restrict_process(readable=[], library='json'))\n"
        "print(len(open(sys.argv[1]).read()))\n"
        "os.unlink(sys.argv[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder / "secret")], capture_output=True, text=True
    )

    assert "the kernel has no Landlock" in done.stdout
    assert "\n4\n" in done.stdout
    assert "PermissionError" in done.stderr


def test_a_system_without_any_fence_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")

    assert fence.restrict_process(readable=[], library="json") == [
        "this system has no filter of system calls that Andy knows"
    ]


def test_a_limit_of_the_machine_that_is_stricter_stays() -> None:
    program = (
        "import os, resource\n"
        "from orchestrator.channels.voice import fence\n"
        "resource.setrlimit(resource.RLIMIT_AS, (fence.MEMORY_BYTES // 2,) * 2)\n"
        "if os.getuid() == 0:\n"
        "    os.setresuid(65534, 65534, 65534)\n"
        "fence.limit_resources(cpu_seconds=100)\n"
        "print(*resource.getrlimit(resource.RLIMIT_AS), *resource.getrlimit(resource.RLIMIT_CPU))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    stricter = fence.MEMORY_BYTES // 2
    assert done.stdout.split() == [str(stricter), str(stricter), "100", "100"], done.stderr
