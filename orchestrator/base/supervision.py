"""Keeps the host's loops running: restarts one that failed, later each time, and raises when it fails on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from orchestrator.base.clock import Clock

log = structlog.get_logger(__name__)

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
HEALTHY_MS = 60_000
MAX_FAILURES = 10


async def supervise(name: str, loop: Callable[[], Awaitable[None]], *, clock: Clock) -> None:
    """Run `loop` until it returns; after an exception run it again, each time later, ten times in a row.

    A loop that ran a minute counts as healthy again. The last failure is raised. A full disk is no failure
    of the loop: it is waited out, however long that takes. A damaged database is.
    """
    failures = 0
    while True:
        started_ms = clock.steady_ms()
        try:
            return await loop()
        except Exception as error:
            failures = 1 if clock.steady_ms() - started_ms > HEALTHY_MS else failures + 1
            is_waited_out = getattr(error, "is_waited_out", False)
            if failures >= MAX_FAILURES and not is_waited_out:
                log.critical("loop.gave_up", loop=name, failures=failures, exc_info=error)
                raise
            pause = min(FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 10), LONGEST_PAUSE_SECONDS)
            log.exception("loop.restarts", loop=name, failures=failures, pause_seconds=pause)
            await asyncio.sleep(pause)
