"""Read the files of a directory while other programs write to it and remove files."""

from __future__ import annotations

from pathlib import Path


def contents(directory: Path, pattern: str = "*") -> dict[Path, bytes]:
    """Return the bytes of each file below `directory` that matches, without those that go meanwhile."""
    found = {}
    for path in directory.glob(pattern):
        try:
            found[path] = path.read_bytes()
        except (FileNotFoundError, IsADirectoryError):
            continue
    return found
