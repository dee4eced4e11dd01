"""Notice that a node of the swarm is lost: the carrier of a run on it sends nothing while the host reads.

`session` watches each run with it for `SILENCE_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CHECKS = 10
"""Checks into which the time is divided after which a silent carrier is lost."""


class SilenceWatch:
    """Distinguishes a carrier that sends nothing from a host that does not get to read what it sends.

    The host reads one message after another. While it handles one, which can take long on a slow disk, the
    next ones wait unread. On a machine under load, the host may not run at all for a while. Neither counts as
    silence.
    """

    def __init__(self, received_at: Callable[[], float]) -> None:
        """`received_at` returns the time of the last received message, by the event loop's clock."""
        self._received_at = received_at
        self._handling_count = 0
        """The number of messages that are being handled now."""
        self._last_handled_at = 0.0
        """The time at which the handling of a message ended last, by the event loop's clock."""

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Count no silence while this context is open, in which the host handles a message."""
        self._handling_count += 1
        try:
            yield
        finally:
            self._handling_count -= 1
            self._last_handled_at = asyncio.get_running_loop().time()

    async def watch(self, seconds: float, give_up: Callable[[str], None]) -> None:
        """Wait until the carrier was silent for this many seconds, and give its run up, with the reason."""
        await self.wait_until_silent(seconds)
        give_up(f"it sent nothing for {seconds:g} s")

    async def wait_until_silent(self, seconds: float) -> None:
        """Wait until nothing was received for this many seconds in which the host was able to read."""
        loop = asyncio.get_running_loop()
        silent_checks = 0  # in a row
        while silent_checks < CHECKS:
            started_at = loop.time()
            await asyncio.sleep(seconds / CHECKS)
            # Checks are counted and not seconds. If the host is held up, the time between two checks is long,
            # but it counts only once.
            last_active_at = max(self._received_at(), self._last_handled_at)
            is_active = self._handling_count > 0 or last_active_at >= started_at
            silent_checks = 0 if is_active else silent_checks + 1
