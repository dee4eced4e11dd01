"""Run the process that speaks WhatsApp: `python -m orchestrator.channels.whatsapp.bridge`.

The library's other half is a Go program in the same process: a mistake there ends the process, a thread of it
may never end, and it prints where it likes. Here that costs one login that the host starts again.

stdin and stdout carry `protocol`, one line a document; it ends with stdin. Exit codes: 0 asked to, 1 the
login ended, 2 usage, 4 somebody else has the login open, 5 the library cannot be loaded.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from orchestrator.channels.whatsapp import addresses, library, protocol
from orchestrator.channels.whatsapp.neonize_session import NeonizeSession
from orchestrator.channels.whatsapp.pairing_session import PairingSession
from orchestrator.channels.whatsapp.protocol import FromBridge, StateReport
from orchestrator.channels.whatsapp.spool import Spool

log = logging.getLogger(__name__)

LOGIN_ENDED, TAKEN_BY_OTHER, NO_LIBRARY = 1, 4, 5
THREADS = 16
"""Threads for calls of the library. Each call occupies one until it returns."""

BUSY = "another process of this machine has the WhatsApp login open: wait for it, or end it"

Job = Callable[[], Coroutine[Any, Any, int]]


def parse_arguments(words: list[str]) -> argparse.Namespace:
    """Parse the words of the command line; end the process with a message when they are wrong."""
    parser = argparse.ArgumentParser(prog="whatsapp bridge", description=__doc__)
    parser.add_argument("--store", type=Path, help="The file with the login: whatsapp.db.")
    parser.add_argument(
        "--spool",
        type=Path,
        help="The database of the bridge, with the messages that the host has not acknowledged.",
    )
    parser.add_argument(
        "--check", action="store_true", help="Only load the library, and say why it does not."
    )
    parser.add_argument("--own", default="", help="The account, as 4917…@s.whatsapp.net; not when pairing.")
    parser.add_argument("--assistant", default="", help="The assistant's name.")
    parser.add_argument(
        "--has-own-number", action="store_true", help="The account is the assistant's own, not a person's."
    )
    parser.add_argument("--pair", action="store_true", help="Pair with a phone instead.")
    parser.add_argument("--phone", default="", help="With --pair: by this number, not by a QR code.")
    options = parser.parse_args(words)
    if not options.check and not (options.store and options.spool):
        parser.error("--store and --spool are needed")
    return options


def main() -> None:
    """Run the bridge until stdin is closed or the login ends, then exit with the code of the reason."""
    options = parse_arguments(sys.argv[1:])
    os.umask(0o077)
    # The library's Go code prints to stdout, which would break the protocol. So stdout becomes a copy of
    # stderr, and the lines for the host go to a duplicate of the original stdout.
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    code = asyncio.run(_main(options, out))
    sys.stderr.flush()
    # A normal exit would wait for the library's threads, which may never end. The spool has already written
    # everything that must survive to disk.
    os._exit(code)


async def _main(options: argparse.Namespace, output: int) -> int:
    """Run what the command line's options demand, and return the exit code.

    While it runs, no other process can use the same login. If one already does, or if the library cannot be
    loaded, that is reported to the host. `output` is the file descriptor for lines to the host.
    """
    lines = HostLines(output)
    if options.check:
        return await _check(lines)
    try:
        with FileLock(options.store.with_suffix(".lock"), timeout=5):
            code = await _serve(options, lines)
    except Timeout:
        # Only one host runs on a home at a time, so the lock's owner is a pairing process, which ends soon.
        lines.put(StateReport(state="disconnected", reason=BUSY))
        code = TAKEN_BY_OTHER
    except library.LibraryMissing as error:
        lines.put(StateReport(state="unusable", reason=str(error)))
        code = NO_LIBRARY
    await lines.close()
    return code


async def _check(lines: HostLines) -> int:
    """Load the library, and report to the host by `lines` if that fails; return the exit code."""
    code = 0
    try:
        library.load()
    except library.LibraryMissing as error:
        lines.put(StateReport(state="unusable", reason=str(error)))
        code = NO_LIBRARY
    await lines.close()
    return code


async def _serve(options: argparse.Namespace, lines: HostLines) -> int:
    """Connect the login to WhatsApp, or pair a phone, until that ends or stdin is closed.

    `options` are those of the command line, and `lines` sends reports to the host. Return the exit code.
    Raises `LibraryMissing` if the library cannot be loaded.
    """
    make_client = library.load()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, "whatsapp"))
    _make_private(options.store)
    client = make_client(str(options.store), uuid="andy")
    if options.pair:
        pairing = PairingSession(client, lines.put, phone=options.phone)
        return await _until_either(pairing.run, lambda: _pass_lines(_no_line))
    own_address = addresses.parse(options.own)
    if own_address is None:
        lines.put(StateReport(state="disconnected", reason=f"'{options.own}' is no account"))
        return 2  # wrong usage
    spool = Spool(options.spool)
    session = NeonizeSession(
        client,
        spool,
        lines.put,
        own=own_address,
        assistant=options.assistant,
        has_own_number=options.has_own_number,
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            requests: set[asyncio.Task[None]] = set()

            async def take(line: bytes) -> None:
                """Start a task that carries out the host's request in `line`. Raises `BadBridgeLine`."""
                task = tasks.create_task(session.handle(protocol.from_host(line)), name="whatsapp:request")
                requests.add(task)
                task.add_done_callback(requests.discard)

            code = await _until_either(lambda: _run_session(session, lines), lambda: _pass_lines(take))
            await session.stop()
            # The session has stopped, so nobody needs the responses of calls that the library has not
            # answered.
            for task in requests:
                task.cancel()
    finally:
        spool.close()
    return code


