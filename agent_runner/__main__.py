"""`python -m agent_runner`: read one order from stdin, then run its session.

Only the steps before the slow imports are here: stdout is reserved for frames, and the CLI is started.
`runner` does the rest.
"""

from __future__ import annotations

import os
import sys

from agent_runner.agents.claude.cli_command import start_early
from agent_runner.workspace import Workspace


def main() -> int:
    """Read a run order, one line of JSON, from stdin; run the agent for it and return the exit code."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")  # it would look through every installed package
    frames = _take_stdout()
    workspace = Workspace.from_environment()
    order_line = sys.stdin.buffer.readline()
    started = start_early(order_line, workspace)  # it boots while the imports below take their time

    from agent_runner.runner import run

    return run(order_line, frames, workspace, started)


def _take_stdout() -> int:
    """Return a new descriptor of stdout for frames alone; redirect all other writes to stdout to stderr.

    The host reads stdout as frames, so no other output may mix with them.
    """
    sys.stdout.flush()
    descriptor = os.dup(1)
    # The descriptor itself, not only `sys.stdout`: child processes and C libraries write to it, too.
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return descriptor


if __name__ == "__main__":
    sys.exit(main())
