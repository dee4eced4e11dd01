"""What a build says: which phase it is in, since when, and how it failed."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from orchestrator.errors import ImageNotBuilt

Say = Callable[[str], None]
"""Take one line for a person."""

_STAGE = re.compile(r"^Step \d+/\d+ : FROM \S+ AS (\w+)$", re.IGNORECASE)
_STEP = re.compile(r"^Step \d+/\d+ : (.*)$")
_NOISE = re.compile(r"^( ---> |Removing intermediate container|WARNING: Running pip as)")
_TAIL_LINES = 12


class Progress:
    """Says lines as `phase: line (elapsed)`; remembers the last ones for an error."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._started = time.monotonic()
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self.phase = "base"

    def tell(self, line: str) -> None:
        """Say one line."""
        self._tail.append(line)
        self._say(f"{self.phase}: {line} ({time.monotonic() - self._started:.0f} s)")

    def keep(self, line: str) -> None:
        """Remember a line that is worth reading only after a failure."""
        self._tail.append(line)

    def failure(self, reason: str) -> ImageNotBuilt:
        """The error of the present phase, with its last lines."""
        lines = "".join(f"\n  {line}" for line in self._tail)
        return ImageNotBuilt(
            f"The image was not built: {self.phase} failed, {reason}. Its last lines:{lines}\n"
            "Mend what they name and run 'andy image build' again."
        )


def follow_build(events: Iterable[dict[str, Any]], progress: Progress) -> None:
    """Say the engine's build stream line by line; each stage of the Dockerfile is a phase.

    Raises:
        ImageNotBuilt: a step failed; the text has its last lines.
    """
    for event in events:
        for line in str(event.get("stream", "")).splitlines():
            _follow_line(line.rstrip(), progress)
        if "error" in event:
            raise progress.failure(str(event["error"]).strip().rstrip("."))


def _follow_line(line: str, progress: Progress) -> None:
    if stage := _STAGE.match(line):
        progress.phase = stage[1]
    if not line or _NOISE.match(line):
        return
    if step := _STEP.match(line):
        progress.tell(_shorten(step[1]))
    else:
        progress.tell(line)


def _shorten(instruction: str, limit: int = 90) -> str:
    words = " ".join(instruction.split())
    return words if len(words) <= limit else f"{words[: limit - 1]}…"
