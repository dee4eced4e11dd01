"""Stands between a client and the real Docker engine, so that the engine can seem to die."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

T = TypeVar("T")

ENGINE = "/var/run/docker.sock"


class EngineRelay:
    """A unix socket that passes everything on until it ends, and then hangs up on everybody."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._held: list[bytes] = []
        self._is_open = True

    @classmethod
    async def begin(cls, path: Path) -> EngineRelay:
        relay = cls(path)
        relay._server = await asyncio.start_unix_server(relay._serve, path)
        return relay

    @property
    def address(self) -> str:
        return f"unix://{self._path}"

    @property
    def streams(self) -> int:
        """How many long answers are under way: wires attached, waits."""
        return sum(b"/attach" in line or b"/wait" in line for line in self._held)

    async def end(self) -> None:
        assert self._server is not None
        self._is_open = False
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine_reader, engine_writer = await asyncio.open_unix_connection(ENGINE)
        if not self._is_open:  # it ended while the engine was rung up
            writer.transport.abort()
            engine_writer.transport.abort()
            return
        self._writers |= {writer, engine_writer}
        self._pass_on(reader, engine_writer, is_asking=True)
        self._pass_on(engine_reader, writer, is_asking=False)

    def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_asking: bool
    ) -> None:
        task = asyncio.create_task(self._copy(source, target, is_asking=is_asking), name="relay")
        self._tasks.add(task)

    async def _copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_asking: bool
    ) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                if is_asking:
                    self._held.append(data.partition(b"\r\n")[0])
                target.write(data)
                await target.drain()
            target.write_eof()


class RelayThread:
    """A relay in a thread of its own, for a host that is another process. Enter it to begin."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)
        self._relay: EngineRelay | None = None
        self.address = f"unix://{path}"

    def __enter__(self) -> Self:
        self._thread.start()
        self.come_back()
        return self

    def __exit__(self, *_: object) -> None:
        self.break_off()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=120)
        self._loop.close()

    def come_back(self) -> None:
        self._relay = self._do(EngineRelay.begin(self._path))

    def break_off(self) -> None:
        """Hang up on everybody; nobody answers from now on."""
        if self._relay is not None:
            self._do(self._relay.end())
            self._relay = None

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=120)
