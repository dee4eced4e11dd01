"""Read what lies in a directory that others write to and clear while it is read."""

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
