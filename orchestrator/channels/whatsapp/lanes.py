"""Each chat's messages one after another, no chat waiting for another's."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable

from orchestrator.channels.whatsapp.protocol import Delivered


class ChatLanes:
    """Hands on in order what a chat's messages are; a chat with nothing left costs nothing."""

    def __init__(self, tasks: asyncio.TaskGroup, take: Callable[[Delivered], Awaitable[None]]) -> None:
        """`take` must not raise."""
        self._tasks = tasks
        self._take = take
        self._waiting: dict[str, deque[Delivered]] = defaultdict(deque)
        self._running: set[asyncio.Task[None]] = set()

    def put(self, delivered: Delivered) -> None:
        chat = delivered.message.chat
        is_idle = chat not in self._waiting
        self._waiting[chat].append(delivered)
        if is_idle:
            task = self._tasks.create_task(self._work(chat), name=f"whatsapp:{chat}")
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _work(self, chat: str) -> None:
        waiting = self._waiting[chat]
        while waiting:
            await self._take(waiting[0])
            waiting.popleft()
        del self._waiting[chat]

    def cancel(self) -> None:
        for task in self._running:
            task.cancel()
