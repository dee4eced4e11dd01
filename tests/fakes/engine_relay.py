"""Stands between a client and the real Docker engine, so that the engine can seem to die."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

ENGINE = "/var/run/docker.sock"


class EngineRelay:
    """A unix socket that passes everything on until it ends, and then hangs up on everybody."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._held: list[bytes] = []

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
