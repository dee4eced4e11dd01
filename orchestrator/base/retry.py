"""Try something again, each time later, for as long as what it fails of may pass."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable
from types import TracebackType


class Attempt:
    """One try, as a context: an error that may pass ends it and does not leave it."""

    def __init__(self, may_pass: Callable[[Exception], bool]) -> None:
        self._may_pass = may_pass
        self.has_failed = False

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> bool:
        self.has_failed = isinstance(error, Exception) and self._may_pass(error)
        return self.has_failed


async def attempts(
    may_pass: Callable[[Exception], bool], *, first_seconds: float, longest_seconds: float
) -> AsyncIterator[Attempt]:
    """Yield tries until one does not fail: `async for attempt in attempts(…): with attempt: …`.

    The pauses double from `first_seconds`, and differ by up to a half so that many do not come at once.
    """
    for number in itertools.count():
        attempt = Attempt(may_pass)
        yield attempt
        if not attempt.has_failed:
            return
        pause = min(first_seconds * 2 ** min(number, 20), longest_seconds)
        await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - no secret