def _make_private(store: Path) -> None:
    """Make the login's database `store` readable by its owner alone; its folder is made if needed.

    Another tool may have created the files with other rights.
    """
    store.parent.mkdir(parents=True, exist_ok=True)
    # SQLite has files of its own beside the database, such as `whatsapp.db-wal`.
    for path in (store, *store.parent.glob(f"{store.name}-*")):
        if path.exists():
            path.chmod(0o600)


async def _run_session(session: NeonizeSession, lines: HostLines) -> int:
    """Run the session, and report to the host by `lines` why it ended; return the exit code."""
    try:
        await session.run()
    except Exception as error:  # noqa: BLE001 - the library raises anything; the host retries with growing pauses
        reason = " ".join(str(_first_error(error)).split())[:300]
        lines.put(StateReport(state="disconnected", reason=reason or type(error).__name__))
        return LOGIN_ENDED
    lines.put(StateReport(state="disconnected", reason="the login ended"))
    return LOGIN_ENDED


def _first_error(error: BaseException) -> BaseException:
    """Return the first error in a group of errors, which may contain groups; any other error unchanged."""
    return _first_error(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


async def _until_either(serve: Job, listen: Job) -> int:
    """Run two coroutine functions until one ends, cancel the other, and return the result of the first.

    The result is the process's exit code.
    """
    tasks = [
        asyncio.create_task(serve(), name="bridge-serve"),
        asyncio.create_task(listen(), name="bridge-listen"),
    ]
    done, unfinished = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in unfinished:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    return next(iter(done)).result()


async def _pass_lines(take: Callable[[bytes], Awaitable[None]]) -> int:
    """Pass each line of stdin to `take` until stdin ends; return the exit code 0.

    A line that cannot be parsed is logged and skipped.
    """
    reader = asyncio.StreamReader(limit=protocol.MAX_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer
    )
    while True:
        try:
            if not (line := await reader.readline()):
                break
            await take(line)
        except (protocol.BadBridgeLine, ValueError) as error:  # ValueError: readline met an overlong line
            log.warning("a line of the host could not be parsed: %s", error)
    return 0


async def _no_line(_: bytes) -> None:
    """Ignore a line: pairing takes no requests, and only the end of stdin counts."""


class HostLines:
    """Writes lines to the host in order, from a queue, so that no caller waits until the host reads them."""

    def __init__(self, descriptor: int) -> None:
        """Start the task that writes to the file descriptor `descriptor`."""
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._descriptor = descriptor
        self._task = asyncio.create_task(self._write(), name="whatsapp:outlet")

    def put(self, report: FromBridge) -> None:
        """Queue a report to be written to the host as a line. Does not block."""
        self._lines.put_nowait(protocol.line_of(report))

    async def _write(self) -> None:
        """Write queued lines until an empty one, or until the host no longer reads."""
        while line := await self._lines.get():
            try:
                await asyncio.to_thread(_write_all, self._descriptor, line)
            except BrokenPipeError:
                return

    async def close(self) -> None:
        """Write the queued lines and end the task that writes; give up after two seconds."""
        self._lines.put_nowait(b"")  # ends the task, see `_write`
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                await self._task


def _write_all(descriptor: int, line: bytes) -> None:
    """Write all of a line to a file descriptor. Blocks."""
    while line:
        line = line[os.write(descriptor, line) :]


if __name__ == "__main__":
    main()
