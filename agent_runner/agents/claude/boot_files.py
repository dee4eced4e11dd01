"""List the files that the CLI reads once, at its boot: memory, settings, skills.

A CLI that was started ahead of its first turn has not read later versions. This module is imported first, so
it has to load quickly.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from agent_runner.workspace import Workspace

SUFFIXES = (".md", ".json", ".toml")
MAX_DEPTH = 4
"""Levels of folders that are looked at; 1 is the folder itself."""
MAX_ENTRIES = 5_000
"""Entries of a folder and its subfolders that are looked at: one could contain millions."""
BootFiles = frozenset[tuple[str, int, int, int]]
"""The path, inode, size in bytes and time of change in nanoseconds of each file."""


def boot_files(workspace: Workspace) -> BootFiles:
    """Return the state of the files that a CLI would read at its boot. Blocks.

    If it differs from an earlier result, a CLI that has booted since then may have read old versions.

    Memory files may include any other text, so each text file near the top of the group's folder counts.
    """
    config = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")
    trees = (workspace.group, workspace.skills, config / "skills", config / "agents", config / "commands")
    texts = [file for tree in trees for file in _texts(tree)]
    config_files = [file for name in ("CLAUDE.md", "settings.json") for file in _file(config / name)]
    return frozenset(texts + config_files)


def _texts(tree: Path) -> Iterator[tuple[str, int, int, int]]:
    """Yield path, inode, size and change time (ns) of the text files in a folder and its subfolders.

    It looks at `MAX_DEPTH` levels and `MAX_ENTRIES` entries at the most.
    """
    waiting = [(str(tree), 1)]  # the folders still to read, with their levels
    entries_seen = 0
    while waiting:
        folder, depth = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    entries_seen += 1
                    if entries_seen > MAX_ENTRIES:
                        return
                    if entry.name.endswith(SUFFIXES):
                        yield from _file(Path(entry.path))
                    elif depth < MAX_DEPTH and entry.is_dir(follow_symlinks=False):
                        waiting.append((entry.path, depth + 1))
        except OSError:
            continue  # it is gone, or the CLI cannot read it either


def _file(path: Path) -> list[tuple[str, int, int, int]]:
    """Return path, inode, size and change time (ns) of a file, as a list of one; empty if there is none."""
    try:
        status = path.stat()
    except OSError:
        return []
    return [(str(path), status.st_ino, status.st_size, status.st_mtime_ns)]
