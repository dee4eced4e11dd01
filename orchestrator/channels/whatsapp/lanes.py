"""Each chat's messages one after another, no chat waiting for another's."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

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
            self.start_beside(self._work(chat), name=f"whatsapp:{chat}")

    def start_beside(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Do what holds no chat up; it ends with the lanes. `work` must not raise."""
        task = self._tasks.create_task(work, name=name)
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
