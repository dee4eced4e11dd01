"""A name server that gives no answer about one name, used instead of the machine's."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from tests.support.until import DEADLINE_SECONDS


@dataclass
class SilentNameServer:
    """Lookups of `silent.example` end when `released` is set; all other names lead to `addresses`."""

    addresses: Sequence[str]
    released: threading.Event = field(default_factory=threading.Event)
    waiting: int = 0
    two_wait: asyncio.Event = field(default_factory=asyncio.Event)

    def look_up(self, host: str, port: int, loop: asyncio.AbstractEventLoop) -> list[object]:
        if host == "silent.example":
            loop.call_soon_threadsafe(self._count)
            self.released.wait(DEADLINE_SECONDS)
            raise OSError("no answer")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in self.addresses]

    def _count(self) -> None:
        self.waiting += 1
        if self.waiting == 2:
            self.two_wait.set()


@contextmanager
def silent_name_server(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> Iterator[SilentNameServer]:
    """Have lookups answered by it, in an event loop whose own threads are two."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(2))
    server = SilentNameServer(addresses)

    def look_up(host: str, port: int, *_given: object, **_named: object) -> list[object]:
        return server.look_up(host, port, loop)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield server
    server.released.set()
