"""The connection between a container on another machine and the host: messages of a header and a payload.

A message is two lengths (big endian, 4 bytes each), a JSON object and raw bytes. The container's side, the
carrier, connects over TLS and shows its token in a `hello`; each connection serves one purpose: the run's
control, or one connection of the agent to a proxy of the host. The kinds of messages, with their fields:

| from the host | |
| --- | --- |
| `welcome` | the hello is accepted; `out` is the number of bytes of stdout that this host has received |
| `refused` | the hello is refused for good: `reason` |
| `tree` | a tree, or a part of it: `target`, `entries` by path, `is_last`, `is_whole`, `is_writable` |
| `file` | a file of a tree: `target`, `path`, and its bytes in one or more payloads; `is_last` |
| `change` | a tree has changed on the host: `target`, `removed`, `put`; its changed files follow |
| `change_end` | all of a change was sent: `mark`, by which the next hello names the last that has arrived |
| `laid` | all trees were described: the carrier may request files |
| `start` | all files have arrived: `environment`, `ports`; the payload is the order |
| `took` | a request file was stored: `box`, `name` |
| `staged` | the files of turn end `n` are stored |
| `stale` | a file changed while it was sent: the files of turn end `n` have to be sent again |
| `too_much` | the files are too large or too many to be stored: `reason`; the run ends |
| `stop` | end the agent within `milliseconds` |
| `bye` | everything was received: the container may end |

| from the carrier | |
| --- | --- |
| `hello` | `v`, `token`, `port` of any proxy, `is_hardened`, `is_started`, `problem` of its disk, `change` |
| `need` | the files of a tree that the carrier lacks: `target`, `paths` |
| `ready` | all files have arrived |
| `out`, `err` | bytes of stdout from offset `at`, or of stderr |
| `request` | a file that the agent wrote: `box`, `name`; the payload is its text |
| `stage` | the changes of a tree as of turn end `n`: `target`, `removed`, `put`; its changed files follow |
| `file` | a changed file, with the fields of the host's `file` |
| `stage_end` | all changes of turn end `n` were sent |
| `too_much` | the changes exceed a limit or cannot be read, and are not sent: `reason` |
| `exit` | the agent ended: `code`, `was_oom_killed` |

Either side sends `ping` after it has sent nothing else for `PING_SECONDS`.
"""

from __future__ import annotations

import asyncio
import json
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from agent_runner.wire import trees
from agent_runner.wire.trees import Changes, Entry

VERSION = 2
"""The version of this protocol, which a `hello` names."""
REQUEST_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}")
"""The names of request files that a host takes."""
PING_SECONDS = 5.0
"""Seconds without another message after which a side sends a `ping`."""
SILENCE_SECONDS = 30.0
"""Seconds of waiting, for a message or for one to be sent, after which a side gives up the connection."""
STALL_SECONDS = 600.0
"""Seconds that a side of a relay may take nothing that is to be sent to it, after which the relay ends."""
MAX_HEADER_BYTES = 8 * 1024 * 1024
MAX_PAYLOAD_BYTES = 4 * 1024 * 1024
"""Most bytes of a message's payload; `MAX_HEADER_BYTES` is the limit for its header."""
MAX_HELLO_BYTES = 16 * 1024
"""Most bytes in the header of a `hello`, which has no payload: its sender has not shown a token yet."""
ENTRIES_A_MESSAGE = 2_000
"""Most paths that one message describes."""
Item = TypeVar("Item")
_LENGTHS = struct.Struct(">II")


class ConnectionLost(Exception):
    """The other side is gone, was silent for too long, or broke the protocol."""


