"""Wait for a condition, with a deadline."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

DEADLINE_SECONDS = 60.0
"""It costs time only where a test fails; a busy machine has been seen to stand still for half a minute."""


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
