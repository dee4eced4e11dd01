"""How fast messages may leave, so that WhatsApp takes the account for no spammer. Decides; waits nowhere."""

from __future__ import annotations

from dataclasses import dataclass

MAX_CHATS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRate:
    """A chat gets a message each `chat_gap_ms`; all chats together `burst` at once, then one each
    `every_ms`. `jitter` is how much longer a wait may get, as a share: machines keep time too well."""

    chat_gap_ms: int = 1_200
    burst: int = 8
    every_ms: int = 3_000
    jitter: float = 0.4


class SendRateLimiter:
    """Books places in time. A chat that has waited its turn holds no other up."""

    def __init__(self, pace: SendRate) -> None:
        self._pace = pace
        self._free_ms: dict[str, int] = {}
        self._drained_ms = 0
        """When the burst is all there again."""

    def wait_ms(self, chat: str, *, now_ms: int) -> int:
        """How long a message to `chat` has to wait from now, not counting jitter."""
        overall_ms = self._drained_ms - self._pace.every_ms * (self._pace.burst - 1)
        return max(0, self._free_ms.get(chat, 0) - now_ms, overall_ms - now_ms)

    def book(self, chat: str, *, now_ms: int, chance: float) -> int:
        """Take the next place and return how long to wait for it; `chance` is from [0, 1)."""
        wait_ms = self.wait_ms(chat, now_ms=now_ms)
        if wait_ms:
            wait_ms += int(wait_ms * self._pace.jitter * chance)
        at_ms = now_ms + wait_ms
        self._forget(now_ms)
        self._free_ms[chat] = at_ms + self._pace.chat_gap_ms
        self._drained_ms = max(self._drained_ms, at_ms) + self._pace.every_ms
        return wait_ms

    def take_spare(self, *, now_ms: int) -> bool:
        """Take a place of the burst for what is no message, if messages have half of it left."""
        if self._drained_ms - now_ms > self._pace.every_ms * (self._pace.burst // 2):
            return False
        self._drained_ms = max(self._drained_ms, now_ms) + self._pace.every_ms
        return True

    def _forget(self, now_ms: int) -> None:
        if len(self._free_ms) > MAX_CHATS:
            self._free_ms = {chat: free for chat, free in self._free_ms.items() if free > now_ms}
