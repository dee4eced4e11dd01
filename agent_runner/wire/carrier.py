"""The connection between a container on another machine and the host: messages of a header and a payload.

A message is two lengths (big endian, 4 bytes each), a JSON object and raw bytes. The container's side, the
carrier, connects over TLS and shows its token in a `hello`; each connection serves one purpose: the run's
control, or one connection of the agent to a proxy of the host. What each kind of message says:

| from the host | |
| --- | --- |
| `welcome` | the hello was taken; `out` is how many bytes of stdout the host has had since it was there |
| `refused` | it was not, and never will be: `reason` |
| `tree` | a tree, or a part of it: `target`, `entries` by path, `is_last`, `is_whole`, `is_writable` |
| `file` | a file of a tree: `target`, `path`, and its bytes in one or more payloads; `is_last` |
| `change` | a tree has changed on the host: `target`, `removed`, `put`; the files of it follow |
| `laid` | all trees were described: the carrier may ask for files |
| `start` | all trees are there: `environment`, `ports`; the payload is the order |
| `took` | a request file was stored: `box`, `name` |
| `staged` | the files of turn end `n` are kept |
| `stale` | one of them was written to while it was sent: turn end `n` is sent anew |
| `too_much` | they cannot be: `reason`; the run ends |
| `stop` | end the agent within `milliseconds` |
| `bye` | everything was taken: the container may end |

| from the carrier | |
| --- | --- |
| `hello` | `v`, `token`, `port` of a proxy or none, `is_hardened`, `is_started`, `problem` of its disk |
| `need` | the files of a tree that it has not: `target`, `paths` |
| `ready` | all files have come |
| `out`, `err` | bytes of stdout from offset `at`, or of stderr |
| `request` | a file that the agent wrote: `box`, `name`; the payload is its text |
| `stage` | what turn end `n` left of a tree: `target`, `removed`, `put`; the files of it follow |
| `stage_end` | that is all of turn end `n` |
| `exit` | the agent ended: `code`, `was_oom_killed` |

Either side sends `ping` when it has had nothing to say for `PING_SECONDS`.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from agent_runner.wire import trees
from agent_runner.wire.trees import Changes, Entry

VERSION = 2
PING_SECONDS = 5.0
SILENCE_SECONDS = 30.0
"""A connection over which nothing came for so long is given up by either side."""
MAX_HEADER_BYTES = 8 * 1024 * 1024
MAX_PAYLOAD_BYTES = 4 * 1024 * 1024
MAX_HELLO_BYTES = 16 * 1024
"""Bytes that the header of a `hello` may have; it has no payload. Nothing is known yet of who sends it."""
ENTRIES_A_MESSAGE = 2_000
Item = TypeVar("Item")
_LENGTHS = struct.Struct(">II")


class ConnectionLost(Exception):
    """The other side is gone, has been silent too long, or does not keep to the protocol."""


@dataclass(frozen=True, slots=True)
class CarrierMessage:
    """One message: its kind, the other fields of its header, and its bytes."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    payload: bytes = b""

    def text(self, name: str) -> str:
        """Return a field that has to be a text. Raises `ConnectionLost`."""
        value = self.fields.get(name)
        if not isinstance(value, str):
            raise ConnectionLost(f"a '{self.kind}' without '{name}'")
        return value

    def number(self, name: str) -> int:
        """Return a field that has to be a whole number of at least 0. Raises `ConnectionLost`."""
        # In Python True is an int too, but no number on the wire.
        value = self.fields.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ConnectionLost(f"a '{self.kind}' without '{name}'")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        """Return a field that has to be an object. Raises `ConnectionLost`."""
        value = self.fields.get(name)
        if not isinstance(value, dict):
            raise ConnectionLost(f"a '{self.kind}' without '{name}'")
        return value

    def texts(self, name: str) -> list[str]:
        """Return a field that has to be a list of texts. Raises `ConnectionLost`."""
        value = self.fields.get(name)
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ConnectionLost(f"a '{self.kind}' without '{name}'")
        return value


