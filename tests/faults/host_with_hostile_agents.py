"""`andy up` whose containers run a script instead of the runner where the home has one for their group.

The scripts lie in `hostile/{folder}.py` of the home. What is waited for in minutes is waited for in seconds.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.base import rate_limits
from orchestrator.cli.main import main
from orchestrator.containers import timeouts
from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.process.container import ProcessContainer

SCRIPTS = Path(os.environ["ANDY_HOME"]) / "hostile"
timeouts.SILENT_MS = 40_000  # the honest runner says that it lives every ten seconds
timeouts.FIRST_SIGN_MS = 40_000
timeouts.TURN_GRACE_MS = 1_000
timeouts.CLOSE_GRACE_MS = 2_000
rate_limits.PATIENCE_MS = 3_000

_container_options = DockerRuntime._container_options
_begin = ProcessContainer.begin


def _script(folder: str) -> str | None:
    path = SCRIPTS / f"{folder}.py"
    return path.read_text(encoding="utf-8") if path.exists() else None


@functools.wraps(_container_options)
def recipe(self: DockerRuntime, client: Any, spec: Any) -> dict[str, Any]:
    made = _container_options(self, client, spec)
    script = _script(spec.folder)
    return made if script is None else {**made, "entrypoint": ["python3", "-S", "-c", script]}


@functools.wraps(_begin)
async def begin(self: ProcessContainer, command: Sequence[str]) -> None:
    script = _script(self.folder)
    await _begin(self, command if script is None else [sys.executable, "-S", "-c", script])


DockerRuntime._container_options = recipe  # type: ignore[method-assign]
ProcessContainer.begin = begin  # type: ignore[method-assign]

if __name__ == "__main__":
    main()
