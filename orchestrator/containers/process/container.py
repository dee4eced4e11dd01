"""One ordinary process that runs an agent in place of a container."""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress

from agent_runner.wire.files import write_whole
from orchestrator.containers.process import layout as process_layout
from orchestrator.containers.process.identity import ProcessIdentity, kill_group, kill_marked
from orchestrator.containers.process.layout import ProcessLayout
from orchestrator.containers.streams import Tail
from orchestrator.domain.errors import ContainerError
from orchestrator.domain.protocols import ContainerSpec, Exit
from orchestrator.domain.values import RunId

OnLog = Callable[[RunId, bytes], None]
"""Receives pieces of stderr on the event loop; it must not block."""
CHUNK_BYTES = 64 * 1024
ORDER_SECONDS = 30.0
"""Seconds that a process may take to read its order."""
STDERR_SECONDS = 1.0
"""Seconds to read the rest of stderr after the process ended."""


class _ProcessPipes(SubprocessStreamProtocol):
    """The pipes of a process, which leads a process group. When it exits, the rest of its group is killed."""

    def __init__(self) -> None:
        """Create the pipes before the process is started; `exit_future` is resolved when it has exited."""
        loop = asyncio.get_running_loop()
        super().__init__(limit=CHUNK_BYTES, loop=loop)
        self.exit_future: asyncio.Future[None] = loop.create_future()
        self._leader: int | None = None
        """The process id of the group's leader, which is also the group's id; None before the start."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the process group's leader, once the process has started."""
        assert isinstance(transport, asyncio.SubprocessTransport)
        super().connection_made(transport)
        self._leader = transport.get_pid()

    def process_exited(self) -> None:
        """Kill the rest of the process group, and resolve `exit_future`."""
        assert self._leader is not None
        kill_group(self._leader)
        super().process_exited()
        self.exit_future.set_result(None)


class _StartedProcess:
    """A started process with its pipes."""

    def __init__(self, transport: asyncio.SubprocessTransport, pipes: _ProcessPipes) -> None:
        """`transport` and `pipes` are what asyncio's event loop returns for a started process."""
        self.transport = transport
        self.process = Process(transport, pipes, asyncio.get_running_loop())
        self.exit_future = pipes.exit_future
        """Resolved when the process has exited."""
        assert pipes.stdin is not None
        assert pipes.stdout is not None
        assert pipes.stderr is not None
        self.stdin, self.stdout, self.stderr = pipes.stdin, pipes.stdout, pipes.stderr


