"""Tell which files the CLI reads once, when it boots: memory, settings, skills. Light: it is imported first.

A CLI that was started ahead of its first turn has not read what was written after that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from agent_runner.workspace import Workspace

SUFFIXES = (".md", ".json", ".toml")
MAX_DEPTH = 4
MAX_ENTRIES = 5_000
"""So many entries of a folder are looked at: one could hold millions."""
BootFiles = frozenset[tuple[str, int, int, int]]
"""The path, inode, size and time of each."""


def boot_files(workspace: Workspace) -> BootFiles:
    """Return the files that a CLI would read now; two that differ mean that it has to boot again. Blocks.

    Memory may take in any other text, so each text file near the top of the group's folder counts.
    """
    config = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")
    trees = (workspace.group, workspace.skills, config / "skills", config / "agents", config / "commands")
    found = [entry for tree in trees for entry in _texts(tree)]
    return frozenset(found + [one for name in ("CLAUDE.md", "settings.json") for one in _file(config / name)])


def _texts(tree: Path) -> Iterator[tuple[str, int, int, int]]:
    waiting, seen = [(str(tree), 1)], 0
    while waiting:
        folder, depth = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    seen += 1
                    if seen > MAX_ENTRIES:
                        return
                    if entry.name.endswith(SUFFIXES):
                        yield from _file(Path(entry.path))
                    elif depth < MAX_DEPTH and entry.is_dir(follow_symlinks=False):
                        waiting.append((entry.path, depth + 1))
        except OSError:
            continue  # it is gone, or cannot be read by the CLI either


def _file(path: Path) -> list[tuple[str, int, int, int]]:
    try:
        found = path.stat()
    except OSError:
        return []
    return [(str(path), found.st_ino, found.st_size, found.st_mtime_ns)]
