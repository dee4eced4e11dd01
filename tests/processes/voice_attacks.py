"""Attack this machine as code would that got in through a hole of a decoder; print the outcomes as JSON.

Arguments: a folder with the files `secret` and `empty-folder/`, the process of somebody else, and `fenced` or
`open`. Each attack is named with `done`, or with the name of the error that refused it.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import resource
import signal
import socket
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path

from orchestrator.channels.voice import fence

ORDINARY_USER = 65534
libc = ctypes.CDLL(None, use_errno=True)
PIDFD_OPEN, PIDFD_GETFD, IO_URING_SETUP = 434, 438, 425
TGKILL = {"x86_64": 234, "aarch64": 131}[os.uname().machine]


def call(number: int, *arguments: int) -> int:
    result: int = libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def attacks(folder: Path, victim: int) -> dict[str, Callable[[], object]]:
    secret = folder / "secret"

    def write_by_mapping() -> None:
        with secret.open("r+b") as file, mmap.mmap(file.fileno(), 4) as mapped:
            mapped[:4] = b"EVIL"

    def fork() -> None:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

    def run_a_program() -> None:
        os.execv("/bin/true", ["/bin/true"])

    def write_memory() -> None:
        os.close(os.open(f"/proc/{victim}/mem", os.O_RDWR))

    def take_a_file() -> None:
        call(PIDFD_GETFD, call(PIDFD_OPEN, victim, 0), 0, 0)

    return {
        "read another file": secret.read_bytes,
        "list a folder": lambda: list(folder.iterdir()),
        "write by a mapping": write_by_mapping,
        "link": lambda: os.link(secret, folder / "linked"),
        "symlink": lambda: (folder / "symlinked").symlink_to(secret),
        "make a folder": lambda: (folder / "made").mkdir(),
        "make an empty file": lambda: (folder / "new").touch(),
        "make a pipe": lambda: os.mkfifo(folder / "fifo"),
        "chmod 4777": lambda: secret.chmod(0o4777),
        "chown": lambda: os.chown(secret, -1, -1),
        "rename": lambda: (folder / "moved-from").rename(folder / "moved-to"),
        "remove a file": (folder / "removed").unlink,
        "remove a folder": (folder / "empty-folder").rmdir,
        "set times": lambda: os.utime(secret),
        "truncate": lambda: os.truncate(secret, 0),
        "write memory": write_memory,
        "read another environment": Path(f"/proc/{victim}/environ").read_bytes,
        "take an open file": take_a_file,
        "bound another process": lambda: resource.prlimit(victim, resource.RLIMIT_CORE, (0, 0)),
        "io_uring": lambda: call(IO_URING_SETUP, 1, 0),
        "signal": lambda: os.kill(victim, 0),
        "signal a thread": lambda: call(TGKILL, victim, victim, 0),
        "kill by its handle": lambda: signal.pidfd_send_signal(os.pidfd_open(victim), 0),
        "take an internet socket": lambda: socket.socket(socket.AF_INET).close(),
        "take a local socket": lambda: socket.socket(socket.AF_UNIX).close(),
        "memory that is a file": lambda: os.close(os.memfd_create("code")),
        "fork": fork,
        "run a program": run_a_program,
    }


def main() -> None:
    folder, victim, mode = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    sysconfig.get_paths()  # Python's own folders may be out of an ordinary user's reach
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(ORDINARY_USER, ORDINARY_USER, ORDINARY_USER)
        os.setresuid(ORDINARY_USER, ORDINARY_USER, ORDINARY_USER)
        libc.prctl(4, 1, 0, 0, 0)
    missing = fence.restrict_process(readable=[], library="json") if mode == "fenced" else []
    found: dict[str, str] = {}
    for name, attack in attacks(folder, victim).items():
        if name == "run a program" and mode != "fenced":
            continue  # it would be the end of this one
        try:
            attack()
            found[name] = "done"
        except OSError as error:
            found[name] = errno.errorcode.get(error.errno or 0, str(error))
    thread = threading.Thread(target=lambda: found.update(thread="started"))
    thread.start()
    thread.join()
    sys.stdout.write(json.dumps({"missing": missing, "attacks": found}))


if __name__ == "__main__":
    main()