@dataclass(frozen=True, slots=True)
class CarrierMessage:
    """One message: its kind, the other fields of its header, and its bytes."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    payload: bytes = b""

    def text(self, name: str) -> str:
        """Return the field `name` of the message. Raises `ConnectionLost` if it is no text."""
        value = self.fields.get(name)
        if not isinstance(value, str):
            raise ConnectionLost(f"a '{self.kind}' without '{name}'")
        return value

    def number(self, name: str) -> int:
        """Return the field `name`. Raises `ConnectionLost` if it is no whole number of at least 0."""
        # In Python, True is an int; in a message it is no number.
        value = self.fields.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ConnectionLost(f"a '{self.kind}' without '{name}'")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        """Return the field `name` of the message. Raises `ConnectionLost` if it is no object."""
        value = self.fields.get(name)
        if not isinstance(value, dict):
            raise ConnectionLost(f"a '{self.kind}' without '{name}'")
        return value

    def texts(self, name: str) -> list[str]:
        """Return the field `name` of the message. Raises `ConnectionLost` if it is no list of texts."""
        value = self.fields.get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ConnectionLost(f"a '{self.kind}' without '{name}'")
        return value


class CarrierConnection:
    """Sends and receives messages over one connection. One task receives; any may send."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """`reader` and `writer` are those of the open connection."""
        self.reader = reader
        self.writer = writer
        self._sending = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._last_sent = self._loop.time()
        self.last_received_at = self._loop.time()
        """The time of the last received message, pings included, in seconds of the event loop's clock."""

    async def send(self, kind: str, payload: bytes = b"", **fields: Any) -> None:
        """Send a message of this kind with these fields and bytes; wait until the connection has accepted it.

        Raises `ConnectionLost`.
        """
        header = json.dumps({"kind": kind, **fields}, ensure_ascii=True, separators=(",", ":")).encode()
        # Several tasks send; without the lock the parts of two messages would mix.
        async with self._sending:
            if self.writer.is_closing():  # a write would fail with an AttributeError in asyncio's TLS
                raise ConnectionLost("it was closed")
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    self.writer.write(_LENGTHS.pack(len(header), len(payload)) + header)
                    if payload:
                        self.writer.write(payload)
                    await self.writer.drain()
            except (OSError, TimeoutError) as error:
                self.writer.close()
                raise ConnectionLost("it takes nothing any more") from error
            self._last_sent = self._loop.time()

    async def receive(self) -> CarrierMessage:
        """Wait for the next message that is no `ping`, and return it. Raises `ConnectionLost`."""
        while (message := await self._receive(MAX_HEADER_BYTES, MAX_PAYLOAD_BYTES)).kind == "ping":
            continue
        return message

    async def receive_hello(self) -> CarrierMessage:
        """Wait for the first message, and return it; it has to be small, as its sender is not known yet.

        Raises `ConnectionLost`, also for a larger message.
        """
        return await self._receive(MAX_HELLO_BYTES, 0)

    async def parse_header(self, header: bytes) -> Any:
        """Return the JSON of a header. Raises `ValueError`. The host overrides this with more checks."""
        return json.loads(header)

    async def _receive(self, max_header_bytes: int, max_payload_bytes: int) -> CarrierMessage:
        """Wait for the next message and return it; its header and its payload have these limits of bytes.

        Raises `ConnectionLost`, also for a larger message, and after `SILENCE_SECONDS` without a message.
        """
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                header_bytes, payload_bytes = _LENGTHS.unpack(await self.reader.readexactly(_LENGTHS.size))
                # Checked before the message is read: the other side could announce any length.
                if header_bytes > max_header_bytes or payload_bytes > max_payload_bytes:
                    raise ConnectionLost("a message larger than any may be")
                header = await self.parse_header(await self.reader.readexactly(header_bytes))
                payload = await self.reader.readexactly(payload_bytes)
        except (OSError, EOFError, TimeoutError, ValueError, RecursionError) as error:
            raise ConnectionLost(f"it ended: {error!r}") from error
        self.last_received_at = self._loop.time()
        if not isinstance(header, dict) or not isinstance(header.get("kind"), str):
            raise ConnectionLost("a message without a kind")
        return CarrierMessage(kind=header.pop("kind"), fields=header, payload=payload)

    async def keep_alive(self) -> None:
        """Send a `ping` whenever nothing else was sent for a while, until cancelled.

        Raises `ConnectionLost` if the connection is lost.
        """
        while True:
            await asyncio.sleep(PING_SECONDS)
            if self._loop.time() - self._last_sent >= PING_SECONDS:
                await self.send("ping")

    def close(self) -> None:
        """Close the connection without waiting for the other side."""
        self.writer.close()


