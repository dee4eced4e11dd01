"""What was said reaches no git repository: `.ai-brain/` is ignored where a home lies in one. Blocks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from orchestrator.context.files import CONTEXT, DIRECTORY

LINE = f"{DIRECTORY}/"
SECONDS = 10.0


def keep_out_of_git(home: Path) -> bool:
    """Add `.ai-brain/` to `home/.gitignore` unless git ignores it already; tell whether it was added.

    Nothing is done where no git work tree is around `home`.

    Raises:
        OSError: `.gitignore` cannot be written.
    """
    if not _is_in_work_tree(home.resolve()) or _is_ignored(home):
        return False
    path = home / ".gitignore"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if LINE in text.splitlines():
        return False
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    with os.fdopen(descriptor, "a", encoding="utf-8") as file:
        file.write(f"{'' if text.endswith(chr(10)) or not text else chr(10)}{LINE}\n")
    return True


def _is_in_work_tree(home: Path) -> bool:
    return any((folder / ".git").exists() for folder in (home, *home.parents))


def _is_ignored(home: Path) -> bool:
    """Whether git says so; False where there is no git to ask."""
    path = home / "data" / "context" / "main" / DIRECTORY / CONTEXT
    try:
        asked = subprocess.run(
            ["git", "-C", home, "check-ignore", "--quiet", "--no-index", path],
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0
