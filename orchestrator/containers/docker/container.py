"""The handle of a running container of the Docker engine: its output, its input and its end.

The options with which containers are created are in `runtime`, see `_host_config` there.
"""

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
"""Seconds that a container may take to exit after its output has ended; after them, the stream broke off."""


class DockerContainer:
    """A `RunningContainer` of the engine. `attached` is set only for a container that was just started."""

    def __init__(
        self,
        *,
        run_id: RunId,
        folder: Folder,
        ref: str,
        calls: EngineCalls,
        on_log: OnLog,
        attached: streams.AttachedStreams | None = None,
        is_outdated: bool = False,
    ) -> None:
        """`ref` is the container's id. `attached` are its streams, if this process has just started it.

        `calls` calls the engine, and `on_log` receives pieces of stderr. `is_outdated` says whether a new
        container would be made of another image.
        """
        self.run_id = run_id
        self.folder = folder
        self.ref = ref
        self.is_outdated = is_outdated
        self._calls = calls
        self._on_log = on_log
        self._attached = attached
        self._pumps: set[Pump] = set()
        """The threads that read the output now."""
        self._stderr = Tail()
        self._exit: Exit | None = None
        self._pace = TokenBucket(SystemClock(), at_once=BYTES_AT_ONCE, a_second=BYTES_A_SECOND)
        if attached is not None:
            # For an object that is dropped without `release`: the connections must not stay open.
            weakref.finalize(self, attached.close)

    async def output(self) -> AsyncGenerator[bytes, None]:
        """Yield the container's stdout from its first byte until the container ends; stderr goes to the log.

        A thread reads it. A caller that stops early closes the generator (`contextlib.aclosing`), which ends
        that thread. The rate is limited, so that a flood of output does not occupy the host.

        Raises:
            EngineGone: the stream broke off while the container may still run.
        """
        splitter = Demultiplexer()
        async with aclosing(self._pump_chunks(self._open_output, "output")) as chunks:
            async for chunk in chunks:
                await self._pace.wait(len(chunk))
                for piece in splitter.feed(chunk):
                    if not piece.is_stderr:
                        yield piece.data
                    else:
                        self._take_stderr(piece.data)
        await self._confirm_end()

    async def wait(self) -> Exit:
        """Wait until the container has ended; return its exit with the end of stderr, as far as it was read.

        Raises:
            EngineGone: the engine does not answer, or not with an exit code.
        """
        if self._exit is None:
            self._exit = await self._wait_for_exit()
        # `output` may still be reading stderr, so each call has the end that is known by then.
        return replace(self._exit, stderr_tail=self._stderr.text())

    async def stop(self, *, grace_seconds: float = 2.0) -> None:
        """Send SIGTERM, and SIGKILL after the grace period. A container that has ended is no error.

        Raises:
            EngineGone: the engine does not answer.
        """
        # Rounded up, because the engine accepts whole seconds only.
        await self._calls.call(partial(_stop, ref=self.ref, seconds=math.ceil(grace_seconds)))

    async def remove(self) -> None:
        """Kill and remove the container, whatever its state, and close its connections."""
        await self._calls.call(partial(remove_container, ref=self.ref))
        self.release()

    def release(self) -> None:
        """End the threads and close the connections that read the container; the container itself goes on."""
        for pump in tuple(self._pumps):
            pump.close()
        if self._attached is not None:
            self._attached.close()

    def _take_stderr(self, data: bytes) -> None:
        """Remember the last bytes of stderr for the report of the exit, and pass `data` to the run's log."""
        self._stderr.add(data)
        self._on_log(self.run_id, data)

    def _open_output(self) -> Source:
        """Return the source of stdout and stderr.

        For a container that this process has started, it is the attached stream. For a container found after
        a restart of the host, it is the output that the engine has stored.
        """
        if self._attached is not None:
            return self._attached
        return streams.request_output(self._calls.connect, self.ref)

    async def _pump_chunks(
        self, open_source: Callable[[], Source], stream_name: str
    ) -> AsyncGenerator[bytes, None]:
        """Open a stream of the engine and yield its chunks.

        A thread, named by `stream_name` and the run's id, reads it and ends with this generator. Errors of
        docker-py are raised as this project's, such as `EngineGone`.
        """
        pump = Pump(open_source, name=f"{stream_name}-{self.run_id}")
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

        Raises:
            EngineGone: the exit was not reported in time.
        """
        try:
            async with asyncio.timeout(BREAK_SECONDS):
                await self.wait()
        except TimeoutError as error:
            raise EngineGone("The output broke off while the container may live on.") from error

    async def _wait_for_exit(self) -> Exit:
        """Wait until the container has ended and return its exit; the code is None if the container is gone.

        Raises:
            EngineGone: the engine does not answer, or not with an exit code.
        """
        try:
            async with aclosing(self._pump_chunks(self._request_exit, "wait")) as parts:
                received = [part async for part in parts]
        except ContainerNotFound:
            return Exit(code=None)
        if not received:  # the connection ended without an answer
            raise EngineGone
        try:
            code = int(json.loads(b"".join(received))["StatusCode"])
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise EngineGone("Docker does not say how a container ended.") from error
        return Exit(code=code, was_oom_killed=await self._calls.call(partial(_was_oom_killed, ref=self.ref)))

    def _request_exit(self) -> Source:
        """Ask the engine for the exit code; return a stream that brings it once the container has ended."""
        return streams.request_exit(self._calls.connect, self.ref)


def remove_container(client: APIClient, *, ref: str) -> None:
    """Kill and remove a container and its volumes; a missing one is no error. `ref` is its id or name."""
    with already_so():
        client.remove_container(ref, force=True, v=True)


def _stop(client: APIClient, *, ref: str, seconds: int) -> None:
    """Send SIGTERM, and after `seconds` SIGKILL. A container that has ended is no error."""
    with already_so():
        client.stop(ref, timeout=seconds)


def _was_oom_killed(client: APIClient, *, ref: str) -> bool:
    """Return whether the kernel killed the container because it used too much memory."""
    import docker.errors

    try:
        return bool(client.inspect_container(ref)["State"]["OOMKilled"])
    except docker.errors.NotFound:  # removed meanwhile
        return False
