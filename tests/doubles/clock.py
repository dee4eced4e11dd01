"""A clock that moves only when a test moves it."""

from __future__ import annotations

from dataclasses import dataclass

START_MS = 1_780_000_000_000
"""2026-05-28T20:26:40Z."""


@dataclass
class FakeClock:
    """Wall and steady time, each settable. `pass_ms` moves both, as real time does."""

    wall_ms: int = START_MS
    running_ms: int = 1_000_000

    def now_ms(self) -> int:
        return self.wall_ms

    def steady_ms(self) -> int:
        return self.running_ms

    def pass_ms(self, milliseconds: int) -> int:
        """Let time go by; gives the new wall time."""
        self.wall_ms += milliseconds
        self.running_ms += milliseconds
        return self.wall_ms
