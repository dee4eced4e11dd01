"""`python -m agent_runner.carrier.waiting_runner`: a runner that is started before its order arrives.

Starting Python takes as long as connecting to the host, so both happen at once. Before the order arrives,
only the modules that start the agent's CLI are loaded, because the CLI's start takes longest; the others are
loaded during that start. Stdin is a line with the environment, as a JSON object, and then the order. A
command, such as a test's, replaces the runner once the environment has arrived.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

BOXES = ("messages", "tasks")
"""The mailbox directories into which the agent writes requests."""
NO_COMMAND_CODE = 127
"""The exit code if the command cannot be started, as in a shell."""


def lock_workspace(root: Path) -> None:
    """Lock the workspace `root` for this process, as soon as no other container uses it. Blocks until then.

    On a machine that was cut off from the host, the container of a run that the host gave up may still use
    it.
    """
    fcntl.flock(os.open(root, os.O_RDONLY), fcntl.LOCK_EX)  # released when this process ends


def start(root: Path, command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a process that waits for its environment and order, which `hand_over` gives it, and return it.

    Then it becomes the runner, or `command` if that is not empty. The directories of the workspace `root` are
    created.
    """
    home = root / ".home"
    group, scratch = root / "group", root / ".tmp"
    boxes = [root / "ipc" / box for box in (*BOXES, "input", "replies")]
    for directory in (*boxes, home / ".claude", group, scratch):
        directory.mkdir(parents=True, exist_ok=True)
    own_variables = {
        "ANDY_WORKSPACE": str(root),
        "HOME": str(home),
        "TMPDIR": str(scratch),
        "CLAUDE_CONFIG_DIR": str(home / ".claude"),
    }
    # Not asyncio's process class: that reports the end only after all children have closed the pipes.
    return subprocess.Popen(
        [sys.executable, "-m", "agent_runner.carrier.waiting_runner", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=group,
        env={**os.environ, **own_variables},
        start_new_session=True,
    )


def hand_over(waiting: subprocess.Popen[bytes], environment: Mapping[str, str], order: bytes) -> None:
    """Pass a waiting runner its environment and its order, which is a line of JSON. Blocks.

    If the runner has ended already, nothing is raised: its exit code reports that.
    """
    assert waiting.stdin is not None
    try:
        with waiting.stdin as stdin:
            stdin.write(json.dumps(environment).encode() + b"\n" + order + b"\n")
    except BrokenPipeError:
        pass


def main(command: Sequence[str]) -> int:
    """Wait for the environment, and become the runner or the command; return its exit code."""
    if not command:
        from agent_runner import __main__ as runner  # loaded before the wait, which may be long
    line = _read_line()
    if not line:
        return 0  # the carrier has ended without an order
    os.environ.update(json.loads(line))
    time.tzset()  # the environment may name another time zone
    if not command:
        return runner.main()
    try:
        os.execvp(command[0], list(command))  # noqa: S606  # as it is, and in this process
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error}\n")
        return NO_COMMAND_CODE


def _read_line() -> bytes:
    """Return one line of stdin, read without a buffer: the order after it is for the runner or command."""
    line = bytearray()
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return bytes(line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