class CarrierConnection:
    """Sends and receives messages over one connection. One task receives; any may send."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._sending = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._last_sent = self._loop.time()
        self.last_heard = self._loop.time()
        """When the last message came, pings too, by the loop's clock."""

    async def send(self, kind: str, payload: bytes = b"", **fields: Any) -> None:
        """Send a message and wait until the connection takes it. Raises `ConnectionLost`."""
        header = json.dumps({"kind": kind, **fields}, ensure_ascii=True, separators=(",", ":")).encode()
        # Several tasks send; without the lock the parts of two messages would mix.
        async with self._sending:
            if self.writer.is_closing():  # asyncio's TLS breaks with an AttributeError there
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
        """Return the next message that is no `ping`. Raises `ConnectionLost`."""
        while (message := await self._receive(MAX_HEADER_BYTES, MAX_PAYLOAD_BYTES)).kind == "ping":
            continue
        return message

    async def receive_hello(self) -> CarrierMessage:
        """Return the first message, which has to be small. Raises `ConnectionLost`."""
        return await self._receive(MAX_HELLO_BYTES, 0)

    async def parse_header(self, header: bytes) -> Any:
        """Return the JSON of a header. Raises `ValueError`. The host reads it with more care."""
        return json.loads(header)

    async def _receive(self, max_header_bytes: int, max_payload_bytes: int) -> CarrierMessage:
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                header_bytes, payload_bytes = _LENGTHS.unpack(await self.reader.readexactly(_LENGTHS.size))
                # Checked before anything is read: the length comes from the other side.
                if header_bytes > max_header_bytes or payload_bytes > max_payload_bytes:
                    raise ConnectionLost("a message larger than any may be")
                header = await self.parse_header(await self.reader.readexactly(header_bytes))
                payload = await self.reader.readexactly(payload_bytes)
        except (OSError, EOFError, TimeoutError, ValueError, RecursionError) as error:
            raise ConnectionLost(f"it ended: {error!r}") from error
        self.last_heard = self._loop.time()
        if not isinstance(header, dict) or not isinstance(header.get("kind"), str):
            raise ConnectionLost("a message without a kind")
        return CarrierMessage(kind=header.pop("kind"), fields=header, payload=payload)

    async def keep_alive(self) -> None:
        """Send a `ping` whenever nothing else was sent for a while, until cancelled or lost."""
        while True:
            await asyncio.sleep(PING_SECONDS)
            if self._loop.time() - self._last_sent >= PING_SECONDS:
                await self.send("ping")

    def close(self) -> None:
        """Close the connection without waiting for the other side."""
        self.writer.close()


def changes_from(message: CarrierMessage) -> Changes:
    """Return the changes that a message describes. Raises `ConnectionLost`, `TreeError`."""
    return Changes(
        tuple(trees.checked_path(path) for path in message.texts("removed")),
        {trees.checked_path(p): trees.entry_from(fields) for p, fields in message.mapping("put").items()},
    )


async def send_changes(
    connection: CarrierConnection, kind: str, target: str, tree: Path, changed: Changes, **fields: Any
) -> None:
    """Send the changes of a tree, then the files among them. Raises `ConnectionLost`, `OSError`."""

    async def describe(removed: Sequence[str], put: Sequence[tuple[str, Entry]]) -> None:
        fields_by_path = {path: trees.fields_of(entry) for path, entry in put}
        await connection.send(kind, target=target, removed=removed, put=fields_by_path, **fields)

    items = list(changed.put.items())
    # Removals go first, for something else may be put in their place.
    for removed in _in_parts(changed.removed):
        await describe(removed, ())
    for put in _in_parts(items):
        await describe((), put)
    if not items and not changed.removed:
        await describe((), ())
    for path, entry in items:
        if entry.kind == "file":
            await send_file(connection, tree, target, path, entry)


def _in_parts(items: Sequence[Item]) -> list[Sequence[Item]]:
    """Divide what a message describes, so that none has more than its reader takes."""
    return [items[at : at + ENTRIES_A_MESSAGE] for at in range(0, len(items), ENTRIES_A_MESSAGE)]


async def send_file(connection: CarrierConnection, tree: Path, target: str, path: str, entry: Entry) -> None:
    """Send one file of a tree in parts; a file that was cut since is sent as it is, and refused there.

    Raises:
        ConnectionLost, OSError
    """
    # Read from the open file, so a swap of the path while it is sent cannot lead elsewhere.
    with trees.opened_root(tree) as root, trees.opened(root, path) as file:
        left = entry.size
        while True:
            data = await asyncio.to_thread(file.read, min(trees.CHUNK_BYTES, left)) if left else b""
            left -= len(data)
            is_last = not left or not data
            await connection.send("file", data, target=target, path=path, is_last=is_last)
            if is_last:
                return


async def relay(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    other: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    """Carry bytes between two open connections, both ways, until both have ended; then close both."""
    other_reader, other_writer = other
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_carry(reader, other_writer), name="relay:out")
            tasks.create_task(_carry(other_reader, writer), name="relay:in")
    # Either side may vanish at any time; for a relay that is an ordinary end.
    except* OSError:
        pass
    finally:
        writer.close()
        other_writer.close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(64 * 1024):
            writer.write(data)
            await writer.drain()
    finally:
        # TLS has no half-closed connections: the end of one direction is the end of both there.
        if writer.can_write_eof():
            writer.write_eof()
        else:
            writer.close()
