"""Lets a line through now and then: a container that errs in a loop must not fill the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable

MAX_KEYS = 1_000
"""Of those who err choose their keys themselves, as with their addresses, none may fill the memory."""


class LogThrottle:
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
        if len(self._next) >= MAX_KEYS:
            self._next = {one: due for one, due in self._next.items() if now < due}
            self._held = {one: held for one, held in self._held.items() if one in self._next}
        self._next[key] = now + self._seconds
        return True

    def take_held(self, key: Hashable) -> int:
        """Return how many were held back since the last that passed, and forget them."""
        return self._held.pop(key, 0)


class ThrottledLogger(logging.Filter):
    """Throttles the lines of one logger, and says with the next of a kind how many were left out."""

    def __init__(self, throttle: LogThrottle | None = None) -> None:
        super().__init__()
        self._throttle = throttle or LogThrottle()

    def filter(self, record: logging.LogRecord) -> bool:
        # What follows the first line differs with each event: a socket's number, a traceback.
        key = str(record.msg).partition("\n")[0]
        if not self._throttle.passes(key):
            return False
        if held := self._throttle.take_held(key):
            record.msg = f"(and {held} more like this were not logged) {record.msg}"
        return True
