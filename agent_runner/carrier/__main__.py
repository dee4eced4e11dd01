"""`python -m agent_runner.carrier`: run the agent of a group on another machine than the host's.

Here is only what has to happen before the slow imports: the runner is started, which waits for its order. All
else is `carrier`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from agent_runner.carrier.waiting_runner import start, wait_until_alone


def main(command: Sequence[str]) -> int:
    """Carry a run to its end; a command takes the place of the runner. Returns the container's exit code."""
    root = Path(os.environ.get("ANDY_WORKSPACE", "/workspace"))
    wait_until_alone(root)
    waiting = start(root, command)

    from agent_runner.carrier.carrier import carry

    return carry(root, waiting)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
