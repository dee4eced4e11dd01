"""Read the request files that an agent writes, before the carrier sends them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from agent_runner.wire import trees
from agent_runner.wire.carrier import REQUEST_NAME
from agent_runner.wire.files import unique_name
from agent_runner.wire.trees import TreeError

MAX_REQUEST_BYTES = 1024 * 1024
"""Most bytes of a request file."""
Version = tuple[int, int, int]
"""Inode, size and modification time in ns of a file: a different one means another request under its name."""


def request_names(directory: Path) -> list[str]:
    """Return the names of the finished request files in a mailbox directory, the oldest first.

    A file whose name the host would refuse is renamed first, because the host would end the connection. Empty
    if the agent has removed the directory or the right to read it. A file in place of the directory raises
    `NotADirectoryError`, which ends the run: somebody tampers with the carrier.
    """
    try:
        paths = [path for path in directory.iterdir() if not path.name.startswith(".")]
    except (FileNotFoundError, PermissionError):
        return []
    names = [_name_to_send(path) for path in paths if not path.name.endswith(".partial")]
    return sorted(name for name in names if name is not None)


def _name_to_send(path: Path) -> str | None:
    """Return the name of a request file, renamed if the host would refuse its name; None if that fails."""
    if REQUEST_NAME.fullmatch(path.name):
        return path.name
    name = unique_name()
    try:
        path.rename(path.with_name(name))
    except OSError:
        return None
    return name


def read_request(path: Path) -> tuple[bytes, Version] | None:
    """Return a request file's content and version; None if it is no plain file, too large, or gone."""
    try:
        with trees.opened_root(path.parent) as root, trees.open_file(root, path.name) as file:
            # Taken before the content is read: what is written after that counts as another request.
            version = _version(os.fstat(file.fileno()))
            content: bytes = file.read(MAX_REQUEST_BYTES + 1)
    except OSError:
        return None
    return (content, version) if len(content) <= MAX_REQUEST_BYTES else None


def remove_request(path: Path, version: Version) -> bool:
    """Remove a request file that the host has stored, unless another request has its name by now.

    Return False if it is still there, because the agent has taken away the right to remove it.
    """
    try:
        if _version(path.lstat()) == version:
            path.unlink()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _version(info: os.stat_result) -> Version:
    """Return the version of the file with this status."""
    return info.st_ino, info.st_size, info.st_mtime_ns


def file_named_in(content: bytes) -> str | None:
    """Return the path of the file that a request to send a file names, relative to the group's folder.

    `content` is the request as JSON. None for another request, one that is invalid, or a path outside of that
    folder.
    """
    try:
        request = json.loads(content)
        if request["type"] == "send_file":
            return trees.checked_path(os.path.normpath(request["path"]).removeprefix("/workspace/group/"))
    except (KeyError, TypeError, ValueError, RecursionError, TreeError):
        return None
    return None
