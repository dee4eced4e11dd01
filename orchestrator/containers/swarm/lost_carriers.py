"""Detection of a lost carrier: it sends nothing for too long while the host was listening."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOOKS = 10
"""Checks of the silence that are spread over the time after which the carrier is lost."""


class SilenceWatch:
    """Tells a carrier that says nothing from a host that has no time to hear it.

    What came is read one message after the other. While one is handled, which takes long on a slow disk, the
    next ones wait unread, and a machine under load may not run the host at all.
    """

    def __init__(self, heard_at: Callable[[], float]) -> None:
        """`heard_at` returns when the last message came, by the clock of the loop."""
        self._heard_at = heard_at
        self._handled = 0
        """How many messages are handled now."""
        self._handled_at = 0.0

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Count no silence while the host does something before it listens again."""
        self._handled += 1
        try:
            yield
        finally:
            self._handled -= 1
            self._handled_at = asyncio.get_running_loop().time()

    async def until_silent(self, seconds: float) -> None:
        """Return once nothing has come for so long, in which the host listened."""
        loop = asyncio.get_running_loop()
        looks = 0
        while looks < LOOKS:
            begun = loop.time()
            await asyncio.sleep(seconds / LOOKS)
            # Looks are counted, not seconds: a host that is held up between two of them hears nothing.
            has_heard = self._handled > 0 or max(self._heard_at(), self._handled_at) >= begun
            looks = 0 if has_heard else looks + 1
