"""`andy up` with bugs as a change may bring: a word that breaks the host, a channel that does not come up."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

from orchestrator.channels.local.channel import LocalChannel
from orchestrator.cli.main import main
from orchestrator.containers import frame_effects
from orchestrator.domain.protocols import Receive

_apply = frame_effects.apply
_run = LocalChannel.run
_failures = itertools.count(1)
CURE = Path(os.environ["ANDY_HOME"]) / "cured"


async def apply(tx: Any, run: Any, frame: Any, **rest: Any) -> Any:
    if "cursed" in (frame.result or "") and not CURE.exists():
        raise ValueError("a bug of the host")
    return await _apply(tx, run, frame, **rest)


async def run(self: LocalChannel, receive: Receive) -> None:
    if next(_failures) <= 3:
        raise ConnectionError("the messenger does not answer")
    await _run(self, receive)


frame_effects.apply = apply
LocalChannel.run = run  # type: ignore[method-assign]

if __name__ == "__main__":
    main()