def changes_from(message: CarrierMessage) -> Changes:
    """Return the changes of a directory that a message describes. Raises `ConnectionLost`, `TreeError`."""
    return Changes(
        tuple(trees.checked_path(path) for path in message.texts("removed")),
        {
            trees.checked_path(path): trees.entry_from(fields)
            for path, fields in message.mapping("put").items()
        },
    )


async def send_changes(
    connection: CarrierConnection, kind: str, target: str, tree: Path, changed: Changes, **fields: Any
) -> None:
    """Send the changes of a directory, then the contents of the files among them.

    `kind` and `fields` are those of the messages; `target` is the name of the directory for the other side,
    `tree` its local path. Raises `ConnectionLost`, `OSError`.
    """

    async def describe(removed: Sequence[str], put: Sequence[tuple[str, Entry]]) -> None:
        """Send one message for a part of the changes: paths that were removed, and entries to put."""
        fields_by_path = {path: trees.fields_of(entry) for path, entry in put}
        await connection.send(kind, target=target, removed=removed, put=fields_by_path, **fields)

    items = list(changed.put.items())
    # Removals first: a new entry may have the path of a removed one.
    for removed in _in_parts(changed.removed):
        await describe(removed, ())
    for put in _in_parts(items):
        await describe((), put)
    if not items and not changed.removed:  # the other side waits for at least one message
        await describe((), ())
    for path, entry in items:
        if entry.kind == "file":
            await send_file(connection, tree, target, path, entry)


def _in_parts(items: Sequence[Item]) -> list[Sequence[Item]]:
    """Return the items in parts of at most `ENTRIES_A_MESSAGE`; a message has one part."""
    starts = range(0, len(items), ENTRIES_A_MESSAGE)
    return [items[start : start + ENTRIES_A_MESSAGE] for start in starts]


async def send_file(connection: CarrierConnection, tree: Path, target: str, path: str, entry: Entry) -> None:
    """Send one file of the directory `tree` in parts; `path` is relative to it.

    `target` is the name of the directory for the other side. A file that has become shorter than `entry` says
    is sent as it is; the receiver refuses it, because its content differs from the entry.

    Raises:
        ConnectionLost, OSError
    """
    # The file is opened once: if its path is replaced meanwhile, say by a link, no other file is sent.
    with trees.opened_root(tree) as root, trees.opened(root, path) as file:
        remaining = entry.size
        while True:
            data = await asyncio.to_thread(file.read, min(trees.CHUNK_BYTES, remaining)) if remaining else b""
            remaining -= len(data)
            is_last = not remaining or not data
            await connection.send("file", data, target=target, path=path, is_last=is_last)
            if is_last:
                return


async def relay(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    other: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    """Copy bytes between two open connections, both ways, until `other` has ended; then close both.

    They are also closed if one of the two accepts no bytes for `STALL_SECONDS`: nothing more is then read
    from the opposite one, so that its end would never be noticed.

    `other` has the reader and the writer of the second connection, which leads to the host: nothing more
    comes from there once it has ended. If the first connection ends, `other` may still send, and ends by
    itself. A connection that breaks raises nothing; other errors are passed on.
    """
    other_reader, other_writer = other
    outward = asyncio.create_task(_carry(reader, other_writer), name="relay:out")
    inward = asyncio.create_task(_carry(other_reader, writer), name="relay:in")
    try:
        await asyncio.wait({outward, inward}, return_when=asyncio.FIRST_COMPLETED)
        if outward.done() and outward.exception() is None:
            await asyncio.wait({inward})
    finally:
        outward.cancel()
        inward.cancel()
        results = await asyncio.gather(outward, inward, return_exceptions=True)
        writer.close()
        other_writer.close()
    for result in results:
        # Either side may disconnect at any time; for a relay that is an ordinary end.
        if isinstance(result, Exception) and not isinstance(result, OSError):
            raise result


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes until the reader ends, then end the writer's stream.

    Raises `OSError`, also if the writer takes nothing for `STALL_SECONDS`.
    """
    try:
        while data := await reader.read(64 * 1024):
            writer.write(data)
            async with asyncio.timeout(STALL_SECONDS):
                await writer.drain()
    finally:
        # TLS connections cannot be half-closed: there, the end of one direction ends both.
        if writer.can_write_eof():
            writer.write_eof()
        else:
            writer.close()
