"""Where things are, and how much is measured."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
CHECKOUT = Path(os.environ.get("ANDY_BENCH_CHECKOUT") or PROJECT)
"""The checkout whose host is measured: this one, or in a comparison another one."""
PYTHON = sys.executable if CHECKOUT == PROJECT else str(CHECKOUT / ".venv" / "bin" / "python")
IMAGE = os.environ.get("ANDY_IMAGE", "andy-agent:latest")
"""As for Andy itself. A name of its own keeps another checkout from replacing the image under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """The amount of work to measure. `of_full` is 1.0 for figures that are told, less for a quick look.

    At 0 everything is done once, with little and without pauses: it shows that a benchmark can measure,
    and its figures say nothing.
    """

    of_full: float

    def times(self, full: int, *, at_least: int = 2) -> int:
        """Return how often to do what is done `full` times for figures that are told."""
        return max(at_least, round(full * self.of_full)) if self.of_full else 1

    @property
    def warm_ups(self) -> int:
        """Return how many measurements come first and are left out: they warm the page cache."""
        return 1 if self.of_full else 0

    def size(self, full: int, *, smallest: int) -> int:
        """Return how much of something has to be there: always `full`, but for the smallest effort."""
        return full if self.of_full else smallest

    def seconds(self, full: float) -> float:
        """Return how long to wait or to watch: always `full`, but for the smallest effort."""
        return full if self.of_full else 0.1


def progress(text: str) -> None:
    """Tell how far it is, beside the results."""
    print(f"  … {text}", file=sys.stderr, flush=True)
