"""Limit how fast messages are sent, so that WhatsApp does not take the account for a spammer and ban it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.base.clock import Clock
from orchestrator.base.rate_limits import TokenBucket
from orchestrator.domain.errors import ChannelDown

MAX_WAIT_MS = 20_000
"""Milliseconds that a message may wait; one that would wait longer fails, and the host retries it later."""
MAX_CHATS = 1_000
"""Chats in memory above which those are removed that may get a message at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRate:
    """The limits on sending.

    A chat gets at most one message each `chat_gap_ms`. All chats together get `burst` messages at once, then
    one each `every_ms`. A wait is lengthened at random by up to the fraction `jitter`, because exact
    intervals would look like a machine's.
    """

    chat_gap_ms: int = 1_200
    burst: int = 8
    every_ms: int = 3_000
    jitter: float = 0.4


class SendRateLimiter:
    """Assigns each message the time at which it may be sent. A waiting chat does not delay the others."""

    def __init__(self, rate: SendRate, *, clock: Clock, chance: Callable[[], float]) -> None:
        """`rate` has the limits; `chance` returns a number from [0, 1), by which waits vary at random."""
        self._rate = rate
        self._clock = clock
        self._chance = chance
        # The limit of all chats together; without an interval there is no such limit.
        a_second = 1000 / rate.every_ms if rate.every_ms else math.inf
        self._bucket = TokenBucket(clock, at_once=rate.burst, a_second=a_second)
        self._next_in_chat_ms: dict[str, int] = {}
        """For each chat, the time of the steady clock from which it may get another message."""

    async def wait_for_turn(self, chat: str) -> None:
        """Wait until a message to `chat` may be sent. It counts for the limits from the start of the wait.

        Raises:
            ChannelDown: it would have to wait for more than `MAX_WAIT_MS`; it does not count for the limits.
        """
        if self.wait_ms(chat) > MAX_WAIT_MS:
            raise ChannelDown(
                "Too many messages at once: WhatsApp bans accounts for that, so this one waits."
            )
        await asyncio.sleep(self.book(chat) / 1000)

    def wait_ms(self, chat: str) -> int:
        """Return the milliseconds that a message to `chat` has to wait now, without jitter.

        Nothing is reserved.
        """
        chat_ms = self._next_in_chat_ms.get(chat, 0) - self._clock.steady_ms()
        return max(0, chat_ms, math.ceil(self._bucket.wait_ms()))

    def book(self, chat: str) -> int:
        """Reserve the next time for a message to `chat`; return the milliseconds until then."""
        now_ms = self._clock.steady_ms()
        wait_ms = self.wait_ms(chat)
        if wait_ms:
            wait_ms += int(wait_ms * self._rate.jitter * self._chance())
        send_at_ms = now_ms + wait_ms
        self._forget_free_chats(now_ms)
        self._next_in_chat_ms[chat] = send_at_ms + self._rate.chat_gap_ms
        # The message counts for the limit of all chats at the time at which it is sent, not now. Otherwise a
        # message that its chat's gap or the jitter delays would be sent together with later ones, as a burst
        # above the limit.
        self._bucket.take(1, at_ms=send_at_ms)
        return wait_ms

    def take_spare(self) -> bool:
        """Return whether something less important than a message, such as a reaction, may be sent now.

        It may if half of the burst is free, and then counts for the limit of all chats.
        """
        if self._bucket.wait_ms(self._rate.burst - self._rate.burst // 2) > 0:
            return False
        self._bucket.take(1)
        return True

    def _forget_free_chats(self, now_ms: int) -> None:
        """Forget the chats that may get a message at once, if too many are in memory."""
        if len(self._next_in_chat_ms) > MAX_CHATS:
            self._next_in_chat_ms = {
                chat: free_ms for chat, free_ms in self._next_in_chat_ms.items() if free_ms > now_ms
            }
