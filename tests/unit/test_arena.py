"""The threads of a host allocate from one arena of the C library, so that its memory stays flat."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from tests.support.skips import THIS_MACHINE

ARENAS = """
import ctypes, sys, threading
from orchestrator.base import memory

if sys.argv[1] == "shared":
    memory.share_one_arena()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
everyone = threading.Barrier(4)

def allocate():
    everyone.wait(30)
    libc.malloc(ctypes.c_size_t(10_000))
    everyone.wait(30)

threads = [threading.Thread(target=allocate) for _ in range(4)]
for each in threads: each.start()
for each in threads: each.join()
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w"))
libc.malloc_info(0, file)
libc.fflush(file)
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason=f"{THIS_MACHINE}other C libraries have no arenas of threads"
)
def test_the_threads_of_a_host_share_one_arena() -> None:
    assert _arenas("shared") == 1
    assert _arenas("each its own") > 1


def _arenas(kind: str) -> int:
    ran = subprocess.run(
        [sys.executable, "-c", ARENAS, kind], capture_output=True, text=True, check=True, timeout=60
    )
    return ran.stdout.count("<heap nr=")
