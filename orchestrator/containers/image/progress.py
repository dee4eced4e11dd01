"""Report the progress of an image build from its output: the phase, the elapsed time, and a failure."""

from __future__ import annotations

import re
import textwrap
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from orchestrator.domain.errors import ImageNotBuilt

Say = Callable[[str], None]
"""Shows one line to a person."""

PHASES = {
    "base": "the tools of the image",
    "packages": "the locked packages, some 30 MB the first time",
    "dependencies": "the Claude SDK with its program, some 90 MB the first time",
    "runner": "the runner",
}
"""Descriptions of the Dockerfile's stages, by the names of the stages."""

_STAGE = re.compile(r"^Step \d+/\d+ : FROM \S+ AS (\w+)$", re.IGNORECASE)
_STEP = re.compile(r"^Step \d+/\d+ : (.*)$")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NOISE = re.compile(
    r"^( ---> |Removing intermediate|Ignoring |debconf: |rehash: warning|Successfully tagged)"
)
_TAIL_LINES = 12
_LINE_CHARS = 120


class BuildProgress:
    """Reports lines as `phase: line (elapsed s)`, and remembers the last ones for the text of an error."""

    def __init__(self, say: Say) -> None:
        """`say` shows one line to a person."""
        self._say = say
        self._started = time.monotonic()
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self.phase = "base"

    def enter(self, phase: str) -> None:
        """Begin the phase with this name, and report its description from `PHASES`."""
        self.phase = phase
        self.report(PHASES.get(phase, phase))

    def report(self, line: str) -> None:
        """Show a line with the phase and the seconds since the start, and remember it for `failure_text`."""
        self._tail.append(line)
        self._say(f"{self.phase}: {line} ({time.monotonic() - self._started:.0f} s)")

    def remember(self, line: str) -> None:
        """Remember a line without reporting it, because it is only useful after a failure."""
        self._tail.append(line)

    def failure_text(self, reason: str) -> str:
        """Return the text of an error: the phase that failed, the reason and the last lines of its output."""
        lines = "".join(f"\n  {line}" for line in self._tail)
        return (
            f"The image was not built: '{self.phase}' failed: {reason}. The last lines:{lines}\n"
            "Fix what they name and run 'andy image build' again."
        )


def follow_build(events: Iterable[dict[str, Any]], progress: BuildProgress) -> None:
    """Report the engine's build stream line by line; each stage of the Dockerfile is a phase.

    Raises:
        ImageNotBuilt: a step failed; the text has its last lines.
    """
    for event in events:
        for line in str(event.get("stream", "")).splitlines():
            _follow_line(line, progress)
        if "error" in event:
            raise ImageNotBuilt(progress.failure_text(_reason(str(event["error"]))))


def _reason(error: str) -> str:
    """Return the engine's error without the failed command, which the last lines show already."""
    code = re.search(r"returned a non-zero code: (\d+)$", error)
    return f"a command ended with code {code[1]}" if code else error.strip().rstrip(".")


def _follow_line(raw: str, progress: BuildProgress) -> None:
    """Report one line of the build: as a new phase, as progress, or not at all if it is noise.

    The command of a step is only remembered, for the text of an error.
    """
    line = _COLOUR.sub("", raw).rstrip()
    if stage := _STAGE.match(line):  # `Step 3/20 : FROM base AS runner` begins the phase `runner`
        progress.enter(stage[1])
    elif step := _STEP.match(line):  # `Step 4/20 : RUN apt-get update`: the command is remembered
        progress.remember(step[1])
    elif line and not _NOISE.match(line):
        progress.report(textwrap.shorten(line, _LINE_CHARS, placeholder=" …"))
