"""Directories as an agent may leave them: too deep to be walked down, and closed to their owner."""

from __future__ import annotations

import os
from pathlib import Path


def bury(top: Path, *, depth: int) -> None:
    """Make a chain of `depth` directories below `top`, with a file in the last, and one closed directory."""
    closed = top / "closed"
    (closed / "inner").mkdir(parents=True)
    (closed / "inner" / "file").touch()
    (closed / "inner").chmod(0o000)
    closed.chmod(0o555)
    descriptor = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=descriptor)
        inner = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=descriptor))
    os.close(descriptor)
