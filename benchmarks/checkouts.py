"""A second checkout to measure beside this one: its files, its libraries, its agent image."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.places import IMAGE, PROJECT, progress

KEPT = PROJECT / "build" / "compare"
"""Checkouts that were prepared are kept: their libraries take a minute or two."""
READY = ".venv/.ready"
WRITTEN = "All values: "
"""The file of the results is the last thing that a run says, here and in older checkouts."""


class UnknownCommit(Exception):
    """Git knows no commit of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """A tree with an environment of its own, and the name of the agent image built of it."""

    root: Path
    commit: str
    image: str

    @property
    def python(self) -> str:
        return sys.executable if self.root == PROJECT else str(self.root / ".venv" / "bin" / "python")

    def measure(self, name: str, *, is_shared: bool, effort: float) -> dict[str, Any]:
        """Run one benchmark in a process of its own and return its document.

        With `is_shared` the files of this checkout measure the other's host with `effort`, else its own files
        do, with the effort that every checkout knows: `--quick`.

        Raises:
            subprocess.CalledProcessError: it could not be measured; why was told on stderr.
        """
        environment = {**os.environ, "ANDY_IMAGE": self.image}
        if not is_shared:
            return self._run(self.python, self.root, [name, "--quick"], environment)
        environment["ANDY_BENCH_CHECKOUT"] = str(self.root)
        return self._run(sys.executable, PROJECT, [name, "--effort", str(effort)], environment)

    def has(self, name: str) -> bool:
        """Whether it measures this itself."""
        return (self.root / "benchmarks" / f"{name}.py").is_file()

    def _run(
        self, python: str, root: Path, arguments: list[str], environment: dict[str, str]
    ) -> dict[str, Any]:
        command = [python, "-m", "benchmarks", *arguments]
        ran = subprocess.run(
            command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        path = Path(ran.stdout.rpartition(WRITTEN)[2].strip())
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
        return found


def this_checkout() -> Checkout:
    return Checkout(root=PROJECT, commit=_commit_of("HEAD"), image=IMAGE)


def prepare(reference: str) -> Checkout:
    """Make a checkout of a commit, branch or tag, unless it is there from an earlier comparison.

    Raises:
        UnknownCommit: git knows no such name.
        subprocess.CalledProcessError: its libraries or its image could not be made.
    """
    commit = _commit_of(reference)
    checkout = Checkout(root=KEPT / commit, commit=commit, image=f"andy-agent-compare:{commit}")
    if not (checkout.root / READY).is_file():
        progress(f"{commit} is laid out in {checkout.root}")
        shutil.rmtree(checkout.root, ignore_errors=True)
        checkout.root.mkdir(parents=True)
        _lay_out(checkout)
        _install(checkout)
        (checkout.root / READY).touch()
    _build_image(checkout)
    return checkout


def _commit_of(reference: str) -> str:
    """Return the commit's short name. Raises `UnknownCommit`."""
    command = ["git", "rev-parse", "--short=10", "--verify", "--quiet", f"{reference}^{{commit}}"]
    asked = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    if asked.returncode:
        raise UnknownCommit(reference)
    return asked.stdout.strip()


def _lay_out(checkout: Checkout) -> None:
    with tempfile.NamedTemporaryFile(suffix=".tar") as packed:
        subprocess.run(["git", "archive", "-o", packed.name, checkout.commit], cwd=PROJECT, check=True)
        shutil.unpack_archive(packed.name, checkout.root, filter="data")


def _install(checkout: Checkout) -> None:
    """Make its environment of its own lock, as `make setup` does: by uv if it is there, in seconds."""
    made = [sys.executable, "-m", "venv", ".venv"]
    pip = [checkout.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if shutil.which("uv"):
        made = ["uv", "venv", "--quiet", "--python", sys.executable, ".venv"]
        pip = ["uv", "pip", "install", "--quiet", "--python", checkout.python]
    for command in (
        made,
        [*pip, "--require-hashes", "-r", "requirements-dev.lock"],
        [*pip, "--no-deps", "--no-build-isolation", "-e", "."],
    ):
        subprocess.run(command, cwd=checkout.root, check=True)


def _build_image(checkout: Checkout) -> None:
    """Build the image, which the engine's cache makes a matter of seconds after the first time."""
    progress(f"the agent image of {checkout.commit} is built where it is missing")
    command = [checkout.python, "-m", "orchestrator", "image", "build", "--tag", checkout.image]
    subprocess.run(command, cwd=checkout.root, stdout=subprocess.DEVNULL, check=True)
