"""Read the announcements that commands have left for a running host."""

from __future__ import annotations

import json
from typing import Any

from orchestrator.home.directory import Home


def listen(home: Home) -> None:
    """Make the directory, as a running host does: commands leave files there from now on."""
    home.announcements.mkdir(mode=0o700, parents=True)


def left(home: Home) -> list[dict[str, Any]]:
    """Return what was left since the last call, and remove it."""
    files = sorted(home.announcements.iterdir())
    found = [one for path in files for one in json.loads(path.read_text(encoding="utf-8"))]
    for path in files:
        path.unlink()
    return found
