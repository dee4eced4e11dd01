"""A group's mailbox, a secret of the host beside it, and hostile files that a container may put there."""

from __future__ import annotations

import os
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent_runner.wire.mailbox import MAX_FILE_BYTES
from orchestrator.ipc import mailbox
from orchestrator.ipc.mailbox import Mailbox, RequestBatch
from tests.support.skips import THIS_MACHINE

GOOD = "1763800000000-abcd.json"
SECRET = b"the owner's secret"
is_root = os.geteuid() == 0


@dataclass
class Later:
    """A clock ahead of the files' own times: all files are at rest."""

    ahead_ms: int = mailbox.SETTLE_MS

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


class Post:
    """One group's mailbox, a secret of the host beside it, and a deadline on every call."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = root / "ipc" / "family" / "tasks"
        self.directory.mkdir(parents=True)
        self.kept = root / "ipc" / "errors" / "family"
        self.secret = root / "secret"
        self.secret.write_bytes(SECRET)
        self.clock = Later()
        self.box = Mailbox(
            self.directory,
            errors=self.kept.parent,
            folder="family",
            owner_uids=frozenset({os.geteuid()}),
            clock=self.clock,
        )

    def put(self, name: str, body: bytes = b"{}") -> Path:
        path = self.directory / name
        path.write_bytes(body)
        return path

    def take(self, limit: int = 200) -> RequestBatch:
        with deadline(10):
            return self.box.take(limit)

    def reasons(self) -> list[str]:
        return [path.read_text() for path in sorted(self.kept.glob("*.reason"))]


@contextmanager
def deadline(seconds: int) -> Iterator[None]:
    """Break off a call that blocks, with a signal: a blocked system call hears nothing else."""

    def late(*_: object) -> None:
        pytest.fail(f"blocked for {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def honest(path: Path, post: Post) -> None:
    path.write_bytes(b"{}")


def fifo(path: Path, post: Post) -> None:
    os.mkfifo(path)


def link_to_the_secret(path: Path, post: Post) -> None:
    path.symlink_to(post.secret)


def link_to_nothing(path: Path, post: Post) -> None:
    path.symlink_to(post.root / "nothing")


def link_to_a_device(path: Path, post: Post) -> None:
    path.symlink_to("/dev/zero")


def hard_link_to_the_secret(path: Path, post: Post) -> None:
    path.hardlink_to(post.secret)


def _socket(path: Path, post: Post) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's path has at most 107 bytes
        try:
            listener.bind(path.name)
        finally:
            os.chdir(here)


def huge(path: Path, post: Post) -> None:
    with path.open("wb") as file:
        file.truncate(100 * 1024 * 1024)


def just_too_big(path: Path, post: Post) -> None:
    path.write_bytes(b"x" * (MAX_FILE_BYTES + 1))


def _device(path: Path, post: Post) -> None:
    if not is_root:
        pytest.skip("only root can make a device node")
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip(f"{THIS_MACHINE}device nodes cannot be made here")


def _of_another_user(path: Path, post: Post) -> None:
    if not is_root:
        pytest.skip("only root can give a file away")
    path.write_bytes(b"{}")
    os.chown(path, 4242, 4242)


Plant = Callable[[Path, Post], None]


REFUSED: dict[str, Plant] = {
    "a FIFO": fifo,
    "symbolic link": link_to_the_secret,
    "a symbolic link": link_to_nothing,
    "is a symbolic link": link_to_a_device,
    "2 links": hard_link_to_the_secret,
    "a socket": _socket,
    "104857600 bytes": huge,
    "1048577 bytes": just_too_big,
    "character device": _device,
    "user 4242": _of_another_user,
}
