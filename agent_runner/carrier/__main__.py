"""`python -m agent_runner.carrier`: run the agent of a group on another machine than the host's.

This module starts the runner, which then waits for its order, before the slow imports of `carrier`, which
does the rest.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from agent_runner.carrier.waiting_runner import lock_workspace, start


def main(command: Sequence[str]) -> int:
    """Run the carrier of one run to its end, and return the exit code of the container.

    It begins when no other container uses the workspace any more.
    `command` is a program with its arguments that replaces the runner, as in tests; empty for the runner.
    """
    root = Path(os.environ.get("ANDY_WORKSPACE", "/workspace"))
    lock_workspace(root)
    waiting = start(root, command)

    from agent_runner.carrier.carrier import carry

    return carry(root, waiting)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
