"""Wait for a condition, with one deadline for all tests: `until` in a coroutine, `wait_until` elsewhere."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_SECONDS = 180.0
"""Seconds that anything may take. They pass only where a test fails: a busy machine has been seen to stand
still for half a minute, and an engine on one to take a minute and a half to start a container."""
LOOK_SECONDS = 0.02
"""Seconds between two looks of `wait_until`."""


async def until(holds: Callable[[], object] | Callable[[], Awaitable[object]], what: str) -> None:
    """Return once `holds` is true; it may be async. Asked again whenever the loop has come round."""
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                answer = holds()
                if await answer if inspect.isawaitable(answer) else answer:
                    return
                await asyncio.sleep(0.001)
    except TimeoutError as error:
        raise AssertionError(f"not in {DEADLINE_SECONDS:g} s: {what}") from error


def wait_until(condition: Callable[[], T], *, seconds: float | None = None, what: str = "") -> T:
    """Return what `condition` gives once it is true. `seconds` is for what may take longer than all else."""
    limit = DEADLINE_SECONDS if seconds is None else seconds
    deadline = time.monotonic() + limit
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not in {limit:g} s: {what or condition}"
        time.sleep(LOOK_SECONDS)
    return found
