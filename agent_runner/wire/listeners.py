"""Listening sockets for the host and its gate, which a container that connects without end cannot fill."""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

ACCEPTED_AT_ONCE = 32
"""Connections accepted in one turn of the event loop. asyncio accepts all of them before a protocol can
refuse the first, so this is how far the open files may exceed a server's limits.
"""
REFUSED_AT_ONCE = 4
"""Connections refused in one turn of the event loop. One costs some 50 µs, most of it in the kernel; with 32,
a request of another container, which takes a dozen turns, waited three times as long.
"""
MAX_REFUSED, DROP_SECONDS = 32, 1.0
"""Refusals of one address in so many seconds, after which the kernel drops its attempts until they end."""
QUEUE = 256
"""Connections that wait in the kernel until they are accepted."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; port 0 lets the system choose one. Raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's delay (40 ms per answer) only if the protocol is named.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(QUEUE)
    except BaseException:
        listener.close()
        raise
    return listener


class ScreenedListener(socket.socket):
    """A listening socket that closes connections of addresses that have too many, right as it accepts them.

    A connection that asyncio has made costs ten times as much to close. An address that goes on nevertheless
    is blocked for a second: the kernel drops its attempts to connect, where it can, so that a container that
    connects again and again neither keeps the event loop busy nor fills the queue of the others.
    """

    def __init__(self, listener: socket.socket, is_full: Callable[[str], bool]) -> None:
        """Take a listening socket over; `is_full` returns whether an address has too many connections."""
        super().__init__(listener.family, listener.type, listener.proto, fileno=listener.detach())
        self._is_full = is_full
        self._refusals: Counter[str] = Counter()
        """Refused connections since the timer was started, by address, in the order of the last refusal."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_dropping = False
        """Whether the kernel has a filter that drops attempts to connect."""

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection with its address; close those of addresses that have too many.

        Raises `BlockingIOError` if there is none for now, or after `REFUSED_AT_ONCE` refusals: asyncio then
        calls this again in the next turn of the event loop.
        """
        for _ in range(REFUSED_AT_ONCE):
            connection, address = super().accept()
            if not self._is_full(str(address[0])):
                return connection, address
            connection.close()
            self._count_refusal(str(address[0]))
        raise BlockingIOError

    def close(self) -> None:
        """Close this copy of the socket. Other copies of it accept every address again."""
        self._stop_dropping()
        super().close()

    def _count_refusal(self, address: str) -> None:
        """Count a refused connection; after `MAX_REFUSED` of an address, the kernel drops its next attempts.

        That needs IPv4, and Linux with socket filters, which gVisor lacks. If more than `_MAX_DROPPED`
        addresses were refused so often, the kernel blocks those of them that were refused last.
        """
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DROP_SECONDS, self._stop_dropping)
        # Moved to the end, so that the addresses stay in the order of their last refusal.
        self._refusals[address] = self._refusals.pop(address, 0) + 1
        # Without a filter, they are refused one by one for as long as they come.
        if self._refusals[address] == MAX_REFUSED and sys.platform == "linux" and "." in address:
            addresses = [other for other, count in self._refusals.items() if count >= MAX_REFUSED]
            with suppress(OSError):
                _attach_filter(self, addresses[-_MAX_DROPPED:])  # replaces an earlier filter
                self._is_dropping = True

    def _stop_dropping(self) -> None:
        """Have the kernel drop no more attempts to connect, and set the counts of refusals to zero."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._refusals.clear()
        if self._is_dropping:
            self._is_dropping = False
            self.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
"""Options of Linux's sockets, which Python's `socket` does not name."""
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
"""Codes of instructions of the kernel's packet filter."""
_SENDER = 0xFFF00000 + 12
"""The place of the sender's address: 12 bytes into the header of IP."""
_MAX_DROPPED = 100
"""Most addresses whose attempts to connect a filter drops: a jump passes over at most 255."""


def _attach_filter(listener: socket.socket, addresses: Sequence[str]) -> None:
    """Have the kernel drop what these IPv4 addresses send to a listening socket.

    Connections that are open are not affected. See `bpf` in Linux's `Documentation/networking/filter.rst`.
    """
    # An instruction is a code, two distances to jump (if true, if false), and an operand.
    program = [(_LOAD_WORD, 0, 0, _SENDER)]
    for distance, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
        # A match jumps over the other addresses and over the instruction that accepts.
        program.append((_JUMP_IF_EQUAL, distance, 0, int.from_bytes(socket.inet_aton(address))))
    # The first accepts the whole packet, the second, to which matches jump, none of it.
    program += [(_RETURN, 0, 0, 0xFFFFFFFF), (_RETURN, 0, 0, 0)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in program))
    description = struct.pack("HP", len(program), ctypes.addressof(code))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, description)
