"""The connections between the nodes of a simulated swarm and its host: streams in memory in the place of TLS.

They lose nothing and keep the order, as TCP does. What may happen to one: it breaks in the midst of a
message, it stands still while its node is cut off and goes on afterwards, or its other end is gone without a
word.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Iterator
from typing import Any

from tests.simulation.loop import PROCESS, Process, SimulatedLoop

FULL_BYTES = 64 * 1024
"""Bytes under way in one direction at which the sender has to pause."""
MOST_SECONDS = 0.02
"""Seconds that a piece of a stream is under way at the most."""
FIRST_PORT = 41_000


class Network:
    """All listening sockets and open connections of a world."""

    def __init__(self, loop: SimulatedLoop, seed: str) -> None:
        self.loop = loop
        self.chance = random.Random(f"{seed}:network")
        self.links: list[Link] = []
        self._listening: dict[int, _Server] = {}
        self._last_port = FIRST_PORT

    def listen(self, meet: Callable[[Link], None], port: int) -> _Server:
        """Listen at a port, or at a free one where it is 0. Raises `OSError` where it is taken."""
        other = self._listening.get(port)
        if other is not None and other.is_open:
            raise OSError(98, "Address already in use")
        if not port:
            self._last_port += 1
            port = self._last_port
        server = self._listening[port] = _Server(meet, port)
        return server

    async def connect(self, factory: Callable[[], Any], port: int) -> tuple[MemoryTransport, Any]:
        """Open a connection to a port, for the process that calls this. Raises `OSError`."""
        await asyncio.sleep(self.chance.uniform(0.0005, MOST_SECONDS))
        own = PROCESS.get()
        if getattr(own, "is_cut_off", False):
            await asyncio.Event().wait()  # nothing answers; who calls this has a time limit
        server = self._listening.get(port)
        if server is None or not server.is_open:
            raise ConnectionRefusedError(111, "Connection refused")
        link = Link(self, own, server)
        protocol = factory()
        link.client.protocol = protocol
        protocol.connection_made(link.client)
        self.loop.call_soon(server.meet, link, context=server.context.copy())
        self.links.append(link)
        return link.client, protocol

    def note_death(self, process: Process, *, is_silent: bool = False) -> None:
        """Reset the connections of a process that is gone; `is_silent` where its whole machine is."""
        for link in self.of(process):
            link.is_silent = link.is_silent or is_silent
            link.reset()
        self._listening = {port: one for port, one in self._listening.items() if one.process is not process}

    def of(self, process: Process) -> Iterator[Link]:
        """Yield the open connections of a process."""
        self.links = [one for one in self.links if not one.is_over]
        yield from [one for one in self.links if process in (one.client.process, one.server.process)]

    def break_one(self, after_bytes: int) -> bool:
        """Break a drawn connection once so many more bytes have gone over it; return whether there is one."""
        self.links = [one for one in self.links if not one.is_over]
        if not self.links:
            return False
        self.chance.choice(self.links).bytes_left = after_bytes
        return True


class _Server:
    """A listening socket, as `asyncio.Server` shows it."""

    def __init__(self, meet: Callable[[Link], None], port: int) -> None:
        self.meet = meet
        """Called in the listening process for each connection."""
        self.process = PROCESS.get()
        self.context = contextvars.copy_context()
        self.sockets = [_Socket(port)]
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        return not self._is_closed and not self.process.is_dead

    def close(self) -> None:
        self._is_closed = True


class _Socket:
    def __init__(self, port: int) -> None:
        self._port = port

    def getsockname(self) -> tuple[str, int]:
        return "10.0.0.1", self._port


class Link:
    """One connection with its two ends."""

    def __init__(self, network: Network, own: Process, server: _Server) -> None:
        self.network = network
        self.client = MemoryTransport(self, own, contextvars.copy_context())
        self.server = MemoryTransport(self, server.process, server.context)
        self.client.peer, self.server.peer = self.server, self.client
        self.bytes_left: int | None = None
        """Bytes after which it breaks; None for no fault."""
        self.is_silent = False
        """Whether nothing that happens at one end is ever heard at the other."""
        self.held: list[tuple[Callable[..., None], tuple[Any, ...], MemoryTransport]] | None = None
        """Deliveries held back while the node is cut off, in order; None while it is not."""
        self.is_broken = False

    @property
    def is_over(self) -> bool:
        return self.client.is_lost and self.server.is_lost

    def accept(self, protocol: Any) -> None:
        """Have a protocol of the listening process take the connection."""
        if not self.server.is_lost:
            self.server.protocol = protocol
            self.server.protocol.connection_made(self.server)
            self.server.take_early()

    def carry(self, end: MemoryTransport, call: Callable[..., None], *given: Any) -> None:
        """Have something happen at an end a drawn time later, and after what was sent to it earlier."""
        if self.is_silent:
            return
        if self.held is not None:
            self.held.append((call, given, end))
            return
        network = self.network
        at_s = max(end.last_at_s, network.loop.time() + network.chance.uniform(0.0002, MOST_SECONDS))
        end.last_at_s = at_s
        network.loop.call_at(at_s, call, *given, context=end.context.copy())

    def hold(self) -> None:
        """Let nothing through until `release`."""
        self.held = self.held or []

    def release(self) -> None:
        held, self.held = self.held or [], None
        for call, given, end in held:
            self.carry(end, call, *given)

    def reset(self) -> None:
        """Break the connection: what is under way arrives, and then each end learns of it."""
        if not self.is_broken:
            self.is_broken = True
            for end in (self.client, self.server):
                self.carry(end, end.lose, ConnectionResetError(104, "Connection reset by peer"))


class MemoryTransport(asyncio.Transport):
    """One end of a connection, with the manners of asyncio's TLS where programs can see them."""

    def __init__(self, link: Link, process: Process, context: contextvars.Context) -> None:
        super().__init__()
        self._link = link
        self.process = process
        self.context = context
        self.protocol: Any = None
        self.peer: MemoryTransport
        self.last_at_s = 0.0
        self.is_lost = False
        self._is_closed = False
        self._is_closed_twice = False
        self._under_way = 0
        self._is_paused = False
        self._early: list[bytes] = []
        """Bytes that came before the process was given the connection."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name in ("sslcontext", "ssl_object") else default

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._is_closed

    def is_reading(self) -> bool:
        return not self._is_closed

    def pause_reading(self) -> None:
        """Go on as before: who reads too little is not simulated."""

    def resume_reading(self) -> None:
        pass

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closed_twice:
            # As asyncio's TLS does: its transport has let go of its protocol by then.
            raise AttributeError("'NoneType' object has no attribute '_write_appdata'")
        link = self._link
        if self._is_closed or link.is_broken or not data:
            return
        data = bytes(data)
        self._under_way += len(data)
        if link.bytes_left is not None:
            data, link.bytes_left = data[: link.bytes_left], link.bytes_left - len(data)
        link.carry(self.peer, self.peer._take, data)
        if link.bytes_left is not None and link.bytes_left <= 0:
            link.reset()
        if self._under_way > FULL_BYTES and not self._is_paused:
            self._is_paused = True
            self.protocol.pause_writing()

    def _take(self, data: bytes) -> None:
        sender = self.peer
        sender._under_way -= len(data)
        if sender._is_paused and sender._under_way <= FULL_BYTES // 4 and not sender.is_lost:
            sender._is_paused = False
            self._link.network.loop.call_soon(sender.protocol.resume_writing, context=sender.context.copy())
        if self.protocol is None:
            self._early.append(data)
        elif not self._is_closed:
            self.protocol.data_received(data)

    def take_early(self) -> None:
        early, self._early = self._early, []
        for data in early:
            if not self._is_closed:
                self.protocol.data_received(data)

    def close(self) -> None:
        if self._is_closed:
            self._is_closed_twice = True
            return
        self._is_closed = True
        self._link.carry(self.peer, self.peer.lose, None)
        self._link.network.loop.call_soon(self.lose, None, context=self.context.copy())

    def abort(self) -> None:
        self.close()

    def lose(self, error: Exception | None) -> None:
        """Learn that the connection is gone."""
        if self.is_lost:
            return
        self.is_lost = self._is_closed = True
        if self.protocol is not None:
            self.protocol.connection_lost(error)
