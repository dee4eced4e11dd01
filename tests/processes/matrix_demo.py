"""Show a message, an answer and a reminder in a room of a real homeserver, with no account anywhere.

    python tests/processes/matrix_demo.py

`make matrix-server` installs the homeserver once; `make matrix-demo` is this.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
if __name__ == "__main__":
    # A package of a library is called `tests`, too: ours has no name unless pytest gives it one.
    sys.path.insert(0, str(REPOSITORY))
    tests = types.ModuleType("tests")
    tests.__path__ = [str(REPOSITORY / "tests")]
    sys.modules["tests"] = tests

from tests.processes.synapse import PYTHON, Person, Synapse  # noqa: E402

ANDY = str(Path(sys.executable).with_name("andy"))
SECONDS = 120.0


def until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"✗ not in {SECONDS:.0f} s: {what}")
        time.sleep(0.2)


class Demo:
    """One homeserver, one Andy on a home of its own, and Jane, his owner."""

    def __init__(self, folder: Path, server: Synapse) -> None:
        self._home = folder / "home"
        self._server = server
        self._environment = {
            **os.environ,
            "ANDY_HOME": str(self._home),
            "ANDY_PORT": "0",
            "ANDY_AGENT": "offline",
            "ANDY_RUNTIME": "process",
        }

    def andy(self, *words: str, stdin: str = "", shows: bool = True) -> str:
        """Run a command of Andy and return what it prints."""
        if shows:
            print(f"$ andy {' '.join(words)}", flush=True)
        done = subprocess.run(
            [ANDY, *words], input=stdin, capture_output=True, text=True, env=self._environment, check=False
        )
        if done.returncode:
            raise SystemExit(f"✗ {done.stderr.strip()}")
        if shows:
            print(f"  {done.stdout.strip()}", flush=True)
        return done.stdout

    def run(self) -> None:
        """Show all of it. Raises `SystemExit` at what does not happen."""
        jane, andy = self._server.person("jane"), self._server.person("andy")
        print(
            f"A homeserver is at {self._server.address}, with the accounts {jane.user_id} and {andy.user_id}."
        )
        answers = {"homeserver": self._server.address, "user": andy.user_id, "owner": jane.user_id}
        flags = [word for name, value in answers.items() for word in ("--set", f"{name}={value}")]
        self.andy("channels", "add", "matrix", *flags, stdin="secret\n")
        print("$ andy up", flush=True)
        log = (self._home / "demo.log").open("wb")
        host = subprocess.Popen([ANDY, "up"], stdout=log, stderr=log, env=self._environment)
        try:
            until(lambda: "connected" in self.andy("channels", "status", shows=False), "connected")
            self._talk(jane, andy.user_id)
        finally:
            host.terminate()
            host.wait()
            log.close()
        print("\n✓ All steps succeeded, and the room shows each message once.")

    def _talk(self, jane: Person, andy: str) -> None:
        room = jane.make_room(andy, name="Family")
        until(lambda: andy in jane.members(room), "Andy accepts the invitation")
        print("Jane makes the room Family and invites Andy: he comes.")
        # Main, where groups are registered, is a chat of this machine.
        self.andy("chat", "main", "--message", f"register group matrix:{room} as family named Family")
        for text in ("@Andy add milk to the shopping list", "@Andy remind me in 2 seconds to drink water"):
            count = len(jane.texts(room, andy))
            print(f"\nJane:  {text}")
            jane.write(room, text)
            until(lambda count=count: len(jane.texts(room, andy)) > count, f"an answer to '{text}'")
            print(f"Andy:  {jane.texts(room, andy)[count]}", flush=True)
        until(
            lambda: "drink water" in jane.texts(room, andy)[-1] and len(jane.texts(room, andy)) >= 3,
            "the reminder",
        )
        print(f"Andy:  {jane.texts(room, andy)[-1]}")
        shown = [one["event_id"] for one in jane.events(room)]
        assert len(shown) == len(set(shown))


def main() -> None:
    if not PYTHON.is_file():
        raise SystemExit("✗ No homeserver is installed here: 'make matrix-server' does that.")
    print("Starting a homeserver …", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="andy-matrix-") as folder,
        Synapse(Path(folder, "homeserver")) as server,
    ):
        Demo(Path(folder), server).run()


if __name__ == "__main__":
    main()
