"""One container of the Docker engine."""

from __future__ import annotations

import asyncio
import json
import math
import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from orchestrator.base.clock import SystemClock
from orchestrator.base.rate_limits import BYTES_A_SECOND, BYTES_AT_ONCE, TokenBucket
from orchestrator.containers.docker import streams
from orchestrator.containers.docker.client import ContainerNotFound, EngineCalls, already_so, translated
from orchestrator.containers.streams import Demultiplexer, Pump, Source, Tail
from orchestrator.domain.errors import EngineGone
from orchestrator.domain.protocols import Exit
from orchestrator.domain.values import Folder, RunId

if TYPE_CHECKING:
    from docker import APIClient

OnLog = Callable[[RunId, bytes], None]
"""Receives pieces of stderr on the event loop; it must not block."""
BREAK_SECONDS = 5.0
"""Seconds after the end of its output in which a container must exit; else the stream broke off."""


class DockerContainer:
    """A `RunningContainer` of the engine. `wires` is set only for a container that was just started."""

    def __init__(
        self,
        *,
        run_id: RunId,
        folder: Folder,
        ref: str,
        calls: EngineCalls,
        on_log: OnLog,
        wires: streams.AttachedStreams | None = None,
        is_outdated: bool = False,
    ) -> None:
        self.run_id = run_id
        self.folder = folder
        self.ref = ref
        self.is_outdated = is_outdated
        self._calls = calls
        self._on_log = on_log
        self._wires = wires
        self._pumps: set[Pump] = set()
        self._stderr = Tail()
        self._exit: Exit | None = None
        self._pace = TokenBucket(SystemClock(), at_once=BYTES_AT_ONCE, a_second=BYTES_A_SECOND)
        if wires is not None:
            weakref.finalize(self, wires.close)

    async def output(self) -> AsyncGenerator[bytes, None]:
        """Yield stdout as `RunningContainer.output` describes.

        Close it (`contextlib.aclosing`) to end its thread.
        """
        splitter = Demultiplexer()
        async with aclosing(self._pumped(self._open_output, "output")) as chunks:
            async for chunk in chunks:
                await self._pace.wait(len(chunk))
                for piece in splitter.feed(chunk):
                    if not piece.is_stderr:
                        yield piece.data
                    else:
                        self._take_stderr(piece.data)
        await self._confirm_end()

    async def wait(self) -> Exit:
        if self._exit is None:
            self._exit = await self._see_exit()
        return replace(self._exit, stderr_tail=self._stderr.text())

    async def stop(self, *, grace_seconds: float = 2.0) -> None:
        await self._calls.call(partial(_stop, ref=self.ref, seconds=math.ceil(grace_seconds)))

    async def remove(self) -> None:
        await self._calls.call(partial(remove_container, ref=self.ref))
        self.release()

    def release(self) -> None:
        """Release the threads and connections; the container goes on."""
        for pump in tuple(self._pumps):
            pump.close()
        if self._wires is not None:
            self._wires.close()

    def _take_stderr(self, data: bytes) -> None:
        self._stderr.add(data)
        self._on_log(self.run_id, data)

    def _open_output(self) -> Source:
        if self._wires is not None:
            return self._wires
        return streams.stored_output(self._calls.connect, self.ref)

    async def _pumped(self, opened: Callable[[], Source], what: str) -> AsyncGenerator[bytes, None]:
        pump = Pump(opened, name=f"{what}-{self.run_id}")
        self._pumps.add(pump)
        try:
            with translated():
                async for chunk in pump.chunks():
                    yield chunk
        finally:
            self._pumps.discard(pump)
            pump.close()

    async def _confirm_end(self) -> None:
        """Check that the container has exited, now that its output has ended.

        The engine reports the exit a moment after the end of the output. If it does not, the stream was
        interrupted while the container goes on.
        """
        try:
            async with asyncio.timeout(BREAK_SECONDS):
                await self.wait()
        except TimeoutError as error:
            raise EngineGone("The output broke off while the container may live on.") from error

    async def _see_exit(self) -> Exit:
        try:
            async with aclosing(self._pumped(self._ask_end, "wait")) as parts:
                received = [part async for part in parts]
        except ContainerNotFound:
            return Exit(code=None)
        if not received:
            raise EngineGone
        try:
            code = int(json.loads(b"".join(received))["StatusCode"])
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise EngineGone("Docker does not say how a container ended.") from error
        return Exit(code=code, was_oom_killed=await self._calls.call(partial(_was_oom_killed, ref=self.ref)))

    def _ask_end(self) -> Source:
        return streams.ended(self._calls.connect, self.ref)


def remove_container(client: APIClient, *, ref: str) -> None:
    with already_so():
        client.remove_container(ref, force=True, v=True)


def _stop(client: APIClient, *, ref: str, seconds: int) -> None:
    with already_so():
        client.stop(ref, timeout=seconds)


def _was_oom_killed(client: APIClient, *, ref: str) -> bool:
    import docker.errors

    try:
        return bool(client.inspect_container(ref)["State"]["OOMKilled"])
    except docker.errors.NotFound:  # removed meanwhile
        return False
