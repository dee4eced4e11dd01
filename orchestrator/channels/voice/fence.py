"""Restrict this process permanently: it can read its libraries and its model, and nothing else.

A sound file comes from whoever can write to a chat, and sound decoders have had security holes. The kernel's
Landlock (files) and seccomp (system calls) need no privilege and cannot be undone, not even by code that got
in through such a hole.
"""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import os
import platform
import resource
import struct
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

MEMORY_BYTES = 3 * 1024**3
"""Bytes of address space: a "base" model takes 0.4 GB of memory, and its libraries map about 2 GB."""

_PR_SET_NAME = 15
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_FILTER_MODE = 2
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_X32 = 0x40000000  # the second table of system calls that x86_64 has
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""For each machine: its number in a filter, and its column in the tables of system calls."""

_Step = tuple[int, int, int, int]
"""A step of the kernel's filter: its code, how many steps to skip if a test is true and if it is false, and
the value that the code uses.
"""
_ALLOWED_CALLS: Mapping[str, tuple[int | None, int | None]] = {
    "read": (0, 63), "readv": (19, 65), "pread64": (17, 67), "preadv": (295, 69),
    "write": (1, 64), "writev": (20, 66), "close": (3, 57), "lseek": (8, 62),
    "fstat": (5, 80), "newfstatat": (262, 79), "stat": (4, None), "lstat": (6, None), "statx": (332, 291),
    "readlink": (89, None), "readlinkat": (267, 78), "getcwd": (79, 17), "getdents64": (217, 61),
    "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439),
    "uname": (63, 160), "sysinfo": (99, 179), "getrusage": (98, 165), "times": (100, 153),
    "getpid": (39, 172), "gettid": (186, 178), "getppid": (110, 173), "getuid": (102, 174),
    "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115),
    "nanosleep": (35, 101), "gettimeofday": (96, 169), "time": (201, None),
    "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "getcpu": (309, 168),
    "exit": (60, 93), "exit_group": (231, 94), "futex": (202, 98), "membarrier": (324, 283),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132), "restart_syscall": (219, 128),
    "arch_prctl": (158, None), "set_tid_address": (218, 96), "set_robust_list": (273, 99), "rseq": (334, 293),
    "madvise": (28, 233), "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216), "mmap": (9, 222),
    "brk": (12, 214), "getrandom": (318, 278), "poll": (7, None), "ppoll": (271, 73),
}  # fmt: skip
"""System calls that are allowed with any arguments, with their numbers on each machine. A writable shared
mapping needs a file that is open for writing, and none can be opened.
"""
_ABSENT_CALLS = {"clone3": (435, 435), "openat2": (437, 437)}
"""Calls whose arguments a filter cannot see. They fail as on an older kernel, and callers fall back to
`clone` and `openat`.
"""

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CLONE_THREAD = 0x10000
_TERMINAL_IS, _CLOSE_ON_EXEC = 0x5401, 0x5451
_GETFD, _SETFD, _GETFL, _DUPFD_CLOEXEC = 1, 2, 3, 1030

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same everywhere
_READ_FILE, _READ_DIRECTORY = 1 << 2, 1 << 3
_FILE_RIGHTS = ((1, 13), (2, 14), (3, 15), (5, 16))
"""For each version of Landlock: how many rights on files it knows, each a bit from the lowest on."""
_SYSTEM_PATHS = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache",
    "/proc/cpuinfo", "/proc/sys/vm/overcommit_memory", "/sys/devices/system/cpu", "/dev/null", "/dev/urandom",
)  # fmt: skip


class _RestrictedCall(NamedTuple):
    """A system call that is allowed only with some values of one argument."""

    numbers: tuple[int | None, int | None]
    """Its number on x86_64 and on aarch64; None if the machine has no such call."""
    argument: int
    """The index of the argument, from 0 on."""
    kind: Literal["equals", "has", "lacks"]
    """Whether the argument must equal one of the values, have a bit of one, or lack all bits of one."""
    values: tuple[int, ...]


def _restricted_calls() -> tuple[_RestrictedCall, ...]:
    """Return the system calls that are allowed only with some values of one argument.

    Each has its numbers on x86_64 and aarch64, the index of the argument, the test, and the values.
    """
    own_pid = os.getpid()
    return (
        _RestrictedCall((2, None), 1, "lacks", (_WRITES,)),  # open
        _RestrictedCall((257, 56), 2, "lacks", (_WRITES,)),  # openat
        _RestrictedCall((56, 220), 0, "has", (_CLONE_THREAD,)),  # clone: threads, and no process
        _RestrictedCall((157, 167), 0, "equals", (_PR_SET_NAME,)),  # prctl
        _RestrictedCall((16, 29), 1, "equals", (_TERMINAL_IS, _CLOSE_ON_EXEC)),  # ioctl
        _RestrictedCall((72, 25), 1, "equals", (_GETFD, _SETFD, _GETFL, _DUPFD_CLOEXEC)),  # fcntl
        _RestrictedCall((234, 131), 0, "equals", (own_pid,)),  # tgkill: abort() ends this process
        _RestrictedCall((302, 261), 0, "equals", (0,)),  # prlimit64: of this process
        _RestrictedCall((203, 122), 0, "equals", (0,)),  # sched_setaffinity: of this thread
    )


def limit_resources(*, cpu_seconds: int) -> None:
    """Limit the memory and processor time of this process, and forbid it to write files and dump core.

    The limits cannot be raised again; those of the machine that are stricter stay. A process that uses more
    than `cpu_seconds` of processor time is killed.
    """
    for limit, value in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _, most = resource.getrlimit(limit)
        lowest = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(limit, (lowest, lowest))


def restrict_process(*, readable: Iterable[str], library: str) -> list[str]:
    """Restrict this process permanently: it can use its open files, read some others, and do little else.

    It can read the paths `readable`, the folders of the Python library `library`, and what both need.

    Return phrases for the log that say what is missing; empty if both Landlock (for files) and the filter of
    system calls are in force. It is one phrase for each of the two that is not, or a single one if neither
    could be tried.
    """
    if platform.system() != "Linux" or platform.machine() not in _ARCHITECTURES:
        return ["this system has no filter of system calls that Andy knows"]
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel lets an unprivileged process restrict itself only after it promised to gain no privileges.
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return ["the kernel refuses a fence"]
    missing = []
    if not _restrict_files(libc, {*_SYSTEM_PATHS, *readable, *_library_folders(library)}):
        missing.append("the kernel has no Landlock, so files that this user may read can be read")
    if not _filter_calls(libc):
        missing.append("the kernel refuses the filter of system calls")
    return missing


def _library_folders(name: str) -> set[str]:
    """Return the folders from which Python loads code, which the program may read beside `_SYSTEM_PATHS`.

    These are Python's own, that of the library `name` and its neighbours, and those of `LD_LIBRARY_PATH`.
    """
    folders = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    # The library's own folder, and those of the packages beside it, which it needs.
    library_spec = importlib.util.find_spec(name)
    if library_spec is not None and library_spec.submodule_search_locations:
        folders.add(str(Path(library_spec.submodule_search_locations[0]).parent))
    linked_folders = {
        path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if path.startswith("/")
    }
    return folders | linked_folders | {f"{sys.base_prefix}/lib"}


def _restrict_files(libc: Any, readable: Iterable[str]) -> bool:
    """Forbid this process all access to files but reading below the paths `readable`, by Landlock.

    Newer kernels also forbid TCP connections, and signals and sockets to other processes. `libc` is the C
    library, through which the kernel is called. Return whether the kernel could restrict files.
    """
    # With the flag 1, the call only returns the version of Landlock.
    version = libc.syscall(_CREATE_RULESET, None, 0, 1)
    if version < 1:
        return False
    # Each version of Landlock knows more rights on files; the kernel refuses those that it does not know.
    file_rights_count = max(count for since, count in _FILE_RIGHTS if version >= since)
    # A number for each kind of rights that newer versions have added; its bits are what is forbidden.
    handled_rights = [(1 << file_rights_count) - 1]
    if version >= 4:
        handled_rights.append(0b11)  # TCP: listening, connecting
    if version >= 6:
        handled_rights.append(0b11)  # to processes outside: sockets by name, signals
    attributes = ctypes.create_string_buffer(struct.pack(f"{len(handled_rights)}Q", *handled_rights))
    ruleset = libc.syscall(_CREATE_RULESET, attributes, 8 * len(handled_rights), 0)
    if ruleset < 0:
        return False
    try:
        for path in readable:
            _allow_reading(libc, ruleset, path)
        return bool(libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _allow_reading(libc: Any, ruleset: int, path: str) -> None:
    """Add a rule by which this process may read a file, or all files below a folder, at `path`.

    A path that does not exist is ignored. `libc` is the C library, through which the kernel is called;
    `ruleset` is the descriptor of Landlock's rules.
    """
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # not every system has every path
    try:
        allowed = _READ_FILE | (_READ_DIRECTORY if Path(path).is_dir() else 0)
        # The kernel's `landlock_path_beneath_attr`: rights and descriptor. 1 is the type of this rule.
        rule = ctypes.create_string_buffer(struct.pack("=Qi", allowed, descriptor))
        libc.syscall(_ADD_RULE, ruleset, 1, rule, 0)
    finally:
        os.close(descriptor)


def _filter_calls(libc: Any) -> bool:
    """Make the kernel check each further system call of this process; return whether the kernel does.

    `_filter_program` decides which calls are allowed. `libc` is the C library, through which the kernel is
    called.
    """
    # The kernel reads steps as its `sock_filter`, and their number and address as its `sock_fprog`.
    program = b"".join(
        struct.pack("HBBI", *step) for step in _filter_program(*_ARCHITECTURES[platform.machine()])
    )
    steps = ctypes.create_string_buffer(program, len(program))
    program_header = ctypes.create_string_buffer(
        struct.pack("HP", len(program) // 8, ctypes.addressof(steps))
    )
    return bool(libc.prctl(_PR_SET_SECCOMP, _FILTER_MODE, program_header, 0, 0) == 0)


def _filter_program(machine_number: int, column: int) -> Iterator[_Step]:
    """Yield the steps of the program by which the kernel decides about each system call of this process.

    A call that is not allowed, or not with these arguments, fails with EPERM. One of `_ABSENT_CALLS` fails
    with ENOSYS, as if the kernel did not have it, so that its caller uses an older call. A call for another
    architecture ends the process.

    `machine_number` is the number of this machine's architecture in the kernel, and `column` its column in
    the tables of system calls.
    """
    # A step has a code, the steps to skip if its test is true and if it is false, and a value. The kernel
    # passes the program the number of the call at byte 0, and its architecture at byte 4.
    yield (_LOAD, 0, 0, 4)
    yield (_EQUAL, 1, 0, machine_number)
    yield (_RETURN, 0, 0, _KILL)
    yield (_LOAD, 0, 0, 0)
    # The second table of calls of x86_64 would be a way around the numbers that are tested below.
    yield (_AT_LEAST, 0, 1, _X32)
    yield (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    results = {numbers[column]: _ALLOW for numbers in _ALLOWED_CALLS.values()}
    results |= {numbers[column]: _ERRNO | errno.ENOSYS for numbers in _ABSENT_CALLS.values()}
    for number, result in results.items():
        if number is not None:
            yield (_EQUAL, 0, 1, number)
            yield (_RETURN, 0, 0, result)
    for call in _restricted_calls():
        yield from _steps_of_call(call, call.numbers[column])
    yield (_RETURN, 0, 0, _ERRNO | errno.EPERM)


def _steps_of_call(call: _RestrictedCall, number: int | None) -> Iterator[_Step]:
    """Yield the steps of the kernel's program that decide about one system call by one of its arguments.

    Only the lower 32 bits of the argument are tested. `number` is the number of the call on this machine;
    None if the machine has no such call, which needs no steps.
    """
    if number is None:
        return
    tests: list[_Step] = []
    # A step has a code, the steps to skip if its test is true and if it is false, and a value. So each test
    # is followed by a step that allows the call, and skips that if the argument does not pass the test.
    for value in call.values:
        match call.kind:
            case "equals":
                test = (_EQUAL, 0, 1, value)
            case "has":
                test = (_ANY_BIT, 0, 1, value)
            case "lacks":
                test = (_ANY_BIT, 1, 0, value)
        tests += [test, (_RETURN, 0, 0, _ALLOW)]
    # For another call, all steps about this one are skipped: the load, the tests and the last return.
    yield (_EQUAL, 0, len(tests) + 2, number)
    # The arguments, of 8 bytes each, begin at byte 16 of what the kernel passes to the program.
    yield (_LOAD, 0, 0, 16 + 8 * call.argument)
    yield from tests
    yield (_RETURN, 0, 0, _ERRNO | errno.EPERM)