class ProcessContainer:
    """A `RunningContainer` that is a process and its children. As in a container, the children end with it.

    `ref` is `PID:START`. There is no image, so it is never outdated. It does not outlive its host.
    """

    is_outdated = False

    def __init__(
        self, spec: ContainerSpec, layout: ProcessLayout, *, on_log: OnLog, forget: Callable[[RunId], None]
    ) -> None:
        """`spec` describes the container that the process stands for, and `layout` its directory.

        `on_log` receives pieces of stderr; `forget` is called once the process was removed.
        """
        self.run_id = spec.run_id
        self.folder = spec.folder
        self.ref = ""
        """The process's `PID:START`; empty until it has started."""
        self._spec = spec
        self._layout = layout
        self._on_log = on_log
        self._forget = forget
        self._tail = Tail()
        self._process: _StartedProcess | None = None
        self._stderr_task: asyncio.Task[None] | None = None
        self._disk_work: asyncio.Future[None] | None = None
        """The work on files that `begin` does in a thread, which its cancellation does not end."""
        self._end_task: asyncio.Task[None] | None = None
        """Waits for the end of the process, then records it; None before the start."""

    async def begin(self, command: Sequence[str]) -> None:
        """Create the run's directory and start the process. After an error, call `remove` to clean up.

        `command` is the program that runs the agent, with its arguments. Two tasks begin: one reads stderr,
        and one waits for the end of the process. Its identity is written to a file.

        Raises:
            ContainerError: a directory or file cannot be written, or the process cannot be started.
        """
        try:
            await self._on_disk(lambda: self._layout.make(self._spec.mounts))
            self._process = await self._spawn(command)
            self._stderr_task = asyncio.create_task(
                self._read_stderr(self._process), name=f"stderr:{self.run_id}"
            )
            self._end_task = asyncio.create_task(
                self._watch_end(self._process), name=f"process:{self.run_id}"
            )
            await self._on_disk(self._write_identity)
        except OSError as error:
            raise ContainerError(f"The process cannot be started: {error}") from error

    async def write_order(self, order: str) -> None:
        """Write `order`, which tells the process what to do, as a line to its stdin, and close stdin.

        A process that has ended already is no error here: `wait` reports its exit.

        Raises:
            ContainerError: the process does not read it in time.
        """
        stdin = self._started.stdin
        try:
            async with asyncio.timeout(ORDER_SECONDS):
                stdin.write(order.encode() + b"\n")
                await stdin.drain()
        except TimeoutError as error:
            raise ContainerError(f"The process did not read its order in {ORDER_SECONDS:g} s.") from error
        except (BrokenPipeError, ConnectionResetError):
            return  # the process has ended already, which `wait` reports
        finally:
            stdin.close()

    async def output(self) -> AsyncGenerator[bytes, None]:
        """Yield stdout until the process and its children have closed it."""
        while chunk := await self._started.stdout.read(CHUNK_BYTES):
            yield chunk

    async def wait(self) -> Exit:
        """Wait until the process has ended; return its exit with the last bytes of stderr."""
        await self._wait_until_ended()
        await self._read_rest_of_stderr()
        code = self._started.transport.get_returncode()
        assert code is not None
        # asyncio returns the negative number of a signal; engines and shells add it to 128.
        return Exit(code=128 - code if code < 0 else code, stderr_tail=self._tail.text())

    async def stop(self, *, grace_seconds: float = 2.0) -> None:
        """Send SIGTERM, and after the grace period kill the process and its children."""
        started = self._started
        try:
            with suppress(ProcessLookupError):
                started.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(grace_seconds):
                await asyncio.shield(started.exit_future)
        except TimeoutError:
            await self._kill(started)
        await self._wait_until_ended()

    async def remove(self) -> None:
        """End the process, whatever its state, and remove its directory without following links."""
        if self._disk_work is not None:  # it goes on in its thread, even if `begin` was cancelled
            await asyncio.wait([self._disk_work])
        if self._process is not None:
            await self._end(self._process)
        await asyncio.to_thread(self._layout.remove)
        self._forget(self.run_id)

    @property
    def _started(self) -> _StartedProcess:
        """Return the started process; `begin` must have been called."""
        assert self._process is not None, "begin comes first"
        return self._process

    async def _spawn(self, command: Sequence[str]) -> _StartedProcess:
        """Start the process in an operating system session of its own, with pipes for its three streams.

        Raises `OSError` if it cannot be started.
        """
        transport, pipes = await asyncio.get_running_loop().subprocess_exec(
            _ProcessPipes,
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd=self._layout.workspace / "group",
            env=process_layout.environment(self._layout, self._spec, process_layout.host_environment()),
            start_new_session=True,
        )
        return _StartedProcess(transport, pipes)

    async def _end(self, started: _StartedProcess) -> None:
        """End the process, whatever its state, and close its pipes."""
        if not started.exit_future.done():
            await self._kill(started)
        await self._wait_until_ended()
        started.transport.close()
        await self._read_rest_of_stderr()

    async def _kill(self, started: _StartedProcess) -> None:
        """Kill the process and its children.

        The process still lives while its children are searched for: those without the run's mark in their
        environment are found only through their parent.
        """
        await asyncio.to_thread(kill_marked, self._layout.mark)
        if not started.exit_future.done():
            kill_group(started.process.pid)

    async def _watch_end(self, started: _StartedProcess) -> None:
        """Wait until the process has ended, then kill its children that left the process group.

        The children must not run at the same time as the turn's next attempt.
        """
        await started.exit_future
        await asyncio.to_thread(kill_marked, self._layout.mark)

    async def _wait_until_ended(self) -> None:
        """Wait until the process and its children have ended. They also end if this call is cancelled."""
        assert self._end_task is not None, "begin comes first"
        await asyncio.shield(self._end_task)

    async def _read_stderr(self, started: _StartedProcess) -> None:
        """Pass stderr to the log until it ends."""
        while data := await started.stderr.read(CHUNK_BYTES):
            self._tail.add(data)
            self._on_log(self.run_id, data)

    async def _read_rest_of_stderr(self) -> None:
        """Read the rest of stderr for up to `STDERR_SECONDS`: a child that still lives may have it open."""
        if self._stderr_task is not None:
            await asyncio.wait([self._stderr_task], timeout=STDERR_SECONDS)

    def _write_identity(self) -> None:
        """Set `ref` to the process's identity, and write that to a file, so that a later host can end it."""
        self.ref = str(ProcessIdentity.of(self._started.process.pid))
        write_whole(self._layout.identity, self.ref, mode=0o600)

    async def _on_disk(self, work: Callable[[], None]) -> None:
        """Run blocking work in a thread, and wait for it.

        If this is cancelled, the work continues; `remove` waits for it, before it removes the directory.
        """
        self._disk_work = asyncio.create_task(asyncio.to_thread(work), name=f"disk:{self.run_id}")
        await asyncio.shield(self._disk_work)
