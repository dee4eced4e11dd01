"""A run's processes are found by their environment, also in the moments in which they have none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.containers.process import identity

MARK = "ANDY_RUN=r1"
RUNNING = b"PATH=/bin\0ANDY_RUN=r1\0"
KERNEL = identity.KERNEL_THREAD


class ProcFolder:
    """A `/proc` with processes whose state a test sets, and which end when they are killed."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.killed: list[int] = []
        self.waits = 0
        self.after_wait: dict[int, tuple[int, bytes]] = {}
        """Wait → the process and its environment from then on."""
        monkeypatch.setattr(identity, "PROC", root)
        monkeypatch.setattr(identity.os, "kill", self._kill)
        monkeypatch.setattr(identity.time, "sleep", self._sleep)

    def set(
        self, pid: int, environment: bytes, *, has_program: bool = True, flags: int = 0, state: str = "S"
    ) -> None:
        fields = ["1"] * 50
        fields[identity.FLAGS_FIELD - 1] = str(flags)
        fields[identity.ENVIRONMENT_END_FIELD - 1] = "4096" if has_program else "0"
        (self.root / str(pid)).mkdir(exist_ok=True)
        (self.root / str(pid) / "environ").write_bytes(environment)
        (self.root / str(pid) / "stat").write_text(f"{pid} (a b) c) {state} {' '.join(fields)}")

    def _kill(self, pid: int, _: int) -> None:
        self.killed.append(pid)
        shutil.rmtree(self.root / str(pid))

    def _sleep(self, _: float) -> None:
        self.waits += 1
        if self.waits in self.after_wait:
            self.set(*self.after_wait[self.waits])


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProcFolder:
    return ProcFolder(tmp_path, monkeypatch)


def test_a_process_that_is_starting_another_program_is_found_when_it_has_an_environment_again(proc):
    proc.set(41, b"", has_program=False)
    proc.after_wait[3] = (41, RUNNING)

    identity.kill_marked(MARK)

    assert (proc.killed, proc.waits) == ([41], 4)


def test_one_that_ends_is_waited_for(proc):
    proc.set(42, b"", has_program=False)
    proc.after_wait[2] = (42, b"")  # another process with an empty environment, or anything else

    identity.kill_marked(MARK)

    assert (proc.killed, proc.waits) == ([], 2)


@pytest.mark.parametrize(
    "other",
    [
        {"environment": b"", "has_program": True},
        {"environment": b"", "has_program": False, "flags": KERNEL},
        {"environment": b"", "has_program": False, "state": "Z"},
        {"environment": b"PATH=/bin\0"},
    ],
    ids=["an empty environment", "of the kernel", "ended", "another run"],
)
def test_others_are_neither_killed_nor_waited_for(proc, other):
    proc.set(43, **other)

    identity.kill_marked(MARK)

    assert (proc.killed, proc.waits) == ([], 0)


def test_processes_of_others_that_may_not_be_looked_at_keep_nobody_from_being_killed(proc):
    proc.set(41, RUNNING)
    proc.set(44, b"PATH=/bin\0")
    (proc.root / "44" / "stat").unlink()
    (proc.root / "44" / "stat").mkdir()  # an error that root meets, too

    identity.kill_marked(MARK)

    assert proc.killed == [41]
