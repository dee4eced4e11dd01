"""Check whether a process is alive; it may end during the check."""

from __future__ import annotations

from pathlib import Path


def is_alive(pid: int) -> bool:
    """False of one that has ended, be it that nobody has taken notice of its end yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
