"""Take the network from this process for good, and bound what it may use.

A sound file comes from whoever can write to a chat, and decoders of sound have had holes. A filter in the
kernel (seccomp) needs no privilege and cannot be undone, also not by code that got in through such a hole.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import resource
import struct

MEMORY_BYTES = 3 * 1024**3
"""Address space: a "base" model takes 0.4 GB of memory, and its libraries map about 2 GB."""

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_FILTER_MODE = 2
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_ARCHITECTURES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""Machine → its number in a filter, and that of the system call `socket`."""
_IO_URING_SETUP = 425  # it can open sockets, too; the same number everywhere
_X32 = 0x40000000  # the second table of system calls that x86_64 has


def bound(*, cpu_seconds: int) -> None:
    """Bound memory and processor time, and let this process write no file and dump no core."""
    for limit, value in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))


def leave_network() -> bool:
    """Refuse every new socket to this process and its children; False where the system has no such filter.

    Sockets of the machine's own (`AF_UNIX`, so Docker's) are refused as well.
    """
    known = _ARCHITECTURES.get(platform.machine())
    if platform.system() != "Linux" or known is None:
        return False
    architecture, socket_call = known
    program = b"".join(
        struct.pack("HBBI", *step)
        for step in (
            (_LOAD, 0, 0, 4),  # the architecture of the call
            (_EQUAL, 1, 0, architecture),
            (_RETURN, 0, 0, _KILL),
            (_LOAD, 0, 0, 0),  # the number of the call
            (_AT_LEAST, 2, 0, _X32),
            (_EQUAL, 1, 0, socket_call),
            (_EQUAL, 0, 1, _IO_URING_SETUP),
            (_RETURN, 0, 0, _ERRNO | errno.EPERM),
            (_RETURN, 0, 0, _ALLOW),
        )
    )
    steps = ctypes.create_string_buffer(program, len(program))
    described = ctypes.create_string_buffer(struct.pack("HP", len(program) // 8, ctypes.addressof(steps)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _FILTER_MODE, described, 0, 0)):
        if libc.prctl(*arguments) != 0:
            return False
    return True
