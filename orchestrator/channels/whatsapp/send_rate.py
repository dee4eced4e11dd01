"""Limit how fast messages leave, so that WhatsApp takes the account for no spammer and bans it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.base.clock import Clock
from orchestrator.base.rate_limits import TokenBucket
from orchestrator.domain.errors import ChannelDown

MAX_WAIT_MS = 20_000
"""A message that would wait longer is refused for now, and the host asks again later."""
MAX_CHATS = 1_000
"""So many chats are remembered before those are dropped that may get a message at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRate:
    """A chat gets a message each `chat_gap_ms`; all chats together `burst` at once, then one each
    `every_ms`. `jitter` is how much longer a wait may get, as a share: machines keep time too well."""

    chat_gap_ms: int = 1_200
    burst: int = 8
    every_ms: int = 3_000
    jitter: float = 0.4


class SendRateLimiter:
    """Gives each message the moment when it may leave. A chat that waits holds no other up."""

    def __init__(self, rate: SendRate, *, clock: Clock, chance: Callable[[], float]) -> None:
        """`chance` returns a number from [0, 1) for the jitter."""
        self._rate = rate
        self._clock = clock
        self._chance = chance
        a_second = 1000 / rate.every_ms if rate.every_ms else math.inf
        self._bucket = TokenBucket(clock, at_once=rate.burst, a_second=a_second)
        self._chat_free_ms: dict[str, int] = {}

    async def wait_for_turn(self, chat: str) -> None:
        """Return when a message to `chat` may leave.

        Raises:
            ChannelDown: that is more than `MAX_WAIT_MS` away; no place was taken.
        """
        if self.wait_ms(chat) > MAX_WAIT_MS:
            raise ChannelDown(
                "Too many messages at once: WhatsApp bans accounts for that, so this one waits."
            )
        await asyncio.sleep(self.book(chat) / 1000)

    def wait_ms(self, chat: str) -> int:
        """Return how long a message to `chat` has to wait from now, without jitter. Takes no place."""
        chat_ms = self._chat_free_ms.get(chat, 0) - self._clock.steady_ms()
        return max(0, chat_ms, math.ceil(self._bucket.wait_ms()))

    def book(self, chat: str) -> int:
        """Take the next place for a message to `chat`; return in how many milliseconds it is."""
        now_ms = self._clock.steady_ms()
        wait_ms = self.wait_ms(chat)
        if wait_ms:
            wait_ms += int(wait_ms * self._rate.jitter * self._chance())
        at_ms = now_ms + wait_ms
        self._forget_free_chats(now_ms)
        self._chat_free_ms[chat] = at_ms + self._rate.chat_gap_ms
        # Taken when the message leaves and not when it was asked for: else one that its own chat or the
        # jitter held back would leave together with those that come after it, as one larger burst.
        self._bucket.take(1, at_ms=at_ms)
        return wait_ms

    def take_spare(self) -> bool:
        """Take a place for what is no message, such as a reaction; False unless half the burst is left."""
        if self._bucket.wait_ms(self._rate.burst - self._rate.burst // 2) > 0:
            return False
        self._bucket.take(1)
        return True

    def _forget_free_chats(self, now_ms: int) -> None:
        if len(self._chat_free_ms) > MAX_CHATS:
            self._chat_free_ms = {
                chat: free_ms for chat, free_ms in self._chat_free_ms.items() if free_ms > now_ms
            }
