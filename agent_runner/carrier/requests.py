"""Read the request files that an agent writes, before the carrier sends them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from agent_runner.wire import trees
from agent_runner.wire.trees import TreeError

MAX_REQUEST_BYTES = 1024 * 1024
"""Most bytes of a request file."""


def read_request(path: Path) -> bytes | None:
    """Return the content of a request file; None if it is no plain file, too large, or gone."""
    try:
        with trees.opened_root(path.parent) as root, trees.open_file(root, path.name) as file:
            content: bytes = file.read(MAX_REQUEST_BYTES + 1)
    except OSError:
        return None
    return content if len(content) <= MAX_REQUEST_BYTES else None


def file_named_in(content: bytes) -> str | None:
    """Return the path of the file that a request to send a file names, relative to the group's folder.

    `content` is the request as JSON. None for another request, one that is invalid, or a path outside of that
    folder.
    """
    try:
        request = json.loads(content)
        if request["type"] == "send_file":
            return trees.checked_path(os.path.normpath(request["path"]).removeprefix("/workspace/group/"))
    except (KeyError, TypeError, ValueError, TreeError):
        return None
    return None
