"""Limits the rate of containers' frames and requests, and of messages to a messenger.

The figures here are a container's: each of its frames and requests is a transaction of the one database that
all groups share.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from orchestrator.base.clock import Clock

FRAMES_AT_ONCE, FRAMES_A_SECOND = 200, 20.0
BYTES_AT_ONCE, BYTES_A_SECOND = 32 * 1024 * 1024, 1024.0 * 1024
"""Frames and bytes that a container may write at once, and in each second from then on."""
PATIENCE_MS = 60_000
"""Milliseconds of waiting after which a container counts as talking without end."""
MAX_CALLERS = 1_000
"""Callers of a proxy whose rate is remembered, the latest."""
MAX_PAUSE_SECONDS = 2.0
"""Longest wait of a request because its caller has sent many."""


class TokenBucket:
    """Has `at_once` tokens and gains `a_second` more each second, until it is full again.

    The reader of a container's output calls `wait`; what it has not read stays in the container's own pipe.
    """

    def __init__(
        self, clock: Clock, *, at_once: int = FRAMES_AT_ONCE, a_second: float = FRAMES_A_SECOND
    ) -> None:
        """The bucket has `at_once` tokens at most, and gains `a_second` tokens each second."""
        self._clock = clock
        self._at_once = at_once
        self._token_ms = 1000 / a_second
        # When it is full again. This one number replaces a count with its time. It can also be
        # later than filling an empty bucket would take: then tokens were taken in advance.
        self._full_at_ms = float(clock.steady_ms())
        self._waited_ms = 0.0
        """Milliseconds that were waited for tokens since the last call of `forgive`."""

    @property
    def is_overrun(self) -> bool:
        """Whether the waits since the last call of `forgive` are longer than `PATIENCE_MS` together.

        A well-behaved container never causes that.
        """
        return self._waited_ms > PATIENCE_MS

    def forgive(self) -> None:
        """Set the sum of the waits to zero, because the container has made progress."""
        self._waited_ms = 0.0

    async def wait(self, cost: int = 1) -> None:
        """Take `cost` tokens, waiting for them when there are none."""
        seconds = self.take(cost)
        if seconds > 0:
            self._waited_ms += seconds * 1000
            await asyncio.sleep(seconds)

    def wait_ms(self, cost: int = 1) -> float:
        """Return in how many milliseconds `cost` tokens will be available, without taking any."""
        # From the moment at which the bucket has `cost` tokens until it is full, it gains the missing
        # `at_once - cost` tokens, and each takes `_token_ms`. For a cost above
        # `at_once`, the tokens above it come after the bucket would be full.
        until_full_ms = max(0.0, self._full_at_ms - self._clock.steady_ms())
        return max(0.0, until_full_ms + (cost - self._at_once) * self._token_ms)

    def take(self, cost: int, *, at_ms: int | None = None) -> float:
        """Take `cost` tokens, and return in how many seconds from now they are available.

        Tokens that are not there yet are taken in advance. `at_ms`, a time of the steady clock, is when the
        tokens are needed; None means now.
        """
        now_ms = self._clock.steady_ms()
        begin_ms = now_ms if at_ms is None else at_ms
        # Each token that is taken puts off the time at which the bucket is full again. When all taken tokens
        # have come, the bucket still needs `at_once` tokens to be full.
        self._full_at_ms = max(self._full_at_ms, begin_ms) + cost * self._token_ms
        return max(0.0, self._full_at_ms - now_ms - self._at_once * self._token_ms) / 1000


class CallerPace:
    """Slows down callers of a proxy that send much; what is not read yet waits in their own memory.

    A caller is a run, or an address as long as it shows no valid token: several runs may have one address.
    """

    def __init__(self, clock: Clock, *, at_once: int, a_second: float) -> None:
        """Each caller may use `at_once` tokens at once, and `a_second` more in each second.

        The user of the pace decides what costs a token, for example a request or a byte.
        """
        self._clock = clock
        self._at_once = at_once
        self._a_second = a_second
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def wait_seconds(self, caller: str, cost: int) -> float:
        """Count `cost` bytes that a caller has sent; return how many seconds to read no more from it."""
        return self._bucket(caller).take(cost)

    def request_seconds(self, caller: str, cost: int = 1) -> float:
        """Count a request of a caller, and return how many seconds to wait before it is answered.

        `cost` is the number of tokens that the request takes. The wait is at most `MAX_PAUSE_SECONDS`; a
        request that would have to wait that long is not counted.
        """
        bucket = self._bucket(caller)
        # If requests were counted while the tokens are used up, each would wait longer than the one before.
        # Of a caller that connects again and again, more and more would wait here.
        is_exhausted = bucket.wait_ms(cost) >= MAX_PAUSE_SECONDS * 1000
        return MAX_PAUSE_SECONDS if is_exhausted else bucket.take(cost)

    def _bucket(self, caller: str) -> TokenBucket:
        """Return the bucket of a caller, made if it is not known; the least recent one may be forgotten."""
        # Taken out and put in again, so that the latest callers are last in the order.
        bucket = self._buckets.pop(caller, None) or TokenBucket(
            self._clock, at_once=self._at_once, a_second=self._a_second
        )
        self._buckets[caller] = bucket
        if len(self._buckets) > MAX_CALLERS:
            self._buckets.popitem(last=False)
        return bucket
