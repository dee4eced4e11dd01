"""Lets a line through now and then: a container that errs in a loop must not fill the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable


class Throttle:
    """Passes the first event of a key, then one every `seconds`; counts those in between."""

    def __init__(self, *, seconds: float = 10.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._monotonic = monotonic
        self._next: dict[Hashable, float] = {}
        self._held: dict[Hashable, int] = {}

    def passes(self, key: Hashable) -> bool:
        now = self._monotonic()
        if now < self._next.get(key, now):
            self._held[key] = self._held.get(key, 0) + 1
            return False
        self._next[key] = now + self._seconds
        return True

    def take_held(self, key: Hashable) -> int:
        """Return how many were held back since the last that passed, and forget them."""
        return self._held.pop(key, 0)
